"""From the outcomes of all trials to one record: a row for each queue, each checker, each control.

A pure function of what was run; the tables, the page and the exit code are made from the record.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from killproof_chaos import gallery
from killproof_chaos.gallery import Fault
from killproof_chaos.gallery_command import command_of
from killproof_chaos.power import estimates
from killproof_chaos.power.lane import FAILED
from killproof_chaos.power.trials import ENGINES, Asked, Outcome, Trial, can_run
from killproof_chaos.targets.canary import sings
from killproof_evidence.judge import PROPERTIES

SCHEMA: Final = 1
#: Reasons of one kind that the record keeps.
REASONS_MAX: Final = 20


def record_of(
    asked: Asked, planned: Sequence[Trial], made: Sequence[Outcome], *, interrupted: str = ""
) -> dict[str, Any]:
    """Return what was found.

    Args:
        asked: what for.
        planned: all trials.
        made: what came of those that were made.
        interrupted: why not all were made; empty: they were.
    """
    names = list(dict.fromkeys(t.target for t in planned if t.part == "intended"))
    queues = [_queue(gallery.fault(name), planned, made) for name in sorted(names)]
    healthy = _healthy(planned, made)
    canary = _canary(planned, made)
    owed = [trial for trial in planned if trial.part != "cross"]
    done = {outcome.trial.key for outcome in made}
    left = [trial for trial in owed if trial.key not in done]
    failed = [one for one in made if one.verdict == FAILED and one.trial.part != "cross"]
    problems = [f"{' '.join(one.trial.argv())}: {one.why}" for one in failed[:REASONS_MAX]]
    if left:
        problems.append(f"{len(left)} runs were not made: {interrupted or 'the budget ended'}")
    elif interrupted:
        problems.append(interrupted)
    missed = [queue["name"] for queue in queues if queue["missed_seeds"]]
    alarms = sum(row["alarms"] for row in healthy)
    wrong = bool(missed or alarms or (canary and canary["wrong"]))
    return {
        "schema": SCHEMA,
        "verdict": "violated" if wrong else "unknown" if problems else "pass",
        "asked": asdict(asked),
        "command": " ".join(asked.argv()),
        "missed": missed,
        "problems": problems,
        "queues": queues,
        "checkers": _checkers(queues),
        "healthy": healthy,
        "canary": canary,
        "counts": {
            "queues": len(queues),
            "runs": len(made),
            "planned": len(planned),
            "cross_left": sum(t.part == "cross" and t.key not in done for t in planned),
            "alarms": alarms,
            "again": sum(one.tries - 1 for one in made),
        },
        "cpu_seconds": round(sum(one.cpu_seconds for one in made), 1),
    }


def _queue(fault: Fault, planned: Sequence[Trial], made: Sequence[Outcome]) -> dict[str, Any]:
    """Return the row of a broken queue."""
    mine = [one for one in made if one.trial.target == fault.name]
    runs = [one for one in mine if one.trial.part == "intended" and one.verdict != FAILED]
    found = [one for one in runs if fault.promise in one.broken]
    in_time = [one for one in found if one.seconds <= fault.seconds]
    # At the budget, though a search that has seen everything ends before it: such a run will never
    # find it, and leaving it out of those at risk earlier would make the others look surer.
    late = [fault.seconds] * (len(runs) - len(in_time))
    checkers = Counter(name for one in runs for name in one.broken)
    spent = estimates.times([one.cpu_seconds for one in found], [])
    return {
        "name": fault.name,
        "property": fault.promise,
        "also": sorted(fault.also, key=_number),
        "engine": fault.engine,
        "wrong": fault.wrong,
        "command": command_of(fault),
        "budget_seconds": fault.seconds,
        "planned": sum(t.part == "intended" and t.target == fault.name for t in planned),
        "runs": len(runs),
        # As many different runs: an engine that draws nothing makes the same one again.
        "differ": len({" ".join(one.trial.argv()) if one.trial.draws else "" for one in runs}),
        "again": sum(one.tries - 1 for one in runs),
        "rate": asdict(estimates.rate(len(found), len(runs))),
        "incidental": sum(bool(one.broken) and one not in found for one in runs),
        "missed_seeds": [one.trial.seed for one in runs if one not in found],
        "in_budget": len(in_time),
        "seconds": asdict(estimates.times([one.seconds for one in in_time], late)),
        "cpu_seconds": asdict(spent),
        "checkers": {name: checkers[name] for name in sorted(checkers, key=_number)},
        "alone": bool(runs) and set(checkers) == {fault.promise},
        "engines": {engine: _cell(fault, engine, mine) for engine in ENGINES},
    }


def _cell(fault: Fault, engine: str, mine: Sequence[Outcome]) -> dict[str, Any]:
    """Return what one engine found of one queue: the intended property, others, or nothing."""
    runs = [one for one in mine if one.trial.engine == engine]
    tried = [one for one in runs if one.verdict != FAILED]
    found = Counter(name for one in tried for name in one.broken)
    return {
        "runs": len(tried),
        "found": sum(fault.promise in one.broken for one in tried),
        "other": sum(bool(one.broken) and fault.promise not in one.broken for one in tried),
        "broken": {name: found[name] for name in sorted(found, key=_number)},
        "is_intended": engine == fault.engine,
        "judges": _judges(fault.promise, engine),
        "can_run": bool(tried) or can_run(fault.name, engine),
        "failed": next((one.why for one in runs if one.verdict == FAILED), ""),
    }


def _judges(number: str, engine: str) -> bool:
    return any(engine in entry.engines for entry in PROPERTIES if entry.number == number)


def _checkers(queues: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each checker: what it caught, and what nobody else did."""
    rows = []
    known = list(queues)
    for entry in PROPERTIES:
        number = entry.number
        caught = [queue for queue in known if queue["checkers"].get(number)]
        intended = [queue["name"] for queue in caught if queue["property"] == number]
        rows.append(
            {
                "property": number,
                "sentence": entry.sentence,
                "intended": intended,
                "incidental": [q["name"] for q in caught if q["property"] != number],
                "only": [q["name"] for q in caught if q["alone"] and q["property"] == number],
            }
        )
    return rows


def _healthy(planned: Iterable[Trial], made: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return a row for each healthy queue and engine."""
    pairs = sorted(
        {(trial.target, trial.engine) for trial in planned if trial.part == "healthy"},
        key=lambda pair: (pair[0], ENGINES.index(pair[1])),
    )
    rows = []
    for name, engine in pairs:
        mine = [
            one
            for one in made
            if (one.trial.part, one.trial.target, one.trial.engine) == ("healthy", name, engine)
            and one.verdict != FAILED
        ]
        accused = [one for one in mine if one.verdict == "violated"]
        unknown = [one for one in mine if one.verdict == "unknown"]
        rows.append(
            {
                "target": name,
                "engine": engine,
                "runs": len(mine),
                "alarms": len(accused),
                "unknown": len(unknown),
                "bound": estimates.bound(len(accused), len(mine)),
                "accusations": [
                    {"command": " ".join(one.trial.argv()), "broken": list(one.broken)}
                    for one in accused[:REASONS_MAX]
                ],
            }
        )
    return rows


def _canary(planned: Iterable[Trial], made: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return the canary's row: the seeds that violate, and those that were reported."""
    if not any(trial.part == "canary" for trial in planned):
        return None
    mine = [one for one in made if one.trial.part == "canary" and one.verdict != FAILED]
    expected = sorted(one.trial.seed for one in mine if sings(one.trial.seed))
    reported = sorted(one.trial.seed for one in mine if one.verdict == "violated")
    return {
        "runs": len(mine),
        "expected": expected,
        "reported": reported,
        "wrong": expected != reported,
    }


def _number(promise: str) -> int:
    return int(promise.removeprefix("P"))
