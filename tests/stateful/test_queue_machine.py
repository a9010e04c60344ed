"""Any sequence of operations, crashes among them, against a dictionary.

Goal: nothing that a caller can do, in any order, makes the queue differ from what it promises.
Method: hypothesis plays two workers on one file under one manual clock; a plain model keeps what
each job must look like; after each step every job is compared field by field. A crash drops a
worker as the kernel does: its byte is free, nothing is given back. The control breaks one
statement of the queue at a time and must see the same machine fail.
"""

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
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

from killproof import Host, Lease, LeaseLost, ManualClock, Queue
from killproof.core.model import LIVE, STATES, TERMINAL
from killproof.operations import hold, replay, reprioritise, unhold

KINDS = ("a", "b")
DELAYS = st.sampled_from([0, 0.001, 1, 30])
POLICIES = {"immediate": 0, "fixed:1": 1_000, "fixed:40": 40_000}


@dataclass(slots=True, kw_only=True)
class Model:
    """What a job must look like."""

    id: int
    kind: str
    priority: int
    due_ms: int
    key: str | None
    max_attempts: int
    lease_ms: int
    retry: str
    state: str
    fence: int = 0
    deliveries: int = 0
    forgiven: int = 0
    failures: int = 0
    crashes: int = 0
    owner: str | None = None
    deadline_ns: int = 0
    finished_ms: int | None = None
    error_class: str | None = None
    outcomes: list[str] = field(default_factory=list)

    @property
    def attempt(self) -> int:
        return self.deliveries - self.forgiven

    def end(self, state: str, outcome: str, now_ms: int, due_ms: int | None = None) -> None:
        """End the current delivery."""
        self.state, self.owner = state, None
        self.due_ms = self.due_ms if due_ms is None else due_ms
        self.finished_ms = now_ms if state in TERMINAL else None
        self.outcomes.append(outcome)
        self.forgiven += outcome in ("released", "snoozed")
        self.failures += outcome == "failed"
        self.crashes += outcome in ("crashed", "expired")
        errors = {"failed": "Error", "crashed": "Crashed", "expired": "LeaseExpired"}
        self.error_class = errors.get(outcome, self.error_class)
        if state == "succeeded":
            self.error_class = None


class QueueMachine(RuleBasedStateMachine):
    """Two workers, one clock, and the model."""

    make: Callable[..., Queue] = Queue

    jobs = Bundle("jobs")
    leases = Bundle("leases")

    @initialize(target=jobs)
    def open(self) -> object:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.models: dict[int, Model] = {}
        self.dead: set[str] = set()
        self.workers = [self.worker(), self.worker()]
        urgent = self.enqueue(0, "a", 1, 0, None, 3, 60, "immediate")
        other = self.enqueue(1, "b", 2, 0, "k", 2, 1, "fixed:1")
        return multiple(urgent, other)

    def worker(self) -> Queue:
        host = Host(clock=self.clock, random=random.Random(1))
        path = Path(self.folder.name) / "q.db"
        return type(self).make(path, durability="process", host=host)

    def teardown(self) -> None:
        if hasattr(self, "workers"):
            for worker in self.workers:
                worker.close()
            self.folder.cleanup()

    # What the model says.

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def is_current(self, lease: Lease) -> bool:
        model = self.models[lease.job.id]
        return model.state == "leased" and model.fence == lease.fence

    def sweep(self) -> int:
        """Take back what is lost."""
        reaped = 0
        for model in self.models.values():
            if model.state != "leased":
                continue
            outcome = "crashed" if model.owner in self.dead else "expired"
            if outcome == "expired" and model.deadline_ns > self.clock.monotonic_ns():
                continue
            reaped += 1
            if model.attempt >= model.max_attempts:
                model.end("dead", outcome, self.now_ms)
            elif model.crashes:
                model.end("retryable", outcome, self.now_ms, self.now_ms + POLICIES[model.retry])
            else:
                model.end("available", outcome, self.now_ms)
        return reaped

    def promote(self) -> None:
        for model in self.models.values():
            if model.state in ("scheduled", "retryable") and model.due_ms <= self.now_ms:
                model.state = "available"

    def first(self, kinds: tuple[str, ...] | None) -> Model | None:
        found = [
            model
            for model in self.models.values()
            if model.state == "available" and (kinds is None or model.kind in kinds)
        ]
        return min(found, key=lambda model: (model.priority, model.due_ms, model.id), default=None)

    def outcome(self, lease: Lease, call: Callable[[], object]) -> bool:
        """Make the call; it must be refused exactly when the lease is not current."""
        current = self.is_current(lease)
        if not current:
            with pytest.raises(LeaseLost):
                call()
        else:
            call()
        return current

    # What callers do.

    @rule(
        target=jobs,
        worker=st.integers(0, 1),
        kind=st.sampled_from(KINDS),
        priority=st.integers(0, 3),
        delay=DELAYS,
        key=st.sampled_from([None, None, "k", "m"]),
        max_attempts=st.integers(1, 3),
        lease=st.sampled_from([1, 60]),
        retry=st.sampled_from(sorted(POLICIES)),
    )
    def enqueue(
        self,
        worker: int,
        kind: str,
        priority: int,
        delay: float,
        key: str | None,
        max_attempts: int,
        lease: int,
        retry: str,
    ) -> int:
        job_id = self.workers[worker].enqueue(
            kind,
            {"n": len(self.models)},
            priority=priority,
            delay=delay,
            key=key,
            max_attempts=max_attempts,
            lease=lease,
            retry=retry,
        )
        living = [m.id for m in self.models.values() if key and m.key == key and m.state in LIVE]
        if living:
            assert [job_id] == living
            return job_id
        assert job_id not in self.models
        self.models[job_id] = Model(
            id=job_id,
            kind=kind,
            priority=priority,
            due_ms=self.now_ms + round(delay * 1_000),
            key=key,
            max_attempts=max_attempts,
            lease_ms=lease * 1_000,
            retry=retry,
            state="scheduled" if delay else "available",
        )
        return job_id

    @rule(
        target=leases,
        worker=st.integers(0, 1),
        kinds=st.sampled_from([None, None, ("a",), ("a", "b"), ()]),
        limit=st.integers(1, 3),
    )
    def claim(self, worker: int, kinds: tuple[str, ...] | None, limit: int) -> object:
        self.clock.advance(0.2)  # So that each claim that takes the lock also sweeps.
        leases = self.workers[worker].claim_many(limit, kinds)
        self.sweep()
        self.promote()
        for lease in leases:
            model = self.first(kinds)
            assert model is not None
            assert model.id == lease.job.id, "the first claimable job by priority, due time, id"
            self.take(model, lease, self.workers[worker])
        if len(leases) < limit:
            assert self.first(kinds) is None
        return multiple(*leases)

    def take(self, model: Model, lease: Lease, worker: Queue) -> None:
        model.state = "leased"
        model.fence += 1
        model.deliveries += 1
        model.owner = worker.worker_id
        model.deadline_ns = self.clock.monotonic_ns() + model.lease_ms * 1_000_000
        assert (lease.fence, lease.owner) == (model.fence, model.owner)
        assert lease.deadline_ns == model.deadline_ns
        assert 1 <= lease.job.attempt <= model.max_attempts

    @rule(worker=st.integers(0, 1), lease=leases)
    def ack(self, worker: int, lease: Lease) -> None:
        model = self.models[lease.job.id]
        fences = range(1, model.fence + 1)
        ended = dict(zip(fences, model.outcomes, strict=False)).get(lease.fence)
        if ended == "succeeded":
            self.workers[worker].ack(lease)  # Repeated: harmless.
        elif self.outcome(lease, lambda: self.workers[worker].ack(lease, {"by": worker})):
            model.end("succeeded", "succeeded", self.now_ms)

    @rule(target=leases, worker=st.integers(0, 1), lease=leases)
    def ack_and_claim(self, worker: int, lease: Lease) -> object:
        if not self.is_current(lease):
            return multiple()
        self.clock.advance(0.2)
        found = self.workers[worker].ack_and_claim(lease)
        self.models[lease.job.id].end("succeeded", "succeeded", self.now_ms)
        self.sweep()
        self.promote()
        model = self.first(None)
        assert (found is None) == (model is None)
        if found is None or model is None:
            return multiple()
        assert model.id == found.job.id
        self.take(model, found, self.workers[worker])
        return found

    @rule(
        worker=st.integers(0, 1),
        lease=leases,
        delay=st.one_of(st.none(), DELAYS),
        permanent=st.sampled_from([False, False, True]),
    )
    def nack(self, worker: int, lease: Lease, delay: float | None, permanent: bool) -> None:
        def call() -> None:
            self.workers[worker].nack(lease, "no", delay=delay, permanent=permanent)

        model = self.models[lease.job.id]
        if self.outcome(lease, call):
            if permanent or model.attempt >= model.max_attempts:
                model.end("dead", "failed", self.now_ms)
            else:
                wait_ms = POLICIES[model.retry] if delay is None else round(delay * 1_000)
                model.end("retryable", "failed", self.now_ms, self.now_ms + wait_ms)

    @rule(worker=st.integers(0, 1), lease=leases)
    def release(self, worker: int, lease: Lease) -> None:
        if self.outcome(lease, lambda: self.workers[worker].release(lease)):
            self.models[lease.job.id].end("available", "released", self.now_ms)

    @rule(worker=st.integers(0, 1), lease=leases, delay=DELAYS)
    def snooze(self, worker: int, lease: Lease, delay: float) -> None:
        if self.outcome(lease, lambda: self.workers[worker].snooze(lease, delay)):
            due_ms = self.now_ms + round(delay * 1_000)
            self.models[lease.job.id].end("scheduled", "snoozed", self.now_ms, due_ms)

    @rule(worker=st.integers(0, 1), lease=leases)
    def extend(self, worker: int, lease: Lease) -> None:
        if self.outcome(lease, lambda: self.workers[worker].extend(lease)):
            model = self.models[lease.job.id]
            model.deadline_ns = self.clock.monotonic_ns() + model.lease_ms * 1_000_000

    @rule(worker=st.integers(0, 1), lease=leases, fails=st.booleans())
    def complete(self, worker: int, lease: Lease, fails: bool) -> None:
        def call() -> None:
            with self.workers[worker].completing(lease) as tx:
                tx.execute("SELECT 1")
                if fails:
                    raise ZeroDivisionError

        if fails and self.is_current(lease):
            with pytest.raises(ZeroDivisionError):
                call()
        elif self.outcome(lease, call):
            self.models[lease.job.id].end("succeeded", "succeeded", self.now_ms)

    @rule(worker=st.integers(0, 1), job_id=jobs)
    def cancel(self, worker: int, job_id: int) -> None:
        model = self.models[job_id]
        ended_otherwise = model.state in TERMINAL - {"cancelled"}
        assert self.workers[worker].cancel(job_id) == (not ended_otherwise)
        if model.state == "leased":
            model.end("cancelled", "cancelled", self.now_ms)
        elif model.state in LIVE:
            model.state, model.finished_ms = "cancelled", self.now_ms

    @rule(
        worker=st.integers(0, 1),
        job_id=jobs,
        act=st.sampled_from(["replay", "reprioritise", "hold", "unhold"]),
        priority=st.integers(0, 9),
    )
    def a_person_acts(self, worker: int, job_id: int, act: str, priority: int) -> None:
        queue, model = self.workers[worker], self.models[job_id]
        if act == "replay":
            living = {m.key for m in self.models.values() if m.key and m.state in LIVE}
            moved = model.state in TERMINAL - {"succeeded"} and model.key not in living
            assert replay(queue, [job_id]).moved == ((job_id,) if moved else ())
            if moved:
                model.state, model.finished_ms, model.due_ms = "available", None, self.now_ms
                model.forgiven = model.deliveries
        elif act == "reprioritise":
            assert reprioritise(queue, job_id, priority) == (model.state in LIVE)
            if model.state in LIVE:
                model.priority = priority
        elif act == "hold":
            waits = model.state in ("available", "scheduled", "retryable")
            assert hold(queue, job_id) == waits
            if waits:
                model.state = "held"
        else:
            assert unhold(queue, job_id) == (model.state == "held")
            if model.state == "held":
                model.state, model.due_ms = "available", min(model.due_ms, self.now_ms)

    # What happens to them.

    @rule(worker=st.integers(0, 1))
    def reap(self, worker: int) -> None:
        assert self.workers[worker].reap() == self.sweep()

    @rule(worker=st.integers(0, 1), orderly=st.booleans())
    def a_worker_ends(self, worker: int, orderly: bool) -> None:
        """In order it gives back what it holds; in a crash only its byte falls free."""
        victim, owner = self.workers[worker], self.workers[worker].worker_id
        if not orderly:
            self.dead |= {owner} if owner else set()
            if victim.database.liveness is not None:
                victim.database.liveness.close()
            victim._identity = None
        victim.close()
        for model in self.models.values():
            if orderly and model.state == "leased" and model.owner == owner:
                model.end("available", "released", self.now_ms)
        self.workers[worker] = self.worker()

    @rule(target=leases, lease=leases)
    def a_worker_is_stopped_past_its_lease(self, lease: Lease) -> object:
        """The job is given to the other one; what the zombie says from here on is refused."""
        self.clock.advance(61)
        return self.claim(1, None, 3)

    @rule(seconds=st.sampled_from([0.001, 0.5, 1, 61]), wall=st.sampled_from([0, 0, -3_600, 3_600]))
    def time_passes(self, seconds: float, wall: float) -> None:
        """And somebody steps the wall clock now and then."""
        self.clock.advance(seconds)
        self.clock.step_wall(wall)

    # What must hold after each step.

    @invariant()
    def every_job_is_as_the_model_says(self) -> None:
        if not hasattr(self, "workers"):
            return
        reader = self.workers[0]
        for model in self.models.values():
            job = reader.get(model.id)
            assert job is not None
            for name in (
                *("kind", "state", "priority", "due_ms", "key", "max_attempts", "fence", "retry"),
                *("deliveries", "forgiven", "failures", "crashes", "owner", "finished_ms"),
                *("attempt", "error_class"),
            ):
                assert getattr(job, name) == getattr(model, name), (name, job)
            assert [attempt.outcome for attempt in job.attempts] == model.outcomes
            assert [attempt.fence for attempt in job.attempts] == sorted(
                attempt.fence for attempt in job.attempts
            )
            assert len(job.attempts) == job.deliveries - (job.state == "leased")
            assert 0 <= job.attempt <= job.max_attempts

    @invariant()
    def the_counts_add_up(self) -> None:
        if not hasattr(self, "workers"):
            return
        states = [model.state for model in self.models.values()]
        assert self.workers[1].counts() == {state: states.count(state) for state in STATES}


SETTINGS = settings(
    max_examples=120,
    stateful_step_count=30,
    deadline=None,  # An fsync of the machine's disk takes what it takes.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_after_any_sequence_of_operations_the_queue_is_what_the_model_says() -> None:
    run_state_machine_as_test(QueueMachine, settings=SETTINGS)


#: One statement with its guard taken away, each a fault that real queues have had.
BROKEN: dict[str, tuple[str, str, str]] = {
    "the fence is not asked for": ("END", "AND fence = :fence AND owner = :worker", ""),
    "an attempt is not counted": ("CLAIM", "deliveries = deliveries + 1", "deliveries = 1"),
    "the order forgets the priority": ("FIRST_OF_ALL", "ORDER BY priority, due_ms", "ORDER BY id"),
    "what is due is never promoted": ("PROMOTE", "due_ms <= :now_ms", "due_ms < 0"),
    "a job is promoted early": ("PROMOTE", "due_ms <= :now_ms", "due_ms <= :now_ms + 31000"),
    "a snooze counts as an attempt": ("END", "'released', 'snoozed'", "'released'"),
    "a key holds for ever": ("FIND_KEY", "SELECT id", "SELECT min(id) - 1 AS id"),
    "cancel forgets the scheduled": ("CANCEL", "'scheduled', ", ""),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_queue_with_one_guard_taken_away_is_caught_by_the_machine(fault: str) -> None:
    name, guard, instead = BROKEN[fault]
    statement = getattr(Queue, name)
    assert guard in statement

    class Broken(QueueMachine):
        make = type("BrokenQueue", (Queue,), {name: statement.replace(guard, instead)})

    assert is_caught(Broken)


def is_caught(machine: type[QueueMachine]) -> bool:
    quick = settings(
        SETTINGS, max_examples=150, phases=[Phase.generate], database=None, derandomize=True
    )
    try:
        run_state_machine_as_test(machine, settings=quick)
    # However it shows: a wrong field, a refusal or none, an error of SQLite's.
    except (Exception, pytest.fail.Exception):
        return True
    return False
