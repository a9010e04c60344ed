"""The command `killproof chaos sim`: a queue's own code under every schedule up to a bound.

Exit codes as everywhere: 0 no violation found, 1 violated, 2 unknown, 3 the harness itself failed,
64 wrong usage.

The engine, its page and the judge are imported where they are used: `command.py` says why.
"""

import random
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from killproof.wording import printable
from killproof_chaos import targets
from killproof_chaos.command import (
    EXIT_OF,
    Ending,
    JsonOption,
    JunitOption,
    ReportOption,
    StoreOption,
    TargetOption,
    UnknownOption,
    conclude,
    harness,
    new_store,
    shown,
    within,
)
from killproof_evidence.store import Store

BOUND_MAX: Final = 20
DEPTH_MAX: Final = 20
CRASHES_MAX: Final = 10
JOBS_MAX: Final = 64
SEED_MAX: Final = 2**31 - 1
SECONDS_MAX: Final = 86_400.0
SCHEDULERS: Final = ("dfs", "pct", "walk")
DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, None: 1.0}
TOKEN_PREFIX: Final = "ks1-"


def explore(
    target: TargetOption = "killproof",
    scenario: Annotated[
        list[str] | None, typer.Option(help="Only this scenario; may be given several times.")
    ] = None,
    scheduler: Annotated[
        str, typer.Option(help="dfs: everything up to the bound; pct, walk: at random.")
    ] = "dfs",
    bound: Annotated[int, typer.Option(help="Preemptions in a schedule at most (dfs).")] = 2,
    depth: Annotated[int, typer.Option(help="Ordered events that a bug needs (pct).")] = 3,
    crashes: Annotated[
        int | None, typer.Option(help="Crashes in a schedule at most; else as the scenario says.")
    ] = None,
    budget: Annotated[str, typer.Option(help="How long to explore, such as 30s or 5m.")] = "30s",
    seed: Annotated[
        int | None, typer.Option(help="Of the random schedulers; drawn when not given.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes that explore.")] = 1,
    keep_going: Annotated[
        bool, typer.Option(help="Explore on after a violation, and tell all that breaks.")
    ] = False,
    scenarios: Annotated[
        bool, typer.Option("--scenarios", help="List the scenarios, and end.")
    ] = False,
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Run a queue's own code statement by statement, under every schedule up to a bound.

    Workers, producers and reapers share one thread and a real file; a scheduler decides at each
    SQL statement who goes on, who crashes and whether time passes. What breaks a promise is
    shrunk to a story of a few steps, with a token that replays it anywhere.
    """
    from killproof_chaos.sim import campaign, result
    from killproof_chaos.sim.scenarios import SCENARIOS

    if scenarios:
        for name, each in SCENARIOS.items():
            print(f"{name:<22} {each.text}")
        return
    if scheduler not in SCHEDULERS:
        raise ValueError(f"--scheduler {scheduler!r} is unknown: use {', '.join(SCHEDULERS)}")
    drawn = random.randrange(10**6) if seed is None else seed
    options = campaign.Options(
        target=target,
        scenarios=tuple(dict.fromkeys(scenario or ())),
        scheduler=scheduler,
        bound=within("bound", bound, 0, BOUND_MAX),
        depth=within("depth", depth, 1, DEPTH_MAX),
        crashes=None if crashes is None else within("crashes", crashes, 0, CRASHES_MAX),
        seconds=seconds_of(budget),
        seed=within("seed", drawn, 0, SEED_MAX),
        jobs=within("jobs", jobs, 1, JOBS_MAX),
        keep_going=keep_going,
    )
    campaign.chosen(options, targets.load(target))  # Refuses before a store is made.
    ending = Ending(unknown=unknown, junit=junit, as_json=as_json, report=report)
    place = new_store(store, "sim", Path(target).stem)
    started = time.time()
    with harness():
        with shown(text_of) as show:
            found = campaign.run(options, show)
        record = result.conclude(found, place, started)
    finish(record, ending, place)


def finish(record: dict[str, Any], ending: Ending, place: Store) -> None:
    """Write the report, print the verdict, and end with its exit code."""
    from killproof_chaos import summary
    from killproof_chaos.sim import result

    page = ending.page(_write_page, place.path)
    tokens = [f"story:  killproof chaos replay {each['token']}" for each in record["stories"]]
    conclude(
        record,
        ending,
        rows=summary.judged(record),
        figures=result.figures(record),
        pictures=[table(record), *stories(record)],
        places=[*tokens, *page],
    )


def _write_page(folder: Path) -> Path:
    from killproof_chaos.report_sim import write_report

    return write_report(folder)


def check(store: Store, ending: Ending) -> None:
    """Judge the schedule of a run's first violation again, from its records alone.

    Raises:
        ValueError: the run has found none, so it has kept no records; the message says what to do.
    """
    from killproof_evidence.judge import judge

    record = store.read_verdict()
    if not record["stories"]:
        raise ValueError(
            f"{store.path} is a run of the engine sim that found no violation, and keeps none of "
            f"its schedules: repeat it with `{record['replay']}`"
        )
    judged = judge(store, write=False).record
    first = record["stories"][0]
    kept = {"counts": record["counts"], "replay": record["replay"], "errors": first["errors"]}
    if first["errors"]:
        # The records tell what the queue did; what its code raised stands in the story alone.
        kept["verdict"] = "violated"
    conclude(
        {**judged, **kept, "crashes": None, "scenarios": record["scenarios"]},
        ending,
        figures=(f"judged: the schedule of {first['scenario']} that broke {first['promise']}",),
        pictures=stories({"stories": [first]}),
        places=[f"story:  killproof chaos replay {first['token']}"],
    )


def token_of(what: str) -> str | None:
    """Return the token that `chaos replay` was given, or that the given store holds; else None.

    Raises:
        ValueError: the store is of this engine and found no violation.
    """
    if what.startswith(TOKEN_PREFIX):
        return what
    path = Path(what)
    if not path.is_dir() or not Store(path).run.exists():
        return None
    if Store(path).read_run().get("engine") != "sim":
        return None
    record = Store(path).read_verdict()
    if not record["stories"]:
        raise ValueError(
            f"{path} is a run of the engine sim that found no violation: repeat it with "
            f"`{record['replay']}`"
        )
    return str(record["stories"][0]["token"])


def replay(text: str, *, verbose: bool) -> None:
    """Play the schedule of a token, print its story, and end with its exit code.

    A schedule that is not the token's own any more, and breaks nothing, shows nothing: whether what
    was found is mended, or the schedule only misses it now, is unknown.

    Raises:
        ValueError: the token, its target or its scenario can not be used.
    """
    from killproof_chaos.sim.replaying import retell

    told = retell(text)
    print(printable(told.story.text(verbose=verbose)), end="")
    if not told.is_same:
        print(
            f"killproof: this is not the story that the token was made from: {told.token.target} "
            f"or the scenario {told.token.scenario} has changed since. Explore it anew: killproof "
            f"chaos sim --target {told.token.target} --scenario {told.token.scenario}",
            file=sys.stderr,
        )
    verdict = "violated" if told.story.violations else "pass" if told.is_same else "unknown"
    raise typer.Exit(EXIT_OF[verdict])


def seconds_of(text: str) -> float:
    """Read a duration such as 30s, 5m or 90.

    Raises:
        ValueError: it is none, or out of bounds; the message shows the value.
    """
    match = DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * UNITS[match[2]] if match is not None else 0.0
    if not 0.1 <= seconds <= SECONDS_MAX:
        raise ValueError(f"--budget {text!r} must be a time from 0.1s to 24h, such as 30s or 5m")
    return seconds


def text_of(turn: Any) -> str:
    """Return how far a campaign is, and how long it still takes at most."""
    return (
        f"{turn.what}: {turn.schedules:,} schedules, {turn.rate:,.0f}/s, "
        f"at most {turn.left:.0f} s left"
    )


def table(record: Mapping[str, Any]) -> Table:
    """Return what was explored, a row for each scenario."""
    from killproof_chaos.summary import MARKS

    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    found.add_column("scenario", no_wrap=True)
    for heading in ("schedules", "distinct", "pruned", "bound", "exhausted", "/s", "in SQLite"):
        found.add_column(heading, justify="right")
    found.add_column("verdict", no_wrap=True)
    for row in record["scenarios"]:
        mark, style = MARKS[row["verdict"]]
        broken = f" {' '.join(row['broken'])}" if row["broken"] else ""
        found.add_row(
            row["scenario"],
            f"{row['schedules']:,}",
            f"{row['distinct']:,}",
            f"{row['pruned']:,}",
            "" if row["bound"] is None else str(row["bound"]),
            "yes" if row["exhausted"] else "no",
            f"{row['schedules_per_second']:,}",
            f"{100 * row['sqlite_share']:.0f}%",
            Text(f"{mark} {row['verdict']}{broken}", style=style),
        )
    return found


def stories(record: Mapping[str, Any]) -> list[RenderableType]:
    """Return the shortest schedule that was found for each broken promise."""
    return [Text("\n" + printable(story["text"])) for story in record["stories"]]
