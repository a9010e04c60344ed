"""The command `killproof bench rows`: what operations cost as a file grows."""

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from killproof_bench.command import (
    EXIT_CODES,
    AsJson,
    Dir,
    Durable,
    Level,
    Report,
    Seed,
    check_places,
    progress,
    scratch,
    surroundings,
    within,
)

if TYPE_CHECKING:
    from killproof_bench.rows_result import GrowthResult

ROWS_MIN: Final = 10_000
ROWS_MAX: Final = 10_000_000
#: What grows, one after the other: the backlog, the history, and all else that piles up.
AXES: Final = (("available",), ("succeeded",), ("dead", "scheduled", "leased"))
#: Counting and timing, in rows that could be seeded meanwhile: what the bar moves by.
CALLS_AS_ROWS: Final = 250_000


def rows(
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", help="Rows of the large file, in each state.")
    ] = 1_000_000,
    durability: Durable = Level.PROCESS,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure what each operation costs with 10,000 and with N rows, one state after the other."""
    within("--rows", rows, ROWS_MIN, ROWS_MAX)
    check_places(directory, report)
    from killproof_bench import report_rows
    from killproof_bench.rows_result import to_json

    result = measure(rows, durability, seed, directory)
    print(to_json(result) if as_json else report_rows.terminal(result))
    if report is not None:
        # Not at the top: a run without a report needs no templates.
        from killproof_bench import page

        report.write_text(report_rows.markdown(result), encoding="utf-8")
        report.with_suffix(".json").write_text(to_json(result) + "\n", encoding="utf-8")
        page.write(result, report.with_suffix(".html"))
        print(f"report: {report}, and .json and .html beside it", file=sys.stderr)
    raise typer.Exit(EXIT_CODES[result.verdict])


def measure(rows: int, durability: Level, seed: int, directory: Path) -> "GrowthResult":
    """Measure one axis after the other; Ctrl-C ends the run and keeps the axes that have ended."""
    from killproof_bench import machine, report_rows
    from killproof_bench.rows_result import SCHEMA, Axis, GrowthResult
    from killproof_bench.scenarios import rows as scenario

    started, before = datetime.now(UTC), machine.now()
    axes: list[Axis] = []
    facts: dict[str, str] = {}
    interrupted = False
    with scratch(directory) as folder, progress() as bar:
        environment = surroundings(folder)
        raw = [machine.raw_syncs_per_second(folder)]
        total = sum(scenario.seeded_rows(states, rows) + CALLS_AS_ROWS for states in AXES)
        task = bar.add_task("", total=total)
        try:
            for states in AXES:
                axis, facts = scenario.grow(
                    folder,
                    states=states,
                    rows=rows,
                    durability=durability.value,
                    seed=seed,
                    tick=lambda added, what: bar.update(task, advance=added, description=what),
                )
                axes.append(axis)
                bar.update(task, advance=CALLS_AS_ROWS)
        except KeyboardInterrupt:
            interrupted = True
        raw.append(machine.raw_syncs_per_second(folder))
    return GrowthResult(
        schema=SCHEMA,
        command=f"killproof {shlex.join(sys.argv[1:])}",
        seed=seed,
        started=started.isoformat(timespec="seconds"),
        interrupted=interrupted,
        environment=environment,
        noise=machine.noise(before, machine.now(), raw),
        durability=durability.value,
        raw=tuple(raw),
        journal_mode=facts.get("journal_mode", "not read"),
        synchronous=facts.get("synchronous", "not read"),
        autocheckpoint=int(facts.get("autocheckpoint", 0)),
        axes=tuple(axes),
        # The operations are counted, not judged: that they are right is what the tests show.
        verdict="unknown" if interrupted else "pass",
        sentence=report_rows.sentence(axes),
    )
