"""The command `killproof bench bare`: one worker beside the bare statements of killproof."""

from pathlib import Path
from typing import Annotated

import typer

from killproof_bench.command import AsJson, Dir, Report, Seed, check_places, within

REPEATS_MAX = 100


def bare(
    repeats: Annotated[int, typer.Option(help="Fresh processes, each with all arms in turns.")] = 6,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Claim and ack with one worker, beside the bare statements in a loop."""
    within("--repeats", repeats, 1, REPEATS_MAX)
    check_places(directory, report)
    from killproof_bench.operations import session
    from killproof_bench.scenarios import bare as scenario

    plan = scenario.Plan(repeats=repeats, seed=seed)
    session.conduct([session.bare(plan)], seed, directory, report, as_json)
