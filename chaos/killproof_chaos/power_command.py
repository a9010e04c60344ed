"""The command `killproof chaos power`: how surely, and how fast, broken queues are caught.

Exit codes: 0 every broken queue was caught by its intended property on every seed, and no healthy
one was accused; 1 one was missed, or one was accused; 2 something could not be run; 3 the harness
itself failed; 64 wrong usage.
"""

import json
import os
import shlex
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from killproof_chaos.command import (
    EXIT_OF,
    JsonOption,
    ReportOption,
    StoreOption,
    console,
    harness,
    shown,
    within,
)
from killproof_chaos.resuming import alone, place_of
from killproof_chaos.sim_command import seconds_of
from killproof_evidence.environment import environment
from killproof_evidence.store import write_json

SEEDS_MAX: Final = 1_000
LANES_MAX: Final = 64
RECORD: Final = "power.json"


def measure(
    seeds: Annotated[int, typer.Option(help="Seeds of each broken queue.")] = 20,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this broken queue; may be given several times.")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="Only these engines: sim, crash, disk, proc.")
    ] = None,
    cross: Annotated[
        int, typer.Option(help="Seeds of each engine that is not the intended one.")
    ] = 1,
    healthy: Annotated[bool, typer.Option(help="Also the healthy queues and the canary.")] = True,
    is_slice: Annotated[
        bool, typer.Option("--slice", help="One seed, few processes, no other engines: for CI.")
    ] = False,
    budget: Annotated[str, typer.Option(help="Begin nothing new after this time.")] = "60m",
    lanes: Annotated[
        int | None, typer.Option(help="Runs at once; as many as cores when not given.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Measure what the harness finds: broken queues x engines x checkers, over many seeds.

    Each broken queue of the gallery runs under the engine and options that it names. The rate of
    detection has a Wilson interval; a run that finds nothing within its budget is censored. With
    the STORE of a run that was interrupted, it goes on.
    """
    # Here, so that other commands need not wait for it.
    from killproof_chaos.power import matrix, running, trials

    asked = trials.Asked(
        seeds=within("seeds", seeds, 1, SEEDS_MAX),
        only=tuple(dict.fromkeys(only or ())),
        engines=_engines(engine),
        cross=within("cross", cross, 0, SEEDS_MAX),
        healthy=healthy,
        is_slice=is_slice,
    )
    seconds = seconds_of(budget)
    count = len(os.sched_getaffinity(0)) if lanes is None else within("lanes", lanes, 1, LANES_MAX)
    trials.faults(asked)  # Refuses before a store is made.
    folder = place_of(store)
    started = time.time()
    with alone(folder), harness():
        planned = trials.trials(asked)
        with shown(_text) as show:
            made = running.make(planned, folder, seconds=seconds, lanes=count, show=show)
    why = "the run was interrupted" if made.interrupted else ""
    record = matrix.record_of(asked, planned, made.outcomes, interrupted=why)
    record |= {
        "argv": [*asked.argv(), "--lanes", str(count), "--budget", budget],
        "lanes": count,
        "earlier": made.earlier,
        "files_in": made.files_in,
        "started": started,
        "ended": time.time(),
        "version": version("killproof"),
        "environment": environment(folder),
    }
    write_json(folder / RECORD, record)
    _tell(record, folder, as_json=as_json, report=report)
    raise typer.Exit(EXIT_OF[record["verdict"]])


def _text(turn: Any) -> str:
    left = f"{turn.left / 60:.0f} min" if turn.left > 90 else f"{turn.left:.0f} s"
    missed = f", {turn.missed} not as expected" if turn.missed else ""
    return f"{turn.done:,} of {turn.total:,} runs{missed}, about {left} left"


def _tell(record: dict[str, Any], folder: Path, *, as_json: bool, report: bool) -> None:
    from killproof_chaos import report_power

    out = console(stderr=as_json)
    for part in report_power.terminal(record):
        out.print(part, highlight=False)
    # Plain print: a command that is folded to the width can not be pasted.
    lines = [f"again:  {shlex.join(record['argv'])}"]
    if report:
        page = report_power.write_reports(record, folder / "power.md")
        lines.append(f"report: {page}")
    print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps(record))


def _engines(words: list[str] | None) -> tuple[str, ...]:
    from killproof_chaos.power.trials import ENGINES

    for word in words or ():
        if word not in ENGINES:
            raise ValueError(f"--engine {word!r} is unknown: use {', '.join(ENGINES)}")
    return tuple(name for name in ENGINES if not words or name in words)
