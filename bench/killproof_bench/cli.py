"""The commands of `killproof bench`; `command.py` has their exit codes and what they share.

numpy, scipy and rich are imported by the commands that need them: `killproof bench --help` is
quick.
"""

import dataclasses
import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from killproof_bench import (
    bare_command,
    capacity_command,
    claim_command,
    enqueue_command,
    gate_command,
    idle_command,
    operations_command,
    peers_command,
    report_command,
    rows_command,
)
from killproof_bench.command import (
    EXIT_CODES,
    EXIT_FAILED,
    AsJson,
    Dir,
    Durable,
    Level,
    Report,
    Seed,
    check_places,
    failed,
    scratch,
    surroundings,
    within,
)

WORKERS_MAX: Final = 256
WATCHERS_MAX: Final = 200
SECONDS_MAX: Final = 3600.0
ROUNDS_MAX: Final = 100
ROWS_MAX: Final = 10_000_000
RECORDS_MAX: Final = 20_000_000
#: What a round needs beside its warm-up and its measured time: copying, starting, judging.
OVERHEAD_SECONDS: Final = 2.0

app = typer.Typer(
    help="Measure a queue, with the conditions of each number.",
    add_completion=False,
    no_args_is_help=True,
)
app.command("claim")(claim_command.claim)
app.command("rows")(rows_command.rows)
app.command("report")(report_command.report)


@app.command()
def stopped(
    durability: Durable = Level.POWER,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Stop one of 8 workers while it holds the turnstile, and see what the others lose."""
    check_places(directory, report)
    from killproof_bench import contention_run

    request = contention_run.Request(plans=(), stopped=True, durability=durability.value, seed=seed)
    contention_run.run(request, directory, report, as_json=as_json)


@app.command()
def watch(
    workers: Annotated[int, typer.Option(metavar="N", help="Worker processes.")] = 8,
    watchers: Annotated[int, typer.Option(metavar="N", help="Clients of the page.")] = 50,
    seconds: Annotated[float, typer.Option(help="Measured time of each round.")] = 8.0,
    warmup: Annotated[float, typer.Option(help="Seconds before it that do not count.")] = 2.0,
    rounds: Annotated[int, typer.Option(help="Of each arm; an even number is ABBA.")] = 4,
    durability: Durable = Level.POWER,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure what clients that watch `killproof serve` cost the workers, as a ratio."""
    within("--workers", workers, 1, WORKERS_MAX)
    within("--watchers", watchers, 1, WATCHERS_MAX)
    within("--seconds", seconds, 0.1, SECONDS_MAX)
    within("--warmup", warmup, 0.0, SECONDS_MAX)
    within("--rounds", rounds, 1, ROUNDS_MAX)
    check_places(directory, report)
    from killproof_bench import machine, report_watch
    from killproof_bench.crew import CrewError
    from killproof_bench.scenarios import watch as scenario
    from killproof_bench.scenarios.claim import Plan, Step

    plan = Plan(
        workers=(workers,),
        seconds=seconds,
        warmup_seconds=warmup,
        rounds=rounds,
        durability=durability.value,
        seed=seed,
    )
    each = warmup + seconds + OVERHEAD_SECONDS

    def tick(step: Step) -> None:
        left = (2 * rounds - step.position) * each
        print(
            f"round {step.position + 1} of {2 * rounds}, {step.arm}, about {left:.0f} s left",
            file=sys.stderr,
        )

    with scratch(directory) as folder:
        started, before = datetime.now(UTC), machine.now()
        try:
            result = scenario.run(folder, plan, watchers=watchers, tick=tick)
        except CrewError as error:
            raise failed(error) from error
        told = report_watch.WatchReport(
            command=f"killproof {shlex.join(sys.argv[1:])}",
            seed=seed,
            started=started.isoformat(timespec="seconds"),
            environment=surroundings(folder),
            seconds=seconds,
            warmup_seconds=warmup,
            rounds=rounds,
            noise=machine.noise(before, machine.now(), []),
            result=result,
        )
    print(report_watch.to_json(told) if as_json else report_watch.terminal(told))
    if report is not None:
        report.write_text(report_watch.markdown(told), encoding="utf-8")
        report.with_suffix(".json").write_text(report_watch.to_json(told) + "\n", encoding="utf-8")
        print(f"report: {report}, and .json beside it", file=sys.stderr)
    raise typer.Exit(EXIT_CODES[result.correctness.verdict])


@app.command()
def checkers(
    records: Annotated[int, typer.Option(metavar="N", help="History records.")] = 1_000_000,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure how fast a history is judged."""
    within("--records", records, 1, RECORDS_MAX)
    check_places(directory, None)
    from killproof_bench.crew import CrewError
    from killproof_bench.scenarios import checkers as scenario

    with scratch(directory) as folder:
        try:
            print(f"generating and judging {records:,} records", file=sys.stderr)
            result = scenario.run(folder / "store", records=records)
        except CrewError as error:
            raise failed(error) from error
    if as_json:
        print(json.dumps(dataclasses.asdict(result), indent=1))
    else:
        print(scenario.sentence(result))
    raise typer.Exit(EXIT_CODES.get(result.verdict, EXIT_FAILED))


@app.command()
def startup(
    rounds: Annotated[int, typer.Option(help="Processes of each kind.")] = 20,
    seed: Seed = 1,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure what importing the queue and starting the command cost."""
    within("--rounds", rounds, 1, ROUNDS_MAX)
    check_places(directory, None)
    from killproof_bench.crew import CrewError
    from killproof_bench.scenarios import startup as scenario

    with scratch(directory) as folder:
        try:
            result = scenario.run(folder, rounds=rounds, seed=seed)
        except CrewError as error:
            raise failed(error) from error
    if as_json:
        print(json.dumps(dataclasses.asdict(result), indent=1))
    else:
        print(scenario.sentence(result))
    raise typer.Exit(EXIT_CODES["violated" if result.foreign_modules else "pass"])


@app.command()
def dispatcher(
    seconds: Annotated[float, typer.Option(help="Measured time of the busy part.")] = 5.0,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure a dispatcher: 300 jobs in one process, and its event loop while the file is busy."""
    within("--seconds", seconds, 0.1, SECONDS_MAX)
    check_places(directory, None)
    from killproof_bench.crew import CrewError
    from killproof_bench.scenarios import dispatcher as scenario

    with scratch(directory) as folder:
        environment = surroundings(folder)
        try:
            result = scenario.run(folder, seconds=seconds)
        except CrewError as error:
            raise failed(error) from error
    if as_json:
        print(json.dumps(dataclasses.asdict(result) | {"environment": environment}, indent=1))
    else:
        named = ("cpu", "filesystem", "kernel", "python", "sqlite")
        print(scenario.sentence(result))
        print("; ".join(f"{name} {environment[name]}" for name in named))
    raise typer.Exit(EXIT_CODES["pass" if result.is_right else "violated"])


app.command("capacity")(capacity_command.capacity)
app.command("bare")(bare_command.bare)
app.command("enqueue")(enqueue_command.enqueue)
app.command("idle")(idle_command.idle)
app.command("operations")(operations_command.operations)
app.command("peers")(peers_command.peers)
app.command("gate")(gate_command.gate)
app.command("calibrate")(gate_command.calibrate)
app.command("gate-proof")(gate_command.gate_proof)
