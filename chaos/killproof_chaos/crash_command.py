"""The command `killproof chaos crash`: its options, its progress, its table.

Exit codes as everywhere: 0 no violation found, 1 violated, 2 unknown, 3 the harness itself failed,
64 wrong usage.

The engine and its page are imported where they are used: `command.py` says why.
"""

import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from killproof_chaos import targets
from killproof_chaos.command import (
    Ending,
    JsonOption,
    JunitOption,
    ReportOption,
    StoreOption,
    TargetOption,
    UnknownOption,
    conclude,
    harness,
    new_store,
    points_of,
    shown,
    within,
)
from killproof_evidence.store import Store

if TYPE_CHECKING:
    from killproof_chaos.engines.crash import Turn

SEED_MAX: Final = 2**32 - 1
#: More would wait for each other on any machine.
LANES_MAX: Final = 64
LEGEND: Final = Text("  . pass  X violated  ? unknown  - not made, or no such failure", style="dim")


def crash(
    target: TargetOption = "killproof",
    operation: Annotated[
        list[str] | None, typer.Option(help="Only this operation; may be given several times.")
    ] = None,
    kills: Annotated[
        bool, typer.Option(help="Kill the process before and after each call.")
    ] = True,
    errors: Annotated[
        bool, typer.Option(help="Also make each call fail, and compare what its caller was told.")
    ] = True,
    fail_fast: Annotated[
        bool, typer.Option(help="Stop at the first kill or error that breaks a promise.")
    ] = False,
    points: Annotated[
        str, typer.Option(help="So many points of each operation, drawn by the seed; or all.")
    ] = "all",
    seed: Annotated[int | None, typer.Option(help="Of a sample; drawn when not given.")] = None,
    lanes: Annotated[
        int | None, typer.Option(help="Points made at once; else what keeps the cores busy.")
    ] = None,
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Kill a queue before and after every file call of every operation, and fail each call.

    Needs Linux and a C compiler; without them the verdict is unknown. For each point the files are
    fresh, a clean process recovers and finishes all jobs, and the judge reads what was recorded.
    """
    from killproof_chaos.engines.crash import POINTS, Engine

    if not kills and not errors:
        raise ValueError("--no-kills with --no-errors leaves nothing to do: give one of them")
    chosen = choose(targets.load(target), operation)
    sample = points_of(points)
    drawn = random.randrange(SEED_MAX) if seed is None else within("seed", seed, 0, SEED_MAX)
    at_once = None if lanes is None else within("lanes", lanes, 1, LANES_MAX)
    ending = Ending(unknown=unknown, junit=junit, as_json=as_json, report=report)
    place = new_store(store, "crash", Path(target).stem)
    with harness(), shown(text_of) as show:
        engine = Engine(
            target,
            chosen,
            place,
            show,
            kills=kills,
            errors=errors,
            fail_fast=fail_fast,
            sample=sample,
            seed=drawn,
            lanes=at_once,
        )
        record = engine.run()
    conclude(
        record,
        ending,
        pictures=(call_map(record), LEGEND),
        places=(
            f"files:  in {record['files_in']}",
            f"points: {place.path / POINTS}",
            *ending.page(_write_page, place.path),
        ),
    )


def _write_page(folder: Path) -> Path:
    from killproof_chaos.report_crash import write_report

    return write_report(folder)


def text_of(turn: "Turn") -> str:
    """Return how far the engine is, and how long it still takes."""
    return f"{turn.done:,} of {turn.total:,} points, {turn.operation}, about {turn.left:.0f} s left"


def choose(target: Any, wanted: list[str] | None) -> tuple[str, ...]:
    """Return the operations to kill in.

    Raises:
        ValueError: the target has no such operation; the message says which it has.
    """
    from killproof_chaos.engines.crash import operations_of

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
    from killproof_chaos.engines.crash import POINTS

    if (folder / POINTS).exists():
        again = Store(folder).read_run()["replay"]
        raise ValueError(
            f"{folder} holds the points of a crash run: judge one with "
            f"`killproof chaos check {folder}/points/NAME`, or repeat all with `{again}`"
        )


def call_map(record: dict[str, Any]) -> Table:
    """Return the map: a row for each operation, a letter for each call."""
    from killproof_chaos.engines.crash_points import ERRORS, KILLS
    from killproof_chaos.report_crash import LETTERS, worst_of

    table = Table(box=None, pad_edge=False)
    for heading in ("operation", "calls", "killed before", "killed after", "made to fail"):
        table.add_column(heading, overflow="fold")
    for row in record["operations"]:
        letters = (
            "".join(LETTERS.get(worst_of(call["verdicts"], faults), "-") for call in row["calls"])
            for faults in (KILLS[:1], KILLS[1:], ERRORS)
        )
        table.add_row(row["operation"], str(len(row["calls"])), *letters)
    return table
