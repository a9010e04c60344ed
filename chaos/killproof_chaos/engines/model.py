"""The engine `model`: every state that the lease protocol can reach, judged step by step.

Two searches. `leases` has all workers and jobs without keys. `keys` has one worker and two
producers that share one key, repeat their calls, and may never hear an answer; a key looks only at
whether a job lives, so more workers add nothing to it.

What is judged is the protocol as the target's contract puts it: its edges (the very object that P7
reads in a recorded history), its number of attempts, its words. The target's code does not run, so
a queue that forgets a guard which its contract implies passes, and each verdict says so.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from killproof_chaos import targets
from killproof_chaos.engines.model_promises import CHECKS, JUDGED, TERMINATION
from killproof_chaos.engines.model_protocol import UNLIMITED, Rules, offered
from killproof_chaos.engines.model_search import STATES_MAX, Broken, Found, Scope, Show, search
from killproof_chaos.engines.model_words import diagram, numbered, story
from killproof_chaos.stores import run_record
from killproof_evidence.contract import Contract
from killproof_evidence.environment import environment
from killproof_evidence.judge import PROPERTIES
from killproof_evidence.records import RecordWriter
from killproof_evidence.store import Store, write_json

#: What each verdict of this engine is about, in every form of it.
ABOUT: Final = "the protocol that its contract describes, not of its code"
#: Where the stories lie in a store.
TRACES: Final = "traces"
#: Rows that share a key: one that lives, and one that may be put in beside it.
KEYED_JOBS: Final = 2
PRODUCERS: Final = 2
#: Actions that must have been refused at least once, or their guards were never needed.
REFUSED: Final = (
    "claim",
    "ack",
    "nack",
    "extend",
    "release",
    "snooze",
    "hold_leased",
    "complete",
    "reap",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    target: str
    workers: int = 2
    jobs: int = 2
    without: tuple[str, ...] = ()
    crashes: int | None = None  #: None: any number
    attempts: int | None = None  #: None: the contract's, at most ATTEMPTS_MAX
    states: int = STATES_MAX
    people: bool = True  #: whether they cancel, hold and replay

    def argv(self) -> list[str]:
        """Return the command that does the same again."""
        words = [
            *("killproof", "chaos", "model", "--target", self.target),
            *("--workers", str(self.workers), "--jobs", str(self.jobs)),
        ]
        for guard in self.without:
            words += ["--without", guard]
        for name, value, usual in (
            ("crashes", self.crashes, None),
            ("attempts", self.attempts, None),
            ("states", self.states, STATES_MAX),
        ):
            if value != usual:
                words += [f"--{name}", str(value)]
        return words if self.people else [*words, "--no-people"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One search and what it found."""

    name: str
    scope: Scope
    found: Found
    seconds: float  #: of this process's own CPU: a crowded machine changes it little

    def record(self) -> dict[str, Any]:
        """Return the facts as an object of verdict.json."""
        found, seconds = self.found, self.seconds
        return {
            "name": self.name,
            "workers": self.scope.workers,
            "jobs": self.scope.jobs,
            "producers": self.scope.producers,
            "states": found.states,
            "steps": found.transitions,
            "depth": found.depth,
            "exhausted": found.exhausted,
            "cpu_seconds": round(seconds, 3),
            "steps_per_second": round(found.transitions / seconds) if seconds else 0,
        }


def run(options: Options, store: Store, show: Show) -> dict[str, Any]:
    """Search, judge; write the store and return verdict.json.

    Raises:
        ValueError: a guard is unknown; definite.
    """
    target = targets.load(options.target)
    started = time.time()
    rules = rules_of(options, target.contract)
    searched = []
    for name, scope in _scopes(options, rules):
        searched.append(_searched(rules, name, scope, options, show))
        if searched[-1].found.broken:
            break
    stories = _write_stories(store, rules, searched)
    record = _verdict(options, rules, searched, stories, store) | {"broken": target.broken}
    store.write_contract(target.contract)
    fields = run_record(
        target, "model", options.argv(), seed=None, started=started,
        problems=record["unknown_because"],
    )  # fmt: skip
    store.write_run({**fields, "options": asdict(options), "environment": record["environment"]})
    write_json(store.verdict, record)
    return record


def again(store: Store, show: Show) -> dict[str, Any]:
    """Search again what a store tells, in place; the same states, and another time taken.

    Raises:
        StoreError: the store holds no such run; definite.
    """
    saved = store.read_run()["options"]
    return run(Options(**{**saved, "without": tuple(saved["without"])}), store, show)


def rules_of(options: Options, contract: Contract) -> Rules:
    """Return the protocol that is searched.

    Raises:
        ValueError: a guard is unknown; the message names it and the remedy.
    """
    without = frozenset(options.without)
    return Rules.of(contract, without=without, max_attempts=options.attempts, people=options.people)


def promises_of(rules: Rules) -> tuple[str, ...]:
    """Return what the contract promises and the model can judge.

    An effect that a key at the sink makes single is not the protocol's; without people nobody
    cancels.
    """
    made = {name: rules.contract.promised(name) for name in JUDGED}
    return tuple(
        name
        for name, level in made.items()
        if level
        and (name != "P6" or level == "transaction")
        and (name != "P15" or "cancel" in {action.name for action in offered(rules)})
    )


def _scopes(options: Options, rules: Rules) -> list[tuple[str, Scope]]:
    crashes = UNLIMITED if options.crashes is None else options.crashes
    scopes = [("leases", Scope(workers=options.workers, jobs=options.jobs, crashes=crashes))]
    if "P12" in promises_of(rules):
        keys = Scope(workers=1, jobs=KEYED_JOBS, producers=PRODUCERS, crashes=crashes)
        scopes.append(("keys", keys))
    # The run ends at the first search in which something breaks.
    return scopes[::-1] if any(name.endswith(".key") for name in options.without) else scopes


def _searched(rules: Rules, name: str, scope: Scope, options: Options, show: Show) -> Searched:
    began = time.process_time()
    promises = promises_of(rules)
    found = search(rules, scope, promises, states_max=options.states, show=show)
    return Searched(name=name, scope=scope, found=found, seconds=time.process_time() - began)


def _shortest(searched: Iterable[Searched]) -> dict[str, Broken]:
    """Return the shortest way to each broken promise."""
    found: dict[str, Broken] = {}
    for each in searched:
        for name, broken in each.found.broken.items():
            if name not in found or len(broken.steps) < len(found[name].steps):
                found[name] = broken
    return found


def _write_stories(
    store: Store, rules: Rules, searched: Iterable[Searched]
) -> dict[str, list[dict[str, Any]]]:
    """Write the story of each broken promise, a step a line; return them."""
    stories = {}
    for name, broken in _shortest(searched).items():
        stories[name] = story(rules, broken)
        path = store.path / TRACES / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        writer = RecordWriter(path)
        for line in stories[name]:
            writer.append(line)
        writer.close()
    return stories


def _obligations(
    options: Options, rules: Rules, seen: Counter[tuple[str, bool]]
) -> dict[str, bool]:
    """Return what a search must have met to mean anything, and whether it has."""
    alone = options.workers == 1
    spared = {"effect"}  # Without its guard, it is a step of `complete`.
    if alone:
        spared |= {"pause", "resume", "expire"}  # Nobody is stopped where nobody else goes on.
    if options.crashes == 0:
        spared |= {"crash"}
    names = [action.name for action in offered(rules)]
    owed = {f"{name}: done": seen[name, True] > 0 for name in names if name not in spared}
    if not alone:
        owed |= {f"{name}: refused": seen[name, False] > 0 for name in REFUSED if name in names}
    return owed


def _verdict(
    options: Options,
    rules: Rules,
    searched: list[Searched],
    stories: dict[str, list[dict[str, Any]]],
    store: Store,
) -> dict[str, Any]:
    """Return verdict.json as an object."""
    seen: Counter[tuple[str, bool]] = Counter()
    edges: set[tuple[str, str, str]] = set()
    for each in searched:
        seen += each.found.seen
        edges |= each.found.edges
    broken = _shortest(searched)
    owed = {} if broken else _obligations(options, rules, seen)
    missed = [name for name, hit in owed.items() if not hit]
    because = [f"obligation missed: {name}" for name in missed]
    exhausted = all(each.found.exhausted for each in searched)
    judged = promises_of(rules)
    if not judged:
        because.append("the contract promises nothing that this engine judges")
    because += [f"{n}: {why}" for n, why in _unheard(rules.contract).items() if n in judged]
    if not exhausted and not broken:
        because.append(f"more than {options.states:,} states: raise --states, or search fewer jobs")
    properties = {
        entry.number: _property(entry.number, rules, searched, broken, stories)
        for entry in PROPERTIES
    }
    records = [each.record() for each in searched]
    return {
        "schema": 1,
        "target": options.target,
        "engine": "model",
        "about": ABOUT,
        "seed": None,
        "level": "process",
        "verdict": "violated" if broken else "unknown" if because else "pass",
        "unknown_because": because,
        "properties": properties,
        "faults": {name: seen[name, True] for name in ("crash", "pause", "expire_running")},
        "coverage": {"obliged": len(owed), "hit": len(owed) - len(missed), "missed": missed},
        "counts": {
            "states": sum(record["states"] for record in records),
            "steps": sum(record["steps"] for record in records),
            "depth": max(record["depth"] for record in records),
            "edges": len({edge[:2] for edge in edges}),
        },
        "searches": records,
        "attempts": rules.max_attempts,
        "crashes": options.crashes,
        "people": options.people,
        "without": sorted(rules.without),
        "not_walked": _not_walked(rules.contract, edges),
        "diagram": diagram(edges),
        "exhausted": exhausted,
        "jobs": {},
        "recovery_ms": {},
        "environment": environment(store.path),
        "replay": " ".join(options.argv()),
    }


def _unheard(contract: Contract) -> dict[str, str]:
    """Return why a promise can not be judged whole, though the contract makes it."""
    return {} if contract.edges else {"P7": "the contract declares no edges"}


def _not_walked(contract: Contract, edges: set[tuple[str, str, str]]) -> list[str]:
    """Return the contract's edges that no action of the model takes."""
    walked = {edge[:2] for edge in edges}
    return [
        f"{old} -> {new}"
        for old, targets in sorted(contract.edges.items())
        for new in targets
        if (old, new) not in walked
    ]


def _property(
    number: str,
    rules: Rules,
    searched: list[Searched],
    broken: dict[str, Broken],
    stories: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    """Return the verdict on one promise."""
    entry = next(entry for entry in PROPERTIES if entry.number == number)
    if not rules.contract.promised(number):
        return {"verdict": "not_promised", "checked": 0, "witnesses": []}
    if number not in promises_of(rules):
        return {"verdict": "not_judged", "checked": 0, "by": entry.engines[0], "witnesses": []}
    found: dict[str, Any] = {
        "verdict": "pass", "about": ABOUT, "checked": _checked(number, searched)
    }  # fmt: skip
    if number in broken:
        witness = {
            "job": str(broken[number].job + 1),
            "story": broken[number].sentence,
            "lines": [
                {"file": f"{TRACES}/{number}.jsonl", "line": line["n"], "text": numbered(line)}
                for line in stories[number]
            ],
        }
        return found | {"verdict": "violated", "violations": 1, "witnesses": [witness]}
    if not all(each.found.exhausted for each in searched):
        reason = "the search ended at what broke" if broken else "not all states were searched"
        found |= {"verdict": "unknown", "reason": reason}
    elif number in _unheard(rules.contract):
        found |= {"verdict": "unknown", "reason": _unheard(rules.contract)[number]}
    elif not found["checked"]:
        found |= {"verdict": "unknown", "reason": "no step could have broken it"}
    return found | {"witnesses": []}


def _checked(number: str, searched: list[Searched]) -> int:
    """Return how many steps were judged; for the termination, how many states."""
    if number == TERMINATION:
        return sum(each.found.states for each in searched if each.found.exhausted)
    actions = CHECKS[number][1]
    keyed = number == "P12"
    return sum(
        count
        for each in searched
        for (action, _), count in each.found.seen.items()
        if (not actions or action in actions) and (each.scope.producers or not keyed)
    )
