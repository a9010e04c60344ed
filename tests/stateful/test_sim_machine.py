"""Hypothesis drives the simulator: it invents actors, faults and the schedule, and shrinks them.

Goal: the scenarios that come with the harness are few and were thought of by people. Method: a
state machine whose rules give two or three actors operations to do, jobs to find and faults to
meet; at the end a schedule of small numbers is drawn, played on the real code, and judged by all
checkers. Hypothesis' own shrinker and example database then work on the whole of it. The control
is the queue whose ack has no fence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from killproof_chaos.sim import Actor, Faults, Replay, Stage
from killproof_chaos.sim.runtime import Runtime
from killproof_chaos.sim.scenario import Scenario
from killproof_chaos.sim.schedulers import is_fault
from killproof_chaos.sim.story import perform
from killproof_chaos.targets import load
from killproof_chaos.workload import Job

ACTORS: Final = ("w1", "w2", "w3")
#: What an actor can do; each works on the lease that it holds, if it holds one.
OPERATIONS: Final = ("claim", "play", "extend", "ack", "nack", "reap")
#: Choices between two that are drawn. Few, for a race is lost within the calls of one operation;
#: and what Hypothesis draws depends on the modules that are loaded, so it must be found often.
STEPS_MAX: Final = 15
NO_LONGER_THAN: Final = 6


@dataclass(slots=True)
class Drawn:
    """A schedule as pairs: go on for so many choices, then take this one of what is possible."""

    turns: Sequence[tuple[int, int]]

    def begin(self, runtime: Runtime) -> bool:
        """Play once; the stage asks no further."""
        self._left = list(self.turns)
        self._at = 0
        return True

    def choose(self, runtime: Runtime, options: Sequence[str], *, is_free: bool) -> str | None:
        """Take the default until it is time for something else; the numbers shrink towards it."""
        if not self._left:
            return options[0]
        wait, which = self._left[0]
        if self._at < wait:
            self._at += 1
            return options[0]
        self._left.pop(0)
        self._at = 0
        # Faults first: a small number is a fault where one is possible, and then an actor.
        others = sorted(options[1:], key=lambda label: (not is_fault(label), label))
        return others[which % len(others)] if others else options[0]

    _left: Any = None
    _at: int = 0


def actor_of(words: Sequence[str]) -> Callable[[Actor], None]:
    """An actor that does these operations in order, its handler once for each lease."""

    def act(me: Actor) -> None:
        lease: Any
        lease, played = None, False
        for word in [*words, "end"]:
            if word == "claim" and lease is None:
                lease, played = me.claim(), False
            elif word == "reap":
                me.reap()
            elif lease is None:
                continue
            elif word == "play" and not played:
                me.play(lease)
                played = True
            elif word == "extend":
                extended = me.extend(lease)
                lease = lease if isinstance(extended, bool) else extended
            elif word in ("ack", "nack"):
                getattr(me, word)(lease)
                lease = None
            elif word == "end" and played:
                me.ack(lease)  # Who goes home without a word makes the next one do it again.

    return act


class SimMachine(RuleBasedStateMachine):
    """Collects a scenario; the last step plays it."""

    target: Any

    @initialize(jobs=st.integers(1, 2), passes=st.integers(0, 1), crashes=st.integers(0, 1))
    def begin(self, jobs: int, passes: int, crashes: int) -> None:
        """Draw what the actors find, and what may happen to them."""
        self.jobs = tuple(Job(id=f"job-{n}", kind="report") for n in range(1, jobs + 1))
        self.faults = Faults(passes=passes, crashes=crashes)
        self.words: dict[str, list[str]] = {name: [] for name in ACTORS}
        self.turns: list[tuple[int, int]] = []
        for name in ACTORS[:2]:
            self.words[name] += ["claim", "play", "ack"]

    @rule(name=st.sampled_from(ACTORS), word=st.sampled_from(OPERATIONS))
    def give(self, name: str, word: str) -> None:
        """Give an actor one more thing to do."""
        if len(self.words[name]) < NO_LONGER_THAN:
            self.words[name].append(word)

    @rule(wait=st.integers(0, STEPS_MAX), which=st.integers(0, 5))
    def turn(self, wait: int, which: int) -> None:
        """Let something else happen than the default."""
        self.turns.append((wait, which))

    def teardown(self) -> None:
        """Play what was drawn, and fail with its story when a promise breaks."""
        if not hasattr(self, "words"):
            return
        actors = {name: actor_of(words) for name, words in self.words.items() if words}
        scenario = Scenario(
            name="drawn", text="as drawn", actors=actors, jobs=self.jobs, faults=self.faults
        )
        with Stage(self.target, scenario) as stage:
            outcome = stage.play(Drawn(self.turns))
            assert outcome is not None
            if outcome.is_violation:
                again = perform(stage, Replay(outcome.choices))
                assert again is not None
                raise AssertionError(f"\n{again[1].text()}")


def run(target: str, *, examples: int, steps: int) -> None:
    """Let Hypothesis drive the target; the same examples in each run."""

    class Machine(SimMachine):
        pass

    Machine.target = load(target)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )


def test_an_ack_without_a_fence_is_found_by_drawn_schedules() -> None:
    with pytest.raises(AssertionError, match="broken: A worker that lost its lease"):
        run("ack-without-fence", examples=200, steps=5)


def test_killproof_holds_in_drawn_scenarios_under_drawn_schedules() -> None:
    run("killproof", examples=40, steps=6)
