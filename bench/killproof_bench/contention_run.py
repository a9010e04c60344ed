"""One run of `killproof bench claim`, `rows` or `stopped`: its parts in order, under one verdict.

Ctrl-C ends the run and keeps what has ended; what was measured is then printed and written as of a
whole run, and says that it is not one.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from killproof_bench import ledger, machine, report, report_contention
from killproof_bench.cells import ratios
from killproof_bench.command import EXIT_CODES, failed, progress, scratch, surroundings
from killproof_bench.crew import CrewError
from killproof_bench.recording import timing_us
from killproof_bench.result import SCHEMA, BenchResult, RowsResult, StoppedResult, to_json
from killproof_bench.scenarios import claim, rows, stopped
from killproof_bench.scenarios.claim import Bench, Plan, Step

#: What a round needs beside its warm-up and its measured time, and each process in it: copying,
#: starting, judging. On two cores; the display corrects itself as the run goes on.
ROUND_SECONDS: Final = 1.0
PROCESS_SECONDS: Final = 0.1
STOPPED_SECONDS: Final = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for."""

    plans: Sequence[Plan]  #: Measured one after the other; the first names the run.
    rows: int | None = None  #: Also the cost with so many rows in each other state.
    stopped: bool = False  #: Also what a stopped worker costs.
    durability: claim.Durability = "power"  #: Of the two parts above.
    seed: int = 1


@dataclass(slots=True)
class _Measured:
    """What has ended so far."""

    benches: list[Bench] = field(default_factory=list)
    rows: RowsResult | None = None
    stopped: StoppedResult | None = None
    interrupted: bool = False


def run(request: Request, directory: Path, report_file: Path | None, *, as_json: bool) -> None:
    """Measure, print, write the report, and leave with the verdict's code.

    Raises:
        typer.Exit: always.
    """
    with scratch(directory) as folder:
        try:
            result = measure(request, folder)
        except CrewError as error:
            raise failed(error) from error
    print(to_json(result) if as_json else report_contention.terminal(result))
    if report_file is not None:
        write(result, report_file)
    raise typer.Exit(EXIT_CODES[result.verdict])


def write(result: BenchResult, report_file: Path) -> None:
    """Write the report as FILE.md, as FILE.html, and the result they are made of as FILE.json."""
    # Not at the top: a run without a report needs no templates.
    from killproof_bench import page

    report_file.write_text(report_contention.contention(result), encoding="utf-8")
    beside, html = report_file.with_suffix(".json"), report_file.with_suffix(".html")
    beside.write_text(to_json(result) + "\n", encoding="utf-8")
    page.write(result, html)
    print(f"report: {report_file}, page: {html}, raw result: {beside}", file=sys.stderr)


def measure(request: Request, folder: Path) -> BenchResult:
    """Run the parts one after the other.

    Raises:
        CrewError: a process failed.
        FileRefused: the folder's file system cannot keep the durability.
    """
    started, before = datetime.now(UTC), machine.now()
    environment = surroundings(folder)
    cost = timing_us() if request.plans else None
    done = _Measured()
    try:
        _claims(request, folder, environment, done)
        if request.stopped:
            print("stopping one of 8 workers, again and again", file=sys.stderr)
            done.stopped = stopped.run(
                folder, durability=request.durability, seed=request.seed, tick=lambda: None
            )
        if request.rows is not None:
            done.rows = rows.run(
                folder,
                rows=request.rows,
                # A sync would hide the cost that is looked for, unless it was asked for by name.
                durability="process" if request.plans else request.durability,
                seed=request.seed,
                tick=lambda text: print(text, file=sys.stderr),
            )
    except KeyboardInterrupt:
        done.interrupted = True
    return _result(request, done, environment, before, started, cost)


def _claims(request: Request, folder: Path, environment: dict[str, str], done: _Measured) -> None:
    """Run all rounds of all plans under one bar that says how long it will take."""
    total = sum(
        round_seconds(plan, step)
        for plan in request.plans
        for step in claim.order(plan, timed_pair=True)
    )
    if not total:
        return
    spent, first = 0.0, 0
    with progress() as bar:
        task = bar.add_task("", total=total)
        for plan in request.plans:
            steps = list(claim.order(plan, timed_pair=True))
            begins = [
                spent + sum(round_seconds(plan, step) for step in steps[:place])
                for place in range(len(steps))
            ]

            def tick(
                step: Step, seconds: float, plan: Plan = plan, begins: list[float] = begins
            ) -> None:
                bar.update(
                    task,
                    completed=begins[step.position] + min(seconds, round_seconds(plan, step)),
                    description=f"{report.plan_name(plan.setup)}, {step.workers}, {step.arm}",
                )

            bench = Bench(plan, folder, environment, first=first)
            done.benches.append(bench)
            bench.run(tick)
            spent += sum(round_seconds(plan, step) for step in steps)
            first += len(steps)
        bar.update(task, completed=total)


def round_seconds(plan: Plan, step: Step) -> float:
    """Return about how long one round takes, all in all."""
    processes = step.workers + plan.producers
    return plan.warmup_seconds + plan.seconds + ROUND_SECONDS + PROCESS_SECONDS * processes


def _result(
    request: Request,
    done: _Measured,
    environment: dict[str, str],
    before: machine.Moment,
    started: datetime,
    cost: float | None,
) -> BenchResult:
    """Put what was measured together under one verdict."""
    cells = tuple(cell for bench in done.benches for cell in bench.cells())
    judged = [cell.correctness for cell in cells]
    if done.stopped is not None:
        judged.append(done.stopped.correctness)
    # The rows alone are counted, not judged: that the operations were right is what tests show.
    verdict = ledger.merged(judged).verdict if judged or done.rows is None else "pass"
    compared = ratios(cells)
    if cells or done.interrupted:
        sentence = report.sentence(cells, compared)
    elif done.stopped is not None:
        sentence = report.stopped_sentence(done.stopped)
    else:
        assert done.rows is not None
        sentence = report.rows_sentence(done.rows)
    plan = request.plans[0] if request.plans else Plan(workers=(), durability=request.durability)
    raw_rates = [rate for bench in done.benches for rate in bench.raw_rates]
    return BenchResult(
        schema=SCHEMA,
        command=f"killproof {shlex.join(sys.argv[1:])}",
        seed=request.seed,
        started=started.isoformat(timespec="seconds"),
        interrupted=done.interrupted,
        environment=environment,
        durability=plan.durability,
        rounds_planned=plan.rounds,
        seconds=plan.seconds,
        warmup_seconds=plan.warmup_seconds,
        timing_us=cost,
        cells=cells,
        ratios=compared,
        noise=machine.noise(before, machine.now(), raw_rates),
        rows=done.rows,
        stopped=done.stopped,
        verdict="unknown" if done.interrupted and verdict == "pass" else verdict,
        sentence=sentence,
    )
