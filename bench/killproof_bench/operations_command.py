"""The command `killproof bench operations`: all single figures in one run and one report."""

from pathlib import Path
from typing import Annotated

import typer

from killproof_bench.command import AsJson, Dir, Report, Seed, check_places, within

REPEATS_MAX = 100


def operations(
    repeats: Annotated[int, typer.Option(help="Of each comparison, on fresh files.")] = 6,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure one worker, putting jobs in, and idle workers: `bare`, `enqueue` and `idle`."""
    within("--repeats", repeats, 1, REPEATS_MAX)
    check_places(directory, report)
    from killproof_bench.operations import session
    from killproof_bench.scenarios import bare, enqueue, idle

    parts = [
        session.bare(bare.Plan(repeats=repeats, seed=seed)),
        session.enqueue(enqueue.Plan(repeats=repeats, seed=seed)),
        session.idle(idle.Plan(seed=seed)),
    ]
    session.conduct(parts, seed, directory, report, as_json)
