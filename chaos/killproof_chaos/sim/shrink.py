"""Shrinking: from a schedule that breaks a promise to a small one that breaks the same.

An error that nobody expected is the same only if the same actor meets an exception of the same
type: what is left out must not make another error that takes its place.

A smaller scenario is not played with the old choices, which mean something else there: it is
explored anew, the fewest deviations first, so what is found in it is the least that it needs, up
to a limit of schedules: nothing here proves that there is no smaller one.
An actor, a job or a fault is left out for good as soon as the promise still breaks without it.
What remains is smoothed: choices are dropped or moved where that makes the story shorter.

All limits are counts, not times: the same schedule is shrunk to the same one on any machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from killproof_chaos.sim.judging import ERROR, Violation
from killproof_chaos.sim.runtime import LOST, PASS, WALL_BACK, WALL_FORWARD, Faults
from killproof_chaos.sim.scenario import Scenario
from killproof_chaos.sim.schedulers import Choice, Choices, Dfs, Replay, is_fault
from killproof_chaos.sim.stage import Outcome, Stage
from killproof_chaos.sim.story import Story, perform
from killproof_chaos.sim.tokens import Cut, Token, checksum_of, limited
from killproof_chaos.targets import told_seed
from killproof_evidence.judge import PROPERTIES

#: Schedules that are played before a smaller scenario counts as too small.
SCHEDULES_MAX: Final = 800
#: Preemptions in the search of a smaller scenario, whatever the first schedule had.
BOUND_MAX: Final = 3
#: Calls of an actor after which it may be made to end; more stay as they are.
CALLS_MAX: Final = 8
#: Places by which a choice is moved at most; an operation has about ten statements.
REACH: Final = 12
#: Of equally small schedules so many are told, and the shortest story is kept.
TOLD_MAX: Final = 12
ORDER: Final = {entry.number: at for at, entry in enumerate(PROPERTIES)} | {ERROR: len(PROPERTIES)}
#: A promise, and of an error who met which exception; else nothing.
Broken = tuple[str, str]
#: Promises of what happens in the end: their stories say least about how it came.
LATE: Final = frozenset({"P17", "P19"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The smallest schedule that was found, as a story and as a token."""

    scenario: Scenario
    outcome: Outcome  #: with its trace
    story: Story
    token: str
    promise: str  #: that broke at first, and breaks still
    plays: int  #: schedules that it took


def shrink(
    target: Any,
    scenario: Scenario,
    outcome: Outcome,
    *,
    name: str | None = None,
    promise: str | None = None,
) -> Shrunk:
    """Reduce a violating schedule.

    Of actors that share memory only faults are left out: they may do together what none does alone.

    Args:
        target: the queue.
        scenario: in which the schedule was found.
        outcome: the schedule; its verdict is violated.
        name: of the target in the token; None: its own.
        promise: that must break still, one that the schedule breaks; None: `main_of` it.
    """
    search = _Search(target, *_main_of(outcome, promise))
    bound = min(BOUND_MAX, sum(not is_fault(label) for _, label in outcome.choices))
    best, choices = _spent(scenario, outcome.choices), outcome.choices
    smaller = iter(_smaller(best, only_faults=scenario.shares_memory))
    while (candidate := next(smaller, None)) is not None:
        found = search.first(candidate, bound)
        if found is not None:
            best, choices = _spent(candidate, found), found
            smaller = iter(_smaller(best, only_faults=scenario.shares_memory))
    with Stage(target, best) as stage:
        choices = search.smooth(stage, choices)
    best = best if scenario.shares_memory else search.curtail(best, choices)
    with Stage(target, best) as stage:
        performed = perform(stage, Replay(choices))
        assert performed is not None, "one schedule can be replayed"
        again, story = performed
    token = Token(
        target=name or target.name,
        scenario=scenario.name,
        cut=Cut.of(best),
        choices=again.token,
        checksum=checksum_of(again),
        seed=told_seed() if getattr(target, "hangs_on_seed", False) else None,
    )
    return Shrunk(
        scenario=best,
        outcome=again,
        story=replace(story, violations=_sorted(story, search.promise)),
        token=token.text(),
        promise=search.promise,
        plays=search.plays,
    )


def main_of(outcome: Outcome) -> str:
    """Return the promise that a violating schedule is shrunk by: the first that is not late."""
    return _main_of(outcome)[0]


def _main_of(outcome: Outcome, promise: str | None = None) -> Broken:
    assert outcome.verdict is not None
    broken = [
        _broken(violation)
        for violation in outcome.verdict.violations
        if promise in (None, violation.promise)
    ]
    return min(broken, key=lambda each: (each[0] in LATE, ORDER.get(each[0], len(ORDER))))


def _broken(violation: Violation) -> Broken:
    """Return what must break again; of an error who met what, such as `w1 met ValueError`."""
    is_error = violation.promise == ERROR
    return violation.promise, violation.story.partition(":")[0] if is_error else ""


def _sorted(story: Story, promise: str) -> Any:
    return tuple(sorted(story.violations, key=lambda v: (v.promise != promise, ORDER[v.promise])))


def _smaller(scenario: Scenario, *, only_faults: bool) -> Iterator[Scenario]:
    """Yield scenarios with one thing less, what saves most first."""
    for name in [] if only_faults else reversed(list(scenario.actors)):
        if len(scenario.actors) > 1:
            actors = {other: f for other, f in scenario.actors.items() if other != name}
            yield replace(scenario, actors=actors)
    for job in () if only_faults else reversed(scenario.jobs):
        yield replace(scenario, jobs=tuple(other for other in scenario.jobs if other is not job))
    faults = scenario.faults
    for kind in ("crashes", "passes", "wall_steps", "lost"):
        if count := getattr(faults, kind):
            yield replace(scenario, faults=replace(faults, **{kind: count - 1}))


def _spent(scenario: Scenario, choices: Choices) -> Scenario:
    """Return the scenario without the faults that a schedule does not use; it plays the same."""
    labels = [label for _, label in choices]
    used = Faults(
        crashes=sum(label[0].isupper() for label in labels),
        passes=labels.count(PASS),
        wall_steps=labels.count(WALL_FORWARD) + labels.count(WALL_BACK),
        lost=sum(label[0] == LOST for label in labels),
    )
    return replace(scenario, faults=used)


class _Search:
    """Looks for schedules that break one promise, and counts what that takes."""

    def __init__(self, target: Any, promise: str, error: str) -> None:
        self._target, self.promise, self._error = target, promise, error
        self.plays = 0

    def first(self, scenario: Scenario, bound: int) -> Choices | None:
        """Return the schedule of this scenario with the fewest deviations; None: none is found."""
        with Stage(self._target, scenario) as stage:
            scheduler = Dfs(bound)
            for _ in range(SCHEDULES_MAX):
                self.plays += 1
                outcome = stage.play(scheduler)
                if outcome is None:
                    return None
                if self._breaks(outcome):
                    return outcome.choices
        return None

    def smooth(self, stage: Stage, choices: Choices) -> Choices:
        """Drop choices that are not needed, and move the others to where the story is shortest."""
        best, size = self._fewest(stage, choices)
        improved = True
        while improved:
            improved = False
            for other in _variants(best):
                found = self._size(stage, other)
                if found is not None and found < size:
                    best, size, improved = other, found, True
                    break
        outcome = stage.play(Replay(best))
        assert outcome is not None, "one schedule can be replayed"
        return outcome.choices  # Without those that could not be followed.

    def curtail(self, scenario: Scenario, choices: Choices) -> Scenario:
        """Let each actor end after the last of its calls that the broken promise needs."""
        for name in scenario.actors:
            for calls in range(1, CALLS_MAX):
                function = limited(scenario.actors[name], calls)
                shorter = replace(scenario, actors={**scenario.actors, name: function})
                if self._still_breaks(shorter, choices):
                    scenario = shorter
                    break
        return scenario

    def _still_breaks(self, scenario: Scenario, choices: Choices) -> bool:
        self.plays += 1
        with Stage(self._target, scenario) as stage:
            outcome = stage.play(Replay(choices), keeps_trace=True)
        return outcome is not None and self._breaks(outcome) and not _leaves_work(outcome)

    def _fewest(self, stage: Stage, choices: Choices) -> tuple[Choices, tuple[int, ...]]:
        """Return the shortest of the schedules with as few deviations as the first that breaks."""
        size = self._size(stage, choices)
        assert size is not None, "the same choices give the same run"
        best = choices
        bound = sum(not is_fault(label) for _, label in choices)
        scheduler, told, level = Dfs(bound), 0, None
        for _ in range(SCHEDULES_MAX):
            self.plays += 1
            outcome = stage.play(scheduler)
            if outcome is None or (level is not None and scheduler.level > level):
                break
            if not self._breaks(outcome):
                continue
            level, told = scheduler.level, told + 1
            found = self._size(stage, outcome.choices)
            if found is not None and found < size:
                best, size = outcome.choices, found
            if told == TOLD_MAX:
                break
        return best, size

    def _size(self, stage: Stage, choices: Choices) -> tuple[int, ...] | None:
        """Return how much there is to tell; None: the promise holds."""
        self.plays += 1
        performed = perform(stage, Replay(choices))
        if performed is None or not self._breaks(performed[0]):
            return None
        outcome, story = performed
        lines = sum(1 for step in story.steps for _ in step.lines())
        return len(story.steps), len(outcome.choices), lines, outcome.switches, outcome.steps

    def _breaks(self, outcome: Outcome) -> bool:
        return outcome.verdict is not None and any(
            _broken(violation) == (self.promise, self._error)
            for violation in outcome.verdict.violations
        )


def _leaves_work(outcome: Outcome) -> bool:
    """Say whether an actor ended, in order, between its handler and the outcome.

    Whoever does that makes the next one do it again: that is no fault of the queue.
    """
    done: set[tuple[Any, ...]] = set()
    killed: set[int] = set()
    for file, record in outcome.events:
        if file.startswith("effects/") and record["what"] == "end":
            done.add((record["pid"], record["queue_id"], record["fence"]))
        elif record.get("fault") == "kill":
            killed.add(record["pid"])
        elif record.get("type") == "invoke":
            done.discard((record["pid"], record.get("job"), record.get("fence")))
    return any(pid not in killed for pid, _, _ in done)


def _variants(choices: Choices) -> Iterator[Choices]:
    """Yield schedules with one choice less, then with one, or all from one on, moved."""
    for at in range(len(choices)):
        yield (*choices[:at], *choices[at + 1 :])
    for at, (step, label) in enumerate(choices):
        for by in range(1, REACH + 1):
            for moved in (step + by, step - by):
                yield _moved(choices, at, (moved, label))
                yield _shifted(choices, at, moved - step)


def _moved(choices: Choices, at: int, choice: Choice) -> Choices:
    others: Sequence[Choice] = (*choices[:at], *choices[at + 1 :])
    return tuple(sorted((*others, choice)))


def _shifted(choices: Choices, at: int, by: int) -> Choices:
    return (*choices[:at], *((step + by, label) for step, label in choices[at:]))
