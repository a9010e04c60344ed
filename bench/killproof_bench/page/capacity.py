"""The page of `killproof bench capacity`: how much this machine carries, and what limits it."""

from collections.abc import Sequence

from killproof_bench import report
from killproof_bench.capacity.result import (
    CapacityResult,
    Forecast,
    LockPoint,
    Model,
    Point,
    Question,
    Size,
)
from killproof_bench.page import capacity_curves, frame
from killproof_bench.page.content import (
    Axis,
    Badge,
    Bar,
    Bars,
    Chart,
    Facts,
    Ink,
    Level,
    Light,
    Page,
    Part,
    Prose,
    Section,
    Stacks,
    Table,
    Tile,
)

ANSWERS: dict[str, tuple[Light, str]] = {
    "pass": ("good", "yes, it fits"),
    "fail": ("bad", "no, it does not fit"),
    "inconclusive": ("doubt", "no answer: the measurement does not carry one"),
    "violated": ("bad", "void: a run broke a promise"),
}


def page(result: CapacityResult) -> Page:
    """Return the page of one run."""
    sections = [_answer(result)]
    if result.points or result.curve:
        sections.append(capacity_curves.over_workers(result))
    if result.steps:
        sections.append(capacity_curves.over_load(result))
    if result.lock_points or result.demands:
        sections.append(_lock(result))
    if result.sizes:
        sections.append(_sizes(result.sizes))
    if result.levers:
        sections.append(_levers(result))
    if result.points:
        points = [(_named(point), point.card) for point in result.points]
        sections += [_prediction(result), frame.cards(points)]
    sections += [
        frame.limits(result.limits),
        frame.machine(result.environment, result.noise, _conditions(result)),
        frame.again(result.command),
    ]
    light, word = ANSWERS[result.verdict]
    badges = [Badge(light=light, word=word)]
    if result.interrupted:
        badges.append(Badge(light="doubt", word="interrupted"))
    because = frame.reasons([("a run", result.correctness)])
    badges.append(frame.correctness_badge(result.correctness.verdict, because))
    if result.predicts_well is not None:
        badges.append(_predicts(result.predicts_well))
    badges.append(frame.noise_badge(result.noise))
    return Page(
        title="Capacity of this machine",
        kicker=frame.kicker(
            result.command, f"durability {result.durability}", frame.moment(result.started)
        ),
        sentence=result.sentence,
        badges=badges,
        tiles=_tiles(result),
        sections=sections,
    )


def _predicts(well: bool) -> Badge:
    if well:
        return Badge(light="good", word="the model predicts points it has not seen")
    return Badge(light="doubt", word="the model misses points it has not seen")


def _named(point: Point) -> str:
    return f"{frame.workers(point.workers)}, {point.job_ms:g} ms jobs"


def _conditions(result: CapacityResult) -> list[tuple[str, str]]:
    syncs = ", ".join(report.number(rate) for rate in result.raw_syncs_per_s) or "not measured"
    return [
        ("seed", str(result.seed)),
        ("time spent", f"{result.spent_seconds:.0f} s of {result.budget_seconds:.0f} s"),
        ("the disk's own syncs/s during the run", syncs),
        (
            "left out by rule",
            f"{result.slices_disturbed} of {result.slices} seconds: others used the processor",
        ),
    ]


def _tiles(result: CapacityResult) -> list[Tile]:
    tiles = []
    if result.sustainable_per_s is not None:
        tiles.append(
            Tile(
                name="sustained",
                figure=f"{report.number(result.sustainable_per_s)} jobs/s",
                note="0.95 of the edge that was found, or the next 0.1 less that was confirmed",
            )
        )
    if result.model is not None:
        model = result.model
        tiles += [
            Tile(
                name="ceiling, whole jobs",
                figure=f"{report.number(min(model.job_ceiling_per_s, model.processors_per_s))}/s",
                note=f"limited by the {_scarcest(model)}",
            ),
            Tile(
                name="knee",
                figure=f"{report.number(model.knee_workers)} workers",
                note=f"with jobs of {result.question.job_ms:g} ms",
            ),
            Tile(
                name="lock demand of a job",
                figure=f"{report.number(model.job_lock_us)} µs",
                note="enqueue, claim, ack, heartbeats",
            ),
        ]
    if result.forecast is not None:
        forecast = result.forecast
        tiles += [
            Tile(
                name="headroom at the peak",
                figure="none" if forecast.headroom is None else f"{forecast.headroom:.0%}",
                note=f"peak {report.number(forecast.peak_per_s)} jobs/s",
            ),
            Tile(name="outgrown", figure=_months(forecast), note="at the growth asked about"),
        ]
    return tiles


def _scarcest(model: Model) -> str:
    return "lock" if model.job_ceiling_per_s <= model.processors_per_s else "processors"


def _months(forecast: Forecast) -> str:
    if forecast.months is None:
        return "not by growth"
    return f"in {forecast.months:.0f} months" if forecast.months > 0 else "already"


def _answer(result: CapacityResult) -> Section:
    question: Question = result.question
    rate = "how much it may be"
    if question.rate_per_s is not None:
        rate = f"{report.number(question.rate_per_s)} jobs/s, at peak {question.peak:g} times that"
    rows = [
        ("load", rate),
        ("a job works", f"{question.job_ms:g} ms, outside any transaction"),
        ("workers", "as many as it takes" if question.workers is None else str(question.workers)),
        ("limits of time", "; ".join(map(capacity_curves.slo_words, question.slos)) or "none"),
        ("growth", f"{question.growth:.0%} a month"),
        ("what limits it", result.limit),
    ]
    if result.forecast is not None:
        forecast = result.forecast
        rows += [
            ("capacity", f"{report.number(forecast.capacity_per_s)} jobs/s"),
            ("workers to run", str(forecast.workers)),
            ("lock in use at the peak", f"{forecast.lock_utilisation:.0%}"),
            (
                "outgrown",
                f"from a peak of {report.number(forecast.outgrown_per_s)} jobs/s on; "
                f"{_months(forecast)}",
            ),
        ]
    return Section(id="answer", title="Question and answer", parts=[Facts(rows=rows)])


def _prediction(result: CapacityResult) -> Section:
    rows = [
        (
            _named(point),
            "seen" if point.calibrated else "not seen",
            report.number(point.predicted_jobs_per_s),
            report.number(point.jobs_per_s.value),
            "n/a" if point.throughput_error is None else f"{point.throughput_error:+.1%}",
            report.number(point.predicted_p99_ms),
            report.number(point.p99_ms.value),
            "n/a" if point.p99_factor is None else f"{point.p99_factor:.2f}",
        )
        for point in result.points
    ]
    head = (
        "point",
        "by the model",
        "predicted, jobs/s",
        "measured",
        "error",
        "predicted p99, ms",
        "measured",
        "factor",
    )
    parts: list[Part] = [
        Prose(text="Only points that the model has not seen say how well it predicts."),
        Table(label="Predicted and measured", head=head, rows=rows, words=(0, 1)),
    ]
    if result.model is not None:
        parts.append(Prose(text=f"Kind of model: {result.model.kind}. {result.model.because}"))
    return Section(id="prediction", title="How well the model predicts", parts=parts)


PARTS: tuple[tuple[str, Ink], ...] = (
    ("waiting for the lock", "orange"),
    ("lock free although wanted", "vermillion"),
    ("lock held", "blue"),
    ("Python and sync outside it", "sky"),
)


def _lock(result: CapacityResult) -> Section:
    parts: list[Part] = []
    if result.lock_points:
        rows = [(frame.workers(point.workers), _shares(point)) for point in result.lock_points]
        numbers = Table(
            label="Where the time of a job goes",
            head=("workers", *(name for name, _ in PARTS), "CPU of all workers"),
            rows=[
                (str(p.workers), *map(report.number, _shares(p)), report.number(p.cpu_us))
                for p in result.lock_points
            ],
        )
        parts.append(
            Chart(
                id="parts",
                title="Where the time of a job goes",
                picture=Stacks(axis=Axis(name="µs of a job"), parts=PARTS, rows=rows, unit="µs"),
                caption="Means per job, closed loop without work. The lock free although somebody "
                "waits for it is what handing it over costs.",
                numbers=numbers,
            )
        )
    if result.demands:
        parts.append(Prose(text="What one operation asks of the lock, by itself:"))
        head = ("operation", "lock held, µs", "outside it, µs", "times a job", "held per job, µs")
        parts.append(
            Table(
                label="Lock demand",
                head=head,
                rows=[
                    (
                        demand.operation.replace("_", " "),
                        report.figure(demand.hold_us),
                        report.figure(demand.outside_us),
                        f"{demand.per_job:.3g}",
                        report.number((demand.hold_us.value or 0.0) * demand.per_job),
                    )
                    for demand in result.demands
                ],
            )
        )
    return Section(id="lock", title="What limits it", parts=parts)


def _shares(point: LockPoint) -> tuple[float, float, float, float]:
    return point.wait_us, point.handover_us, point.hold_us, point.outside_us


def _sizes(sizes: Sequence[Size]) -> Section:
    """Return workers down, job times across; a cell says what to plan for, and its p99."""
    times = sorted({size.job_ms for size in sizes})
    at = {(size.workers, size.job_ms): size for size in sizes}
    rows = [
        (str(workers), *(_cell(at.get((workers, job_ms))) for job_ms in times))
        for workers in sorted({size.workers for size in sizes})
    ]
    head = ("workers", *(f"jobs of {job_ms:g} ms" for job_ms in times))
    full = [
        (
            str(size.workers),
            f"{size.job_ms:g}",
            report.number(size.jobs_per_s),
            report.number(size.plan_per_s),
            f"{size.utilisation:.0%}",
            report.number(size.p99_ms),
            "extrapolated" if size.extrapolated else "within reach",
        )
        for size in sizes
    ]
    full_head = (
        "workers",
        "job, ms",
        "at most, jobs/s",
        "plan for, jobs/s",
        "lock in use",
        "p99 to claim, ms",
        "how",
    )
    parts: list[Part] = [
        Prose(
            text="Jobs/s to plan for, 70% of what is possible, and p99 from enqueue to claim at "
            "that rate. A star: more than twice the workers that were measured."
        ),
        Table(label="Sizing", head=head, rows=rows),
        Table(label="Sizing, in full", head=full_head, rows=full, words=(0, 6), folded=True),
    ]
    return Section(id="sizing", title="Sizing table", parts=parts)


def _cell(size: Size | None) -> str:
    if size is None:
        return ""
    star = "*" if size.extrapolated else ""
    return f"{report.number(size.plan_per_s)}/s, {report.number(size.p99_ms)} ms{star}"


def _levers(result: CapacityResult) -> Section:
    bars = [
        Bar(
            name=lever.name,
            value=lever.gain,
            text=f"x {lever.gain:.2f}{'' if lever.measured else ', estimated'}",
            tip=f"{lever.name}: {lever.because}",
            ink="blue" if lever.measured else "sky",
        )
        for lever in result.levers
    ]
    rows = [
        (
            lever.name,
            f"{lever.gain:.2f}",
            "measured" if lever.measured else "estimated",
            lever.because,
        )
        for lever in result.levers
    ]
    chart = Chart(
        id="levers",
        title="What would raise the ceiling",
        picture=Bars(
            axis=Axis(name="ceiling after the change, over before"),
            rows=bars,
            levels=[Level(at=1.0, name="", axis="x")],
        ),
        caption="Dark: from terms measured in this run. Light: an estimate from its parts.",
    )
    table = Table(
        label="Levers", head=("change", "gain", "from", "because"), rows=rows, words=(0, 2, 3)
    )
    return Section(id="lever", title="When it is outgrown: levers", parts=[chart, table])
