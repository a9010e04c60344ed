"""The command `killproof bench enqueue`: jobs put in, beside the bare statements."""

from pathlib import Path
from typing import Annotated

import typer

from killproof_bench.command import AsJson, Dir, Report, Seed, check_places, within

REPEATS_MAX = 100
PRODUCERS_MAX = 256


def enqueue(
    repeats: Annotated[
        int, typer.Option(help="Of each comparison, in turns, each on fresh files.")
    ] = 6,
    producers: Annotated[
        int, typer.Option(metavar="N", help="Processes that enqueue at once; 0: leave it out.")
    ] = 16,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Put jobs in: batches beside the bare statements, single ones beside the plain reference."""
    within("--repeats", repeats, 1, REPEATS_MAX)
    within("--producers", producers, 0, PRODUCERS_MAX)
    check_places(directory, report)
    from killproof_bench.operations import session
    from killproof_bench.scenarios import enqueue as scenario

    plan = scenario.Plan(repeats=repeats, producers=producers, seed=seed)
    session.conduct([session.enqueue(plan)], seed, directory, report, as_json)
