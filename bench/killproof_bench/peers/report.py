"""The words and tables of `killproof bench peers`: pure functions of the recorded result.

Every figure of another queue stands beside what was counted in the same rounds, how its durability
was set, and what it does not promise. No sentence here says that a queue is good or bad.
"""

from collections.abc import Sequence

from killproof_bench.peers.judging import GOAL_WORKERS, OWN
from killproof_bench.peers.result import Comparison, Contender, PeerCell, PeersResult
from killproof_bench.report import figure, figure_value, markdown_table, number, plain_table

NOT_SHOWN = (
    "One job at a time, no work in a job, and nothing enqueued meanwhile. Many of these queues "
    "take several jobs per transaction, and their users may want that.",
    "What happens when something dies: that is the other harness's question. A queue that is "
    "slower here may do more per job.",
    "Absolute rates of another machine. They follow the disk's own sync rate, which is printed; "
    "trust ratios within this run.",
    "Each queue's own worker program. Its calls are driven by the same loop for all, without the "
    "pauses and the polling that its worker adds.",
    "Equal SQLite versions: each queue uses the one that its environment or its wheel brings, see "
    "the conditions.",
)

HEAD = (
    "queue",
    "workers",
    "level",
    "jobs/s",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "longest ms",
    "fewest/most",
    "acked twice",
    "lost",
    "errors",
)
BESIDE = ("beside", "workers", "level", "killproof's jobs/s", "p99.9", "longest wait")


def sentence(
    cells: Sequence[PeerCell], comparisons: Sequence[Comparison], contenders: Sequence[Contender]
) -> str:
    """Say the outcome in one line."""
    workers = max((cell.workers for cell in cells), default=GOAL_WORKERS)
    ours = next(
        (
            cell
            for cell in cells
            if (cell.contender, cell.workers, cell.level) == ("killproof", workers, "power")
        ),
        None,
    )
    if ours is None:
        return "Nothing that could be compared was measured."
    if ours.correctness.verdict == "violated":
        return f"VOID: killproof's own run was wrong: {'; '.join(ours.correctness.because)}"
    peers = {each.name for each in contenders if each.role == "peer"}
    beside = [
        each
        for each in comparisons
        if each.workers == workers and each.level == "power" and each.contender in peers
    ]
    ratios = [each.throughput.value for each in beside if each.throughput.value is not None]
    rest = ""
    if ratios:
        longest = [each.longest for each in beside]
        rest = (
            f"; {number(min(ratios))} to {number(max(ratios))} times the jobs/s of "
            f"{len(ratios)} other queues at the same level, and {number(min(longest))} to "
            f"{number(max(longest))} times their longest wait"
        )
    plural = "worker" if workers == 1 else "workers"
    return (
        f"{workers} {plural} at power: killproof {figure_value(ours.jobs_per_s)} jobs/s, p99.9 "
        f"{figure_value(ours.p999_ms)} ms, longest wait {number(ours.longest_ms)} ms{rest}."
    )


def terminal(result: PeersResult) -> str:
    """Return what the command prints."""
    parts = [
        result.sentence,
        "",
        plain_table(HEAD, [_row(cell, plain=True) for cell in _sorted(result)]),
        "",
        plain_table(BESIDE, [_beside(each) for each in result.comparisons]),
        "",
        *(f"{_met(goal.met):<8} {goal.text} ({number(goal.measured)})" for goal in result.goals),
        "",
        *(
            f"{each.name}: {each.state}: {each.because}"
            for each in result.contenders
            if each.state != "measured"
        ),
        _noise(result),
    ]
    if result.interrupted:
        parts.insert(1, "Interrupted: what had ended is reported.")
    return "\n".join(parts)


def markdown(result: PeersResult) -> str:
    """Return the report."""
    measured = [each for each in result.contenders if each.state == "measured"]
    missing = [each for each in result.contenders if each.state != "measured"]
    parts = [
        "# Peers: killproof and other queues on SQLite, in one run",
        result.sentence,
        f"Command: `{result.command}`"
        + (" (interrupted: what had ended is reported)" if result.interrupted else ""),
        markdown_table(("", ""), _setting(result)),
        "## What this does not show",
        "\n".join(f"- {text}" for text in NOT_SHOWN),
        "## Figures",
        markdown_table(HEAD, [_row(cell, plain=False) for cell in _sorted(result)]),
        "In brackets: 95% interval. A quantile is refused (n/a) with fewer than ten samples beyond "
        "it. A job's time runs from the moment a worker asks for it to the return of its ack, "
        "through every error and every empty answer in between; one that never ended counts too. "
        "Killproof and the reference ack a job and claim the next in one call, one transaction "
        "where others need two; there it runs from the return of the call before. "
        "Errors are what the queue's calls raised at the worker, which tried again. Level: what an "
        "acknowledgement survives, from what was read back.",
        *_incidents(result),
        "## Killproof beside each",
        markdown_table(BESIDE, [_beside(each) for each in result.comparisons]),
        "Jobs/s: the median over rounds of the same number, and the least and the most of them. "
        "p99.9 and longest wait: killproof's over theirs; `<` where their p99.9 was refused and "
        "their p99 stands in, so that the true ratio is smaller.",
        "## Goals",
        markdown_table(
            ("goal", "measured", "met"),
            [(goal.text, number(goal.measured), _met(goal.met)) for goal in result.goals],
        ),
        "## What each queue is asked, and what it does not promise",
        *(part for each in measured for part in _contender(each)),
    ]
    if missing:
        parts += [
            "## Not measured",
            "\n".join(f"- {each.name} {each.version}: {each.because}" for each in missing),
        ]
    parts += ["## Conditions", *(_card(cell) for cell in _sorted(result))]
    return "\n\n".join(parts) + "\n"


def _setting(result: PeersResult) -> list[tuple[str, str]]:
    return [
        ("started", result.started),
        ("seed", str(result.seed)),
        *((name, value) for name, value in result.environment.items()),
        ("jobs in each file", f"{result.jobs:,} at power, of {result.payload_bytes} bytes each"),
        (
            "rounds",
            f"{result.rounds_planned}, contenders in an order drawn anew for each; "
            f"{result.warmup_seconds:g} s warm-up, {result.seconds:g} s measured",
        ),
        (
            "4 KiB write + fdatasync by one process",
            f"{number(result.raw_before)}/s before, {number(result.raw_after)}/s after",
        ),
        ("noise", _noise(result)),
    ]


def _noise(result: PeersResult) -> str:
    noise = result.noise
    if noise.noisy:
        return f"NOISY: {'; '.join(noise.because)}"
    return f"quiet: steal {noise.steal:.1%}, foreign CPU {noise.foreign_cpu:.1%}"


def _sorted(result: PeersResult) -> list[PeerCell]:
    """Most workers first, then by level, then by rate."""
    return sorted(
        result.cells, key=lambda c: (-c.workers, c.level != "power", -(c.jobs_per_s.value or 0.0))
    )


def _row(cell: PeerCell, *, plain: bool) -> tuple[str, ...]:
    show = figure_value if plain else figure
    void = cell.correctness.verdict == "violated" and cell.contender in OWN
    return (
        cell.contender,
        str(cell.workers),
        cell.level,
        "VOID" if void else show(cell.jobs_per_s),
        show(cell.p50_ms),
        show(cell.p99_ms),
        show(cell.p999_ms),
        number(cell.longest_ms),
        number(cell.fewest_over_most),
        f"{cell.acked_twice:,}",
        f"{cell.lost:,}",
        f"{cell.errors:,}",
    )


def _beside(each: Comparison) -> tuple[str, ...]:
    rate = each.throughput
    bound = "<" if each.p999_is_bound and each.p999 is not None else ""
    return (
        each.contender,
        str(each.workers),
        each.level,
        f"{number(rate.value)} times ({number(rate.low)} to {number(rate.high)}, {rate.n} rounds)",
        bound + number(each.p999),
        number(each.longest),
    )


def _met(met: bool | None) -> str:
    return {True: "yes", False: "NO", None: "not told"}[met]


def _incidents(result: PeersResult) -> list[str]:
    """Name what was counted beside the figures, with the first error in the queue's own words."""
    lines = []
    for cell in _sorted(result):
        told = list(dict.fromkeys(cell.correctness.because))
        example = next((each.error_example for each in cell.rounds if each.error_example), "")
        if example:
            told.append(f"first error: `{example}`")
        if told:
            lines.append(f"- {cell.contender}, {cell.workers} workers: {'; '.join(told)}")
    return ["Counted in these rounds:", "\n".join(lines)] if lines else []


def _contender(each: Contender) -> list[str]:
    gaps = "\n".join(f"- {gap.text} ({gap.source})" for gap in each.gaps)
    return [
        f"### {each.name} {each.version}".rstrip(),
        f"{each.url}, {each.language}, {each.delivery}. Claim: {each.claim_call}. "
        f"Ack: {each.ack_call}. Durability: {each.durability_how}.",
        *([gaps] if gaps else []),
    ]


def _card(cell: PeerCell) -> str:
    card = cell.card
    return (
        f"- {cell.contender}, {cell.workers} workers, {cell.level}: journal_mode "
        f"{card.journal_mode}, synchronous {card.synchronous}, {card.busy_policy}; "
        f"{card.python}, SQLite {card.sqlite}; n={card.n:,} in {card.seconds:g} s; {card.interval}"
    )
