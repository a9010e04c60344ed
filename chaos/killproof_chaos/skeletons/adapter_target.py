"""my-queue as a target: all that the harness needs to know of it.

    killproof chaos lint-target FILE        what is wrong with this file, a line each
    killproof chaos run --target FILE --workers 4 --kills 20 --pauses 6

`TinyQueue` is there so that the file runs before anything is filled in: a queue that is right.
Put an import of your own in its place, inside `connect`, and your own calls into the methods. What
is promised stands in the contract beside this file.
"""

import json
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.target import AuditMapping, JobRow

#: Longer than any handler of a run, which takes 1.6 s at most: nobody extends this lease.
LEASE_MS = 3_000
MAX_ATTEMPTS = 5
IDLE_SECONDS = 0.05


class MyQueue(Adapter):
    """The adapter: `connect`, `enqueue` and `consume` run in processes of the queue."""

    name = "my-queue"
    contract = Contract.load(Path(__file__).with_name("my_queue_contract.toml"))
    # Where the queue needs an environment of its own, it is described here; None: this one.
    peer = None
    # The file that `connect` makes in the folder: where the audit and the integrity check look.
    database = "queue.db"
    # Level 1: the table of the jobs, and its columns (or SQL over NEW). The states are the
    # contract's words; where the table has others: states={0: "available", 1: "leased", ...}.
    audit = AuditMapping(
        table="job", id="id", state="state", fence="fence", attempts="attempts", kind="kind",
        payload="payload",
    )  # fmt: skip

    def connect(self, place: Path) -> "TinyQueue":
        """Open the queue in this folder; make it if there is none."""
        return TinyQueue(place / self.database)

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Put a job in, durably, and return its id. `options` are those of the contract's list."""
        found: int = queue.put(kind, payload)
        return found

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be a worker: your own loop, as your documents recommend it, until `stop()` is true.

        A loop that cannot be asked ends by `stop.by(function)` or `stop.by_exception()`. Each job's
        payload goes through `self.handle`, as it was enqueued; where that raises, the attempt has
        failed, and the queue must see it.
        """
        while not stop():
            job = queue.take()
            if job is None:
                time.sleep(IDLE_SECONDS)
                continue
            try:
                self.handle(job.payload, job=job.id, attempt=job.attempt, fence=job.fence)
            except Exception as error:
                queue.failed(job, str(error))
            else:
                queue.done(job)

    def rows(self, db: sqlite3.Connection) -> Iterable[JobRow]:
        """Read every job, in the contract's words, when all processes have ended."""
        for id_, kind, payload, state, attempts, fence, error in db.execute(
            "SELECT id, kind, payload, state, attempts, fence, error FROM job ORDER BY id"
        ):
            yield JobRow(
                id=id_,
                kind=kind,
                payload=json.loads(payload),
                state=state,
                attempts=attempts,
                fence=fence,
                error=error,
                max_attempts=MAX_ATTEMPTS,
            )


class Job(NamedTuple):
    """A job in a worker's hand."""

    id: int
    payload: dict[str, Any]
    attempt: int
    fence: int


class TinyQueue:
    """A queue in one table. Take out any of its four rules, and see which promise breaks."""

    def __init__(self, path: Path) -> None:
        """Open the file."""
        self.db = sqlite3.connect(path, timeout=10, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = wal")
        self.db.execute("PRAGMA synchronous = FULL")  # 1: what is acknowledged is on the disk.
        self.db.execute(
            """CREATE TABLE IF NOT EXISTS job (
                   id INTEGER PRIMARY KEY, kind TEXT, payload TEXT, state TEXT DEFAULT 'available',
                   attempts INTEGER DEFAULT 0, fence INTEGER DEFAULT 0, until_ms INTEGER,
                   error TEXT)"""
        )

    def put(self, kind: str, payload: dict[str, Any]) -> int:
        """Insert a job; return its id."""
        insert = "INSERT INTO job (kind, payload) VALUES (?, ?) RETURNING id"
        [(id_,)] = self.db.execute(insert, (kind, json.dumps(payload))).fetchall()
        return int(id_)

    def take(self) -> Job | None:
        """Lease the first job that is free; None: there is none."""
        with self.db:
            # 2: the lock comes first, so that no two workers choose the same job, and only then
            # the clock: a lease that began while the worker waited would be over too soon.
            self.db.execute("BEGIN IMMEDIATE")
            now = time.time_ns() // 1_000_000
            self.db.execute(
                """UPDATE job SET state = 'dead', error = 'its last worker was lost'
                    WHERE state = 'leased' AND until_ms < ? AND attempts >= ?""",
                (now, MAX_ATTEMPTS),
            )
            # 3: the claim itself counts the attempt; what a dead worker had comes back by time.
            found = self.db.execute(
                """UPDATE job SET state = 'leased', attempts = attempts + 1, fence = fence + 1,
                                  until_ms = ?
                    WHERE id = (SELECT min(id) FROM job WHERE state = 'available'
                                    OR (state = 'leased' AND until_ms < ?))
                   RETURNING id, payload, attempts, fence""",
                (now + LEASE_MS, now),
            ).fetchall()
        for id_, payload, attempts, fence in found:
            return Job(id_, json.loads(payload), attempts, fence)
        return None

    def done(self, job: Job) -> None:
        """Acknowledge a job."""
        self._end(job, "succeeded", None)

    def failed(self, job: Job, error: str) -> None:
        """Give a job back, or give it up after its last attempt."""
        self._end(job, "available" if job.attempt < MAX_ATTEMPTS else "dead", error)

    def _end(self, job: Job, state: str, error: str | None) -> None:
        # 4: only the lease that is in force may end: the token says which.
        self.db.execute(
            "UPDATE job SET state = ?, error = ? WHERE id = ? AND fence = ? AND state = 'leased'",
            (state, error, job.id, job.fence),
        )


target = MyQueue()
