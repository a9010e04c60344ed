"""Turn a recorded result into prose, tables and a picture: pure functions of `BenchResult`.

`terminal` is what the command prints, `contention` is the Markdown report. Nothing is measured,
read or rounded away here: a figure that was refused is printed as refused.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from killproof_bench.ascii_chart import Bar, bars
from killproof_bench.result import (
    ARMS,
    BenchResult,
    Cell,
    ClaimCard,
    Correctness,
    Figure,
    Ratio,
    RowsResult,
    StoppedResult,
)

TITLE = "Contention: killproof beside its own statements under SQLite's busy handler"

#: What the comparison is asked to show at the largest number of workers; printed, never asserted.
FAIRNESS_GOAL = 0.7
TAIL_GOAL = 1 / 8
THROUGHPUT_GOAL = 1.2
GOAL_WORKERS = 16
STOPPED_LOSS_GOAL = 0.25
STEPS_GOAL = 0.05
TIME_GOAL = 1.5


def sentence(cells: Sequence[Cell], ratios: Sequence[Ratio], durability: str) -> str:
    """Return the one sentence that the command and the report begin with."""
    if not cells:
        return "Nothing was measured."
    broken = [cell for cell in cells if cell.correctness.verdict != "pass"]
    if broken:
        first = broken[0]
        return (
            f"The figures {_fate(first.correctness)}: {first.arm} with {_workers(first.workers)}: "
            f"{'; '.join(first.correctness.because[:2]) or 'gave no evidence'}."
        )
    jobs = sum(cell.correctness.jobs for cell in cells)
    if not ratios:
        return f"One side alone was measured; each of {jobs:,} jobs was done exactly once."
    last = max(ratios, key=lambda ratio: ratio.workers)
    ours = next(c for c in cells if c.workers == last.workers and c.arm == ARMS[0])
    throughput = "" if last.throughput is None else f", {last.throughput:.2f} times the reference"
    tail = (
        "p99.9 refused for too few samples"
        if last.p999 is None or last.p999 == 0
        else f"p99.9 {number(ours.p999_ms.value)} ms, 1/{1 / last.p999:.1f} of the reference's"
    )
    return (
        f"{_workers(last.workers)} at {durability}: {number(ours.jobs_per_s.value)} jobs/s"
        f"{throughput}; {tail}; fewest/most {last.fewest_over_most:.2f} against "
        f"{last.fewest_over_most_reference:.2f}; each of {jobs:,} jobs was done exactly once."
    )


def _fate(correctness: Correctness) -> str:
    return "are void" if correctness.verdict == "violated" else "prove nothing"


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def terminal(result: BenchResult) -> str:
    """Return what the command prints: the sentence first, then the figures and their conditions."""
    parts = [result.sentence]
    if result.interrupted:
        parts.append("Interrupted: these are the rounds that had ended.")
    if result.ratios:
        parts.append("\n".join(ratio_line(ratio) for ratio in result.ratios))
    if result.cells:
        parts.append(plain_table(*figures(result.cells)))
        parts.append(picture(result.cells))
        parts.append("\n".join(plain_card(result.cells)))
    if result.rows is not None:
        parts += [rows_sentence(result.rows), plain_table(*rows_table(result.rows))]
    if result.stopped is not None:
        parts += [stopped_sentence(result.stopped), plain_table(*stopped_table(result.stopped))]
    parts.append(noise_sentence(result))
    # A run of one part alone has that part's sentence at its head already.
    return "\n\n".join(dict.fromkeys(parts))


def contention(result: BenchResult) -> str:
    """Return the whole Markdown report."""
    environment = result.environment
    parts = [
        f"# {TITLE}",
        result.sentence,
        f"Command: `{result.command}`",
        markdown_table(
            ("", ""),
            [
                ("seed", str(result.seed)),
                ("started", result.started),
                ("machine", environment.get("machine", "unknown")),
                *((name, text) for name, text in environment.items() if name != "machine"),
                *(_rounds_lines(result) if result.cells else ()),
                ("noise", noise_sentence(result)),
            ],
        ),
    ]
    if result.interrupted:
        parts.append("**The run was interrupted: only rounds that had ended are counted.**")
    if reached := goals(result):
        parts += ["## Goals", markdown_table(("goal", "measured", "met"), reached)]
    if result.cells:
        parts += _contention_parts(result)
    if result.rows is not None:
        hidden = ", where no sync hides the cost" if result.rows.durability == "process" else ""
        parts += [
            "## Claim cost with many rows",
            rows_sentence(result.rows),
            markdown_table(*rows_table(result.rows)),
            f"Rows in each of {', '.join(result.rows.states)}: {result.rows.rows_small:,} in the "
            f"small file, {result.rows.rows_large:,} in the large one "
            f"({result.rows.file_bytes / 2**20:,.0f} MiB, seeded in "
            f"{result.rows.seeding_seconds:.0f} s); {result.rows.available:,} available in both. "
            "The leases belong to a living worker.\n"
            "Steps are those of SQLite's virtual machine, counted by its progress handler at every "
            "step.\n"
            f"Times are medians of {result.rows.calls:,} calls at durability "
            f"`{result.rows.durability}`{hidden}, the two files taking turns call by call.",
        ]
    if result.stopped is not None:
        parts += [
            "## A stopped holder of the turnstile",
            stopped_sentence(result.stopped),
            markdown_table(*stopped_table(result.stopped)),
        ]
    parts += ["## What this does not show", "\n".join(limits(result))]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _rounds_lines(result: BenchResult) -> list[tuple[str, str]]:
    return [
        ("rounds", f"{result.rounds_planned} of each arm at each number of workers"),
        ("each round", f"{result.warmup_seconds:g} s warm-up, {result.seconds:g} s measured"),
    ]


def _contention_parts(result: BenchResult) -> list[str]:
    return [
        "## Figures",
        markdown_table(*figures(result.cells)),
        "In brackets: 95% interval. "
        "A quantile is refused (n/a) with fewer than ten samples beyond it.\n"
        "Fewest/most is the share that the worst-served worker got of what the best-served one "
        "got: the median over the rounds, and the worst round.\n"
        "A call that was still waiting when the measured time ended counts with the time it took.",
        "## Ratios",
        "\n".join(f"- {ratio_line(ratio)}" for ratio in result.ratios),
        f"```text\n{picture(result.cells)}\n```",
        "## Locks and WAL, seen from outside",
        markdown_table(*locks_table(result.cells)),
        "## Claim card",
        markdown_table(("condition", *ARMS), card_rows(result.cells)),
        "## Every round, in the order of the run",
        markdown_table(*rounds_table(result.cells)),
        "## Method",
        "Each worker is a fresh process on a kept connection and takes one job at a time: one "
        "transaction acks a job and claims the next.\n"
        "Both arms run the same code and the same statements of `killproof.core`. "
        "The reference has no turnstile and no shared sync: "
        "SQLite's busy handler waits (30 s), and at durability `power` synchronous=FULL makes each "
        "commit durable.\n"
        "Each round has a fresh copy of one seeded file. "
        "The arms of one number of workers follow each other as ABBA or BAAB, by a seeded coin, "
        "so that a drift of the machine meets both.\n"
        "Intervals come from a bootstrap over blocks of one second, because neighbouring calls "
        "wait for the same lock.\n"
        "The verdict of each round compares what the workers wrote down with what the file holds "
        "afterwards.",
    ]


def limits(result: BenchResult) -> list[str]:
    """Return what must not be concluded, as the lines of a list."""
    lines = [
        "- Another machine. Rates follow the disk's own sync rate, printed with each round; "
        "trust the ratios within this run, not the absolutes.",
        "- A workload that thinks. Workers here do nothing between two jobs (closed loop), which "
        "is the worst case for the lock and the best for the rate; latency under an offered load "
        "is another measurement.",
        "- Time from enqueue to claim: all jobs were there before the run began.",
        "- Long runs: rounds of seconds see many checkpoints, and no aged file.",
        "- Power loss: that an acknowledged job survives one is not measured here.",
    ]
    if result.noise.noisy:
        lines.append("- A quiet machine: see the noise above.")
    return lines


def ratio_line(ratio: Ratio) -> str:
    """Return the three ratios of one number of workers."""
    tail = "n/a" if ratio.p999 is None else f"{ratio.p999:.3f}"
    throughput = "n/a" if ratio.throughput is None else f"{ratio.throughput:.2f}"
    return (
        f"{_workers(ratio.workers)}: fewest/most {ratio.fewest_over_most:.2f} "
        f"(reference {ratio.fewest_over_most_reference:.2f}), p99.9 ratio {tail}, "
        f"throughput ratio {throughput}"
    )


def goals(result: BenchResult) -> list[tuple[str, str, str]]:
    """Return each goal that this run can speak about, with what was measured."""
    found = []
    for ratio in result.ratios:
        if ratio.workers != GOAL_WORKERS:
            continue
        found += [
            _goal(
                f"{GOAL_WORKERS} workers: fewest/most at least {FAIRNESS_GOAL}",
                ratio.fewest_over_most,
                ratio.fewest_over_most >= FAIRNESS_GOAL,
            ),
            _goal(
                f"{GOAL_WORKERS} workers: p99.9 at most {TAIL_GOAL:g} of the reference's",
                ratio.p999,
                ratio.p999 is not None and ratio.p999 <= TAIL_GOAL,
            ),
            _goal(
                f"{GOAL_WORKERS} workers: throughput at least {THROUGHPUT_GOAL} times",
                ratio.throughput,
                ratio.throughput is not None and ratio.throughput >= THROUGHPUT_GOAL,
            ),
        ]
    if result.stopped is not None:
        loss = result.stopped.loss.value
        found.append(
            _goal(
                f"a stopped holder costs the others at most {STOPPED_LOSS_GOAL:.0%}",
                loss,
                loss is not None and loss <= STOPPED_LOSS_GOAL,
            )
        )
    for cost in result.rows.costs if result.rows is not None else ():
        steps = cost.steps_large / cost.steps_small - 1 if cost.steps_small else math.inf
        ratio_of_times = cost.time_ratio.value
        found += [
            _goal(
                f"{cost.operation}: steps within {STEPS_GOAL:.0%} of the small file's",
                steps,
                abs(steps) <= STEPS_GOAL,
            ),
            _goal(
                f"{cost.operation}: time ratio under {TIME_GOAL}",
                ratio_of_times,
                ratio_of_times is not None and ratio_of_times < TIME_GOAL,
            ),
        ]
    return found


def _goal(text: str, measured: float | None, met: bool) -> tuple[str, str, str]:
    return text, "n/a" if measured is None else f"{measured:.3f}", "yes" if met else "**no**"


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def figures(cells: Sequence[Cell]) -> Table:
    """Return the main table."""
    head = (
        "workers",
        "arm",
        "jobs/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "fewest/most (worst)",
        "Jain, least",
        "verdict",
    )
    return head, [
        (
            str(cell.workers),
            cell.arm,
            figure(cell.jobs_per_s),
            figure(cell.p50_ms),
            figure(cell.p99_ms),
            figure(cell.p999_ms),
            number(cell.max_ms),
            f"{cell.fewest_over_most:.2f} ({cell.fewest_over_most_worst:.2f})",
            f"{cell.jain_min:.3f}",
            cell.correctness.verdict,
        )
        for cell in cells
    ]


def locks_table(cells: Sequence[Cell]) -> Table:
    """Return what the watching process saw, worst round of each cell."""
    head = (
        "workers",
        "arm",
        "write lock held",
        "turnstile held",
        "WAL MiB, most",
        "frames behind, most",
        "checkpoints",
    )
    lines = []
    for cell in cells:
        watches = [a_round.watch for a_round in cell.rounds]
        held = [w.write_lock_held for w in watches if w.write_lock_held is not None]
        turnstile = [w.turnstile_held for w in watches if w.turnstile_held is not None]
        lines.append(
            (
                str(cell.workers),
                cell.arm,
                f"{max(held):.0%}" if held else "n/a",
                f"{max(turnstile):.0%}" if turnstile else "n/a",
                f"{max(w.wal_bytes_max for w in watches) / 2**20:.1f}",
                f"{max(w.frames_behind_max for w in watches):,}",
                f"{sum(w.restarts for w in watches):,}",
            )
        )
    return head, lines


def rounds_table(cells: Sequence[Cell]) -> Table:
    """Return every round in the order in which it ran."""
    head = (
        "order",
        "workers",
        "arm",
        "jobs/s",
        "fewest",
        "most",
        "max ms",
        "raw syncs/s around it",
    )
    ordered = sorted(
        ((a_round, cell) for cell in cells for a_round in cell.rounds),
        key=lambda pair: pair[0].position,
    )
    return head, [
        (
            str(a_round.position + 1),
            str(cell.workers),
            cell.arm,
            number(a_round.jobs_per_s),
            f"{min(a_round.counts):,}",
            f"{max(a_round.counts):,}",
            number(a_round.max_ms),
            f"{number(a_round.raw_before)}, {number(a_round.raw_after)}",
        )
        for a_round, cell in ordered
    ]


def card_lines(cell: Cell) -> list[tuple[str, str]]:
    """Return the claim card of one cell, every field."""
    return card_fields(cell.card)


def card_fields(card: ClaimCard) -> list[tuple[str, str]]:
    """Return a claim card, every field in words."""
    return [
        (field.name.replace("_", " "), _plain(getattr(card, field.name)))
        for field in dataclasses.fields(card)
    ]


def card_rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Return the claim cards side by side; where a field differs between cells, each value."""
    cards = {arm: [(c.workers, dict(card_lines(c))) for c in cells if c.arm == arm] for arm in ARMS}
    names = [name for name, _ in card_lines(cells[0])]
    return [(name, *(_joined(name, cards[arm]) for arm in ARMS)) for name in names]


def plain_card(cells: Sequence[Cell]) -> list[str]:
    """Return the claim cards as lines for a terminal; a condition that both arms share once."""
    return [
        f"{name}: {ours}" if ours == reference else f"{name}: {ours} | reference: {reference}"
        for name, ours, reference in card_rows(cells)
    ]


def _joined(name: str, cards: Sequence[tuple[int, dict[str, str]]]) -> str:
    values = [(workers, card[name]) for workers, card in cards]
    if len({value for _, value in values}) <= 1:
        return values[0][1] if values else "not measured"
    return "; ".join(f"{workers}: {value}" for workers, value in values)


def rows_sentence(rows: RowsResult) -> str:
    """Say whether the cost is flat."""
    worst_steps = max(abs(c.steps_large / c.steps_small - 1) for c in rows.costs)
    times = [c.time_ratio.value for c in rows.costs if c.time_ratio.value is not None]
    flat = worst_steps <= STEPS_GOAL and all(time < TIME_GOAL for time in times)
    return (
        f"{'Flat' if flat else 'Not flat'}: from {rows.rows_small:,} to {rows.rows_large:,} rows "
        f"in each of {', '.join(rows.states)}, the steps of an operation change by at most "
        f"{worst_steps:.1%} and its time by a factor of at most {max(times):.2f}."
    )


def rows_table(rows: RowsResult) -> Table:
    """Return the cost of each operation on the small and on the large file."""
    head = ("operation", "steps, small", "steps, large", "us, small", "us, large", "time ratio")
    return head, [
        (
            cost.operation,
            f"{cost.steps_small:,.1f}",
            f"{cost.steps_large:,.1f}",
            f"{cost.us_small:,.1f}",
            f"{cost.us_large:,.1f}",
            figure(cost.time_ratio),
        )
        for cost in rows.costs
    ]


def stopped_sentence(stopped: StoppedResult) -> str:
    """Say what a stopped holder costs."""
    if stopped.correctness.verdict != "pass":
        reasons = "; ".join(stopped.correctness.because[:2])
        return f"The figures {_fate(stopped.correctness)}: {reasons}."
    return (
        f"One of {stopped.workers} workers, stopped while it holds the turnstile, costs the others "
        f"{_percent(stopped.loss)} of their throughput after the first "
        f"{stopped.settle_seconds:g} s, beside the same worker stopped holding nothing."
    )


def stopped_table(stopped: StoppedResult) -> Table:
    """Return the others' throughput in every window."""
    head = (
        "pair of windows",
        "all running, jobs/s",
        "one stopped, holding nothing",
        "one stopped, holding the turnstile",
    )
    lines = zip(stopped.running, stopped.undisturbed, stopped.holding, strict=True)
    return head, [
        (str(position + 1), *(number(rate) for rate in line)) for position, line in enumerate(lines)
    ]


def _percent(value: Figure) -> str:
    if value.value is None:
        return f"n/a (n={value.n})"
    if value.low is None or value.high is None:
        return f"{value.value:.1%}"
    return f"{value.value:.1%} [{value.low:.1%} to {value.high:.1%}]"


def noise_sentence(result: BenchResult) -> str:
    """Return the noise badge."""
    noise = result.noise
    badge = f"NOISY: {'; '.join(noise.because)}" if noise.noisy else "quiet"
    return (
        f"{badge} (steal {noise.steal:.1%}, foreign CPU {noise.foreign_cpu:.1%}, load "
        f"{noise.load_before:.2f} before and {noise.load_after:.2f} after, pressure before: CPU "
        f"{noise.pressure_cpu_before:.1f}%, I/O {noise.pressure_io_before:.1f}%)"
    )


def picture(cells: Sequence[Cell]) -> str:
    """Draw throughput (from 0) and p99.9 (log scale) over the number of workers, in plain ASCII."""
    rates = [_bar(cell, cell.jobs_per_s) for cell in cells]
    tails = [_bar(cell, cell.p999_ms) for cell in cells]
    return "\n\n".join((bars("jobs/s", rates), bars("p99.9 ms", tails, log=True)))


def _bar(cell: Cell, value: Figure) -> Bar:
    return Bar(
        label=f"{_workers(cell.workers)}, {cell.arm:<9}",
        value=value.value,
        text=figure_value(value),
        mark="#" if cell.arm == ARMS[0] else "-",
    )


def figure(value: Figure) -> str:
    """Return a figure with its interval."""
    if value.value is None or value.low is None or value.high is None:
        return figure_value(value)
    return f"{number(value.value)} [{number(value.low)} to {number(value.high)}]"


def figure_value(value: Figure) -> str:
    """Return a figure without its interval; a refused one says how many samples it had."""
    return f"n/a (n={value.n:,})" if value.value is None else number(value.value)


def number(value: float | None) -> str:
    """Return a number with three digits or more, and no digit that the measurement cannot carry.

    >>> number(3512.4), number(21.37), number(0.8312), number(None)
    ('3,512', '21.4', '0.831', 'n/a')
    """
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal, columns padded."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
