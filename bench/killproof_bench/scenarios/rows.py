"""What an operation costs when the file holds a million rows, or five.

Question: does a claim stay cheap as the backlog, history, failures, the schedule and running work
pile up?
Primary figures: SQLite virtual machine steps per call (exact, free of noise) and the ratio of
median times. Valid comparison: the small and the large file of one run.

The two files take turns call by call, so that whatever disturbs the machine disturbs both.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap  # type: ignore[attr-defined]  # It ships no types.

from killproof import Host, Lease, Queue, SystemClock
from killproof.core.clock import Clock
from killproof_bench.arms import Connections
from killproof_bench.measure import RESAMPLES
from killproof_bench.result import Figure, OperationCost, RowsResult
from killproof_bench.rows_result import Axis
from killproof_bench.scenarios.claim import Durability
from killproof_bench.seeding import (
    KIND,
    OTHER_STATES,
    seed_available,
    seed_other_states,
    seed_states,
)

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

#: Rows in every state of the small file of `grow`; its large one has them where it does not grow.
GROW_FROM = 10_000

OPERATIONS = ("enqueue", "claim", "ack", "ack and claim", "extend", "nack")


class SteppingClock(SystemClock):
    """This machine's clock, which jumps ahead on request, so that no call is spared its sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ns = 0

    def monotonic_ns(self) -> int:
        """Return the real reading and what was skipped."""
        return super().monotonic_ns() + self.ahead_ns


class Steps(Connections):
    """Counts the steps of SQLite's virtual machine through the progress handler of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def during(self, call: Callable[[], object]) -> int:
        """Return the steps of one call."""
        assert self.latest is not None
        self.count = 0
        self.latest.set_progress_handler(self._step, 1)
        try:
            call()
        finally:
            self.latest.set_progress_handler(None, 1)
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
        tick("counting and timing")
        costs = compare(small, large, seed)
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


def grow(
    folder: Path,
    *,
    states: tuple[str, ...],
    rows: int,
    durability: Durability = "process",
    seed: int = 1,
    tick: Callable[[int, str], None],
) -> tuple[Axis, dict[str, str]]:
    """Compare a file with `GROW_FROM` rows in every state with one that has more in some.

    Args:
        folder: Where the files go, and are removed from; a million rows take about 300 MB.
        states: In which the rows grow: `available`, or some of `OTHER_STATES`.
        rows: In each of them.
        durability: `process` by default: a sync would hide the cost that is looked for.
        seed: Of the bootstrap.
        tick: Told how many rows were added since the last time, and what is being done.

    Returns:
        The figures, and the pragmas that were read back.

    Raises:
        KillproofError: The folder cannot hold the file.
    """
    small_rows = dict.fromkeys(("available", *OTHER_STATES), GROW_FROM)
    large_rows = small_rows | dict.fromkeys(states, rows)
    named = ", ".join(states)
    with ExitStack() as stack:
        files = []
        for name, counts in (("small", small_rows), ("large", large_rows)):
            path = folder / f"{name}.db"

            def seed_rows(
                owner: str, clock: Clock, path: Path = path, counts: Any = counts
            ) -> None:
                seed_states(
                    path,
                    counts,
                    clock.now_ms(),
                    owner=owner,
                    monotonic_ns=clock.monotonic_ns(),
                    told=lambda added: tick(added, f"rows: {named}"),
                )

            files.append(_opened(stack, path, durability, seed_rows))
        small, large = files
        tick(0, f"calls: {named}")
        axis = Axis(
            states=states,
            rows_small=GROW_FROM,
            rows_large=rows,
            file_bytes=large.path.stat().st_size,
            seeding_seconds=large.seeding_seconds,
            calls=TIMED_CALLS,
            costs=compare(small, large, seed),
        )
        facts = large.steps.facts()
    for file in folder.glob("*.db*"):
        file.unlink()
    return axis, facts


def seeded_rows(states: tuple[str, ...], rows: int) -> int:
    """Return how many rows `grow` adds to its two files, without attempts."""
    small = GROW_FROM * (1 + len(OTHER_STATES))
    return 2 * small + len(states) * (rows - GROW_FROM)


def compare(small: Seeded, large: Seeded, seed: int) -> tuple[OperationCost, ...]:
    """Count the steps of every operation on both files, and time it on them in turns."""
    steps = {
        operation: (_steps(small, operation), _steps(large, operation)) for operation in OPERATIONS
    }
    return tuple(
        _cost(operation, *steps[operation], _times(small, large, operation), seed)
        for operation in OPERATIONS
    )


def _seeded(stack: ExitStack, path: Path, rows: int, durability: Durability) -> Seeded:
    def seed_rows(owner: str, clock: Clock) -> None:
        now_ms, now_ns = clock.now_ms(), clock.monotonic_ns()
        seed_other_states(path, rows, now_ms, owner=owner, monotonic_ns=now_ns)
        seed_available(path, AVAILABLE, now_ms)

    return _opened(stack, path, durability, seed_rows)


def _opened(
    stack: ExitStack,
    path: Path,
    durability: Durability,
    seed_rows: Callable[[str, Clock], None],
) -> Seeded:
    """Make a file, have it seeded for a living owner, and open the queue to be measured."""
    begin = time.perf_counter()
    holder = stack.enter_context(Queue(path, durability=durability))
    # The leases need a living owner: claiming one job gives this process an identity.
    holder.enqueue(KIND, {})
    holder.claim()
    assert holder.worker_id is not None
    seed_rows(holder.worker_id, holder.host.clock)
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
