"""Meters on the parts of a write: SQL by statement, the turnstile, the wait for the disk.

They stand at seams that the queue has anyway (`Host`), and on `os.fdatasync`.  A meter costs about
a microsecond a call, outside of what it measures: `own_ns` tells, so that it can be taken off.
"""

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final, cast

from killproof.core.host import Barrier, KernelLocks, Turnstile
from killproof_bench.arms import Connections

BEGIN: Final = "BEGIN IMMEDIATE"
COMMIT: Final = "COMMIT"
STATEMENTS: Final = "the job's statements"
OTHER_STATEMENTS: Final = "other statements"
CHECKPOINT: Final = "checkpoint"
ENTER: Final = "turnstile: enter"
LEAVE: Final = "turnstile: leave, and wake"
WAKE: Final = "wake an idle worker"
LOG_SIZE: Final = "size of the log"
SYNC: Final = "fdatasync of the log"
SYNC_CHECKS: Final = "checks around it"
#: The whole of a job, and what no meter sees of it.
WHOLE: Final = "a job, whole"
PYTHON: Final = "Python, and all else"
#: Read as one part after the other; `SYNC` lies inside `SYNC_CHECKS`, which `parts` undoes.
PARTS: Final = (
    *(ENTER, BEGIN, STATEMENTS, OTHER_STATEMENTS, COMMIT, LOG_SIZE, CHECKPOINT, LEAVE, WAKE),
    *(SYNC, SYNC_CHECKS),
)


class Meter:
    """Calls and time by part."""

    def __init__(self, statements: Sequence[str]) -> None:
        """Begin at zero.

        Args:
            statements: The SQL that a job needs; everything else is told apart from it.
        """
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.ns: defaultdict[str, int] = defaultdict(int)
        self.looks = 0  #: How often a meter was read, by which its own cost is reckoned.
        self._part_of = dict.fromkeys(statements, STATEMENTS)

    def add(self, part: str, ns: int, calls: int = 1) -> None:
        """Count what one call took."""
        self.calls[part] += calls
        self.ns[part] += ns
        self.looks += 1

    def part_of(self, sql: str) -> str:
        """Tell which part a statement belongs to."""
        part = self._part_of.get(sql)
        if part is None:
            part = self._part_of[sql] = _part(sql)
        return part

    def clear(self) -> None:
        """Begin anew, when the warm-up is over."""
        self.calls.clear()
        self.ns.clear()
        self.looks = 0

    def connect(self, path: str) -> "MeteredConnection":
        """Open as the core does, with the meter on every statement."""
        connection = sqlite3.connect(
            path,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            factory=MeteredConnection,
        )
        connection.meter = self
        return connection


def _part(sql: str) -> str:
    if sql in (BEGIN, COMMIT):
        return sql
    # Before and after it, the core sets how long it waits for readers.
    if sql.startswith(("PRAGMA wal_checkpoint", "PRAGMA busy_timeout")):
        return CHECKPOINT
    return OTHER_STATEMENTS


class MeteredCursor(sqlite3.Cursor):
    """A cursor with a meter: rows are read where they are fetched, so that is measured as well."""

    meter: Meter
    part: str = OTHER_STATEMENTS

    def execute(self, sql: str, values: Any = ()) -> "MeteredCursor":
        """Execute."""
        self.part = self.meter.part_of(sql)
        begin = time.perf_counter_ns()
        try:
            super().execute(sql, values)
        finally:
            self.meter.add(self.part, time.perf_counter_ns() - begin)
        return self

    def fetchone(self) -> Any:
        """Fetch a row."""
        begin = time.perf_counter_ns()
        row = super().fetchone()
        self.meter.add(self.part, time.perf_counter_ns() - begin, calls=0)
        return row

    def fetchall(self) -> list[Any]:
        """Fetch all rows."""
        begin = time.perf_counter_ns()
        rows = super().fetchall()
        self.meter.add(self.part, time.perf_counter_ns() - begin, calls=0)
        return rows


class MeteredConnection(sqlite3.Connection):
    """A connection whose cursors have a meter."""

    meter: Meter

    def cursor(self, factory: Any = None) -> Any:
        """Open a cursor."""
        cursor = super().cursor(MeteredCursor)
        cursor.meter = self.meter
        return cursor

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
        """Execute on a new cursor."""
        return cast(MeteredCursor, self.cursor()).execute(sql, values)


class MeteredConnections(Connections):
    """Opens metered connections for a bare arm."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def connect(self, path: str) -> sqlite3.Connection:
        """Open."""
        self.latest = self._meter.connect(path)
        return self.latest


class Metered:
    """Anything of the host's, with a meter on some of its methods."""

    def __init__(
        self, inner: object, meter: Meter, parts: dict[str, str], **instead: object
    ) -> None:
        self._inner = inner
        self.__dict__ |= instead
        for method, part in parts.items():
            setattr(self, method, metered(getattr(inner, method), meter, part))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def metered(call: Callable[..., Any], meter: Meter, part: str) -> Callable[..., Any]:
    """Return the call with a meter on it."""

    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return call(*arguments)
        finally:
            meter.add(part, time.perf_counter_ns() - begin)

    return timed


class MeteredLocks(KernelLocks):
    """The kernel's locks with meters."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def turnstile(self, path: str, *, gate: bool) -> Turnstile:
        """Open the turnstile."""
        inner = super().turnstile(path, gate=gate)
        arrivals = Metered(inner.arrivals, self._meter, {"advance": WAKE})
        parts = {"enter": ENTER, "leave": LEAVE}
        return cast(Turnstile, Metered(inner, self._meter, parts, arrivals=arrivals))

    def barrier(self, path: str) -> Barrier:
        """Open the log."""
        parts = {"wait": SYNC_CHECKS, "log_bytes": LOG_SIZE}
        return cast(Barrier, Metered(super().barrier(path), self._meter, parts))


class SyncMeter:
    """A meter on every `os.fdatasync` of a process that lives for nothing else."""

    def __init__(self) -> None:
        #: Whose syncs they are now; `None`: nobody counts them.
        self.meter: Meter | None = None
        sync = os.fdatasync

        def timed(descriptor: Any) -> None:
            begin = time.perf_counter_ns()
            try:
                sync(descriptor)
            finally:
                if self.meter is not None:
                    self.meter.add(SYNC, time.perf_counter_ns() - begin)

        setattr(os, "fdatasync", timed)  # noqa: B010  # An assignment would have another type.


def own_ns() -> float:
    """Return what a look costs outside of what it measures, in ns, the mean of many statements."""
    meter = Meter(())
    with closing(meter.connect(":memory:")) as connection:
        begin = time.perf_counter_ns()
        for _ in range(5_000):
            connection.execute("SELECT 1").fetchone()
        spent_ns = time.perf_counter_ns() - begin
    return (spent_ns - sum(meter.ns.values())) / meter.looks
