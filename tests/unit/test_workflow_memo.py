"""Memoised steps: what is stored is read, what is not is run, and changed code is noticed."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from killproof import FileRefused, Host, LeaseLost, ManualClock, PayloadInvalid, Queue
from killproof.core.errors import DatabaseBusy
from killproof.handlers import Hold
from killproof.heartbeat import Tenure
from killproof.worker import Context
from killproof.workflow import Memo, memo
from killproof.workflow_memo import WorkflowChanged, forget
from killproof.workflow_view import Progress, progress


class Stand:
    """A job that is delivered again and again, as after kills."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.queue = Queue(path, durability="process", host=Host(clock=self.clock))
        self.job_id = self.queue.enqueue("k", None, max_attempts=99)
        self.ran: list[str] = []
        self.context = self.deliver()

    def deliver(self) -> Context:
        self.clock.advance(10_000)  # The lease before is over.
        self.queue.reap()
        self.clock.advance(10_000)
        lease = self.queue.claim()
        assert lease is not None
        self.tenure = Tenure(lease, now_ns=self.clock.monotonic_ns())
        self.context = Context(self.queue, self.tenure, self.clock)
        return self.context

    def again(self) -> Memo:
        return memo(self.deliver())

    def note(self, name: str, *args: Any) -> Any:
        self.ran.append(name)
        return {"of": name, "args": list(args)}

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.queue.path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture
def stand(place: Path) -> Iterator[Stand]:
    stand = Stand(place / "queue.db")
    yield stand
    stand.queue.close()


def test_a_step_that_is_stored_is_read_and_not_run(stand: Stand) -> None:
    """Covers S2.8, S2.9; F67."""
    step = memo(stand.context)
    first = step("fetch", stand.note, "fetch", 1)
    assert step.done == ("fetch",)

    step = stand.again()
    assert step("fetch", stand.note, "fetch", 1) == first
    step("parse", stand.note, "parse")
    stand.again()("fetch", stand.note, "fetch", 1)
    assert stand.ran == ["fetch", "parse"]


def test_the_first_call_returns_what_every_later_one_returns(stand: Stand) -> None:
    assert memo(stand.context)("pair", lambda: (1, 2)) == [1, 2]  # type: ignore[comparison-overlap]
    assert stand.again()("pair", lambda: (1, 2)) == [1, 2]  # type: ignore[comparison-overlap]


def test_a_step_that_failed_stores_nothing_and_runs_again(stand: Stand) -> None:
    def fail() -> None:
        stand.ran.append("fail")
        raise ConnectionError("down")

    step = memo(stand.context)
    step("before", stand.note, "before")
    with pytest.raises(ConnectionError):
        step("fail", fail)
    step = stand.again()
    step("before", stand.note, "before")
    assert step("fail", stand.note, "fail") == {"of": "fail", "args": []}
    assert stand.ran == ["before", "fail", "fail"]


def test_a_worker_that_was_believed_dead_stores_nothing(stand: Stand) -> None:
    """Covers S2.3.  The fence decides, as for every other outcome."""
    old = memo(stand.context)
    new = stand.again()
    with pytest.raises(LeaseLost):
        old("charge", stand.note, "old")

    assert new("charge", stand.note, "new") == {"of": "new", "args": []}
    assert stand.sql("SELECT count(*), max(fence) FROM workflow_memo") == [(1, 2)]


def test_a_result_that_could_not_be_read_again_is_refused(stand: Stand) -> None:
    with pytest.raises(PayloadInvalid, match="the result of step 'set' can not be stored"):
        memo(stand.context)("set", lambda: {1, 2})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda step: step("renamed", len, []), "step 1 of job 1 is 'renamed' now and was 'a'"),
        (lambda step: step("b", len, [1, 2]), "step 1 of job 1 is 'b' now and was 'a'"),
        (lambda step: step("a", len, [9]), "step 'a' of job 1 is asked for with other arguments"),
    ],
    ids=["renamed", "another order", "other arguments"],
)
def test_changed_code_is_noticed_and_the_job_held(
    stand: Stand, call: Callable[[Memo], object], says: str
) -> None:
    step = memo(stand.context)
    step("a", len, [])
    step("b", len, [1, 2])

    with pytest.raises(WorkflowChanged, match=says) as told:
        call(stand.again())
    assert isinstance(told.value, Hold)
    assert "killproof workflow forget 1" in str(told.value)


def test_arguments_that_json_can_not_hold_are_not_compared(stand: Stand) -> None:
    memo(stand.context)("a", id, object())

    assert isinstance(stand.again()("a", id, object()), int)


def test_a_name_is_given_to_one_step_only(stand: Stand) -> None:
    step = memo(stand.context)
    step("a", len, [])

    with pytest.raises(ValueError, match="step 'a' was asked for before"):
        step("a", len, [])


def test_what_is_forgotten_runs_anew(stand: Stand) -> None:
    memo(stand.context)("a", stand.note, "a")
    with pytest.raises(ValueError, match="job 1 is running"):
        forget(stand.queue, 1)
    stand.queue.release(stand.context.lease)

    assert forget(stand.queue, 1) == 1
    stand.again()("renamed", stand.note, "renamed")
    assert stand.ran == ["a", "renamed"]


def test_an_effect_inside_of_the_file_is_one_transaction_with_its_record(stand: Stand) -> None:
    """Covers S2.2."""
    stand.sql("CREATE TABLE booking (amount INTEGER)")

    def book(tx: Any, amount: int) -> int:
        tx.execute("INSERT INTO booking VALUES (?)", (amount,))
        if len(stand.ran) == 0:
            stand.ran.append("crash")
            raise RuntimeError("between effect and record")
        return amount

    with pytest.raises(RuntimeError):
        memo(stand.context).inside("book", book, 7)
    assert stand.sql("SELECT * FROM booking") == []
    assert stand.again().inside("book", book, 7) == 7
    assert stand.again().inside("book", book, 7) == 7
    assert stand.sql("SELECT * FROM booking") == [(7,)]


def test_a_busy_file_does_not_repeat_a_step_that_has_happened(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = memo(stand.context)
    transaction, calls = stand.queue.transaction, list[int]()

    def busy_once() -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise DatabaseBusy("somebody writes")
        return transaction()

    monkeypatch.setattr(stand.queue, "transaction", busy_once)
    step("a", stand.note, "a")

    assert (stand.ran, len(calls)) == (["a"], 2)


def test_a_coroutine_has_steps_too(stand: Stand) -> None:
    async def fetch(number: int) -> int:
        stand.ran.append("fetch")
        return number + 1

    async def handler(step: Memo) -> int:
        return await step.awaited("fetch", fetch, 1)

    async def twice() -> tuple[int, int]:
        return await handler(memo(stand.context)), await handler(stand.again())

    assert asyncio.run(twice()) == (2, 2)
    assert stand.ran == ["fetch"]


def test_a_step_whose_failure_the_handler_catches_keeps_its_place(stand: Stand) -> None:
    """The same code on a retry is no changed code."""

    def handler(step: Memo) -> object:
        with suppress(ConnectionError):
            step("primary", fail)
        return step("fallback", stand.note, "fallback")

    def fail() -> None:
        stand.ran.append("primary")
        raise ConnectionError("down")

    assert handler(memo(stand.context)) == handler(stand.again())
    assert stand.ran == ["primary", "fallback", "primary"]
    with pytest.raises(WorkflowChanged, match="is 'fallback' now, which was step 2"):
        stand.again()("fallback", stand.note, "fallback")


def test_coroutines_side_by_side_keep_their_places_whichever_ends_first(stand: Stand) -> None:
    async def fetch(number: int) -> int:
        for _ in range(3 - number):
            await asyncio.sleep(0)
        stand.ran.append(f"fetch {number}")
        return number

    async def handler(step: Memo) -> list[int]:
        return await asyncio.gather(*(step.awaited(f"page {n}", fetch, n) for n in (1, 2)))

    assert asyncio.run(handler(memo(stand.context))) == [1, 2]
    assert asyncio.run(handler(stand.again())) == [1, 2]
    assert stand.ran == ["fetch 2", "fetch 1"]


def test_a_step_inside_of_a_step_is_refused(stand: Stand) -> None:
    step = memo(stand.context)
    with pytest.raises(ValueError, match="'in' is asked for inside of step 'out': call its"):
        step("out", lambda: step("in", len, []))

    assert step.done == ()
    assert step("after", len, []) == 0


def test_progress_is_kept_and_written_at_most_twice_a_second(stand: Stand) -> None:
    """Covers S2.8."""
    step = memo(stand.context)
    assert stand.context.progress(1, 100, "reading")
    assert not step.progress(2, 100)
    stand.clock.advance(0.5)
    assert step.progress(3, 100)
    assert step.progress(100, 100, "done")

    told, _ = progress(stand.queue, 1)
    assert told == Progress(
        done=100, total=100, note="done", told_ms=stand.clock.now_ms(), is_current=True
    )
    old = stand.context
    stand.deliver()
    told, _ = progress(stand.queue, 1)
    assert told is not None
    assert not told.is_current
    with pytest.raises(LeaseLost):
        memo(old).progress(1)
    with pytest.raises(ValueError, match="done -1 must be a number"):
        memo(stand.context).progress(-1)


def test_what_is_stored_goes_with_its_job(stand: Stand) -> None:
    step = memo(stand.context)
    step("a", stand.note, "a")
    step.progress(1)
    stand.queue.ack(stand.context.lease)
    with stand.queue.transaction() as tx:
        tx.change("DELETE FROM job")

    left = "SELECT 1 FROM workflow_memo UNION ALL SELECT 1 FROM workflow_progress"
    assert stand.sql(left) == []


def test_a_table_of_the_application_is_never_taken_over(stand: Stand) -> None:
    stand.sql("CREATE TABLE workflow_memo (mine TEXT)")

    with pytest.raises(FileRefused, match="'workflow_memo' that is not killproof's"):
        memo(stand.context)("a", stand.note, "a")
