"""The answer in words and tables: verdict, limit, sizing, forecast, levers. Pure functions.

What is asked of the lock is written as `Job`: the demand of one whole job. Everything here follows
from it, from the terms of the open loop, and from what the search has confirmed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from killproof_bench.capacity import models, search
from killproof_bench.capacity.models import Station
from killproof_bench.capacity.question import slo_text
from killproof_bench.capacity.result import (
    Demand,
    Forecast,
    Lever,
    Question,
    Size,
    Slo,
    Step,
    Verdict,
)
from killproof_bench.capacity.search import Learned
from killproof_bench.capacity.simulation import Played
from killproof_bench.report import number

#: What a table of sizes plans for, of the most that is possible: above it waits grow steeply.
PLAN: Final = 0.7
#: A peak that keeps the lock busier than this leaves no room for a bad day: time for another tool.
OUTGROWN: Final = 0.6
#: A recommended number of workers leaves at least so much room above the peak, where any does.
HEADROOM: Final = 0.25
#: More workers than reach this share of the most add nothing but processes.
NEARLY_ALL: Final = 0.98
WORKERS_MAX: Final = 256
SIZE_WORKERS: Final = (1, 2, 4, 8, 16, 32, 64)
SIZE_JOB_MS: Final = (1.0, 10.0, 100.0, 1_000.0)
#: Three samples in the hundred thousand would do for a table; thirty beyond p99 are here.
SIZE_JOBS: Final = 3_000
#: The lease's default of a minute, renewed three times.
HEARTBEAT_MS: Final = 20_000.0
_BISECTIONS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one whole job asks for: its enqueue, its claim and ack, its heartbeats; seconds."""

    lock: float  #: Held, and handed over.
    call: float  #: A worker's claim and ack beside its job, when nobody is in the way.
    processor: float  #: Processor time of all processes.
    cores: int

    @property
    def ceiling(self) -> float:
        """Return the jobs/s that the lock, or else the processors, end at."""
        return min(1 / self.lock, self.cores / self.processor)

    @property
    def by_lock(self) -> bool:
        """Whether it is the lock that ends it."""
        return 1 / self.lock <= self.cores / self.processor


def job_of(learned: Learned, cores: int, job_ms: float, extend_us: float) -> Job:
    """Return the demand of a job from the terms of an open loop.

    A busy queue is meant: each transaction is handed the lock by another.
    """
    enqueue, joined = learned.enqueue, learned.ack_and_claim
    hold = float(enqueue.hold.mean() + joined.hold.mean())
    handover = float(enqueue.handover.mean() + joined.handover.mean())
    heartbeats = job_ms / HEARTBEAT_MS
    call = float(joined.entry.mean() + joined.hold.mean() + joined.after.mean())
    return Job(
        lock=(hold + handover + heartbeats * extend_us) / 1e6,
        call=call / 1e6,
        processor=learned.cpu_us / 1e6,
        cores=cores,
    )


def most(job: Job, workers: int, job_ms: float) -> float:
    """Return the most jobs/s that so many workers can do, all enqueued meanwhile."""
    delay = job_ms / 1e3 + max(0.0, job.call - job.lock)
    solved = models.mva([Station(demand=job.lock)], delay, workers)
    return min(solved.throughput, job.cores / job.processor)


def holds(played: Played, slos: Sequence[Slo]) -> bool:
    """Tell whether a played load keeps every limit."""
    return played.stable and all(
        (played.call if each.subject == "claim" else played.waited)(each.permille) < each.limit_ms
        for each in slos
    )


def capacity(
    learned: Learned, job: Job, slos: Sequence[Slo], *, workers: int, job_ms: float, seed: int
) -> float:
    """Return the highest rate at which every limit holds, by playing rates up to the most."""
    low, high = 0.0, most(job, workers, job_ms)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        played = learned.play(middle, workers=workers, job_ms=job_ms, jobs=SIZE_JOBS, seed=seed)
        low, high = (middle, high) if holds(played, slos) else (low, middle)
    return low


def workers_for(job: Job, peak_per_s: float, job_ms: float) -> int | None:
    """Return how many workers to run; `None` where no number of them reaches the peak.

    The fewest that leave `HEADROOM` above it; where the file leaves less, those that nearly reach
    what it does at most.
    """
    highest = most(job, WORKERS_MAX, job_ms)
    if highest <= peak_per_s:
        return None
    wanted = min(peak_per_s / (1 - HEADROOM), max(peak_per_s, NEARLY_ALL * highest))
    low, high = 0, WORKERS_MAX
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if most(job, middle, job_ms) >= wanted else (middle, high)
    return high


def sizes(learned: Learned, job: Job, *, measured_workers: int, seed: int) -> tuple[Size, ...]:
    """Return the sizing table."""
    found = []
    for job_ms in SIZE_JOB_MS:
        for workers in SIZE_WORKERS:
            jobs_per_s = most(job, workers, job_ms)
            plan = PLAN * jobs_per_s
            played = learned.play(plan, workers=workers, job_ms=job_ms, jobs=SIZE_JOBS, seed=seed)
            found.append(
                Size(
                    workers=workers,
                    job_ms=job_ms,
                    jobs_per_s=jobs_per_s,
                    plan_per_s=plan,
                    utilisation=plan * job.lock,
                    p99_ms=played.waited(990),
                    extrapolated=workers > 2 * measured_workers,
                )
            )
    return tuple(found)


def forecast(
    question: Question, job: Job, *, workers: int, capacity_per_s: float, peak_per_s: float
) -> Forecast:
    """Return how far the capacity goes, and when the peak will have outgrown it."""
    outgrown = OUTGROWN * job.ceiling
    months = None
    if question.growth > 0:
        months = max(0.0, math.log(outgrown / peak_per_s) / math.log1p(question.growth))
    return Forecast(
        peak_per_s=peak_per_s,
        capacity_per_s=capacity_per_s,
        headroom=1 - peak_per_s / capacity_per_s if capacity_per_s else None,
        lock_utilisation=peak_per_s * job.lock,
        workers=workers,
        outgrown_per_s=outgrown,
        months=months,
    )


def limit(job: Job, workers: int, job_ms: float) -> str:
    """Say what ends it, with its number; 0 workers are all that there may be."""
    workers = workers or WORKERS_MAX
    busy = workers / (job_ms / 1e3 + job.call)
    if busy < PLAN * job.ceiling:
        return (
            f"the limit is the number of workers: {workers} with jobs of {job_ms:g} ms do at most "
            f"{number(busy)} jobs/s, where the file would carry about {number(job.ceiling)}"
        )
    if job.by_lock:
        return (
            f"the limit is the one write lock: a job needs it for {number(job.lock * 1e3)} ms "
            f"(enqueue, claim and ack, hand-overs), so nothing does more than "
            f"{number(1 / job.lock)} jobs/s on one file"
        )
    return (
        f"the limit is the processor: a job costs {number(job.processor * 1e3)} ms of it, so "
        f"{job.cores} cores do at most {number(job.cores / job.processor)} jobs/s; the lock would "
        f"carry {number(1 / job.lock)}"
    )


def levers(demands: Mapping[str, Demand], job: Job, handover_us: float) -> tuple[Lever, ...]:
    """Rank what raises the ceiling, by the terms measured alone and the hand-over under load.

    Args:
        demands: By operation, of one process alone; of batches per job.
        job: The demand under load; says how many files the processors can keep busy.
        handover_us: Between two holders, under load.
    """
    hold = {name: demand.hold_us.value or 0.0 for name, demand in demands.items()}
    turn = handover_us
    batch = 10
    now = hold["enqueue"] + hold["ack_and_claim"] + 2 * turn
    enqueue_many = hold["enqueue_many"] + turn / batch
    work_many = hold["claim_many"] + hold["ack_many"] + 2 * turn / batch
    after = {
        "enqueue in batches of 10 (`enqueue_many`)": enqueue_many + hold["ack_and_claim"] + turn,
        "claim and ack in batches of 10": hold["enqueue"] + turn + work_many,
        "both in batches of 10": enqueue_many + work_many,
    }
    found = [
        Lever(
            name=name,
            gain=now / demand,
            measured=True,
            because=f"{now:.0f} us of the lock for a job become {demand:.0f}",
        )
        for name, demand in after.items()
    ]
    large = hold["enqueue, 10 kB"] + hold["claim, 10 kB"] + hold["ack"] + 3 * turn
    small = hold["enqueue"] + hold["claim"] + hold["ack"] + 3 * turn
    found.append(
        Lever(
            name="payloads of 100 bytes instead of 10 kB (store the rest beside the row)",
            gain=large / small,
            measured=True,
            because=f"{large:.0f} us of the lock for a large one, {small:.0f} for a small one",
        )
    )
    files = min(2.0, job.cores / job.processor * job.lock)
    found.append(
        Lever(
            name="a second file for half of the kinds",
            gain=max(1.0, files),
            measured=False,
            because="two locks instead of one, as far as the processors reach",
        )
    )
    found.append(
        Lever(
            name="durability `process` instead of `power`",
            gain=1.0,
            measured=False,
            because="the sync is outside the lock: each call becomes shorter, not the line",
        )
    )
    return tuple(sorted(found, key=lambda lever: -lever.gain))


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The verdict and its sentence."""

    verdict: Verdict
    sentence: str


def with_rate(
    question: Question, told: Forecast, confirmed: bool | None, limit: str, *, ran: bool
) -> Told:
    """Answer whether a rate fits; what was run decides before what the model says.

    Args:
        question: With a rate.
        told: The forecast.
        confirmed: Whether runs at the peak kept every limit; `None` when they could not tell.
        limit: What ends it.
        ran: Whether there was a run at the peak, though it had too few jobs to tell.
    """
    wish = " and ".join(slo_text(each) for each in question.slos)
    at = f"{told.workers} worker{'' if told.workers == 1 else 's'}"
    need = f"{number(told.peak_per_s)} jobs/s of {question.job_ms:g} ms"
    room = told.headroom
    if confirmed is False or (confirmed is None and (room is None or room <= 0)):
        why = "" if confirmed is None else "; a run at the peak broke a limit"
        return Told(
            verdict="fail",
            sentence=(
                f"no: {need} do not fit at {at} with {wish} "
                f"(capacity {number(told.capacity_per_s)}/s{why}): {limit}."
            ),
        )
    unsure = "runs at the peak had too few jobs to tell" if ran else "not run"
    how = "confirmed by runs at the peak" if confirmed else f"by the model, {unsure}"
    spare = f"with {room:.0%} headroom" if room is not None and room > 0 else "without headroom"
    months = (
        f" At this growth the peak outgrows it in {told.months:.0f} months."
        if told.months is not None
        else ""
    )
    return Told(
        verdict="pass",
        sentence=(
            f"yes {spare} at {at}: {need} with {wish}, {how}; {limit}; "
            f"it is outgrown at a peak of {number(told.outgrown_per_s)} jobs/s.{months}"
        ),
    )


def with_slo(
    question: Question,
    sustainable: float | None,
    steps: Sequence[Step],
    workers: int,
    limit: str,
    *,
    ended: bool,
) -> Told:
    """Answer how many jobs a second the limits allow.

    Args:
        question: Without a rate.
        sustainable: The confirmed rate.
        steps: The loads of the search.
        workers: How many claimed.
        limit: What ends it.
        ended: Whether the search came to its end; otherwise its time did.
    """
    wish = " and ".join(slo_text(each) for each in question.slos)
    edge = search.edge(steps)
    if edge is None:
        return _no_edge(steps, wish, limit, ended=ended)
    if sustainable is None:
        return Told(
            verdict="inconclusive",
            sentence=(
                f"no answer: {number(edge)} jobs/s kept {wish} once, and not again in every "
                "confirming run: the machine is too unsteady, or the budget too small."
            ),
        )
    return Told(
        verdict="pass",
        sentence=(
            f"{number(sustainable)} jobs/s of {question.job_ms:g} ms at {workers} workers with "
            f"{wish}, confirmed; {limit}."
        ),
    )


def _no_edge(steps: Sequence[Step], wish: str, limit: str, *, ended: bool) -> Told:
    """Answer when no load kept the limits: `no` is said only of loads that broke them."""
    if not steps:
        why = "the budget ended before a load could be offered: give --budget more"
    elif any(step.passed is None for step in steps):
        why = f"the loads that were offered had too few jobs to tell {wish}"
    elif not ended:
        why = "the budget ended before a load was low enough: give --budget more"
    else:
        lowest = min(step.rate_per_s for step in steps)
        return Told(
            verdict="fail",
            sentence=f"no: not even {number(lowest)} jobs/s keep {wish}: {limit}.",
        )
    return Told(verdict="inconclusive", sentence=f"no answer: {why}; {limit}.")
