"""Killproof beside the plain reference: how many jobs per second, how late, how fairly.

Question: what do the turnstile and the shared sync give to workers that all want the one lock?
Primary figures: jobs/s, p99.9 of ack-and-claim, fewest/most jobs by one worker. Valid comparison:
the two arms of one run, nothing else.

The arms take turns on fresh copies of one seeded file. Rounds come in pairs, AB or BA by a seeded
coin, and the second pair mirrors the first, so that two rounds make ABBA or BAAB: a linear drift of
the machine then falls on both arms alike.
"""

import dataclasses
import os
import random
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from killproof import Queue
from killproof_bench import ledger, measure, sampling
from killproof_bench.anatomy import parts
from killproof_bench.cells import Kept, Recorded, cell_of
from killproof_bench.crew import Crew, Outcome, specs
from killproof_bench.load import Spec
from killproof_bench.machine import raw_syncs_per_second
from killproof_bench.measure import Samples
from killproof_bench.pacing import Arrivals
from killproof_bench.recording import Call, Kind
from killproof_bench.result import ARMS, Cell, Correctness, Round, Setup
from killproof_bench.sampling import CLAIMS, Series, Window
from killproof_bench.seeding import PAYLOAD_BYTES, seed_available, seed_finished

#: More than any queue on SQLite takes from one file; a run that finds the queue empty is `unknown`.
BACKLOG_PER_SECOND = 20_000
#: The same with several jobs in one transaction.
BATCHED_PER_SECOND = 60_000
#: Between two rounds: the kernel's own writing ends, so that one arm does not pay for the other.
PAUSE_SECONDS = 0.1

Durability = Literal["power", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run of this scenario measures."""

    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    seconds: float = 5.0
    warmup_seconds: float = 2.0
    rounds: int = 2  #: Of each arm at each number of workers.
    durability: Durability = "power"
    seed: int = 1
    call: Literal["ack-and-claim", "claim-then-ack"] = "ack-and-claim"
    batch: int = 1
    payload_bytes: int = PAYLOAD_BYTES
    finished: int = 0  #: Jobs that have succeeded before a round begins.
    jobs: int | None = None  #: Available when a round begins; `None`: more than can be done.
    job_ms: float = 0.0
    loop: Literal["closed", "open"] = "closed"
    rate_per_s: float = 0.0  #: Of an open loop: jobs, by all processes together.
    arrivals: Arrivals = "poisson"
    producers: int = 0  #: Of an open loop; 0: the workers' own calls follow the schedule.

    @property
    def backlog(self) -> int:
        """Jobs in the file before each round that can be claimed."""
        if self.jobs is not None:
            return self.jobs
        seconds = self.seconds + self.warmup_seconds
        if self.loop == "open":
            return 0 if self.producers else self.arriving(self.batch)
        return round(most_per_second(self.batch) * seconds)

    def arriving(self, batch: int) -> int:
        """Return more jobs than an open loop's schedule can bring, or any queue can take.

        A schedule is a matter of chance: room for twice its mean, and for a short one's spread.
        """
        seconds = self.seconds + self.warmup_seconds
        return round(min(2 * self.rate_per_s, most_per_second(batch)) * seconds) + 1_000

    @property
    def synchronous(self) -> str:
        """What a plain program sets for the same durability."""
        return "FULL" if self.durability == "power" else "NORMAL"

    @property
    def setup(self) -> Setup:
        """The conditions, as they are recorded."""
        is_open = self.loop == "open"
        return Setup(
            durability=self.durability,
            loop=self.loop,
            arrivals=self.arrivals if is_open else "",
            rate_per_s=self.rate_per_s if is_open else 0.0,
            producers=self.producers if is_open else 0,
            call=self.call,
            batch=self.batch,
            payload_bytes=self.payload_bytes,
            backlog=self.backlog,
            finished=self.finished,
            job_ms=self.job_ms,
        )


def most_per_second(batch: int) -> int:
    """Return more jobs per second than any queue takes from one file."""
    return BACKLOG_PER_SECOND if batch == 1 else BATCHED_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One round of one arm, in its place of the run."""

    position: int
    workers: int
    arm: str
    hash_seed: int  #: Shared inside a pair, different between pairs.
    timed: bool = False  #: Of the last pair: it tells where the time goes, and gives no rate.


def order(plan: Plan, arms: tuple[str, str] = ARMS, *, timed_pair: bool = False) -> Iterator[Step]:
    """Yield every round in the order in which it is to run; the same seed, the same order.

    Args:
        plan: how many rounds, of how many workers.
        arms: that take turns.
        timed_pair: one pair more for each number of workers, whose calls are timed from inside.
            That costs the processor, of which killproof needs more than the reference, and so it
            may not touch the rounds that are compared.
    """
    coin = random.Random(plan.seed)
    position = 0
    for workers in plan.workers:
        pair = arms
        for number in range(plan.rounds + timed_pair):
            turn = number % 2 == 1 or coin.random() < 0.5
            pair = pair[::-1] if turn else pair
            hash_seed = coin.randrange(1, 2**32)
            for arm in pair:
                yield Step(
                    position=position,
                    workers=workers,
                    arm=arm,
                    hash_seed=hash_seed,
                    timed=number == plan.rounds,
                )
                position += 1


class Bench:
    """A run of the scenario; keeps what has ended, so that an interrupted run can report it."""

    def __init__(
        self, plan: Plan, folder: Path, environment: dict[str, str], *, first: int = 0
    ) -> None:
        """Prepare.

        Args:
            plan: What to measure.
            folder: A folder on the disk to be measured.
            environment: cpu, filesystem, python and so on, for the claim cards.
            first: The place of the first round in the order of the whole run.
        """
        self.plan = plan
        self.raw_rates: list[float] = []
        self._folder = folder
        self._environment = environment
        self._first = first
        self._recorded: defaultdict[tuple[int, str], Recorded] = defaultdict(Recorded)

    def run(self, tick: Callable[[Step, float], None]) -> None:
        """Run every round; `tick` is told the round and the seconds since its begin.

        Raises:
            FileRefused: The folder's file system cannot keep the durability.
            CrewError: A process failed.
        """
        plan = self.plan
        template = make_template(
            self._folder,
            plan.durability,
            plan.backlog,
            finished=plan.finished,
            payload_bytes=plan.payload_bytes,
        )
        self.raw_rates.append(raw_syncs_per_second(self._folder))
        for step in order(plan, timed_pair=True):
            begin = time.monotonic()

            def told(step: Step = step, begin: float = begin) -> None:
                tick(step, time.monotonic() - begin)

            self._run_round(step, template, told)
        template.unlink()

    def cells(self) -> tuple[Cell, ...]:
        """Return what has ended so far; a cell needs one whole round."""
        plan = self.plan
        return tuple(
            cell_of(workers, arm, recorded, plan.setup, self._environment, seed=plan.seed)
            for (workers, arm), recorded in sorted(self._recorded.items())
            if recorded.rounds  # Else Ctrl-C came while its first was being written down.
        )

    def _run_round(self, step: Step, template: Path, tick: Callable[[], None]) -> None:
        plan, folder = self.plan, self._folder / f"round-{self._first + step.position}"
        folder.mkdir()
        shutil.copyfile(template, folder / "queue.db")
        os.sync()
        time.sleep(PAUSE_SECONDS)
        with Crew(processes(folder, plan, step), hash_seed=step.hash_seed) as crew:
            crew.wait_until_ready()
            start_ns = crew.go(plan.warmup_seconds + plan.seconds)
            from_ns = start_ns + round(plan.warmup_seconds * 1e9)
            crew.wait_for(from_ns + round(plan.seconds * 1e9), tick)
            outcome = crew.finish()
        correctness = verdict(folder / "queue.db", plan.backlog, outcome, finished=plan.finished)
        shutil.rmtree(folder)
        self.raw_rates.append(raw_syncs_per_second(self._folder))
        self._record(step, outcome, from_ns, correctness)

    def _record(self, step: Step, outcome: Outcome, from_ns: int, correctness: Correctness) -> None:
        plan, recorded = self.plan, self._recorded[step.workers, step.arm]
        workers, producers = outcome.calls[: step.workers], outcome.calls[step.workers :]
        measured = sampling.window(from_ns, plan.seconds)
        if step.timed:
            if split := parts(workers, producers, from_ns, measured.until_ns):
                recorded.parts.append(split)
            recorded.timed.append(correctness)
            return
        cut = sampling.sample(workers, from_ns, plan.seconds)
        for name, series in series_of(plan.setup, workers, producers, outcome, measured).items():
            recorded.series.setdefault(name, []).append(series)
        if plan.loop == "open":
            recorded.kept.append(_kept(plan, workers, producers, outcome, measured))
        recorded.facts = outcome.facts
        recorded.samples.append(cut)
        recorded.ended += outcome.ended[: step.workers]
        recorded.jobs += sum(len(jobs) for jobs in outcome.served)
        recorded.empty_polls += sum(
            int(np.count_nonzero(call[:, Call.KIND] == Kind.EMPTY)) for call in workers
        )
        tail = measure.quantile(cut.latencies, 999)
        tails = measure.tails_per_block(cut.latencies, cut.blocks, len(cut.per_block))
        recorded.rounds.append(
            Round(
                position=self._first + step.position,
                jobs_per_s=sum(cut.counts) / (len(cut.per_block) * cut.block_seconds),
                per_second=tuple(int(count) for count in cut.per_block),
                counts=cut.counts,
                p999_ms=None if tail is None else tail / 1e6,
                max_ms=float(cut.latencies.max()) / 1e6 if len(cut.latencies) else 0.0,
                raw_before=self.raw_rates[-2],
                raw_after=self.raw_rates[-1],
                watch=outcome.watch,
                correctness=correctness,
                p99_per_second_ms=tails[0],
                max_per_second_ms=tails[1],
            )
        )


def processes(folder: Path, plan: Plan, step: Step) -> list[Spec]:
    """Return what each worker, and behind them each producer, of one round is told."""
    fed = plan.loop == "open" and plan.producers > 0
    # Producers enqueue one by one.
    arriving = plan.arriving(1) if fed else 0
    workers = [
        dataclasses.replace(
            spec,
            loop="open" if plan.loop == "open" and not fed else "closed",
            # A turn of a worker takes a batch.
            rate_per_s=plan.rate_per_s / step.workers / plan.batch,
            arrivals=plan.arrivals,
            batch=plan.batch,
            job_ms=plan.job_ms,
            call=plan.call,
            fed=fed,
            seed=step.hash_seed + index,
            timed=step.timed,
        )
        for index, spec in enumerate(
            specs(
                folder,
                step.arm,
                step.workers,
                backlog=plan.backlog + arriving,
                synchronous=plan.synchronous,
            )
        )
    ]
    producers = [
        dataclasses.replace(
            workers[0],
            calls_file=str(folder / f"enqueues-{index}.bin"),
            role="producer",
            loop="open",
            rate_per_s=plan.rate_per_s / plan.producers,
            batch=1,
            payload_bytes=plan.payload_bytes,
            seed=step.hash_seed + step.workers + index,
        )
        for index in range(plan.producers if fed else 0)
    ]
    return [*workers, *producers]


def series_of(
    setup: Setup,
    workers: Sequence[Samples],
    producers: Sequence[Samples],
    outcome: Outcome,
    measured: Window,
) -> dict[tuple[str, str], Series]:
    """Return every latency of one round but the claim call's own, by kind and basis."""
    found = {}
    if setup.loop == "open" and not producers:
        found["claim call", "intended"] = sampling.series(
            workers, CLAIMS, measured, since=Call.INTENDED
        )
    if setup.call == "claim-then-ack" or producers:
        found["ack call", "operation"] = sampling.series(workers, (Kind.ACK,), measured)
    if producers:
        enqueues = (Kind.ENQUEUE,)
        found["enqueue commit", "operation"] = sampling.series(producers, enqueues, measured)
        found["enqueue commit", "intended"] = sampling.series(
            producers, enqueues, measured, since=Call.INTENDED
        )
        found["time to claim", "intended"] = sampling.time_to_claim(
            producers, outcome.served, measured
        )
    return found


def _kept(
    plan: Plan,
    workers: Sequence[Samples],
    producers: Sequence[Samples],
    outcome: Outcome,
    measured: Window,
) -> Kept:
    scheduled, kinds = (producers, (Kind.ENQUEUE,)) if producers else (workers, CLAIMS)
    size = 1 if producers else plan.batch
    ended = outcome.ended[len(workers) :] if producers else outcome.ended
    skipped = sum(each.skipped for each in ended)
    served = sum(len(jobs) for jobs in outcome.served)
    return Kept(
        # What no time was left for was due at the end, which is measured time.
        due=sampling.due(scheduled, kinds, measured) + skipped * size,
        late=sum(each.late for each in ended),
        skipped=skipped,
        left=plan.backlog + len(outcome.enqueued) - served if producers else 0,
    )


def make_template(
    folder: Path,
    durability: Durability,
    backlog: int,
    *,
    finished: int = 0,
    payload_bytes: int = PAYLOAD_BYTES,
) -> Path:
    """Make the file that every round begins with a copy of."""
    template = folder / "template.db"
    with Queue(template, durability=durability) as queue:
        now_ms = queue.host.clock.now_ms()
    # The finished come first: an old file's ids, and `stored` tells them by that.
    if finished:
        seed_finished(template, finished, now_ms, payload_bytes=payload_bytes)
    if backlog:
        seed_available(template, backlog, now_ms, payload_bytes=payload_bytes)
    return template


def verdict(database: Path, backlog: int, outcome: Outcome, *, finished: int = 0) -> Correctness:
    """Read the database after all workers have ended, and judge the round."""
    found = stored(database, finished=finished)
    correctness = ledger.judge(backlog, outcome.accounts, found, enqueued=outcome.enqueued)
    if correctness.verdict == "pass" and outcome.ran_dry:
        reason = f"the backlog of {backlog} jobs ran dry: measure for a shorter time"
        return Correctness(verdict="unknown", because=(reason,), jobs=correctness.jobs)
    return correctness


def stored(database: Path, *, finished: int = 0) -> ledger.Stored:
    """Read what the ledger compares with; the first so many jobs had ended before the run."""
    with closing(sqlite3.connect(database)) as connection:
        after = (finished,)
        (deliveries,) = connection.execute(
            "SELECT sum(deliveries) FROM job WHERE id > ?", after
        ).fetchone()
        (attempts,) = connection.execute(
            "SELECT count(*) FROM attempt WHERE job_id > ?", after
        ).fetchone()
        return ledger.Stored(
            counts=dict(
                connection.execute(
                    "SELECT state, count(*) FROM job WHERE id > ? GROUP BY state", after
                )
            ),
            done=dict(
                connection.execute(
                    "SELECT id, worker FROM job JOIN attempt ON job_id = id"
                    " WHERE id > ? AND state = 'succeeded' AND outcome = 'succeeded'",
                    after,
                )
            ),
            attempts=attempts,
            deliveries=deliveries or 0,
            integrity="; ".join(
                str(line) for (line,) in connection.execute("PRAGMA integrity_check")
            ),
            waiting=frozenset(
                job
                for (job,) in connection.execute(
                    "SELECT id FROM job WHERE id > ? AND state = 'available'", after
                )
            ),
        )
