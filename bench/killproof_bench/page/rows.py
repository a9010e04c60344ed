"""The page of `killproof bench rows`: what an operation costs as the file grows."""

from killproof_bench import report_rows as told
from killproof_bench.page import frame
from killproof_bench.page.content import (
    Axis,
    Badge,
    Bar,
    Bars,
    Chart,
    Facts,
    Level,
    Page,
    Prose,
    Section,
    Table,
    Tile,
)
from killproof_bench.report import figure, number
from killproof_bench.rows_result import Axis as Grown
from killproof_bench.rows_result import GrowthResult

#: Words of the last two columns of a table.
JUDGED = {"yes": "met", "**no**": "missed"}


def page(result: GrowthResult) -> Page:
    """Return the page of one run."""
    sections = [_grown(place, axis) for place, axis in enumerate(result.axes, 1)]
    facts = Facts(rows=list(told.conditions(result)))
    return Page(
        title="Rows: what an operation costs as the file grows",
        kicker=frame.kicker(result.command, frame.moment(result.started)),
        sentence=result.sentence,
        badges=_badges(result),
        tiles=[_tile(axis) for axis in result.axes],
        sections=[
            *sections,
            Section(id="card", title="Claim card", parts=[facts]),
            Section(id="method", title="Method", parts=[Prose(text=told.method(result))]),
            frame.limits(told.LIMITS.split("\n")),
            frame.machine(result.environment, result.noise),
            frame.again(result.command),
        ],
    )


def _goals(result: GrowthResult) -> list[tuple[str, str, str]]:
    """Return each operation of each axis with its two judgements."""
    return [
        (f"{row[0]}, {told.named(axis)}: {what}", row[5], JUDGED[row[place]])
        for axis in result.axes
        for row in told.table(axis)[1]
        for place, what in ((6, "steps"), (7, "time"))
    ]


def _badges(result: GrowthResult) -> list[Badge]:
    badges = []
    if result.interrupted:
        badges.append(Badge(light="doubt", word="interrupted: the axes that had ended"))
    if goals := _goals(result):
        badges.append(frame.goals_badge(goals))
    return [*badges, frame.noise_badge(result.noise)]


def _tile(axis: Grown) -> Tile:
    worst = max(told.time_ratio(cost) for cost in axis.costs)
    steps = max(abs(told.steps_change(cost)) for cost in axis.costs)
    return Tile(
        name=f"{axis.rows_large:,} {told.named(axis)}",
        figure=f"{number(worst)} times",
        note=f"the slowest operation, of {axis.rows_small:,} rows; steps {steps:.1%}",
    )


def _grown(place: int, axis: Grown) -> Section:
    head, rows = told.table(axis)
    plain = [tuple(cell.strip("*") for cell in row) for row in rows]
    table = Table(label=f"More rows {told.named(axis)}", head=head, rows=plain, words=(0, 6, 7))
    bars = [
        Bar(
            name=cost.operation,
            value=told.time_ratio(cost),
            low=cost.time_ratio.low,
            high=cost.time_ratio.high,
            text=number(told.time_ratio(cost)),
            tip=f"{cost.operation}: {cost.us_small:,.1f} and {cost.us_large:,.1f} us, "
            f"{figure(cost.time_ratio)}",
            ink=frame.KILLPROOF,
        )
        for cost in axis.costs
    ]
    chart = Chart(
        id=f"grown-{place}",
        title=f"Median time with {axis.rows_large:,} rows over that with {axis.rows_small:,}",
        picture=Bars(
            axis=Axis(name="ratio of medians"),
            rows=bars,
            levels=[Level(at=told.TIME_GOAL, name="goal", axis="x")],
        ),
        caption=f"Medians of {axis.calls:,} calls on each file, in turns; lines: 95% interval.",
    )
    return Section(
        id=f"axis-{place}",
        title=f"More rows {told.named(axis)}",
        parts=[chart, table, Prose(text=told.files(axis), small=True)],
    )
