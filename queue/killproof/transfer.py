"""The way out, and back in: all jobs as lines of JSON, with what they went through.

The first line says what the file is, the last one how many jobs are in it, and each line between
them is one job with its attempts.  Any program can read it, which is the point: a queue that can
not be left is a trap.

**Export** reads a page of jobs at a time, each in a short read of its own: its memory is bounded,
and the log is never held back.  So each line is true by itself, and every job that was there when
it began is in it, but it is no snapshot of all: a job that ends meanwhile may be written as it was
before.  For one moment of everything, export a backup.

**Import** puts the jobs into another file as they were, with their attempts, under new ids.  A job
is put in once: the file keeps, for each job that came in, where it came from, in the transaction
that put it in.  So an import that was killed is simply run again.  Where it came from is the random
name of the source file, which an export gives it, and the job's id and time there; a job whose key
a living job of the target has is left out as well, and told.  What was running when it was exported
is available, and that delivery is no attempt.

**Runs of workflows** come after the other jobs, each read at one moment: the jobs that are its
steps, then a line for the run itself.  Until that line has come in, none of its steps can start:
somebody may be at work on the file already.  See `workflow_transfer`.

**Large payloads** (`killproof.payloads`) are files, which lines can not hold: a job's line has the
reference, and export and import take the files over, from folder to folder, each proven by its
hash.  A job whose file is missing or damaged is exported all the same, and told; an import leaves
it out, and tells it.
"""

import json
import logging
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any, Final, LiteralString, TextIO, cast

from killproof import listing, payloads, workflow_tables, workflow_transfer
from killproof.core import model, retry
from killproof.core.database import Transaction, Value
from killproof.core.errors import FileRefused, PayloadInvalid
from killproof.core.jobs import Queue
from killproof.core.model import Attempt, Job
from killproof.payload_files import Folder, PayloadLost
from killproof.payloads import Reference
from killproof.spilling import MARK

logger = logging.getLogger("killproof")

#: Version of the lines.
FORMAT: Final = 1
SCHEMA_VERSION: Final = 1
#: Jobs in one read, and jobs that go in under one hold of the write lock, at most ...
BATCH_JOBS: Final = 200
#: ... and characters, of which one job may exceed it.
BATCH_CHARS: Final = 4 << 20
#: A line is a payload and a result of a megabyte each, and the errors of its attempts.
LINE_CHARS_MAX: Final = 64 << 20

_ATTEMPT_FIELDS: Final = tuple(field.name for field in fields(Attempt))


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import did with the lines it read."""

    added: int
    known: int  #: came in before, by this or an earlier import
    refused: tuple[tuple[int, str], ...]  #: (line, why): a living job, or another run, has its key


# Out.

IDENTITY: Final = "SELECT value FROM killproof_setting WHERE name = 'identity'"

SET_IDENTITY: Final = "INSERT OR IGNORE INTO killproof_setting VALUES ('identity', :value)"

NEXT: Final = "SELECT id FROM job WHERE id > :after ORDER BY id LIMIT 1"

NEXT_BUT_STEPS: Final = """
    SELECT id FROM job
     WHERE id > :after AND NOT EXISTS (SELECT 1 FROM workflow_step WHERE job_id = job.id)
     ORDER BY id LIMIT 1"""

TEXTS: Final = "SELECT payload, result FROM job WHERE id = :id"


def export_jobs(queue: Queue, out: TextIO, *, files: Folder | None = None) -> int:
    """Write all jobs as lines of JSON; return their number.

    Args:
        queue: where they are; it is only read, but for the name that it gets at its first export.
        out: a text stream in UTF-8.
        files: where the files of large payloads go; None refuses a queue that has any.

    Raises:
        FileRefused: there are large payloads, and no folder for them; definite.
        KillproofError: as for `Queue.cancel`.
        OSError: from the stream.
    """
    large = payloads.Payloads(queue)
    if files is None and large.check().files:
        raise FileRefused(
            f"{queue.path} has large payloads, which are files: export to a FILE, and they go into "
            "the folder FILE.payloads"
        )
    out.write(_text({"killproof_export": FORMAT, "source": _identity(queue)}))
    after, number = 0, 0
    with large.folder.kept():
        while True:
            with queue.database.read() as tx:
                batch = list(_batch(tx, after))
            for job_id, line in batch:  # Outside of the read: the reader of a pipe may be slow.
                out.write(line)
                if files is not None and MARK in line:
                    _take_along(large.folder, files, line)
                after = job_id
            number += len(batch)
            if not batch:
                break
        for line in _runs(queue):
            out.write(line)
            if not workflow_transfer.is_run(line):
                number += 1
                if files is not None and MARK in line:
                    _take_along(large.folder, files, line)
    # Without it a file that was cut off between two lines would look whole.
    out.write(_text({"killproof_export_end": number}))
    out.flush()
    return number


def _runs(queue: Queue) -> Iterator[str]:
    """Yield each run: the jobs that are its steps, and then its own line, as of one moment.

    They are kept in a file meanwhile, because a run may be large and who takes the lines slow.
    """
    after = 0
    while True:
        with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as spool:
            with queue.database.read() as tx:
                run = workflow_transfer.following(tx, after)
                if run is None:
                    return
                after = run["id"]
                for step in run["steps"]:
                    spool.write(_line(tx, step["job_id"], run_id=after))
            spool.write(_text({workflow_transfer.MARK: run}))
            spool.seek(0)
            yield from spool


def _take_along(source: Folder, target: Folder, line: str) -> None:
    """Copy the files that a job's line refers to; one that is lost must not close the way out."""
    job = json.loads(line)
    for reference in filter(None, map(Reference.of, (job["payload"], job["result"]))):
        try:
            target.copy(source, reference.sha256, reference.bytes)
        except PayloadLost as error:
            logger.warning("job_id=%d is exported without its large payload: %s", job["id"], error)


def _identity(queue: Queue) -> str:
    """Return the file's random name; give it one at the first export."""
    found = queue.database.peek(IDENTITY)
    if not found:
        with queue.transaction() as tx:
            tx.change(SET_IDENTITY, {"value": os.urandom(16).hex()})
        found = queue.database.peek(IDENTITY)
    return str(found[0][0])


def _batch(tx: Transaction, after: int) -> Iterator[tuple[int, str]]:
    """Yield the next jobs as (id, line), a bounded number of them and of characters."""
    chars = 0
    statement: LiteralString = NEXT_BUT_STEPS if workflow_tables.exists(tx) else NEXT
    for _ in range(BATCH_JOBS):
        row = tx.row(statement, {"after": after})
        if row is None or chars > BATCH_CHARS:
            return
        after = cast(int, row[0])
        line = _line(tx, after)
        chars += len(line)
        yield after, line


def _line(tx: Transaction, job_id: int, *, run_id: int | None = None) -> str:
    """Return a job as a line; the owner of a lease is named as the worker of an attempt is."""
    (job,) = listing.read(tx, [job_id])
    ((payload, result),) = tx.rows(TEXTS, {"id": job_id})
    line = asdict(job) | {
        "payload": _decoded(payload),
        "result": None if result is None else _decoded(result),
        "attempts": [
            dict(zip(_ATTEMPT_FIELDS, attempt, strict=True))
            for attempt in tx.rows(Queue.ATTEMPTS, {"id": job_id})
        ],
    }
    return _text(line if run_id is None else line | {"run": run_id})


def _decoded(text: Value) -> object:
    """Decode what a job holds; a row that somebody damaged must not close the way out."""
    try:
        value = json.loads(str(text))
        # SQLite takes half of a surrogate pair, written as an escape; no file in UTF-8 does.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {"killproof_repr": str(text)}
    return value


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"


# In.


def import_jobs(queue: Queue, lines: Iterable[str], *, files: Folder | None = None) -> Imported:
    """Put exported jobs in, each once however often this is called.

    Args:
        queue: where they go; it need not be empty.
        lines: an export, line by line.
        files: where the files of its large payloads are; they may also be in the queue's own
            folder already.

    Raises:
        ValueError: a line is not what an export writes; the message names it; definite for the
            batch of the line, and what was put in before stays.
        FileRefused: the application has a table `imported_job`; definite.
        KillproofError: as for `Queue.enqueue`.
    """
    numbered = enumerate(lines, 1)
    source = source_of(next(numbered, (1, ""))[1])
    added, known = 0, 0
    refused: list[tuple[int, str]] = []
    lines_read = jobs_told = 0
    while batch := list(_some(numbered)):
        if (told := _end(batch[-1])) is not None:
            jobs_told = told
            del batch[-1]
        runs = [(number, line) for number, line in batch if workflow_transfer.is_run(line)]
        jobs = [
            (number, _parsed(number, line))
            for number, line in batch
            if not workflow_transfer.is_run(line)
        ]
        lines_read += len(jobs)
        now_ms = queue.host.clock.now_ms()
        large = _Large(queue, files)
        for number, (job, _) in jobs:  # Before the write lock is held: they may be long.
            large.bring(number, job)
        with queue.transaction() as tx:
            _ensure_table(tx)
            for number, (job, is_step) in jobs:
                why = _put_in(tx, source, number, job, now_ms, large, is_step=is_step)
                if why == "":
                    added += 1
                elif why == "known":
                    known += 1
                else:
                    refused.append((number, why))
            for number, line in runs:
                if why := _run(tx, source, number, line, now_ms):
                    refused.append((number, why))
    if lines_read != jobs_told:
        raise ValueError(
            f"the export was cut off after {lines_read} jobs, {added} of which came in now: "
            "export again, and import that"
        )
    return Imported(added=added, known=known, refused=tuple(refused))


def _run(tx: Transaction, source: str, number: int, line: str, now_ms: int) -> str:
    """Put the run of a line in; return '', or what a person must know."""
    try:
        return workflow_transfer.put_in(tx, source, _json(number, line), now_ms)
    except (
        *(KeyError, TypeError, ValueError, AttributeError),
        *(sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError),
    ) as error:
        raise ValueError(f"line {number} is no exported run: {error}") from error


def _some(numbered: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the next lines, a bounded number of them and of characters."""
    chars = 0
    for number, line in islice(numbered, BATCH_JOBS):
        yield number, line
        chars += len(line)
        if chars > BATCH_CHARS:
            return


def source_of(line: str) -> str:
    """Return the name of the queue that the first line of an export tells.

    Raises:
        ValueError: it is no such line; the message names it.
    """
    head = _json(1, line)
    if not isinstance(head, dict) or head.get("killproof_export") != FORMAT:
        raise ValueError(
            f"line 1 does not say that this is an export of format {FORMAT}: "
            "name a file that killproof export has written"
        )
    return model.check_text(head.get("source"), "line 1: source", 200)


def _end(numbered: tuple[int, str]) -> int | None:
    """Return the number of jobs that the last line tells; None if this is no last line."""
    number, line = numbered
    if "killproof_export_end" not in line[:30]:
        return None
    end = _json(number, line)
    told = end.get("killproof_export_end") if isinstance(end, dict) else None
    return model.check_count(told, f"line {number}: killproof_export_end", 0, 1 << 62)


def _json(number: int, line: str) -> object:
    if len(line) > LINE_CHARS_MAX:
        raise ValueError(f"line {number} is longer than {LINE_CHARS_MAX} characters")
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error


def _parsed(number: int, line: str) -> tuple[Job, bool]:
    """Return the job of a line, and whether it is a step of a run.

    Everything is checked that the file does not check by itself.
    """
    found = _json(number, line)
    try:
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        attempts = tuple(Attempt(**attempt) for attempt in found.pop("attempts"))
        is_step = found.pop("run", None) is not None
        job = Job(**found, attempts=attempts)
        model.check_text(job.kind, "kind", model.KIND_CHARS_MAX)
        if job.key is not None:
            model.check_text(job.key, "key", model.KEY_CHARS_MAX)
        if job.state not in model.STATES:
            raise ValueError(f"state {job.state!r} is unknown")
        for name in ("id", "due_ms", "created_ms", "fence"):
            model.check_count(getattr(job, name), name, 0, (1 << 63) - 1)
        retry.parse(job.retry)
        model.encode_payload(job.payload)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"line {number} is no exported job: {error}") from error
    return job, is_step


IS_KNOWN: Final = """
    SELECT 1 FROM imported_job
     WHERE source = :source AND source_id = :id AND created_ms = :created_ms"""

KEY_LIVES: Final = """
    SELECT id FROM job
     WHERE key = :key AND key IS NOT NULL
       AND state IN ('blocked', 'scheduled', 'available', 'leased', 'retryable', 'held')"""

INSERT: Final = """
    INSERT INTO job (kind, state, payload, priority, due_ms, key, max_attempts, lease_ms, retry,
                     fence, deliveries, forgiven, failures, crashes, claimed_ms, created_ms,
                     updated_ms, finished_ms, error_class, error_message, result, expires_ms)
    VALUES (:kind, :state, :payload, :priority, :due_ms, :key, :max_attempts, :lease_ms, :retry,
            :fence, :deliveries, :forgiven, :failures, :crashes, :claimed_ms, :created_ms,
            :now_ms, :finished_ms, :error_class, :error_message, :result, :expires_ms)"""

INSERT_ATTEMPT: Final = """
    INSERT INTO attempt (job_id, fence, outcome, worker, started_ms, finished_ms, error_class,
                         error_message, traceback)
    VALUES (:job_id, :fence, :outcome, :worker, :started_ms, :finished_ms, :error_class,
            :error_message, :traceback)"""

REMEMBER: Final = "INSERT INTO imported_job VALUES (:source, :id, :created_ms, :job_id)"


class _Large:
    """The large payloads and results of the jobs of a batch."""

    def __init__(self, queue: Queue, files: Folder | None) -> None:
        self.lost: dict[int, str] = {}  # Line -> why it is left out.
        self._payloads = payloads.Payloads(queue)
        self._files = files

    def bring(self, number: int, job: Job) -> None:
        """Have the files of a job here, or note that they can not be had."""
        for _, reference in self._of(job):
            try:
                self._payloads.take_over(reference, self._files)
            except PayloadLost as error:
                self.lost[number] = f"its large payload can not be taken over: {error}"

    def rely_on_payload(self, tx: Transaction, job: Job) -> None:
        """Make the file of a job's payload one that may be relied on, before its row is there."""
        for fence, reference in self._of(job):
            if fence == 0:
                self._payloads.rely_on_copy(tx, reference, self._files)

    def rely_on_result(self, tx: Transaction, job: Job, job_id: int) -> None:
        """Rely on the file of a job's result, under its new id."""
        for fence, reference in self._of(job):
            if fence != 0:
                self._payloads.rely_on_copy(tx, reference, self._files, (job_id, fence))

    def _of(self, job: Job) -> Iterator[tuple[int, Reference]]:
        for fence, value in ((0, job.payload), (job.fence, job.result)):
            if (reference := Reference.of(value)) is not None:
                yield fence, reference


def _put_in(
    tx: Transaction,
    source: str,
    number: int,
    job: Job,
    now_ms: int,
    large: _Large,
    *,
    is_step: bool,
) -> str:
    """Put one job in and return ''; or return why not: 'known', or what a person must know."""
    values = _row(job, now_ms) | {"source": source, "id": job.id}
    if is_step and values["state"] in ("available", "scheduled", "retryable"):
        values["state"] = "blocked"  # The line of its run lets it go.
    if tx.row(IS_KNOWN, values) is not None:
        return "known"
    if number in large.lost:
        return large.lost[number]
    if job.state in model.LIVE and (living := tx.row(KEY_LIVES, values)) is not None:
        return f"its key {job.key!r} belongs to job {living[0]!r}, which has not ended"
    large.rely_on_payload(tx, job)
    try:
        job_id = tx.insert(INSERT, values)
        assert job_id is not None
        large.rely_on_result(tx, job, job_id)
        for attempt in _attempts(job, now_ms):
            tx.change(INSERT_ATTEMPT, asdict(attempt) | {"job_id": job_id})
    except sqlite3.IntegrityError as error:  # The rules of the schema: the batch is rolled back.
        raise PayloadInvalid(f"job {job.id} of the export is refused ({error})") from error
    tx.change(REMEMBER, values | {"job_id": job_id})
    return ""


def _row(job: Job, now_ms: int) -> dict[str, Value]:
    was_leased = job.state == "leased"
    result = None if job.state != "succeeded" else model.encode_result(job.result)
    return {
        "kind": job.kind,
        "state": "available" if was_leased else job.state,
        "payload": model.encode_payload(job.payload),
        "priority": job.priority,
        "due_ms": job.due_ms,
        "key": job.key,
        "max_attempts": job.max_attempts,
        "lease_ms": job.lease_ms,
        "retry": job.retry,
        "fence": job.fence,
        "deliveries": job.deliveries,
        "forgiven": job.forgiven + was_leased,
        "failures": job.failures,
        "crashes": job.crashes,
        "claimed_ms": job.claimed_ms,
        "created_ms": job.created_ms,
        "now_ms": now_ms,
        "finished_ms": job.finished_ms,
        "error_class": job.error_class,
        "error_message": job.error_message,
        "result": result,
        "expires_ms": job.expires_ms,
    }


def _attempts(job: Job, now_ms: int) -> Iterator[Attempt]:
    yield from job.attempts
    if job.state == "leased":
        yield Attempt(
            fence=job.fence,
            outcome="released",
            worker=job.owner or "",
            started_ms=job.claimed_ms or job.created_ms,
            finished_ms=now_ms,
            error_class="Exported",
            error_message="it was running when the export was made",
            traceback=None,
        )


VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'transfer'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('transfer', :version)"

FIND_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE lower(name) = 'imported_job'"

CREATE: Final = """
    CREATE TABLE imported_job (
        source     TEXT    NOT NULL,  -- the random name of the file it was exported from
        source_id  INTEGER NOT NULL,  -- its id there
        created_ms INTEGER NOT NULL,  -- tells it from the job of that id in a copy of that file
        job_id     INTEGER NOT NULL,  -- no foreign key: a pruned job is not to come in again
        PRIMARY KEY (source, source_id, created_ms)
    ) STRICT, WITHOUT ROWID"""


def _ensure_table(tx: Transaction) -> None:
    version = tx.row(VERSION)
    if version == (SCHEMA_VERSION,):
        return
    if version is not None or tx.row(FIND_TABLE) is not None:
        raise FileRefused(
            f"{tx.path} has a table 'imported_job' that is not this killproof's: "
            "rename it, or upgrade killproof"
        )
    tx.change(CREATE)
    tx.change(SET_VERSION, {"version": SCHEMA_VERSION})
