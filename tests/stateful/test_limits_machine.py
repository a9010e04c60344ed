"""Any sequence of operations against limits that are recomputed from the table of jobs.

Goal: nothing that callers do, in any order, makes a resource over-full, or keeps a job back that
its resources would let start. Method: hypothesis plays two workers and a person on one file under
one manual clock. The machine keeps what was said of each limit, and nothing else: after each step
the rows of `throttle` must be those that follow from it and from the jobs that are leased. The
control lets one trigger forget something, and must see the same machine fail.
"""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from killproof import Host, Lease, LeaseLost, ManualClock, Queue, limits
from killproof.limits import Limits
from killproof.operations import hold, replay, unhold

KINDS = ("a", "b", "c")
RESOURCES = ("x", "y")
LEASED = "SELECT kind FROM job WHERE state = 'leased'"
AVAILABLE = "SELECT kind FROM job WHERE state = 'available'"
ROWS = "SELECT kind, reason FROM throttle WHERE until_ms > ? ORDER BY kind, reason"


class LimitsMachine(RuleBasedStateMachine):
    """Two workers, a person, and what was said of the limits."""

    leases = Bundle("leases")

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.workers = [self.worker(), self.worker()]
        self.limits = Limits(self.workers[0])
        self.said: dict[str, tuple[tuple[str, ...], int | None]] = {}
        self.closed_until: dict[str, int] = {}
        self.set_limit("x", ("a", "b"), 1)
        for kind in KINDS * 2:
            self.enqueue(kind)

    def worker(self) -> Queue:
        host = Host(clock=self.clock, random=random.Random(1))
        return Queue(Path(self.folder.name) / "q.db", durability="process", host=host)

    def teardown(self) -> None:
        if hasattr(self, "workers"):
            for worker in self.workers:
                worker.close()
            self.folder.cleanup()

    # What follows from what was said, and from the jobs.

    def kinds_in(self, statement: str) -> list[str]:
        return [str(kind) for (kind,) in self.workers[0].database.peek(statement)]

    def running(self, name: str) -> int:
        kinds, _ = self.said[name]
        return sum(kind in kinds for kind in self.kinds_in(LEASED))

    def shut(self, name: str) -> list[str]:
        """Return the rules of a resource that let nothing start."""
        _, most = self.said[name]
        rules = ["closed"] if self.closed_until.get(name, 0) > self.clock.now_ms() else []
        return rules + (["running"] if most is not None and self.running(name) >= most else [])

    def of(self, kind: str) -> list[str]:
        return [name for name, (kinds, _) in self.said.items() if kind in kinds]

    # What a person does.

    @rule(
        name=st.sampled_from(RESOURCES),
        kinds=st.sampled_from([("a",), ("a", "b"), ("b", "c"), KINDS]),
        running=st.sampled_from([1, 1, 2, 3, None]),
    )
    def set_limit(self, name: str, kinds: tuple[str, ...], running: int | None) -> None:
        limit = self.limits.set(name, kinds=kinds, running=running)
        self.said[name] = (kinds, running)
        assert limit.running == self.running(name)

    @rule(name=st.sampled_from(RESOURCES))
    def remove_limit(self, name: str) -> None:
        assert self.limits.remove(name) == (name in self.said)
        self.said.pop(name, None)
        self.closed_until.pop(name, None)

    @rule(name=st.sampled_from(RESOURCES), seconds=st.sampled_from([1, 60]), opens=st.booleans())
    def close_or_open(self, name: str, seconds: int, opens: bool) -> None:
        if name not in self.said:
            return
        if opens:
            self.limits.open(name)
            self.closed_until.pop(name, None)
        else:
            self.limits.close(name, seconds, "no")
            until_ms = self.clock.now_ms() + seconds * 1_000 + 1
            self.closed_until[name] = max(self.closed_until.get(name, 0), until_ms)

    @rule(job_id=st.integers(1, 9), act=st.sampled_from(["cancel", "hold", "unhold", "replay"]))
    def a_person_acts(self, job_id: int, act: str) -> None:
        queue = self.workers[0]
        if queue.get(job_id) is None:
            return
        if act == "cancel":
            queue.cancel(job_id)
        elif act == "replay":
            replay(queue, [job_id])
        else:
            (hold if act == "hold" else unhold)(queue, job_id)

    # What callers do.

    @rule(kind=st.sampled_from(KINDS))
    def enqueue(self, kind: str) -> None:
        self.workers[0].enqueue(kind, None, retry="immediate", lease=30, max_attempts=3)

    @rule(
        target=leases,
        worker=st.integers(0, 1),
        kinds=st.sampled_from([None, None, ("a",), ("b", "c")]),
        most=st.integers(1, 4),
    )
    def claim(self, worker: int, kinds: tuple[str, ...] | None, most: int) -> object:
        self.clock.advance(0.2)  # So that each claim that takes the lock also sweeps.
        return self.judged(self.workers[worker].claim_many(most, kinds), kinds, most)

    def judged(self, taken: list[Lease], kinds: tuple[str, ...] | None, most: int) -> object:
        """No resource is over-full by a claim, and none has room for what was left."""
        for lease in taken:
            for name in self.of(lease.job.kind):
                limit = self.said[name][1]
                assert limit is None or self.running(name) <= limit
                assert "closed" not in self.shut(name)
        if len(taken) < most:
            for kind in self.kinds_in(AVAILABLE):
                free = not any(self.shut(name) for name in self.of(kind))
                assert not free or kind not in (kinds or KINDS), "a job waits that may start"
        return multiple(*taken)

    @rule(
        target=leases,
        worker=st.integers(0, 1),
        lease=leases,
        end=st.sampled_from(["ack", "ack_and_claim", "nack", "release", "snooze", "complete"]),
    )
    def finish(self, worker: int, lease: Lease, end: str) -> object:
        queue = self.workers[worker]
        self.clock.advance(0.2)
        try:
            if end == "ack_and_claim":
                found = queue.ack_and_claim(lease)
                return self.judged([found] if found is not None else [], None, 1)
            if end == "complete":
                with queue.completing(lease):
                    pass
            elif end == "nack":
                queue.nack(lease, "no")
            elif end == "snooze":
                queue.snooze(lease, 1)
            else:
                getattr(queue, end)(lease)
        except LeaseLost:
            pass
        return multiple()

    @rule(worker=st.integers(0, 1), orderly=st.booleans())
    def a_worker_ends(self, worker: int, orderly: bool) -> None:
        """In order it gives back what it holds; in a crash only its byte falls free."""
        victim = self.workers[worker]
        if not orderly:
            if victim.database.liveness is not None:
                victim.database.liveness.close()
            victim._identity = None
        victim.close()
        self.workers[worker] = self.worker()
        self.limits = Limits(self.workers[0])

    @rule(seconds=st.sampled_from([0.5, 2, 31]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # What must hold after each step.

    @invariant()
    def the_rows_are_those_that_follow_from_the_jobs(self) -> None:
        if not hasattr(self, "workers"):
            return
        expected = sorted(
            (kind, f"limit {name}: {rule}")
            for name, (kinds, _) in self.said.items()
            for rule in self.shut(name)
            for kind in kinds
        )
        found = self.workers[1].database.peek(ROWS, (self.clock.now_ms(),))
        assert found == expected


def play(examples: int, steps: int) -> None:
    """Play the machine; a failure is not shrunk, for the control looks at no story."""
    run_state_machine_as_test(
        LimitsMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_whatever_happens_limits_are_kept_and_used_and_nothing_is_left_shut() -> None:
    """Covers S1.5, S1.11, S1.39. F13."""
    play(examples=8, steps=25)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("SET running = running + 1", "SET running = running"),
        ("SET running = max(running - 1, 0)", "SET running = running"),
    ],
)
def test_a_trigger_that_forgets_something_is_found_by_the_machine(
    text: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = limits.script()
    assert text in script
    monkeypatch.setattr(limits, "script", lambda: script.replace(text, instead))
    with pytest.raises(AssertionError):
        play(examples=12, steps=25)
