"""One run of the single figures: its parts in order, its conditions, its verdict, its report.

What has ended is kept, so that Ctrl-C prints what there is.
"""

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from killproof_bench import ledger, machine
from killproof_bench.command import EXIT_CODES, failed, progress, scratch, surroundings
from killproof_bench.crew import CrewError
from killproof_bench.operations import goals, report
from killproof_bench.operations.result import (
    SCHEMA,
    Comparison,
    Idle,
    OperationsResult,
    Spending,
    to_json,
)
from killproof_bench.operations.turns import ChildError
from killproof_bench.scenarios import bare as bare_scenario
from killproof_bench.scenarios import enqueue as enqueue_scenario
from killproof_bench.scenarios import idle as idle_scenario

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(slots=True)
class Run:
    """What the parts of a run share, and leave behind."""

    folder: Path
    environment: Mapping[str, str]
    bar: "Progress"
    task: "TaskID"
    until_seconds: float = 0.0  #: Planned time of all parts up to the one that runs.
    from_seconds: float = 0.0
    begun: float = field(default_factory=time.monotonic)
    comparisons: tuple[Comparison, ...] = ()
    spending: tuple[Spending, ...] = ()
    idle: Idle | None = None

    def tick(self, what: str) -> None:
        """Show what is done now, and how far the part has come by its plan."""
        spent = self.from_seconds + time.monotonic() - self.begun
        self.bar.update(self.task, description=what, completed=min(spent, self.until_seconds))


#: About how many seconds a part takes, and the part.
Part = tuple[float, Callable[[Run], None]]


def bare(plan: bare_scenario.Plan) -> Part:
    """Return the part that compares one worker with the bare statements."""

    def measure(run: Run) -> None:
        for found in bare_scenario.run(
            run.folder, plan, environment=run.environment, tick=run.tick
        ):
            run.comparisons += (found,)
        for spent in bare_scenario.spend(run.folder, plan, tick=run.tick):
            run.spending += (spent,)

    return plan.seconds, measure


def enqueue(plan: enqueue_scenario.Plan) -> Part:
    """Return the part that compares what puts jobs in with the bare statements."""

    def measure(run: Run) -> None:
        for found in enqueue_scenario.run(
            run.folder, plan, environment=run.environment, tick=run.tick
        ):
            run.comparisons += (found,)

    return plan.seconds, measure


def idle(plan: idle_scenario.Plan) -> Part:
    """Return the part that watches idle workers, and gives them jobs."""

    def measure(run: Run) -> None:
        run.idle = idle_scenario.run(run.folder, plan, environment=run.environment, tick=run.tick)

    return plan.seconds, measure


def conduct(
    parts: Sequence[Part], seed: int, directory: Path, report_file: Path | None, as_json: bool
) -> None:
    """Run the parts, print the result, write the report, and leave with the verdict's code."""
    started, before = datetime.now(UTC), machine.now()
    interrupted = False
    with scratch(directory) as folder, progress() as bar:
        task = bar.add_task("", total=sum(seconds for seconds, _ in parts))
        run = Run(folder=folder, environment=surroundings(folder), bar=bar, task=task)
        try:
            for seconds, part in parts:
                run.from_seconds, run.begun = run.until_seconds, time.monotonic()
                run.until_seconds += seconds
                part(run)
                bar.update(task, completed=run.until_seconds)
        except KeyboardInterrupt:
            interrupted = True
        except (ChildError, CrewError) as error:
            raise failed(error) from error
    result = _result(run, seed, started, before, interrupted)
    print(to_json(result) if as_json else report.terminal(result))
    if report_file is not None:
        _write(result, report_file)
    raise typer.Exit(EXIT_CODES[result.verdict])


def _write(result: OperationsResult, file: Path) -> None:
    # Not at the top: a run without a report needs no templates.
    from killproof_bench import page

    file.write_text(report.markdown(result), encoding="utf-8")
    file.with_suffix(".json").write_text(to_json(result) + "\n", encoding="utf-8")
    page.write(result, file.with_suffix(".html"))
    print(f"report: {file}, and .json and .html beside it", file=sys.stderr)


def _result(
    run: Run, seed: int, started: datetime, before: machine.Moment, interrupted: bool
) -> OperationsResult:
    """Put what was measured together under one verdict."""
    judged = [each.correctness for each in run.comparisons]
    raw = [rate for each in run.comparisons for rate in each.raw]
    if run.idle is not None:
        judged.append(run.idle.correctness)
        raw += run.idle.raw
    verdict = ledger.merged(judged).verdict
    found = goals.goals(run.comparisons, run.idle)
    return OperationsResult(
        schema=SCHEMA,
        command=f"killproof {shlex.join(sys.argv[1:])}",
        seed=seed,
        started=started.isoformat(timespec="seconds"),
        interrupted=interrupted,
        environment=dict(run.environment),
        noise=machine.noise(before, machine.now(), raw),
        comparisons=run.comparisons,
        spending=run.spending,
        idle=run.idle,
        goals=found,
        verdict="unknown" if interrupted and verdict == "pass" else verdict,
        sentence=goals.sentence(found, verdict),
    )
