"""The command `killproof chaos model`: every state of the lease protocol, and the shortest fault.

Exit codes as everywhere: 0 no violation found, 1 violated, 2 unknown, 3 the harness itself failed,
64 wrong usage.

The engine is imported where it is used: `command.py` says why.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from killproof_chaos import targets
from killproof_chaos.command import (
    Ending,
    JsonOption,
    JunitOption,
    StoreOption,
    TargetOption,
    UnknownOption,
    conclude,
    harness,
    new_store,
    shown,
    within,
)
from killproof_chaos.engines.model_search import STATES_MAX, Turn
from killproof_evidence.store import Store

WORKERS_MAX: Final = 4
JOBS_MAX: Final = 4
CRASHES_MAX: Final = 1_000
ATTEMPTS_MAX: Final = 10
STATES_LIMIT: Final = 100_000_000
#: What stands behind every promise in the table: the same words about the code would be wrong.
ROW_ABOUT: Final = ", in the contract's protocol"
#: What stands under every verdict of this engine.
NOT_SHOWN: Final = (
    "this is the protocol, not the code: that the code follows it is judged by the other engines; "
    "durability, due times and their order, and SQLite are no part of it"
)


def search(
    target: TargetOption = "killproof",
    workers: Annotated[int, typer.Option(help="Workers, alike.")] = 2,
    jobs: Annotated[int, typer.Option(help="Jobs, alike.")] = 2,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Take this guard away; may be given several times."),
    ] = None,
    crashes: Annotated[
        int | None, typer.Option(help="Crashes at most; any number when not given.")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(help="Attempts of a job; as the contract says, at most 2.")
    ] = None,
    people: Annotated[bool, typer.Option(help="Whether people cancel, hold and replay.")] = True,
    states: Annotated[int, typer.Option(help="States at most; then it is unknown.")] = STATES_MAX,
    guards: Annotated[bool, typer.Option("--guards", help="List the guards, and end.")] = False,
    diagram: Annotated[
        bool,
        typer.Option("--diagram", help="Also print, as Mermaid, who moves jobs between states."),
    ] = False,
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search every state of the lease protocol, with crashes, stops and late heartbeats anywhere.

    The target's contract says which edges are allowed, what is promised and how often a job may
    run; its code does not run. A broken promise comes with the shortest way to it.
    """
    from killproof_chaos.engines import model
    from killproof_chaos.engines.model_protocol import GUARDS

    if guards:
        for name, meaning in GUARDS.items():
            print(f"{name:<18} {meaning}")
        return
    options = model.Options(
        target=target,
        workers=within("workers", workers, 1, WORKERS_MAX),
        jobs=within("jobs", jobs, 1, JOBS_MAX),
        without=tuple(dict.fromkeys(without or ())),
        crashes=None if crashes is None else within("crashes", crashes, 0, CRASHES_MAX),
        attempts=None if attempts is None else within("attempts", attempts, 1, ATTEMPTS_MAX),
        states=within("states", states, 1, STATES_LIMIT),
        people=people,
    )
    model.rules_of(options, targets.load(target).contract)
    ending = Ending(unknown=unknown, junit=junit, as_json=as_json)
    place = new_store(store, "model", Path(target).stem)
    perform(lambda show: model.run(options, place, show), ending, place, diagram=diagram)


def check(store: Store, ending: Ending) -> None:
    """Search again what a store tells: this engine records nothing but its options and stories."""
    from killproof_chaos.engines import model

    perform(lambda show: model.again(store, show), ending, store)


def perform(
    judge: Callable[[Callable[[Turn], None]], dict[str, Any]],
    ending: Ending,
    store: Store,
    *,
    diagram: bool = False,
) -> None:
    """Search, show how far that is, and end with the exit code of the verdict."""
    from killproof_chaos import summary
    from killproof_chaos.engines.model import TRACES

    with harness(), shown(text_of) as show:
        record = judge(show)
    pictures: list[RenderableType] = [searches(record), *stories(record)]
    if diagram:
        pictures.insert(0, Text(record["diagram"] + "\n"))
    places = [f"story:  {store.path / TRACES}"] if stories(record) else []
    rows = summary.judged(record, about=ROW_ABOUT)
    conclude(record, ending, rows=rows, figures=figures(record), pictures=pictures, places=places)


def searches(record: Mapping[str, Any]) -> Table:
    """Return what was searched, a row for each search."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("search")
    for heading in (
        "workers",
        "jobs",
        "producers",
        "states",
        "steps",
        "depth",
        "CPU s",
        "steps/s",
    ):
        table.add_column(heading, justify="right")
    table.add_column("exhausted")
    for row in record["searches"]:
        numbers = [
            *(row["workers"], row["jobs"], row["producers"] or "", f"{row['states']:,}"),
            *(f"{row['steps']:,}", row["depth"], f"{row['cpu_seconds']:.1f}"),
            f"{row['steps_per_second']:,}",
        ]
        table.add_row(row["name"], *map(str, numbers), "yes" if row["exhausted"] else "no")
    return table


def stories(record: Mapping[str, Any]) -> list[Text]:
    """Return the way to each broken promise, numbered, and what broke in the end."""
    found = []
    for name, finding in record["properties"].items():
        for witness in finding["witnesses"]:
            lines = [line["text"] for line in witness["lines"]]
            text = "\n".join([f"The shortest way to a broken {name}:", *lines])
            found.append(Text(f"\n{text}\n  => {witness['story']}\n"))
    return found


def figures(record: Mapping[str, Any]) -> list[str]:
    """Return how far the search reached, and what it does not show."""
    few = "" if record["crashes"] is None else f"at most {record['crashes']} crashes, "
    people = "" if record["people"] else "; nobody cancels, holds or replays"
    without = f"; without {', '.join(record['without'])}" if record["without"] else ""
    lines = [
        f"at most {record['attempts']} attempts to a job, {few}any number of "
        f"{'' if few else 'crashes, '}stops, late heartbeats and releases{people}{without}"
    ]
    if record["not_walked"] and not record["without"]:
        lines.append(
            f"edges of the contract that it never walks: {', '.join(record['not_walked'])}"
        )
    if record["broken"]:
        lines.append("what is wrong with this queue is in its code, and its code does not run here")
    return [*lines, NOT_SHOWN]


def text_of(turn: Turn) -> str:
    """Return how far the search is; nobody knows how far it goes."""
    waiting = turn.states - turn.done
    return f"{turn.states:,} states, depth {turn.depth}, {waiting:,} not looked at yet"
