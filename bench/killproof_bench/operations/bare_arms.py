"""One worker's job done by killproof, and by its bare statements.

The bare arm is what is left when everything of killproof's but its SQL is taken away: the very
statements of `Queue`, on a plain connection, in a loop, with the same commits.  At `power` it comes
twice, because one process can make a commit durable in two ways: `fdatasync` of the log after a
commit at synchronous=NORMAL, which are the system calls that killproof makes, and
synchronous=FULL, which is what a program without a barrier of its own sets.

Not in it, because a program alone on its file has no need of them: the turnstile, the look for dead
workers and its own registration, the checks that the log is still the log, the job as an object.
The log is moved by SQLite's automatic checkpoint, of about the size of killproof's own.
"""

import os
import sqlite3
import time
from contextlib import closing
from typing import Final, Protocol

from killproof import Host, Lease, Queue
from killproof.core.database import LOG_BYTES_KEPT, Value
from killproof.core.jobs import NEVER_NS
from killproof_bench.arms import AUTOCHECKPOINT_PAGES, Connections

KILLPROOF: Final = "killproof"
BARE: Final = "bare, NORMAL"
BARE_SYNC: Final = "bare, NORMAL + fdatasync"
BARE_FULL: Final = "bare, FULL"
ARMS: Final = {"power": (KILLPROOF, BARE_SYNC, BARE_FULL), "process": (KILLPROOF, BARE)}

CLAIM_ACK: Final = "claim, ack"
ACK_AND_CLAIM: Final = "ack and claim"
OPERATIONS: Final = (CLAIM_ACK, ACK_AND_CLAIM)

#: 128 random bits stand here in killproof.
OWNER: Final = "0" * 32
#: Longer than any log of these runs: killproof moves one that has grown by 4 MiB.
LOG_BYTES: Final = 8 << 20
#: Of the column in the row of a job; a test compares.
FENCE: Final = 10


class Arm(Protocol):
    """One way to do the work; `acked` has every finished job in order."""

    acked: list[int]
    worker: str | None

    def claim_ack(self, jobs: int) -> None:
        """Take and finish so many jobs, two transactions each."""

    def ack_and_claim(self, jobs: int) -> None:
        """Finish the job in hand and take the next in one transaction, so many times."""

    def close(self) -> None:
        """Finish what is in hand, and close."""

    def facts(self) -> dict[str, str]:
        """Read back what the claim card says of the connection."""


def open_arm(arm: str, path: str) -> Arm:
    """Open one arm on a file of its own."""
    if arm == KILLPROOF:
        return Killproof(path)
    return Bare(path, "FULL" if arm == BARE_FULL else "NORMAL", own_sync=arm == BARE_SYNC)


def extend_log(path: str) -> None:
    """Make the log as long as one in use is, while an arm has the file open.

    A log that still grows gets new blocks, which the file system has to journal at each sync: a
    third more for a commit.  A log in use was cut back to its begin many times, and is overwritten.
    How long it grows is chance (killproof) or fixed (SQLite): it would be counted to one arm.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE filling (content BLOB)")
        connection.execute("INSERT INTO filling VALUES (zeroblob(?))", (LOG_BYTES,))
        connection.execute("DROP TABLE filling")
        connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


class Killproof:
    """The queue, as a program calls it."""

    def __init__(self, path: str, host: Host | None = None) -> None:
        self.connections = Connections()
        self.queue = Queue(path, host=host or Host(connect=self.connections.connect))
        self.acked: list[int] = []
        self.worker: str | None = None
        self._lease: Lease | None = None

    def claim_ack(self, jobs: int) -> None:
        """Take and finish so many jobs."""
        queue, acked = self.queue, self.acked
        for _ in range(jobs):
            lease = queue.claim()
            assert lease is not None, "the file was seeded with enough jobs"
            queue.ack(lease)
            acked.append(lease.job.id)

    def ack_and_claim(self, jobs: int) -> None:
        """Finish the job in hand and take the next, so many times."""
        queue, acked = self.queue, self.acked
        lease = self._lease or queue.claim()
        for _ in range(jobs):
            assert lease is not None, "the file was seeded with enough jobs"
            following = queue.ack_and_claim(lease)
            acked.append(lease.job.id)
            lease = following
        self._lease = lease

    def close(self) -> None:
        """Finish the job in hand, and close."""
        if self._lease is not None:
            self.queue.ack(self._lease)
            self.acked.append(self._lease.job.id)
        self.worker = self.queue.worker_id
        self.queue.close()

    def facts(self) -> dict[str, str]:
        """Read the pragmas back."""
        return self.connections.facts()


class Bare:
    """The same statements in a loop."""

    def __init__(
        self,
        path: str,
        synchronous: str,
        *,
        own_sync: bool,
        connections: Connections | None = None,
    ) -> None:
        self.connections = connections or Connections()
        self._connection = self.connections.connect(path)
        set_up(self._connection, synchronous)
        self._log: int | None = open_log(path) if own_sync else None
        self.acked: list[int] = []
        self.worker: str | None = OWNER
        self._row: tuple[Value, ...] | None = None

    def claim_ack(self, jobs: int) -> None:
        """Take and finish so many jobs."""
        execute, log, acked = self._connection.execute, self._log, self.acked
        for _ in range(jobs):
            execute("BEGIN IMMEDIATE")
            row = claim(self._connection)
            execute("COMMIT")
            if log is not None:
                os.fdatasync(log)
            execute("BEGIN IMMEDIATE")
            acked.append(ack(self._connection, row))
            execute("COMMIT")
            if log is not None:
                os.fdatasync(log)

    def ack_and_claim(self, jobs: int) -> None:
        """Finish the job in hand and take the next, so many times."""
        execute, log, acked = self._connection.execute, self._log, self.acked
        row = self._row
        if row is None:
            execute("BEGIN IMMEDIATE")
            row = claim(self._connection)
            execute("COMMIT")
        for _ in range(jobs):
            execute("BEGIN IMMEDIATE")
            acked.append(ack(self._connection, row))
            row = claim(self._connection)
            execute("COMMIT")
            if log is not None:
                os.fdatasync(log)
        self._row = row

    def close(self) -> None:
        """Finish the job in hand, and close."""
        if self._row is not None:
            self._connection.execute("BEGIN IMMEDIATE")
            self.acked.append(ack(self._connection, self._row))
            self._connection.execute("COMMIT")
        self._connection.close()
        if self._log is not None:
            os.close(self._log)

    def facts(self) -> dict[str, str]:
        """Read the pragmas back."""
        return self.connections.facts()


def set_up(connection: sqlite3.Connection, synchronous: str) -> None:
    """Set what changes the work of a statement as killproof sets it; the log moves by itself."""
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_PAGES}").fetchall()
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}").fetchall()
    connection.execute("PRAGMA foreign_keys = ON")


def open_log(path: str) -> int:
    """Open the write-ahead log, to sync it; it carries no POSIX locks that a close could drop."""
    return os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)


def claim(connection: sqlite3.Connection) -> tuple[Value, ...]:
    """Run the statements of a claim inside a transaction; return the row as it was."""
    execute = connection.execute
    now_ms = time.time_ns() // 1_000_000
    execute(Queue.TIME_HAS_COME, {"now_ms": now_ms}).fetchone()
    row: tuple[Value, ...] = execute(Queue.FIRST_OF_ALL).fetchone()
    values = {"id": row[0], "owner": OWNER, "now_ms": now_ms, "now_ns": time.monotonic_ns()}
    execute(Queue.CLAIM, values)
    return row


def ack(connection: sqlite3.Connection, row: tuple[Value, ...]) -> int:
    """Run the statements of an ack inside a transaction; return the job's id."""
    job_id, fence = row[0], row[FENCE]
    assert isinstance(job_id, int)
    assert isinstance(fence, int)
    now_ms = time.time_ns() // 1_000_000
    values = {
        "id": job_id,
        "fence": fence + 1,
        "worker": OWNER,
        "now_ms": now_ms,
        "before_ns": NEVER_NS,
        "state": "succeeded",
        "outcome": "succeeded",
        "due_ms": None,
        "result": None,
        "started_ms": now_ms,
        "error_class": None,
        "message": None,
        "traceback": None,
    }
    connection.execute(Queue.END, values)
    connection.execute(Queue.RECORD, values)
    return job_id
