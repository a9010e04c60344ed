"""The command `killproof chaos prove`: all engines within a budget, one verdict, one report.

Exit codes as everywhere: 0 no violation found, 1 violated, 2 unknown, 3 the harness itself failed,
64 wrong usage. What it needs to act is imported where it acts: `command.py` says why.
"""

import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from killproof_chaos import targets
from killproof_chaos.command import (
    Ending,
    JsonOption,
    JunitOption,
    ReportOption,
    StoreOption,
    UnknownOption,
    conclude,
    harness,
    new_store,
    shown,
    within,
)
from killproof_chaos.sim_command import seconds_of
from killproof_evidence.store import Store, write_json

if TYPE_CHECKING:
    from killproof_chaos.prove.dealing import Plan
    from killproof_chaos.prove.running import Show, Turn
    from killproof_evidence.judge import Row

SEED_MAX: Final = 2**31 - 1 - 1_000_000
SHARDS_MAX: Final = 256
#: An engine that has missed something, or had no time from the machine, is run so often again.
AGAIN_MAX: Final = 2
LINE_CHARS_MAX: Final = 64


def prove(
    target: Annotated[
        str,
        typer.Argument(help="A name of `chaos targets`, module:attribute, path.py or path.toml."),
    ] = "killproof",
    budget: Annotated[str, typer.Option(help="How long, in all, such as 90s or 5m.")] = "5m",
    engine: Annotated[
        list[str] | None, typer.Option(help="Only these engines: proc, crash, disk, sim, model.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides all runs; drawn when not given.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="This part of the work, such as 2/4; needs --seed.")
    ] = None,
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Judge a queue by every engine that can, within a budget, and give one verdict.

    Each engine first gets the least that it needs; what is left of the budget is dealt among them.
    With --shard, each of several jobs makes its part in a budget of its own, and
    `killproof chaos merge` joins their stores.
    """
    from killproof_chaos.prove import dealing

    number, count = shard_of(shard)
    if count > 1 and seed is None:
        raise ValueError("--shard needs --seed: all jobs must have the same one")
    drawn = random.randrange(10**6) if seed is None else seed
    asked = dealing.Asked(
        target=target,
        budget=seconds_of(budget),
        seed=within("seed", drawn, 0, SEED_MAX),
        engines=engines_of(engine),
        shards=count,
    )
    plan = dealing.plan(asked, dealing.facts_of(targets.load(target)))
    ending = Ending(unknown=unknown, junit=junit, as_json=as_json, report=report)
    place = new_store(store, "prove", Path(target).stem, told=f"seed {asked.seed}, ")
    with harness(), shown(text_of) as show:
        record = perform(plan, number, place, show, report=report)
    finish(record, place, ending)


def perform(
    plan: "Plan",
    number: int,
    place: Store,
    show: "Show",
    *,
    report: bool,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Make the runs of a shard; return verdict.json, written.

    Args:
        plan: of all shards.
        number: the shard's.
        place: its store, new.
        show: is told how far it is.
        report: whether each engine writes its page.
        seconds: nothing new begins after them; None: after the budget.
    """
    from killproof_chaos.prove import stores
    from killproof_chaos.prove.dealing import Run, again
    from killproof_chaos.prove.running import Campaign, Outcome
    from killproof_chaos.prove.verdict import lacking

    asked, target = plan.asked, targets.load(plan.asked.target)
    argv = asked.argv()
    argv += ["--shard", f"{number}/{asked.shards}"] if asked.shards > 1 else []
    started = time.time()
    run: dict[str, Any] = {
        "target": target.name, "engine": "prove", "seed": asked.seed, "argv": argv,
        "started": started, "contract": "contract.toml", "problems": [],
        "replay": " ".join(argv), "broken": target.broken, "plan": plan.record(),
        "shard": number, "version": version("killproof"), "code": code_of(asked.target),
    }  # fmt: skip
    place.write_contract(target.contract)
    # Whoever is killed has found what it has found: its shard can be merged, as one that was ended.
    place.write_run(run | {"ended": started, "interrupted": True})

    def more(outcomes: Sequence[Outcome]) -> Run | None:
        """Say which engine could do with one more run; None: nothing that was owed is open."""
        here = stores.Shard(path=place.path, run=run, outcomes=outcomes)
        for name in lacking(stores.case_of([here])):
            mine = [one.run for one in outcomes if one.run.engine == name]
            times = len([one for one in mine if "-again" in one.name])
            owed = next((one for one in mine if one.owed and "--seed" in one.words), None)
            if owed is not None and times < AGAIN_MAX:
                return again(owed, times + 1)
        return None

    campaign = Campaign(
        target=asked.target,
        folder=place.path,
        seconds=asked.budget if seconds is None else seconds,
        show=show,
        report=report,
    )
    outcomes, interrupted = campaign.make(plan.of_shard(number), more)
    run |= {"ended": time.time(), "interrupted": interrupted}
    place.write_run(run)
    shard = stores.Shard(path=place.path, run=run, outcomes=outcomes)
    return concluded(stores.case_of([shard]), run, place)


def concluded(case: Any, run: Mapping[str, Any], place: Store) -> dict[str, Any]:
    """Write verdict.json over all runs, and return it."""
    from killproof_chaos.prove.verdict import record_of
    from killproof_evidence.environment import environment

    record = record_of(case)
    durable = [
        (one.record or {}).get("environment", {}).get("durability")
        for one in case.made
        if one.engine == "proc"
    ]
    known = next((level for level in durable if level), None)
    record |= {
        "environment": environment(place.path, durability=known),
        "replay": run["replay"],
        "version": run["version"],
        "started": run["started"],
        "ended": run["ended"],
        "budget": case.plan.asked.budget,
    }
    write_json(place.verdict, record)
    return record


def finish(record: dict[str, Any], place: Store, ending: Ending) -> None:
    """Write the pages, print the verdict, and end with its exit code."""
    conclude(
        record,
        ending,
        rows=rows_of(record),
        figures=figures(record),
        pictures=[runs_table(record)],
        places=[*replays(record), *ending.page(_write_page, place.path)],
    )


def check(store: Store, ending: Ending) -> None:
    """Make the verdict again from those of all runs; `chaos check STORE/runs/NAME` judges one."""
    from killproof_chaos.prove import stores

    shard = stores.read(store.path)
    finish(concluded(stores.case_of([shard]), shard.run, store), store, ending)


def _write_page(folder: Path) -> Path:
    from killproof_chaos.report_prove import write_report

    return write_report(folder)


def rows_of(record: Mapping[str, Any]) -> list["Row"]:
    """Return the rows of the table, each with the engines that judged it."""
    from killproof_evidence.judge import render_rows

    found = []
    for row in render_rows(record):
        by = dict.fromkeys(
            name
            for number in row.properties
            for name in record["properties"].get(number, {}).get("judged_by", ())
        )
        names = f"{row.names} by {' '.join(by)}" if by else row.names
        found.append(replace(row, names=names))
    return found


def runs_table(record: Mapping[str, Any]) -> RenderableType:
    """Return the runs that were made, a row for each."""
    from killproof_chaos.summary import MARKS

    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    found.add_column("run", no_wrap=True)
    for heading in ("owed", "s", "obligations"):
        found.add_column(heading, justify="right")
    found.add_column("verdict", no_wrap=True)
    found.add_column("options", overflow="fold")
    for row in record["runs"]:
        mark, style = MARKS.get(row["verdict"], ("!", "bold red"))
        found.add_row(
            row["run"]["name"],
            "yes" if row["run"]["owed"] else "",
            f"{row['seconds']:.0f}",
            f"{row['hit']:,}/{row['obliged']:,}" if row["obliged"] else "",
            Text(f"{mark} {row['verdict']}", style=style),
            " ".join(row["run"]["words"]),
        )
    return found


def figures(record: Mapping[str, Any]) -> list[str]:
    """Return what was measured, what was left out, and what there was no time for."""
    from killproof_chaos import summary

    lines = summary.figures(record)
    shards = record["shards"]
    if len(shards["here"]) < shards["of"]:
        lines.append(f"shards {', '.join(map(str, shards['here']))} of {shards['of']}")
    lines += [f"{name} was left out: {why}" for name, why in record["left_out"].items()]
    spare = [run["name"] for run in record["not_made"] if not run["owed"]]
    if spare:
        lines.append(
            f"no time was left for further runs, which nothing waits for: {', '.join(spare)}"
        )
    return lines


def replays(record: Mapping[str, Any]) -> list[str]:
    """Return a command for each violation: of each promise and engine the first."""
    seen: dict[tuple[str, str], str] = {}
    for one in record["replays"]:
        seen.setdefault((one["promise"], one["engine"]), one["command"])
    return [f"replay {number}: {command}" for (number, _), command in seen.items()]


def text_of(turn: "Turn") -> str:
    """Return how far it is, and how long it still takes."""
    left = f"{turn.left / 60:.0f} min" if turn.left > 90 else f"{turn.left:.0f} s"
    line = f": {turn.line[:LINE_CHARS_MAX]}" if turn.line else ""
    return f"{turn.engine}, {turn.done + 1} of {turn.total}{line}; about {left} left in all"


def shard_of(text: str | None) -> tuple[int, int]:
    """Read `i/n`; without it there is one shard.

    Raises:
        ValueError: it is none; the message shows the value.
    """
    if text is None:
        return 1, 1
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    number, count = (int(match[1]), int(match[2])) if match is not None else (0, 0)
    if not 1 <= number <= count <= SHARDS_MAX:
        raise ValueError(f"--shard {text!r} must be i/n with 1 <= i <= n <= {SHARDS_MAX}")
    return number, count


def engines_of(words: list[str] | None) -> tuple[str, ...]:
    """Return the chosen engines in their fixed order.

    Raises:
        ValueError: one is unknown.
    """
    from killproof_chaos.prove.dealing import ENGINES

    for word in words or ():
        if word not in ENGINES:
            raise ValueError(f"--engine {word!r} is unknown: use {', '.join(ENGINES)}")
    return tuple(name for name in ENGINES if not words or name in words)


def code_of(target: str) -> str:
    """Return a word that changes with the harness, the queue, or the files of an adapter."""
    from killproof_chaos.resuming import code

    path = Path(target)
    if path.suffix not in (".py", ".toml") or not path.is_file():
        return code()
    script = path.with_suffix(".mjs")  # Of a queue for Node the greater part is there.
    text = path.read_bytes() + (script.read_bytes() if script.is_file() else b"")
    return f"{code()}-{blake2b(text, digest_size=8).hexdigest()}"
