"""The closed loop: N workers that always have a next job, for many N in turn, block after block.

Question: what does a job cost at the lock, and how does that grow with the workers? Primary
figures: jobs/s and the call's p99 for each number of workers. Valid comparison: within this run,
where a block has each number once, in an order drawn anew, within about ten seconds.
"""

import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from killproof import Queue
from killproof_bench import ledger, machine
from killproof_bench.capacity.pool import Pool, Slice, Written, workers
from killproof_bench.crew import Calls, CrewError
from killproof_bench.machine import Moment, raw_syncs_per_second
from killproof_bench.recording import Call, Kind
from killproof_bench.result import Correctness
from killproof_bench.scenarios.claim import Durability, stored
from killproof_bench.seeding import seed_available

#: Long enough for hundreds of calls of each worker, short beside the changes of a shared machine.
SLICE_SECONDS: Final = 1.0
#: The processes are warm after the first; what is left is finding their places in the line.
WARMUP_SECONDS: Final = 0.2
#: Orders, answers, and filling up between two blocks.
OVERHEAD_SECONDS: Final = 0.12
#: The kernel's own work for the disk is about a tenth; a compiler on one of two cores is a half.
FOREIGN_MAX: Final = 0.25
#: Of all slices, so many are measured once more where they were disturbed.
AGAIN_MAX: Final = 0.3
#: More than any queue on SQLite takes from one file; workers that find none end the run.
JOBS_PER_SECOND: Final = 12_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load of the closed loop."""

    workers: int
    job_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A slice of one cell, in its block."""

    block: int
    cell: Cell
    slice: Slice
    foreign: float  #: Share of all processor time that others used meanwhile, the hypervisor too.

    @property
    def disturbed(self) -> bool:
        """Whether others used so much of the processor that the slice says nothing."""
        return self.foreign > FOREIGN_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A closed loop that has ended."""

    looked: tuple[Looked, ...]
    written: Written
    facts: dict[str, str]
    raw_rates: tuple[float, ...]  #: The disk's own syncs per second, before each block and after.
    correctness: Correctness
    jobs_seeded: int
    interrupted: bool

    def seen(self, cell: Cell) -> list[Looked]:
        """Return the slices of a cell that nobody disturbed."""
        return [each for each in self.looked if each.cell == cell and not each.disturbed]

    def slices(self, cell: Cell) -> list[Calls]:
        """Return the calls of each slice of a cell: all processes, ended in the measured part."""
        return [
            within(self.written, each.slice.begin_ns, each.slice.end_ns) for each in self.seen(cell)
        ]

    def counts(self, cell: Cell) -> Calls:
        """Return how many calls ended in each slice of a cell."""
        found = [
            int(np.count_nonzero(rows[:, Call.KIND] == Kind.ACK_AND_CLAIM))
            for rows in self.slices(cell)
        ]
        return np.array(found, dtype=np.int64)

    def cpu_us(self, cell: Cell) -> float:
        """Return the processor time of a job, over the whole slices, microseconds."""
        spent = jobs = 0
        for each in self.seen(cell):
            spent += sum(end.user_ns + end.system_ns for end in each.slice.ended)
            # The warm-up's jobs have cost their time too.
            start = each.slice.begin_ns - round(WARMUP_SECONDS * 1e9)
            jobs += len(within(self.written, start, each.slice.end_ns))
        return spent / jobs / 1e3 if jobs else 0.0


def within(written: Written, begin_ns: int, end_ns: int) -> Calls:
    """Return the calls of all processes that ended between two moments."""
    parts = []
    for rows in written.calls:
        # Each process ends its calls in order, so its table is sorted.
        first, last = np.searchsorted(rows[:, Call.END], (begin_ns, end_ns))
        parts.append(rows[first:last])
    return np.concatenate(parts)


def foreign_share(before: Moment, after: Moment, part: Slice) -> float:
    """Return how much of all processor time neither the workers nor the supervisor used."""
    own_ns = sum(end.user_ns + end.system_ns for end in part.ended)
    own = own_ns / 1e9 + after.own_seconds - before.own_seconds
    busy = after.busy_ticks - before.busy_ticks + after.steal_ticks - before.steal_ticks
    foreign = busy - own * os.sysconf("SC_CLK_TCK")
    return max(0.0, foreign) / max(1, after.all_ticks - before.all_ticks)


def order(cells: Sequence[Cell], blocks: int, seed: int) -> Iterator[tuple[int, Cell]]:
    """Yield block after block, each with every cell once, in an order drawn anew."""
    coin = random.Random(seed)
    for block in range(blocks):
        yield from ((block, cell) for cell in coin.sample(list(cells), len(cells)))


def again(looked: Sequence[Looked], blocks: int) -> Iterator[tuple[int, Cell]]:
    """Yield what was disturbed once more, as a block of its own; to be asked when all have ended.

    The rule looks at what others used of the processor, never at what was measured.
    """
    disturbed = [each.cell for each in looked if each.disturbed]
    yield from ((blocks, cell) for cell in disturbed[: round(AGAIN_MAX * len(looked))])


def seconds_of(cells: Sequence[Cell], blocks: int) -> float:
    """Return how long a run takes, about, without its start."""
    return len(cells) * blocks * (SLICE_SECONDS + WARMUP_SECONDS + OVERHEAD_SECONDS)


def run(
    folder: Path,
    cells: Sequence[Cell],
    *,
    blocks: int,
    durability: Durability,
    seed: int,
    tick: Callable[[str, float], None],
) -> Recording:
    """Measure; Ctrl-C ends it and keeps the slices that have ended.

    Args:
        folder: An empty folder on the disk to be measured.
        cells: What to measure.
        blocks: How often each.
        durability: Of the file.
        seed: Of the order.
        tick: Told what is going on, and the seconds of the whole that are done.

    Raises:
        CrewError: A process failed, or no job was left: the figures are of an empty queue then.
    """
    database = folder / "queue.db"
    with Queue(database, durability=durability) as queue:
        now_ms = queue.host.clock.now_ms()
    most = max(cell.workers for cell in cells)
    block_jobs = round(JOBS_PER_SECOND * (SLICE_SECONDS + WARMUP_SECONDS) * len(cells))
    looked: list[Looked] = []
    raw_rates: list[float] = []
    seeded = 0
    interrupted = False
    each = SLICE_SECONDS + WARMUP_SECONDS + OVERHEAD_SECONDS
    with Pool(database, most, synchronous=synchronous(durability), seed=seed) as pool:
        try:
            pool.wait_until_ready()
            for block, cell in chain(order(cells, blocks, seed), again(looked, blocks)):
                if block == len(raw_rates):
                    raw_rates.append(raw_syncs_per_second(folder))
                    with _uninterrupted():
                        seeded += _filled_up(database, block_jobs, now_ms)
                place = len(looked)

                def told(cell: Cell = cell, place: int = place) -> None:
                    tick(f"{cell.workers} workers, {cell.job_ms:g} ms jobs", place * each)

                before = machine.now()
                part = pool.slice(
                    workers(cell.workers, job_ms=cell.job_ms),
                    warmup_seconds=WARMUP_SECONDS,
                    seconds=SLICE_SECONDS,
                    tick=told,
                )
                if any(end.ran_dry for end in part.ended):
                    raise CrewError(f"{block_jobs:,} jobs were too few for {cell.workers} workers")
                foreign = foreign_share(before, machine.now(), part)
                looked.append(Looked(block=block, cell=cell, slice=part, foreign=foreign))
        except KeyboardInterrupt:
            interrupted = True
        written, facts = pool.written(), pool.facts
        pool.finish()
    raw_rates.append(raw_syncs_per_second(folder))
    return Recording(
        looked=tuple(looked),
        written=written,
        facts=facts,
        raw_rates=tuple(raw_rates),
        correctness=ledger.judge(seeded, written.accounts, stored(database)),
        jobs_seeded=seeded,
        interrupted=interrupted,
    )


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off until the block has ended: what was put in must have been counted."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _filled_up(database: Path, jobs: int, now_ms: int) -> int:
    """Make so many jobs available; return how many were added."""
    with closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute(
            "SELECT count(*) FROM job WHERE state = 'available'"
        ).fetchone()
    seed_available(database, jobs - count, now_ms)
    # What was put in goes to the disk now, not during the first slice.
    os.sync()
    return jobs - int(count)


def synchronous(durability: Durability) -> str:
    """Return what a plain program sets for the same durability."""
    return "FULL" if durability == "power" else "NORMAL"
