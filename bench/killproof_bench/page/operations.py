"""The page of the single figures: one operation beside the bare statements, and idle workers."""

from killproof_bench.operations import report as told
from killproof_bench.operations.result import Comparison, OperationsResult, Spending
from killproof_bench.page import frame
from killproof_bench.page.content import (
    Axis,
    Badge,
    Bar,
    Bars,
    Chart,
    Ink,
    Page,
    Part,
    Prose,
    Section,
    Stacks,
    Table,
    Tile,
)
from killproof_bench.report import figure, figure_value, number

#: Of the parts of a job's time, in the order in which they are recorded.
PART_INKS: tuple[Ink, ...] = ("blue", "orange", "green", "purple", "sky", "vermillion", "grey")
MET = {True: "met", False: "missed", None: "not measured"}


def page(result: OperationsResult) -> Page:
    """Return the page of one run."""
    sections: list[Section] = []
    goals = [(f"{g.what}: {g.asked}", g.measured, MET[g.met]) for g in result.goals]
    if goals:
        sections.append(Section(id="goals", title="Goals", parts=[frame.goals_table(goals)]))
    if result.comparisons:
        sections.append(_comparisons(result))
    if result.spending:
        sections.append(_spending(result))
    if result.idle is not None:
        parts: list[Part] = [
            frame.table("Idle workers", told.idle_table(result.idle), words=(0,)),
            Prose(text=told.IDLE_METHOD, small=True),
        ]
        sections.append(Section(id="idle", title="Idle workers", parts=parts))
    sections += [
        _cards(result),
        Section(id="method", title="Method", parts=[Prose(text=told.METHOD)]),
        frame.limits(told.LIMITS.split("\n")),
        frame.machine(result.environment, result.noise, [("seed", str(result.seed))]),
        frame.again(result.command),
    ]
    return Page(
        title="Single figures",
        kicker=frame.kicker(result.command, frame.moment(result.started)),
        sentence=result.sentence,
        badges=_badges(result, goals),
        tiles=_tiles(result),
        sections=sections,
    )


def _badges(result: OperationsResult, goals: list[tuple[str, str, str]]) -> list[Badge]:
    judged = [
        (f"{each.operation}, {each.durability}", each.correctness) for each in result.comparisons
    ]
    if result.idle is not None:
        judged.append(("idle workers", result.idle.correctness))
    badges = [frame.correctness_badge(result.verdict, frame.reasons(judged))]
    if result.interrupted:
        badges.append(Badge(light="doubt", word="interrupted: what had ended"))
    if goals:
        badges.append(frame.goals_badge(goals))
    return [*badges, frame.noise_badge(result.noise)]


def _tiles(result: OperationsResult) -> list[Tile]:
    tiles = [
        Tile(
            name=f"{each.operation}, {each.durability}",
            figure=f"{figure_value(each.arms[0].per_s)}/s",
            note=", ".join(
                f"{number(ratio.value.value)} of {ratio.against}" for ratio in each.ratios
            ),
        )
        for each in result.comparisons
    ]
    if result.idle is not None:
        start = result.idle.start_p50_ms
        tiles.append(
            Tile(
                name="idle worker to start, median",
                figure=f"{figure_value(start)} ms",
                note=f"n = {start.n:,}",
            )
        )
    return tiles


def _comparisons(result: OperationsResult) -> Section:
    charts = [_chart(number, each) for number, each in enumerate(result.comparisons, 1)]
    figures = frame.table("All figures", told.figures_table(result.comparisons), words=(0, 1, 2, 5))
    note = Prose(
        text="Rates are medians over the repeats, ratios medians of the ratios within each repeat; "
        "in brackets the range of the repeats.",
        small=True,
    )
    return Section(
        id="figures", title="Killproof beside the bare statements", parts=[*charts, figures, note]
    )


def _chart(place: int, each: Comparison) -> Chart:
    unit = each.arms[0].card.unit if each.arms else ""
    rows = [
        Bar(
            name=arm.arm,
            value=arm.per_s.value,
            low=arm.per_s.low,
            high=arm.per_s.high,
            text=figure_value(arm.per_s),
            tip=f"{arm.arm}: {figure(arm.per_s)}, repeats {', '.join(map(number, arm.repeats))}",
            ink=frame.KILLPROOF if order == 0 else frame.REFERENCE,
        )
        for order, arm in enumerate(each.arms)
    ]
    repeats = len(each.arms[0].repeats) if each.arms else 0
    return Chart(
        id=f"comparison-{place}",
        title=f"{each.operation}, durability {each.durability}",
        picture=Bars(axis=Axis(name=unit or "per second"), rows=rows),
        caption=f"Median of {repeats} repeats, longer is better; lines: the range of the repeats. "
        "The figures stand in the table below.",
    )


def _spending(result: OperationsResult) -> Section:
    parts: list[Part] = []
    for place, spent in enumerate(result.spending, 1):
        parts.append(_spent(place, spent))
        head, rows = told.functions_table(spent)
        plain = [(row[0].strip("`"), *row[1:]) for row in rows]
        label = f"Functions by their own time: {spent.operation}, {spent.durability}"
        parts.append(Table(label=label, head=head, rows=plain, folded=True))
    parts.append(Prose(text=told.SPENDING_METHOD, small=True))
    return Section(id="spending", title="Where a job's time goes", parts=parts)


def _spent(place: int, spent: Spending) -> Chart:
    names = list(dict.fromkeys(cost.part for cost in (*spent.killproof, *spent.bare)))
    sides = (("killproof", spent.killproof), ("bare", spent.bare))
    head, rows = told.spending_table(spent)
    return Chart(
        id=f"spent-{place}",
        title=f"{spent.operation}, durability {spent.durability}",
        picture=Stacks(
            axis=Axis(name="µs of a job"),
            parts=[(name, PART_INKS[order % len(PART_INKS)]) for order, name in enumerate(names)],
            rows=[
                (side, [{c.part: max(c.us, 0.0) for c in costs}.get(n, 0.0) for n in names])
                for side, costs in sides
            ],
            unit="µs",
        ),
        caption=f"Means over {spent.jobs:,} jobs.",
        numbers=Table(label="Parts of a job's time", head=head, rows=rows),
    )


def _cards(result: OperationsResult) -> Section:
    """Return the conditions, a figure a row: there are too many figures for a column each."""
    shared, head, rows = told.cards_tables(told.cards(result))
    parts: list[Part] = frame.card_parts(["all"], [tuple(row) for row in shared])
    if rows:
        label = "Conditions that differ"
        parts.append(Table(label=label, head=head, rows=rows, words=range(len(head))))
    return Section(id="card", title="Claim card", parts=parts)
