"""The two texts of `killproof bench claim`, `rows` and `stopped`: for a terminal, and in Markdown.

Pure functions of the recorded result; the tables come from `report` and its neighbours.
"""

from collections.abc import Sequence
from typing import Final

from killproof_bench import report_anatomy as inside
from killproof_bench import report_curves
from killproof_bench.report import (
    card_rows,
    figures,
    groups,
    limits,
    locks_table,
    markdown_table,
    noise_sentence,
    number,
    picture,
    plain_card,
    plain_table,
    ratio_line,
    rounds_table,
    rows_sentence,
    rows_table,
    stopped_sentence,
    stopped_table,
    wal_lines,
)
from killproof_bench.report_goals import goals
from killproof_bench.result import ARMS, BenchResult, Cell

TITLE: Final = "Contention: killproof beside its own statements under SQLite's busy handler"


def terminal(result: BenchResult) -> str:
    """Return what the command prints: the sentence first, then the figures and their conditions."""
    parts = [result.sentence]
    if result.interrupted:
        parts.append("Interrupted: these are the rounds that had ended.")
    if reached := goals(result):
        parts.append(
            plain_table(("goal", "measured", "met"), [_plain_goal(row) for row in reached])
        )
    for name, cells in groups(result.cells):
        parts += _plain_group(result, name, cells)
    parts += report_curves.over_load(result.cells)
    if result.rows is not None:
        parts += [rows_sentence(result.rows), plain_table(*rows_table(result.rows))]
    if result.stopped is not None:
        parts += [stopped_sentence(result.stopped), plain_table(*stopped_table(result.stopped))]
    if result.cells:
        parts.append(f"{_raw_sentence(result)}\n{_timing_sentence(result)}".strip())
    parts.append(noise_sentence(result))
    # A run of one part alone has that part's sentence at its head already.
    return "\n\n".join(dict.fromkeys(parts))


def _plain_goal(row: tuple[str, str, str]) -> tuple[str, str, str]:
    goal, measured, met = row
    return goal, measured, met.strip("*")


def _plain_group(result: BenchResult, name: str, cells: Sequence[Cell]) -> list[str]:
    parts = [f"== {name} ==", *_ratios(result, cells), plain_table(*figures(cells))]
    parts += [*report_curves.over_workers(cells), picture(cells)]
    if _has_other_latencies(cells):
        parts.append(plain_table(*inside.latency_table(cells)))
    if any(cell.schedule is not None for cell in cells):
        parts.append(plain_table(*inside.schedule_table(cells)))
    if inside.timed(cells):
        parts += [inside.picture(cells), plain_table(*inside.lock_table(cells))]
    return [*parts, "\n".join(plain_card(cells))]


def _ratios(result: BenchResult, cells: Sequence[Cell]) -> list[str]:
    compared = [ratio for ratio in result.ratios if ratio.setup == cells[0].setup]
    lines = [ratio_line(ratio) for ratio in sorted(compared, key=lambda ratio: ratio.workers)]
    return ["\n".join(lines)] if lines else []


def _has_other_latencies(cells: Sequence[Cell]) -> bool:
    return any(len(cell.latencies) > 1 for cell in cells)


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
                *((("raw disk", _raw_sentence(result)),) if result.cells else ()),
                ("noise", noise_sentence(result)),
            ],
        ),
    ]
    if result.interrupted:
        parts.append("**The run was interrupted: only rounds that had ended are counted.**")
    if reached := goals(result):
        parts += ["## Goals", markdown_table(("goal", "measured", "met"), reached)]
    if result.cells:
        parts.append(_method(result))
    for name, cells in groups(result.cells):
        parts += _markdown_group(result, name, cells)
    if drawn := report_curves.over_load(result.cells):
        parts += ["## Latency over the offered rate", *(f"```text\n{each}\n```" for each in drawn)]
    if result.cells:
        parts += ["## Every round, in the order of the run", markdown_table(*_rounds(result))]
    parts += _other_parts(result)
    parts += ["## What this does not show", "\n".join(limits(result))]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _markdown_group(result: BenchResult, name: str, cells: Sequence[Cell]) -> list[str]:
    """Return the sections of one setup; their titles differ, so that each can be linked to."""
    parts = [f"## {name}", markdown_table(*figures(cells))]
    parts += ["- " + lines.replace("\n", "\n- ") for lines in _ratios(result, cells)]
    parts += [f"```text\n{drawn}\n```" for drawn in report_curves.over_workers(cells)]
    parts.append(f"```text\n{picture(cells)}\n```")
    if _has_other_latencies(cells):
        parts += [
            f"### Each latency by itself: {name}",
            markdown_table(*inside.latency_table(cells)),
        ]
    if any(cell.schedule is not None for cell in cells):
        parts += [f"### Schedule: {name}", markdown_table(*inside.schedule_table(cells))]
    if inside.timed(cells):
        parts += [
            f"### Where a claim's time goes: {name}",
            f"```text\n{inside.picture(cells)}\n```",
            markdown_table(*inside.parts_table(cells)),
            markdown_table(*inside.lock_table(cells)),
        ]
    return [
        *parts,
        f"### Locks and WAL, seen from outside: {name}",
        markdown_table(*locks_table(cells)),
        *wal_lines(cells),
        f"### Claim card: {name}",
        markdown_table(("condition", *ARMS), card_rows(cells)),
    ]


def _method(result: BenchResult) -> str:
    lines = [
        "## How to read this",
        "",
        "Each worker is a fresh process on a kept connection.",
        "Both arms run the same code and the same statements of `killproof.core`. "
        "The reference has no turnstile and no shared sync: SQLite's busy handler waits (30 s), "
        "and at durability `power` synchronous=FULL makes each commit durable.",
        "Each round has a fresh copy of one seeded file. "
        "The arms of one cell follow each other as ABBA or BAAB, by a seeded coin, "
        "so that a drift of the machine meets both. "
        "A ratio is the median over the pairs of rounds that stood side by side.",
        "In brackets: 95% interval, from a bootstrap over blocks of one second, because "
        "neighbouring calls wait for the same lock. "
        "A quantile is refused (n/a) with fewer than ten samples beyond it.",
        "The main table has the claim call, from its begin. "
        "A call that was still waiting when the measured time ended counts with the time it took.",
        "Fewest/most is the share that the worst-served worker got of what the best-served one "
        "got: the median over the rounds, and the worst round.",
        "The verdict of each round compares what every process wrote down with what the file holds "
        "afterwards; a violation voids every figure.",
    ]
    if any(cell.anatomy is not None for cell in result.cells):
        lines += [
            "The parts of a call are means that add up. "
            "*Wait* is from asking for a turn (before the turnstile) to SQLite's write lock: "
            "*held* while another call has it, *idle* while nobody has it, which is the handover "
            "gap. *Statements* is from the lock to the last statement's end, the Python around "
            "them included. *Commit* writes the log; at synchronous=FULL SQLite syncs it there, "
            "and an automatic checkpoint of the reference runs there too. *Sync* is killproof's: "
            "the turnstile is left, then the log synced, outside the lock.",
            _timing_sentence(result),
        ]
    if any(cell.setup.loop == "open" for cell in result.cells):
        lines.append(
            "In an open loop every call has an intended time that no slow call moves. "
            "*From the call's begin* and *from its intended time* stand side by side: what is "
            "between them is what a closed loop never shows. "
            "*Time to claim* is from the intended enqueue to the commit of the claim. "
            "A sleeping process wakes some 0.1 ms late, which is in every intended latency."
        )
    return "\n".join(lines)


def _rounds(result: BenchResult) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the rounds of all setups in one table."""
    found: list[tuple[int, Sequence[str]]] = []
    head: Sequence[str] = ()
    for name, cells in groups(result.cells):
        head, rows = rounds_table(cells)
        found += [(int(row[0]), (row[0], name, *row[1:])) for row in rows]
    return (head[0], "setup", *head[1:]), [row for _, row in sorted(found)]


def _raw_sentence(result: BenchResult) -> str:
    """Say what the disk could do by itself, before and after the run."""
    ordered = sorted((r for cell in result.cells for r in cell.rounds), key=lambda r: r.position)
    rates = [rate for each in ordered for rate in (each.raw_before, each.raw_after)]
    return (
        f"4 KiB write + fdatasync by one process: {number(rates[0])}/s before the run, "
        f"{number(rates[-1])}/s after it, {number(min(rates))} to {number(max(rates))} between"
    )


def _timing_sentence(result: BenchResult) -> str:
    if result.timing_us is None:
        return ""
    return (
        "Where a call's time goes comes from one pair of rounds more for each cell, which gives no "
        f"other figure: to time its points costs a call {result.timing_us:.2f} us, and more when "
        "its process has just got the processor."
    )


def _other_parts(result: BenchResult) -> list[str]:
    parts = []
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
    return parts
