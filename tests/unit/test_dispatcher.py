"""What a dispatcher runs, when, and what it makes of the ends.

Queue, event loop and threads are real; a dispatcher stops itself when it is idle.
"""

import asyncio
import contextvars
import logging
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from killproof import (
    DatabaseBusy,
    Host,
    Job,
    Lease,
    ManualClock,
    OutcomeUnknown,
    Queue,
    StorageFailed,
    StorageFull,
    Transaction,
    loop_watch,
    settling,
)
from killproof.core import sync
from killproof.dispatcher import Dispatcher
from killproof.heartbeat import Cause, Tenure
from killproof.journal import Journal
from killproof.limits import Limits
from killproof.outcomes import Outcome
from killproof.payloads import Payloads
from killproof.roster import Roster
from killproof.settling import Settlement, Settler
from killproof.worker import (
    EXIT_HANDLER_HUNG,
    EXIT_STORAGE_FAILED,
    Context,
    Handlers,
    HandlerStopped,
    HandlerTimeout,
    Hold,
    Permanent,
    RetryLater,
    Snooze,
    Worker,
)

Function = Callable[[Context], object]
#: A limit that a handler has begun before, also when its thread gets no turn for a while.
BRIEF_SECONDS = 0.3
TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("TENANT", default="nobody's")


class Unwilling(Queue):
    """A queue whose calls fail as often as the test says before they work."""

    troubles: dict[str, list[Exception]]

    def _trouble(self, name: str) -> None:
        if waiting := self.troubles.get(name):
            raise waiting.pop(0)

    def claim_many(self, limit: int, kinds: Any = None) -> list[Lease]:
        self._trouble("claim")
        return super().claim_many(limit, kinds)

    def ack(self, lease: Lease, result: object = None) -> None:
        self._trouble("ack")
        super().ack(lease, result)


class Stand:
    """A queue, its handlers, and a dispatcher that runs until it is idle."""

    def __init__(self, path: Path, hooks: pytest.MonkeyPatch) -> None:
        self.queue = Unwilling(path, durability="process")
        self.queue.troubles = {}
        self.handlers = Handlers()
        self.statuses: list[int] = []
        self.points: list[str] = []
        self.idles = 0
        self.at: dict[str, Callable[[], None]] = {"worker.idle": self._stop_when_done}
        hooks.setattr(sync, "hook", self._at_point)

    def _at_point(self, name: str) -> None:
        self.points.append(name)
        if name in self.at:
            self.at[name]()

    def _stop_when_done(self) -> None:
        """Stop at the second idle moment in a row: all had ended before the claim between them."""
        self.idles = 0 if self.dispatcher.slots_used else self.idles + 1
        if self.idles == 2:
            self.dispatcher.stop()

    def make(self, slots: int = 3, **options: Any) -> Dispatcher:
        options = {"poll": 0.002, "leave": self.statuses.append, **options}
        self.dispatcher = Dispatcher(self.queue, self.handlers, slots, **options)
        return self.dispatcher

    def run(self, slots: int = 3, **options: Any) -> None:
        asyncio.run(self.make(slots, **options).run())

    def job(self, job_id: int) -> Job:
        job = self.queue.get(job_id)
        assert job is not None
        return job

    def do(self, function: Function, *, timeout: float = 900.0, **options: Any) -> Job:
        """Run one job with this handler and return what became of it."""
        self.handlers("k", timeout=timeout)(function)
        job_id = self.queue.enqueue("k", {"n": 1}, **{"retry": "fixed:100"} | options)
        self.run()
        return self.job(job_id)


@pytest.fixture
def stand(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    stand = Stand(place / "queue.db", monkeypatch)
    yield stand
    stand.queue.close()


def outcomes(job: Job) -> list[str]:
    return [attempt.outcome for attempt in job.attempts]


def raising(error: BaseException) -> Function:
    async def handler(context: Context) -> object:
        await asyncio.sleep(0)
        raise error

    return handler


def raising_in_a_thread(error: BaseException) -> Function:
    def handler(context: Context) -> object:
        raise error

    return handler


# Slots.


def test_fifty_jobs_pass_three_slots_and_the_next_enters_when_one_ends(stand: Stand) -> None:
    """Covers S1.11, S1.29, S1.38, S1.39. Also F11: all slots are used, not one after the other."""
    running, most = set(), []

    @stand.handlers("k")
    async def handler(context: Context) -> None:
        running.add(context.job.id)
        most.append((len(running), stand.queue.counts()["leased"]))
        await asyncio.sleep(0.001)
        running.discard(context.job.id)

    stand.queue.enqueue_many([("k", number) for number in range(50)])
    stand.run()

    assert stand.queue.counts()["succeeded"] == 50
    assert max(most) == (3, 3)
    assert max(leased for _, leased in most) == 3


def test_no_job_is_claimed_for_which_there_is_no_slot(stand: Stand) -> None:
    """Covers S1.8. F12: the permit comes before the claim, so nothing is held that does not run."""
    seen: list[int] = []
    full = asyncio.Event()

    @stand.handlers("k")
    async def handler(context: Context) -> None:
        if stand.dispatcher.slots_used == 2:
            full.set()
        await full.wait()
        await asyncio.sleep(0.01)  # Both slots are taken; who claims too much would do it now.
        seen.append(stand.queue.counts()["leased"])

    stand.queue.enqueue_many([("k", number) for number in range(4)])
    stand.run(slots=2)

    assert max(seen) == 2


def test_the_most_urgent_enters_first_and_equals_in_the_order_they_came(stand: Stand) -> None:
    """Covers S1.10, S1.30, S1.26."""
    order: list[object] = []

    @stand.handlers("k")
    async def handler(context: Context) -> None:
        order.append(context.payload)

    for number, priority in enumerate((5, 9, 5, 0)):
        stand.queue.enqueue("k", number, priority=priority)
    stand.run(slots=1)

    assert order == [3, 0, 2, 1]


def test_two_hundred_waiting_coroutines_take_no_thread_of_their_own(stand: Stand) -> None:
    """Covers S1.14, S1.44."""
    threads: list[set[str]] = []
    full = asyncio.Event()

    @stand.handlers("k")
    async def handler(context: Context) -> None:
        if stand.dispatcher.slots_used == 200:
            full.set()
        await full.wait()
        threads.append({thread.name for thread in threading.enumerate()} - before)

    before = {thread.name for thread in threading.enumerate()}
    stand.queue.enqueue_many([("k", number) for number in range(200)])
    stand.run(slots=200)

    assert len(threads) == 200
    assert set().union(*threads) <= {
        "killproof-heartbeat",
        "killproof-claims_0",
        "killproof-settle_0",
        "killproof-calls_0",
        "killproof-schedules",
    }


def test_one_registry_serves_the_worker_and_the_dispatcher(stand: Stand) -> None:
    """Covers S1.15, S1.32, S1.34: coroutines and plain functions, by name, results as JSON."""

    @stand.handlers("coroutine")
    async def coroutine(context: Context) -> object:
        await asyncio.sleep(0)
        return {"payload": context.payload, "key": context.effect_key}

    @stand.handlers("plain")
    def plain(context: Context) -> object:
        return {"payload": context.payload, "key": context.effect_key}

    jobs = [("coroutine", 1), ("plain", 2)]
    first = [stand.queue.enqueue(kind, n, key=f"{kind} w") for kind, n in jobs]
    stand.at["worker.idle"] = lambda: worker.stop()
    worker = Worker(stand.queue, stand.handlers, poll=0)
    worker.run()
    stand.at["worker.idle"] = stand._stop_when_done
    second = [stand.queue.enqueue(kind, n, key=f"{kind} d") for kind, n in jobs]
    stand.run()

    results = [stand.job(job_id).result for job_id in (*first, *second)]
    assert results == [
        {"payload": 1, "key": "coroutine w"},
        {"payload": 2, "key": "plain w"},
        {"payload": 1, "key": "coroutine d"},
        {"payload": 2, "key": "plain d"},
    ]


def test_a_plain_handler_and_every_call_to_the_file_run_off_the_loop(stand: Stand) -> None:
    """F46."""
    threads: dict[str, int] = {}

    @stand.handlers("k")
    def handler(context: Context) -> None:
        threads["handler"] = threading.get_ident()

    def note(name: str) -> None:
        threads[name] = threading.get_ident()

    for name in ("claim.committed", "ack.committed"):
        stand.at[name] = partial(note, name)
    stand.queue.enqueue("k", None)
    stand.run()

    assert set(threads) == {"handler", "claim.committed", "ack.committed"}
    assert threading.get_ident() not in threads.values()


def test_a_plain_handler_sees_the_programs_context_and_leaves_none_to_the_next(
    stand: Stand,
) -> None:
    """Both jobs run in one thread."""
    seen = []

    @stand.handlers("k")
    def handler(context: Context) -> None:
        seen.append((threading.get_ident(), TENANT.get()))
        TENANT.set(f"of job {context.job.id}")

    stand.queue.enqueue_many([("k", None), ("k", None)])
    program = contextvars.copy_context()
    program.run(TENANT.set, "of the program")
    program.run(stand.run, threads=1)
    assert [tenant for _, tenant in seen] == ["of the program"] * 2
    assert len({thread for thread, _ in seen}) == 1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # From Python 3.12 on.
def test_a_child_that_a_coroutine_forked_ends_with_its_handler(stand: Stand) -> None:
    """It would wait on the parent's own epoll descriptor, and take its wake-ups away."""
    ended = []

    async def handler(context: Context) -> None:
        if child := os.fork():
            ended.append(await asyncio.to_thread(os.waitpid, child, 0))

    assert stand.do(handler).state == "succeeded"
    assert [os.waitstatus_to_exitcode(status) for _, status in ended] == [EXIT_HANDLER_HUNG]


def test_plain_handlers_are_claimed_for_free_threads_only_and_coroutines_go_on(
    stand: Stand,
) -> None:
    def stop_when_empty() -> None:
        if not stand.queue.counts()["available"]:
            stand._stop_when_done()

    stand.at["worker.idle"] = stop_when_empty  # Idle it is also while it asks for some kinds only.
    free = threading.Event()
    held: list[object] = []

    @stand.handlers("plain")
    def plain(context: Context) -> None:
        free.wait(60)

    @stand.handlers("coroutine")
    async def coroutine(context: Context) -> None:
        leased = "SELECT count(*) FROM job WHERE state = 'leased' AND kind = 'plain'"
        held.append(stand.queue.database.peek(leased)[0][0])
        if context.payload == 5:
            free.set()

    stand.queue.enqueue_many([("plain", n) for n in range(3)])
    for number in range(6):
        stand.queue.enqueue("coroutine", number, priority=9)
    stand.run(slots=4, threads=1)

    assert stand.queue.counts()["succeeded"] == 9
    assert held == [1] * 6  # All of them ran while one plain job had the thread.


def test_only_the_kinds_that_are_named_are_worked_on(stand: Stand) -> None:
    for kind in ("a", "b"):
        stand.handlers(kind)(raising(Snooze(60)))
    ids = [stand.queue.enqueue(kind, None) for kind in ("a", "b")]
    stand.run(kinds=["b"])

    assert [stand.job(job_id).state for job_id in ids] == ["available", "scheduled"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kinds": []}, "no handlers"),
        ({"kinds": ["b"]}, "kind 'b' has no handler"),
        ({"slots": 0}, "slots 0 must be"),
        ({"threads": 0}, "threads 0 must be"),
        ({"grace": -1}, "grace -1 must be"),
    ],
)
def test_what_can_not_be_run_is_refused_with_its_value(
    stand: Stand, options: dict[str, Any], text: str
) -> None:
    stand.handlers("a")(raising(Snooze(60)))

    with pytest.raises(ValueError, match=text):
        Dispatcher(stand.queue, stand.handlers, **options)


# What comes out of a handler.

ERRORS = [
    ValueError("wrong"),
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(3),
    asyncio.CancelledError(),
    TimeoutError(),
    BaseException("bare"),
]


def test_whatever_a_handler_raises_fails_its_job_and_no_other(stand: Stand) -> None:
    """Covers S1.12, S1.35. F1, F2, F27, F32."""
    ids: dict[str, tuple[int, str]] = {}
    for make in (raising, raising_in_a_thread):
        for error in ERRORS:
            kind, name = f"{make.__name__} {error!r}", type(error).__name__
            # No coroutine of Python's lets it out.
            if make is raising and name == "StopIteration":
                name = "RuntimeError"
            stand.handlers(kind)(make(error))
            ids[kind] = stand.queue.enqueue(kind, None, retry="fixed:100"), name
    stand.handlers("other")(lambda context: "fine")
    other = stand.queue.enqueue("other", None, priority=9)
    stand.run()

    for kind, (job_id, name) in ids.items():
        job = stand.job(job_id)
        assert (kind, job.state, job.error_class) == (kind, "retryable", name)
        assert "Traceback" in (job.attempts[0].traceback or ""), kind
    assert (stand.job(other).state, stand.job(other).result) == ("succeeded", "fine")


class Hasty(RetryLater):
    """Whose author forgot `super().__init__()`."""

    def __init__(self) -> None:
        pass


class Mute(Exception):
    """Nothing can be asked of it."""

    def __getattribute__(self, name: str) -> object:
        raise LookupError(name)


def with_delay(error: RetryLater | Snooze, seconds: float) -> BaseException:
    error.seconds = seconds
    return error


ODD: dict[str, Callable[[], BaseException]] = {
    "no super": Hasty,
    "mute": Mute,
    "no number": lambda: with_delay(Snooze(1), float("nan")),
    "negative": lambda: with_delay(RetryLater(1), -5),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("how", [raising, raising_in_a_thread])
def test_an_exception_that_can_not_be_judged_is_a_failed_attempt(
    stand: Stand, odd: str, how: Callable[[BaseException], Function]
) -> None:
    """Given back, which is no attempt, it would run again at once and for ever."""
    job = stand.do(how(ODD[odd]()))
    assert (job.state, job.attempt, outcomes(job)) == ("retryable", 1, ["failed"])
    assert stand.statuses == []


def test_after_its_last_execution_a_job_is_dead_and_each_was_delayed_by_its_policy(
    stand: Stand,
) -> None:
    """Covers S0.45, S1.36. F34, F35: three executions; the policy's delay replaces "no delay"."""
    runs: list[int] = []

    async def handler(context: Context) -> object:
        runs.append(context.job.attempt)
        raise ValueError("HTTP 503")

    def stop_when_dead() -> None:
        if stand.queue.counts()["dead"]:
            stand.dispatcher.stop()

    stand.at["worker.idle"] = stop_when_dead
    job = stand.do(handler, max_attempts=3, retry="fixed:0.02")

    assert (runs, job.state, outcomes(job)) == ([1, 2, 3], "dead", ["failed"] * 3)
    ends = [attempt.finished_ms for attempt in job.attempts]
    starts = [attempt.started_ms for attempt in job.attempts]
    assert all(start - end >= 20 for end, start in zip(ends[:-1], starts[1:], strict=True))


@pytest.mark.parametrize(
    ("error", "state", "outcome"),
    [
        (RetryLater(60), "retryable", "failed"),
        (Snooze(60), "scheduled", "snoozed"),
        (Permanent("malformed"), "dead", "failed"),
        (Hold("look"), "held", "held"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_handlers_words_mean_what_they_mean_in_a_worker(
    stand: Stand, error: Exception, state: str, outcome: str
) -> None:
    job = stand.do(raising(error))

    assert (job.state, outcomes(job)) == (state, [outcome])


@pytest.mark.parametrize("runs_in", ["dispatcher", "worker"])
def test_a_shared_retry_after_keeps_the_other_jobs_of_the_resource_back(
    stand: Stand, runs_in: str
) -> None:
    """Covers S1.1, S1.4. F35."""
    Limits(stand.queue).set("shop", kinds=["scrape", "sync"])
    runs: list[str] = []

    def handler(context: Context) -> object:
        runs.append(context.job.kind)
        raise RetryLater(60, "HTTP 429", shared=True)

    for kind in ("scrape", "sync"):
        stand.handlers(kind)(handler)
        stand.queue.enqueue(kind, None)
    if runs_in == "worker":
        worker = Worker(stand.queue, stand.handlers, poll=0)
        stand.at["worker.idle"] = worker.stop
        worker.run()
    else:
        stand.run(slots=1)

    limit = Limits(stand.queue).get("shop")
    assert runs == ["scrape"]
    assert limit is not None
    assert stand.queue.counts()["available"] == 1


def test_an_unknown_kind_is_left_alone_and_reported(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers S1.33. F30: the article marked it done; here it waits, and a line says for what."""
    strange = stand.queue.enqueue("strange", None)
    stand.do(raising(Snooze(60)))

    assert stand.job(strange).state == "available"
    assert "jobs of kind 'strange' wait and this worker has no handler" in caplog.text


def test_a_result_that_is_no_json_is_still_a_success(stand: Stand) -> None:
    """F31."""

    async def handler(context: Context) -> object:
        return {1, 2}

    job = stand.do(handler)

    assert (job.state, job.attempt) == ("succeeded", 1)
    assert "killproof_repr" in str(job.result)


def test_a_decorated_coroutine_function_is_awaited(stand: Stand) -> None:
    async def handler(context: Context) -> object:
        await asyncio.sleep(0)
        return "awaited"

    job = stand.do(lambda context: handler(context))

    assert (job.state, job.result) == ("succeeded", "awaited")


# What ends a handler from outside.


def until_cancelled(seen: list[str]) -> Callable[[Context], Awaitable[None]]:
    async def handler(context: Context) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("cleaned up")

    return handler


def test_a_coroutine_over_its_time_limit_is_cancelled_and_failed(stand: Stand) -> None:
    """F28."""
    seen: list[str] = []
    job = stand.do(until_cancelled(seen), timeout=BRIEF_SECONDS)

    assert (job.state, job.error_class, seen) == ("retryable", "HandlerTimeout", ["cleaned up"])
    assert "limit of its kind, 0.3 s" in (job.error_message or "")
    assert stand.statuses == []


def test_a_job_that_never_returns_keeps_nobody_else_from_starting(stand: Stand) -> None:
    """Covers S1.7. F28."""
    urgent = stand.queue.enqueue("urgent", None)
    stand.handlers("urgent")(lambda context: None)
    stand.do(until_cancelled([]), timeout=BRIEF_SECONDS)

    assert stand.job(urgent).state == "succeeded"


def test_a_lost_lease_cancels_its_handler_and_its_outcome_is_not_told(stand: Stand) -> None:
    """F21, F23."""
    seen: list[str] = []
    wait = until_cancelled(seen)

    async def handler(context: Context) -> None:
        await asyncio.to_thread(stand.queue.cancel, context.job.id)
        await wait(context)

    job = stand.do(handler, lease=0.9)

    assert (job.state, outcomes(job), seen) == ("cancelled", ["cancelled"], ["cleaned up"])
    assert stand.statuses == []


def test_an_outcome_that_comes_after_the_lease_is_refused_by_its_fence(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    """F21, F38."""

    async def handler(context: Context) -> str:
        await asyncio.to_thread(stand.queue.cancel, context.job.id)
        return "too late"

    job = stand.do(handler)

    assert (job.state, job.result) == ("cancelled", None)
    assert "outcome ack refused" in caplog.text


def test_the_leases_of_running_jobs_are_renewed_for_as_long_as_they_run(stand: Stand) -> None:
    """F23."""
    deadlines: list[int] = []

    async def handler(context: Context) -> None:
        first = context._tenure.trusted_until_ns
        while context._tenure.trusted_until_ns < first + 100_000_000:
            await asyncio.sleep(0.005)
        deadlines.append(1)

    job = stand.do(handler, lease=1.5)

    assert (job.state, deadlines) == ("succeeded", [1])


def test_a_plain_handler_in_a_loop_learns_of_its_limit_by_asking(stand: Stand) -> None:
    def handler(context: Context) -> None:
        while True:
            context.check()
            threading.Event().wait(0.002)

    job = stand.do(handler, timeout=0.02)

    assert (job.error_class, stand.statuses) == ("HandlerTimeout", [])


def leaving(stand: Stand) -> threading.Event:
    """Run until the dispatcher leaves its process, which is then over for all handlers."""
    left = threading.Event()

    def leave(status: int) -> None:
        stand.statuses.append(status)
        left.set()

    stand.make(overdue_grace=0.02, leave=leave)
    return left


def test_a_coroutine_that_swallows_its_cancellation_is_left_behind_with_the_process(
    stand: Stand,
) -> None:
    """The other jobs are given back, and nothing is counted against them."""

    @stand.handlers("deaf", timeout=BRIEF_SECONDS)
    async def deaf(context: Context) -> None:
        while not left.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue

    @stand.handlers("other")
    async def other(context: Context) -> None:
        while not left.is_set():
            await asyncio.sleep(0.005)
        stand.dispatcher.stop()

    ids = [stand.queue.enqueue(kind, None, retry="fixed:100") for kind in ("deaf", "other")]
    left = leaving(stand)
    asyncio.run(stand.dispatcher.run())

    jobs = [stand.job(job_id) for job_id in ids]
    assert stand.statuses[:1] == [EXIT_HANDLER_HUNG]
    assert [(job.state, job.attempt) for job in jobs] == [("retryable", 1), ("available", 0)]
    assert "It did not stop when told to" in (jobs[0].attempts[0].traceback or "")


def test_who_blocks_the_loop_is_blamed_and_nobody_whose_limit_passed_because_of_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F46."""
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.02)

    @stand.handlers("blocks")
    async def blocks(context: Context) -> None:
        while stand.dispatcher.slots_used < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.005)  # The other one begins.
        left.wait(60)
        stand.dispatcher.stop()

    @stand.handlers("short", timeout=BRIEF_SECONDS)
    async def short(context: Context) -> None:
        await asyncio.sleep(30)

    ids = [stand.queue.enqueue(kind, None, retry="fixed:100") for kind in ("blocks", "short")]
    left = leaving(stand)
    asyncio.run(stand.dispatcher.run())

    jobs = [stand.job(job_id) for job_id in ids]
    assert stand.statuses[:1] == [EXIT_HANDLER_HUNG]
    assert [(job.state, job.attempt) for job in jobs] == [("retryable", 1), ("available", 0)]
    assert "blocked the event loop" in (jobs[0].error_message or "")
    assert "left.wait(60)" in caplog.text
    hanging = [line for line in caplog.messages if "handler hangs" in line]
    assert [line.split()[1] for line in hanging] == ["kind=blocks"]


def test_a_job_that_was_claimed_while_the_loop_was_blocked_is_given_back_and_not_claimed_again(
    stand: Stand,
) -> None:
    """Held by a process that leaves it would count as crashed."""
    stand.handlers("k")(raising(AssertionError("started")))
    (hung,) = claimed(stand, 1)
    waiting = stand.queue.enqueue("k", None)
    dispatcher = stand.make()
    (fresh,) = dispatcher._claim_many(1, ("k",))
    dispatcher._on_overdue({hung: "timeout"})

    job = stand.job(waiting)
    assert fresh.job.id == waiting
    assert (job.state, job.attempt, outcomes(job)) == ("available", 0, ["released"])
    assert stand.statuses == [EXIT_HANDLER_HUNG]
    assert dispatcher._claim_many(1, ("k",)) == []


# Stopping.


def test_a_stop_claims_no_more_and_lets_what_runs_end(stand: Stand) -> None:
    @stand.handlers("k")
    async def handler(context: Context) -> str:
        stand.dispatcher.stop()
        await asyncio.sleep(0.01)
        return "whole"

    ids = [stand.queue.enqueue("k", None) for _ in range(2)]
    stand.run(slots=1)

    first, second = (stand.job(job_id) for job_id in ids)
    assert (first.state, first.result) == ("succeeded", "whole")
    assert (second.state, second.deliveries) == ("available", 0)


@pytest.mark.parametrize("grace", [0.02, 60.0], ids=["after the grace", "by a second stop"])
def test_a_job_that_does_not_end_is_given_back_which_is_no_attempt(
    stand: Stand, grace: float
) -> None:
    """F27."""
    seen: list[str] = []
    wait = until_cancelled(seen)

    @stand.handlers("k")
    async def handler(context: Context) -> None:
        stand.dispatcher.stop()
        if grace > 1:
            stand.dispatcher.stop()
        await wait(context)

    job_id = stand.queue.enqueue("k", None, max_attempts=1)
    stand.run(grace=grace)

    job = stand.job(job_id)
    assert (job.state, job.attempt, outcomes(job)) == ("available", 0, ["released"])
    assert seen == ["cleaned up"]


def test_a_stop_between_claim_and_start_gives_the_job_back(stand: Stand) -> None:
    stand.handlers("k")(raising(AssertionError("started")))
    job_id = stand.queue.enqueue("k", None, max_attempts=1)
    stand.at["handler.start"] = lambda: stand.dispatcher.stop()
    stand.run()

    assert outcomes(stand.job(job_id)) == ["released"]


def test_a_stop_before_the_start_runs_nothing(stand: Stand) -> None:
    stand.handlers("k")(raising(AssertionError("started")))
    job_id = stand.queue.enqueue("k", None)
    stand.make().stop()
    asyncio.run(stand.dispatcher.run())

    assert stand.job(job_id).deliveries == 0


def test_a_cancelled_run_stops_in_order_before_it_raises(stand: Stand) -> None:
    tasks: list[asyncio.Task[None]] = []

    @stand.handlers("k")
    async def handler(context: Context) -> str:
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        return "whole"

    async def main() -> None:
        tasks.append(asyncio.create_task(stand.make().run()))
        await asyncio.wait(tasks)

    job_id = stand.queue.enqueue("k", None)
    asyncio.run(main())

    assert tasks[0].cancelled()
    assert stand.job(job_id).result == "whole"


def test_a_task_that_a_handler_left_behind_ends_no_other_job(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    """`sys.exit()` in a task of its own goes through the event loop, and past every handler."""

    async def leave() -> None:
        raise SystemExit(1)

    @stand.handlers("k")
    async def handler(context: Context) -> str:
        left.append(asyncio.create_task(leave()))
        await asyncio.sleep(0.01)
        return "whole"

    left: list[asyncio.Task[None]] = []
    job_id = stand.queue.enqueue("k", None)
    stand.make().serve()
    assert isinstance(left[0].exception(), SystemExit)

    assert stand.job(job_id).result == "whole"
    assert "SystemExit(1) through the event loop" in caplog.text


def test_a_fault_of_our_own_ends_the_process_although_a_plain_handler_runs(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    """Others take its job over; the interpreter would wait for the handler, and then leave."""

    @stand.handlers("k")
    def handler(context: Context) -> None:
        stand.queue.troubles["claim"] = [RuntimeError("a fault")]
        left.wait(60)

    stand.queue.enqueue("k", None)
    left = leaving(stand)
    with pytest.raises(RuntimeError, match="a fault"):
        stand.dispatcher.serve()

    assert stand.statuses == [EXIT_HANDLER_HUNG]
    assert "RuntimeError: a fault" in caplog.text


# A queue that does not answer.


@pytest.mark.parametrize(
    "error", [DatabaseBusy("locked"), StorageFull("no room"), OutcomeUnknown("cut")], ids=repr
)
def test_an_ack_that_meets_trouble_is_sent_again_and_the_job_not_failed(
    stand: Stand, error: Exception
) -> None:
    """F16, F17."""
    runs: list[int] = []
    stand.queue.troubles = {"ack": [error]}
    job = stand.do(lambda context: runs.append(1))

    assert (job.state, runs, outcomes(job)) == ("succeeded", [1], ["succeeded"])


def test_a_claim_that_meets_trouble_is_never_fatal_and_is_said_once(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    """F15."""
    stand.queue.troubles = {"claim": [DatabaseBusy("locked"), StorageFull("no room")]}
    job = stand.do(lambda context: None)

    assert job.state == "succeeded"
    assert sum("claim" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("call", ["claim", "ack", "handler"])
def test_a_failed_disk_ends_the_process_at_once(stand: Stand, call: str) -> None:
    stand.queue.troubles = {call: [StorageFailed("EIO")]}
    job = stand.do(raising(StorageFailed("EIO")) if call == "handler" else lambda context: None)

    assert stand.statuses == [EXIT_STORAGE_FAILED]
    assert outcomes(job) == []


def test_outcomes_that_wait_together_are_one_transaction(stand: Stand) -> None:
    """F14."""
    go = asyncio.Event()

    @stand.handlers("k")
    async def handler(context: Context) -> object:
        if stand.dispatcher.slots_used == 40:
            go.set()
        await go.wait()
        return context.payload

    stand.queue.enqueue_many([("k", number) for number in range(40)])
    stand.run(slots=40)

    assert stand.queue.counts()["succeeded"] == 40
    assert stand.points.count("ack.committed") < 20  # Two, if nothing ended between.


def claimed(stand: Stand, count: int) -> list[Tenure]:
    stand.queue.enqueue_many([("k", number) for number in range(count)])
    leases = stand.queue.claim_many(count)
    now_ns = stand.queue.host.clock.monotonic_ns()
    return [Tenure(lease, now_ns=now_ns) for lease in leases]


def journal() -> Journal:
    return Journal(logging.getLogger("killproof.dispatcher"))


def test_a_stale_outcome_takes_no_other_with_it(stand: Stand) -> None:
    tenures = claimed(stand, 3)
    stand.queue.cancel(tenures[1].lease.job.id)
    settler = Settler(stand.queue, stand.queue.host.clock, journal())
    acks = [Settlement(tenure=t, outcome=Outcome(word="ack", result=7)) for t in tenures]

    assert settler.write(acks) == []
    jobs = [stand.job(tenure.lease.job.id) for tenure in tenures]
    assert [job.state for job in jobs] == ["succeeded", "cancelled", "succeeded"]
    assert jobs[0].result == 7


def test_outcomes_that_meet_a_locked_file_wait_all_of_them_and_lose_nothing(stand: Stand) -> None:
    tenures = claimed(stand, 3)
    settler = Settler(stand.queue, stand.queue.host.clock, journal())
    acks = [Settlement(tenure=tenure, outcome=Outcome(word="ack")) for tenure in tenures]
    stand.queue.database.busy_limit = 0.001
    with closing(sqlite3.connect(stand.queue.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        left = settler.write(acks)

    assert left == acks
    assert settler.write(left) == []
    assert stand.queue.counts()["succeeded"] == 3


def test_a_large_result_is_whole_also_when_the_process_leaves_a_hung_handler(
    stand: Stand,
) -> None:
    """What has ended by then was not called again, and had no time of its own to tell."""
    (tenure,) = claimed(stand, 1)
    whole = "x" * 2_000_000
    one = Settlement(tenure=tenure, outcome=Outcome(word="ack", result=whole), seconds=None)

    assert Settler(stand.queue, stand.queue.host.clock, journal()).write([one]) == []
    assert Payloads(stand.queue).result(stand.job(tenure.lease.job.id)) == whole


def test_a_busy_file_does_not_cut_a_large_result(stand: Stand) -> None:
    (tenure,) = claimed(stand, 1)
    whole = "x" * 2_000_000
    one = Settlement(tenure=tenure, outcome=Outcome(word="ack", result=whole), seconds=0.1)
    settler = Settler(stand.queue, stand.queue.host.clock, journal())
    stand.queue.database.busy_limit = 0.0
    with closing(sqlite3.connect(stand.queue.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert settler.write([one]) == [one]

    assert settler.write([one]) == []
    assert Payloads(stand.queue).result(stand.job(tenure.lease.job.id)) == whole


def test_an_outcome_is_given_up_when_its_lease_is_over(stand: Stand) -> None:
    (tenure,) = claimed(stand, 1)
    clock = ManualClock()
    clock.elapsed_ns = tenure.trusted_until_ns
    stand.queue.troubles = {"ack": [DatabaseBusy("locked")]}
    settler = Settler(stand.queue, clock, journal())

    assert settler.write([Settlement(tenure=tenure, outcome=Outcome(word="ack"))]) == []
    assert stand.queue.counts()["leased"] == 1


# All leases of a process, renewed together.


class Bench:
    """A queue and a roster on a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        host = Host(clock=self.clock, random=random.Random(7))
        self.queue = Queue(path, durability="process", host=host)
        self.lost: list[Tenure] = []
        self.overdue: dict[Tenure, Cause] = {}
        self.failed: list[StorageFailed] = []
        self.roster = Roster(
            self.queue,
            self.clock,
            journal(),
            on_lost=self.lost.append,
            on_overdue=self.overdue.update,
            on_storage_failed=self.failed.append,
            overdue_grace=5.0,
        )

    def hold(self, count: int, *, timeout: float | None = None) -> list[Tenure]:
        self.queue.enqueue_many([("k", number) for number in range(count)])
        now_ns = self.clock.monotonic_ns()
        tenures = [
            Tenure(lease, now_ns=now_ns, timeout=timeout) for lease in self.queue.claim_many(count)
        ]
        for tenure in tenures:
            self.roster.add(tenure)
        return tenures


@pytest.fixture
def bench(place: Path) -> Iterator[Bench]:
    bench = Bench(place / "queue.db")
    yield bench
    bench.queue.close()


def test_all_leases_are_renewed_in_one_transaction_and_early_ones_along(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: list[str] = []
    monkeypatch.setattr(sync, "hook", points.append)
    first = bench.hold(100)
    bench.clock.advance(12)  # Less than a third of a lease of 60 s, and more than a sixth.
    second = bench.hold(50)
    bench.clock.advance(8)
    points.clear()
    bench.roster.beat()

    assert points.count("extend.committed") == 1
    renewed_ns = bench.clock.monotonic_ns() + 59_000_000_000  # The margin is a second.
    assert {tenure.trusted_until_ns for tenure in first} == {renewed_ns}
    assert {tenure.trusted_until_ns for tenure in second} != {renewed_ns}
    assert bench.lost == []


def test_a_renewal_counts_from_the_start_of_its_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that hangs for five seconds must not make the window five seconds longer."""
    (tenure,) = bench.hold(1)
    bench.clock.advance(20)
    started_ns = bench.clock.monotonic_ns()

    def hang(name: str) -> None:
        if name == "extend.locked":
            bench.clock.advance(5)

    monkeypatch.setattr(sync, "hook", hang)
    bench.roster.beat()

    assert tenure.trusted_until_ns == started_ns + 59_000_000_000


def test_a_refused_renewal_is_told_and_the_others_are_renewed(bench: Bench) -> None:
    first, second = bench.hold(2)
    bench.queue.cancel(first.lease.job.id)
    bench.clock.advance(20)
    bench.roster.beat()

    assert bench.lost == [first]
    assert second.trusted_until_ns > bench.clock.monotonic_ns() + 50_000_000_000
    assert bench.roster.beat() > 0  # What is lost is not renewed again and again.


def test_a_renewal_that_its_own_outcome_overtook_is_no_loss(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = bench.hold(2)
    bench.clock.advance(20)

    def overtake(name: str) -> None:
        if name == "extend.begin":
            first.settling = True
            bench.queue.ack(first.lease)

    monkeypatch.setattr(sync, "hook", overtake)
    bench.roster.beat()

    assert bench.lost == []
    assert second.trusted_until_ns > first.trusted_until_ns


def test_renewals_that_meet_a_locked_file_are_tried_again_soon(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    tenures = bench.hold(2)
    bench.clock.advance(20)
    bench.queue.database.busy_limit = 0.001
    with closing(sqlite3.connect(bench.queue.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        bench.roster.beat()

    assert "heartbeat of 2 failed, trying again: DatabaseBusy" in caplog.text
    assert all(tenure.renew_at_ns > bench.clock.monotonic_ns() for tenure in tenures)
    bench.clock.advance(5)
    bench.roster.beat()
    assert all(not tenure.is_lost(bench.clock.monotonic_ns()) for tenure in tenures)


def test_a_row_that_breaks_the_transaction_stops_no_other_lease(bench: Bench) -> None:
    """F1."""
    first, second = bench.hold(2)
    with bench.queue.transaction() as tx:
        tx.change(
            "CREATE TRIGGER breaks BEFORE UPDATE ON job WHEN new.id = 1"
            " BEGIN SELECT raise(ABORT, 'broken'); END"
        )
    bench.clock.advance(20)
    bench.roster.beat()

    now_ns = bench.clock.monotonic_ns()
    assert second.trusted_until_ns > now_ns + 50_000_000_000
    assert first.renew_at_ns > now_ns


def test_who_overstays_is_told_once_its_grace_has_been_seen_to_pass(bench: Bench) -> None:
    first, second = bench.hold(2, timeout=10.0)
    second.timeout_at_ns = None
    bench.clock.advance(15)
    bench.roster.beat()
    assert bench.overdue == {}

    bench.clock.advance(5)
    bench.roster.beat()
    assert bench.overdue == {first: "timeout"}


# What a coroutine asks of the file.


def test_acomplete_writes_the_effect_and_the_success_together(stand: Stand) -> None:
    with stand.queue.transaction() as tx:
        tx.execute("CREATE TABLE paid (n INTEGER)")

    def write(tx: Transaction) -> None:
        tx.execute("INSERT INTO paid VALUES (1)")

    async def handler(context: Context) -> None:
        await context.acomplete(write, {"paid": 1})

    job = stand.do(handler)

    assert (job.state, job.result) == ("succeeded", {"paid": 1})
    with stand.queue.transaction() as tx:
        assert tx.rows("SELECT n FROM paid") == [(1,)]


def test_a_cancellation_waits_for_the_end_of_the_transaction(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut inside a transaction, an outcome would be unknown that is known."""

    limits_ns: list[int] = []

    def write(tx: Transaction) -> None:
        while time.monotonic_ns() < limits_ns[0] + 50_000_000:
            threading.Event().wait(0.01)

    async def handler(context: Context) -> None:
        limits_ns.append(context._tenure.timeout_at_ns or 0)
        await context.acomplete(write, "whole")
        await asyncio.sleep(60)

    job = stand.do(handler, timeout=BRIEF_SECONDS)

    assert (job.state, job.result) == ("succeeded", "whole")
    assert "raised after its completion: HandlerTimeout" in caplog.text
    assert "refused" not in caplog.text


def test_aeffect_applies_once_over_attempts_and_keeps_the_loop_free(stand: Stand) -> None:
    calls: list[str] = []

    async def pay(key: str) -> object:
        calls.append(key)
        await asyncio.sleep(0)
        return {"receipt": 7}

    async def handler(context: Context) -> object:
        receipt = await context.aeffect("charge", pay, in_doubt="held")
        if context.job.attempt == 1:
            raise ValueError("after the effect")
        return receipt

    job = stand.do(handler, retry="immediate")

    assert (calls, job.result, outcomes(job)) == (
        ["charge"],
        {"receipt": 7},
        ["failed", "succeeded"],
    )


def test_aeffect_asks_a_check_that_is_a_coroutine(stand: Stand) -> None:
    async def pay(key: str) -> object:
        raise TimeoutError

    async def check(key: str) -> bool:
        await asyncio.sleep(0)
        return True

    async def handler(context: Context) -> object:
        return await context.aeffect("charge", pay, in_doubt="check", check=check)

    job = stand.do(handler, retry="immediate")

    assert outcomes(job) == ["failed", "succeeded"]


def test_a_coroutine_given_to_the_plain_effect_is_no_applied_effect(stand: Stand) -> None:
    async def pay(key: str) -> object:
        return 1

    job = stand.do(lambda context: context.effect("charge", pay, in_doubt="held"))

    assert job.error_class == "TypeError"
    assert "await context.aeffect" in (job.error_message or "")


def test_a_signal_reaches_a_dispatcher_and_its_handlers_are_put_back_after_it(
    stand: Stand,
) -> None:
    @stand.handlers("k")
    async def handler(context: Context) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        return "whole"

    before = signal.getsignal(signal.SIGTERM)
    job_id = stand.queue.enqueue("k", None)
    stand.run()

    assert stand.dispatcher.is_stopping
    assert stand.job(job_id).result == "whole"
    assert signal.getsignal(signal.SIGTERM) == before


def test_words_into_a_handler_are_the_workers(stand: Stand) -> None:
    (tenure,) = claimed(stand, 1)
    context = Context(stand.queue, tenure, stand.queue.host.clock)
    context.check()
    tenure.timeout, tenure.timeout_at_ns = 1.0, 0
    with pytest.raises(HandlerTimeout):
        context.check()
    tenure.timeout_at_ns, tenure.stop_at_ns = None, 0
    with pytest.raises(HandlerStopped):
        context.check()

    assert settling.TOGETHER_MAX < 1_000
