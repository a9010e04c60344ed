"""What the gate says, in words and tables: pure functions of a recorded result."""

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from killproof_bench.gate import sequential
from killproof_bench.gate.blocks import FOREIGN_CPU_MAX, PRESSURE_CPU_MAX, STEAL_MAX
from killproof_bench.gate.result import (
    Block,
    CalibrationResult,
    CounterLayer,
    GateResult,
    InstructionLayer,
    Power,
    TimingLayer,
    TimingRun,
)
from killproof_bench.report import Table, card_fields, markdown_table, plain_table
from killproof_bench.result import ClaimCard, Figure, Noise

#: A terminal shows so many counters that rose; the report has all.
SHOWN_MAX = 12
METHOD = (
    "- Layer 0 counts with everything standing still: clock, random source, hash seed. "
    "A mean that rises by more than 1%, or a median call that rises at all where it counts in "
    "ones, fails.\n"
    "- Layer 1 is the difference of two callgrind runs, of 400 and of 200 calls.\n"
    "- Layer 2 runs blocks of four arms, ABBA or BAAB by a fair coin, in fresh processes that "
    "share hash seed, jobs and environment inside a block. `d` is the mean log time of B "
    "less that of A. Its sign is fair for equal code whatever the noise, so the exact signed-rank "
    f"test of `d` - log {1 + sequential.MARGIN:.2f} needs no model of it. "
    f"Looks at {', '.join(str(look) for look in sequential.LOOKS)} blocks, at levels that add up, "
    f"with those of a retry, to {sequential.ALPHA:.1%}; a pass has ruled out a slowdown of "
    f"{sequential.SLOWDOWN:.0%}, at levels that add up to {sequential.BETA:.0%}.\n"
    f"- A block counts unless steal exceeds {STEAL_MAX:.0%}, other programs "
    f"{FOREIGN_CPU_MAX:.0%} of the processors, or waiting for one {PRESSURE_CPU_MAX:.0%} of the "
    "time: then all four arms are measured again. The rule was fixed beforehand and sees neither "
    "times nor labels."
)
LIMITS = (
    "- A slowdown below 10%: one of 5% is found in about one run of six.\n"
    "- The disk: arms run on a RAM file system, for the code's own time.\n"
    "- Contention, unless `--workers` asks for it: `killproof bench claim` measures that.\n"
    "- Anything across runs: figures of two runs are never compared, for machines differ by more "
    "than code does."
)


def terminal(result: GateResult) -> str:
    """Return what the command prints."""
    parts = [result.sentence, plain_table(*layers_table(result))]
    rose = [row for row in counters_rows(result.counters) if row[-1] != ""]
    if rose:
        shown = [*rose[:SHOWN_MAX], *([("...",) * 5] if len(rose) > SHOWN_MAX else [])]
        parts.append(plain_table(COUNTER_HEAD, shown))
    if result.timing.runs:
        parts.append(strip(result.timing.runs[-1]))
        parts.append(plain_table(*looks_table(result.timing.runs)))
        parts.append(promise(result.timing))
    parts.append(f"base {sides(result)[0]}; head {sides(result)[1]}")
    parts.append(noise_told(result.noise))
    return "\n\n".join(parts)


def markdown(result: GateResult) -> str:
    """Return the report."""
    parts = [
        "# Gate: is this change slower?",
        f"**{word(result)}**: {result.sentence}",
        f"- command: `{result.command}`\n- started: {result.started}, took {result.seconds:.0f} s\n"
        f"- base: {sides(result)[0]}\n- head: {sides(result)[1]}\n"
        f"- excused by trailers: {', '.join(result.trailers) or 'nothing'}\n"
        f"- machine: {noise_told(result.noise)}",
        markdown_table(*layers_table(result)),
        "## Counters",
        markdown_table(COUNTER_HEAD, counters_rows(result.counters)),
        f"System calls by: {result.counters.syscalls_by}.",
        *plan_texts(result.counters),
        *timing_parts(result.timing),
        "## Method",
        METHOD,
        "## What this does not show",
        LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


def summary(result: GateResult) -> str:
    """Return what goes into the step summary of a CI job."""
    rose = [row for row in counters_rows(result.counters) if row[-1] != ""]
    parts = [
        f"### killproof bench gate: {word(result)}",
        result.sentence,
        markdown_table(*layers_table(result)),
    ]
    if rose:
        parts.append(markdown_table(COUNTER_HEAD, rose))
    return "\n\n".join(parts) + "\n\n"


def word(result: GateResult) -> str:
    """Return the verdict in one word; a run with a wrong arm has none."""
    return "void" if result.timing.correctness.verdict == "violated" else result.verdict


def junit(result: GateResult, *, doubt_passes: bool = False) -> bytes:
    """Return the result as JUnit XML: a case for each operation, and for each layer.

    Args:
        result: Of the run.
        doubt_passes: Whether an inconclusive layer is skipped instead of failed, as `--unknown
            pass` has it.
    """
    suite = ElementTree.Element("testsuite", name="killproof bench gate")
    rose: dict[str, list[str]] = {}
    for counter in result.counters.counters:
        found = rose.setdefault(counter.operation, [])
        if counter.rose and not counter.excused:
            found.append(f"{counter.name}: {counter.base:g} -> {counter.head:g} {counter.unit}")
    for operation, lines in rose.items():
        _case(suite, "layer 0", operation, 0.0, lines)
    for name, layer in _named_layers(result)[0 if not rose else 1 :]:
        classname, _, case = name.partition(": ")
        wrong = isinstance(layer, TimingLayer) and layer.correctness.verdict == "violated"
        doubtful = layer.verdict == "not measured" or (
            layer.verdict == "inconclusive" and doubt_passes
        )
        kind = "error" if wrong else "skipped" if doubtful else "failure"
        because = layer.because if layer.verdict != "pass" else ()
        if isinstance(layer, TimingLayer) and wrong:
            because = layer.correctness.because
        _case(suite, classname, case, layer.seconds, because, kind)
    suite.set("tests", str(len(suite)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f".//{tag}"))))
    text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text


def calibration_terminal(result: CalibrationResult) -> str:
    """Return what `bench calibrate` prints."""
    return "\n\n".join(
        [
            result.sentence,
            plain_table(*power_table(result.expected)),
            f"{len(result.blocks)} A/A blocks of {result.block_seconds:.1f} s, "
            f"{result.redone} redone; each of {result.correctness.jobs:,} jobs was done exactly "
            "once",
            noise_told(result.noise),
        ]
    )


def calibration_markdown(result: CalibrationResult) -> str:
    """Return the report of `bench calibrate`."""
    return (
        "\n\n".join(
            [
                "# Calibration: what the gate can promise on this machine",
                f"**{result.verdict}**: {result.sentence}",
                f"- command: `{result.command}`\n- started: {result.started}\n"
                f"- machine: {noise_told(result.noise)}",
                "Simulated at the measured sigma, with normal scatter:",
                markdown_table(*power_table(result.expected)),
                "## Claim card",
                card_table(result.card),
                "## Every block",
                markdown_table(*blocks_table(result.blocks)),
                "## What this does not show",
                LIMITS,
            ]
        )
        + "\n"
    )


def power_table(expected: Iterable[Power]) -> Table:
    """Return what the gate does at each true slowdown."""
    head = ("true slowdown", "fails", "passes", "inconclusive", "blocks, mean", "seconds, mean")
    return head, [
        (
            f"{each.slowdown:.0%}",
            f"{each.fails:.1%}",
            f"{each.passes:.1%}",
            f"{each.inconclusive:.1%}",
            f"{each.blocks_mean:.0f}",
            f"{each.seconds_mean:.0f}",
        )
        for each in expected
    ]


def layers_table(result: GateResult) -> Table:
    """Return one line for each layer."""
    rows = []
    for name, layer in _named_layers(result):
        told = "; ".join(layer.because[:2])
        if isinstance(layer, CounterLayer) and layer.verdict == "pass":
            told = f"{len(layer.counters)} counters, none rose"
        if isinstance(layer, InstructionLayer) and layer.ratio is not None and not told:
            told = f"{layer.ratio - 1:+.2%} instructions for each ack and claim"
        if isinstance(layer, TimingLayer) and layer.runs:
            told = f"{ratio_text(layer.runs[-1].ratio)} of the base's time; {told}"
        rows.append((name, layer.verdict, f"{layer.seconds:.1f}", told))
    return ("layer", "verdict", "seconds", "what it says"), rows


COUNTER_HEAD = ("counter", "base", "head", "unit", "rose")


def counters_rows(layer: CounterLayer) -> list[tuple[str, ...]]:
    """Return every counter; the last column says whether it rose, and whether that is excused."""
    return [
        (
            counter.name,
            f"{counter.base:,.6g}",
            f"{counter.head:,.6g}",
            counter.unit,
            ("excused" if counter.excused else "**yes**") if counter.rose else "",
        )
        for counter in layer.counters
    ]


def plan_texts(layer: CounterLayer) -> list[str]:
    """Return the query plans that differ, as a fenced difference."""
    if not layer.plans:
        return []
    lines = []
    for plan in layer.plans:
        lines.append(f"@@ {plan.operation} @@")
        lines += [f"-{line}" for line in plan.base] + [f"+{line}" for line in plan.head]
    return ["Query plans that differ:", "```diff\n" + "\n".join(lines) + "\n```"]


def timing_parts(layer: TimingLayer) -> list[str]:
    """Return the sections of layer 2."""
    if not layer.runs or layer.card is None:
        return []
    parts = ["## Time", promise(layer), markdown_table(*looks_table(layer.runs))]
    for run in layer.runs:
        parts += [
            f"```text\n{strip(run)}\n```",
            f"Coin {run.coin}, {len(run.blocks)} blocks, {run.redone} redone.",
            markdown_table(*blocks_table(run.blocks)),
        ]
    return [*parts, "## Claim card", card_table(layer.card)]


def promise(layer: TimingLayer) -> str:
    """Say what the timing layer promises here."""
    sigma = layer.runs[-1].sigma
    scatter = "sigma is unknown" if sigma is None else f"sigma is {sigma:.1%} for each block"
    told = (
        f"a {sequential.SLOWDOWN:.0%} slowdown is found with at least 95%"
        if layer.promised
        else f"above {sequential.SIGMA_MAX:.0%} no detection is promised"
    )
    return (
        f"Error rates: false alarms at most {layer.false_alarm_max:.1%} by construction, with the "
        f"retry counted in; {scatter}: {told}. "
        f"Each of {layer.correctness.jobs:,} jobs was done exactly once."
    )


def looks_table(runs: Sequence[TimingRun]) -> Table:
    """Return every look at the data."""
    head = ("run", "blocks", "p of at most 2% slower", "fail at", "p of 10% slower", "pass at", "")
    return head, [
        (
            str(number),
            str(look.blocks),
            f"{look.p_slower:.2g}",
            f"{look.p_fail_at:g}",
            f"{look.p_not_slower:.2g}",
            f"{look.p_pass_at:g}",
            "go on" if look.verdict == "inconclusive" else look.verdict,
        )
        for number, run in enumerate(runs, 1)
        for look in run.looks
    ]


def blocks_table(blocks: Sequence[Block]) -> Table:
    """Return every block that counts."""
    head = ("block", "order", "us per call, as run", "d", "steal", "foreign CPU", "waiting")
    return head, [
        (
            str(block.position + 1),
            block.order,
            ", ".join(f"{time:.1f}" for time in block.us_per_op),
            f"{block.d:+.4f}",
            f"{block.steal:.1%}",
            f"{block.foreign_cpu:.1%}",
            f"{block.pressure_cpu:.1%}",
        )
        for block in blocks
    ]


def strip(run: TimingRun, columns: int = 61) -> str:
    """Draw the blocks on a line of time ratios from -15% to +15%; `|` is equal, `:` the margins."""
    edge = 0.15
    cells = [0] * columns

    def place(share: float) -> int:
        return round((min(max(share, -edge), edge) + edge) / (2 * edge) * (columns - 1))

    for block in run.blocks:
        cells[place(block.d)] += 1
    ruler = [" "] * columns
    for share, mark in ((0.0, "|"), (sequential.MARGIN, ":"), (sequential.SLOWDOWN, ":")):
        ruler[place(share)] = mark
    counted = "".join(" " if not cell else str(min(cell, 9)) for cell in cells)
    return f"-15% {counted} +15%\n     {''.join(ruler)}      | equal, : 2% and 10% slower"


def card_table(card: ClaimCard) -> str:
    """Return the claim card as a table."""
    return markdown_table(("condition", ""), card_fields(card))


def ratio_text(ratio: Figure) -> str:
    """Return a ratio with its interval."""
    if ratio.value is None:
        return "n/a"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} [{ratio.low:.3f} to {ratio.high:.3f}]"


def sides(result: GateResult) -> tuple[str, str]:
    """Return both sides in words."""
    changed = result.head.changed_files
    told = f" and {changed} uncommitted files" if changed else ""
    return (
        f"{result.base.name} ({result.base.commit[:12]})",
        f"{result.head.name} ({result.head.commit[:12]}{told})",
    )


def noise_told(noise: Noise) -> str:
    """Say how quiet the machine was over the whole run, redone blocks included."""
    return (
        f"{'noisy' if noise.noisy else 'quiet'}: steal {noise.steal:.1%}, other programs "
        f"{noise.foreign_cpu:.1%} of the processors, load {noise.load_before:.2f} before and "
        f"{noise.load_after:.2f} after"
    )


def _named_layers(
    result: GateResult,
) -> list[tuple[str, CounterLayer | InstructionLayer | TimingLayer]]:
    return [
        ("layer 0: counters", result.counters),
        ("layer 1: instructions", result.instructions),
        ("layer 2: time", result.timing),
    ]


def _case(
    suite: ElementTree.Element,
    classname: str,
    name: str,
    seconds: float,
    lines: Sequence[str],
    kind: str = "failure",
) -> None:
    """Add a case; its name never holds its outcome, or CI would take each outcome for a test."""
    case = ElementTree.SubElement(
        suite, "testcase", classname=classname, name=name, time=f"{seconds:.1f}"
    )
    if lines:
        # A tool's last words may hold what XML 1.0 has no way to write.
        told = ["".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
                for line in lines]  # fmt: skip
        ElementTree.SubElement(case, kind, message=told[0]).text = "\n".join(told)
