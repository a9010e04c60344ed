"""The commands `killproof chaos ...`: run, check, targets, doctor, replay; others beside.

Exit codes: 0 no violation found, 1 violated, 2 unknown, 3 the harness itself failed, 64 wrong
usage. Results go to stdout and everything else to stderr; with `--json` the only result is
verdict.json. What a command needs to act is imported where it acts: `command.py` says why.
"""

import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from killproof_chaos import (
    crash_command,
    disk_command,
    gallery_command,
    init_target_command,
    lint_target_command,
    merge_command,
    model_command,
    plan,
    power_command,
    prove_command,
    scorecard_command,
    sim_command,
    targets,
    workload,
)
from killproof_chaos import (
    mix as mixes,
)
from killproof_chaos.command import (
    Ending,
    JsonOption,
    JunitOption,
    ReportOption,
    StoreOption,
    TargetOption,
    UnknownOption,
    conclude,
    console,
    harness,
    new_store,
    refuse_plan,
    within,
)
from killproof_chaos.plan import MIXES, NEMESES, NEMESES_DEFAULT, Options, Plan
from killproof_evidence.store import Store
from killproof_evidence.target import level

SEED_MAX: Final = 2**32 - 1

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Kill a queue for real, and judge its promises from what was recorded.",
)
app.command("disk")(disk_command.cut)
app.command("crash")(crash_command.crash)
app.command("gallery")(gallery_command.show)
app.command("init-target")(init_target_command.init_target)
app.command("lint-target")(lint_target_command.lint_target)
app.command("merge")(merge_command.merge)
app.command("model")(model_command.search)
app.command("power")(power_command.measure)
app.command("prove")(prove_command.prove)
app.command("scorecard")(scorecard_command.scorecard)
app.command("sim")(sim_command.explore)


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
    nemesis: Annotated[str, typer.Option(help="Which faults to make.")] = ",".join(NEMESES_DEFAULT),
    jobs: Annotated[
        Path | None, typer.Option(help="Your own jobs, one JSON object a line.")
    ] = None,
    mix: Annotated[
        str, typer.Option(help="full: with backups and all else the target has; plain: jobs alone.")
    ] = "full",
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Run a queue under kills, stops and failures, then judge what it promised.

    The run ends when the counts asked for have hit, after at least SECONDS and at most three times
    that, or later while a slow machine still hits new places. The seed decides the plan; real
    processes are not deterministic, so it narrows a search and does not repeat a schedule.
    """
    ending = Ending(unknown=unknown, junit=junit, as_json=as_json, report=report)
    options = Options(
        target=target,
        workers=within("workers", workers, 1, 64),
        producers=within("producers", producers, 1, 16),
        seconds=_seconds(seconds),
        kills=within("kills", kills, 0, 100_000),
        pauses=within("pauses", pauses, 0, 100_000),
        seed=within("seed", random.randrange(10**6) if seed is None else seed, 0, SEED_MAX),
        nemeses=nemeses_of(nemesis),
        jobs=None if jobs is None else str(jobs),
        mix=_mix(mix),
    )
    _perform(_plan(options), store, ending)


@app.command()
def check(
    store: Annotated[Path, typer.Argument(help="The folder of a run.")],
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Judge a run again, from its records alone."""
    ending = Ending(unknown=unknown, junit=junit, as_json=as_json, report=report)
    crash_command.refuse(store)
    place = Store(store)
    engine = place.read_run().get("engine")
    if engine == "disk":
        disk_command.check(place, ending)
    elif engine == "model":
        model_command.check(place, ending)
    elif engine == "sim":
        sim_command.check(place, ending)
    elif engine == "prove":
        prove_command.check(place, ending)
    elif engine == "proc":
        _judge(place, ending)
    else:
        # Judged as another engine's, what is missing would be a violation, or nothing at all.
        raise ValueError(
            f"the run.json of {str(store)!r} names the engine {engine!r}: "
            "give the folder of a run of proc, crash, disk, sim, model or prove"
        )


@app.command()
def replay(
    what: Annotated[
        str, typer.Argument(help="The folder of a run, or a token (kp1-..., ks1-...).")
    ],
    plan_only: Annotated[bool, typer.Option(help="Print the plan and run nothing.")] = False,
    verbose: Annotated[bool, typer.Option(help="Of a schedule: each statement.")] = False,
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Print a run's plan and run it again, or print the story of a schedule of the engine sim."""
    if (token := sim_command.token_of(what)) is not None:
        sim_command.replay(token, verbose=verbose)
    ending = Ending(unknown=unknown, junit=junit, as_json=as_json, report=report)
    if Path(what).is_dir():
        crash_command.refuse(Path(what))
        refuse_plan(Path(what))
        planned = Plan.read(Store(what).plan)
    else:
        planned = _plan(Options.of_token(what))
    print_plan(planned, sys.stdout if plan_only else sys.stderr)
    if not plan_only:
        _perform(planned, store, ending)


@app.command("targets")
def list_targets(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the queues that can be judged by name."""
    rows = [_target_facts(group, name) for group, each in targets.GROUPS.items() for name in each]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "level", "promises", "what is wrong with it, or what it is"):
        table.add_column(heading, overflow="fold")
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before["group"] != row["group"]:
            table.add_row()
        promises = " ".join(row["promises"])
        table.add_row(row["name"], str(row["level"]), promises, row["wrong"] or row["about"])
    console().print(table)


@app.command("doctor")
def look(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Check that this machine can run the harness."""
    from killproof_chaos import doctor

    findings = doctor.examine(Path.cwd())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
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
        elif fault.fault == "clock":
            where = f"back by {fault.step_ms // 60_000} min for {fault.length_ms} ms"
        elif fault.fault == "io":
            where = f"{fault.error} at {fault.call}, {fault.file} file"
        print(f"{fault.at_ms / 1_000:7.3f} s  {fault.fault:<8} {where}", file=file)


def _seconds(value: float) -> float:
    if not 0.5 <= value <= 3_600:
        raise ValueError(f"--seconds {value:g} must be a number from 0.5 to 3600")
    return value


def _mix(word: str) -> str:
    if word not in MIXES:
        raise ValueError(f"--mix {word!r} is unknown: use {' or '.join(MIXES)}")
    return word


def _plan(options: Options) -> Plan:
    """Expand the options, with what the target is and has, into the plan."""
    from killproof_chaos import coverage

    target = targets.load(options.target)
    given = workload.read_jobs(Path(options.jobs)) if options.jobs is not None else []
    aims, asked = coverage.aims(target, options), mixes.of(target, options)
    return plan.make(options, aims, given, asked, target.contract)


def _perform(planned: Plan, store: Path | None, ending: Ending) -> None:
    """Run the plan, judge it, and end with the exit code of the verdict."""
    from killproof_chaos import coverage
    from killproof_chaos.display import shown
    from killproof_chaos.engines.proc import Engine

    options = planned.options
    seed = str(options.seed)
    place = new_store(store, Path(options.target).stem, seed, told=f"seed {seed}, ")
    owed = coverage.obliged(targets.load(options.target), options)
    places = sum("@" in name for name in owed)
    with harness(), shown(options, places, Console(stderr=True)) as show:
        Engine(options, planned, place, show).run()
    _judge(place, ending)


def _judge(store: Store, ending: Ending) -> None:
    from killproof_evidence.judge import judge

    record = judge(store).record
    conclude(record, ending, places=ending.page(_write_page, store.path))


def _write_page(folder: Path) -> Path:
    from killproof_chaos.report import write_report

    return write_report(folder)


def _about(target: Any) -> str:
    """Return the pinned version of somebody else's queue, which may have more than one name."""
    peer = getattr(target, "peer", None)
    if peer is None:
        return "control: one of our own, by the same adapter"
    package = peer.packages[0]
    return f"{package.name} {package.version}, fetched at its first use"


def _target_facts(group: str, name: str) -> dict[str, Any]:
    target = targets.load(name)
    fault = getattr(target, "fault", None)
    return {
        "name": name,
        "group": group,
        "about": _about(target) if group == "public" else "",
        "level": level(target),
        "promises": [p for p, made in target.contract.promises.items() if made],
        "broken": target.broken,
        "wrong": fault and fault.wrong,
        "property": fault and fault.promise,
        "kind": fault and fault.kind,
        "right": fault and fault.right,
    }
