"""`killproof bench peers`: other people's queues and killproof, the same work in the same run.

A queue that does not install is a row that says why. What another queue does wrong is printed
beside its figure and changes no exit code; a wrong run of killproof or of the reference is void.
"""

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from killproof_bench import command
from killproof_bench.command import AsJson, Dir, Report, Seed, check_places, within

if TYPE_CHECKING:
    from killproof_bench.peers.result import PeersResult
    from killproof_bench.peers.run import Bench, Plan, Step
    from killproof_bench.result import Noise

WORKERS_MAX: Final = 64
SECONDS_MAX: Final = 60.0
ROUNDS_MAX: Final = 50
#: What a round needs beside its time, on two cores: copying, sixteen interpreters, counting.
OVERHEAD_SECONDS: Final = 2.0
OVERHEAD_SECONDS_PER_WORKER: Final = 0.1


def peers(
    only: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Queues by name, with commas; `all` for all of them."),
    ] = "",
    workers: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of worker processes.")
    ] = "1,16",
    seconds: Annotated[float, typer.Option(help="Measured time of each round.")] = 3.0,
    warmup: Annotated[float, typer.Option(help="Seconds before it that do not count.")] = 0.5,
    rounds: Annotated[int, typer.Option(help="Of each queue at each number of workers.")] = 5,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure other queues on SQLite beside killproof, under equal durability."""
    numbers = _numbers(workers)
    within("--seconds", seconds, 0.1, SECONDS_MAX)
    within("--warmup", warmup, 0.0, SECONDS_MAX)
    within("--rounds", rounds, 1, ROUNDS_MAX)
    check_places(directory, report)
    from killproof_bench.peers import catalog
    from killproof_bench.peers.run import Plan

    chosen = catalog.named(only.split(",")) if only else catalog.MAIN
    plan = Plan(
        peers=chosen,
        workers=numbers,
        seconds=seconds,
        warmup_seconds=warmup,
        rounds=rounds,
        seed=seed,
    )
    result = _measured(plan, directory)
    _told(result, report, as_json)
    raise typer.Exit(command.EXIT_CODES[result.verdict])


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--workers {text!r}: give whole numbers with commas") from None
    for number in numbers:
        within("--workers", number, 1, WORKERS_MAX)
    return tuple(dict.fromkeys(numbers))


def _measured(plan: "Plan", directory: Path) -> "PeersResult":
    """Run; Ctrl-C ends the run and keeps what has ended."""
    from killproof_bench import machine
    from killproof_bench.peers.processes import PeerFailed
    from killproof_bench.peers.run import Bench

    with command.scratch(directory) as folder:
        started, before = datetime.now(UTC), machine.now()
        environment = command.surroundings(folder)
        bench = Bench(plan, folder, environment)
        interrupted = False
        try:
            bench.prepare(lambda text: print(text, file=sys.stderr))
            # What installs and makes files is not part of the measured time.
            before = machine.now()
            _run_rounds(bench, plan)
        except KeyboardInterrupt:
            interrupted = True
        except PeerFailed as error:
            raise command.failed(error) from error
        noise = machine.noise(before, machine.now(), bench.raw_rates)
        return _result(plan, bench, started, environment, noise, interrupted)


def _run_rounds(bench: "Bench", plan: "Plan") -> None:
    def needed(step: "Step") -> float:
        return (
            plan.warmup_seconds
            + plan.seconds
            + OVERHEAD_SECONDS
            + OVERHEAD_SECONDS_PER_WORKER * step.workers
        )

    steps = bench.steps()
    with command.progress() as display:
        task = display.add_task("starting", total=sum(needed(step) for step in steps))

        def tick(step: "Step", seconds: float) -> None:
            done = sum(needed(each) for each in steps[: step.position])
            display.update(
                task,
                completed=done + min(seconds, needed(step)),
                description=f"{step.contender}, {step.workers} workers",
            )

        bench.run(tick)


def _result(
    plan: "Plan",
    bench: "Bench",
    started: datetime,
    environment: dict[str, str],
    noise: "Noise",
    interrupted: bool,
) -> "PeersResult":
    from killproof_bench import ledger
    from killproof_bench.peers import judging, report
    from killproof_bench.peers.catalog import OURS, POWER
    from killproof_bench.peers.result import SCHEMA, PeersResult
    from killproof_bench.seeding import PAYLOAD_BYTES

    cells, contenders = bench.cells(), bench.contenders()
    comparisons = judging.compare(cells)
    own = {peer.name for peer in OURS}
    rates = bench.raw_rates or [0.0]
    correctness = ledger.merged([cell.correctness for cell in cells if cell.contender in own])
    return PeersResult(
        schema=SCHEMA,
        command=f"killproof {shlex.join(sys.argv[1:])}",
        seed=plan.seed,
        started=started.isoformat(timespec="seconds"),
        interrupted=interrupted,
        environment=environment,
        jobs=plan.jobs(POWER),
        payload_bytes=PAYLOAD_BYTES,
        workers=plan.workers,
        rounds_planned=plan.rounds,
        seconds=plan.seconds,
        warmup_seconds=plan.warmup_seconds,
        contenders=contenders,
        cells=cells,
        comparisons=comparisons,
        goals=judging.goals(comparisons, [each.name for each in contenders])
        if judging.GOAL_WORKERS in plan.workers
        else (),
        raw_before=rates[0],
        raw_after=rates[-1],
        noise=noise,
        verdict="unknown" if interrupted else correctness.verdict,
        sentence=report.sentence(cells, comparisons, contenders),
    )


def _told(result: "PeersResult", file: Path | None, as_json: bool) -> None:
    from killproof_bench import page
    from killproof_bench.peers import report

    print(result.to_json() if as_json else report.terminal(result))
    if file is None:
        return
    file.write_text(report.markdown(result), encoding="utf-8")
    file.with_suffix(".json").write_text(result.to_json() + "\n", encoding="utf-8")
    page.write(result, file.with_suffix(".html"))
    print(f"report: {file}, and .json and .html beside it", file=sys.stderr)
