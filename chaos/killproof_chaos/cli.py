"""The commands `killproof chaos ...`: run, check, targets, doctor, replay.

Exit codes: 0 no violation found, 1 violated, 2 unknown, 3 the harness itself failed, 64 wrong
usage. Results go to stdout and everything else to stderr; with `--json` the only result is
verdict.json.
"""

import json
import os
import random
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from killproof_chaos import (
    coverage,
    crash_command,
    disk_command,
    doctor,
    plan,
    summary,
    targets,
    workload,
)
from killproof_chaos.display import shown
from killproof_chaos.engines.crew import EngineFailed
from killproof_chaos.engines.proc import Engine
from killproof_chaos.plan import NEMESES, Options, Plan
from killproof_chaos.report import write_report
from killproof_evidence.judge import judge, render_rows
from killproof_evidence.store import Store
from killproof_evidence.target import level

EXIT_OF: Final = {"pass": 0, "violated": 1, "unknown": 2}
EXIT_FAILED: Final = 3
STORES: Final = "killproof-store"
#: Of a log or a pipe; 80 would fold the longest sentence of the table.
FILE_COLUMNS: Final = 110
SEED_MAX: Final = 2**32 - 1

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Kill a queue for real, and judge its promises from what was recorded.",
)
app.command("disk")(disk_command.cut)
app.command("crash")(crash_command.crash)


class Unknown(StrEnum):
    """What CI makes of `unknown`."""

    PASS = "pass"
    FAIL = "fail"


TargetOption = Annotated[
    str, typer.Option(help="A name from `chaos targets`, package.module:attribute, or path.py.")
]
StoreOption = Annotated[Path | None, typer.Option(help="A new folder for all evidence of the run.")]
UnknownOption = Annotated[
    Unknown | None, typer.Option(help="Exit as for pass or fail when the verdict is unknown.")
]
JunitOption = Annotated[Path | None, typer.Option(help="Also write the verdict as JUnit XML.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print verdict.json on stdout.")]


@app.command()
def run(
    target: TargetOption = "killproof",
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 8,
    producers: Annotated[int, typer.Option(help="Producer processes.")] = 2,
    seconds: Annotated[float, typer.Option(help="Length of the chaos, at least.")] = 20.0,
    kills: Annotated[
        int, typer.Option(help="Kills that must hit; each phase is one more aim.")
    ] = 200,
    pauses: Annotated[int, typer.Option(help="Pauses that must hit, likewise.")] = 40,
    seed: Annotated[
        int | None, typer.Option(help="Decides the plan; drawn when not given.")
    ] = None,
    nemesis: Annotated[str, typer.Option(help="Which faults to make.")] = ",".join(NEMESES),
    jobs: Annotated[
        Path | None, typer.Option(help="Your own jobs, one JSON object a line.")
    ] = None,
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a queue under kills, stops and failures, then judge what it promised.

    The run ends when the counts asked for have hit, after at least SECONDS and at most three times
    that. The seed decides the plan; real processes are not deterministic, so it narrows a search
    and does not repeat a schedule.
    """
    options = Options(
        target=target,
        workers=_within("workers", workers, 1, 64),
        producers=_within("producers", producers, 1, 16),
        seconds=_seconds(seconds),
        kills=_within("kills", kills, 0, 100_000),
        pauses=_within("pauses", pauses, 0, 100_000),
        seed=_within("seed", random.randrange(10**6) if seed is None else seed, 0, SEED_MAX),
        nemeses=nemeses_of(nemesis),
        jobs=None if jobs is None else str(jobs),
    )
    given = workload.read_jobs(jobs) if jobs is not None else []
    planned = plan.make(options, coverage.aims(targets.load(target), options), given)
    _perform(planned, store, unknown, junit, as_json)


@app.command()
def check(
    store: Annotated[Path, typer.Argument(help="The folder of a run.")],
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a run again, from its records alone."""
    _check_junit(junit)
    crash_command.refuse(store)
    place = Store(store)
    if place.read_run().get("engine") == "disk":
        disk_command.check(place, unknown, junit, as_json=as_json)
    _conclude(place, unknown, junit, as_json)


@app.command()
def replay(
    what: Annotated[str, typer.Argument(help="The folder of a run, or its token (kp1-...).")],
    plan_only: Annotated[bool, typer.Option(help="Print the plan and run nothing.")] = False,
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a run's plan, and run it again with the same seed and options."""
    if Path(what).is_dir():
        crash_command.refuse(Path(what))
        disk_command.refuse_plan(Path(what))
        planned = Plan.read(Store(what).plan)
    else:
        options = Options.of_token(what)
        given = workload.read_jobs(Path(options.jobs)) if options.jobs is not None else []
        planned = plan.make(options, coverage.aims(targets.load(options.target), options), given)
    print_plan(planned, sys.stdout if plan_only else sys.stderr)
    if not plan_only:
        _perform(planned, store, unknown, junit, as_json)


@app.command("targets")
def list_targets(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the queues that can be judged by name."""
    rows = [_target_facts(name) for name in targets.BUILTIN]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "level", "promises", "what is wrong with it"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        promises = " ".join(row["promises"])
        table.add_row(row["name"], str(row["level"]), promises, row["wrong"] or "")
    _console().print(table)


@app.command("doctor")
def look() -> None:
    """Check that this machine can run the harness."""
    findings = doctor.examine(Path.cwd())
    for finding in findings:
        print(f"{'ok  ' if finding.good else 'BAD '} {finding.text}")
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)


def nemeses_of(text: str) -> tuple[str, ...]:
    """Return the chosen nemeses in their fixed order.

    Raises:
        ValueError: one is unknown; the message names it and the remedy.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["none"]:
        return ()
    for word in words:
        if word not in NEMESES:
            raise ValueError(f"--nemesis {word!r} is unknown: use {', '.join(NEMESES)}, or none")
    if not words:
        raise ValueError(f"--nemesis {text!r} names none: use {', '.join(NEMESES)}, or none")
    return tuple(name for name in NEMESES if name in words)


def print_plan(planned: Plan, file: Any) -> None:
    """Print the plan: what was asked for, and every fault in its order."""
    print(" ".join(planned.options.argv()), file=file)
    for name, operations in zip(planned.producers, planned.operations, strict=True):
        print(f"{name}: {len(operations)} operations", file=file)
    for fault in planned.faults:
        where = fault.phase or "wherever the victim is"
        if fault.fault == "lock":
            where = f"for {fault.length_ms} ms"
        print(f"{fault.at_ms / 1_000:7.3f} s  {fault.fault:<8} {where}", file=file)


def _console(*, stderr: bool = False) -> Console:
    """Return a console that is wide enough for the table when nobody says how wide it is."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_COLUMNS
    return console


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"--{name} {value} must be an integer from {low} to {high}")
    return value


def _seconds(value: float) -> float:
    if not 0.5 <= value <= 3_600:
        raise ValueError(f"--seconds {value:g} must be a number from 0.5 to 3600")
    return value


def _check_junit(junit: Path | None) -> None:
    """Refuse a place for the XML that cannot be written, before the run and not after it."""
    if junit is not None and (junit.is_dir() or not os.access(junit.parent, os.W_OK)):
        raise ValueError(
            f"--junit {str(junit)!r} cannot be written: give a file in a folder of yours"
        )


def _perform(
    planned: Plan, store: Path | None, unknown: Unknown | None, junit: Path | None, as_json: bool
) -> None:
    """Run the plan, judge it, and end with the exit code of the verdict."""
    _check_junit(junit)
    options = planned.options
    console = Console(stderr=True)
    name = f"{Path(options.target).stem}-{options.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    place = Store.create(store or Path(STORES) / name.replace(":", "-"))
    print(f"seed {options.seed}, evidence in {place.path}", file=sys.stderr)
    owed = coverage.obliged(targets.load(options.target), options)
    places = sum("@" in name for name in owed)
    try:
        with shown(options, places, console) as show:
            Engine(options, planned, place, show).run()
    except EngineFailed as error:
        print(f"killproof: the harness failed, which says nothing of the queue: {error}",
              file=sys.stderr)  # fmt: skip
        raise typer.Exit(EXIT_FAILED) from None
    _conclude(place, unknown, junit, as_json)


def _conclude(store: Store, unknown: Unknown | None, junit: Path | None, as_json: bool) -> None:
    record = judge(store).record
    rows = list(render_rows(record))
    out = _console(stderr=as_json)
    out.print(summary.table(rows))
    for line in summary.figures(record):
        out.print(line, style="dim", markup=False, highlight=False)
    for story in summary.stories(record):
        out.print(story, style="red", markup=False, highlight=False)
    for reason in summary.reasons(record):
        out.print(f"unknown because {reason}", style="yellow", markup=False, highlight=False)
    out.print(summary.headline(record), style="bold", markup=False, highlight=False)
    # Plain print: a path or a command that is folded to the width can not be pasted.
    stream = sys.stderr if as_json else sys.stdout
    print(f"again:  {record['replay']}", file=stream)
    print(f"report: {write_report(store.path)}", file=stream)
    if as_json:
        print(json.dumps(record))
    if junit is not None:
        junit.write_bytes(summary.junit(record, rows))
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(place, "a", encoding="utf-8") as file:
            file.write(summary.markdown(record, rows))
    code = EXIT_OF[record["verdict"]]
    if code == EXIT_OF["unknown"] and unknown is not None:
        code = 0 if unknown is Unknown.PASS else 1
    raise typer.Exit(code)


def _target_facts(name: str) -> dict[str, Any]:
    target = targets.load(name)
    fault = getattr(target, "fault", None)
    return {
        "name": name,
        "level": level(target),
        "promises": [p for p, made in target.contract.promises.items() if made],
        "broken": target.broken,
        "wrong": fault and fault.wrong,
        "property": fault and fault.promise,
        "kind": fault and fault.kind,
        "right": fault and fault.right,
    }
