"""A whole job queue on one SQLite file, in one file: the healthy control of the gallery.

Six rules make it healthy; a broken queue of `gallery/` lacks one. The row stays while its job runs.
The claim is one statement: it takes a lease, raises the fence, counts the attempt. A later write
names the fence. Whoever finds a lease that ran out takes the job back. A job that used up its
attempts is dead. Every transaction holds the write lock from its beginning.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

SCHEMA: Final = """
PRAGMA journal_mode = wal; PRAGMA synchronous = FULL;  -- what is acknowledged survives a power cut
CREATE TABLE IF NOT EXISTS job (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    kind         TEXT    NOT NULL,
    payload      TEXT    NOT NULL,              -- JSON
    state        TEXT    NOT NULL,              -- scheduled available leased succeeded dead
    priority     INTEGER NOT NULL,              -- 0 is the most urgent
    due_ms       INTEGER NOT NULL,              -- wall clock, milliseconds since the epoch
    key          TEXT    UNIQUE,                -- enqueueing twice with one key makes one job
    max_attempts INTEGER NOT NULL,
    attempts     INTEGER NOT NULL DEFAULT 0,    -- counted when one begins, not when it ends
    fence        INTEGER NOT NULL DEFAULT 0,    -- rises with each claim
    deadline_ns  INTEGER,                       -- monotonic clock of this host; set while leased
    error        TEXT,
    CHECK ((state = 'leased') = (deadline_ns IS NOT NULL))
) STRICT;
CREATE INDEX IF NOT EXISTS job_first ON job (priority, due_ms, id) WHERE state = 'available';
CREATE INDEX IF NOT EXISTS job_due ON job (due_ms) WHERE state = 'scheduled';
CREATE INDEX IF NOT EXISTS job_lease ON job (deadline_ns) WHERE state = 'leased';
DELETE FROM job WHERE FALSE;  -- refuse here what SQLite, after an error, has opened to read only
"""


class LeaseLost(Exception):
    """The job is no longer leased under this fence; nothing was changed."""


class Lease(NamedTuple):
    """The right to work on one job until its deadline, proven by the fence."""

    id: int
    kind: str
    payload: Any
    attempt: int
    fence: int | None


class MinimalQueue:
    """One connection to the queue at `path`; for one thread of one process."""

    SCHEMA, LEASE_NS, BACKOFF_MS = SCHEMA, 500_000_000, 50

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open or create the queue; `sync` is told the name of each moment a crash may hit."""
        self.sync, self.db = sync, sqlite3.connect(path, timeout=30, isolation_level=None)
        try:
            self.db.executescript(self.SCHEMA)
        except sqlite3.Error:
            self.db.close()  # Left open it would lend the next one what it could only read.
            raise

    @contextmanager
    def writing(self, operation: str) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction that holds the write lock from its beginning."""
        self.sync(f"{operation}.begin")
        self.db.execute("BEGIN IMMEDIATE")  # A deferred one can fail halfway with SQLITE_BUSY.
        try:
            self.sync(f"{operation}.locked")
            yield self.db
            self.sync(f"{operation}.written")
            self.db.execute("COMMIT")
        finally:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        self.sync(f"{operation}.committed")

    INSERT = """INSERT INTO job (kind, payload, state, priority, due_ms, key, max_attempts)
                VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id"""

    def enqueue(self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
                key: str | None = None, max_attempts: int = 5) -> int:  # fmt: skip
        """Store a job and return its id; with a key that exists, return the id of its job."""
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        state = "scheduled" if delay_ms > 0 else "available"
        job = (kind, text, state, priority, now_ms() + delay_ms, key, max_attempts)
        with self.writing("enqueue") as db:
            row = db.execute("SELECT id FROM job WHERE key = ?", (key,)).fetchone()
            return int((row or db.execute(self.INSERT, job).fetchone())[0])

    REAP = """UPDATE job SET state = iif(attempts < max_attempts, 'available', 'dead'),
                             deadline_ns = NULL, error = 'the lease ran out'
               WHERE state = 'leased' AND deadline_ns <= ?"""
    PROMOTE = "UPDATE job SET state = 'available' WHERE state = 'scheduled' AND due_ms <= ?"
    CLAIM = """UPDATE job SET state = 'leased', deadline_ns = ?,
                              attempts = attempts + 1, fence = fence + 1
                WHERE id = (SELECT id FROM job WHERE state = 'available'
                             ORDER BY priority, due_ms, id LIMIT 1)
            RETURNING id, kind, payload, attempts, fence"""

    def claim(self) -> Lease | None:
        """Take back what ran out, then lease the first job that is due, or return None."""
        with self.writing("claim") as db:
            now_ns = time.monotonic_ns()  # The wall clock may step; leases must not.
            db.execute(self.REAP, (now_ns,))
            db.execute(self.PROMOTE, (now_ms(),))
            row = db.execute(self.CLAIM, (now_ns + self.LEASE_NS,)).fetchone()
        return row and Lease(row[0], row[1], json.loads(row[2]), row[3], row[4])

    EXTEND = "UPDATE job SET deadline_ns = ? WHERE id = ? AND fence = ? AND state = 'leased'"
    ACK = """UPDATE job SET state = 'succeeded', deadline_ns = NULL
              WHERE id = ? AND fence = ? AND state = 'leased'"""
    NACK = """UPDATE job SET state = iif(? OR attempts >= max_attempts, 'dead', 'scheduled'),
                             due_ms = ?, error = ?, deadline_ns = NULL
               WHERE id = ? AND fence = ? AND state = 'leased'"""

    def extend(self, lease: Lease) -> None:
        """Prolong the lease to its full length from now; raises LeaseLost."""
        with self.writing("extend") as db:
            change(db, self.EXTEND, lease, time.monotonic_ns() + self.LEASE_NS)

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Mark the job succeeded, together with the caller's statements; raises LeaseLost."""
        with self.writing("ack") as db:
            for statement in also:
                db.execute(*statement)
            change(db, self.ACK, lease)

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Schedule the next attempt, later each time, or end the job; raises LeaseLost."""
        with self.writing("nack") as db:
            delay_ms = self.BACKOFF_MS * 2 ** (lease.attempt - 1)
            change(db, self.NACK, lease, permanent, now_ms() + delay_ms, error)


def change(db: sqlite3.Connection, sql: str, lease: Lease, *values: object) -> None:
    """Change the leased row if this lease still holds it."""
    if db.execute(sql, (*values, lease.id, lease.fence)).rowcount != 1:
        raise LeaseLost(f"job {lease.id} is not leased under fence {lease.fence}")


def now_ms() -> int:
    """Return the wall clock, by which delays are measured, in milliseconds."""
    return time.time_ns() // 1_000_000
