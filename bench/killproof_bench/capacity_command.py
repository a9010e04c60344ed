"""`killproof bench capacity`: how much this machine carries, and what is in the way of more.

Exit codes: 0 yes, or so many jobs a second; 1 no; 2 no answer: too noisy, interrupted, or not
confirmed; 3 the tool failed, or a run was wrong and its figures are void; 64 wrong usage.
"""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from killproof_bench.command import (
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
    from killproof_bench.capacity.result import CapacityResult
    from killproof_bench.capacity.study import Plan

EXIT_CODES: Final = {"pass": 0, "fail": 1, "inconclusive": 2, "violated": EXIT_FAILED}

BUDGET_MIN: Final = 60.0
BUDGET_MAX: Final = 3_600.0
JOB_MS_MAX: Final = 600_000.0
WORKERS_MAX: Final = 256


def capacity(
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="LIMIT", help="Such as 'claim.p99<50ms' or 'time_to_claim.p99<1s'."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/s", help="Jobs enqueued on average: does it fit?")
    ] = None,
    peak: Annotated[
        float, typer.Option(help="The busiest time has so many times the average.")
    ] = 1.0,
    job_ms: Annotated[float, typer.Option(help="How long a handler works.")] = 5.0,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Worker processes; the answer chooses.")
    ] = None,
    growth: Annotated[
        str | None, typer.Option(metavar="N%/month", help="When is the machine outgrown?")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds for everything.")] = 220.0,
    durability: Durable = Level.POWER,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Answer how many jobs a second this machine carries, or whether a rate fits, and why."""
    from killproof_bench.capacity.question import question

    within("--budget", budget, BUDGET_MIN, BUDGET_MAX)
    within("--job-ms", job_ms, 0.0, JOB_MS_MAX)
    if workers is not None:
        within("--workers", workers, 1, WORKERS_MAX)
    check_places(directory, report)
    asked = question(
        slos=slo or (),
        rate_text=rate,
        peak=peak,
        job_ms=job_ms,
        workers=workers,
        growth_text=growth,
    )
    from killproof_bench.capacity import report as told
    from killproof_bench.capacity.result import to_json
    from killproof_bench.capacity.study import Plan
    from killproof_bench.crew import CrewError

    plan = Plan(question=asked, durability=durability.value, budget_seconds=budget, seed=seed)
    try:
        result = _measured(plan, directory)
    except CrewError as error:
        raise failed(error) from error
    print(to_json(result) if as_json else told.terminal(result))
    if report is not None:
        _write(result, report)
    raise typer.Exit(EXIT_CODES[result.verdict])


def _measured(plan: "Plan", directory: Path) -> "CapacityResult":
    from killproof_bench.capacity.study import Study

    with scratch(directory) as folder, progress() as bar:
        task = bar.add_task("", total=plan.budget_seconds)

        def tick(text: str, done: float) -> None:
            bar.update(task, description=text, completed=min(done, plan.budget_seconds))

        study = Study(
            plan,
            folder,
            surroundings(folder),
            command=f"killproof {shlex.join(sys.argv[1:])}",
            tick=tick,
        )
        result = study.run()
        bar.update(task, completed=plan.budget_seconds)
        return result


def _write(result: "CapacityResult", file: Path) -> None:
    from killproof_bench import page
    from killproof_bench.capacity import report as told
    from killproof_bench.capacity.result import to_json

    file.write_text(told.markdown(result), encoding="utf-8")
    file.with_suffix(".json").write_text(to_json(result) + "\n", encoding="utf-8")
    page.write(result, file.with_suffix(".html"))
    print(f"report: {file}, and .json and .html beside it", file=sys.stderr)
