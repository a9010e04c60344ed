"""The command `killproof bench idle`: what idle workers cost, and how soon they start a job."""

from pathlib import Path
from typing import Annotated

import typer

from killproof_bench.command import AsJson, Dir, Durable, Level, Report, Seed, check_places, within

FILES_MAX = 64
WORKERS_MAX = 64
JOBS_MAX = 100_000
SECONDS_MAX = 3600.0


def idle(
    files: Annotated[int, typer.Option(metavar="N", help="Databases, given jobs in turn.")] = 8,
    workers: Annotated[int, typer.Option(metavar="N", help="Idle workers on each.")] = 2,
    jobs: Annotated[int, typer.Option(metavar="N", help="Starts to measure.")] = 1_000,
    seconds: Annotated[float, typer.Option(help="How long they are watched idle.")] = 8.0,
    durability: Durable = Level.POWER,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure what idle workers cost, and how soon they start what another process enqueues."""
    within("--files", files, 1, FILES_MAX)
    within("--workers", workers, 1, WORKERS_MAX)
    within("--jobs", jobs, 1, JOBS_MAX)
    within("--seconds", seconds, 0.1, SECONDS_MAX)
    check_places(directory, report)
    from killproof_bench.operations import session
    from killproof_bench.scenarios import idle as scenario

    plan = scenario.Plan(
        files=files,
        workers=workers,
        jobs=jobs,
        idle_seconds=seconds,
        durability=durability.value,
        seed=seed,
    )
    session.conduct([session.idle(plan)], seed, directory, report, as_json)
