"""What a campaign leaves behind: verdict.json, run.json, and the evidence of what it found."""

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any, Final

from killproof_chaos import targets
from killproof_chaos.sim.campaign import Campaign, Row
from killproof_chaos.sim.judging import ERROR, JUDGED
from killproof_chaos.sim.scenarios import SCENARIOS
from killproof_chaos.sim.schedulers import Replay
from killproof_chaos.sim.shrink import Shrunk
from killproof_chaos.sim.stage import Stage
from killproof_chaos.stores import run_record
from killproof_evidence.environment import environment
from killproof_evidence.judge import PROPERTIES
from killproof_evidence.store import Store, write_json

#: Where the stories stand in a store, as text.
STORIES: Final = "stories.txt"


def conclude(campaign: Campaign, store: Store, started: float) -> dict[str, Any]:
    """Write the store of a campaign; return verdict.json.

    Args:
        campaign: what was found.
        store: new; it gets the records of the first violation, if there is one.
        started: when the campaign began, s since 1970.
    """
    options = campaign.options
    target = targets.load(options.target)
    _write_evidence(store, target, campaign.stories)
    record = _verdict(campaign, target.contract, store)
    fields = run_record(
        target, "sim", options.argv(), seed=record["seed"], started=started,
        problems=record["unknown_because"],
    )  # fmt: skip
    if not campaign.stories:  # Else it is there, with what the scenario of the schedule adds.
        store.write_contract(target.contract)
    # A schedule owes nothing beyond itself: what a campaign owes stands in its verdict.
    store.write_run(
        {
            **fields,
            "ended": time.time(),
            "interrupted": campaign.interrupted,
            "obligations": {},
            "files": store.sizes(),  # What is lost later must not accuse the queue.
            "options": asdict(options),
            "environment": record["environment"],
        }
    )
    write_json(store.verdict, record)
    return record


def _write_evidence(store: Store, target: Any, stories: list[Shrunk]) -> None:
    """Write the records of the first story's schedule, its file, and all stories as text."""
    if not stories:
        return
    first = stories[0]
    with Stage(target, first.scenario) as stage:
        outcome = stage.play(Replay(first.outcome.choices))
        assert outcome is not None, "one schedule can be replayed"
        stage.write_store(store, outcome)
        with closing(sqlite3.connect(store.db / stage.path.name)) as copy:
            stage.database.backup(copy)
    text = "\n".join(f"{each.story.text(verbose=True)}token: {each.token}\n" for each in stories)
    (store.path / STORIES).write_text(text, encoding="utf-8")


def _verdict(campaign: Campaign, contract: Any, store: Store) -> dict[str, Any]:
    """Return verdict.json as an object."""
    options, rows = campaign.options, list(campaign.rows.values())
    is_violated = any(row.broken for row in rows)
    properties = {
        entry.number: _property(entry.number, entry.engines, campaign, contract)
        for entry in PROPERTIES
    }
    because = _unknown_because(campaign, properties)
    return {
        "schema": 1,
        "target": options.target,
        "engine": "sim",
        "seed": None if options.scheduler == "dfs" else options.seed,
        "level": "process",
        "verdict": "violated" if is_violated else "unknown" if because else "pass",
        "unknown_because": because,
        "properties": properties,
        "faults": {},
        "coverage": {"obliged": 0, "hit": 0, "missed": []},
        "counts": {
            "schedules": sum(row.schedules for row in rows),
            "distinct": sum(row.distinct for row in rows),
            "outcomes": sum(row.outcomes for row in rows),
            "pruned": sum(row.pruned for row in rows),
            "played": sum(row.played for row in rows),
        },
        "scheduler": options.scheduler,
        "bound": min((-1 if row.bound is None else row.bound for row in rows), default=-1),
        "asked": options.bound if options.scheduler == "dfs" else None,
        "crashes": options.crashes,
        "scenarios": [row.record() for row in rows],
        "left_out": campaign.left_out,
        "stories": [_story(each) for each in campaign.stories],
        "errors": [error for each in campaign.stories for error in _errors(each)],
        "exhausted": bool(rows) and all(row.exhausted for row in rows),
        "interrupted": campaign.interrupted,
        "seconds": round(campaign.seconds, 3),
        "jobs": {},
        "recovery_ms": {},
        "environment": environment(store.path),
        "replay": " ".join(options.argv()),
    }


def _unknown_because(campaign: Campaign, properties: Mapping[str, Any]) -> list[str]:
    rows = list(campaign.rows.values())
    because = []
    if campaign.interrupted:
        played = sum(row.played for row in rows)
        because.append(f"the run was interrupted after {played:,} schedules")
    for row in rows:
        if not (row.broken or row.is_enough):
            because.append(
                f"{row.scenario}: the time ended {_within(row)}: give a longer --budget, or take "
                "--scheduler pct"
            )
        if row.hung:
            because.append(f"{row.scenario}: in {row.hung:,} schedules an actor waits for ever")
    words = {found["verdict"] for found in properties.values()}
    if not words & {"pass", "violated", "unknown"}:
        because.append("no promise was judged: the target makes none that these scenarios show")
    reasons: dict[str, list[str]] = {}
    for number, found in properties.items():
        if found["verdict"] == "unknown":
            reasons.setdefault(found["reason"], []).append(number)
    return because + [f"{', '.join(numbers)}: {reason}" for reason, numbers in reasons.items()]


def _property(
    number: str, engines: tuple[str, ...], campaign: Campaign, contract: Any
) -> dict[str, Any]:
    """Return the verdict on one promise, over all scenarios."""
    if not contract.promised(number):
        return {"verdict": "not_promised", "checked": 0, "witnesses": []}
    rows = list(campaign.rows.values())
    seen = [row for row in rows if number in row.passed | row.broken]
    if number not in JUDGED and not seen:  # A scenario may have a check of its own for it.
        return {"verdict": "not_judged", "checked": 0, "by": engines[0], "witnesses": []}
    found: dict[str, Any] = {"checked": sum(row.schedules for row in seen)}
    if any(number in row.broken for row in rows):
        witnesses = [_witness(number, each) for each in campaign.stories if _tells(each, number)]
        broken = sum(number in row.broken for row in rows)
        return found | {"verdict": "violated", "violations": broken, "witnesses": witnesses}
    if seen:
        went_on = campaign.options.keep_going
        lacks = [lack for row in seen if (lack := _lack(row, went_on=went_on))]
        if lacks:
            return found | {"verdict": "unknown", "reason": "; ".join(lacks), "witnesses": []}
        return found | {"verdict": "pass", "witnesses": []}
    why = next((row.unknown[number] for row in rows if number in row.unknown), "nothing was played")
    if len(campaign.rows) + len(campaign.left_out) < len(SCENARIOS):
        # Some scenarios were chosen, and none of them is about this.
        return found | {"verdict": "not_judged", "by": "sim", "reason": why, "witnesses": []}
    if campaign.left_out:
        return found | {"verdict": "not_judged", "by": engines[0], "reason": why, "witnesses": []}
    return found | {"verdict": "unknown", "reason": f"no scenario shows it: {why}", "witnesses": []}


def _lack(row: Row, *, went_on: bool) -> str:
    """Return why what a scenario has not seen break may break in it; empty: all was played."""
    if row.broken and not went_on:
        # It ends at its first violation: the schedules beyond could break other promises too.
        return f"the search of {row.scenario} ended at what broke there"
    if not row.is_enough:
        return f"the time of {row.scenario} ended {_within(row)}"
    return f"in {row.scenario} an actor waits for ever" if row.hung else ""


def _within(row: Row) -> str:
    return "within bound 0" if row.schedules else "before a schedule did"


def _tells(shrunk: Shrunk, number: str) -> bool:
    return any(violation.promise == number for violation in shrunk.story.violations)


def _witness(number: str, shrunk: Shrunk) -> dict[str, Any]:
    violation = next(v for v in shrunk.story.violations if v.promise == number)
    lines = [line for step in shrunk.story.steps for line in step.lines()]
    return {
        "job": violation.job,
        "story": violation.story,
        "lines": [
            {"file": STORIES, "line": number, "text": line} for number, line in enumerate(lines, 1)
        ],
    }


def _story(shrunk: Shrunk) -> dict[str, Any]:
    story = shrunk.story
    return {
        "scenario": shrunk.scenario.name,
        "promise": shrunk.promise,
        "token": shrunk.token,
        "plays": shrunk.plays,
        "actors": list(story.actors),
        "title": f"{story.target}, {story.scenario}",
        "schedule": story.schedule,
        "steps": [asdict(step) for step in story.steps],
        "endings": story.endings(),
        "errors": _errors(shrunk),
        "text": story.text(),
    }


def _errors(shrunk: Shrunk) -> list[str]:
    return [v.story for v in shrunk.story.violations if v.promise == ERROR]


def figures(record: Mapping[str, Any]) -> list[str]:
    """Return how far a campaign reached, and what it does not show: a line each."""
    counts = record["counts"]
    lines = []
    if record["scheduler"] == "dfs":
        reach = "no bound is exhausted in all scenarios"
        if record["bound"] >= 0:
            reach = f"exhausted at bound {record['bound']} in all scenarios"
        reach += (
            ", the bound that was asked for"
            if record["exhausted"]
            else f"; bound {record['asked']} was asked for"
        )
        crashes = record["crashes"]
        told = "as each scenario says" if crashes is None else f"at most {crashes}"
        lines.append(f"{reach}; crashes in a schedule: {told}")
    else:
        lines.append(
            f"scheduler {record['scheduler']}, seed {record['seed']}: "
            f"{counts['distinct']:,} different schedules; a random search exhausts nothing"
        )
    for name, lack in record["left_out"].items():
        lines.append(f"left out: {name}, for the target has no {lack}")
    return [*lines, NOT_SHOWN]


#: What stands under every verdict of this engine.
NOT_SHOWN: Final = (
    "not shown: races inside one statement or inside SQLite, the kernel's locks and fsync, and "
    "whatever lies beyond the bound"
)
