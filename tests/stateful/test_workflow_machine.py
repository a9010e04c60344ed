"""Any graph, and any sequence of what may happen to its steps, against what a run promises.

Goal: no order of ends, calls-off, replays and deadlines lets a step start before its needs, undoes
what is not done, or leaves a run behind.  Method: hypothesis draws small graphs and plays a worker
and a person on them; after each step the file must agree with itself (`workflow_view.faults`) and
with a small model: which steps have ever succeeded, and what was undone.  At the end every job is
worked on, and every run must have ended.  The control takes a guard away and sees the same machine
fail.
"""

import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from killproof import Host, ManualClock, Queue, workflow_view
from killproof.operations import hold, replay, unhold
from killproof.workflow import Workflow, Workflows

#: For each step: which of the steps before it it needs (bits), and whether it has a compensation.
GRAPHS = st.lists(st.tuples(st.integers(0, 31), st.booleans()), min_size=1, max_size=6)
PICK = st.integers(0, 1_000)
HOUR = 3_600.0


class WorkflowMachine(RuleBasedStateMachine):
    """A few runs of drawn graphs, a worker, a person, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="killproof-test-", dir="/var/tmp")
        self.clock = ManualClock()
        path = f"{self.folder.name}/queue.db"
        self.queue = Queue(path, durability="process", host=Host(clock=self.clock))
        self.runs = Workflows(self.queue)
        self.succeeded: set[int] = set()
        self.undone: list[int] = []

    @initialize(graphs=st.lists(st.tuples(GRAPHS, st.booleans()), min_size=1, max_size=2))
    def start(self, graphs: list[tuple[list[tuple[int, bool]], bool]]) -> None:
        for steps, expires in graphs:
            flow = Workflow("flow")
            for number, (needs, undo) in enumerate(steps):
                flow.add(
                    f"s{number}",
                    kind="step",
                    needs=[f"s{need}" for need in range(number) if needs >> need & 1],
                    compensate="undo" if undo else None,
                )
            deadline = self.clock.now_ms() / 1_000 + HOUR if expires else None
            self.runs.start(flow, deadline=deadline)

    # The worker.

    @rule(succeeds=st.sampled_from([True, True, False]), hours=st.integers(0, 1))
    def work(self, succeeds: bool, hours: int) -> None:
        lease = self.queue.claim()
        if lease is None:
            return
        job_id = lease.job.id
        (undoes, expires_ms) = self.row(
            "SELECT undoes, expires_ms FROM workflow_step JOIN workflow_run AS run"
            " ON run.id = run_id WHERE job_id = ?", job_id)  # fmt: skip
        assert undoes or expires_ms is None or self.clock.now_ms() < expires_ms, "too late"
        (unmet,) = self.row("SELECT count(*) FROM workflow_need WHERE job_id = ?", job_id)
        met = {need for (need,) in self.rows("SELECT needs_job_id FROM workflow_need"
                                             " WHERE job_id = ?", job_id)}  # fmt: skip
        assert met <= self.succeeded, f"step {job_id} started before {met - self.succeeded}"
        assert len(met) == unmet
        self.clock.step_wall(hours * HOUR)
        if hours and (other := self.queue.claim()) is not None:  # It also expires what is due.
            self.queue.release(other)
        if succeeds:
            self.queue.ack(lease)
            self.succeeded.add(job_id)
            if undoes:
                self.undone.append(undoes)
        else:
            self.queue.nack(lease, "drawn", permanent=True)

    @rule()
    def crash(self) -> None:
        """The worker dies in its handler; the next claim finds out."""
        if self.queue.claim() is not None:
            self.clock.advance(61)
            self.queue.reap()

    # The person.

    @rule(pick=PICK)
    def cancel_a_job(self, pick: int) -> None:
        self.queue.cancel(self.picked(pick))

    @rule(pick=PICK)
    def replay_a_job(self, pick: int) -> None:
        replay(self.queue, [self.picked(pick)])

    @rule(pick=PICK)
    def hold_a_job(self, pick: int) -> None:
        hold(self.queue, self.picked(pick))

    @rule(pick=PICK)
    def let_a_job_go(self, pick: int) -> None:
        unhold(self.queue, self.picked(pick))

    @rule(pick=PICK, compensate=st.booleans())
    def cancel_a_run(self, pick: int, compensate: bool) -> None:
        run_id = self.picked_run(pick)
        if self.state(run_id) == "compensating":
            with pytest.raises(ValueError, match="is being compensated"):
                self.runs.cancel(run_id)
        else:
            self.runs.cancel(run_id, compensate=compensate)

    @rule(pick=PICK)
    def replay_a_run(self, pick: int) -> None:
        run_id = self.picked_run(pick)
        try:
            moved = self.runs.replay(run_id)
        except ValueError:
            return
        assert moved
        assert self.state(run_id) in ("running", "compensating")

    @rule()
    @precondition(lambda self: self.clock.now_ms() < self.begin_ms + 10 * HOUR * 1_000)
    def let_an_hour_pass(self) -> None:
        self.clock.advance(HOUR)

    # What must hold.

    @invariant()
    def the_file_agrees_with_itself(self) -> None:
        assert workflow_view.faults(self.queue) == []

    @invariant()
    def only_what_succeeded_is_undone_and_once(self) -> None:
        assert len(set(self.undone)) == len(self.undone)
        assert set(self.undone) <= self.succeeded

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.queue.close()
            self.folder.cleanup()

    def drain(self) -> None:
        """Let go what is held, and work until nothing is left: every run has ended then."""
        for _ in range(1_000):
            for (job_id,) in self.rows("SELECT id FROM job WHERE state = 'held'"):
                unhold(self.queue, job_id)
            lease = self.queue.claim()
            if lease is None and not self.rows("SELECT 1 FROM job WHERE finished_ms IS NULL"):
                break
            if lease is not None:
                self.queue.ack(lease)
            else:
                self.clock.advance(HOUR)
        left = self.rows("SELECT id, state FROM job WHERE finished_ms IS NULL")
        assert left == [], "a step is left behind"
        assert self.rows("SELECT id FROM workflow_run WHERE finished_ms IS NULL") == []
        assert workflow_view.faults(self.queue) == []

    # Looking.

    @property
    def begin_ms(self) -> int:
        return int(self.row("SELECT min(created_ms) FROM workflow_run")[0])

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self.queue.database.peek(statement, values)  # type: ignore[arg-type]  # Drawn ids.

    def row(self, statement: str, *values: object) -> tuple[Any, ...]:
        return self.rows(statement, *values)[0]

    def state(self, run_id: int) -> str:
        return str(self.row("SELECT state FROM workflow_run WHERE id = ?", run_id)[0])

    def picked(self, pick: int) -> int:
        ids = self.rows("SELECT job_id FROM workflow_step ORDER BY job_id")
        return int(ids[pick % len(ids)][0])

    def picked_run(self, pick: int) -> int:
        ids = self.rows("SELECT id FROM workflow_run ORDER BY id")
        return int(ids[pick % len(ids)][0])


LEAN = settings(
    max_examples=60,  # Fewer do not see a step come back after its deadline, when it does.
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)
#: What a control finds need not be the smallest.
CONTROL = settings(LEAN, max_examples=300, phases=(Phase.generate,), report_multiple_bugs=False)


def test_no_sequence_breaks_what_a_run_promises() -> None:
    """Covers S2.3, S2.9, S2.33."""
    run_state_machine_as_test(WorkflowMachine, settings=LEAN)


def test_without_the_guard_the_same_machine_fails() -> None:
    class Unguarded(WorkflowMachine):
        @initialize(graphs=st.lists(st.tuples(GRAPHS, st.booleans()), min_size=1, max_size=2))
        def start(self, graphs: list[tuple[list[tuple[int, bool]], bool]]) -> None:
            super().start(graphs)
            with self.queue.transaction() as tx:
                tx.change("DROP TRIGGER workflow_step_guard")

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Unguarded, settings=CONTROL)
