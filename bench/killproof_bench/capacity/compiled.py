"""Put what a run has found together into one `CapacityResult`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import numpy as np

from killproof_bench import ledger, measure
from killproof_bench.capacity import answer, closed, models, terms
from killproof_bench.capacity.answer import Job, Told
from killproof_bench.capacity.closed import Cell, Recording
from killproof_bench.capacity.predictor import P99_GOAL, THROUGHPUT_GOAL, Predictor
from killproof_bench.capacity.result import (
    SCHEMA,
    CapacityResult,
    CurvePoint,
    Demand,
    Forecast,
    LockPoint,
    Model,
    Point,
    Size,
    Step,
    Usl,
)
from killproof_bench.cells import BUSY_POLICY
from killproof_bench.recording import Call, Kind
from killproof_bench.result import ClaimCard, Correctness, Figure, Noise
from killproof_bench.seeding import PAYLOAD_BYTES

if TYPE_CHECKING:
    from killproof_bench.capacity.study import Study

#: Of the curves: as far as the largest number of workers that was measured, and twice that.
CURVE_WORKERS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
#: Calls of one operation whose mean is one sample of the bootstrap: checkpoints come in between.
SOLO_GROUP: Final = 30

LIMITS: Final = (
    "Another machine, and this one on another day: the figures follow its processor and its disk.",
    "Real handlers: a job here sleeps. One that computes takes the processor away from the lock.",
    "Long runs: minutes see no aged file, no full disk, no backup beside the work.",
    "Time to claim below a retry or a schedule: all jobs here are due at once.",
    "More processes than were started: what lies beyond twice the measured workers is marked.",
    "Power loss: that an acknowledged job survives one is the harness's business.",
)


def now() -> str:
    """Return the moment, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def demands(found: Mapping[str, Sequence[tuple[float, float]]], *, seed: int) -> dict[str, Demand]:
    """Return what each operation asks for, from its calls' holds and rests in microseconds."""
    # A busy worker acks and claims in one; an idle one claims, and its last ack is alone.
    per_job = {"enqueue": 1.0, "ack_and_claim": 1.0}
    return {
        name: Demand(
            operation=name,
            hold_us=_mean([hold for hold, _ in calls], seed),
            outside_us=_mean([outside for _, outside in calls], seed),
            per_job=per_job.get(name, 0.0),
        )
        for name, calls in found.items()
    }


def _mean(values: Sequence[float], seed: int) -> Figure:
    """Return a mean with its interval over groups of neighbours: slow calls come together."""
    whole = np.array(values)
    groups = [part.mean() for part in np.array_split(whole, max(1, len(whole) // SOLO_GROUP))]
    coin = np.random.default_rng(seed)
    low = high = None
    if len(groups) >= measure.BLOCKS_MIN:
        drawn = coin.choice(groups, size=(measure.RESAMPLES, len(groups))).mean(axis=1)
        low, high = (float(end) for end in np.percentile(drawn, (2.5, 97.5)))
    return Figure(value=float(whole.mean()), low=low, high=high, n=len(whole))


def result(study: "Study", *, started: str, noise: Noise, spent: float) -> CapacityResult:
    """Return the whole result; of an unfit machine or a wrong run it has no figure."""
    correctness = ledger.merged(study.correctness)
    unfit = study.unfit()
    job = study.job()
    points = _points(study) if study.predictor is not None else ()
    ahead = _forecast(study, job)
    told = _told(study, job, ahead, correctness, unfit, points)
    has_figures = not unfit and correctness.verdict == "pass"
    recording = study.recording
    looked = recording.looked if recording is not None else ()
    shown = study.predictor if has_figures else None
    usl = _usl(study) if shown is not None else None
    model = _model(study, shown, job) if shown is not None and job is not None else None
    return CapacityResult(
        schema=SCHEMA,
        command=study.command,
        seed=study.plan.seed,
        started=started,
        interrupted=study.interrupted,
        environment=study.environment,
        durability=study.plan.durability,
        budget_seconds=study.plan.budget_seconds,
        spent_seconds=spent,
        verdict=told.verdict,
        sentence=told.sentence,
        limit=(
            answer.limit(job, study.workers, study.plan.question.job_ms)
            if job is not None and has_figures
            else "unknown"
        ),
        question=study.plan.question,
        demands=tuple(study.demands.values()) if has_figures else (),
        lock_points=_lock_points(study) if shown is not None else (),
        model=model,
        usl=usl,
        points=points if has_figures else (),
        curve=_curve(study, shown, usl) if shown is not None else (),
        steps=_verified(study.steps, correctness) if has_figures else (),
        sustainable_per_s=study.sustainable if has_figures else None,
        sizes=_sizes(study, job) if has_figures else (),
        forecast=ahead if has_figures else None,
        levers=(
            answer.levers(study.demands, job, _handover_us(study))
            if job is not None and has_figures
            else ()
        ),
        predicts_well=well(points),
        slices=len(looked),
        slices_disturbed=sum(each.disturbed for each in looked),
        raw_syncs_per_s=recording.raw_rates if recording is not None else (),
        noise=noise,
        correctness=correctness,
        limits=LIMITS,
    )


def well(points: Sequence[Point]) -> bool | None:
    """Tell whether every point that the model has not seen was predicted within the goals."""
    held = [point for point in points if not point.calibrated]
    if not held:
        return None
    return all(
        point.throughput_error is not None
        and abs(point.throughput_error) <= THROUGHPUT_GOAL
        and (
            point.p99_factor is None  # Too few calls for a p99: nothing to be wrong about.
            or 1 / P99_GOAL <= point.p99_factor <= P99_GOAL
        )
        for point in held
    )


def _told(
    study: "Study",
    job: Job | None,
    ahead: Forecast | None,
    correctness: Correctness,
    unfit: Sequence[str],
    points: Sequence[Point],
) -> Told:
    """Return the verdict; what makes figures void comes before what they say."""
    if correctness.verdict == "violated":
        reasons = "; ".join(correctness.because[:2])
        return Told(verdict="violated", sentence=f"the figures are void: {reasons}.")
    if study.interrupted:
        return Told(
            verdict="inconclusive",
            sentence="interrupted: no answer, and below what had been measured.",
        )
    if unfit:
        return Told(
            verdict="inconclusive",
            sentence=f"no answer: this machine is too noisy now: {'; '.join(unfit)}.",
        )
    if job is None:
        return Told(verdict="inconclusive", sentence="no answer: the open loop has told nothing.")
    question = study.plan.question
    if question.rate_per_s is None:
        limit = answer.limit(job, study.workers, question.job_ms)
        tried = [step for step in study.steps if step.phase != "confirm"]
        return answer.with_slo(
            question, study.sustainable, tried, study.workers, limit, ended=study.searched
        )
    if ahead is None:
        most = answer.most(job, answer.WORKERS_MAX, question.job_ms)
        limit = answer.limit(job, study.workers, question.job_ms)
        return Told(
            verdict="fail",
            sentence=f"no: {question.rate_per_s * question.peak:,.0f} jobs/s do not fit with any "
            f"number of workers, at most {most:,.0f} do: {limit}.",
        )
    if study.confirmed is None and well(points) is False:
        return Told(
            verdict="inconclusive",
            sentence="no answer: it would rest on the model alone, and the model has missed points "
            "that it had not seen: see their errors.",
        )
    limit = answer.limit(job, study.workers, question.job_ms)
    return answer.with_rate(question, ahead, study.confirmed, limit, ran=bool(study.steps))


def _forecast(study: "Study", job: Job | None) -> Forecast | None:
    question = study.plan.question
    if job is None or study.learned is None or question.rate_per_s is None or not study.workers:
        return None
    capacity = answer.capacity(
        study.learned,
        job,
        question.slos,
        workers=study.workers,
        job_ms=question.job_ms,
        seed=study.plan.seed,
    )
    return answer.forecast(
        question,
        job,
        workers=study.workers,
        capacity_per_s=capacity,
        peak_per_s=question.rate_per_s * question.peak,
    )


def _sizes(study: "Study", job: Job | None) -> tuple[Size, ...]:
    if study.learned is None or job is None:
        return ()
    most = max(cell.workers for cell in study.plan.held_out)
    return answer.sizes(study.learned, job, measured_workers=most, seed=study.plan.seed)


def _verified(steps: Sequence[Step], correctness: Correctness) -> tuple[Step, ...]:
    """Return the steps with the verdict of their files: it is known when those have ended."""
    return tuple(
        replace(step, correctness=replace(step.correctness, verdict=correctness.verdict))
        for step in steps
    )


def _points(study: "Study") -> tuple[Point, ...]:
    recording, plan = study.recording, study.plan
    assert recording is not None
    assert study.predictor is not None
    cells = sorted((*plan.calibrated, *plan.held_out), key=lambda cell: (cell.job_ms, cell.workers))
    return tuple(
        _point(study, recording, study.predictor, cell) for cell in cells if recording.slices(cell)
    )


def _point(study: "Study", recording: Recording, predicting: Predictor, cell: Cell) -> Point:
    slices = recording.slices(cell)
    latency = np.concatenate([rows[:, Call.END] - rows[:, Call.BEGIN] for rows in slices])
    blocks = np.concatenate([np.full(len(rows), place) for place, rows in enumerate(slices)])
    seed = study.plan.seed
    rate = measure.rate_figure(
        recording.counts(cell), block_seconds=closed.SLICE_SECONDS, seed=seed
    )
    p50, p99 = (measure.quantile_figure(latency, blocks, q, seed=seed) for q in (500, 990))
    predicted_rate = predicting.throughput(cell.workers, cell.job_ms)
    predicted_p99 = predicting.p99_ms(cell.workers, cell.job_ms)
    checkpoints = sum(int(np.count_nonzero(rows[:, Call.CHECKPOINT])) for rows in slices)
    return Point(
        workers=cell.workers,
        job_ms=cell.job_ms,
        calibrated=cell in study.plan.calibrated,
        jobs_per_s=rate,
        p50_ms=p50,
        p99_ms=p99,
        predicted_jobs_per_s=predicted_rate,
        predicted_p99_ms=predicted_p99,
        throughput_error=predicted_rate / rate.value - 1 if rate.value else None,
        p99_factor=predicted_p99 / p99.value if p99.value else None,
        correctness=recording.correctness,
        card=_card(study, recording, cell, rate, checkpoints),
    )


def _card(
    study: "Study", recording: Recording, cell: Cell, rate: Figure, checkpoints: int
) -> ClaimCard:
    facts, environment = recording.facts, study.environment
    counts = recording.counts(cell).tolist()
    return ClaimCard(
        operation="ack-and-claim: one transaction acks a job and claims the next",
        unit="jobs/s; milliseconds per call",
        load_model=f"closed loop, {cell.job_ms:g} ms of work (sleep) between two calls",
        arrivals="none: all jobs are there before",
        workers=f"{cell.workers} x 1 process with one connection",
        batch=1,
        payload_bytes=PAYLOAD_BYTES,
        rows_live=recording.jobs_seeded,
        rows_dead=0,
        journal_mode=facts["journal_mode"],
        synchronous=facts["synchronous"],
        autocheckpoint=int(facts["autocheckpoint"]),
        busy_policy=BUSY_POLICY["killproof"],
        durability=study.plan.durability,
        filesystem=environment["filesystem"],
        cpu=environment["cpu"],
        python=environment["python"],
        sqlite=facts["sqlite"],
        seconds=len(counts) * closed.SLICE_SECONDS,
        n=rate.n,
        interval=(
            f"95%, bootstrap over {len(counts)} slices of {closed.SLICE_SECONDS:g} s"
            if len(counts) >= measure.BLOCKS_MIN
            else f"refused: {len(counts)} slices are too few"
        ),
        checkpoints=checkpoints,
        late_or_skipped="not applicable: closed loop",
        steady=measure.is_steady(counts),
        correctness=recording.correctness.verdict,
    )


def _lock_points(study: "Study") -> tuple[LockPoint, ...]:
    recording = study.recording
    assert recording is not None
    found = []
    for cell in sorted(
        (*study.plan.calibrated, *study.plan.held_out), key=lambda cell: cell.workers
    ):
        observed = terms.observe(recording.slices(cell), Kind.ACK_AND_CLAIM)
        if cell.job_ms == 0 and observed is not None:
            found.append(terms.lock_point(cell.workers, observed, recording.cpu_us(cell)))
    return tuple(found)


def _model(study: "Study", predicting: Predictor, job: Job) -> Model:
    most = max(study.plan.calibrate)
    job_ms = study.plan.question.job_ms
    at_work = predicting.network(most, study.plan.work_ms)
    asked = predicting.network(most, job_ms)
    cpu = predicting.calibration(most, study.plan.work_ms).cpu(most, study.plan.work_ms)
    return Model(
        kind=predicting.kind,
        because=study.because,
        lock_us=at_work.lock * 1e6,
        processor_us=cpu,
        cores=study.cores,
        delay_us=(at_work.delay - study.plan.work_ms / 1e3) * 1e6,
        ceiling_per_s=1 / at_work.lock,
        knee_workers=models.knee(asked.lock, asked.delay),
        job_lock_us=job.lock * 1e6,
        job_ceiling_per_s=1 / job.lock,
        processors_per_s=job.cores / job.processor,
        calibrated_workers=study.plan.calibrate,
    )


def _handover_us(study: "Study") -> float:
    assert study.learned is not None
    return float(study.learned.ack_and_claim.handover.mean())


def _usl(study: "Study") -> Usl:
    recording, plan = study.recording, study.plan
    assert recording is not None
    cells = sorted(
        (cell for cell in (*plan.calibrated, *plan.held_out) if not cell.job_ms),
        key=lambda cell: cell.workers,
    )
    found = [(cell, recording.counts(cell)) for cell in cells]
    known = [(cell, count) for cell, count in found if len(count)]
    # As many blocks as the cell with the fewest undisturbed slices has.
    least = min(len(count) for _, count in known)
    rates = np.column_stack([count[:least] for _, count in known]) / closed.SLICE_SECONDS
    return models.fit_usl([cell.workers for cell, _ in known], rates, seed=plan.seed)


def _curve(study: "Study", predicting: Predictor, usl: Usl | None) -> tuple[CurvePoint, ...]:
    found = []
    for job_ms in (0.0, study.plan.work_ms):
        for workers in CURVE_WORKERS:
            network = predicting.network(workers, job_ms)
            found.append(
                CurvePoint(
                    workers=workers,
                    job_ms=job_ms,
                    jobs_per_s=predicting.throughput(workers, job_ms),
                    bound_per_s=models.bound(network.lock, network.delay, workers),
                    usl_per_s=(
                        models.usl_rate(usl, workers) if usl is not None and not job_ms else None
                    ),
                    p99_ms=predicting.p99_ms(workers, job_ms),
                )
            )
    return tuple(found)
