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
from typing import TYPE_CHECKING, Annotated, Final

import typer

from killproof_bench import bare_command
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
    progress,
    scratch,
    surroundings,
    within,
)

if TYPE_CHECKING:
    from killproof_bench.machine import Moment
    from killproof_bench.result import BenchResult, RowsResult, StoppedResult
    from killproof_bench.scenarios.claim import Bench, Plan

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


@app.command()
def claim(
    workers: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of worker processes.")
    ] = "1,2,4,8,16",
    seconds: Annotated[float, typer.Option(help="Measured time of each round.")] = 5.0,
    warmup: Annotated[float, typer.Option(help="Seconds before it that do not count.")] = 2.0,
    rounds: Annotated[int, typer.Option(help="Of each arm at each number of workers.")] = 2,
    durability: Durable = Level.POWER,
    rows: Annotated[
        int | None,
        typer.Option(metavar="N", help="Also measure the cost with N rows in each other state."),
    ] = None,
    stopped: Annotated[
        bool, typer.Option("--stopped", help="Also measure what a stopped worker costs.")
    ] = False,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Claim and ack under contention, beside the same statements without killproof's locks."""
    numbers = _numbers(workers)
    within("--seconds", seconds, 0.1, SECONDS_MAX)
    within("--warmup", warmup, 0.0, SECONDS_MAX)
    within("--rounds", rounds, 1, ROUNDS_MAX)
    if rows is not None:
        within("--rows", rows, 1, ROWS_MAX)
    check_places(directory, report)
    from killproof_bench.scenarios.claim import Plan

    plan = Plan(
        workers=numbers,
        seconds=seconds,
        warmup_seconds=warmup,
        rounds=rounds,
        durability=durability.value,
        seed=seed,
    )
    _run(plan, rows, stopped, directory, report, as_json)


@app.command()
def rows(
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", help="Rows in each other state.")
    ] = 1_000_000,
    durability: Durable = Level.PROCESS,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure what each operation costs with 1,000 and with N rows in every other state."""
    within("--rows", rows, 1, ROWS_MAX)
    check_places(directory, report)
    from killproof_bench.scenarios.claim import Plan

    plan = Plan(workers=(), seed=seed, durability=durability.value)
    _run(plan, rows, False, directory, report, as_json)


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
    from killproof_bench.scenarios.claim import Plan

    plan = Plan(workers=(), seed=seed, durability=durability.value)
    _run(plan, None, True, directory, report, as_json)


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
        print(f"report: {report}", file=sys.stderr)
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


def _run(
    plan: "Plan",
    rows: int | None,
    with_stopped: bool,
    directory: Path,
    report_file: Path | None,
    as_json: bool,
) -> None:
    """Measure what was asked for, print it, write the report, and leave with the verdict's code."""
    from killproof_bench import report
    from killproof_bench.crew import CrewError
    from killproof_bench.result import to_json

    with scratch(directory) as folder:
        try:
            result = _measured(plan, rows, with_stopped, folder)
        except CrewError as error:
            raise failed(error) from error
    print(to_json(result) if as_json else report.terminal(result))
    if report_file is not None:
        report_file.write_text(report.contention(result), encoding="utf-8")
        beside = report_file.with_suffix(".json")
        beside.write_text(to_json(result) + "\n", encoding="utf-8")
        print(f"report: {report_file}, raw result: {beside}", file=sys.stderr)
    raise typer.Exit(EXIT_CODES[result.verdict])


def _measured(plan: "Plan", rows: int | None, with_stopped: bool, folder: Path) -> "BenchResult":
    """Run the parts one after the other; Ctrl-C ends the run and keeps what has ended."""
    from killproof_bench import machine
    from killproof_bench.scenarios import claim as claim_scenario
    from killproof_bench.scenarios import rows as rows_scenario
    from killproof_bench.scenarios import stopped as stopped_scenario

    started = datetime.now(UTC)
    environment = surroundings(folder)
    before = machine.now()
    bench: Bench | None = None
    rows_result: RowsResult | None = None
    stopped_result: StoppedResult | None = None
    interrupted = False
    try:
        if plan.workers:
            bench = claim_scenario.Bench(plan, folder, environment)
            _run_rounds(bench, plan)
        if with_stopped:
            print("stopping one of 8 workers, again and again", file=sys.stderr)
            stopped_result = stopped_scenario.run(
                folder, durability=plan.durability, seed=plan.seed, tick=lambda: None
            )
        if rows is not None:
            # A sync would hide the cost that is looked for, unless it was asked for by name.
            level = "process" if plan.workers else plan.durability
            rows_result = rows_scenario.run(
                folder,
                rows=rows,
                durability=level,
                seed=plan.seed,
                tick=lambda text: print(text, file=sys.stderr),
            )
    except KeyboardInterrupt:
        interrupted = True
    return _result(
        plan=plan,
        bench=bench,
        rows_result=rows_result,
        stopped_result=stopped_result,
        interrupted=interrupted,
        before=before,
        environment=environment,
        started=started,
    )


def _result(
    *,
    plan: "Plan",
    bench: "Bench | None",
    rows_result: "RowsResult | None",
    stopped_result: "StoppedResult | None",
    interrupted: bool,
    before: "Moment",
    environment: dict[str, str],
    started: datetime,
) -> "BenchResult":
    """Put what was measured together under one verdict."""
    from killproof_bench import ledger, machine, report
    from killproof_bench.result import SCHEMA, BenchResult
    from killproof_bench.scenarios.claim import ratios

    cells = bench.cells() if bench is not None else ()
    judged = [cell.correctness for cell in cells]
    if stopped_result is not None:
        judged.append(stopped_result.correctness)
    # The rows alone are counted, not judged: that the operations were right is what tests show.
    verdict = ledger.merged(judged).verdict if judged or rows_result is None else "pass"
    if cells or interrupted:
        sentence = report.sentence(cells, ratios(cells), plan.durability)
    elif stopped_result is not None:
        sentence = report.stopped_sentence(stopped_result)
    else:
        assert rows_result is not None
        sentence = report.rows_sentence(rows_result)
    return BenchResult(
        schema=SCHEMA,
        command=f"killproof {shlex.join(sys.argv[1:])}",
        seed=plan.seed,
        started=started.isoformat(timespec="seconds"),
        interrupted=interrupted,
        environment=environment,
        durability=plan.durability,
        rounds_planned=plan.rounds,
        seconds=plan.seconds,
        warmup_seconds=plan.warmup_seconds,
        cells=cells,
        ratios=ratios(cells),
        noise=machine.noise(before, machine.now(), bench.raw_rates if bench is not None else []),
        rows=rows_result,
        stopped=stopped_result,
        verdict="unknown" if interrupted and verdict == "pass" else verdict,
        sentence=sentence,
    )


def _run_rounds(bench: "Bench", plan: "Plan") -> None:
    """Run all rounds under a progress bar that says how long it will take."""
    from killproof_bench.scenarios.claim import Step, order

    each = plan.warmup_seconds + plan.seconds + OVERHEAD_SECONDS
    total = each * len(list(order(plan)))
    with progress() as bar:
        task = bar.add_task("", total=total)

        def tick(step: Step, spent: float) -> None:
            bar.update(
                task,
                completed=step.position * each + min(spent, each),
                description=f"{step.workers} workers, {step.arm}",
            )

        bench.run(tick)
        bar.update(task, completed=total)


def _numbers(text: str) -> tuple[int, ...]:
    """Parse a list of worker counts; each once, ascending."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= WORKERS_MAX for number in numbers):
        raise ValueError(
            f"--workers {text!r}: give numbers from 1 to {WORKERS_MAX} with commas, such as 1,4,16"
        )
    return tuple(numbers)


app.command("bare")(bare_command.bare)
