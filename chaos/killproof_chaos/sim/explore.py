"""Exploring: play one schedule after another and keep what matters of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from killproof_chaos.sim.runtime import Scheduler, Unrepeatable
from killproof_chaos.sim.scenario import Scenario
from killproof_chaos.sim.schedulers import Choices, Dfs, Replay
from killproof_chaos.sim.stage import Outcome, Stage, uncollected

#: Violating schedules that are kept with their traces; the count goes on beyond.
VIOLATIONS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When an exploration ends that is not exhausted before."""

    seconds: float | None = 30.0
    schedules: int | None = None
    violations: int | None = 1  #: None: go on, whatever is found


@dataclass(slots=True, kw_only=True)
class Exploration:
    """What was explored, and what was found in it."""

    target: str
    scenario: str
    schedules: int = 0  #: played to the end and judged
    pruned: int = 0  #: cut off where a state was reached that was known
    distinct: int = 0  #: different pieces of evidence among them
    states: int = 0  #: different states, where the scheduler keeps them
    steps: int = 0  #: choices in all
    hung: int = 0  #: schedules in which nobody could go on, or that never ended
    exhausted: bool = False  #: the scheduler had nothing left
    level: int = (
        0  #: deviations up to which everything was explored (Dfs); -1: not even the default
    )
    seconds: float = 0.0
    sqlite_seconds: float = 0.0
    violating: int = 0  #: schedules with a violation
    first: int | None = None  #: the number of the first of them, from 1
    violations: list[Outcome] = field(default_factory=list)  #: the first of each kind, with traces
    #: By promise that broke: the schedule that shows it with the fewest deviations, without trace.
    shortest: dict[str, Outcome] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)  #: promises that had evidence
    broken: set[str] = field(default_factory=set)  #: promises that broke
    unknown: dict[str, str] = field(default_factory=dict)  #: promise -> why it never had evidence

    @property
    def rate(self) -> float:
        """Schedules per second, the pruned ones included."""
        return (self.schedules + self.pruned) / self.seconds if self.seconds else 0.0

    @property
    def sqlite_share(self) -> float:
        """The part of the time that was spent in SQLite's statements, 0 to 1."""
        return self.sqlite_seconds / self.seconds if self.seconds else 0.0


def run_one(target: Any, scenario: Scenario, scheduler: Scheduler | None = None) -> Outcome:
    """Play one schedule with its trace; without a scheduler the default one."""
    with Stage(target, scenario) as stage:
        outcome = stage.play(Replay() if scheduler is None else scheduler, keeps_trace=True)
    assert outcome is not None, "a scheduler that has not begun has a schedule"
    return outcome


def explore(
    target: Any,
    scenario: Scenario,
    scheduler: Scheduler | None = None,
    *,
    budget: Budget = Budget(),
) -> Exploration:
    """Play schedules until the scheduler has none left or the budget is spent.

    Args:
        target: at level 2, with an audit mapping.
        scenario: the race.
        scheduler: `Dfs()` where none is given.
        budget: seconds, schedules and violations; whatever is reached first ends it.

    Raises:
        ValueError: the target can not be simulated; the message says what it lacks.
        Unrepeatable: the same choices gave another run.
    """
    scheduler = Dfs() if scheduler is None else scheduler
    with Stage(target, scenario) as stage:
        return explore_stage(stage, scheduler, budget=budget)


def explore_stage(stage: Stage, scheduler: Scheduler, *, budget: Budget) -> Exploration:
    """Explore on a stage that is set up already, and stays so."""
    found = Exploration(target=stage.target.name, scenario=stage.scenario.name)
    unknown, evidence = dict[str, str](), set[int]()
    kinds: set[frozenset[str]] = set()
    stage.runtime.sqlite_ns = 0
    start = perf_counter()
    with uncollected():
        while not _is_spent(found, budget, perf_counter() - start):
            outcome = stage.play(scheduler)
            if outcome is None:
                found.exhausted = True
                break
            found.steps += outcome.steps
            if outcome.verdict is None:
                found.pruned += 1
                continue
            found.schedules += 1
            evidence.add(outcome.evidence)
            found.hung += outcome.stopped in ("hung", "steps")
            found.passed |= outcome.verdict.passed
            unknown |= outcome.verdict.unknown
            if outcome.is_violation:
                _keep(found, stage, outcome, kinds)
    found.seconds = perf_counter() - start
    found.sqlite_seconds = stage.runtime.sqlite_ns / 1e9
    found.distinct = len(evidence)
    found.unknown = {n: why for n, why in unknown.items() if n not in found.passed | found.broken}
    if isinstance(scheduler, Dfs):
        found.states = scheduler.states
        found.level = scheduler.level if found.exhausted else scheduler.level - 1
    return found


def _is_spent(found: Exploration, budget: Budget, seconds: float) -> bool:
    played = found.schedules + found.pruned
    return (
        (budget.seconds is not None and seconds >= budget.seconds)
        or (budget.schedules is not None and played >= budget.schedules)
        or (budget.violations is not None and found.violating >= budget.violations)
    )


def _keep(found: Exploration, stage: Stage, outcome: Outcome, kinds: set[frozenset[str]]) -> None:
    """Count a violation; play the first of each kind once more, for its trace."""
    assert outcome.verdict is not None
    promises = outcome.broken
    found.violating += 1
    found.broken |= promises
    keep_shortest(found.shortest, dict.fromkeys(promises, outcome))
    if found.first is None:
        found.first = found.schedules + found.pruned
    if promises in kinds or len(found.violations) == VIOLATIONS_MAX:
        return
    kinds.add(promises)
    again = stage.play(Replay(outcome.choices), keeps_trace=True)
    assert again is not None
    if again.evidence != outcome.evidence:
        raise Unrepeatable(f"schedule {outcome.token!r} gave another run when it was played again")
    found.violations.append(again)


def keep_shortest(shortest: dict[str, Outcome], others: Mapping[str, Outcome]) -> None:
    """Take over the schedules of others that show a promise broken with less.

    Less is: fewer deviations, then fewer promises that break beside it, then fewer steps. Of equal
    ones the least by its choices is kept: which process was there first is no reason.
    """
    for promise, other in others.items():
        known = shortest.get(promise)
        if known is None or _size(other) < _size(known):
            shortest[promise] = other


def _size(outcome: Outcome) -> tuple[int, int, int, Choices]:
    return len(outcome.choices), len(outcome.broken), outcome.steps, outcome.choices
