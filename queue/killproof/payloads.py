r"""Large payloads and results: in files beside the database, with only a reference in the job.

    payloads = Payloads(queue)
    payloads.enqueue("transcode", Path("film.mov"))     # also bytes, or any JSON value
    payloads.enqueue("index", huge_document)            # in a file above 64 KiB, else in the row

A claim rewrites its row: a payload in a file costs it nothing, whatever its size.  A handler sees
no difference, `context.payload` is the value; a result that is too large for a row goes the same
way.  The job's own `payload` is then

    {"killproof_payload": {"sha256": "3f1c...", "bytes": 73400320, "type": "bytes"}}

**Never a dangling reference.**  Two tables say what the folder (`payload_files`) must hold:
`payload_file` has a row for each file that may be relied on, `payload_use` one for each job that
does.  All is ordered so that a kill or a power cut at any moment leaves too many files at most:

    put in:   write, sync, rename, sync the folder --> [ is it there? row, job, use ]
    collect:  [ delete rows without a use ], durable --> [ still no row? drop its name ] --> unlink

Brackets are transactions.  Both look at the folder under SQLite's write lock, so that they exclude
each other: who finds the file gone writes it again, who finds a row lets the file be.  A row goes
durably before its file does, so that no power cut brings a reference back whose file is gone.
Collections exclude each other by a lock of the kernel, and a backup excludes them while it copies.

**Whoever copies a reference is counted.**  A trigger adds the use of every job that is put in with
a reference, by whatever way, and refuses one whose file is not there.  It is made by the first
large payload of a file; a job without a reference pays a look at 80 characters.

A use ends with its job's row, when that is pruned.  The use of a result begins before its ack (the
row names the fence): until the ack is in the file the lease protects it, afterwards the success.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.errors import FileRefused, JobNotFound, PayloadInvalid
from killproof.core.jobs import Queue, new_job
from killproof.core.model import Job, Lease
from killproof.payload_files import CHUNK_BYTES, NAME, FilesInUse, Folder, PayloadLost, Source
from killproof.spilling import MARK

__all__ = ["Collected", "Findings", "PayloadLost", "Payloads", "Reference"]

SCHEMA_VERSION: Final = 1
#: From here on a payload is in a file: where the row's part of a claim begins to show (16 pages).
THRESHOLD_BYTES: Final = 1 << 16
#: Rows, or files, that are looked at in one transaction.
STEP: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a job holds instead of a large value."""

    sha256: str
    bytes: int
    type: Literal["json", "bytes"]

    def value(self) -> dict[str, object]:
        """Return it as a payload; the mark is its only key, and comes first in its text."""
        return {MARK: {"sha256": self.sha256, "bytes": self.bytes, "type": self.type}}

    @classmethod
    def of(cls, value: object) -> "Reference | None":
        """Return the reference that a payload or a result is, or None."""
        if not isinstance(value, dict) or set(value) != {MARK}:
            return None
        inner = value[MARK]
        if not isinstance(inner, dict) or not NAME.fullmatch(str(inner.get("sha256"))):
            return None
        size, type_ = inner.get("bytes"), inner.get("type", "json")
        if not isinstance(size, int) or type_ not in ("json", "bytes"):
            return None
        return cls(sha256=inner["sha256"], bytes=size, type=type_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection removed."""

    files: int
    bytes: int
    busy: bool = False  #: nothing was done: another one runs, or a backup copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a check found."""

    files: int  #: that jobs rely on
    bytes: int
    lost: tuple[tuple[int, str], ...]  #: (job, what is wrong with its file)
    orphans: int  #: files that nothing relies on: left by a kill, or for the next collection


class Payloads:
    """The large payloads of one file."""

    def __init__(self, queue: Queue, *, threshold: int = THRESHOLD_BYTES) -> None:
        """Prepare; tables and folder are made by the first large payload.

        Args:
            queue: where the jobs are.
            threshold: bytes of JSON above which a payload goes into a file, up to the largest that
                a row may hold.
        """
        self.threshold = model.check_count(threshold, "threshold", 0, model.PAYLOAD_BYTES_MAX)
        self._queue = queue
        self.folder = folder_of(queue)

    # Putting in.

    REMEMBER: Final = """
        INSERT OR IGNORE INTO payload_file (sha256, bytes, made_ms)
        VALUES (:sha256, :bytes, :now_ms)"""

    def enqueue(
        self,
        kind: str,
        payload: object,
        *,
        tx: Transaction | None = None,
        **options: Any,
    ) -> int:
        """Put a job in, its payload in a file if it is large; return its id when both are durable.

        Args:
            kind: names the handler.
            payload: a JSON value; `bytes`, or the `Path` of a file whose content it is, which are
                always in a file: the handler gets `bytes`.
            tx: join this transaction.  The file is written before; the job exists when it commits.
            options: as for `Queue.enqueue`.

        Raises:
            PayloadInvalid, PayloadTooLarge: definite.
            FileRefused: the payload or the folder can not be read or written; definite.
            StorageFull: definite, and nothing is left behind.
            KillproofError, ValueError: as for `Queue.enqueue`.
        """
        # Before the file: a mistyped option must not leave one.
        checked = {**options, "policy": options.get("retry", "article")}
        checked.pop("retry", None)
        new_job(self._queue.host.clock.now_ms(), kind, None, **checked)
        source, type_ = self._source(payload)
        if source is None:
            return self._queue.enqueue(kind, payload, tx=tx, **options)
        reference = self._stored(source, type_)

        def put(own: Transaction) -> int:
            self.rely_on(own, reference, source)
            return self._queue.enqueue(kind, reference.value(), tx=own, **options)

        if tx is not None:
            return put(self._queue.database.joined(tx))
        with self._queue.database.write("enqueue") as own:
            return put(own)

    def _source(self, payload: object) -> tuple[Source | None, Literal["json", "bytes"]]:
        """Return what gives the content of the file, None if the payload belongs into the row."""
        if isinstance(payload, bytes | bytearray | memoryview):
            content = bytes(payload)
            return lambda: [content], "bytes"
        if isinstance(payload, os.PathLike):
            path = Path(payload)
            return lambda: _read(path), "bytes"
        text = _json(payload)
        return (None if len(text) <= self.threshold else lambda: [text]), "json"

    def _stored(self, source: Source, type_: Literal["json", "bytes"]) -> Reference:
        name, size = self.folder.store(source)
        return Reference(sha256=name, bytes=size, type=type_)

    def rely_on(self, tx: Transaction, reference: Reference, source: Source) -> None:
        """Make sure, under the write lock, that the file is there and stays; see the module.

        Args:
            tx: in which the reference gets its use.
            reference: to rely on.
            source: gives the content again if a collection was faster.

        Raises:
            KillproofError: as for `enqueue`.
        """
        _ensure_tables(tx)
        if not self.folder.has(reference.sha256, reference.bytes):
            again = self._stored(source, reference.type)
            if again != reference:
                raise PayloadInvalid("the payload has changed while it was put in: put it in again")
        tx.change(self.REMEMBER, _named(reference, now_ms=self._queue.host.clock.now_ms()))

    # Taking out.

    def payload(self, job: Job) -> object:
        """Return a job's payload, from its file if it is in one, proven by its hash.

        Raises:
            PayloadLost: the file is missing or damaged; definite.
            OSError: it can not be read now.
        """
        return self._value(job.payload, job, "payload")

    def result(self, job: Job) -> object:
        """Return a job's result likewise."""
        return self._value(job.result, job, "result")

    def _value(self, value: object, job: Job, what: str) -> object:
        reference = Reference.of(value)
        if reference is None:
            return value
        try:
            content = self.folder.read(reference.sha256, reference.bytes)
        except PayloadLost as error:
            raise PayloadLost(
                f"{what} of job {job.id}: {error}: restore it from a backup, then killproof replay "
                f"{job.id}"
            ) from error
        return content if reference.type == "bytes" else json.loads(content)

    # From another file.

    def take_over(self, reference: Reference, other: Folder | None) -> None:
        """Have the file of a reference here, from another folder or because it is here already.

        Raises:
            PayloadLost: it is in neither; definite.
            KillproofError: as for `Folder.store`.
        """
        if other is not None and other.has(reference.sha256, reference.bytes):
            self.folder.copy(other, reference.sha256, reference.bytes)
        else:
            self.folder.verify(reference.sha256, reference.bytes)

    USE: Final = """
        INSERT OR REPLACE INTO payload_use (job_id, fence, sha256)
        VALUES (:job_id, :fence, :sha256)"""

    def rely_on_copy(
        self,
        tx: Transaction,
        reference: Reference,
        other: Folder | None,
        use: tuple[int, int] | None = None,
    ) -> None:
        """Rely on what `take_over` has brought, for (job, fence); None: a job that is put in next.

        Raises:
            KillproofError: as for `enqueue`.
        """
        source = other if other is not None else self.folder
        self.rely_on(tx, reference, lambda: source.chunks(reference.sha256, reference.bytes))
        if use is not None:
            tx.change(self.USE, _named(reference, job_id=use[0], fence=use[1]))

    # Results.

    USE_RESULT: Final = """
        INSERT OR REPLACE INTO payload_use (job_id, fence, sha256)
        SELECT id, fence, :sha256 FROM job WHERE id = :id AND fence = :fence AND state = 'leased'"""

    def spill(self, lease: Lease, result: object) -> object:
        """Return what to ack with: the result, or a reference if it is too large for a row.

        What is no JSON is returned as it is: the queue keeps its repr.  The file is there before
        the ack, and is collected if that never comes.

        Raises:
            KillproofError: as for `enqueue`.
        """
        try:
            text = _json(result)
        except Exception:  # No JSON, or what a class of the handler's own raises: the work is done.
            return result
        if len(text) <= model.RESULT_BYTES_MAX:
            return result

        def source() -> list[bytes]:
            return [text]

        reference = self._stored(source, "json")
        with self._queue.transaction() as tx:
            self.rely_on(tx, reference, source)
            named = _named(reference, id=lease.job.id, fence=lease.fence)
            tx.change(self.USE_RESULT, named)  # No row if the lease is over: the ack is refused.
        return reference.value()

    # Collecting.

    def collect(self, *, progress: Callable[[int], object] | None = None) -> Collected:
        """Remove the files that no job relies on any more, in bounded steps.

        Beside workers and producers; ended anywhere it has done what it did, and can be run again.

        Args:
            progress: called after each step with the number of files removed so far.

        Raises:
            KillproofError: as for `Queue.cancel`.
        """
        if not self._queue.database.peek(VERSION) or not self.folder.path.is_dir():
            return Collected(files=0, bytes=0)
        with self.folder.alone() as is_alone:
            if not is_alone:
                return Collected(files=0, bytes=0, busy=True)
            self._forget()
            files = size = 0
            names = self.folder.names()
            for first in range(0, len(names), STEP):
                for removed in self._swept(names[first : first + STEP]):
                    files, size = files + 1, size + removed
                if progress is not None:
                    progress(files)
        return Collected(files=files, bytes=size)

    LAST_USE: Final = """
        SELECT job_id, fence FROM (SELECT job_id, fence FROM payload_use
                                    WHERE (job_id, fence) > (:job_id, :fence)
                                    ORDER BY job_id, fence LIMIT :limit)
         ORDER BY job_id DESC, fence DESC LIMIT 1"""

    # A payload is used by its job's row; a result by the attempt that made it, while that runs or
    # is the one that succeeded.

    END_USES: Final = """
        DELETE FROM payload_use
         WHERE (job_id, fence) > (:job_id, :fence) AND (job_id, fence) <= (:last_id, :last_fence)
           AND NOT EXISTS (SELECT 1 FROM job
                            WHERE job.id = payload_use.job_id
                              AND (payload_use.fence = 0
                                   OR job.fence = payload_use.fence
                                      AND job.state IN ('leased', 'succeeded')))"""

    LAST_FILE: Final = """
        SELECT sha256 FROM (SELECT sha256 FROM payload_file WHERE sha256 > :after
                             ORDER BY sha256 LIMIT :limit)
         ORDER BY sha256 DESC LIMIT 1"""

    FORGET: Final = """
        DELETE FROM payload_file
         WHERE sha256 > :after AND sha256 <= :last
           AND NOT EXISTS (SELECT 1 FROM payload_use WHERE sha256 = payload_file.sha256)"""

    def _forget(self) -> None:
        """Delete the uses that are over, and the rows that nothing uses; durable on return."""
        use: dict[str, Value] = {"job_id": 0, "fence": -1, "limit": STEP}
        while found := self._queue.database.peek(self.LAST_USE, use):
            use["last_id"], use["last_fence"] = found[0]
            with self._queue.transaction() as tx:
                tx.change(self.END_USES, use)
            use["job_id"], use["fence"] = found[0]
        file: dict[str, Value] = {"after": "", "limit": STEP}
        while found := self._queue.database.peek(self.LAST_FILE, file):
            file["last"] = found[0][0]
            with self._queue.transaction() as tx:
                tx.change(self.FORGET, file)
            file["after"] = found[0][0]
        # A collection before this one may have died between its commit and the disk.
        with self._queue.transaction():
            pass

    IS_KNOWN: Final = "SELECT 1 FROM payload_file WHERE sha256 = :sha256"

    def _swept(self, names: list[str]) -> Iterator[int]:
        """Remove those of the names that have no row; yield the bytes of each."""
        ours = [name for name in names if NAME.fullmatch(name)]
        with self._queue.database.read() as tx:
            unknown = [name for name in ours if tx.row(self.IS_KNOWN, {"sha256": name}) is None]
        dropped: list[Path] = []
        if unknown:
            # Only a name is taken away under the write lock: to remove a gigabyte takes a while.
            with self._queue.transaction() as tx:
                for name in unknown:
                    if tx.row(self.IS_KNOWN, {"sha256": name}) is None:
                        path = self.folder.drop(name)
                        dropped += [] if path is None else [path]
        leavings = [name for name in names if name.startswith(".")]
        for name in [*(path.name for path in dropped), *leavings]:
            if removed := self.folder.remove_leavings(name):
                yield removed

    # Looking.

    def check(self, *, whole: bool = False) -> Findings:
        """Look whether each file that a job relies on is there.

        Args:
            whole: also read each one and prove its content.

        Raises:
            KillproofError: as for `Queue.counts`.
            OSError: a file can not be read now.
        """
        with self._queue.database.read() as tx:
            if tx.row(VERSION) is None:
                return Findings(files=0, bytes=0, lost=(), orphans=0)
            found = files_in_use(tx.rows(IN_USE))
            known = {str(name) for (name,) in tx.rows(ALL_FILES)}
        lost = [
            (job_id, why)
            for name, (size, job_id) in found.items()
            if (why := self._fault(name, size, whole=whole)) is not None
        ]
        orphans = [name for name in self.folder.names() if name not in known and name != ".lock"]
        return Findings(
            files=len(found),
            bytes=sum(size for size, _ in found.values()),
            lost=tuple(sorted(lost)),
            orphans=len(orphans),
        )

    def _fault(self, name: str, size: int, *, whole: bool) -> str | None:
        try:
            if whole:
                self.folder.verify(name, size)
            elif not self.folder.has(name, size):
                return f"{self.folder.path / name} is missing, or not of its size"
        except PayloadLost as error:
            return str(error)
        return None


def folder_of(queue: Queue) -> Folder:
    """Return the folder of a queue's file."""
    return Folder(queue.path, durable=queue.durability == "power")


def _named(reference: Reference, **values: Value) -> Mapping[str, Value]:
    return {"sha256": reference.sha256, "bytes": reference.bytes, **values}


def _json(value: object) -> bytes:
    """Return a value as JSON, of whatever size, that can be decoded again.

    Raises:
        PayloadInvalid: it is no JSON, or nested too deeply; definite.
    """
    text, _ = model._strict_json(value, "payload")
    if (depth := model._depth(value)) > model.PAYLOAD_DEPTH_MAX:
        raise PayloadInvalid(
            f"payload is nested {depth} levels deep, over the limit of {model.PAYLOAD_DEPTH_MAX}: "
            "flatten it"
        )
    return text.encode("utf-8")


def _read(path: Path) -> Iterator[bytes]:
    """Yield the content of a file of the caller's."""
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise FileRefused(f"{path}: {error.strerror}: name a file that can be read") from error


def job_of(queue: Queue, job_id: int) -> Job:
    """Return a job that must be there.

    Raises:
        JobNotFound: definite.
    """
    job = queue.get(job_id)
    if job is None:
        raise JobNotFound(f"there is no job {job_id} in {queue.path}: see killproof jobs")
    return job


# What a copy of the database needs.

# One job for each file is enough to say whose it is.

IN_USE: Final = """
    SELECT payload_file.sha256, bytes,
           (SELECT min(job_id) FROM payload_use WHERE sha256 = payload_file.sha256)
      FROM payload_file
     WHERE EXISTS (SELECT 1 FROM payload_use WHERE sha256 = payload_file.sha256)"""

ALL_FILES: Final = "SELECT sha256 FROM payload_file"


def files_in_use(rows: list[tuple[Any, ...]]) -> FilesInUse:
    """Return what the rows of `IN_USE` say."""
    return {str(name): (cast(int, size), cast(int, job_id)) for name, size, job_id in rows}


# The tables.

VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'payloads'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('payloads', :version)"

FIND_TABLES: Final = """
    SELECT name FROM sqlite_schema WHERE lower(name) IN ('payload_file', 'payload_use') LIMIT 1"""

CREATE_FILES: Final = """
    CREATE TABLE payload_file (
        sha256  TEXT    NOT NULL PRIMARY KEY CHECK (length(sha256) = 64),
        bytes   INTEGER NOT NULL CHECK (bytes >= 0),
        made_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID"""

CREATE_USES: Final = """
    CREATE TABLE payload_use (
        job_id INTEGER NOT NULL,  -- no foreign key: a collection sees that the job is gone
        fence  INTEGER NOT NULL,  -- 0: its payload; else the attempt whose result it is
        sha256 TEXT    NOT NULL REFERENCES payload_file (sha256),
        PRIMARY KEY (job_id, fence)
    ) STRICT, WITHOUT ROWID"""

# Serves the collection: does anything use this file?

CREATE_INDEX: Final = "CREATE INDEX payload_use_file ON payload_use (sha256)"

# Whoever puts a job with a reference in, by whatever way.  Another program may write white space
# where `Reference` has none.  What only looks like a reference is none.

ON_INSERT: Final = """
    CREATE TRIGGER killproof_payload AFTER INSERT ON job
      WHEN instr(substr(NEW.payload, 1, 80), '"killproof_payload"')
     BEGIN
        SELECT RAISE(ABORT, 'its payload is a reference to a file that is not there')
         WHERE json_type(NEW.payload, '$.killproof_payload.sha256') = 'text'
           AND NOT EXISTS (SELECT 1 FROM payload_file
                            WHERE sha256 = json_extract(NEW.payload, '$.killproof_payload.sha256'));
        INSERT OR IGNORE INTO payload_use (job_id, fence, sha256)
        SELECT NEW.id, 0, sha256 FROM payload_file
         WHERE sha256 = json_extract(NEW.payload, '$.killproof_payload.sha256');
       END"""


def _ensure_tables(tx: Transaction) -> None:
    """Make the tables and the trigger at the first large payload of a file.

    Raises:
        FileRefused: the application has a table of such a name, or they are of a newer version.
    """
    version = tx.row(VERSION)
    if version == (SCHEMA_VERSION,):
        return
    found = tx.row(FIND_TABLES)
    if version is not None or found is not None:
        name = found[0] if found is not None else "payload_file"
        raise FileRefused(
            f"{tx.path} has a table {name!r} that is not this killproof's: "
            "rename it, or upgrade killproof"
        )
    for statement in (CREATE_FILES, CREATE_USES, CREATE_INDEX, ON_INSERT):
        tx.change(statement)
    tx.change(SET_VERSION, {"version": SCHEMA_VERSION})
