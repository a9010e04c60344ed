"""Turn a recorded result into sentences, tables and pictures: pure functions of `BenchResult`.

`report_contention` puts them together. Nothing is measured, read or rounded away here: a figure
that was refused is printed as refused.
"""

import dataclasses
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
    Setup,
    StoppedResult,
)
from killproof_bench.seeding import PAYLOAD_BYTES

TITLE = "Contention: killproof beside its own statements under SQLite's busy handler"

STOPPED_LOSS_GOAL = 0.25
STEPS_GOAL = 0.05
TIME_GOAL = 1.5


def sentence(cells: Sequence[Cell], ratios: Sequence[Ratio]) -> str:
    """Return the one sentence that the command and the report begin with: of the first setup."""
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
    setup = cells[0].setup
    compared = [ratio for ratio in ratios if ratio.setup == setup]
    if not compared:
        return f"One side alone was measured; each of {jobs:,} jobs was done exactly once."
    last = max(compared, key=lambda ratio: ratio.workers)
    ours = next(c for c in cells if (c.setup, c.workers, c.arm) == (setup, last.workers, ARMS[0]))
    throughput = "" if last.throughput is None else f", {last.throughput:.2f} times the reference"
    tail = (
        "p99.9 refused for too few samples"
        if last.p999 is None or last.p999 == 0
        else f"p99.9 {number(ours.p999_ms.value)} ms, 1/{1 / last.p999:.1f} of the reference's"
    )
    return (
        f"{_workers(last.workers)} at {plan_name(setup)}: {number(ours.jobs_per_s.value)} jobs/s"
        f"{throughput}; {tail}; fewest/most {last.fewest_over_most:.2f} against "
        f"{last.fewest_over_most_reference:.2f}; each of {jobs:,} jobs was done exactly once."
    )


def plan_name(setup: Setup) -> str:
    """Return a setup in a few words: its level, and what is not as in the default run.

    The backlog is left out: by default it follows from the length of a round.
    """
    words = [setup.durability]
    if setup.loop == "open":
        words.append(f"{setup.rate_per_s:,.10g} jobs/s offered ({setup.arrivals})")
    if setup.batch > 1:
        words.append(f"batch {setup.batch:,}")
    if setup.call != "ack-and-claim":
        words.append("claim then ack")
    if setup.payload_bytes != PAYLOAD_BYTES:
        words.append(f"payload {setup.payload_bytes:,} bytes")
    if setup.finished:
        words.append(f"{setup.finished:,} finished")
    if setup.job_ms:
        words.append(f"{setup.job_ms:g} ms of work")
    return ", ".join(words)


def groups(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Return the cells of each setup with its name, setups as measured, cells by their workers."""
    by_setup: dict[Setup, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.workers):
        by_setup.setdefault(cell.setup, []).append(cell)
    by_setup = {cell.setup: by_setup[cell.setup] for cell in cells}
    names = [plan_name(setup) for setup in by_setup]
    return [
        # Two that differ in nothing else differ in their backlog.
        (name if names.count(name) == 1 else f"{name}, backlog {setup.backlog:,}", of_setup)
        for name, (setup, of_setup) in zip(names, by_setup.items(), strict=True)
    ]


def _fate(correctness: Correctness) -> str:
    return "are void" if correctness.verdict == "violated" else "prove nothing"


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def limits(result: BenchResult) -> list[str]:
    """Return what must not be concluded, as the lines of a list."""
    lines = [
        "- Another machine. Rates follow the disk's own sync rate, printed with each round; "
        "trust the ratios within this run, not the absolutes.",
        "- A workload that thinks, where the loop is closed: workers then do nothing between two "
        "jobs, which is the worst case for the lock and the best for the rate. Its latencies are "
        "those of workers, not of users: a slow call delays the next one instead of meeting it.",
    ]
    if not any(cell.setup.producers for cell in result.cells):
        lines.append(
            "- Time from enqueue to claim: all jobs were there before a round began "
            "(`--loop open` measures it)."
        )
    lines += [
        "- Long runs: rounds of seconds see many checkpoints, and no aged file.",
        "- Power loss: that an acknowledged job survives one is not measured here.",
    ]
    if result.noise.noisy:
        lines.append("- A quiet machine: see the noise above.")
    return lines


def ratio_line(ratio: Ratio) -> str:
    """Return the ratios of one number of workers."""
    pooled = " (of all rounds together)" if ratio.p999_pooled and ratio.p999 is not None else ""
    return (
        f"{_workers(ratio.workers)}: fewest/most {ratio.fewest_over_most:.2f} "
        f"(reference {ratio.fewest_over_most_reference:.2f}), p99.9 ratio "
        f"{_ratio(ratio.p999, 3)}{pooled}, longest wait ratio {_ratio(ratio.longest, 3)}, "
        f"throughput ratio {_ratio(ratio.throughput, 2)}"
    )


def _ratio(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


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


def wal_lines(cells: Sequence[Cell]) -> list[str]:
    """Return the log's size and its backlog second by second, of the most workers' first rounds."""
    most = max(cell.workers for cell in cells)
    lines = []
    for cell in cells:
        watch = cell.rounds[0].watch
        if cell.workers == most and watch.wal_bytes:
            sizes = " ".join(f"{size / 2**20:.1f}" for size in watch.wal_bytes)
            behind = " ".join(f"{frames:,}" for frames in watch.frames_behind)
            lines.append(
                f"- {cell.arm}, {_workers(most)}, each second of its first round, warm-up "
                f"included: WAL {sizes} MiB; frames not yet copied: {behind}"
            )
    return ["\n".join(lines)] if lines else []


def rounds_table(cells: Sequence[Cell]) -> Table:
    """Return every round in the order in which it ran."""
    head = (
        "order",
        "workers",
        "arm",
        "jobs/s",
        "fewest",
        "most",
        "p99.9 ms",
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
            number(a_round.p999_ms),
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
