"""The page of `killproof bench claim`: killproof beside its own statements, under contention."""

from collections.abc import Sequence
from dataclasses import replace

from killproof_bench import report, report_goals
from killproof_bench.page import contention_setup, frame
from killproof_bench.page.content import (
    Axis,
    Badge,
    Chart,
    Curves,
    Page,
    Part,
    Prose,
    Section,
    Series,
    Table,
    Tile,
)
from killproof_bench.page.contention_setup import INKS
from killproof_bench.result import ARMS, BenchResult, Round, RowsResult, StoppedResult

#: The words of `report_goals.goals` in those of a page.
MET = {"yes": "met", "**no**": "missed"}


def page(result: BenchResult) -> Page:
    """Return the page of one run."""
    goals = [
        (goal, measured, "void" if measured == "void" else MET[met])
        for goal, measured, met in report_goals.goals(result)
    ]
    sections: list[Section] = []
    if goals:
        parts = [frame.goals_table(goals)]
        sections.append(Section(id="goals", title="Goals", parts=parts))
    for number, (name, cells) in enumerate(report.groups(result.cells), 1):
        sections.append(contention_setup.section(result, number, name, cells))
    if result.cells:
        sections.append(_time(result))
    if result.rows is not None:
        sections.append(_rows(result.rows))
    if result.stopped is not None:
        sections.append(_stopped(result.stopped))
    if result.cells:
        sections.append(_raw(result))
    sections += [
        frame.limits(report.limits(result)),
        frame.machine(result.environment, result.noise, [("seed", str(result.seed))]),
        frame.again(result.command),
    ]
    return Page(
        title=f"Contention at {result.durability}",
        kicker=frame.kicker(
            result.command, f"durability {result.durability}", frame.moment(result.started)
        ),
        sentence=result.sentence,
        badges=_badges(result, goals),
        tiles=_tiles(result),
        sections=sections,
    )


def _badges(result: BenchResult, goals: Sequence[tuple[str, str, str]]) -> list[Badge]:
    judged = [
        (f"{cell.arm}, {frame.workers(cell.workers)}", cell.correctness) for cell in result.cells
    ]
    if result.stopped is not None:
        judged.append(("a stopped holder", result.stopped.correctness))
    badges = [frame.correctness_badge(result.verdict, frame.reasons(judged))]
    if result.interrupted:
        badges.append(Badge(light="doubt", word="interrupted: the rounds that had ended"))
    badges.append(frame.noise_badge(result.noise))
    return [*badges, frame.goals_badge(goals)] if goals else badges


def _tiles(result: BenchResult) -> list[Tile]:
    """Return the first setup's figures at its most workers, with the reference's under them."""
    found = report.groups(result.cells)
    if not found:
        return []
    name, cells = found[0]
    most = max(cell.workers for cell in cells)
    sides = {cell.arm: cell for cell in cells if cell.workers == most}
    if ARMS[0] not in sides:
        return []
    ours, theirs = sides[ARMS[0]], sides.get(ARMS[1])

    def tile(what: str, text: str, reference: str) -> Tile:
        note = "" if theirs is None else f"reference {reference}"
        return Tile(name=what, figure=text, note=note)

    beside = theirs or ours
    rate, p99, tail = ours.jobs_per_s, ours.p99_ms, ours.p999_ms
    return [
        tile(
            f"jobs/s, {frame.workers(most)}, {name}",
            report.figure_value(rate),
            report.figure_value(beside.jobs_per_s),
        ),
        tile("p99", _ms(report.figure_value(p99)), _ms(report.figure_value(beside.p99_ms))),
        tile("p99.9", _ms(report.figure_value(tail)), _ms(report.figure_value(beside.p999_ms))),
        tile("longest call", _ms(report.number(ours.max_ms)), _ms(report.number(beside.max_ms))),
        tile(
            "fewest/most jobs of a worker",
            f"{ours.fewest_over_most:.2f}",
            f"{beside.fewest_over_most:.2f}",
        ),
        Tile(
            name="jobs checked",
            figure=f"{sum(cell.correctness.jobs for cell in result.cells):,}",
            note="each done exactly once" if result.verdict == "pass" else "",
        ),
    ]


def _ms(text: str) -> str:
    return text if text.startswith("n/a") else f"{text} ms"


class _Line:
    """Points of one arm, gathered round by round."""

    def __init__(self) -> None:
        self.x: list[float] = []
        self.y: list[float | None] = []
        self.tips: list[str] = []

    def add(self, x: float, y: float | None, tip: str) -> None:
        """Add a point; without a value it is a gap."""
        self.x.append(x)
        self.y.append(y)
        self.tips.append(tip)

    def series(self, arm: str, *, joined: bool) -> Series:
        """Return what was gathered."""
        return Series(
            name=arm,
            ink=INKS[arm],
            x=self.x,
            y=self.y,
            tips=self.tips,
            dash="solid" if joined else "none",
            marker="circle" if arm == ARMS[0] else "square",
            size=5,
            label=arm,
        )


def _time(result: BenchResult) -> Section:
    """Return the whole run from left to right, round after round."""
    ordered = sorted(
        ((a_round, cell) for cell in result.cells for a_round in cell.rounds),
        key=lambda pair: pair[0].position,
    )
    rates = {arm: _Line() for arm in ARMS}
    tails = {arm: _Line() for arm in ARMS}
    longest = {arm: _Line() for arm in ARMS}
    logs = {arm: _Line() for arm in ARMS}
    raw = _Line()
    second = 0.0
    for a_round, cell in ordered:
        where = f"round {a_round.position + 1}, {cell.arm}, {frame.workers(cell.workers)}"
        length = len(a_round.per_second)
        for place, rate in enumerate(a_round.per_second):
            tip = f"{where}, second {place + 1}: {rate:,} jobs/s"
            rates[cell.arm].add(second + place + 0.5, float(rate), tip)
        rates[cell.arm].add(second + length, None, "")
        _tails(tails[cell.arm], longest[cell.arm], a_round, second, where)
        _log(logs[cell.arm], a_round, second, where)
        for name, at, rate_raw in (
            ("before", second, a_round.raw_before),
            ("after", second + length, a_round.raw_after),
        ):
            tip = f"the disk {name} round {a_round.position + 1}: {rate_raw:,.0f} syncs/s"
            raw.add(at, rate_raw, tip)
        second += length
    words = Prose(
        text="All rounds in the order in which they ran, without the pauses between them. Drag to "
        "move along the run, Ctrl and the wheel to zoom; the pictures share their axis.",
        small=True,
    )
    return Section(
        id="time", title="Over the run", parts=[words, *_strips(rates, tails, longest, logs, raw)]
    )


def _tails(tails: _Line, longest: _Line, a_round: Round, second: float, where: str) -> None:
    """Add p99 and the longest call of each second; a round that tells none has one for all."""
    length = len(a_round.per_second)
    for place, tail in enumerate(a_round.p99_per_second_ms):
        tip = f"{where}, second {place + 1}: p99 {report.number(tail)} ms"
        tails.add(second + place + 0.5, tail, tip)
    tails.add(second + length, None, "")
    found = a_round.max_per_second_ms or (a_round.max_ms,)
    for place, most in enumerate(found):
        tip = f"{where}: longest call {report.number(most)} ms"
        longest.add(second + (place + 0.5) * length / len(found), most or None, tip)


def _log(line: _Line, a_round: Round, second: float, where: str) -> None:
    """Add the size of the log in each measured second; its list begins with the warm-up."""
    sizes = a_round.watch.wal_bytes[-len(a_round.per_second) :]
    for place, size in enumerate(sizes):
        mebibytes = size / 2**20
        tip = f"{where}, second {place + 1}: {mebibytes:.1f} MiB"
        line.add(second + place + 0.5, mebibytes, tip)
    line.add(second + len(a_round.per_second), None, "")


def _strips(
    rates: dict[str, _Line],
    tails: dict[str, _Line],
    longest: dict[str, _Line],
    logs: dict[str, _Line],
    raw: _Line,
) -> list[Chart]:
    charts = [
        _strip(
            "rate",
            "Jobs per second, each second",
            Axis(name="jobs/s"),
            [rates[arm].series(arm, joined=True) for arm in ARMS],
            "One point for each second; a line joins those of one round. The figures of every "
            "round stand in the table of rounds.",
            height=240,
        ),
        _strip(
            "longest",
            "p99 of each second, and its longest call",
            Axis(name="time of a call", log=True, times=True),
            [*(_p99(tails, arm) for arm in ARMS), *(_longest(longest, arm) for arm in ARMS)],
            "Log scale. Lines: p99, where a second has a thousand calls; dashes: the longest.",
            height=260,
        ),
    ]
    if any(value is not None for arm in ARMS for value in logs[arm].y):
        charts.append(
            _strip(
                "wal",
                "Size of the write-ahead log",
                Axis(name="MiB"),
                [logs[arm].series(arm, joined=True) for arm in ARMS],
                "The largest size in each second, seen from outside. It grows while checkpoints "
                "cannot finish.",
            )
        )
    grey = Series(
        name="raw disk", ink="grey", x=raw.x, y=raw.y, tips=raw.tips, size=5, label="raw disk"
    )
    charts.append(
        _strip(
            "raw",
            "What the disk could do by itself",
            Axis(name="syncs/s"),
            [grey],
            "4 KiB written and synced, one after the other, just before and just after each round. "
            "Where this line moves, rates move with it: trust ratios.",
        )
    )
    return charts


def _strip(
    name: str, title: str, y: Axis, series: Sequence[Series], caption: str, *, height: int = 200
) -> Chart:
    """Return a picture of the whole run; all of them share their x axis."""
    shown = [one for one in series if any(value is not None for value in one.y)]
    x = Axis(name="seconds of measured time")
    picture = Curves(x=x, y=y, series=shown, height=height, shared="run")
    return Chart(id=f"strip-{name}", title=title, picture=picture, caption=caption)


def _p99(tails: dict[str, _Line], arm: str) -> Series:
    return replace(tails[arm].series(arm, joined=True), label=f"{arm} p99")


def _longest(longest: dict[str, _Line], arm: str) -> Series:
    dashes = longest[arm].series(arm, joined=False)
    return replace(dashes, label=f"{arm} longest", marker="dash", size=8)


def _rows(rows: RowsResult) -> Section:
    parts: list[Part] = [
        Prose(text=report.rows_sentence(rows)),
        frame.table("Cost with few and with many rows", report.rows_table(rows)),
    ]
    return Section(id="rows", title="Claim cost with many rows", parts=parts)


def _stopped(stopped: StoppedResult) -> Section:
    parts: list[Part] = [
        Prose(text=report.stopped_sentence(stopped)),
        frame.table("Throughput of the others", report.stopped_table(stopped)),
    ]
    return Section(id="stopped", title="A stopped holder of the turnstile", parts=parts)


def _raw(result: BenchResult) -> Section:
    parts: list[Part] = [
        Prose(
            text=f"{result.rounds_planned} rounds of each arm at each number of workers, "
            f"{result.warmup_seconds:g} s warm-up and {result.seconds:g} s measured each.",
            small=True,
        )
    ]
    for name, cells in report.groups(result.cells):
        head, rows = report.rounds_table(cells)
        label = f"Every round: {name}"
        parts.append(Table(label=label, head=head, rows=rows, words=(0, 1, 2), folded=True))
    return Section(id="rounds", title="Every round, in the order of the run", parts=parts)
