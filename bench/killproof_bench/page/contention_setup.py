"""What a contention page says of one setup: its figures, its latencies, where the time goes."""

from collections.abc import Sequence

from killproof_bench import report, report_anatomy
from killproof_bench.page import frame
from killproof_bench.page.content import (
    Axis,
    Bullets,
    Chart,
    Curves,
    Dash,
    Ink,
    Level,
    Part,
    Prose,
    Section,
    Series,
    Stacks,
    Table,
)
from killproof_bench.result import (
    ARMS,
    CURVE_MILLIONTHS,
    BenchResult,
    Cell,
    Figure,
    Latency,
)

INKS: dict[str, Ink] = {ARMS[0]: frame.KILLPROOF, ARMS[1]: frame.REFERENCE}
#: The two arms stand a little beside each other, so that neither hides the other's interval.
BESIDE = {ARMS[0]: 0.985, ARMS[1]: 1.015}

#: The parts of a call in the order of `report_anatomy.PARTS`: waiting is warm, work is blue.
PART_INKS: Sequence[Ink] = ("sky", "orange", "vermillion", "blue", "green", "purple", "grey")


def section(result: BenchResult, number: int, name: str, cells: Sequence[Cell]) -> Section:
    """Return everything about one setup.

    Args:
        result: the whole run.
        number: of the setup, for the names of pictures.
        name: of the setup, in words.
        cells: both arms at every number of workers.
    """
    ratios = [ratio for ratio in result.ratios if ratio.setup == cells[0].setup]
    parts: list[Part] = [_throughput(number, cells)]
    if ratios:
        parts.append(Bullets(items=[report.ratio_line(ratio) for ratio in ratios]))
    parts += [
        frame.table(f"Figures: {name}", report.figures(cells), words=(0, 1, 9)),
        Prose(text=FOOTNOTE, small=True),
        _latency(number, cells),
    ]
    if any(latency.curve_ms for cell in cells for latency in cell.latencies):
        parts.append(_percentiles(number, cells))
    latencies = report_anatomy.latency_table(cells)
    parts.append(_table(f"Each latency by itself: {name}", latencies, (0, 1, 2, 3)))
    if any(cell.schedule is not None for cell in cells):
        schedule = report_anatomy.schedule_table(cells)
        parts.append(frame.table(f"Schedule: {name}", schedule, words=(0, 1)))
    if report_anatomy.timed(cells):
        parts.append(_anatomy(number, cells))
        lock = report_anatomy.lock_table(cells)
        parts.append(_table(f"What the lock and the processor cost: {name}", lock, (0, 1)))
    if any(cell.workers > 1 for cell in cells):
        parts.append(_fairness(number, cells))
    parts.append(_table(f"Locks and WAL, from outside: {name}", report.locks_table(cells), (0, 1)))
    parts += frame.card_parts(ARMS, report.card_rows(cells))
    return Section(id=f"setup-{number}", title=f"Measured: {name}", parts=parts)


FOOTNOTE = (
    "In brackets: 95% interval. A quantile is refused (n/a) with fewer than ten samples beyond it. "
    "Fewest/most is the share that the worst-served worker got of what the best-served one got: "
    "the median over the rounds, and the worst round."
)


def _table(label: str, told: report.Table, words: Sequence[int]) -> Table:
    head, rows = told
    return Table(label=label, head=head, rows=rows, words=words, folded=True)


def _of(cells: Sequence[Cell], arm: str) -> list[Cell]:
    return sorted((c for c in cells if c.arm == arm), key=lambda cell: cell.workers)


def _points(cells: Sequence[Cell], arm: str, field: str) -> list[tuple[float, Figure]]:
    return [(cell.workers * BESIDE[arm], getattr(cell, field)) for cell in _of(cells, arm)]


def _conditions(cells: Sequence[Cell]) -> str:
    """Return what a caption says of how the figures were made."""
    samples = [cell.jobs_per_s.n for cell in cells]
    return (
        f"n = {min(samples):,} to {max(samples):,} calls a point. Bars: {cells[0].card.interval}."
    )


def _throughput(number: int, cells: Sequence[Cell]) -> Chart:
    series = [
        frame.measured(
            arm,
            _points(cells, arm, "jobs_per_s"),
            ink=INKS[arm],
            unit="jobs/s",
            marker="circle" if arm == ARMS[0] else "square",
        )
        for arm in ARMS
    ]
    levels = []
    if cells[0].setup.loop == "open":
        rate = cells[0].setup.rate_per_s
        levels.append(Level(at=rate, name=f"offered: {report.number(rate)} jobs/s"))
    return Chart(
        id=f"throughput-{number}",
        title="Jobs per second over the number of workers",
        picture=Curves(
            x=frame.workers_axis(cell.workers for cell in cells),
            y=Axis(name="jobs/s"),
            series=[one for one in series if one.x],
            levels=levels,
        ),
        caption=f"{_conditions(cells)} The figures stand in the table below.",
    )


def _latency(number: int, cells: Sequence[Cell]) -> Chart:
    series = [
        frame.measured(
            f"{arm} {quantile}",
            _points(cells, arm, field),
            ink=INKS[arm],
            unit="ms",
            dash=dash,
            marker=marker,
        )
        for arm in ARMS
        for (quantile, dash, marker), field in zip(
            frame.QUANTILES, ("p50_ms", "p99_ms", "p999_ms"), strict=True
        )
    ]
    return Chart(
        id=f"latency-{number}",
        title="Time of one claim call over the number of workers",
        picture=Curves(
            x=frame.workers_axis(cell.workers for cell in cells),
            y=Axis(name="time of a call", log=True, times=True),
            series=[one for one in series if one.x],
            height=380,
        ),
        caption=f"Log scale. {_conditions(cells)} A call that was still waiting when the measured "
        "time ended counts with the time it took. The figures stand in the table above.",
    )


#: Ticks of the axis of percentiles: what is left beyond each is a tenth of the one before.
NINES = {1.0: "0", 10.0: "90%", 100.0: "99%", 1e3: "99.9%", 1e4: "99.99%", 1e5: "99.999%"}


def _percentiles(number: int, cells: Sequence[Cell]) -> Chart:
    """Return every kind of latency at the most workers; each basis is a line of its own."""
    most = max(cell.workers for cell in cells)
    series = [
        _curve(cell.arm, latency, place)
        for cell in cells
        if cell.workers == most
        for place, latency in enumerate(cell.latencies)
        if latency.curve_ms
    ]
    furthest = max(1.0, *(x for one in series for x in one.x))
    ticks = {at: word for at, word in NINES.items() if at <= furthest * 1.5}
    return Chart(
        id=f"percentiles-{number}",
        title=f"Every percentile with {frame.workers(most)}",
        picture=Curves(
            x=Axis(name="percentile; each nine is as wide as the next", log=True, ticks=ticks),
            y=Axis(name="time", log=True, times=True),
            series=series,
            height=380,
        ),
        caption="Log scales. A curve ends where fewer than ten samples lie beyond it. Where a "
        "schedule was kept, a latency is shown from the call's begin and from its intended time: "
        "what lies between them, a closed loop never shows. Kinds of latency are never mixed.",
    )


def _curve(arm: str, latency: Latency, place: int) -> Series:
    dashes: Sequence[Dash] = ("solid", "dashed", "dotted", "dotdash")
    parts = CURVE_MILLIONTHS[: len(latency.curve_ms)]
    basis = "" if latency.basis == "operation" else ", intended"
    name = f"{arm}: {latency.kind}{basis}"
    return Series(
        name=name,
        ink=INKS[arm],
        x=[1_000_000 / (1_000_000 - part) for part in parts],
        y=latency.curve_ms,
        tips=[
            f"{name}, p{part / 10_000:g}: {report.number(ms)} ms"
            for part, ms in zip(parts, latency.curve_ms, strict=True)
        ],
        dash=dashes[place % len(dashes)],
        marker="circle" if arm == ARMS[0] else "square",
        size=5,
        label=name,
    )


def _anatomy(number: int, cells: Sequence[Cell]) -> Chart:
    timed = report_anatomy.timed(cells)
    names = [name for name, _, _ in report_anatomy.PARTS]
    head, rows = report_anatomy.parts_table(cells)
    return Chart(
        id=f"anatomy-{number}",
        title="Where the time of a call goes",
        picture=Stacks(
            axis=Axis(name="ms of a call, mean"),
            parts=list(zip(names, PART_INKS, strict=True)),
            rows=[
                (
                    f"{cell.workers}, {cell.arm}",
                    [part(anatomy) for _, _, part in report_anatomy.PARTS],
                )
                for cell, anatomy in timed
            ],
            unit="ms",
        ),
        caption="Means per call, timed inside the workers at the same points in both arms; n = "
        f"{min(a.calls for _, a in timed):,} to {max(a.calls for _, a in timed):,} calls. A lock "
        "that is idle while somebody waits for it is what handing it over costs.",
        numbers=Table(label="Parts of a call", head=head, rows=rows, words=(0, 1)),
    )


def _fairness(number: int, cells: Sequence[Cell]) -> Chart:
    """Return each worker's share of what all of a round did, as a multiple of an equal one."""
    several = [cell for cell in cells if cell.workers > 1]
    series = [_shares(arm, _of(several, arm)) for arm in ARMS]
    rows = [
        (
            str(cell.workers),
            cell.arm,
            f"{cell.fewest_over_most:.2f}",
            f"{cell.fewest_over_most_worst:.2f}",
            f"{cell.jain_min:.3f}",
            report.number(cell.max_ms),
        )
        for cell in several
    ]
    head = ("workers", "arm", "fewest/most", "its worst round", "Jain, least", "longest call, ms")
    return Chart(
        id=f"fairness-{number}",
        title="What each worker got",
        picture=Curves(
            x=frame.workers_axis(cell.workers for cell in several),
            y=Axis(name="multiple of an equal share"),
            series=[one for one in series if one.x],
            levels=[Level(at=1.0, name="an equal share")],
        ),
        caption="One point for each worker of each round. A fair queue has all its points at 1.",
        numbers=Table(label="Fairness", head=head, rows=rows, words=(0, 1)),
    )


def _shares(arm: str, cells: Sequence[Cell]) -> Series:
    xs, ys, tips = [], [], []
    for cell in cells:
        for a_round in cell.rounds:
            equal = sum(a_round.counts) / len(a_round.counts) or 1.0
            for number, count in enumerate(a_round.counts, 1):
                xs.append(cell.workers * BESIDE[arm] ** 4)
                ys.append(count / equal)
                tips.append(
                    f"{arm}, {frame.workers(cell.workers)}, round {a_round.position + 1}, worker "
                    f"{number}: {count:,} jobs, {count / equal:.2f} of an equal share"
                )
    return Series(
        name=arm,
        ink=INKS[arm],
        x=xs,
        y=ys,
        tips=tips,
        dash="none",
        marker="circle" if arm == ARMS[0] else "square",
        size=6,
        label=arm,
    )
