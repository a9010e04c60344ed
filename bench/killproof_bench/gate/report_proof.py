"""What the proof of the gate says, in words and tables: pure functions of a recorded result."""

from collections.abc import Sequence

from killproof_bench.gate import sequential
from killproof_bench.gate.report import (
    METHOD,
    blocks_table,
    card_table,
    noise_told,
    ratio_text,
)
from killproof_bench.gate.result import Block, ProofResult
from killproof_bench.report import Table, markdown_table, plain_table

LIMITS = (
    "- Other machines and other days: `killproof bench calibrate` says what the gate can promise "
    "on yours.\n"
    "- Independent runs: re-paired ones share their blocks, so their intervals are of the coin "
    "and of the order, given these blocks. The bound on false alarms is the test's construction.\n"
    "- Slowdowns of less than 10% of an operation's time, such as a spin of 10% of the hold.\n"
    "- Regressions of other sorts than those seeded here."
)


def terminal(result: ProofResult) -> str:
    """Return what the command prints."""
    return "\n\n".join(
        [
            result.sentence,
            plain_table(*tallies_table(result)),
            plain_table(*seeded_table(result)),
            plain_table(*lengths_table(result)),
            figures(result),
            noise_told(result.noise),
        ]
    )


def markdown(result: ProofResult) -> str:
    """Return the report."""
    head = result.head
    changed = f" and {head.changed_files} uncommitted files" if head.changed_files else ""
    return (
        "\n\n".join(
            [
                "# The gate's own error rates",
                f"**{result.verdict}**: {result.sentence}",
                f"- command: `{result.command}`\n- started: {result.started}, this part took "
                f"{result.seconds:.0f} s\n- head: {head.commit[:12]}{changed}\n"
                f"- seed of the re-pairing: {result.seed}\n"
                f"- machine: {result.environment['machine']}; kernel "
                f"{result.environment['kernel']}, Python {result.environment['python']}, SQLite "
                f"{result.environment['sqlite']}\n"
                f"- over the run: {noise_told(result.noise)}",
                "## Alarms and detections",
                markdown_table(*tallies_table(result)),
                figures(result),
                "## Seeded regressions, and the layer named beforehand",
                markdown_table(*seeded_table(result)),
                "## The length of an arm",
                "What costs least for the same power has the smallest product of sigma squared and "
                "seconds of a block. Shorter arms are the first parts of the same long ones.",
                markdown_table(*lengths_table(result)),
                "## Claim card",
                card_table(result.card),
                "## Method",
                METHOD,
                "- A re-paired run draws 80 recorded blocks in random order; of a sham the labels "
                "are tossed again, A and B being one code and its byte copy. The injected slowdown "
                "is a loop inside the lock, as long as a tenth of an operation.",
                "## What this does not show",
                LIMITS,
                "## Every sham block",
                markdown_table(*blocks_table(result.sham_blocks)),
                "## Every slowdown block",
                markdown_table(*blocks_table(result.slow_blocks)),
            ]
        )
        + "\n"
    )


def figures(result: ProofResult) -> str:
    """Return what was measured beside the counts."""
    sigma = result.sigma
    scatter = (
        "n/a"
        if sigma.value is None
        else f"{sigma.value:.1%} [{sigma.low:.1%} to {sigma.high:.1%}], {sigma.n} blocks"
    )
    counts = "n/a" if result.instructions.value is None else f"{result.instructions.value:,.0f}"
    spread = (
        "callgrind was not measured"
        if not result.instructions.value or not result.instructions.low
        else f"{result.instructions.n} repeats of callgrind differ by at most "
        f"{(result.instructions.high or 0) / result.instructions.low - 1:.4%} of {counts} "
        "instructions"
    )
    equal = "equal to the last digit" if result.counter_repeats_equal else "**not equal**"
    share = result.spin_us / result.hold_us if result.hold_us else 0.0
    return (
        f"- sigma of a block: {scatter}; the gate promises up to {sequential.SIGMA_MAX:.0%}\n"
        f"- as they came, before any label is tossed: {as_they_came(result.sham_blocks)}\n"
        f"- the injected slowdown: {result.spin_us:.1f} us inside the lock, a tenth of an "
        f"operation's time and {share:.0%} of the {result.hold_us:.0f} us that the lock is held; "
        f"achieved: {ratio_text(result.slowdown)} of the time\n"
        f"- {result.counter_repeats} runs of layer 0 on one source: {equal}\n"
        f"- {spread}\n"
        f"- each of {result.correctness.jobs:,} jobs was done exactly once"
    )


def as_they_came(shams: Sequence[Block]) -> str:
    """Say in how many sham blocks the copy was the slower one: the labels that the machine gave.

    Tossing them again makes every sham fair; whether a byte copy was, only these can tell.
    """
    slower = sequential.share(sum(block.d > 0 for block in shams), len(shams))
    if slower.value is None:
        return "no sham blocks"
    return (
        f"the copy was slower in {slower.value:.0%} [{slower.low:.0%} to {slower.high:.0%}] of "
        f"{slower.n} sham blocks; of equal code it is in half of them"
    )


def tallies_table(result: ProofResult) -> Table:
    """Return how runs ended, with Clopper-Pearson intervals."""
    head = (
        "runs of",
        "n",
        "fail",
        "pass",
        "inconclusive",
        "share that fails, 95%",
        "blocks, mean",
        "goal",
        "met",
    )
    return head, [
        (
            tally.what,
            str(tally.runs),
            str(tally.failed),
            str(tally.passed),
            str(tally.inconclusive),
            "n/a"
            if tally.rate.value is None
            else f"{tally.rate.value:.1%} [{tally.rate.low:.2%} to {tally.rate.high:.2%}]",
            f"{tally.blocks_mean:.1f}",
            tally.goal,
            "yes" if tally.met else "**no**",
        )
        for tally in result.tallies
    ]


def seeded_table(result: ProofResult) -> Table:
    """Return who caught what."""
    head = ("regression", "what", "named beforehand", "caught", "by")
    return head, [
        (row.name, row.what, row.named, "yes" if row.caught else "**no**", ", ".join(row.by))
        for row in result.seeded
    ]


def lengths_table(result: ProofResult) -> Table:
    """Return what each length of an arm buys."""
    head = ("arm, s", "block, s", "sigma", "sigma^2 x s, 10^-4")
    return head, [
        (
            f"{each.seconds:.2f}",
            f"{each.block_seconds:.1f}",
            f"{each.sigma:.1%}",
            f"{each.cost * 1e4:.1f}",
        )
        for each in result.arm_lengths
    ]
