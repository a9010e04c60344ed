"""The command `killproof chaos crash`: its options, its progress, its table.

Exit codes as everywhere: 0 no violation found, 1 violated, 2 unknown, 3 the harness itself failed,
64 wrong usage.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from killproof_chaos import summary, targets
from killproof_chaos.engines.crash import POINTS, Engine, Turn, operations_of
from killproof_chaos.engines.crew import EngineFailed
from killproof_evidence.judge import render_rows
from killproof_evidence.store import Store

EXIT_OF: Final = {"pass": 0, "violated": 1, "unknown": 2}
EXIT_FAILED: Final = 3
STORES: Final = "killproof-store"
#: Of a log or a pipe; 80 would fold the longest sentence of the table.
FILE_COLUMNS: Final = 110
#: Seconds between two lines of progress in a log.
PLAIN_SECONDS: Final = 5.0
#: Reasons that are printed; all of them are in verdict.json.
REASONS_MAX: Final = 10
#: One letter for each verdict, for the map of calls.
LETTERS: Final = {"pass": ".", "violated": "X", "unknown": "?"}


class Unknown(StrEnum):
    """What CI makes of `unknown`."""

    PASS = "pass"
    FAIL = "fail"


def crash(
    target: Annotated[
        str, typer.Option(help="A name from `chaos targets`, package.module:attribute, or path.py.")
    ] = "killproof",
    operation: Annotated[
        list[str] | None, typer.Option(help="Only this operation; may be given several times.")
    ] = None,
    errors: Annotated[
        bool, typer.Option(help="Also make each call fail, and compare what its caller was told.")
    ] = True,
    store: Annotated[
        Path | None, typer.Option(help="A new folder for all evidence of the run.")
    ] = None,
    unknown: Annotated[
        Unknown | None, typer.Option(help="Exit as for pass or fail when the verdict is unknown.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write the verdict as JUnit XML.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print verdict.json on stdout.")] = False,
) -> None:
    """Kill a queue before and after every file call of every operation, and fail each call.

    Needs Linux and a C compiler; without them the verdict is unknown. For each point the files are
    fresh, a clean process recovers and finishes all jobs, and the judge reads what was recorded.
    """
    chosen = choose(targets.load(target), operation)
    name = f"crash-{Path(target).stem}-{time.strftime('%Y%m%d-%H%M%S')}".replace(":", "-")
    place = Store.create(store or Path(STORES) / name)
    print(f"evidence in {place.path}", file=sys.stderr)
    try:
        record = Engine(target, chosen, place, _progress(), errors=errors).run()
    except EngineFailed as error:
        print(
            f"killproof: the harness failed, which says nothing of the queue: {error}",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED) from None
    _tell(record, place, as_json=as_json)
    rows = list(render_rows(record))
    if junit is not None:
        junit.write_bytes(summary.junit(record, rows))
    if step := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(step, "a", encoding="utf-8") as file:
            file.write(summary.markdown(record, rows))
    code = EXIT_OF[record["verdict"]]
    if code == EXIT_OF["unknown"] and unknown is not None:
        code = 0 if unknown is Unknown.PASS else 1
    raise typer.Exit(code)


def choose(target: Any, wanted: list[str] | None) -> tuple[str, ...]:
    """Return the operations to kill in.

    Raises:
        ValueError: the target has no such operation; the message says which it has.
    """
    offered = operations_of(target)
    for name in wanted or ():
        if name not in offered:
            raise ValueError(
                f"--operation {name!r} is none of {target.name}: use {', '.join(offered)}"
            )
    return tuple(name for name in offered if not wanted or name in wanted)


def refuse(folder: Path) -> None:
    """Refuse to judge or repeat a run of this engine as one: each of its points is a run.

    Raises:
        ValueError: the folder holds such a run; the message names the commands for it.
    """
    if (folder / POINTS).exists():
        again = Store(folder).read_run()["replay"]
        raise ValueError(
            f"{folder} holds the points of a crash run: judge one with "
            f"`killproof chaos check {folder}/points/NAME`, or repeat all with `{again}`"
        )


def headline(record: dict[str, Any]) -> str:
    """Return the result in one sentence."""
    counts, operations = record["counts"], record["operations"]
    extent = (
        f"in {counts['kills']:,} kills and {counts['errors']:,} failed calls "
        f"of {len(operations)} operations, {record['seconds']:.0f} s"
    )
    return summary.sentence(record, extent)


def call_map(record: dict[str, Any]) -> Table:
    """Return the map: a row for each operation, a letter for each call."""
    table = Table(box=None, pad_edge=False)
    for heading in ("operation", "calls", "killed before", "killed after", "made to fail"):
        table.add_column(heading, overflow="fold")
    for row in record["operations"]:
        calls = row["calls"]
        errors = "".join(_worst(call["verdicts"], ("EIO", "ENOSPC", "EINTR", "short"))
                         for call in calls)  # fmt: skip
        table.add_row(
            row["operation"],
            str(len(calls)),
            "".join(_worst(call["verdicts"], ("before",)) for call in calls),
            "".join(_worst(call["verdicts"], ("after",)) for call in calls),
            errors,
        )
    return table


def _worst(verdicts: dict[str, str], faults: tuple[str, ...]) -> str:
    """Return the letter of the worst verdict; a dash where no fault applies to the call."""
    found = {verdicts[fault] for fault in faults if fault in verdicts}
    for word in ("violated", "unknown", "pass"):
        if word in found:
            return LETTERS[word]
    return "-"


def _progress() -> Callable[[Turn], None]:
    """Return the function that shows how far the run is: a line at intervals, on stderr."""
    due = 0.0
    is_terminal = sys.stderr.isatty()

    def show(turn: Turn) -> None:
        nonlocal due
        if turn.elapsed < due and turn.done < turn.of:
            return
        due = turn.elapsed + (0.2 if is_terminal else PLAIN_SECONDS)
        text = (
            f"{turn.elapsed:5.1f} s  {turn.done:,} of {turn.of:,} points, {turn.operation}, "
            f"{turn.left:.0f} s left"
        )
        ending = "\n" if not is_terminal or turn.done == turn.of else ""
        print(f"\r\033[K{text}" if is_terminal else text, end=ending, file=sys.stderr, flush=True)

    return show


def _tell(record: dict[str, Any], store: Store, *, as_json: bool) -> None:
    out = Console(stderr=as_json)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = FILE_COLUMNS
    out.print(call_map(record), highlight=False)
    out.print("  . pass  X violated  ? unknown  - no such failure", style="dim", highlight=False)
    out.print(summary.table(list(render_rows(record))))
    for line in summary.figures(record):
        out.print(line, style="dim", markup=False, highlight=False)
    for story in summary.stories(record):
        out.print(story, style="red", markup=False, highlight=False)
    reasons = summary.reasons(record)
    for reason in reasons[:REASONS_MAX]:
        out.print(f"unknown because {reason}", style="yellow", markup=False, highlight=False)
    if len(reasons) > REASONS_MAX:
        out.print(f"and {len(reasons) - REASONS_MAX} more reasons in verdict.json", style="yellow")
    out.print(headline(record), style="bold", markup=False, highlight=False)
    stream = sys.stderr if as_json else sys.stdout
    print(f"again:  {record['replay']}", file=stream)
    print(f"files:  in {record['files_in']}", file=stream)
    print(f"points: {store.path / POINTS}", file=stream)
    if as_json:
        print(json.dumps(record, ensure_ascii=False))
