"""What an operation costs when the file holds a million rows in every other state.

Question: does a claim stay cheap as history, failures, the schedule and running work pile up?
Primary figures: SQLite virtual machine steps per call (exact, free of noise) and the ratio of
median times. Valid comparison: the small and the large file of one run.

The two files take turns call by call, so that whatever disturbs the machine disturbs both.
"""

import sqlite3
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap  # type: ignore[attr-defined]  # It ships no types.

from killproof import Host, Lease, Queue, SystemClock
from killproof.core import host as core_host
from killproof_bench.measure import RESAMPLES
from killproof_bench.result import Figure, OperationCost, RowsResult
from killproof_bench.scenarios.claim import Durability
from killproof_bench.seeding import KIND, OTHER_STATES, seed_available, seed_other_states

ROWS_SMALL = 1_000
ROWS_LARGE = 1_000_000
#: Jobs that can be claimed, in both files: the cost of a deep backlog is another question.
AVAILABLE = 5_000
#: Enough for a stable median of a call of a tenth of a millisecond.
TIMED_CALLS = 400
#: Steps are exact; several calls only average over the rows that a B-tree page happens to hold.
COUNTED_CALLS = 20
#: Longer than the claim's own pause between two looks for dead workers: each counted call looks.
SWEEP_STEP_NS = 1_000_000_000

OPERATIONS = ("enqueue", "claim", "ack", "ack and claim", "extend", "nack")


class SteppingClock(SystemClock):
    """This machine's clock, which jumps ahead on request, so that no call is spared its sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ns = 0

    def monotonic_ns(self) -> int:
        """Return the real reading and what was skipped."""
        return super().monotonic_ns() + self.ahead_ns


class Steps:
    """Counts the steps of SQLite's virtual machine through the progress handler of a connection."""

    def __init__(self) -> None:
        self.count = 0
        self._connection: sqlite3.Connection | None = None

    def connect(self, path: str) -> sqlite3.Connection:
        """Open as the core does; the latest connection is the one in use."""
        self._connection = core_host.connect(path)
        return self._connection

    def during(self, call: Callable[[], object]) -> int:
        """Return the steps of one call."""
        assert self._connection is not None
        self.count = 0
        self._connection.set_progress_handler(self._step, 1)
        try:
            call()
        finally:
            self._connection.set_progress_handler(None, 1)
        return self.count

    def _step(self) -> int:
        self.count += 1
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """One file with its rows, and the queue that holds its leases alive."""

    queue: Queue
    clock: SteppingClock
    steps: Steps
    path: Path
    seeding_seconds: float


def run(
    folder: Path,
    *,
    rows: int = ROWS_LARGE,
    durability: Durability = "process",
    seed: int = 1,
    tick: Callable[[str], None],
) -> RowsResult:
    """Seed both files, count, and time.

    Args:
        folder: Where the files go; a million rows per state take about 1.5 GB.
        rows: In each of `OTHER_STATES` of the large file.
        durability: `process` by default: a sync would hide the cost that is looked for.
        seed: Of the bootstrap.
        tick: Told what is being done.

    Raises:
        KillproofError: The folder cannot hold the file.
    """
    with ExitStack() as stack:
        files = []
        for name, count in (("small", ROWS_SMALL), ("large", rows)):
            tick(f"seeding {4 * count:,} rows")
            files.append(_seeded(stack, folder / f"{name}.db", count, durability))
        small, large = files
        tick("counting steps")
        steps = {
            operation: (_steps(small, operation), _steps(large, operation))
            for operation in OPERATIONS
        }
        tick("timing")
        costs = tuple(
            _cost(operation, *steps[operation], _times(small, large, operation), seed)
            for operation in OPERATIONS
        )
        return RowsResult(
            rows_small=ROWS_SMALL,
            rows_large=rows,
            states=OTHER_STATES,
            available=AVAILABLE,
            durability=durability,
            calls=TIMED_CALLS,
            seeding_seconds=large.seeding_seconds,
            file_bytes=large.path.stat().st_size,
            costs=costs,
        )


def _seeded(stack: ExitStack, path: Path, rows: int, durability: Durability) -> Seeded:
    begin = time.perf_counter()
    holder = stack.enter_context(Queue(path, durability=durability))
    clock = holder.host.clock
    # The leases need a living owner: claiming one job gives this process an identity.
    holder.enqueue(KIND, {})
    holder.claim()
    assert holder.worker_id is not None
    seed_other_states(
        path, rows, clock.now_ms(), owner=holder.worker_id, monotonic_ns=clock.monotonic_ns()
    )
    seed_available(path, AVAILABLE, clock.now_ms())
    seconds = time.perf_counter() - begin
    stepping, steps = SteppingClock(), Steps()
    queue = stack.enter_context(Queue(path, host=Host(clock=stepping, connect=steps.connect)))
    return Seeded(queue=queue, clock=stepping, steps=steps, path=path, seeding_seconds=seconds)


def _steps(file: Seeded, operation: str) -> float:
    """Return the mean number of steps of a call that also looks for dead workers."""
    counts = []
    for _ in range(COUNTED_CALLS):
        call = _prepared(file.queue, operation)
        file.clock.ahead_ns += SWEEP_STEP_NS
        counts.append(file.steps.during(call))
    return statistics.mean(counts)


def _times(small: Seeded, large: Seeded, operation: str) -> tuple[list[int], list[int]]:
    """Return ns per call on either file, call by call in turn, the first one alternating."""
    times: tuple[list[int], list[int]] = ([], [])
    pairs = ((small, times[0]), (large, times[1]))
    for number in range(TIMED_CALLS):
        for file, spent in pairs if number % 2 else pairs[::-1]:
            call = _prepared(file.queue, operation)
            begin = time.perf_counter_ns()
            call()
            spent.append(time.perf_counter_ns() - begin)
    return times


def _prepared(queue: Queue, operation: str) -> Callable[[], object]:
    """Return the call to be measured, with what it needs done before."""
    if operation == "enqueue":
        return lambda: queue.enqueue(KIND, {})
    if operation == "claim":
        return queue.claim
    lease = queue.claim()
    assert isinstance(lease, Lease), "the files are seeded with enough available jobs"
    outcomes: dict[str, Callable[[], object]] = {
        "ack": lambda: queue.ack(lease),
        "ack and claim": lambda: queue.ack_and_claim(lease),
        "extend": lambda: queue.extend(lease),
        "nack": lambda: queue.nack(lease, "no such report"),
    }
    return outcomes[operation]


def _cost(
    operation: str,
    steps_small: float,
    steps_large: float,
    times: tuple[list[int], list[int]],
    seed: int,
) -> OperationCost:
    small, large = (np.array(side, dtype=np.float64) for side in times)
    interval = bootstrap(
        (small, large),
        lambda a, b, axis: np.median(b, axis=axis) / np.median(a, axis=axis),
        paired=True,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return OperationCost(
        operation=operation,
        steps_small=steps_small,
        steps_large=steps_large,
        us_small=float(np.median(small)) / 1e3,
        us_large=float(np.median(large)) / 1e3,
        time_ratio=Figure(
            value=float(np.median(large) / np.median(small)),
            low=float(interval.low),
            high=float(interval.high),
            n=TIMED_CALLS,
        ),
    )
