"""Killproof beside the plain reference: how many jobs per second, how late, how fairly.

Question: what do the turnstile and the shared sync give to workers that all want the one lock?
Primary figures: jobs/s, p99.9 of ack-and-claim, fewest/most jobs by one worker. Valid comparison:
the two arms of one run, nothing else.

The arms take turns on fresh copies of one seeded file. Rounds come in pairs, AB or BA by a seeded
coin, and the second pair mirrors the first, so that two rounds make ABBA or BAAB: a linear drift of
the machine then falls on both arms alike.
"""

import os
import random
import shutil
import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from killproof import Queue
from killproof_bench import ledger, measure
from killproof_bench.arms import BUSY_MS
from killproof_bench.crew import Crew, Outcome, specs
from killproof_bench.machine import raw_syncs_per_second
from killproof_bench.measure import Samples
from killproof_bench.recording import Call
from killproof_bench.result import (
    ARMS,
    Cell,
    ClaimCard,
    Correctness,
    Figure,
    Ratio,
    Round,
)
from killproof_bench.seeding import PAYLOAD_BYTES, seed_available

#: More than any queue on SQLite takes from one file; a run that finds the queue empty is `unknown`.
BACKLOG_PER_SECOND = 20_000
#: Rates and intervals rest on blocks of a second: long beside a call, short beside a round.
BLOCK_SECONDS = 1.0
#: Between two rounds: the kernel's own writing ends, so that one arm does not pay for the other.
PAUSE_SECONDS = 0.1

Durability = Literal["power", "process"]
BUSY_POLICY = {
    "killproof": "turnstile for at most 0.25 s, then an own loop of 0.5 to 1 ms, 30 s",
    "reference": f"SQLite's busy handler, {BUSY_MS // 1000} s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run of this scenario measures."""

    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    seconds: float = 5.0
    warmup_seconds: float = 2.0
    rounds: int = 2  #: Of each arm at each number of workers.
    durability: Durability = "power"
    seed: int = 1

    @property
    def backlog(self) -> int:
        """Jobs in the file before each round."""
        return round(BACKLOG_PER_SECOND * (self.seconds + self.warmup_seconds))

    @property
    def synchronous(self) -> str:
        """What a plain program sets for the same durability."""
        return "FULL" if self.durability == "power" else "NORMAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One round of one arm, in its place of the run."""

    position: int
    workers: int
    arm: str
    hash_seed: int  #: Shared inside a pair, different between pairs.


def order(plan: Plan, arms: tuple[str, str] = ARMS) -> Iterator[Step]:
    """Yield every round in the order in which it is to run; the same seed, the same order."""
    coin = random.Random(plan.seed)
    position = 0
    for workers in plan.workers:
        pair = arms
        for number in range(plan.rounds):
            turn = number % 2 == 1 or coin.random() < 0.5
            pair = pair[::-1] if turn else pair
            hash_seed = coin.randrange(1, 2**32)
            for arm in pair:
                yield Step(position=position, workers=workers, arm=arm, hash_seed=hash_seed)
                position += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The calls of one round that fell into its measured time."""

    latencies: Samples  #: ns, all workers.
    blocks: Samples  #: For each latency, the block in which the call ended.
    per_block: Samples  #: Calls that ended in each block.
    counts: tuple[int, ...]  #: Calls that ended, by worker.
    block_seconds: float


def sample(calls: Sequence[Samples], from_ns: int, seconds: float) -> Sample:
    """Cut the measured time out of what the workers recorded.

    A call that ended in it counts for the rate. Its latency also counts if it was still waiting at
    the end: to leave it out would hide exactly the worker that waited longest.
    """
    blocks = max(1, round(seconds / BLOCK_SECONDS))
    block_ns = round(seconds * 1e9) // blocks
    until_ns = from_ns + blocks * block_ns
    latencies, places, counts = [], [], []
    per_block = np.zeros(blocks, dtype=np.int64)
    for call in calls:
        begin, end = call[:, Call.BEGIN], call[:, Call.END]
        ended = (end >= from_ns) & (end < until_ns)
        per_block += np.bincount((end[ended] - from_ns) // block_ns, minlength=blocks)
        counts.append(int(np.count_nonzero(ended)))
        seen = (end >= from_ns) & (begin < until_ns)
        latencies.append(end[seen] - begin[seen])
        places.append(np.minimum((end[seen] - from_ns) // block_ns, blocks - 1))
    return Sample(
        latencies=np.concatenate(latencies),
        blocks=np.concatenate(places),
        per_block=per_block,
        counts=tuple(counts),
        block_seconds=block_ns / 1e9,
    )


@dataclass(slots=True)
class Recorded:
    """The rounds of one cell as they come in."""

    rounds: list[Round] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


class Bench:
    """A run of the scenario; keeps what has ended, so that an interrupted run can report it."""

    def __init__(self, plan: Plan, folder: Path, environment: dict[str, str]) -> None:
        """Prepare.

        Args:
            plan: What to measure.
            folder: An empty folder on the disk to be measured.
            environment: cpu, filesystem, python and so on, for the claim cards.

        Raises:
            FileRefused: The folder's file system cannot keep the durability.
        """
        self.plan = plan
        self.raw_rates: list[float] = []
        self._folder = folder
        self._environment = environment
        self._recorded: defaultdict[tuple[int, str], Recorded] = defaultdict(Recorded)
        self._template = make_template(folder, plan.durability, plan.backlog)

    def run(self, tick: Callable[[Step, float], None]) -> None:
        """Run every round; `tick` is told the round and the seconds since its begin."""
        steps = list(order(self.plan))
        self.raw_rates.append(raw_syncs_per_second(self._folder))
        for step in steps:
            begin = time.monotonic()

            def told(step: Step = step, begin: float = begin) -> None:
                tick(step, time.monotonic() - begin)

            self._run_round(step, told)

    def cells(self) -> tuple[Cell, ...]:
        """Return what has ended so far; a cell needs one whole round."""
        return tuple(
            cell_of(workers, arm, recorded, self.plan, self._environment)
            for (workers, arm), recorded in sorted(self._recorded.items())
        )

    def _run_round(self, step: Step, tick: Callable[[], None]) -> None:
        plan, folder = self.plan, self._folder / f"round-{step.position}"
        folder.mkdir()
        shutil.copyfile(self._template, folder / "queue.db")
        os.sync()
        time.sleep(PAUSE_SECONDS)
        told = specs(
            folder,
            step.arm,
            step.workers,
            backlog=plan.backlog,
            synchronous=plan.synchronous,
        )
        with Crew(told, hash_seed=step.hash_seed) as crew:
            crew.wait_until_ready()
            start_ns = crew.go(plan.warmup_seconds + plan.seconds)
            from_ns = start_ns + round(plan.warmup_seconds * 1e9)
            crew.wait_for(from_ns + round(plan.seconds * 1e9), tick)
            outcome = crew.finish()
        cut = sample(outcome.calls, from_ns, plan.seconds)
        correctness = verdict(folder / "queue.db", plan.backlog, outcome)
        shutil.rmtree(folder)
        self.raw_rates.append(raw_syncs_per_second(self._folder))
        recorded = self._recorded[step.workers, step.arm]
        recorded.facts = outcome.facts
        recorded.samples.append(cut)
        recorded.rounds.append(
            Round(
                position=step.position,
                jobs_per_s=sum(cut.counts) / (len(cut.per_block) * cut.block_seconds),
                per_second=tuple(int(count) for count in cut.per_block),
                counts=cut.counts,
                max_ms=float(cut.latencies.max()) / 1e6 if len(cut.latencies) else 0.0,
                raw_before=self.raw_rates[-2],
                raw_after=self.raw_rates[-1],
                watch=outcome.watch,
                correctness=correctness,
            )
        )


def make_template(folder: Path, durability: Durability, backlog: int) -> Path:
    """Make the file that every round begins with a copy of."""
    template = folder / "template.db"
    with Queue(template, durability=durability) as queue:
        now_ms = queue.host.clock.now_ms()
    seed_available(template, backlog, now_ms)
    return template


def verdict(database: Path, backlog: int, outcome: Outcome) -> Correctness:
    """Read the database after all workers have ended, and judge the round."""
    correctness = ledger.judge(backlog, outcome.accounts, stored(database))
    if correctness.verdict == "pass" and outcome.ran_dry:
        reason = f"the backlog of {backlog} jobs ran dry: measure for a shorter time"
        return Correctness(verdict="unknown", because=(reason,), jobs=correctness.jobs)
    return correctness


def stored(database: Path) -> ledger.Stored:
    """Read what the ledger compares with."""
    with closing(sqlite3.connect(database)) as connection:
        (deliveries,) = connection.execute("SELECT sum(deliveries) FROM job").fetchone()
        (attempts,) = connection.execute("SELECT count(*) FROM attempt").fetchone()
        return ledger.Stored(
            counts=dict(connection.execute("SELECT state, count(*) FROM job GROUP BY state")),
            done=dict(
                connection.execute(
                    "SELECT id, worker FROM job JOIN attempt ON job_id = id"
                    " WHERE state = 'succeeded' AND outcome = 'succeeded'"
                )
            ),
            attempts=attempts,
            deliveries=deliveries,
            integrity="; ".join(
                str(line) for (line,) in connection.execute("PRAGMA integrity_check")
            ),
        )


def cell_of(
    workers: int, arm: str, recorded: Recorded, plan: Plan, environment: dict[str, str]
) -> Cell:
    """Put the rounds of one arm at one number of workers together."""
    samples, rounds = recorded.samples, recorded.rounds
    blocks_per_round = len(samples[0].per_block)
    latencies = np.concatenate([part.latencies for part in samples])
    blocks = np.concatenate(
        [part.blocks + number * blocks_per_round for number, part in enumerate(samples)]
    )
    p50, p99, p999 = (
        measure.quantile_figure(latencies, blocks, permille, seed=plan.seed)
        for permille in (500, 990, 999)
    )
    rate = measure.rate_figure(
        np.concatenate([part.per_block for part in samples]),
        block_seconds=samples[0].block_seconds,
        seed=plan.seed,
    )
    shares = [measure.fewest_over_most(part.counts) for part in samples]
    correctness = ledger.merged([each.correctness for each in rounds])
    return Cell(
        workers=workers,
        arm=arm,
        jobs_per_s=rate,
        p50_ms=p50,
        p99_ms=p99,
        p999_ms=p999,
        max_ms=max(each.max_ms for each in rounds),
        fewest_over_most=statistics.median(shares),
        fewest_over_most_worst=min(shares),
        jain_min=min(measure.jain(part.counts) for part in samples),
        correctness=correctness,
        card=card_of(workers, arm, recorded, rate, correctness, plan, environment),
        rounds=tuple(rounds),
    )


def card_of(
    workers: int,
    arm: str,
    recorded: Recorded,
    rate: Figure,
    correctness: Correctness,
    plan: Plan,
    environment: dict[str, str],
) -> ClaimCard:
    """Fill the claim card of one cell."""
    facts = recorded.facts
    return ClaimCard(
        operation="ack-and-claim: one transaction acks a job and claims the next",
        unit="jobs/s; milliseconds per call",
        load_model="closed loop, no work between two calls",
        arrivals="none: all jobs are there before the round begins",
        workers=f"{workers} x 1 process with one connection",
        batch=1,
        payload_bytes=PAYLOAD_BYTES,
        rows_live=plan.backlog,
        rows_dead=0,
        journal_mode=facts["journal_mode"],
        synchronous=facts["synchronous"],
        autocheckpoint=int(facts["autocheckpoint"]),
        busy_policy=BUSY_POLICY[arm],
        durability=plan.durability
        + (
            " (sync after the commit, shared)"
            if arm == ARMS[0] and plan.durability == "power"
            else ""
        ),
        filesystem=environment["filesystem"],
        cpu=environment["cpu"],
        python=environment["python"],
        sqlite=facts["sqlite"],
        seconds=plan.seconds * len(recorded.rounds),
        n=rate.n,
        interval=_interval(recorded),
        checkpoints=sum(each.watch.restarts for each in recorded.rounds),
        late_or_skipped="not applicable: closed loop",
        steady=all(measure.is_steady(each.per_second) for each in recorded.rounds),
        correctness=correctness.verdict,
    )


def _interval(recorded: Recorded) -> str:
    blocks = sum(len(part.per_block) for part in recorded.samples)
    text = f"{blocks} blocks of {recorded.samples[0].block_seconds:g} s"
    if blocks < measure.BLOCKS_MIN:
        return f"refused: {text} are too few"
    return f"95%, bootstrap over {text}"


def ratios(cells: Sequence[Cell]) -> tuple[Ratio, ...]:
    """Return killproof beside the reference, for each number of workers that has both."""
    by_arm = {(cell.workers, cell.arm): cell for cell in cells}
    found = []
    for workers in sorted({cell.workers for cell in cells}):
        ours, reference = (by_arm.get((workers, arm)) for arm in ARMS)
        if ours is None or reference is None:
            continue
        found.append(
            Ratio(
                workers=workers,
                fewest_over_most=ours.fewest_over_most,
                fewest_over_most_reference=reference.fewest_over_most,
                p999=_quotient(ours.p999_ms, reference.p999_ms),
                throughput=_quotient(ours.jobs_per_s, reference.jobs_per_s),
            )
        )
    return tuple(found)


def _quotient(ours: Figure, reference: Figure) -> float | None:
    if ours.value is None or not reference.value:
        return None
    return ours.value / reference.value
