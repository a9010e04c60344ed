"""What the page and its API read of a file, in reads that are short and have a deadline.

A `Reader` belongs to one thread, and so has one connection of its own; nothing here is called on
the event loop.  Its numbers are peeks: advisory, each of one statement, without a lock and without
waiting for the disk, so that nobody who watches keeps the log from being moved.  A statement that
outlives its deadline is cut off by SQLite itself.

It also notices what becomes of the file: a disk that failed, a file that was removed, or another
one in its place, which is opened anew.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, Protocol, TypeVar, cast

from killproof import listing, metrics, pausing, presence
from killproof.core import barrier, model
from killproof.core import host as core_host
from killproof.core.clock import Clock, SystemClock
from killproof.core.errors import FileRefused, KillproofError
from killproof.core.host import Host
from killproof.core.jobs import Queue

#: What any one read may take; counting ten million index entries takes less.
READ_SECONDS_MAX: Final = 2.0
#: Steps of SQLite's machine between two looks at the deadline: about a millisecond.
DEADLINE_STEPS: Final = 20_000
#: A reader in WAL mode waits for a lock only while the log is recovered.
READ_BUSY_SECONDS: Final = 1.0
#: Ended jobs of each state that the table of kinds is computed from, the latest ones.
SAMPLE_JOBS: Final = 1_000
SAMPLE_WINDOW_MS: Final = 3_600_000
#: Kinds of the table that is sent to every watcher.
KINDS_MAX: Final = 50
FAILURES_SHOWN: Final = 8
ERROR_CHARS_SHOWN: Final = 300
#: Minutes of the curves.
MINUTES: Final = 30
MINUTE_MS: Final = 60_000
#: A minute is counted for good when it has ended so long ago: a commit may come late.
SETTLED_MS: Final = 5_000


class ReadTooLong(KillproofError):
    """A read was cut off at its deadline: definite; ask for less, or when the machine is free."""


class _Progressing(Protocol):
    """The one method of a connection that the deadline needs."""

    def set_progress_handler(self, handler: Callable[[], int] | None, n: int, /) -> None:
        """Call the handler every so many steps; a true answer interrupts."""


_Connection = TypeVar("_Connection", bound=_Progressing)


class Deadline:
    """Cuts off the statements of a thread's connections when their time is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ns = 0
        self._was_cut = False

    def watched(self, connect: Callable[[str], _Connection]) -> Callable[[str], _Connection]:
        """Return a way to connect whose statements keep the deadline."""

        def connected(path: str) -> _Connection:
            connection = connect(path)
            connection.set_progress_handler(self._is_over, DEADLINE_STEPS)
            return connection

        return connected

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Let the block take so long.

        Raises:
            ReadTooLong: it was cut off; definite.
        """
        self._was_cut = False
        self._until_ns = self._clock.monotonic_ns() + round(seconds * 1e9)
        try:
            yield
        except Exception as error:
            if self._was_cut:  # Whatever SQLite's interruption has become on its way.
                raise ReadTooLong(
                    f"the read was cut off after {seconds:g} s: ask for a smaller part, "
                    "or prune what has ended (killproof prune)"
                ) from error
            raise
        finally:
            self._until_ns = 0

    def _is_over(self) -> int:
        if self._until_ns and self._clock.monotonic_ns() > self._until_ns:
            self._was_cut = True
        return self._was_cut and self._until_ns > 0


class OpenFile:
    """A queue on a path that may come and go: opened at first use, and anew when it is another."""

    def __init__(self, path: str, *, busy_limit: float, host: Host) -> None:
        self.path = os.path.realpath(path)
        self._busy_limit = busy_limit
        self._host = host
        self._queue: Queue | None = None
        self._inode = 0

    def queue(self) -> tuple[Queue, bool]:
        """Return the queue, and whether it was opened just now.

        Raises:
            FileRefused: the file is gone, or no queue; definite.
            StorageFailed: its disk has failed; definite.
            DatabaseBusy: it could not be opened within the limit; definite.
        """
        try:
            inode = os.stat(self.path).st_ino
        except OSError as error:
            self.close()  # Opening would make an empty queue in its place.
            raise FileRefused(
                f"{self.path} is gone ({error.strerror}): bring it back, for example with "
                f"killproof restore BACKUP --db {self.path}"
            ) from error
        barrier.check_not_failed(self.path)  # Also where another process has seen it fail.
        if self._queue is not None and inode == self._inode:
            return self._queue, False
        self.close()
        self._queue = Queue(self.path, busy_limit=self._busy_limit, host=self._host)
        self._inode = inode
        return self._queue, True

    def close(self) -> None:
        """Close the queue if it is open."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None


class Reader:
    """All that is read, for one thread."""

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._deadline = Deadline(self.clock)
        host = Host(clock=self.clock, connect=self._deadline.watched(core_host.connect))
        self._file = OpenFile(path, busy_limit=READ_BUSY_SECONDS, host=host)
        self._minutes = Minutes()
        self._openings = 0

    @contextmanager
    def reading(self, seconds: float = READ_SECONDS_MAX) -> Iterator[Queue]:
        """Give the queue to a block that only reads, within the deadline.

        Raises:
            KillproofError: as for `OpenFile.queue`, and `ReadTooLong`.
        """
        with self._deadline.within(seconds):
            queue, is_new = self._file.queue()
            if is_new:
                self._minutes = Minutes()
                self._openings += 1
            yield queue

    def version(self) -> object:
        """Return what differs from the last answer whenever somebody else has committed.

        Raises:
            KillproofError: as for `reading`.
        """
        with self.reading() as queue:
            # Counted, for the next queue object may lie where the one before was.
            return (self._openings, *queue.database.peek(DATA_VERSION))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def live(self) -> dict[str, object]:
        """Return what changes from second to second."""
        with self.reading() as queue:
            counts = {str(state): cast(int, n) for state, n in queue.database.peek(Queue.COUNTS)}
            waiting = queue.database.peek(WAITING, {"limit": KINDS_MAX})
            running = queue.database.peek(RUNNING, {"limit": KINDS_MAX})
            now_ms = self.clock.now_ms()
            oldest_ms = max((now_ms - cast(int, due_ms) for _, _, due_ms in waiting), default=0)
            if len(waiting) == KINDS_MAX:  # Else that was all of them, in one look.
                oldest_ms = metrics.oldest_ms(queue)
            return {
                "path": queue.path,
                "durability": queue.durability,
                "now_ms": now_ms,
                "counts": {state: counts.get(state, 0) for state in model.STATES},
                "oldest_waiting_ms": max(0, oldest_ms),
                "waiting_kinds": [kind for kind, _, _ in waiting],
                "waiting": {str(kind): count for kind, count, _ in waiting},
                "running": {str(kind): count for kind, count in running},
                "failures": failures(queue, now_ms),
            }

    def history(self) -> dict[str, object]:
        """Return what is worth a look every few seconds: kinds, curves, workers, failures."""
        with self.reading() as queue:
            now_ms = self.clock.now_ms()
            with queue.database.read() as tx:
                workers = presence.workers(queue, tx)
            return {
                "kinds": kinds(queue, now_ms),
                "minutes": self._minutes.counted(queue, now_ms),
                "last_minute": counted(queue, now_ms - MINUTE_MS, now_ms),
                "workers": {
                    "alive": sum(one.lives is True for one in workers),
                    "dead": sum(one.lives is False for one in workers),
                    "untold": sum(one.lives is None for one in workers),
                },
                "closed": [asdict(one) for one in pausing.closed(queue)],
            }


DATA_VERSION: Final = "PRAGMA data_version"

LATEST_DEAD: Final = """
    SELECT id FROM job WHERE state = 'dead' AND finished_ms IS NOT NULL
     ORDER BY finished_ms DESC, id DESC LIMIT :limit"""


def failures(queue: Queue, now_ms: int) -> list[dict[str, object]]:
    """Return the latest dead letters as `killproof dead --json` does, long errors cut; advisory."""
    ids = [job_id for (job_id,) in queue.database.peek(LATEST_DEAD, {"limit": FAILURES_SHOWN})]
    rows = queue.database.peek(listing.READ, {"ids": json.dumps(ids)})
    found = [listing.as_row(job, now_ms) for job in listing.of_rows(rows)]
    return [row | {"error_message": _cut(row["error_message"])} for row in found]


def _cut(message: object) -> object:
    """Return the beginning of an error: all of it would go to every watcher at every change."""
    return message[:ERROR_CHARS_SHOWN] if isinstance(message, str) else message


WAITING: Final = """
    SELECT kind, count(*), min(due_ms) FROM job WHERE state = 'available'
     GROUP BY kind ORDER BY kind LIMIT :limit"""

RUNNING: Final = """
    SELECT kind, count(*) FROM job WHERE state = 'leased'
     GROUP BY kind ORDER BY kind LIMIT :limit"""

SUCCEEDED: Final = """
    SELECT kind, finished_ms - claimed_ms, failures + crashes FROM job
     WHERE state = 'succeeded' AND finished_ms IS NOT NULL AND finished_ms >= :since_ms
     ORDER BY finished_ms DESC LIMIT :limit"""

DEAD: Final = """
    SELECT kind, NULL, failures + crashes FROM job
     WHERE state = 'dead' AND finished_ms IS NOT NULL AND finished_ms >= :since_ms
     ORDER BY finished_ms DESC LIMIT :limit"""


def kinds(queue: Queue, now_ms: int) -> list[dict[str, object]]:
    """Return, by kind, what became of the latest jobs that ended within the hour.

    The failure ratio is that of `killproof metrics`: failed executions by all executions.
    """
    values = {"since_ms": now_ms - SAMPLE_WINDOW_MS, "limit": SAMPLE_JOBS}
    found: dict[str, dict[str, Any]] = {}
    for statement, is_success in ((SUCCEEDED, True), (DEAD, False)):
        rows = cast(list[tuple[str, int | None, int]], queue.database.peek(statement, values))
        for kind, took_ms, failed in rows:
            one = found.setdefault(kind, {"succeeded": 0, "dead": 0, "failed": 0, "took_ms": []})
            one["succeeded" if is_success else "dead"] += 1
            one["failed"] += failed
            if took_ms is not None:
                one["took_ms"].append(took_ms)
    return [
        {
            "kind": kind,
            "succeeded": one["succeeded"],
            "dead": one["dead"],
            "failure_ratio": _ratio(one["failed"], one["succeeded"] + one["failed"]),
            "execution_mean_ms": _mean(one["took_ms"]),
            "execution_p95_ms": percentile(one["took_ms"], 95),
        }
        for kind, one in sorted(found.items())[:KINDS_MAX]
    ]


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None


def percentile(values: list[int], percent: int) -> int | None:
    """Return the value of that rank, never one in between; None of nothing.

    >>> percentile([5, 1, 9], 95), percentile(list(range(1, 101)), 95)
    (9, 95)
    """
    if not values:
        return None
    return sorted(values)[-(-percent * len(values) // 100) - 1]


# The curves: how many jobs came and ended in each minute.

NEWEST: Final = "SELECT max(id) FROM job"

FROM: Final = "SELECT id, created_ms FROM job WHERE id >= :id ORDER BY id LIMIT 1"

SUCCEEDED_BETWEEN: Final = """
    SELECT count(*) FROM job
     WHERE state = 'succeeded' AND finished_ms IS NOT NULL
       AND finished_ms >= :from_ms AND finished_ms < :until_ms"""

DEAD_BETWEEN: Final = """
    SELECT count(*) FROM job
     WHERE state = 'dead' AND finished_ms IS NOT NULL
       AND finished_ms >= :from_ms AND finished_ms < :until_ms"""


def counted(queue: Queue, from_ms: int, until_ms: int) -> dict[str, int]:
    """Return how many jobs were put in, succeeded and died between two moments.

    What was put in is told by the ids, which rise with time: two searches of twenty steps each find
    the first id of a moment.  No index of the time of creation is needed, which every enqueue would
    have to keep.  After an import, which keeps the old times, the number is only about right.
    """
    values = {"from_ms": from_ms, "until_ms": until_ms}
    ((succeeded,),) = queue.database.peek(SUCCEEDED_BETWEEN, values)
    ((dead,),) = queue.database.peek(DEAD_BETWEEN, values)
    ((newest,),) = queue.database.peek(NEWEST)
    end = (cast(int, newest) if newest is not None else 0) + 1
    first = _first_id(queue, from_ms, end)
    return {
        "enqueued": _first_id(queue, until_ms, end) - first,
        "succeeded": cast(int, succeeded),
        "dead": cast(int, dead),
    }


def _first_id(queue: Queue, since_ms: int, end: int) -> int:
    """Return the lowest id of a job that was put in at that moment or later, else `end`."""
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        found = queue.database.peek(FROM, {"id": middle})
        if not found or cast(int, found[0][1]) >= since_ms:
            high = middle
        else:
            low = cast(int, found[0][0]) + 1
    # What lies between here and the next row is gone (pruned, or skipped by a restore).
    found = queue.database.peek(FROM, {"id": low})
    return min(cast(int, found[0][0]), end) if found else end


class Minutes:
    """The counts of the last minutes; one that has passed is counted once and kept."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, int]] = {}

    def counted(self, queue: Queue, now_ms: int) -> list[dict[str, int]]:
        """Return one entry for each of the last minutes, the oldest first; the last one runs on."""
        current = now_ms // MINUTE_MS
        wanted = range(current - MINUTES + 1, current + 1)
        self._kept = {minute: self._kept[minute] for minute in wanted if minute in self._kept}
        entries = []
        for minute in wanted:
            entry = self._kept.get(minute)
            if entry is None:
                entry = counted(queue, minute * MINUTE_MS, (minute + 1) * MINUTE_MS)
                if (minute + 1) * MINUTE_MS + SETTLED_MS < now_ms:
                    self._kept[minute] = entry
            entries.append({"minute_ms": minute * MINUTE_MS} | entry)
        return entries
