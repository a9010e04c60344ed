"""The curves of a capacity page: over the number of workers, and over the offered load."""

from collections.abc import Sequence

from killproof_bench import report
from killproof_bench.capacity.result import CapacityResult, CurvePoint, Point, Slo, Step
from killproof_bench.page import frame
from killproof_bench.page.content import (
    Axis,
    Chart,
    Curves,
    Dash,
    Ink,
    Level,
    Light,
    Marker,
    Part,
    Prose,
    Section,
    Series,
    Table,
    Zone,
)

SUBJECTS = {"claim": "claim call", "time_to_claim": "time from enqueue to claim"}
#: One for each length of jobs, in ascending order.
_HELD: dict[bool | None, str] = {True: "held", False: "not held", None: "cannot tell"}
JOB_INKS: tuple[Ink, ...] = ("blue", "green", "purple", "orange", "sky")


def slo_words(slo: Slo) -> str:
    """Return a limit of time in words; 990 per mille is p99, 999 is p99.9."""
    limit = report.number(slo.limit_ms)
    return f"{SUBJECTS[slo.subject]} p{slo.permille / 10:g} under {limit} ms"


def over_workers(result: CapacityResult) -> Section:
    """Return throughput and latency over the number of workers, measured and predicted."""
    counts = {point.workers for point in result.points} | {c.workers for c in result.curve}
    ticks = sorted(counts) if len(counts) <= 8 else _doubling(max(counts))
    levels = []
    if result.model is not None:
        model = result.model
        ceiling = f"ceiling of the lock: {report.number(model.ceiling_per_s)} jobs/s"
        levels.append(Level(at=model.ceiling_per_s, name=ceiling, ink="vermillion"))
        if 1 <= model.knee_workers <= max(counts):
            knee = f"knee {report.number(model.knee_workers)}"
            levels.append(Level(at=model.knee_workers, name=knee, axis="x", dash="dotted"))
    caption = "Points: measured, closed loop, with 95% intervals; diamonds are points that the "
    caption += "model had not seen. Line: the model (exact mean value analysis). Dotted: the "
    caption += "Universal Scalability Law, fitted to the same points, as a picture only."
    rate = Chart(
        id="workers-rate",
        title="Jobs per second over the number of workers",
        picture=Curves(
            x=frame.workers_axis(ticks),
            y=Axis(name="jobs/s"),
            series=[
                *_beside(result),
                *_predicted(result, "jobs_per_s", "jobs/s"),
                *_points(result, "jobs_per_s", "jobs/s"),
            ],
            levels=levels,
            height=380,
        ),
        caption=caption,
    )
    time = Chart(
        id="workers-p99",
        title="p99 of the claim call over the number of workers",
        picture=Curves(
            x=frame.workers_axis(ticks),
            y=Axis(name="p99", log=True, times=True),
            series=[*_predicted(result, "p99_ms", "ms"), *_points(result, "p99_ms", "ms")],
        ),
        caption="Log scale. Closed loop: each worker calls again as soon as its job is done.",
        numbers=_curve_table(result.curve) if result.curve else None,
    )
    parts: list[Part] = [rate, _points_table(result.points), time]
    if result.usl is not None:
        parts.append(_usl(result))
    return Section(id="workers", title="How it grows with workers", parts=parts)


def _doubling(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _inks(result: CapacityResult) -> dict[float, Ink]:
    """Return the ink of each length of jobs, the same in all pictures."""
    lengths = {point.job_ms for point in result.points} | {c.job_ms for c in result.curve}
    return {job_ms: JOB_INKS[place % len(JOB_INKS)] for place, job_ms in enumerate(sorted(lengths))}


def _points(result: CapacityResult, field: str, unit: str) -> list[Series]:
    """Return the measured points, one series for each job time and for seen and unseen ones."""
    series = []
    shapes: tuple[tuple[bool, Marker, str], ...] = (
        (True, "circle", "seen by the model"),
        (False, "diamond", "not seen by the model"),
    )
    for job_ms, ink in _inks(result).items():
        for seen, marker, word in shapes:
            of = [p for p in result.points if p.job_ms == job_ms and p.calibrated == seen]
            of.sort(key=lambda point: point.workers)
            series.append(
                frame.measured(
                    f"measured, {job_ms:g} ms jobs, {word}",
                    [(float(point.workers), getattr(point, field)) for point in of],
                    ink=ink,
                    unit=unit,
                    dash="none",
                    marker=marker,
                    label="",
                )
            )
    return [one for one in series if one.x]


def _predicted(result: CapacityResult, field: str, unit: str) -> list[Series]:
    """Return the model's curve for each length of jobs, named at its end."""
    return [
        _line(
            [point for point in result.curve if point.job_ms == job_ms],
            field,
            name=f"model, {job_ms:g} ms jobs",
            unit=unit,
            ink=ink,
            dash="solid",
        )
        for job_ms, ink in _inks(result).items()
        if any(point.job_ms == job_ms for point in result.curve)
    ]


def _beside(result: CapacityResult) -> list[Series]:
    """Return the bound and the fitted law, for the shortest jobs."""
    least = min((point.job_ms for point in result.curve), default=0.0)
    curve = [point for point in result.curve if point.job_ms == least]
    lines = []
    if curve:
        lines.append(
            _line(curve, "bound_per_s", name="bound", unit="jobs/s", ink="grey", dash="dashed")
        )
    if any(point.usl_per_s is not None for point in curve):
        lines.append(
            _line(curve, "usl_per_s", name="USL", unit="jobs/s", ink="vermillion", dash="dotted")
        )
    return lines


def _line(
    curve: Sequence[CurvePoint], field: str, *, name: str, unit: str, ink: Ink, dash: Dash
) -> Series:
    values = [getattr(point, field) for point in curve]
    return Series(
        name=name,
        ink=ink,
        x=[point.workers for point in curve],
        y=values,
        tips=[
            f"{name}, {point.workers} workers: {report.number(value)} {unit}"
            for point, value in zip(curve, values, strict=True)
        ],
        dash=dash,
        marker="none",
        label=name,
    )


def _curve_table(curve: Sequence[CurvePoint]) -> Table:
    rows = [
        (
            str(point.workers),
            f"{point.job_ms:g}",
            report.number(point.jobs_per_s),
            report.number(point.bound_per_s),
            report.number(point.usl_per_s),
            report.number(point.p99_ms),
        )
        for point in curve
    ]
    head = ("workers", "job, ms", "model, jobs/s", "bound, jobs/s", "USL, jobs/s", "model, p99 ms")
    return Table(label="The predicted curve", head=head, rows=rows)


def _points_table(points: Sequence[Point]) -> Table:
    head = ("workers", "job, ms", "jobs/s", "p50 ms", "p99 ms", "n", "verdict")
    rows = [
        (
            str(point.workers),
            f"{point.job_ms:g}",
            report.figure(point.jobs_per_s),
            report.figure(point.p50_ms),
            report.figure(point.p99_ms),
            f"{point.jobs_per_s.n:,}",
            point.correctness.verdict,
        )
        for point in points
    ]
    return Table(label="Measured closed loops", head=head, rows=rows, words=(0, 6))


def _usl(result: CapacityResult) -> Prose:
    assert result.usl is not None
    usl = result.usl
    peak = "no peak" if usl.peak_workers is None else f"peak at {usl.peak_workers:.1f} workers"
    warnings = "".join(f" {warning}" for warning in usl.warnings)
    return Prose(
        text=f"Universal Scalability Law: {report.number(usl.gamma_per_s)} jobs/s of one worker, "
        f"alpha {report.figure(usl.alpha)}, beta {report.figure(usl.beta)}, {peak}.{warnings}",
        small=True,
    )


def over_load(result: CapacityResult) -> Section:
    """Return latency over the offered load, with the limit and what lies beyond it."""
    steps = sorted(result.steps, key=lambda step: step.rate_per_s)
    failed = [step.rate_per_s for step in steps if step.passed is False]
    held = [step.rate_per_s for step in steps if step.passed]
    edge = min((rate for rate in failed if rate > max(held, default=0.0)), default=None)
    zones = [] if edge is None else [Zone(name="not sustained", low=edge)]
    levels = [
        Level(at=slo.limit_ms, name=slo_words(slo), ink="vermillion")
        for slo in result.question.slos
    ]
    if result.sustainable_per_s is not None:
        word = f"sustained: {report.number(result.sustainable_per_s)}"
        levels.append(Level(at=result.sustainable_per_s, name=word, axis="x", ink="green"))
    chart = Chart(
        id="offered",
        title="Time of a claim over the offered load",
        picture=Curves(
            x=Axis(name="offered jobs/s, Poisson arrivals"),
            y=Axis(name="time", log=True, times=True),
            series=_step_series(steps),
            levels=levels,
            zones=zones,
            height=400,
        ),
        caption="Log scale; open loop, Poisson arrivals. Time to claim counts from when "
        "the schedule wanted the job enqueued. Bars: 95%, bootstrap over blocks of 1 s. A load is "
        "sustained if the upper end of its interval is under the limit and the backlog does not "
        "grow.",
    )
    head = (
        "offered, jobs/s",
        "served",
        "workers",
        "claim p50, ms",
        "claim p99",
        "time to claim p99",
        "enqueue p99",
        "backlog, jobs/s",
        "phase",
        "why",
        "held",
    )
    rows = [
        (
            report.number(step.rate_per_s),
            report.number(step.served_per_s),
            str(step.workers),
            report.figure(step.claim_p50_ms),
            report.figure(step.claim_p99_ms),
            report.figure(step.time_to_claim_p99_ms),
            report.figure_value(step.enqueue_p99_ms),
            report.figure_value(step.backlog_slope_per_s),
            step.phase,
            step.because,
            _HELD[step.passed],
        )
        for step in steps
    ]
    lights: dict[str, Light] = {"held": "good", "not held": "bad", "cannot tell": "doubt"}
    table = Table(label="Every load", head=head, rows=rows, words=(8, 9), lights=lights)
    return Section(id="load", title="How it holds under load", parts=[chart, table])


def _step_series(steps: Sequence[Step]) -> list[Series]:
    rates = [step.rate_per_s for step in steps]
    at = "{:,.0f} jobs/s offered"

    def line(name: str, field: str, ink: Ink, dash: Dash, marker: Marker) -> Series:
        figures = [getattr(step, field) for step in steps]
        points = list(zip(rates, figures, strict=True))
        return frame.measured(name, points, ink=ink, unit="ms", at=at, dash=dash, marker=marker)

    return [
        line("time to claim p99", "time_to_claim_p99_ms", "purple", "dotdash", "triangle"),
        line("claim p99", "claim_p99_ms", "blue", "solid", "diamond"),
        line("enqueue p99", "enqueue_p99_ms", "orange", "dashed", "square"),
        line("claim p50", "claim_p50_ms", "green", "dotted", "circle"),
    ]
