"""One verdict over all engines: what each said of each promise, and what that adds up to.

A promise that any engine found violated is violated. It passes where an engine judged it and met
every obligation; an engine's obligations are those of all its runs together, as what is rare need
not occur in each of them. Whatever is missing of what was owed makes the whole unknown.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from killproof_chaos.prove.dealing import Plan
from killproof_chaos.prove.running import FAILED, RUNS, Outcome
from killproof_chaos.summary import counted, extent
from killproof_evidence.contract import Contract
from killproof_evidence.finding import (
    NOT_JUDGED,
    NOT_PROMISED,
    PASS,
    UNKNOWN,
    VIOLATED,
    WITNESSES_MAX,
)
from killproof_evidence.judge import PROPERTIES, SCHEMA

Record = Mapping[str, Any]
#: Reasons of a run that are told otherwise here: by engine, and by promise.
_MISSED: Final = "obligation missed: "
_OF_PROMISE: Final = re.compile(r"P\d+(, P\d+)*: ")
#: An obligation that is a number of faults: runs add up to it.
_COUNT_OWED: Final = re.compile(r"(\d+) (kills|pauses) that hit")
#: Of the machine or the hour, and forgiven where a run of the same engine was spared them.
_PASSING: Final = re.compile(r"(the supervisor was starved|the run was interrupted|stopped by a)")
POWER: Final = "power"
#: The engine that alone can show an acknowledgement to survive a power cut.
CUTS: Final = "disk"
#: Engines of which one run need not meet everything: what one has missed, another may have met.
_RARE: Final = frozenset({"proc", "disk"})
#: Worse first.
_WORSE: Final = (VIOLATED, UNKNOWN, PASS, NOT_JUDGED, NOT_PROMISED)
#: What is counted, in the order in which it is told, and the noun.
_COUNTED: Final = (
    ("kills", "kill"),
    ("pauses", "pause"),
    ("jobs", "job"),
    ("failed_calls", "failed call"),
    ("images", "power cut"),
    ("schedules", "schedule"),
    ("states", "state"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A run that was made, and its verdict.json; None: it failed."""

    outcome: Outcome
    record: Record | None

    @property
    def engine(self) -> str:
        """Return the engine's name."""
        return self.outcome.run.engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the verdict is made of."""

    plan: Plan
    target: str  #: the queue's own name
    contract: Contract
    made: Sequence[Made]
    shards: Sequence[int]  #: that are here
    interrupted: bool = False
    is_part: bool = False  #: one shard of several, which says nothing of what the others have

    @property
    def missing(self) -> list[int]:
        """Return the shards that are not here; of a part, the others are not missed."""
        known = range(1, self.plan.asked.shards + 1)
        return [] if self.is_part else [number for number in known if number not in self.shards]


def record_of(case: Case) -> dict[str, Any]:
    """Return verdict.json over all runs, without what the command adds to it."""
    engines = {name: _Engine.of(case, name) for name in case.plan.asked.engines}
    present = {name: one for name, one in engines.items() if one.made}
    properties = {entry.number: _property(entry.number, case, present) for entry in PROPERTIES}
    because = list(_because(case, engines, properties))
    is_broken = any(one.record and one.record["verdict"] == VIOLATED for one in case.made)
    counts = _counts(case.made)
    return {
        "schema": SCHEMA,
        "target": case.target,
        "engine": "prove",
        "seed": case.plan.asked.seed,
        "level": properties["P1"].get("level") or "process",
        "verdict": VIOLATED if is_broken else UNKNOWN if because else PASS,
        "unknown_because": because,
        "properties": properties,
        "faults": dict(sorted(_faults(case.made).items())),
        "coverage": {
            "obliged": sum(one.obliged for one in present.values()),
            "hit": sum(one.obliged - len(one.missed) for one in present.values()),
            "missed": [f"{name}: {each}" for name, one in present.items() for each in one.missed],
        },
        "counts": counts,
        "tried": _tried(present, counts),
        "exhausted": False,
        "jobs": {"enqueued": counts["jobs"]},
        "recovery_ms": _recovery(case.made),
        "errors": [text for one in case.made for text in (one.record or {}).get("errors") or ()],
        "replays": list(_replays(case.made)),
        "left_out": dict(case.plan.left_out),
        "shards": {"of": case.plan.asked.shards, "here": list(case.shards)},
        "runs": [_run(one) for one in case.made],
        "not_made": [
            run.record()
            for run in case.plan.runs
            if run.shard in case.shards and run.name not in {m.outcome.run.name for m in case.made}
        ],
    }


def lacking(case: Case) -> list[str]:
    """Return the engines of which one more run could say what is still unknown."""
    found = []
    for name in case.plan.asked.engines:
        one = _Engine.of(case, name)
        can_meet = one.missed and name in _RARE  # Another's points are the same, seed or not.
        if one.made and (can_meet or one.reasons) and not one.is_violated:
            found.append(name)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Engine:
    """What all runs of one engine say together."""

    made: Sequence[Made]
    obliged: int
    missed: tuple[str, ...]  #: obligations
    reasons: tuple[str, ...]  #: why its silence is not to be trusted, obligations apart
    is_violated: bool

    @property
    def is_whole(self) -> bool:
        """Whether its silence means something."""
        return not self.missed and not self.reasons

    @classmethod
    def of(cls, case: Case, name: str) -> "_Engine":
        """Put together what the runs of an engine say."""
        records = [one.record for one in case.made if one.engine == name and one.record is not None]
        reasons = [tuple(_of_run(record)) for record in records]
        spared = [
            record
            for record, each in zip(records, reasons, strict=True)
            if not any(map(_PASSING.match, each))
        ]
        # Where each run owes its own points, those of one that was cut short are another's to meet.
        owing = spared if spared and name not in _RARE else records
        lists = [[str(m).removeprefix(_MISSED) for m in r["coverage"]["missed"]] for r in owing]
        sizes = [int(record["coverage"]["obliged"]) for record in owing]
        missed = list(dict.fromkeys(text for each in lists for text in each))
        if name in _RARE:
            missed = [text for text in missed if all(text in each for each in lists)]
            missed = [text for text in missed if not _are_enough(text, records)]
        told = [text for each in reasons for text in each if not (spared and _PASSING.match(text))]
        return cls(
            made=[one for one in case.made if one.engine == name and one.record is not None],
            obliged=max(sizes, default=0) if name in _RARE else sum(sizes),
            missed=tuple(missed),
            reasons=tuple(dict.fromkeys(told)),
            is_violated=any(record["verdict"] == VIOLATED for record in records),
        )


def _are_enough(text: str, records: Iterable[Record]) -> bool:
    """Say whether the runs together have the count that each of them has missed."""
    match = _COUNT_OWED.fullmatch(text)
    if match is None:
        return False
    hit: int = sum(record["counts"].get(match[2], 0) for record in records)
    return hit >= int(match[1])


def _of_run(record: Record) -> Iterator[str]:
    """Yield the reasons of a run that are neither of an obligation nor of a promise."""
    for reason in map(str, record["unknown_because"]):
        if not reason.startswith(_MISSED) and _OF_PROMISE.match(reason) is None:
            yield reason


def _property(number: str, case: Case, engines: Mapping[str, _Engine]) -> dict[str, Any]:
    """Return what all engines say of one promise."""
    promised = case.contract.promised(number)
    said = {
        name: [(made, (made.record or {})["properties"][number]) for made in one.made]
        for name, one in engines.items()
    }
    words = {
        name: min((found["verdict"] for _, found in each), key=_WORSE.index)
        for name, each in said.items()
    }
    if not promised and VIOLATED not in words.values():
        return {"verdict": NOT_PROMISED, "checked": 0, "witnesses": []}
    judged = {name: word for name, word in words.items() if word in (PASS, VIOLATED, UNKNOWN)}
    base: dict[str, Any] = {
        "checked": sum(found["checked"] for each in said.values() for _, found in each),
        "witnesses": [],
        "judged_by": judged,
    }
    if VIOLATED in words.values():
        return base | _violated(said)
    # Of several runs of an engine one may have had no case; that the others had some is enough.
    passed = [name for name, each in said.items() if any(f["verdict"] == PASS for _, f in each)]
    base["judged_by"] = judged | dict.fromkeys(passed, PASS)
    whole = [name for name in passed if engines[name].is_whole]
    if number == "P1" and promised == POWER and CUTS not in whole and not case.is_part:
        reason = f"the engine {CUTS} has not shown that it survives a power cut"
        return base | {"verdict": UNKNOWN, "reason": reason}
    if whole:
        level = {"level": POWER if CUTS in whole else "process"} if number == "P1" else {}
        return base | level | {"verdict": PASS}
    if passed:
        reason = f"{' and '.join(passed)}: no violation, but what was owed was not all met"
        return base | {"verdict": UNKNOWN, "reason": reason}
    reasons = [
        f"{name}: {found['reason']}"
        for name, each in said.items()
        for _, found in each
        if found["verdict"] == UNKNOWN
    ]
    if reasons:
        return base | {"verdict": UNKNOWN, "reason": reasons[0]}
    reason = (
        "no engine of this shard judges it" if case.is_part else "no engine that was run judges it"
    )
    return base | {"verdict": NOT_JUDGED, "reason": reason}


def _violated(said: Mapping[str, Sequence[tuple[Made, Record]]]) -> dict[str, Any]:
    """Return a violation with its witnesses, of every engine that has one, in turn."""
    by_engine: list[list[dict[str, Any]]] = []
    count = 0
    for name, each in said.items():
        witnesses: list[dict[str, Any]] = []
        by_engine.append(witnesses)
        for made, found in each:
            if found["verdict"] != VIOLATED:
                continue
            count += int(found.get("violations", 1))
            folder = f"{RUNS}/{made.outcome.run.name}"
            for witness in found["witnesses"]:
                lines = [
                    line | {"file": f"{folder}/{line['file']}"} if "file" in line else line
                    for line in witness["lines"]
                ]
                witnesses.append({**witness, "lines": lines, "engine": name})
    by = [name for name, each in said.items() if any(f["verdict"] == VIOLATED for _, f in each)]
    in_turn = [one for turn in zip_longest(*by_engine) for one in turn if one is not None]
    return {
        "verdict": VIOLATED, "violations": count, "witnesses": in_turn[:WITNESSES_MAX],
        "found_by": by,
    }  # fmt: skip


def _because(
    case: Case, engines: Mapping[str, _Engine], properties: Mapping[str, Record]
) -> Iterator[str]:
    """Yield why the whole is unknown, where no promise is broken."""
    if case.interrupted:
        yield "the run was interrupted"
    for name, why in case.plan.left_out.items():
        yield f"{name} was left out: {why}"
    if case.missing:
        told = ", ".join(map(str, case.missing))
        yield f"missing of {case.plan.asked.shards} shards: {told}"
    made = {one.outcome.run.name: one for one in case.made}
    for run in case.plan.runs:
        if not run.owed or run.shard not in case.shards:
            continue
        if run.name not in made:
            why = "the run was interrupted" if case.interrupted else "the time ended first"
            yield f"{run.engine} was not run: {why}"
        elif made[run.name].outcome.verdict == FAILED:
            yield f"{run.engine} failed, which says nothing of the queue: {_why(made[run.name])}"
    for name, one in engines.items():
        yield from (f"{name}: {reason}" for reason in one.reasons)
        yield from (f"{_MISSED}{name}: {text}" for text in one.missed)
    for number, found in properties.items():
        is_open = found["verdict"] == NOT_JUDGED and not case.is_part
        if found["verdict"] == UNKNOWN or is_open:
            yield f"{number}: {found['reason']}"


def _why(made: Made) -> str:
    return made.outcome.why


def _counts(made: Iterable[Made]) -> dict[str, int]:
    """Return what was tried, added up over all runs."""
    found: Counter[str] = Counter(runs=0, jobs=0)
    for one in made:
        if one.record is None:
            continue
        counts, jobs = one.record["counts"], one.record["jobs"]
        found["runs"] += 1
        found["kills"] += counts.get("kills", 0)
        found["failed_calls"] += counts.get("errors", 0)
        for name in ("pauses", "images", "schedules", "states"):
            found[name] += counts.get(name, 0)
        found["jobs"] += jobs.get("enqueued", 0)
    return dict(found)


def _tried(engines: Mapping[str, _Engine], counts: Mapping[str, int]) -> str:
    told = [counted(counts[name], noun) for name, noun in _COUNTED if counts.get(name)]
    return f"{', '.join(told) or 'nothing'} by {', '.join(engines) or 'no engine'}"


def _faults(made: Iterable[Made]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in made:
        found.update((one.record or {}).get("faults") or {})
    return found


def _recovery(made: Iterable[Made]) -> dict[str, Any]:
    """Return the recovery times of the longest run of real processes."""
    told = [one for one in made if (one.record or {}).get("recovery_ms")]
    best = max(told, key=lambda one: one.outcome.seconds, default=None)
    return dict((best.record or {})["recovery_ms"]) if best is not None else {}


def _replays(made: Iterable[Made]) -> Iterator[dict[str, Any]]:
    """Yield the command that shows each violation again, one for each run and promise."""
    for one in made:
        record = one.record or {}
        stories = {story["promise"]: story["token"] for story in record.get("stories") or ()}
        for number, found in record.get("properties", {}).items():
            if found["verdict"] != VIOLATED:
                continue
            command = str(record["replay"])
            if number in stories:
                command = f"killproof chaos replay {stories[number]}"
            elif one.engine == "crash" and (operation := _operation(found)):
                command = f"{command} --operation {operation} --fail-fast"
            elif one.engine == "disk":
                command = f"{command} --fail-fast"
            yield {
                "promise": number, "engine": one.engine, "run": one.outcome.run.name,
                "command": command,
            }  # fmt: skip


#: How the engine `crash` begins the story of a witness: with the point, and its operation.
_POINT: Final = re.compile(r"(?:without a fault in|.+? at call \d+ of|.+? call \d+ of) (\w+)")


def _operation(found: Record) -> str:
    """Return the operation in which a witness of the engine crash has a promise broken."""
    for witness in found["witnesses"]:
        if match := _POINT.match(str(witness["story"])):
            return match[1]
    return ""


def _run(one: Made) -> dict[str, Any]:
    """Return a run as the record tells it."""
    record = one.record or {}
    return one.outcome.record() | {
        "replay": record.get("replay", ""),
        "obliged": (record.get("coverage") or {}).get("obliged", 0),
        "hit": (record.get("coverage") or {}).get("hit", 0),
        "tried": extent(record) if record else "",
        "unknown_because": list(map(str, record.get("unknown_because") or ()))[:3],
    }
