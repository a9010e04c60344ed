"""The recorded outcome of `killproof bench capacity`: values that go to JSON and come back.

Everything that the report says is here, so a report can be drawn again from a recorded result.
Times are in the unit that a field's name ends with; rates are jobs per second.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

from killproof_bench.result import ClaimCard, Correctness, Figure, Noise, read

#: Raised whenever a field changes its meaning; a reader refuses what it does not know.
SCHEMA = 1

#: `pass` is yes, `fail` is no, `inconclusive` gives no number; `violated` voids all of them.
Verdict = Literal["pass", "fail", "inconclusive", "violated"]

#: What a limit of time can be asked of: the call that claims, or the way from enqueue to claim.
Subject = Literal["claim", "time_to_claim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """One limit of time: `claim.p99<50ms`."""

    subject: Subject
    permille: int  #: 990 is p99.
    limit_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked, as it was understood."""

    slos: tuple[Slo, ...]
    rate_per_s: float | None  #: Jobs enqueued, mean; `None` asks how many there may be.
    peak: float  #: The busiest time has so many times the mean rate.
    job_ms: float  #: How long a handler works, outside any transaction.
    workers: int | None  #: `None` lets the answer choose.
    growth: float  #: Share per month: 0.10 is 10%.


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one operation asks of the lock, measured in one process that nobody disturbs."""

    operation: str  #: enqueue, claim, ack, ack_and_claim, extend.
    hold_us: Figure  #: From having SQLite's lock to giving it back; the mean, checkpoints included.
    outside_us: Figure  #: The rest of the call: Python around the lock, and the sync.
    per_job: float  #: How often a job needs it in the load that is planned for.


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPoint:
    """Where the time of one job goes with so many workers in a closed loop without work."""

    workers: int
    hold_us: float  #: Lock held, per job.
    handover_us: float  #: Lock free although somebody waits for it, per job.
    outside_us: float  #: Python and sync outside the lock, per job.
    wait_us: float  #: Waiting for the lock, per job.
    cpu_us: float  #: CPU time of all workers, per job.


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The calibrated model: one queue at the lock, perhaps one at the processor, and a delay."""

    kind: Literal["lock", "lock and processor"]
    because: str  #: Why this kind: the errors of both at the calibrated points.
    lock_us: float  #: Demand of one closed-loop call at the lock: hold and hand-over.
    processor_us: float  #: Processor time of such a call, in and outside the lock.
    cores: int
    delay_us: float  #: What a call does beside: sync, Python.
    ceiling_per_s: float  #: Of the closed loop: 1 / lock demand.
    knee_workers: float  #: (Z + D) / D of the closed loop, for the question's job time.
    job_lock_us: float  #: Demand of a whole job: its enqueue, claim, ack and heartbeats.
    job_ceiling_per_s: float  #: 1 / that: nothing on one file does more.
    processors_per_s: float  #: Cores / processor time of a whole job: nor does this machine.
    calibrated_workers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usl:
    """The Universal Scalability Law fitted to the measured points: a picture, not the predictor."""

    gamma_per_s: float  #: Jobs/s of one worker.
    alpha: Figure  #: Share of the work that only one does at a time.
    beta: Figure  #: Cost of agreeing with each other; above 0, more workers do less.
    peak_workers: float | None  #: sqrt((1 - alpha) / beta); `None` where the curve has no peak.
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured closed loop, and what was predicted for it."""

    workers: int
    job_ms: float
    calibrated: bool  #: The model has seen it; only the others say how well it predicts.
    jobs_per_s: Figure
    p50_ms: Figure  #: Of the claim call.
    p99_ms: Figure
    predicted_jobs_per_s: float
    predicted_p99_ms: float
    throughput_error: float | None  #: Predicted / measured - 1.
    p99_factor: float | None  #: Predicted / measured.
    correctness: Correctness
    card: ClaimCard


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The predicted curve of the closed loop, for drawing; one for each length of jobs measured."""

    workers: int
    job_ms: float
    jobs_per_s: float  #: By the model.
    bound_per_s: float  #: The asymptotic bound: min(N / (Z + D), 1 / D).
    usl_per_s: float | None  #: For jobs without work, which the law was fitted to.
    p99_ms: float  #: Of the claim call, closed loop.


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One offered load of the search (open loop, Poisson)."""

    phase: Literal["bracket", "bisect", "confirm"]
    rate_per_s: float  #: Offered.
    served_per_s: float
    seconds: float
    workers: int
    claim_p50_ms: Figure
    claim_p99_ms: Figure  #: Of the calls that claimed something, from begin to end.
    time_to_claim_p99_ms: Figure  #: From the intended moment of the enqueue to the claim's end.
    enqueue_p99_ms: Figure  #: Of the enqueue's call, from begin to end.
    backlog_slope_per_s: Figure  #: Jobs by which the backlog grows each second.
    predicted_claim_p99_ms: float | None
    predicted_time_to_claim_p99_ms: float | None
    passed: bool | None  #: `None`: no limit was broken, and too few jobs came to tell of one.
    because: str
    correctness: Correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One cell of the sizing table: so many workers with jobs of such a length."""

    workers: int
    job_ms: float
    jobs_per_s: float  #: At most.
    plan_per_s: float  #: What to plan for: 70% of it.
    utilisation: float  #: Of the lock at `plan_per_s`.
    p99_ms: float  #: Time to claim at `plan_per_s`.
    extrapolated: bool  #: More than twice the workers that were measured.


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When this machine is outgrown."""

    peak_per_s: float  #: Jobs/s in the busiest time.
    capacity_per_s: float  #: Jobs/s that the answer is given for.
    headroom: float | None  #: 1 - peak / capacity; below 0 it does not fit; `None`: no capacity.
    lock_utilisation: float  #: Of the lock, at the peak.
    workers: int
    outgrown_per_s: float  #: The peak from which on SQLite's one lock is the wrong tool.
    months: float | None  #: Until then, at the growth asked about; `None` without growth.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change, and how far it would raise the ceiling."""

    name: str
    gain: float  #: Ceiling after / before.
    measured: bool  #: From terms measured in this run; otherwise an estimate from its parts.
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityResult:
    """One run of `killproof bench capacity`, whole or interrupted."""

    schema: int
    command: str
    seed: int
    started: str  #: UTC, ISO 8601.
    interrupted: bool
    environment: dict[str, str]
    durability: str
    budget_seconds: float
    spent_seconds: float
    verdict: Verdict
    sentence: str  #: The answer; a reader who stops here has it.
    limit: str  #: What limits it, one sentence.
    question: Question
    demands: tuple[Demand, ...]
    lock_points: tuple[LockPoint, ...]
    model: Model | None
    usl: Usl | None
    points: tuple[Point, ...]
    curve: tuple[CurvePoint, ...]
    steps: tuple[Step, ...]
    #: Confirmed: 0.95 of the edge, or 0.85 or 0.75 where that was not; `None` without such.
    sustainable_per_s: float | None
    sizes: tuple[Size, ...]
    forecast: Forecast | None
    levers: tuple[Lever, ...]
    predicts_well: bool | None  #: Held-out points within the goals; `None` without any.
    slices: int  #: Seconds measured in the closed loop.
    slices_disturbed: int  #: Left out by rule: others used the processor meanwhile.
    raw_syncs_per_s: tuple[float, ...]  #: The disk's own rate, before, between and after.
    noise: Noise
    correctness: Correctness
    limits: tuple[str, ...]  #: What this does not show.


def to_json(result: CapacityResult) -> str:
    """Return the result as one JSON document."""
    return json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False)


def from_json(text: str) -> CapacityResult:
    """Return the result that `to_json` wrote.

    Raises:
        ValueError: Another schema, or a field that is missing or unknown.
    """
    return read(CapacityResult, text, schema=SCHEMA, what="a capacity result")
