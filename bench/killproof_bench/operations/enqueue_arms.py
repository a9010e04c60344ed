"""Jobs put in by killproof, and by its bare statement.

Without keys: `enqueue_many` beside one `executemany` of a plain INSERT of the same columns.  The
INSERT tells nobody which id a row got; killproof returns them all, in order.
With keys: `enqueue_many` with them, beside killproof's own statement for one job, executed row by
row, its id read from the cursor.

Each bare arm comes twice.  `ready`: the rows were made before the clock runs, so that nothing but
SQLite's work is left.  `made`: they are made of the same (kind, payload) pairs that killproof gets,
with `json.dumps`, as a program has to.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from killproof import Host, Queue
from killproof.core.database import Value
from killproof_bench.arms import Connections
from killproof_bench.operations.bare_arms import open_log, set_up
from killproof_bench.seeding import KIND, PAYLOAD_BYTES

KILLPROOF: Final = "killproof"
READY: Final = "bare, rows ready"
MADE: Final = "bare, rows made"
ARMS: Final = (KILLPROOF, READY, MADE)

MANY: Final = "enqueue_many"
KEYED: Final = "enqueue_many with keys"
OPERATIONS: Final = (MANY, KEYED)

#: The columns that `enqueue` fills.
INSERT: Final = """
INSERT INTO job (kind, state, payload, priority, due_ms, key, max_attempts, lease_ms, retry,
                 created_ms, updated_ms, expires_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

Pair = tuple[str, dict[str, object]]
Row = tuple[Value, ...]


class Arm(Protocol):
    """One way to put a batch in."""

    def prepare(self, first: int, count: int) -> Callable[[], Sequence[int]]:
        """Return the call that puts jobs numbered from `first` in, and returns their ids if any."""

    def close(self) -> None:
        """Close."""

    def facts(self) -> dict[str, str]:
        """Read back what the claim card says of the connection."""


def open_arm(arm: str, operation: str, path: str, *, own_sync: bool) -> Arm:
    """Open one arm on a file of its own."""
    if arm == KILLPROOF:
        return Killproof(path, keyed=operation == KEYED)
    return Bare(path, keyed=operation == KEYED, ready=arm == READY, own_sync=own_sync)


def pairs(first: int, count: int) -> list[Pair]:
    """Return jobs whose payload has a number, and the bench's usual length."""
    padding = "x" * (PAYLOAD_BYTES - 30)
    return [(KIND, {"n": first + i, "padding": padding}) for i in range(count)]


def key_of(payload: dict[str, object]) -> str:
    """Return the idempotency key of a job: a number that a caller has, with a name before it."""
    return f"order-{payload['n']:012}"


class Killproof:
    """The queue, as a program calls it."""

    def __init__(self, path: str, *, keyed: bool) -> None:
        self.connections = Connections()
        self._queue = Queue(path, host=Host(connect=self.connections.connect))
        self._keyed = keyed

    def prepare(self, first: int, count: int) -> Callable[[], Sequence[int]]:
        """Return the call."""
        jobs, put = pairs(first, count), self._queue.enqueue_many
        if self._keyed:
            return lambda: put(jobs, keys=[key_of(payload) for _, payload in jobs])
        return lambda: put(jobs)

    def close(self) -> None:
        """Close."""
        self._queue.close()

    def facts(self) -> dict[str, str]:
        """Read the pragmas back."""
        return self.connections.facts()


class Bare:
    """The same rows by sqlite3 alone."""

    def __init__(self, path: str, *, keyed: bool, ready: bool, own_sync: bool) -> None:
        self.connections = Connections()
        self._connection = self.connections.connect(path)
        set_up(self._connection, "NORMAL")
        self._log = open_log(path) if own_sync else None
        self._keyed = keyed
        self._ready = ready

    def prepare(self, first: int, count: int) -> Callable[[], Sequence[int]]:
        """Return the call; rows that are ready are made here."""
        jobs = pairs(first, count)
        if self._keyed:
            values = [value_of(job) for job in jobs] if self._ready else None
            return lambda: self._loop(values or [value_of(job) for job in jobs])
        rows = [row_of(job) for job in jobs] if self._ready else None
        return lambda: self._executemany(rows or [row_of(job) for job in jobs])

    def close(self) -> None:
        """Close."""
        self._connection.close()
        if self._log is not None:
            os.close(self._log)

    def facts(self) -> dict[str, str]:
        """Read the pragmas back."""
        return self.connections.facts()

    def _executemany(self, rows: Sequence[Row]) -> list[int]:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(INSERT, rows)
        self._commit()
        return []

    def _loop(self, rows: Sequence[dict[str, Value]]) -> list[int]:
        execute, ids = self._connection.execute, []
        execute("BEGIN IMMEDIATE")
        for values in rows:
            ids.append(execute(Queue.ENQUEUE, values).lastrowid or 0)
        self._commit()
        return ids

    def _commit(self) -> None:
        self._connection.execute("COMMIT")
        if self._log is not None:
            os.fdatasync(self._log)


def row_of(job: Pair) -> Row:
    """Make the row of a job without a key, as `enqueue` stores it, in the order of `INSERT`."""
    kind, payload = job
    now_ms = time.time_ns() // 1_000_000
    text = json.dumps(payload)
    return (
        *(kind, "available", text, 5, now_ms, None, 5, 60_000, "article"),
        *(now_ms, now_ms, None),
    )


def value_of(job: Pair) -> dict[str, Value]:
    """Make the values of killproof's statement for a job with a key."""
    kind, payload = job
    now_ms = time.time_ns() // 1_000_000
    return {
        "kind": kind,
        "state": "available",
        "payload": json.dumps(payload),
        "priority": 5,
        "due_ms": now_ms,
        "key": key_of(payload),
        "max_attempts": 5,
        "lease_ms": 60_000,
        "retry": "article",
        "now_ms": now_ms,
        "expires_ms": None,
    }
