"""The page of `killproof bench gate-proof`: the gate's own error rates, measured."""

from collections.abc import Sequence

from killproof_bench import report
from killproof_bench.gate.result import ArmLength, ProofResult, Seeded, Tally
from killproof_bench.page import frame
from killproof_bench.page.content import (
    Axis,
    Badge,
    Bar,
    Bars,
    Chart,
    Light,
    Page,
    Part,
    Prose,
    Section,
    Table,
    Tile,
)
from killproof_bench.page.gate import VERDICTS, blocks_chart, percent
from killproof_bench.result import Figure

MET: dict[str, Light] = {"met": "good", "missed": "bad"}
CAUGHT: dict[str, Light] = {"caught": "good", "missed": "bad"}


def page(result: ProofResult) -> Page:
    """Return the page of one proof."""
    sections: list[Section] = []
    if result.tallies:
        sections.append(_tallies(result.tallies))
    if result.seeded:
        sections.append(_seeded(result.seeded))
    sections.append(_blocks(result))
    if result.arm_lengths:
        sections.append(_lengths(result.arm_lengths))
    sections += [
        _repeats(result),
        frame.cards([("all arms", result.card)]),
        frame.limits(
            [
                "Live error rates over months: most runs are recorded blocks, paired anew.",
                "Slowdowns of another kind than time spent inside the lock, but for those seeded.",
                "Another machine, or this one when it is busier.",
            ]
        ),
        frame.machine(result.environment, result.noise, [("seed", str(result.seed))]),
        frame.again(result.command),
    ]
    because = frame.reasons([("an arm", result.correctness)])
    badges = [Badge(light=VERDICTS[result.verdict], word=result.verdict)]
    if result.interrupted:
        badges.append(Badge(light="doubt", word="interrupted"))
    badges += [
        frame.correctness_badge(result.correctness.verdict, because),
        frame.noise_badge(result.noise),
    ]
    sigma = result.sigma
    return Page(
        title="Error rates of the gate",
        kicker=frame.kicker(result.command, frame.moment(result.started)),
        sentence=result.sentence,
        badges=badges,
        tiles=[
            Tile(
                name="sigma of a block",
                figure="n/a" if sigma.value is None else f"{sigma.value:.1%}",
                note=f"{sigma.n} blocks of the same code",
            ),
            Tile(
                name="injected slowdown",
                figure=percent(result.slowdown),
                note=f"{report.number(result.spin_us)} µs more inside the lock",
            ),
            *(
                Tile(
                    name=tally.what,
                    figure=f"{tally.failed} of {tally.runs} fail",
                    note=f"goal: {tally.goal}",
                )
                for tally in result.tallies[:4]
            ),
        ],
        sections=sections,
    )


def _tallies(tallies: Sequence[Tally]) -> Section:
    bars = [
        Bar(
            name=tally.what,
            value=100 * (tally.rate.value or 0.0),
            low=None if tally.rate.low is None else 100 * tally.rate.low,
            high=None if tally.rate.high is None else 100 * tally.rate.high,
            text=f"{tally.failed} of {tally.runs}",
            tip=f"{tally.what}: {tally.failed} of {tally.runs} fail, goal {tally.goal}",
            ink="blue" if "sham" in tally.what else "vermillion",
        )
        for tally in tallies
    ]
    rows = [
        (
            tally.what,
            f"{tally.runs:,}",
            f"{tally.failed:,}",
            f"{tally.passed:,}",
            f"{tally.inconclusive:,}",
            _share(tally.rate),
            f"{tally.blocks_mean:.0f}",
            tally.goal,
            "met" if tally.met else "missed",
        )
        for tally in tallies
    ]
    head = ("runs of", "runs", "failed", "passed", "inconclusive", "failed, 95%", "blocks, mean",
            "goal", "it is")  # fmt: skip
    chart = Chart(
        id="rates",
        title="Share of runs that the gate fails",
        picture=Bars(axis=Axis(name="% of runs", low=0.0, high=100.0), rows=bars),
        caption="Shams are the same code on both sides: each failed one is a false alarm. Lines: "
        "Clopper-Pearson intervals, 95%.",
    )
    table = Table(label="Error rates", head=head, rows=rows, words=(0, 7), lights=MET)
    return Section(id="errors", title="Error rates", parts=[chart, table])


def _share(rate: Figure) -> str:
    if rate.value is None:
        return "n/a"
    if rate.low is None or rate.high is None:
        return f"{rate.value:.1%}"
    return f"{rate.value:.1%} [{rate.low:.1%} to {rate.high:.1%}]"


def _seeded(seeded: Sequence[Seeded]) -> Section:
    rows = [
        (
            one.name,
            one.what,
            one.named,
            ", ".join(one.by),
            "caught" if one.caught else "missed",
        )
        for one in seeded
    ]
    head = ("regression", "what was changed", "layer that must see it", "seen by", "it was")
    table = Table(label="Seeded", head=head, rows=rows, words=(0, 1, 2, 3), lights=CAUGHT)
    return Section(id="seeded", title="Seeded regressions", parts=[table])


def _blocks(result: ProofResult) -> Section:
    nothing = Figure(value=1.0, low=None, high=None, n=len(result.sham_blocks))
    parts: list[Part] = []
    if result.sham_blocks:
        parts.append(
            blocks_chart("sham", "Shams: the same code twice", result.sham_blocks, nothing, "")
        )
    if result.slow_blocks:
        title = f"Injected: {report.number(result.spin_us)} µs more inside the lock"
        chart = blocks_chart(
            "slow", title, result.slow_blocks, result.slowdown, "", ink="vermillion"
        )
        parts.append(chart)
    return Section(id="recorded", title="Recorded blocks", parts=parts)


def _lengths(lengths: Sequence[ArmLength]) -> Section:
    rows = [
        (
            f"{one.seconds:g}",
            f"{one.block_seconds:.1f}",
            f"{one.sigma:.1%}",
            f"{one.cost:.3g}",
        )
        for one in lengths
    ]
    head = ("arm, s", "block, s", "sigma", "sigma squared times seconds")
    parts: list[Part] = [
        Prose(text="Less in the last column is more power for each second."),
        Table(label="Lengths of an arm", head=head, rows=rows),
    ]
    return Section(id="lengths", title="How long an arm should be", parts=parts)


def _repeats(result: ProofResult) -> Section:
    equal = "every counter was equal in all" if result.counter_repeats_equal else "they differed"
    rows = [
        ("layer 0, runs on one revision", f"{result.counter_repeats}: {equal}"),
        ("layer 1, instructions on one revision", report.figure(result.instructions)),
        ("lock held, median", f"{report.number(result.hold_us)} µs"),
    ]
    table = Table(label="Repeats", head=("what", "found"), rows=rows, words=(0, 1))
    return Section(id="repeats", title="The layers that count", parts=[table])
