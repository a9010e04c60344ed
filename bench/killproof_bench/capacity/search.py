"""The open loop: offer more and more jobs per second, until a limit of time breaks.

Question: how many jobs a second can be offered such that every limit holds? Jobs come at random
(Poisson) from processes of their own, whatever the workers do, and a job's wait counts from the
moment it was meant to be enqueued. A closed loop cannot answer that: its offer falls when the queue
slows down.

First a bracket of shares of the predicted ceiling, then bisection, then the edge's 95% again on
fresh files with fresh processes: the answer is that, never the edge. A step passes if the upper end
of each quantile's 95% interval is under its limit and the backlog does not grow; it costs about ten
seconds, and says in words why it failed.
"""

import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
from scipy.stats import linregress, t  # type: ignore[attr-defined]  # It ships no types.

from killproof import Queue
from killproof_bench import ledger, measure
from killproof_bench.capacity import terms
from killproof_bench.capacity.closed import synchronous, within
from killproof_bench.capacity.pool import Pool, Slice, Written, crowd, workers
from killproof_bench.capacity.question import slo_text
from killproof_bench.capacity.result import Slo, Step
from killproof_bench.capacity.simulation import Played, Service, Times, opened
from killproof_bench.measure import Samples
from killproof_bench.recording import Call, Kind, Served
from killproof_bench.result import Correctness, Figure
from killproof_bench.scenarios.claim import Durability, stored

#: More than a fraction of one producer's time must be free, or it is the producer that is measured.
PRODUCERS: Final = 4
WARMUP_SECONDS: Final = 1.0
#: An interval over blocks of a second wants five of them; a p99 wants a thousand calls, and random
#: arrivals may be some fewer than were asked for.
STEP_SECONDS_MIN: Final = 6.0
STEP_SECONDS_MAX: Final = 20.0
CLAIMS_SPARE: Final = 1.2
#: Starting processes on a fresh file, and reading what they wrote.
START_SECONDS: Final = 2.5
#: Of the predicted ceiling, in turn.
BRACKET: Final = (0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4)
BRACKET_STEP: Final = 1.1
#: Below the lowest of the bracket, when that fails already.
LOWER: Final = (0.15, 0.05)
#: Bisection ends when the edge is known this well.
EDGE: Final = 0.05
#: What is promised is so much of the edge.
SUSTAINABLE: Final = 0.95
CONFIRMATIONS: Final = 3
#: A backlog that grows by less than this share of the offer is a line that finds its length.
GROWTH_MAX: Final = 0.01
_BACKLOG_STEP_NS: Final = 250_000_000
_DRAIN_SECONDS: Final = 0.4
_DRAINS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Who takes part in an open loop."""

    workers: int
    job_ms: float
    producers: int = PRODUCERS


class Offer:
    """Processes on a fresh file, to which loads can be offered; a context manager."""

    def __init__(self, folder: Path, crowd: Crowd, *, durability: Durability, seed: int) -> None:
        """Make the file and start the processes.

        Args:
            folder: Where the file goes; it is made.
            crowd: Who takes part.
            durability: Of the file.
            seed: Of the arrivals.
        """
        folder.mkdir()
        self._database = folder / "queue.db"
        self._crowd = crowd
        self._coin = random.Random(seed)
        with Queue(self._database, durability=durability):
            pass
        self._pool = Pool(
            self._database,
            crowd.workers + crowd.producers,
            synchronous=synchronous(durability),
            seed=seed,
        )

    def __enter__(self) -> Self:
        self._pool.__enter__()
        self._pool.wait_until_ready()
        return self

    def __exit__(self, *details: object) -> None:
        self._pool.__exit__(*details)

    @property
    def facts(self) -> dict[str, str]:
        """Pragmas as a process read them back."""
        return self._pool.facts

    def load(
        self, rate_per_s: float, seconds: float, tick: Callable[[], None]
    ) -> tuple[Written, Slice]:
        """Offer a load, and let the workers finish what is left of it."""
        orders = crowd(
            workers=self._crowd.workers,
            producers=self._crowd.producers,
            job_ms=self._crowd.job_ms,
            rate_per_s=rate_per_s,
            seeds=[self._coin.randrange(2**32) for _ in range(self._crowd.producers)],
        )
        part = self._pool.slice(orders, warmup_seconds=WARMUP_SECONDS, seconds=seconds, tick=tick)
        written = self._pool.written()
        for _ in range(_DRAINS_MAX):
            if not self._available():
                break
            self._pool.slice(
                workers(self._crowd.workers),
                warmup_seconds=0.0,
                seconds=_DRAIN_SECONDS,
                tick=tick,
            )
        return written, part

    def finish(self) -> Correctness:
        """End the processes, and judge all that they did."""
        written = self._pool.written()
        self._pool.finish()
        enqueued = [
            int(job)
            for rows in written.calls
            for job in rows[rows[:, Call.KIND] == Kind.ENQUEUE][:, Call.JOB]
        ]
        return ledger.judge(0, written.accounts, stored(self._database), enqueued=enqueued)

    def _available(self) -> bool:
        with closing(sqlite3.connect(self._database)) as connection:
            found = connection.execute("SELECT 1 FROM job WHERE state = 'available' LIMIT 1")
            return found.fetchone() is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """What became of the jobs that were meant to come in the measured part."""

    intended: Samples  #: When each was meant to be enqueued, ns; late ones too.
    claimed: Samples  #: When its claim had ended; the end of the part for one that still waits.
    waits: int  #: How many still wait.


def arrived(written: Written, part: Slice) -> Arrived:
    """Follow each job from its intended enqueue to its claim.

    A job that nobody has claimed by the end counts with the time it has waited: to leave it out
    would hide exactly the ones that wait longest.
    """
    calls = np.concatenate(written.calls)
    made = calls[calls[:, Call.KIND] == Kind.ENQUEUE]
    made = made[(made[:, Call.INTENDED] >= part.begin_ns) & (made[:, Call.INTENDED] < part.end_ns)]
    served = np.concatenate(written.served)
    served = served[np.argsort(served[:, Served.JOB])]
    places = np.searchsorted(served[:, Served.JOB], made[:, Call.JOB])
    found = places < len(served)
    found[found] = served[places[found], Served.JOB] == made[found, Call.JOB]
    claimed = np.full(len(made), part.end_ns, dtype=np.int64)
    claimed[found] = np.minimum(served[places[found], Served.CLAIMED], part.end_ns)
    intended = made[:, Call.INTENDED]
    return Arrived(
        intended=intended,
        claimed=np.maximum(claimed, intended),
        waits=int(np.count_nonzero(claimed >= part.end_ns)),
    )


def backlog_slope(jobs: Arrived, part: Slice) -> Figure:
    """Return by how many jobs a second the backlog grows, with the 95% interval of a line."""
    moments = np.arange(part.begin_ns, part.end_ns + 1, _BACKLOG_STEP_NS)
    waiting = np.searchsorted(np.sort(jobs.intended), moments) - np.searchsorted(
        np.sort(jobs.claimed), moments
    )
    line = linregress((moments - part.begin_ns) / 1e9, waiting)
    half = float(t.ppf(0.975, max(1, len(moments) - 2)) * line.stderr)
    slope = float(line.slope)
    return Figure(value=slope, low=slope - half, high=slope + half, n=len(moments))


def quantiles(written: Written, part: Slice, permille: int, *, seed: int) -> dict[str, Figure]:
    """Return a quantile of the claim call, of the enqueue call and of the time to claim, in ms."""
    calls = within(written, part.begin_ns, part.end_ns)
    kinds = calls[:, Call.KIND]
    # An ack that found nothing to claim was still an ack; its call took the same lock.
    claims = calls[(kinds == Kind.CLAIM) | (kinds == Kind.ACK_AND_CLAIM)]
    jobs = arrived(written, part)
    return {
        "claim": _figure(claims[:, Call.END], claims[:, Call.BEGIN], part, permille, seed),
        "enqueue": _enqueues(calls, part, permille, seed),
        "time_to_claim": _figure(jobs.claimed, jobs.intended, part, permille, seed),
    }


def _enqueues(calls: Samples, part: Slice, permille: int, seed: int) -> Figure:
    made = calls[calls[:, Call.KIND] == Kind.ENQUEUE]
    return _figure(made[:, Call.END], made[:, Call.BEGIN], part, permille, seed)


def _figure(ends: Samples, begins: Samples, part: Slice, permille: int, seed: int) -> Figure:
    if not len(ends):
        return Figure(value=None, low=None, high=None, n=0)
    blocks = (ends - part.begin_ns) // 1_000_000_000
    return measure.quantile_figure(ends - begins, blocks, permille, seed=seed)


def judged(
    written: Written,
    part: Slice,
    *,
    phase: Literal["bracket", "bisect", "confirm"],
    rate_per_s: float,
    crowd: Crowd,
    slos: Sequence[Slo],
    predicted: Played | None,
    seed: int,
) -> Step:
    """Judge one offered load against the limits; its correctness is known at the file's end.

    A limit of which too few jobs tell is neither kept nor broken.
    """
    asked = {each.permille for each in slos} | {500, 990}
    figures = {permille: quantiles(written, part, permille, seed=seed) for permille in asked}
    jobs = arrived(written, part)
    slope = backlog_slope(jobs, part)
    told = [(each, figures[each.permille][each.subject]) for each in slos]
    because = [reason for each in told if (reason := _broken(*each)) is not None]
    skipped = sum(end.skipped for end in part.ended)
    if (slope.low or 0.0) > GROWTH_MAX * rate_per_s:
        because.append(f"the backlog grows by {slope.value:,.0f} jobs a second")
    if skipped > GROWTH_MAX * max(1, len(jobs.intended)):
        because.append(f"producers could not enqueue {skipped:,} jobs that were due")
    untold = [
        f"{slo_text(limit)}: {figure.n:,} samples are too few to tell"
        for limit, figure in told
        if figure.value is None
    ]
    passed = False if because else None if untold else True
    seconds = (part.end_ns - part.begin_ns) / 1e9
    return Step(
        phase=phase,
        rate_per_s=rate_per_s,
        served_per_s=(len(jobs.intended) - jobs.waits) / seconds,
        seconds=seconds,
        workers=crowd.workers,
        claim_p50_ms=figures[500]["claim"],
        claim_p99_ms=figures[990]["claim"],
        time_to_claim_p99_ms=figures[990]["time_to_claim"],
        enqueue_p99_ms=figures[990]["enqueue"],
        backlog_slope_per_s=slope,
        predicted_claim_p99_ms=None if predicted is None else predicted.call(990),
        predicted_time_to_claim_p99_ms=None if predicted is None else predicted.waited(990),
        passed=passed,
        because="; ".join(because + untold) or "every limit holds, and the backlog does not grow",
        correctness=Correctness(verdict="unknown", because=(), jobs=len(jobs.intended)),
    )


def _broken(limit: Slo, figure: Figure) -> str | None:
    """Return why a limit does not hold, or `None`."""
    if figure.value is None:
        return None
    worst = figure.value if figure.high is None else figure.high
    if worst < limit.limit_ms:
        return None
    return f"{slo_text(limit)} does not hold: {figure.value:.3g} ms, up to {worst:.3g} ms"


def step_seconds(rate_per_s: float, slos: Sequence[Slo]) -> float:
    """Return how long a step must be for the quantiles that are asked for, and for its p99."""
    rarest = max(990, *(each.permille for each in slos))
    claims = CLAIMS_SPARE * measure.samples_needed(rarest)
    return min(max(STEP_SECONDS_MIN, claims / rate_per_s), STEP_SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The next load of the search."""

    phase: Literal["bracket", "bisect", "confirm"]
    rate_per_s: float


def following(ceiling_per_s: float, steps: Sequence[Step]) -> Trial | None:
    """Return the next load to offer, from what has been found; `None` when the edge is known.

    Bracket, then bisection; a load that had too few jobs to tell is followed by a higher one, which
    has more.
    """
    passed = [step.rate_per_s for step in steps if step.passed is not False]
    failed = [step.rate_per_s for step in steps if step.passed is False]
    low, high = max(passed, default=0.0), min(failed, default=0.0)
    if not failed:
        # The ceiling is learned anew at each load, so the shares may come to lie close together.
        left = [share for share in BRACKET if share * ceiling_per_s > low * BRACKET_STEP]
        return Trial(phase="bracket", rate_per_s=left[0] * ceiling_per_s) if left else None
    if not passed:
        left = [share for share in LOWER if share * ceiling_per_s < high * 0.99]
        return Trial(phase="bracket", rate_per_s=left[0] * ceiling_per_s) if left else None
    if high <= low * (1 + EDGE):
        # Also when a lower load failed and a higher one passed: the machine decides then, and
        # the confirmations will tell.
        return None
    return Trial(phase="bisect", rate_per_s=(low + high) / 2)


def edge(steps: Sequence[Step]) -> float | None:
    """Return the highest load that passed below every one that failed."""
    failed = min((step.rate_per_s for step in steps if step.passed is False), default=float("inf"))
    return max(
        (step.rate_per_s for step in steps if step.passed and step.rate_per_s < failed),
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The terms of an open loop, from one load of it; the others are predicted."""

    enqueue: Service
    claim: Service
    ack_and_claim: Service
    wake: Times
    cpu_us: float  #: Processor time of all processes, per job, its enqueue and idle looks included.

    def play(
        self, rate_per_s: float, *, workers: int, job_ms: float, jobs: int, seed: int
    ) -> Played:
        """Play another load with these terms."""
        return opened(
            enqueue=self.enqueue,
            claim=self.claim,
            ack_and_claim=self.ack_and_claim,
            wake=self.wake,
            rate_per_s=rate_per_s,
            producers=PRODUCERS,
            workers=workers,
            job_ms=job_ms,
            jobs=jobs,
            seed=seed,
        )


def learn(written: Written, part: Slice) -> Learned | None:
    """Take the terms from one load; `None` where it had too few calls of a kind."""
    calls = within(written, part.begin_ns, part.end_ns)
    enqueue, claim, joined = (
        terms.observe([calls], kind) for kind in (Kind.ENQUEUE, Kind.CLAIM, Kind.ACK_AND_CLAIM)
    )
    if enqueue is None or claim is None or joined is None:
        return None
    return Learned(
        enqueue=enqueue.service,
        claim=claim.service,
        ack_and_claim=joined.service,
        wake=_wakes(calls),
        cpu_us=_cpu_us(written, part),
    )


def _cpu_us(written: Written, part: Slice) -> float:
    spent = sum(end.user_ns + end.system_ns for end in part.ended)
    calls = within(written, part.begin_ns - round(WARMUP_SECONDS * 1e9), part.end_ns)
    return spent / max(1, int(np.count_nonzero(calls[:, Call.KIND] == Kind.ENQUEUE))) / 1e3


def _wakes(calls: Samples) -> Times:
    """Return how long after the commit of a job an idle worker began to claim it, microseconds."""
    made = calls[calls[:, Call.KIND] == Kind.ENQUEUE]
    made = made[np.argsort(made[:, Call.JOB])]
    claims = calls[calls[:, Call.KIND] == Kind.CLAIM]
    places = np.minimum(np.searchsorted(made[:, Call.JOB], claims[:, Call.JOB]), len(made) - 1)
    known = made[places, Call.JOB] == claims[:, Call.JOB]
    wakes = (claims[known, Call.BEGIN] - made[places[known], Call.COMMITTED]) / 1e3
    # A worker that had just become idle may begin before it could be woken.
    return np.maximum(wakes, 0.0) if len(wakes) else np.zeros(1)
