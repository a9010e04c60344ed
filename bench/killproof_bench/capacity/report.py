"""A recorded capacity result as prose, tables and a picture: pure functions of `CapacityResult`."""

from collections.abc import Iterable
from typing import Final

from killproof_bench.ascii_chart import Curve, curves
from killproof_bench.capacity.predictor import P99_GOAL, THROUGHPUT_GOAL
from killproof_bench.capacity.question import slo_text
from killproof_bench.capacity.result import CapacityResult, Point, Size
from killproof_bench.report import (
    Table,
    card_fields,
    figure,
    markdown_table,
    number,
    plain_table,
)

PASSED: Final = {True: "yes", False: "no", None: "cannot tell"}
TITLE: Final = "Capacity: what this machine carries, and what is in the way of more"


def terminal(result: CapacityResult) -> str:
    """Return what the command prints: the sentence first, then table, curve and conditions."""
    parts = [result.sentence]
    if result.sizes:
        parts.append(f"{SIZES}\n{plain_table(*sizes_table(result))}")
    if result.curve:
        parts.append(picture(result))
    if result.points:
        parts.append(f"{errors_sentence(result)}\n{plain_table(*points_table(result))}")
    if result.steps:
        parts.append(plain_table(*steps_table(result)))
    if result.levers:
        parts.append(plain_table(*levers_table(result)))
    if result.demands and not result.points:
        # An interrupted run: what there is.
        parts.append(plain_table(*demands_table(result)))
    if result.points:
        # One card: the others differ in workers and counts, which the table of points has.
        lines = card_fields(result.points[-1].card)
        parts.append("\n".join(f"{name}: {text}" for name, text in lines))
    parts.append(noise_sentence(result))
    return "\n\n".join(parts)


def markdown(result: CapacityResult) -> str:
    """Return the whole Markdown report."""
    environment = result.environment
    parts = [
        f"# {TITLE}",
        f"**{result.sentence}**",
        f"Command: `{result.command}`",
        markdown_table(
            ("", ""),
            [
                ("seed", str(result.seed)),
                ("started", result.started),
                ("took", f"{result.spent_seconds:.0f} s of {result.budget_seconds:g} s"),
                *environment.items(),
                ("durability", result.durability),
                ("asked", asked(result)),
                ("raw syncs/s", ", ".join(number(rate) for rate in result.raw_syncs_per_s)),
                (
                    "closed loop",
                    f"{result.slices} seconds measured, {result.slices_disturbed} left out "
                    "because others used the processor",
                ),
                ("noise", noise_sentence(result)),
                (
                    "every job done once",
                    f"{result.correctness.verdict}, {result.correctness.jobs:,} jobs",
                ),
            ],
        ),
    ]
    parts += _answer_parts(result) if result.model is not None else []
    if result.points:
        parts += _prediction_parts(result)
    if result.steps:
        parts += [
            "## Jobs offered at random (open loop)",
            markdown_table(*steps_table(result)),
            "Latencies in ms with their 95% interval. Time to claim counts from the moment at "
            "which a job was meant to be enqueued, also if its producer was late. A load passes "
            "if the upper end of each interval is under its limit and the backlog does not grow. "
            "Predicted: by playing the load with the terms of the highest one that had passed "
            "before.",
        ]
    if result.demands:
        parts += [
            "## What each operation asks of the lock",
            markdown_table(*demands_table(result)),
            "One process alone; microseconds per job, with checkpoints; of batches of 10 a tenth.",
        ]
    parts += ["## What this does not show", "\n".join(f"- {line}" for line in result.limits)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _answer_parts(result: CapacityResult) -> list[str]:
    model = result.model
    assert model is not None
    parts = [
        "## What limits it",
        f"{result.limit[0].upper()}{result.limit[1:]}.\n"
        f"A job needs the lock for {model.job_lock_us:,.0f} us: {number(model.job_ceiling_per_s)} "
        f"jobs/s at most; the processors reach {number(model.processors_per_s)} jobs/s.\n"
        f"In a closed loop a call holds it for {model.lock_us:,.0f} us, hand-over included: "
        f"{number(model.ceiling_per_s)} calls/s at most. "
        f"From {model.knee_workers:.1f} workers on, with jobs of {result.question.job_ms:g} ms, "
        "more of them mostly wait (the knee).",
        f"```text\n{picture(result)}\n```",
        "## Sizing",
        markdown_table(*sizes_table(result)),
        f"{SIZES} `*`: extrapolated, more than twice the workers that were measured.",
        "## When it is outgrown",
        outgrown(result),
        "## Levers",
        markdown_table(*levers_table(result)),
        "Gain: the lock's ceiling afterwards, over its ceiling now (where the processor ends it "
        "first, less). From the holds that each operation had alone and the hand-over under load; "
        "an estimate is none that was measured.",
        "## Where the time of a call goes (closed loop, no work)",
        markdown_table(*lock_table(result)),
        "Microseconds per job: lock held; lock free though somebody waits (hand-over); Python and "
        "sync outside the lock; waiting for it; processor time of all workers.",
    ]
    return parts


def _prediction_parts(result: CapacityResult) -> list[str]:
    model, usl = result.model, result.usl
    parts = [
        "## How well the model predicts",
        errors_sentence(result),
        markdown_table(*points_table(result)),
    ]
    if model is not None:
        parts.append(
            f"Model: {model.kind} ({model.because}). Throughput by exact mean value analysis; p99 "
            "by playing the line with the measured times and the measured order of service "
            "(`killproof_bench.capacity.simulation`)."
        )
    if usl is not None:
        peak = "no peak" if usl.peak_workers is None else f"peak at {usl.peak_workers:.1f} workers"
        parts.append(
            f"Universal Scalability Law, as a picture only: alpha {figure(usl.alpha)}, "
            f"beta {figure(usl.beta)}, {peak}."
            + "".join(f" Warning: {warning}." for warning in usl.warnings)
        )
    last = result.points[-1]
    parts += [
        "## Claim card",
        markdown_table(("condition", f"{last.workers} workers"), card_fields(last.card)),
        "The other points differ in their workers, their work, their number of slices and their n.",
    ]
    return parts


def asked(result: CapacityResult) -> str:
    """Return the question in words."""
    question = result.question
    parts = [", ".join(slo_text(each) for each in question.slos)]
    if question.rate_per_s is not None:
        parts.append(f"{question.rate_per_s:g} jobs/s, {question.peak:g} times that at the peak")
    parts.append(f"jobs of {question.job_ms:g} ms")
    if question.workers is not None:
        parts.append(f"{question.workers} workers")
    if question.growth:
        parts.append(f"growing {question.growth:.1%} a month")
    return "; ".join(parts)


SIZES: Final = (
    "Jobs/s to plan for (70% of the most), with the time to claim (p99) then, by workers and by "
    "the length of a job:"
)


def sizes_table(result: CapacityResult) -> Table:
    """Return the sizing table: a row for each number of workers, a column for each job length."""
    lengths = sorted({size.job_ms for size in result.sizes})
    by_place = {(size.workers, size.job_ms): size for size in result.sizes}
    head = ("workers", *(f"{length:g} ms" for length in lengths))
    return head, [
        (str(workers), *(_size(by_place[workers, length]) for length in lengths))
        for workers in sorted({size.workers for size in result.sizes})
    ]


def _size(size: Size) -> str:
    mark = "*" if size.extrapolated else ""
    return (
        f"{number(size.plan_per_s)}/s{mark} (lock {size.utilisation:.0%}, "
        f"p99 {number(size.p99_ms)} ms)"
    )


def points_table(result: CapacityResult) -> Table:
    """Return measured beside predicted."""
    head = (
        "workers",
        "job ms",
        "seen by the model",
        "jobs/s",
        "predicted",
        "error",
        "p99 ms",
        "predicted",
        "factor",
    )
    return head, [_point(point) for point in result.points]


def _point(point: Point) -> tuple[str, ...]:
    error, factor = point.throughput_error, point.p99_factor
    return (
        str(point.workers),
        f"{point.job_ms:g}",
        "yes" if point.calibrated else "no",
        figure(point.jobs_per_s),
        number(point.predicted_jobs_per_s),
        "n/a" if error is None else f"{error:+.0%}",
        figure(point.p99_ms),
        number(point.predicted_p99_ms),
        "n/a" if factor is None else f"{factor:.2f}",
    )


def errors_sentence(result: CapacityResult) -> str:
    """Say how far the held-out points were missed, and whether that is within the goals."""
    held = [point for point in result.points if not point.calibrated]
    errors = [p.throughput_error for p in held if p.throughput_error is not None]
    factors = [p.p99_factor for p in held if p.p99_factor]
    if not errors or not factors:
        return "The model was tried on no point that it had not seen."
    calibrated = _numbers(p.workers for p in result.points if p.calibrated)
    worst = max(factors, key=lambda factor: max(factor, 1 / factor))
    return (
        f"The model was calibrated with {calibrated} workers and tried with "
        f"{_numbers(p.workers for p in held)}, which it has not seen: throughput was missed by at "
        "most "
        f"{max(abs(error) for error in errors):.0%} (goal {THROUGHPUT_GOAL:.0%}) and p99 by a "
        f"factor of at most {max(worst, 1 / worst):.2f} (goal {P99_GOAL:g}): "
        f"{'within' if result.predicts_well else 'NOT within'} the goals."
    )


def _numbers(workers: Iterable[int]) -> str:
    found = [str(count) for count in sorted(set(workers))]
    return f"{', '.join(found[:-1])} and {found[-1]}" if len(found) > 1 else found[0]


def steps_table(result: CapacityResult) -> Table:
    """Return every offered load in the order of the run."""
    head = (
        "phase",
        "offered/s",
        "claimed/s",
        "claim p99 ms",
        "predicted",
        "time to claim p99 ms",
        "predicted",
        "enqueue p99 ms",
        "passed",
        "because",
    )
    return head, [
        (
            step.phase,
            number(step.rate_per_s),
            number(step.served_per_s),
            figure(step.claim_p99_ms),
            number(step.predicted_claim_p99_ms),
            figure(step.time_to_claim_p99_ms),
            number(step.predicted_time_to_claim_p99_ms),
            figure(step.enqueue_p99_ms),
            PASSED[step.passed],
            step.because,
        )
        for step in result.steps
    ]


def lock_table(result: CapacityResult) -> Table:
    """Return where the time of a call goes, by workers."""
    head = ("workers", "held", "hand-over", "outside", "waiting", "processor")
    return head, [
        (
            str(point.workers),
            f"{point.hold_us:,.0f}",
            f"{point.handover_us:,.0f}",
            f"{point.outside_us:,.0f}",
            f"{point.wait_us:,.0f}",
            f"{point.cpu_us:,.0f}",
        )
        for point in result.lock_points
    ]


def demands_table(result: CapacityResult) -> Table:
    """Return what each operation asks for."""
    head = ("operation", "lock held, us", "outside, us", "times per job")
    return head, [
        (
            demand.operation,
            figure(demand.hold_us),
            figure(demand.outside_us),
            f"{demand.per_job:g}",
        )
        for demand in result.demands
    ]


def levers_table(result: CapacityResult) -> Table:
    """Return what raises the ceiling, the most first."""
    head = ("lever", "gain", "measured", "because")
    return head, [
        (lever.name, f"{lever.gain:.2f}", "yes" if lever.measured else "estimate", lever.because)
        for lever in result.levers
    ]


def outgrown(result: CapacityResult) -> str:
    """Say when this machine, and one SQLite file, is no longer the right tool."""
    model, ahead = result.model, result.forecast
    assert model is not None
    ceiling = min(model.job_ceiling_per_s, model.processors_per_s)
    text = (
        f"At a peak of about {number(0.6 * ceiling)} jobs/s: 60% of the most that one file on this "
        "machine does, for above that waits grow steeply and a bad day has no room. "
        "Then pull the first levers below; after the last of them, use a server."
    )
    if ahead is None:
        return text
    months = (
        "" if ahead.months is None else f" At the growth asked about, in {ahead.months:.0f} months."
    )
    return (
        f"{text}\nThe peak asked about, {number(ahead.peak_per_s)} jobs/s, keeps the lock "
        f"{ahead.lock_utilisation:.0%} busy.{months}"
    )


def picture(result: CapacityResult) -> str:
    """Draw throughput over workers: measured, predicted, and the bound, for jobs with work."""
    job_ms = max(point.job_ms for point in result.curve)
    curve = [point for point in result.curve if point.job_ms == job_ms]
    measured = [
        (float(point.workers), point.jobs_per_s.value)
        for point in result.points
        if point.job_ms == job_ms and point.jobs_per_s.value is not None
    ]
    lines = [
        Curve(name="bound", mark="-", points=[(p.workers, p.bound_per_s) for p in curve]),
        Curve(name="predicted", mark="o", points=[(p.workers, p.jobs_per_s) for p in curve]),
        Curve(name="measured", mark="#", points=measured),
    ]
    return curves(
        lines, x_name="workers", y_name=f"jobs/s, closed loop, jobs of {job_ms:g} ms", log_x=True
    )


def noise_sentence(result: CapacityResult) -> str:
    """Return the noise badge."""
    noise = result.noise
    badge = f"NOISY: {'; '.join(noise.because)}" if noise.noisy else "quiet"
    return (
        f"{badge} (steal {noise.steal:.1%}, foreign CPU {noise.foreign_cpu:.1%}, load "
        f"{noise.load_before:.2f} before and {noise.load_after:.2f} after)"
    )
