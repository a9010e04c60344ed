"""The pages of the gate: a verdict between two revisions, a calibration, a proof of error rates.

A ratio is head over base, of time: above 1 is slower. Each dot is one block of four arms.
"""

import math
from collections.abc import Sequence

from killproof_bench import report
from killproof_bench.gate.result import (
    Block,
    CalibrationResult,
    Counter,
    CounterLayer,
    GateResult,
    Look,
    Power,
    TimingRun,
)
from killproof_bench.page import frame
from killproof_bench.page.content import (
    Axis,
    Badge,
    Bullets,
    Chart,
    Curves,
    Ink,
    Level,
    Light,
    Page,
    Part,
    Prose,
    Section,
    Series,
    Table,
    Tile,
    Zone,
)
from killproof_bench.result import Figure

VERDICTS: dict[str, Light] = {
    "pass": "good",
    "fail": "bad",
    "inconclusive": "doubt",
    "not measured": "doubt",
}
#: The slowdown that the gate promises to find, as a ratio of times.
FOUND = 1.10
#: Rows of counters that did not move are folded away.
ROSE: dict[str, Light] = {"rose": "bad", "rose, excused": "doubt", "fell": "good", "same": "good"}


def page(result: GateResult) -> Page:
    """Return the page of one run of `killproof bench gate`."""
    timing, counters = result.timing, result.counters
    sections = [_layers(result)]
    if timing.runs:
        sections.append(_timing(timing.runs))
    sections.append(_counters(counters))
    sections.append(_instructions(result))
    if timing.card is not None:
        sections.append(frame.cards([("both sides", timing.card)]))
    sections += [
        frame.limits(
            [
                "That nothing became slower: up to 2% is forgiven, and 5% is found in one run of "
                "six. The comparison with the last release each night is for those.",
                "Absolute figures. Both sides ran in turns on this machine, and only their ratio "
                "means anything.",
                "Other operations than the claim and the ack under load; the counters look at more "
                "of them, and at no time.",
                "The disk: the timed arms lie in memory, so that the ratio is that of the code.",
            ]
        ),
        frame.machine(result.environment, result.noise, _sides(result)),
        frame.again(result.command),
    ]
    because = frame.reasons([("the timed arms", timing.correctness)])
    badges = [_verdict_badge(result.verdict)]
    if result.interrupted:
        badges.append(Badge(light="doubt", word="interrupted"))
    badges += [
        frame.correctness_badge(timing.correctness.verdict, because),
        frame.noise_badge(result.noise),
    ]
    return Page(
        title=f"Gate: {result.base.name} to {result.head.name}",
        kicker=frame.kicker(result.command, frame.moment(result.started)),
        sentence=result.sentence,
        badges=badges,
        tiles=_tiles(result),
        sections=sections,
    )


def _verdict_badge(verdict: str) -> Badge:
    return Badge(light=VERDICTS[verdict], word=verdict)


def percent(ratio: Figure) -> str:
    """Return a ratio of times as a change with its interval."""
    if ratio.value is None:
        return f"n/a (n={ratio.n})"
    text = f"{ratio.value - 1:+.1%}"
    if ratio.low is None or ratio.high is None:
        return text
    return f"{text} [{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}]"


def _tiles(result: GateResult) -> list[Tile]:
    tiles = []
    if result.timing.runs:
        last = result.timing.runs[-1]
        sigma = "" if last.sigma is None else f"sigma {last.sigma:.1%} of a block"
        tiles += [
            Tile(name="time of head over base", figure=percent(last.ratio), note="95% interval"),
            Tile(name="blocks", figure=f"{len(last.blocks)}", note=sigma),
            Tile(
                name="false alarms",
                figure=f"at most {result.timing.false_alarm_max:.1%}",
                note="by construction",
            ),
        ]
    rose = [counter for counter in result.counters.counters if counter.rose]
    tiles += [
        Tile(
            name="counters that rose",
            figure=str(len(rose)),
            note=f"of {len(result.counters.counters)}",
        ),
        Tile(name="time spent", figure=f"{result.seconds:.0f} s"),
    ]
    return tiles


def _sides(result: GateResult) -> list[tuple[str, str]]:
    head, base = result.head, result.base
    changed = f", {head.changed_files} files not committed" if head.changed_files else ""
    return [
        ("base", f"{base.name}, {base.commit}"),
        ("head", f"{head.name}, {head.commit}{changed}"),
        ("excused by trailers", ", ".join(result.trailers) or "nothing"),
    ]


def _layers(result: GateResult) -> Section:
    named = (
        ("counters: exact, no false alarms", result.counters),
        ("instructions: callgrind, fails above 3%", result.instructions),
        ("time: randomised pairs", result.timing),
    )
    rows = [
        (name, f"{layer.seconds:.0f}", "; ".join(layer.because), layer.verdict)
        for name, layer in named
    ]
    table = Table(
        label="Layers",
        head=("layer", "seconds", "why", "verdict"),
        rows=rows,
        words=(0, 2),
        lights=VERDICTS,
    )
    parts: list[Part] = [table]
    if not result.timing.promised:
        parts.append(
            Prose(text="The blocks scatter too much here to promise that a slowdown is found.")
        )
    return Section(id="layers", title="What each layer says", parts=parts)


def _timing(runs: Sequence[TimingRun]) -> Section:
    parts: list[Part] = []
    for number, run in enumerate(runs, 1):
        which = "" if len(runs) == 1 else f", run {number} of {len(runs)}"
        dots = blocks_chart(
            f"blocks-{number}",
            f"Every block{which}",
            run.blocks,
            run.ratio,
            caption=f"{run.because} {run.redone} blocks were measured again because of foreign "
            f"load, whatever they said. Coin: {run.coin}.",
        )
        parts += [dots, _looks(run.looks, number)]
    return Section(id="time", title="Time, in randomised pairs", parts=parts)


def blocks_chart(
    name: str, title: str, blocks: Sequence[Block], ratio: Figure, caption: str, ink: Ink = "blue"
) -> Chart:
    """Return the ratio of every block, with the interval of their middle behind them."""
    series = [
        Series(
            name=order,
            ink=ink,
            x=[block.position + 1 for block in of],
            y=[math.exp(block.d) for block in of],
            tips=[
                f"block {block.position + 1}, {block.order}: {math.exp(block.d) - 1:+.1%}, "
                f"{sum(block.ops):,} operations"
                for block in of
            ],
            dash="none",
            marker="circle" if order == "ABBA" else "diamond",
        )
        for order in ("ABBA", "BAAB")
        if (of := [block for block in blocks if block.order == order])
    ]
    zones = []
    if ratio.low is not None and ratio.high is not None:
        zones.append(Zone(name="", low=ratio.low, high=ratio.high, axis="y", ink="green"))
    values = [math.exp(block.d) for block in blocks]
    lowest, highest = min([*values, 0.95]), max([*values, FOUND])
    room = 0.1 * (highest - lowest)
    return Chart(
        id=name,
        title=title,
        picture=Curves(
            x=Axis(name="block, in the order of the run"),
            y=Axis(name="time, head over base", low=lowest - room, high=highest + room),
            series=series,
            levels=[
                Level(at=1.0, name="the same", dash="solid"),
                Level(at=FOUND, name="10% slower", ink="vermillion"),
            ],
            zones=zones,
        ),
        caption=f"Dots: one block of four arms each, circles ABBA and diamonds BAAB by a fair "
        f"coin. Hatched: {percent(ratio)}, the Hodges-Lehmann estimate with its 95% interval, "
        f"n = {len(blocks)} blocks. {caption}",
        numbers=_blocks_table(blocks),
    )


def _blocks_table(blocks: Sequence[Block]) -> Table:
    head = ("block", "order", "ratio", "µs per operation, in order", "foreign CPU", "pressure")
    rows = [
        (
            str(block.position + 1),
            block.order,
            f"{math.exp(block.d):.3f}",
            ", ".join(report.number(value) for value in block.us_per_op),
            f"{block.foreign_cpu:.1%}",
            f"{block.pressure_cpu:.1%}",
        )
        for block in blocks
    ]
    return Table(label="Blocks", head=head, rows=rows, words=(0, 1))


def _looks(looks: Sequence[Look], number: int) -> Table:
    head = ("after blocks", "p: at most 2% slower", "fails at or below", "p: 10% slower or more",
            "passes at or below", "says")  # fmt: skip
    rows = [
        (
            str(look.blocks),
            f"{look.p_slower:.2g}",
            f"{look.p_fail_at:.2g}",
            f"{look.p_not_slower:.2g}",
            f"{look.p_pass_at:.2g}",
            look.verdict if look.verdict != "inconclusive" or look is looks[-1] else "go on",
        )
        for look in looks
    ]
    lights: dict[str, Light] = {**VERDICTS, "go on": "doubt"}
    return Table(label=f"Looks at the data, run {number}", head=head, rows=rows, lights=lights)


def _counters(layer: CounterLayer) -> Section:
    moved = [counter for counter in layer.counters if _moved(counter) != "same"]
    same = [counter for counter in layer.counters if _moved(counter) == "same"]
    parts: list[Part] = [
        Prose(
            text=f"Exact counts over {layer.calls:,} calls of each operation, the same work on "
            f"both sides; system calls by {layer.syscalls_by}."
        )
    ]
    if moved:
        parts.append(_counter_table("Counters that moved", moved, folded=False))
    if same:
        what = f"{len(same)} counters that are the same on both sides"
        parts.append(_counter_table(what, same, folded=True))
    for plan in layer.plans:
        word = "more scans, sorts or automatic indexes" if plan.rose else "another text"
        lines = [f"base: {line}" for line in plan.base] + [f"head: {line}" for line in plan.head]
        parts += [Prose(text=f"Query plan of {plan.operation}: {word}."), Bullets(items=lines)]
    if layer.absent:
        parts.append(Prose(text=f"Only on one side: {', '.join(layer.absent)}."))
    return Section(id="counters", title="Counters", parts=parts)


def _moved(counter: Counter) -> str:
    if counter.rose:
        return "rose, excused" if counter.excused else "rose"
    return (
        "same"
        if counter.base == counter.head
        else "fell"
        if counter.head < counter.base
        else "same"
    )


def _counter_table(label: str, counters: Sequence[Counter], *, folded: bool) -> Table:
    rows = [
        (
            counter.name,
            counter.unit,
            report.number(counter.base),
            report.number(counter.head),
            "n/a" if not counter.base else f"{counter.head / counter.base - 1:+.1%}",
            _moved(counter),
        )
        for counter in counters
    ]
    head = ("counter", "unit", "base", "head", "change", "it")
    return Table(label=label, head=head, rows=rows, words=(0, 1), lights=ROSE, folded=folded)


def _instructions(result: GateResult) -> Section:
    layer = result.instructions
    rows = [
        ("base", report.figure(layer.base)),
        ("head", report.figure(layer.head)),
        ("head over base", "n/a" if layer.ratio is None else f"{layer.ratio - 1:+.2%}"),
        ("spread of repeats", "n/a" if layer.spread is None else f"{layer.spread:.2%}"),
    ]
    table = Table(label="Instructions", head=("side", "per ack and claim"), rows=rows)
    reasons = Bullets(items=layer.because)
    parts: list[Part] = [table] if layer.base.value is not None else [reasons]
    return Section(id="instructions", title="Instructions", parts=parts)


# Calibration.


def calibration(result: CalibrationResult) -> Page:
    """Return the page of one run of `killproof bench calibrate`."""
    same = Figure(value=None, low=None, high=None, n=len(result.blocks))
    dots = blocks_chart(
        "blocks",
        "The same code on both sides, block by block",
        result.blocks,
        same,
        caption=f"{result.redone} blocks were measured again because of foreign load.",
    )
    sections = [
        power_section(result.expected),
        Section(id="blocks-of", title="Blocks", parts=[dots]),
        frame.cards([("both sides", result.card)]),
        frame.limits(
            [
                "What the gate will do: the shares are simulated, at the scatter of these blocks.",
                "Another machine, or this one when it is busier than now.",
            ]
        ),
        frame.machine(result.environment, result.noise),
        frame.again(result.command),
    ]
    because = frame.reasons([("an arm", result.correctness)])
    badges = [
        _verdict_badge(result.verdict),
        frame.correctness_badge(result.correctness.verdict, because),
        frame.noise_badge(result.noise),
    ]
    sigma = result.sigma
    interval = "" if sigma.low is None else f"95%: {sigma.low:.1%} to {sigma.high or 0:.1%}"
    return Page(
        title="What the gate can promise on this machine",
        kicker=frame.kicker(result.command, frame.moment(result.started)),
        sentence=result.sentence,
        badges=badges,
        tiles=[
            Tile(name="sigma of a block", figure=f"{sigma.value or 0:.1%}", note=interval),
            Tile(name="a block takes", figure=f"{result.block_seconds:.1f} s"),
            Tile(name="blocks", figure=str(len(result.blocks))),
        ],
        sections=sections,
    )


def power_section(expected: Sequence[Power]) -> Section:
    """Return the operating characteristic: how often each slowdown is found."""
    lines: tuple[tuple[str, str, Ink], ...] = (
        ("fails", "fails", "vermillion"),
        ("passes", "passes", "blue"),
        ("inconclusive", "inconclusive", "grey"),
    )
    powers = sorted(expected, key=lambda power: power.slowdown)
    series = [
        Series(
            name=name,
            ink=ink,
            x=[100 * power.slowdown for power in powers],
            y=[100 * getattr(power, field) for power in powers],
            tips=[
                f"{power.slowdown:.0%} slower: {getattr(power, field):.1%} {name}, "
                f"{power.runs:,} simulated runs"
                for power in powers
            ],
            dash=dash,
            marker=marker,
            label=name,
        )
        for (name, field, ink), (_, dash, marker) in zip(
            lines, reversed(frame.QUANTILES), strict=True
        )
    ]
    rows = [
        (
            f"{power.slowdown:.0%}",
            f"{power.fails:.1%}",
            f"{power.passes:.1%}",
            f"{power.inconclusive:.1%}",
            f"{power.blocks_mean:.0f}",
            f"{power.seconds_mean:.0f}",
        )
        for power in powers
    ]
    head = ("true slowdown", "fails", "passes", "inconclusive", "blocks, mean", "seconds, mean")
    chart = Chart(
        id="power",
        title="What the gate says of a slowdown of so much",
        picture=Curves(
            x=Axis(name="true slowdown, %"),
            y=Axis(name="% of runs", low=0.0, high=105.0),
            series=series,
            levels=[Level(at=10.0, name="must be found", axis="x", ink="grey")],
        ),
        caption="Simulated at the measured scatter of the blocks.",
    )
    table = Table(label="Operating characteristic", head=head, rows=rows)
    return Section(id="expected", title="What to expect of it", parts=[chart, table])
