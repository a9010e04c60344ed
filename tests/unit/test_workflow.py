"""Workflows: a step starts when all it needs has succeeded, and the run's state follows."""

import asyncio
import io
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from killproof import (
    FileRefused,
    Host,
    JobNotFound,
    Lease,
    LeaseLost,
    ManualClock,
    Queue,
    backup,
    operations,
    retention,
    transfer,
    workflow,
    workflow_memo,
    workflow_plan,
    workflow_retention,
    workflow_step,
    workflow_tables,
    workflow_transfer,
    workflow_view,
)
from killproof.core.errors import DatabaseBusy
from killproof.handlers import Hold
from killproof.heartbeat import Tenure
from killproof.retention import prune
from killproof.worker import Context, Handlers, Permanent
from killproof.workflow import NEEDS_MAX, STEPS_MAX, Step, Workflow, Workflows

HOUR = 3_600.0


class Stand:
    """A queue under a clock, its runs, and a worker that is moved by hand."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.queue = Queue(path, durability="process", host=Host(clock=self.clock))
        self.runs = Workflows(self.queue)

    def start(self, graph: dict[str, str], **options: Any) -> int:
        """Start a run of steps {name: "the steps it needs"}; a name with `!` has a compensation."""
        flow = Workflow("flow")
        for name, needs in graph.items():
            compensate = f"undo.{name[:-1]}" if name.endswith("!") else None
            flow.add(
                name.rstrip("!"), kind=name.rstrip("!"), needs=needs.split(), compensate=compensate
            )
        return self.runs.start(flow, **options)

    def claim(self, kind: str | None = None) -> Lease | None:
        return self.queue.claim([kind] if kind else None)

    def work(self, *kinds: str) -> None:
        """Let a job of each of these kinds succeed."""
        for kind in kinds:
            lease = self.claim(kind)
            assert lease is not None, f"no {kind} to claim"
            self.queue.ack(lease, {"from": kind})

    def fail(self, kind: str) -> int:
        lease = self.claim(kind)
        assert lease is not None, f"no {kind} to claim"
        self.queue.nack(lease, "boom", permanent=True)
        return lease.job.id

    def run_step(self, handlers: Handlers, kind: str) -> object:
        """Claim a job and run its handler as a worker does; return what it returned."""
        lease = self.claim(kind)
        assert lease is not None, f"no {kind} to claim"
        tenure = Tenure(lease, now_ns=self.clock.monotonic_ns())
        result = handlers[kind].function(Context(self.queue, tenure, self.clock))
        if not tenure.completed:
            self.queue.ack(lease, result)
        return result

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.queue.path, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()

    def state(self, run_id: int = 1) -> str:
        return str(self.sql("SELECT state FROM workflow_run WHERE id = ?", run_id)[0][0])

    def job(self, name: str, run_id: int = 1) -> int:
        found = self.sql(
            "SELECT job_id FROM workflow_step WHERE name = ? AND run_id = ? AND undoes = 0",
            *(name, run_id),
        )
        return int(found[0][0])

    def states(self, run_id: int = 1) -> dict[str, str]:
        return dict(
            self.sql(
                "SELECT iif(undoes > 0, 'undo ', '') || name || iif(item > 0, ' ' || item, ''), "
                "state FROM workflow_step JOIN job ON job.id = job_id "
                "WHERE run_id = ? ORDER BY job_id",
                run_id,
            )
        )


@pytest.fixture
def stand(place: Path) -> Iterator[Stand]:
    stand = Stand(place / "queue.db")
    yield stand
    stand.queue.close()


DIAMOND = {"a": "", "b": "a", "c": "a", "d": "b c"}
SAGA = {"a!": "", "b!": "a", "c": "b"}


# The graph.


def test_a_step_is_blocked_until_all_that_it_needs_has_succeeded(stand: Stand) -> None:
    """Covers S2.7, S2.33; F63."""
    stand.start(DIAMOND)

    assert stand.states() == {"a": "available", "b": "blocked", "c": "blocked", "d": "blocked"}
    stand.work("a")
    assert stand.states()["b"] == stand.states()["c"] == "available"
    stand.work("c")
    assert stand.claim("d") is None
    stand.work("b", "d")
    assert stand.state() == "succeeded"


def test_a_run_its_steps_and_its_needs_appear_in_one_transaction(stand: Stand) -> None:
    """Covers S2.2, S2.32."""
    flow = Workflow("flow")
    flow.add("a")

    def start_and_fail() -> None:
        with stand.queue.transaction() as tx:
            assert stand.runs.start(flow, tx=tx) == 1
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        start_and_fail()

    assert sum(stand.queue.counts().values()) == 0
    assert stand.sql("SELECT name FROM sqlite_schema WHERE name LIKE 'workflow%'") == []


def test_steps_without_needs_of_their_own_run_in_the_order_of_their_declaration(
    stand: Stand,
) -> None:
    """Covers S2.7; F63."""
    flow = Workflow("flow")
    for name in ("first", "second", "third"):
        flow.add(name, kind=name)
    stand.runs.start(flow)

    for name in ("first", "second", "third"):
        lease = stand.claim()
        assert lease is not None
        assert lease.job.kind == name
        assert stand.claim() is None
        stand.queue.ack(lease)


def test_a_run_without_steps_succeeds_at_once(stand: Stand) -> None:
    """Covers S2.24; F66."""
    assert stand.state(stand.start({})) == "succeeded"


def test_a_delay_counts_from_the_success_of_the_last_need(stand: Stand) -> None:
    flow = Workflow("flow")
    flow.add("order", kind="order")
    flow.add("remind", kind="remind", delay=HOUR)
    stand.runs.start(flow)
    stand.clock.advance(10 * HOUR)
    stand.work("order")

    assert stand.states()["remind"] == "scheduled"
    stand.clock.advance(HOUR - 1)
    assert stand.claim() is None
    stand.clock.advance(1)
    stand.work("remind")
    assert stand.state() == "succeeded"


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        ({"a": "b", "b": "a"}, "workflow 'flow': steps a -> b -> a need each other in a circle"),
        ({"a": "a"}, "steps a -> a need each other in a circle"),
        ({"a": "", "b": "x"}, "step 'b' needs 'x', which is no step of it: use one of a, b"),
        ({"a": "", "b": "c", "c": "d a", "d": "b"}, "steps b -> c -> d -> b need each other"),
    ],
)
def test_a_graph_that_can_not_be_run_is_refused_in_a_line(
    stand: Stand, graph: dict[str, str], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as told:
        stand.start(graph)

    assert "\n" not in str(told.value)
    assert sum(stand.queue.counts().values()) == 0


def test_more_steps_than_one_transaction_should_move_are_refused(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (STEPS_MAX, NEEDS_MAX) == (5_000, 20_000)
    monkeypatch.setattr(workflow_plan, "STEPS_MAX", 3)
    monkeypatch.setattr(workflow_plan, "NEEDS_MAX", 2)

    with pytest.raises(ValueError, match="workflow 'flow' has 4 steps, over the limit of 3"):
        stand.start({"a": "", "b": "", "c": "", "d": ""})
    with pytest.raises(ValueError, match="workflow 'flow' has 3 needs, over the limit of 2"):
        stand.start({"a": "", "b": "a", "c": "a b"})


def test_a_wrong_declaration_is_refused_where_it_stands() -> None:
    flow = Workflow("flow")
    flow.add("a")

    with pytest.raises(ValueError, match="has a step 'a' already"):
        flow.add("a")
    with pytest.raises(ValueError, match=r"write \['a'\]"):
        flow.add("b", needs="a")
    with pytest.raises(ValueError, match="priority 11"):
        flow.add("b", priority=11)
    with pytest.raises(ValueError, match="unknown option 'prority'"):
        flow.add("b", prority=1)
    with pytest.raises(ValueError, match="all that it may need"):
        flow.add("b", each="a", needs=["a"])
    with pytest.raises(ValueError, match="'b' has a payload, and its jobs have their items"):
        flow.add("b", each="a", payload={"dropped": 1})
    assert [plan.name for plan in flow.plans] == ["a"]


# Starting.


def test_a_run_is_started_once_for_its_key_also_when_it_has_ended(stand: Stand) -> None:
    """Covers S0.54; F44."""
    first = stand.start({"a": ""}, key="order-1")
    stand.work("a")

    assert stand.start({"a": ""}, key="order-1") == first
    assert stand.start({"a": ""}, key="order-2") != first
    assert sum(stand.queue.counts().values()) == 2


def test_a_table_of_the_application_is_never_taken_over(stand: Stand) -> None:
    stand.sql("CREATE TABLE Workflow_Step (mine TEXT)")

    with pytest.raises(FileRefused, match="has a table 'Workflow_Step' that is not killproof's"):
        stand.start({"a": ""})
    assert sum(stand.queue.counts().values()) == 0


def test_the_tables_of_a_newer_version_are_refused_with_the_remedy(stand: Stand) -> None:
    stand.start({"a": ""})
    stand.sql("UPDATE killproof_schema SET version = 9 WHERE component = 'workflow'")

    with pytest.raises(FileRefused, match="version 9, this killproof knows 1: upgrade"):
        stand.start({"a": ""})


# Failing.


def test_what_needs_a_failed_step_is_cancelled_and_the_run_fails_when_nothing_goes_on(
    stand: Stand,
) -> None:
    """Covers S2.11; F64, F65."""
    stand.start({"a": "", "b": "a", "c": "b", "other": ""})
    stand.fail("a")

    assert stand.states() == {
        **{"a": "dead", "b": "cancelled", "c": "cancelled", "other": "available"}
    }
    assert stand.state() == "running"
    stand.work("other")
    assert stand.state() == "failed"


@pytest.mark.parametrize("end", ["dead", "cancelled", "expired"])
def test_whatever_ends_a_step_without_success_ends_what_needs_it(stand: Stand, end: str) -> None:
    """Covers S2.34; F64."""
    stand.start({"a": "", "b": "a"})
    if end == "dead":
        stand.fail("a")
    elif end == "cancelled":
        stand.queue.cancel(stand.job("a"))
    else:
        stand.sql("UPDATE job SET expires_ms = ? WHERE kind = 'a'", stand.clock.now_ms() + 1)
        stand.clock.advance(1)
        assert stand.claim() is None

    assert stand.states() == {"a": end, "b": "cancelled"}
    assert stand.state() == "failed"


def test_a_failure_at_the_top_of_a_long_chain_reaches_its_end_in_one_transaction(
    stand: Stand,
) -> None:
    """A thousand levels is where SQLite stops a recursion of triggers; here is none."""
    flow = Workflow("flow")
    for number in range(1_100):
        flow.add(f"s{number}", kind="s")
    stand.runs.start(flow)
    stand.fail("s")

    assert stand.queue.counts()["cancelled"] == 1_099
    assert stand.state() == "failed"


@pytest.mark.parametrize("recursive", [0, 1])
def test_the_triggers_do_the_same_whatever_the_connection_says_of_recursion(
    stand: Stand, recursive: int
) -> None:
    """Covers S2.26; F62."""
    stand.start({**SAGA, "d": "c"})
    stand.work("a", "b")
    with closing(sqlite3.connect(stand.queue.path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA recursive_triggers = {recursive}")
        connection.execute(
            "UPDATE job SET state = 'cancelled', finished_ms = 1, updated_ms = 1 WHERE kind = 'c'"
        )

    assert stand.states() == {
        **{"a": "succeeded", "b": "succeeded", "c": "cancelled", "d": "cancelled"},
        "undo b": "available",
    }


def test_the_deadline_of_a_run_expires_all_its_steps_however_many(stand: Stand) -> None:
    """Covers S0.6, S1.28.

    A claim expires a hundred rows in one UPDATE: what a trigger cancels meanwhile is among them.
    """
    graph = {"s0": ""} | {f"s{number}": f"s{number - 1}" for number in range(1, 150)}
    stand.start(graph, deadline=stand.clock.now_ms() / 1_000 + HOUR)
    stand.work("s0")
    stand.clock.advance(HOUR)
    while stand.queue.counts()["blocked"]:
        assert stand.claim() is None

    assert stand.queue.counts()["expired"] == 149
    assert stand.state() == "failed"


def test_no_step_starts_after_the_deadline_of_its_run(stand: Stand) -> None:
    stand.start({"a": "", "b": "a"}, deadline=stand.clock.now_ms() / 1_000 + HOUR)
    lease = stand.claim("a")
    assert lease is not None
    stand.clock.advance(HOUR)
    stand.queue.ack(lease)  # It had begun in time.

    assert stand.claim() is None
    assert stand.states() == {"a": "succeeded", "b": "expired"}
    assert stand.state() == "failed"


def test_what_expired_while_its_need_was_running_does_not_come_back_with_the_success_of_that(
    stand: Stand,
) -> None:
    stand.start({"a": "", "b": "a"}, deadline=stand.clock.now_ms() / 1_000 + 50)
    lease = stand.claim("a")
    assert lease is not None
    stand.clock.advance(55)
    assert stand.claim() is None  # Of somebody else, and it expires the step that waits.
    stand.queue.ack(lease)

    assert stand.claim() is None
    assert stand.states() == {"a": "succeeded", "b": "expired"}
    assert stand.state() == "failed"
    assert stand.runs.replay(1) == (stand.job("b"),)
    stand.work("b")


def test_a_replay_before_the_deadline_of_a_run_keeps_it(stand: Stand) -> None:
    stand.start({"a": "", "b": "a", "c": ""}, deadline=stand.clock.now_ms() / 1_000 + 50)
    stand.fail("a")
    stand.fail("c")
    operations.replay(stand.queue, [stand.job("a"), stand.job("c")])
    lease = stand.claim("a")
    assert lease is not None
    stand.clock.advance(55)
    stand.queue.ack(lease)

    assert stand.claim() is None
    assert stand.states() == {"a": "succeeded", "b": "cancelled", "c": "expired"}
    assert stand.state() == "failed"


# Compensating.


def test_what_succeeded_is_undone_in_reverse_order_one_after_the_other(stand: Stand) -> None:
    """Covers S2.11; F64."""
    stand.start(SAGA)
    stand.work("a", "b")
    stand.fail("c")

    assert stand.state() == "compensating"
    assert stand.claim("undo.a") is None
    stand.work("undo.b")
    assert stand.state() == "compensating"
    stand.work("undo.a")
    assert stand.state() == "compensated"
    assert stand.claim() is None


def test_the_order_of_compensation_is_that_of_the_successes_not_of_the_declaration(
    stand: Stand,
) -> None:
    stand.start({"a!": "", "b!": "", "c": "a b"})
    stand.work("b", "a")
    stand.fail("c")

    stand.work("undo.a", "undo.b")
    assert stand.state() == "compensated"


def test_nothing_is_undone_while_a_step_of_the_run_still_works(stand: Stand) -> None:
    stand.start({"a!": "", "b": "a", "slow!": "a"})
    stand.work("a")
    slow = stand.claim("slow")
    assert slow is not None
    stand.fail("b")

    assert stand.state() == "running"
    stand.queue.ack(slow)
    stand.work("undo.slow", "undo.a")
    assert stand.state() == "compensated"


def test_a_compensation_that_fails_stops_and_its_replay_goes_on(stand: Stand) -> None:
    stand.start(SAGA)
    stand.work("a", "b")
    stand.fail("c")
    broken = stand.fail("undo.b")

    assert stand.state() == "compensation_failed"
    assert stand.claim() is None
    assert stand.runs.replay(1) == (broken,)
    stand.work("undo.b", "undo.a")
    assert stand.state() == "compensated"


def test_what_was_undone_is_not_replayed(stand: Stand) -> None:
    stand.start(SAGA)
    stand.work("a", "b")
    dead = stand.fail("c")

    with pytest.raises(ValueError, match="run 1 is compensating: what was undone is started anew"):
        stand.runs.replay(1)
    ((_, why),) = operations.replay(stand.queue, [dead]).refused
    assert "its run" in why
    stand.work("undo.b", "undo.a")
    assert operations.replay(stand.queue, [dead]).moved == ()
    assert stand.state() == "compensated"


# Coming back.


def test_a_replay_of_the_failed_step_lets_the_run_go_on_and_what_it_cancelled_comes_back(
    stand: Stand,
) -> None:
    """Covers S2.9, S2.11, S0.77."""
    stand.start({"a": "", "b": "a", "c": "b", "d": "c"})
    stand.work("a")
    dead = stand.fail("b")
    assert stand.state() == "failed"

    assert operations.replay(stand.queue, [dead]).moved == (dead,)
    assert stand.state() == "running"
    stand.work("b", "c", "d")
    assert stand.state() == "succeeded"
    assert stand.sql("SELECT count(*) FROM attempt WHERE job_id = ?", dead) == [(2,)]
    assert stand.sql("SELECT deliveries FROM job WHERE kind = 'a'") == [(1,)]


def test_what_two_failures_cancelled_comes_back_when_both_have_succeeded(stand: Stand) -> None:
    stand.start({"a": "", "b": "", "c": "a b"})
    stand.fail("a")
    stand.fail("b")

    operations.replay(stand.queue, [stand.job("a")])
    stand.work("a")
    assert stand.states()["c"] == "cancelled"
    assert stand.state() == "failed"
    assert stand.runs.replay(1) == (stand.job("b"),)
    stand.work("b", "c")
    assert stand.state() == "succeeded"


def test_a_step_that_waits_for_others_is_not_replayed_before_them(stand: Stand) -> None:
    stand.start({"a": "", "b": "a"})
    stand.fail("a")

    done = operations.replay(stand.queue, [stand.job("b")])
    assert done.moved == ()
    assert "waits for other steps of its run" in done.refused[0][1]
    assert operations.replay(stand.queue, state="cancelled").moved == ()
    assert operations.replay(stand.queue).moved == (stand.job("a"),)


def test_a_step_that_a_person_called_off_comes_back_by_a_replay_of_its_own_alone(
    stand: Stand,
) -> None:
    """Covers S0.77."""
    stand.start({"a": "", "b": "a"})
    stand.queue.cancel(stand.job("b"))
    stand.work("a")

    assert stand.states()["b"] == "cancelled"
    assert stand.state() == "failed"
    operations.replay(stand.queue, [stand.job("b")])
    stand.work("b")
    assert stand.state() == "succeeded"


def test_an_expired_run_that_is_replayed_has_no_deadline_any_more(stand: Stand) -> None:
    stand.start({"a": "", "b": "a", "c": "b"}, deadline=stand.clock.now_ms() / 1_000 + HOUR)
    stand.clock.advance(HOUR)
    assert stand.claim() is None
    assert stand.state() == "failed"

    assert stand.runs.replay(1) == (stand.job("a"),)
    stand.work("a", "b", "c")
    assert stand.state() == "succeeded"


def test_a_held_step_is_let_go_after_its_needs_and_not_before(stand: Stand) -> None:
    stand.start({"a": "", "b": "a"})
    b = stand.job("b")
    assert operations.hold(stand.queue, b)

    assert not operations.unhold(stand.queue, b)
    stand.work("a")
    assert stand.states()["b"] == "held"
    assert operations.unhold(stand.queue, b)
    stand.work("b")
    assert stand.state() == "succeeded"


# Calling off.


def test_a_cancelled_run_starts_nothing_more_and_its_running_step_is_refused(stand: Stand) -> None:
    """Covers S0.81."""
    stand.start({"a": "", "b": "a", "c": "", "d": "c"})
    lease = stand.claim("a")
    assert lease is not None

    assert stand.runs.cancel(1)
    assert set(stand.states().values()) == {"cancelled"}
    assert stand.state() == "cancelled"
    with pytest.raises(LeaseLost):
        stand.queue.ack(lease)
    assert stand.claim() is None
    assert stand.runs.cancel(1)


def test_a_cancelled_run_is_compensated_unless_told_not_to(stand: Stand) -> None:
    for run_id in (1, 2):
        stand.start(SAGA)
        stand.work("a")
        stand.runs.cancel(run_id, compensate=run_id == 1)

    assert stand.state(1) == "compensating"
    assert stand.state(2) == "cancelled"
    with pytest.raises(ValueError, match="run 1 is being compensated"):
        stand.runs.cancel(1)
    stand.work("undo.a")
    assert stand.state(1) == "compensated"


def test_a_cancelled_run_goes_on_when_it_is_replayed(stand: Stand) -> None:
    stand.start({"a": "", "b": "a", "c": "b"})
    stand.work("a")
    stand.runs.cancel(1)

    assert stand.runs.replay(1) == (stand.job("b"),)
    stand.work("b", "c")
    assert stand.state() == "succeeded"


def test_a_run_called_off_as_it_was_is_compensated_when_it_fails_after_a_replay(
    stand: Stand,
) -> None:
    stand.start(SAGA)
    stand.work("a")
    stand.runs.cancel(1, compensate=False)
    stand.runs.replay(1)
    stand.fail("b")
    stand.work("undo.a")

    assert stand.state() == "compensated"


def test_a_cancelled_run_that_is_replayed_and_fails_is_failed(stand: Stand) -> None:
    stand.start({"a": ""})
    stand.runs.cancel(1)
    stand.runs.replay(1)
    stand.fail("a")

    assert stand.state() == "failed"


def test_a_replay_of_the_run_asks_also_for_what_a_person_called_off(stand: Stand) -> None:
    stand.start({"a": "", "b": "a"})
    stand.queue.cancel(stand.job("b"))
    stand.fail("a")

    assert stand.runs.replay(1) == (stand.job("a"),)
    stand.work("a", "b")
    assert stand.state() == "succeeded"


def test_there_is_nothing_to_replay_or_to_cancel_in_a_run_that_succeeded(stand: Stand) -> None:
    stand.start({"a": ""})
    stand.work("a")

    assert not stand.runs.cancel(1)
    with pytest.raises(ValueError, match="run 1 is succeeded: no step of it has failed"):
        stand.runs.replay(1)
    with pytest.raises(JobNotFound, match="there is no run 2"):
        stand.runs.cancel(2)
    with pytest.raises(ValueError, match="run 0 must be an integer"):
        stand.runs.replay(0)


# Steps as functions.


def test_a_step_reads_what_its_needs_returned_and_what_the_run_was_started_with(
    stand: Stand,
) -> None:
    """Covers S2.8, S2.10; F67."""
    flow, seen = Workflow("flow"), list[object]()

    @flow.step()
    def fetch(step: Step) -> object:
        return {"page": step.payload["url"]}

    @flow.step()
    def parse(step: Step) -> object:
        seen.append(step.results)
        return [1, 2]

    @flow.step()
    def store(step: Step) -> None:
        seen.extend([step.results, step.result("fetch")])
        with pytest.raises(LookupError, match="step 'store' of run 1 has not succeeded"):
            step.result("store")

    stand.runs.start(flow, {"url": "here"})
    for name in ("fetch", "parse", "store"):
        stand.run_step(flow.handlers, f"flow.{name}")

    assert seen == [{"fetch": {"page": "here"}}, {"parse": [1, 2]}, {"page": "here"}]
    assert stand.state() == "succeeded"


def test_a_result_that_is_too_large_for_a_row_is_read_from_its_file(stand: Stand) -> None:
    """Covers S0.80."""
    flow, large, seen = Workflow("flow"), "x" * (3 << 20), list[object]()

    @flow.step()
    def fetch(step: Step) -> None:
        with step.completing(large):
            pass

    flow.step(name="parse")(lambda step: seen.append(step.results["fetch"]))
    stand.runs.start(flow)
    stand.run_step(flow.handlers, "flow.fetch")
    stand.run_step(flow.handlers, "flow.parse")

    assert seen == [large]


def test_a_compensation_reads_what_it_undoes(stand: Stand) -> None:
    flow, undone = Workflow("flow"), list[object]()

    def refund(step: Step) -> None:
        undone.append((step.name, step.undone, step.results, step.payload))

    @flow.step()
    def order(step: Step) -> object:
        return "the order"

    @flow.step(compensate=refund)
    def charge(step: Step) -> object:
        return "the receipt"

    flow.add("ship", kind="ship")
    stand.runs.start(flow, 17)
    stand.run_step(flow.handlers, "flow.order")
    stand.run_step(flow.handlers, "flow.charge")
    stand.fail("ship")
    stand.run_step(flow.handlers, "flow.charge.undo")

    assert undone == [("charge", "the receipt", {"order": "the order"}, 17)]
    assert stand.state() == "compensated"


def test_a_job_of_a_steps_kind_that_belongs_to_no_run_is_a_dead_letter(stand: Stand) -> None:
    flow = Workflow("flow")
    flow.step(name="a")(lambda step: None)
    stand.queue.enqueue("flow.a", {})

    with pytest.raises(Permanent, match="is no step of a run: start one"):
        stand.run_step(flow.handlers, "flow.a")


def test_the_sql_of_the_last_step_and_the_success_of_its_run_are_one_transaction(
    stand: Stand,
) -> None:
    """Covers S2.29, S2.12."""
    flow = Workflow("flow")
    stand.sql("CREATE TABLE mine (status TEXT)")

    @flow.step()
    def last(step: Step) -> None:
        with step.completing() as tx:
            tx.execute("INSERT INTO mine VALUES ('PROCESSED')")
            if step.context.job.attempt == 1:
                raise RuntimeError("on purpose")

    stand.runs.start(flow)
    with pytest.raises(RuntimeError):
        stand.run_step(flow.handlers, "flow.last")
    assert stand.sql("SELECT * FROM mine") == []
    assert stand.state() == "running"
    stand.clock.advance(61)
    stand.run_step(flow.handlers, "flow.last")
    assert stand.sql("SELECT * FROM mine") == [("PROCESSED",)]
    assert stand.state() == "succeeded"


# Fan-out.


def spread_flow() -> Workflow:
    flow = Workflow("flow")

    @flow.step()
    def find(step: Step) -> object:
        return step.payload

    @flow.step(each=find)
    def resize(step: Step) -> object:
        return [step.item]

    @flow.step(needs=[resize])
    def album(step: Step) -> object:
        return step.results

    return flow


def test_a_fan_out_is_one_job_for_each_item_and_the_join_waits_for_all(stand: Stand) -> None:
    """Covers S2.10, S2.33."""
    flow = spread_flow()
    stand.runs.start(flow, ["x", {"y": 1}, None])
    stand.run_step(flow.handlers, "flow.find")

    assert stand.states() == {
        **{"find": "succeeded", "album": "blocked"},
        **{f"resize {item}": "available" for item in (1, 2, 3)},
    }
    stand.run_step(flow.handlers, "flow.resize")
    stand.run_step(flow.handlers, "flow.resize")
    assert stand.claim("flow.album") is None
    stand.run_step(flow.handlers, "flow.resize")
    assert stand.run_step(flow.handlers, "flow.album") == {"resize": [["x"], [{"y": 1}], [None]]}
    assert stand.state() == "succeeded"


def test_a_join_may_need_the_list_and_what_was_made_of_it(stand: Stand) -> None:
    flow, seen = Workflow("flow"), list[object]()
    flow.step(name="find")(lambda step: ["x", "y"])
    flow.step(name="resize", each="find")(lambda step: step.item * 2)
    flow.step(name="album", needs=["find", "resize"])(lambda step: seen.append(step.results))
    stand.runs.start(flow)
    for kind in ("find", "resize", "resize", "album"):
        stand.run_step(flow.handlers, f"flow.{kind}")

    assert seen == [{"find": ["x", "y"], "resize": ["xx", "yy"]}]
    assert stand.state() == "succeeded"


def test_a_fan_out_over_nothing_lets_the_join_go_on(stand: Stand) -> None:
    flow = spread_flow()
    stand.runs.start(flow, [])
    stand.run_step(flow.handlers, "flow.find")

    assert stand.run_step(flow.handlers, "flow.album") == {"resize": []}
    assert stand.state() == "succeeded"


def test_a_fan_out_that_fails_puts_nothing_in(stand: Stand) -> None:
    flow = spread_flow()
    stand.runs.start(flow, {"no": "list"})
    with pytest.raises(Permanent, match="returned dict: step 'resize' needs a list"):
        stand.run_step(flow.handlers, "flow.find")

    assert stand.states() == {"find": "leased", "album": "blocked"}
    assert stand.sql("SELECT steps FROM workflow_run") == [(2,)]


def test_a_result_that_json_does_not_hold_is_never_taken_for_what_was_returned(
    stand: Stand,
) -> None:
    flow, seen = Workflow("flow"), list[object]()
    flow.step(name="charge", compensate=lambda step: step.undone)(lambda step: {1, 2})
    flow.step(name="ship")(lambda step: seen.append(step.results))
    stand.runs.start(flow)
    stand.run_step(flow.handlers, "flow.charge")

    with pytest.raises(Permanent, match=r"what job 1 returned was not kept \(result {1, 2} is not"):
        stand.run_step(flow.handlers, "flow.ship")
    stand.sql("UPDATE job SET state = 'cancelled', owner = NULL, lease_deadline_ns = NULL,"
              " finished_ms = 1 WHERE kind = 'flow.ship'")  # fmt: skip
    with pytest.raises(Permanent, match="what job 1 returned was not kept"):
        stand.run_step(flow.handlers, "flow.charge.undo")
    assert seen == []


def test_the_result_of_a_fan_out_is_the_whole_list_or_none_yet(stand: Stand) -> None:
    flow, seen = Workflow("flow"), list[object]()
    flow.step(name="find")(lambda step: step.payload)
    flow.step(name="resize", each="find")(lambda step: step.item)
    flow.step(name="look", needs=["find"])(lambda step: seen.append(step.result("resize")))
    stand.runs.start(flow, [])
    stand.runs.start(flow, [1, 2])
    stand.run_step(flow.handlers, "flow.find")
    stand.run_step(flow.handlers, "flow.look")
    assert seen == [[]]
    stand.run_step(flow.handlers, "flow.find")
    stand.run_step(flow.handlers, "flow.resize")
    with pytest.raises(LookupError, match="step 'resize' of run 2 has not succeeded"):
        stand.run_step(flow.handlers, "flow.look")


def test_an_item_that_no_job_can_hold_fails_its_step_for_good(stand: Stand) -> None:
    flow = spread_flow()
    flow.step(name="odd", needs=[])(lambda step: ["x", float("nan")])
    flow.step(name="each", each="odd")(lambda step: step.item)
    stand.runs.start(flow)
    with pytest.raises(Permanent, match="item 2 of what step 'odd' returned: payload"):
        stand.run_step(flow.handlers, "flow.odd")

    assert "each 1" not in stand.states()


def test_a_fan_out_that_nobody_would_put_in_is_refused(stand: Stand) -> None:
    flow = Workflow("flow")
    flow.add("find", kind="find")
    flow.add("resize", each="find")

    with pytest.raises(ValueError, match="spreads 'find', whose handler would not put its jobs in"):
        stand.runs.start(flow)


def test_a_fan_out_that_is_gone_from_the_code_holds_the_step_before_it(stand: Stand) -> None:
    """Goal: the join must not go on with an empty list because somebody deployed."""
    stand.runs.start(spread_flow(), [1])
    newer = Workflow("flow")
    newer.step(name="find")(lambda step: step.payload)

    with pytest.raises(Hold, match="wait for 'resize', one job for each item of 'find'"):
        stand.run_step(newer.handlers, "flow.find")
    assert stand.states()["album"] == "blocked"


def test_a_fan_out_is_bounded_by_the_steps_of_its_run(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow_step, "STEPS_MAX", 10)
    flow = spread_flow()
    stand.runs.start(flow, list(range(9)))
    with pytest.raises(Permanent, match="returned 9 items: with them run 1 has more than 10 steps"):
        stand.run_step(flow.handlers, "flow.find")


def test_a_step_may_be_a_coroutine_and_still_spread(stand: Stand) -> None:
    flow = Workflow("flow")

    @flow.step()
    async def find(step: Step) -> object:
        await asyncio.sleep(0)
        return ["x", step.payload]

    flow.step(name="resize", each="find")(lambda step: step.item)
    stand.runs.start(flow, "y")
    lease = stand.claim("flow.find")
    assert lease is not None
    tenure = Tenure(lease, now_ns=stand.clock.monotonic_ns())
    coroutine: Any = flow.handlers["flow.find"].original(Context(stand.queue, tenure, stand.clock))
    asyncio.run(coroutine)

    assert stand.states() == {
        **{"find": "succeeded", "resize 1": "available", "resize 2": "available"}
    }


def test_one_job_of_a_fan_out_that_fails_cancels_the_join_and_not_the_others(stand: Stand) -> None:
    """Covers S0.5."""
    flow = spread_flow()
    stand.runs.start(flow, [1, 2])
    stand.run_step(flow.handlers, "flow.find")
    stand.fail("flow.resize")

    assert stand.states()["album"] == "cancelled"
    stand.run_step(flow.handlers, "flow.resize")
    assert stand.state() == "failed"
    stand.runs.replay(1)
    stand.run_step(flow.handlers, "flow.resize")
    assert stand.run_step(flow.handlers, "flow.album") == {"resize": [[1], [2]]}
    assert stand.state() == "succeeded"


def test_a_busy_file_does_not_fail_a_fan_out_whose_work_is_done(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, calls = spread_flow(), list[int]()
    spread: Callable[..., None] = workflow_step._spread

    def busy_once(*args: object) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise DatabaseBusy("somebody writes")
        spread(*args)

    monkeypatch.setattr(workflow_step, "_spread", busy_once)
    monkeypatch.setattr(workflow_step, "SystemClock", ManualClock)
    stand.runs.start(flow, [1])
    stand.run_step(flow.handlers, "flow.find")

    assert len(calls) == 2
    assert stand.states()["resize 1"] == "available"


def test_the_jobs_of_a_fan_out_keep_the_deadline_of_their_run(stand: Stand) -> None:
    flow = spread_flow()
    stand.runs.start(flow, [1], deadline=stand.clock.now_ms() / 1_000 + HOUR)
    stand.run_step(flow.handlers, "flow.find")
    stand.clock.advance(HOUR)

    assert stand.claim() is None
    assert stand.states()["resize 1"] == "expired"
    assert stand.state() == "failed"


# Pruning.


def test_a_run_is_pruned_as_a_whole_and_by_its_own_end(stand: Stand) -> None:
    """Goal: no step goes before the run that needs its result.  Covers S0.6."""
    day = 86_400.0
    stand.start({"a": "", "b": "a"})
    stand.work("a")
    alone = stand.queue.enqueue("k", 1)
    stand.work("k")
    stand.clock.advance(30 * day)

    assert prune(stand.queue, {"succeeded": 7 * day}).deleted == {"succeeded": 1, "runs": 0}
    assert stand.queue.get(alone) is None
    stand.work("b")
    stand.clock.advance(8 * day)
    counted = prune(stand.queue, {"succeeded": 7 * day}, dry_run=True).deleted
    assert counted == {"succeeded": 2, "runs": 1}
    assert prune(stand.queue, {"succeeded": 7 * day}).deleted == counted
    left = """SELECT 1 FROM job UNION ALL SELECT 1 FROM attempt UNION ALL SELECT 1 FROM workflow_run
        UNION ALL SELECT 1 FROM workflow_step UNION ALL SELECT 1 FROM workflow_need"""
    assert stand.sql(left) == []


def test_steps_that_are_kept_do_not_stop_the_pruning_of_what_is_younger(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PRUNE_BATCH", 1)
    stand.start({"a": "", "b": "a"})
    stand.work("a")
    stand.queue.enqueue("k", 1)
    stand.work("k")
    stand.clock.advance(HOUR)

    assert prune(stand.queue, {"succeeded": 1}).deleted["succeeded"] == 1


def test_runs_are_pruned_a_bounded_number_of_jobs_at_a_time(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow_retention, "BATCH_JOBS", 3)
    for _ in range(3):
        stand.start({"a": "", "b": ""})
        stand.work("a", "b")
    stand.clock.advance(HOUR)
    steps = list[int]()
    before = stand.queue.host.clock.now_ms()
    workflow_retention.prune_runs(
        stand.queue, {"succeeded": before}, dry_run=False, progress=steps.append
    )

    assert steps == [2, 4, 6, 6]


def test_a_failed_run_is_kept_as_long_as_the_dead_letters_are(stand: Stand) -> None:
    stand.start({"a": "", "b": "a"})
    stand.fail("a")
    stand.clock.advance(HOUR)

    assert prune(stand.queue, {"cancelled": 1, "succeeded": 1}).deleted["runs"] == 0
    assert stand.states() == {"a": "dead", "b": "cancelled"}
    assert prune(stand.queue, {"dead": 1}).deleted == {"dead": 2, "runs": 1}


# Leaving, and coming in.


@pytest.fixture
def other(place: Path) -> Iterator[Stand]:
    """Another file, which is not empty: its ids are not those of the first."""
    other = Stand(place / "other.db")
    other.queue.enqueue("k", 1)
    other.work("k")
    other.start({"x": ""}, key="taken")
    yield other
    other.queue.close()


def move(source: Stand, target: Stand) -> transfer.Imported:
    exported = io.StringIO()
    transfer.export_jobs(source.queue, exported)
    return transfer.import_jobs(target.queue, exported.getvalue().splitlines(keepends=True))


def test_a_run_goes_on_in_another_file_where_it_stood(stand: Stand, other: Stand) -> None:
    """Covers S0.82, S2.16."""
    stand.start(DIAMOND, key="order-1")
    stand.work("a", "b")
    assert stand.claim("c") is not None  # Running at the export: it runs again.

    assert move(stand, other).refused == ()
    assert move(stand, other).added == 0
    assert other.states(2) == {
        **{"a": "succeeded", "b": "succeeded", "c": "available", "d": "blocked"}
    }
    assert workflow_view.faults(other.queue) == []
    other.work("c", "d")
    assert other.state(2) == "succeeded"
    assert other.start(DIAMOND, key="order-1") == 2


def test_a_run_that_has_ended_comes_in_as_it_was_and_can_be_replayed(
    stand: Stand, other: Stand
) -> None:
    stand.start(SAGA)
    stand.work("a", "b")
    stand.fail("c")
    stand.work("undo.b", "undo.a")
    stand.start({"a": "", "b": "a"})
    stand.fail("a")
    stand.start({**SAGA, "slow": ""})
    stand.work("a", "b")
    stand.fail("c")
    stand.clock.advance(HOUR)

    assert move(stand, other).refused == ()
    assert [other.state(run_id) for run_id in (2, 3, 4)] == ["compensated", "failed", "running"]
    assert workflow_view.faults(other.queue) == []
    assert other.sql("SELECT finished_ms FROM workflow_run WHERE id = 2") == stand.sql(
        "SELECT finished_ms FROM workflow_run WHERE id = 1"
    )
    assert len(other.runs.replay(3)) == 1
    other.work("a", "b", "slow", "undo.b", "undo.a")
    assert [other.state(run_id) for run_id in (3, 4)] == ["succeeded", "compensated"]


def test_a_restored_run_goes_on_and_no_id_of_a_lost_one_is_given_out_again(
    stand: Stand, place: Path
) -> None:
    """Covers S2.16, S0.75."""
    stand.start(DIAMOND, key="order-1")
    stand.work("a")
    assert stand.claim("b") is not None
    copy = backup.backup(stand.queue, place).path
    lost = stand.start(DIAMOND, key="order-2")
    backup.restore(copy, place / "restored.db")

    restored = Stand(place / "restored.db")
    try:
        assert workflow_view.faults(restored.queue) == []
        restored.work("b", "c", "d")
        assert restored.state() == "succeeded"
        assert restored.start(DIAMOND, key="order-2") > lost
    finally:
        restored.queue.close()


def test_no_step_is_claimed_between_its_own_line_and_that_of_its_run(
    stand: Stand, other: Stand
) -> None:
    """Somebody works on the file that the run comes into, and a batch has been committed."""
    stand.start({f"s{number}": "" for number in range(transfer.BATCH_JOBS)})
    exported = io.StringIO()
    transfer.export_jobs(stand.queue, exported)
    claimed: list[Lease | None] = []

    def lines() -> Iterator[str]:
        for line in exported.getvalue().splitlines(keepends=True):
            if workflow_transfer.is_run(line):
                assert other.queue.counts()["blocked"] == transfer.BATCH_JOBS
                claimed.append(other.claim("s0"))
            yield line

    transfer.import_jobs(other.queue, lines())
    assert claimed == [None]
    other.work("s0")
    assert workflow_view.faults(other.queue) == []


def test_a_fan_out_that_spreads_during_an_export_is_spread_in_it_once(
    stand: Stand, other: Stand
) -> None:
    flow = spread_flow()
    stand.runs.start(flow, [1, 2])
    stand.queue.enqueue_many([("k", number) for number in range(transfer.BATCH_JOBS)])

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            if stand.states()["find"] == "available" and '"attempts"' in text:  # A page was read.
                stand.run_step(flow.handlers, "flow.find")
            return super().write(text)

    exported = Slow()
    transfer.export_jobs(stand.queue, exported)
    transfer.import_jobs(other.queue, exported.getvalue().splitlines(keepends=True))
    assert workflow_view.faults(other.queue) == []
    for kind in ("resize", "resize", "album"):
        other.run_step(flow.handlers, f"flow.{kind}")
    assert other.state(2) == "succeeded"


def test_a_run_of_which_a_step_stayed_behind_comes_in_called_off(
    stand: Stand, other: Stand
) -> None:
    stand.start({"a!": "", "b": "a", "c": "b"})
    stand.work("a", "b")
    exported = io.StringIO()
    transfer.export_jobs(stand.queue, exported)
    head, a, _, c, run, _ = exported.getvalue().splitlines(keepends=True)
    lines = [head, a, c, run, '{"killproof_export_end":2}']

    ((_, why),) = transfer.import_jobs(other.queue, lines).refused
    assert why == "run 1 came in without 1 of its steps: what needs them is called off"
    assert other.states(2) == {"a": "succeeded", "c": "cancelled"}
    assert other.state(2) == "cancelled"
    with pytest.raises(ValueError, match="no step of it has failed"):
        other.runs.replay(2)
    assert workflow_view.faults(other.queue) == []


def test_a_run_whose_key_is_taken_comes_in_without_it(stand: Stand, other: Stand) -> None:
    stand.start({"a": "", "b": "a"}, key="taken")

    ((_, why),) = move(stand, other).refused
    assert why == "run 1 came in without its key 'taken', which run 1 has"
    other.work("a", "b")
    assert other.state(2) == "succeeded"


def test_a_line_that_is_no_run_is_refused_with_its_number(stand: Stand, other: Stand) -> None:
    stand.start({"a": ""})
    exported = io.StringIO()
    transfer.export_jobs(stand.queue, exported)
    lines = exported.getvalue().splitlines(keepends=True)
    lines[2] = '{"killproof_run": {"steps": 7}}\n'

    with pytest.raises(ValueError, match="line 3 is no exported run"):
        transfer.import_jobs(other.queue, lines)


# What it costs, and who guards it.


@contextmanager
def counted(stand: Stand) -> Iterator[list[int]]:
    """Count steps of SQLite's virtual machine, which do not depend on the computer."""
    with stand.queue.transaction() as tx:
        connection = tx._connection
    steps = [0]

    def step() -> int:
        steps[0] += 1
        return 0

    connection.set_progress_handler(step, 1)
    yield steps
    connection.set_progress_handler(None, 1)


def test_a_job_outside_of_any_run_pays_the_when_of_the_triggers_alone(stand: Stand) -> None:
    def cost() -> int:
        stand.queue.enqueue("k", 1)
        stand.work("k")
        stand.queue.enqueue("k", 1)
        with counted(stand) as steps:
            stand.work("k")
        return steps[0]

    before = cost()
    stand.start({"a": ""})
    stand.work("a")
    after = cost()

    print(f"claim and ack: {before} VM steps without workflows in the file, {after} with")
    assert after < 1.3 * before


def test_a_prune_passes_over_the_steps_of_a_kept_run_once_and_not_in_every_batch(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PRUNE_BATCH", 5)

    def cost() -> int:
        stand.clock.advance(1)
        for job_id in stand.queue.enqueue_many([("k", None)] * 50):
            stand.queue.cancel(job_id)
        stand.clock.advance(HOUR)
        with counted(stand) as steps:
            assert prune(stand.queue, {"cancelled": 1}).deleted["cancelled"] == 50
        return steps[0]

    stand.start({"a": "", "b": "a"})
    stand.fail("a")
    before = cost()
    stand.start({"a": ""} | {f"s{number}": "a" for number in range(200)})
    stand.fail("a")
    after = cost()

    print(f"pruning 50 jobs: {before} VM steps, {after} where 200 steps of a failed run are kept")
    assert after < 2 * before


def test_the_end_of_a_step_costs_the_same_in_a_long_run_as_in_a_short_one(stand: Stand) -> None:
    costs = []
    for length in (4, 400):
        flow = Workflow("flow")
        for number in range(length):
            flow.add(f"s{number}", kind=f"s{length}")
        stand.runs.start(flow)
        for _ in range(2):
            stand.work(f"s{length}")
        lease = stand.claim(f"s{length}")
        assert lease is not None
        with counted(stand) as steps:
            stand.queue.ack(lease)
        costs.append(steps[0])

    print(f"the ack of a step: {costs[0]} VM steps in a run of 4, {costs[1]} in one of 400")
    assert costs[1] <= costs[0] + 10


def test_before_the_first_run_of_a_file_there_are_no_triggers(stand: Stand) -> None:
    stand.queue.enqueue("k", 1)

    assert stand.sql("SELECT * FROM sqlite_schema WHERE type = 'trigger'") == []


def test_no_statement_of_a_trigger_scans_a_table(stand: Stand) -> None:
    """The statements are explained one by one, NEW and OLD as parameters. Covers S2.25."""
    stand.start({"a": ""})
    explained = 0
    with closing(sqlite3.connect(stand.queue.path)) as connection:
        for trigger in workflow_tables.CREATE:
            found = re.search(r"WHEN(.*?)\n\s*BEGIN\n(.*)END$", trigger, re.S)
            if "CREATE TRIGGER" not in trigger or found is None:
                continue
            for statement in (f"SELECT {found[1]}", *found[2].split(";")):
                bare = re.sub(r"\b(NEW|OLD)\.(\w+)", r":\1_\2", statement).strip()
                if not bare or "RAISE" in bare:
                    continue
                values = dict.fromkeys(re.findall(r":(\w+)", bare), 1)
                plan = connection.execute(f"EXPLAIN QUERY PLAN {bare}", values).fetchall()
                explained += 1
                scans = [
                    row[3] for row in plan if re.match(r"SCAN (job|workflow|need|step)", row[3])
                ]
                assert scans == [], bare
    assert explained >= 15


def statements() -> Iterator[tuple[str, str]]:
    """Every statement constant of the modules of workflows."""
    for module in (
        *(workflow, workflow_memo, workflow_retention, workflow_step, workflow_transfer),
        workflow_view,
    ):
        owners = [module, Step, Workflows, workflow_memo.Memo]
        for name, text in {n: t for owner in owners for n, t in vars(owner).items()}.items():
            if isinstance(text, str) and re.match(r"\s*(SELECT|UPDATE|INSERT|DELETE)\b", text):
                yield name, text


def test_no_statement_on_runs_scans_a_table(stand: Stand) -> None:
    """Counting all runs reads an index of them; a list walks back from the latest to its limit."""
    stand.start({"a": ""})
    step = stand.claim("a")
    assert step is not None
    context = Context(stand.queue, Tenure(step, now_ns=0), stand.clock)
    workflow_memo.memo(context)("x", len, [])
    transfer.import_jobs(stand.queue, [
        '{"killproof_export": 1, "source": "s"}\n', '{"killproof_export_end": 0}\n'
    ])  # fmt: skip
    seen = 0
    with closing(sqlite3.connect(stand.queue.path)) as connection:
        for name, text in statements():
            values = dict.fromkeys(re.findall(r":(\w+)", text), 1)
            plan = connection.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall()
            scans = [row[3] for row in plan if re.match(r"SCAN (job|workflow|step)", row[3])]
            seen += 1
            is_list = "ORDER BY id DESC LIMIT" in text
            assert is_list or [s for s in scans if "COVERING INDEX" not in s] == [], (name, text)
    assert seen >= 40


GUARDS: list[tuple[str, Callable[[Stand], object], str]] = [
    (
        "workflow_step_guard",
        lambda stand: operations.replay(stand.queue, [stand.job("b")]).moved == (),
        "a step starts only after its needs",
    ),
    (
        "workflow_step_kept",
        lambda stand: stand.sql("DELETE FROM job WHERE kind = 'b' RETURNING id") == [],
        "a step stays with its run",
    ),
    (
        "workflow_step_back",
        lambda stand: bool(stand.runs.replay(1)) and stand.state() == "running",
        "a replay opens the run",
    ),
]


@pytest.mark.parametrize(("trigger", "holds", "what"), GUARDS, ids=[guard[0] for guard in GUARDS])
def test_without_its_trigger_each_rule_is_broken(
    stand: Stand, trigger: str, holds: Callable[[Stand], object], what: str
) -> None:
    stand.start({"a": "", "b": "a"})
    stand.fail("a")
    backup = stand.sql("SELECT sql FROM sqlite_schema WHERE name = ?", trigger)
    stand.sql(f"DROP TRIGGER {trigger}")
    assert not holds(stand), f"{what}, also without {trigger}: it guards nothing"

    stand.sql(str(backup[0][0]))
    stand.sql("UPDATE job SET state = 'cancelled', finished_ms = 1 WHERE kind = 'b'")
    if trigger != "workflow_step_back":
        assert holds(stand), what
