"""The command `killproof chaos gallery`: the broken queues, what is wrong with each, and its line.

What the files of the gallery say is read here and nothing runs; `grading_command.py` has the rest.
"""

import difflib
import importlib
import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from killproof_chaos import gallery
from killproof_chaos.command import console
from killproof_chaos.gallery import Fault

#: A wider table is no easier to read, and this one fits a page of code beside it.
COLUMNS_MAX: Final = 100
#: Of the first column: the longest name and a space.
NAME_COLUMNS_MIN: Final = 20
COMMAND_OF: Final = {"proc": "run"}


def show(
    name: Annotated[
        str | None, typer.Argument(help="One broken queue; all of them when not given.")
    ] = None,
    copy: Annotated[
        Path | None, typer.Option(help="Write its file there, for you to repair.")
    ] = None,
    grade: Annotated[
        Path | None, typer.Option(help="Judge the repaired copy in this file.")
    ] = None,
    hint: Annotated[
        bool, typer.Option("--hint", help="With --grade: also tell the right line.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the broken queues; show one, copy it to repair it, or grade what came of that."""
    if (copy or grade) and name is None:
        raise ValueError("--copy and --grade need the NAME of a broken queue before them")
    if copy and grade:
        raise ValueError("--copy and --grade are two commands: copy, repair, then grade")
    if hint and not grade:
        raise ValueError("--hint needs --grade FILE: it tells the right line after the verdict")
    if name is not None and copy is not None:
        # Here, for it needs this module; and the list of them all needs no grading.
        from killproof_chaos import grading_command

        grading_command.copy(fault_of(name), copy)
    elif name is not None and grade is not None:
        from killproof_chaos import grading_command

        grading_command.grade(fault_of(name), str(grade), hint=hint, as_json=as_json)
    elif name is None:
        faults = [gallery.fault(each) for each in gallery.names()]
        _tell([facts(fault) for fault in faults], listing(faults), as_json=as_json)
    else:
        fault = fault_of(name)
        _tell(facts(fault), whole(fault), as_json=as_json)


def fault_of(name: str) -> Fault:
    """Return what is wrong with the broken queue of this name.

    Raises:
        ValueError: there is none; the message names those that are spelled like it.
    """
    known = gallery.names()
    if name not in known:
        close = difflib.get_close_matches(name, known)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        raise ValueError(
            f"{name!r} is no broken queue: {meant}`killproof chaos gallery` lists them"
        )
    return gallery.fault(name)


def command_of(fault: Fault) -> str:
    """Return the command that catches a broken queue.

    >>> command_of(gallery.fault("synchronous-normal")).split(" --")[:2]
    ['killproof chaos disk', 'target synchronous-normal']
    """
    engine = COMMAND_OF.get(fault.engine, fault.engine)
    return shlex.join(["killproof", "chaos", engine, "--target", fault.name, *fault.options])


def file_of(fault: Fault) -> Path:
    """Return the file of a broken queue: what is copied, repaired and graded."""
    module = importlib.import_module(f"{gallery.__name__}.{fault.name.replace('-', '_')}")
    assert module.__file__ is not None, "a module of the gallery is a file"
    return Path(module.__file__)


def facts(fault: Fault) -> dict[str, Any]:
    """Return all that is declared of a broken queue, as JSON has it."""
    return {
        "name": fault.name,
        "property": fault.promise,
        "also": sorted(fault.also, key=_number),
        "class": fault.kind,
        "engine": fault.engine,
        "options": list(fault.options),
        "budget_seconds": fault.seconds,
        "control": fault.control,
        "wrong": fault.wrong,
        "right": fault.right,
        "seen": list(fault.seen),
        "articles": list(fault.articles),
        "command": command_of(fault),
        "file": str(file_of(fault)),
    }


def listing(faults: Iterable[Fault]) -> RenderableType:
    """Return all broken queues, grouped by the promise that each breaks."""
    # Not at the top, for the reason that `command.py` gives.
    from killproof_evidence.judge import PROPERTIES

    known = list(faults)
    columns = max([NAME_COLUMNS_MIN, *(len(fault.name) for fault in known)])
    parts: list[RenderableType] = []
    groups = 0
    for entry in PROPERTIES:
        mine = [fault for fault in known if fault.promise == entry.number]
        if not mine:
            continue
        groups += 1
        parts.append(Text(f"{entry.number}  {entry.sentence}", style="bold"))
        parts.append(Padding(_group(mine, columns), (0, 0, 1, 2)))
    parts.append(
        Text(
            f"{len(known)} broken queues, {groups} promises. "
            "One in whole: killproof chaos gallery NAME"
        )
    )
    return Group(*parts)


def whole(fault: Fault) -> RenderableType:
    """Return one broken queue: everything that is declared of it."""
    from killproof_evidence.judge import PROPERTIES

    sentence = next(each.sentence for each in PROPERTIES if each.number == fault.promise)
    rows = {
        "what is wrong": fault.wrong,
        "breaks": f"{fault.promise}: {sentence}"
        + (f" (may break too: {', '.join(sorted(fault.also, key=_number))})" * bool(fault.also)),
        "class": fault.kind,
        "the right line": fault.right,
        "seen in public": ", ".join(fault.seen),
        "in the articles": ", ".join(fault.articles),
        "made from": fault.control,
        "caught by": f"the engine {fault.engine}, within {fault.seconds:g} s on two idle cores",
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in rows.items():
        if text:
            table.add_row(label, Text(text))
    return Group(Text(fault.name, style="bold"), Padding(table, (0, 0, 0, 2)))


def _group(faults: list[Fault], columns: int) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=columns, no_wrap=True)
    table.add_column(width=5, no_wrap=True)
    table.add_column(width=4, no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for fault in faults:
        table.add_row(fault.name, fault.engine, f"{fault.seconds:g} s", Text(fault.wrong))
        table.add_row("", "", "", Text(f"class: {fault.kind}", style="dim"))
        table.add_row("", "", "", Text(f"right: {fault.right}", style="dim"))
        if fault.seen:
            table.add_row("", "", "", Text(f"seen:  {', '.join(fault.seen)}", style="dim"))
    return table


def _tell(record: Any, shown: RenderableType, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(record, ensure_ascii=False, indent=1))
        return
    out = console()
    out.width = min(out.width, COLUMNS_MAX)
    out.print(shown, highlight=False)
    if isinstance(record, dict):
        # Plain print: a path or a command that is folded to the width can not be pasted.
        print(f"\n  {record['command']}\n  {record['file']}")


def _number(promise: str) -> int:
    return int(promise.removeprefix("P"))
