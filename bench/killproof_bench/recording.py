"""What one worker process writes down of each call: a row of whole numbers, made beforehand.

One row per call, not per job: a batch of ten is one call, one commit and one latency. A second
table has one row per job, with the moments at which its claim and its ack were committed, so that a
job can be followed from its enqueue to its end. All moments are perf_counter_ns, which is
CLOCK_MONOTONIC on Linux: comparable between the processes of one machine.

The tables lie in anonymous memory that the kernel hands out page by page, so room for the worst
case costs nothing until it is used.
"""

import mmap
import struct
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import BinaryIO, Final

from killproof import Lease


class Call(IntEnum):
    """The columns of a call."""

    INTENDED = 0  #: When the schedule wanted it; in a closed loop when it began.
    BEGIN = 1  #: When it was called.
    LOCK = 2  #: When SQLite's write lock was had; 0 if nobody timed it, as the next four.
    END = 3  #: When it returned: the commit is as durable as the level says.
    JOB = 4  #: The job that it acked, claimed or enqueued; of a batch the first; 0 without one.
    RETRIES = 5  #: Pauses of killproof's own loop before SQLite's lock; the reference's are unseen.
    KIND = 6
    JOBS = 7  #: How many jobs it took, ended or made.
    ASKED = 8  #: When it asked for its turn: before the turnstile, before BEGIN.
    WRITTEN = 9  #: When its statements had run.
    COMMITTED = 10  #: When COMMIT returned: from here on others can have the lock.
    SYNCED = 11  #: When the barrier had been passed.
    CHECKPOINT = 12  #: Nanoseconds in a checkpoint of killproof's own, between the last two.


class Kind(IntEnum):
    """What a call did; figures of different kinds are never mixed."""

    ACK_AND_CLAIM = 0
    CLAIM = 1
    ACK = 2
    EMPTY = 3  #: A claim that found nothing: it takes no write lock.
    ENQUEUE = 4


class Served(IntEnum):
    """The columns of a job that this process acked."""

    JOB = 0
    CLAIMED = 1  #: When the call that claimed it had returned.
    ACKED = 2


COLUMNS: Final = len(Call)
SERVED_COLUMNS: Final = len(Served)
_CALL: Final = struct.Struct(f"={COLUMNS}q")
_SERVED: Final = struct.Struct(f"={SERVED_COLUMNS}q")


_MOMENTS: Final = ("begin", "locked", "written", "committed", "synced")
#: Where in `Stopwatch.marks` each point goes. The operations are those of `killproof.core.sync`
#: that a load calls; a claim's own reap runs inside its transaction and has no points.
_PLACES: Final = {
    f"{operation}.{moment}": place
    for operation in ("enqueue", "claim", "ack", "complete")
    for place, moment in enumerate(_MOMENTS)
} | {"checkpoint.begin": 5, "checkpoint.end": 6}


class Stopwatch:
    """Notes when the protocol of a write passes its points; the hook of `killproof.core.sync`.

    Both arms run the same code past the same points, so what this costs falls on both. Nothing is
    reset between two calls: a mark older than the call is none of its own.
    """

    def __init__(self) -> None:
        self.marks = [0] * 7

    def __call__(self, name: str) -> None:
        """Note the time at one point."""
        place = _PLACES.get(name)
        if place is not None:
            self.marks[place] = time.perf_counter_ns()


class Recorder:
    """The two tables of one process."""

    def __init__(self, *, calls_max: int, jobs_max: int, stopwatch: Stopwatch | None) -> None:
        """Make room.

        Args:
            calls_max: Calls that can be recorded; one more is an error, which voids the run.
            jobs_max: Jobs likewise.
            stopwatch: What has the inner times of each call; `None` records zeros.
        """
        self._calls = mmap.mmap(-1, max(1, calls_max) * _CALL.size)
        self._served = mmap.mmap(-1, max(1, jobs_max) * _SERVED.size)
        self._stopwatch = stopwatch
        self._calls_end = self._served_end = 0
        #: Pauses before SQLite's lock since the last call, counted by the host's clock.
        self.retries = 0

    def call(self, kind: Kind, *, intended: int, begin: int, end: int, job: int, jobs: int) -> None:
        """Record one call."""
        asked = lock = written = committed = synced = checkpoint = 0
        # A call that wrote nothing leaves the marks of the one before.
        if self._stopwatch is not None and self._stopwatch.marks[0] >= begin:
            asked, lock, written, committed, synced, paused, resumed = self._stopwatch.marks
            checkpoint = resumed - paused if resumed >= begin else 0
        _CALL.pack_into(
            self._calls,
            self._calls_end,
            *(intended, begin, lock, end, job, self.retries, kind, jobs),
            *(asked, written, committed, synced, checkpoint),
        )
        self._calls_end += _CALL.size
        self.retries = 0

    def served(self, leases: Sequence[Lease], *, claimed: int, acked: int) -> None:
        """Record the jobs of one ack."""
        for lease in leases:
            _SERVED.pack_into(self._served, self._served_end, lease.job.id, claimed, acked)
            self._served_end += _SERVED.size

    def save(self, calls: BinaryIO, served: BinaryIO) -> None:
        """Write both tables."""
        calls.write(self._calls[: self._calls_end])
        served.write(self._served[: self._served_end])


def timing_us(calls: int = 20_000) -> float:
    """Return what timing the points of one write costs it, in microseconds, measured now."""
    watch = Stopwatch()
    begin = time.perf_counter_ns()
    for _ in range(calls):
        for moment in _MOMENTS:
            # As the core names its points.
            watch(f"{'ack'}.{moment}")
    return (time.perf_counter_ns() - begin) / calls / 1e3
