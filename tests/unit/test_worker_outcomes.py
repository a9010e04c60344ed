"""What a worker makes of the end of a handler, and of a queue that does not answer.

The queue is real, on a clock that the test moves; the worker stops itself when it is idle.
"""

import asyncio
import contextvars
import json
import logging
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
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
)
from killproof.core import model, sync
from killproof.heartbeat import Tenure
from killproof.payloads import Payloads
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

#: A limit that a handler has begun before, also when its thread gets no turn for a while.
BRIEF_SECONDS = 0.3
TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("TENANT", default="nobody's")


class Unwilling(Queue):
    """A queue whose calls fail as often as the test says before they work."""

    troubles: dict[str, list[Exception]]

    def _trouble(self, name: str) -> None:
        if waiting := self.troubles.get(name):
            raise waiting.pop(0)

    def claim(self, kinds: object = None) -> Lease | None:
        self._trouble("claim")
        return super().claim(kinds)  # type: ignore[arg-type]  # Handed through as it came.

    def transaction(self) -> AbstractContextManager[Transaction]:
        self._trouble("transaction")
        return super().transaction()

    def ack(self, lease: Lease, result: object = None) -> None:
        self._trouble("ack")
        super().ack(lease, result)

    def ack_and_claim(
        self, lease: Lease, result: object = None, kinds: object = None
    ) -> Lease | None:
        self._trouble("ack_and_claim")
        return super().ack_and_claim(lease, result, kinds)  # type: ignore[arg-type]  # As above.


class Stand:
    """A queue, its handlers, and a worker that runs until it is idle."""

    def __init__(self, path: Path, hooks: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.queue = Unwilling(path, durability="process", host=Host(clock=self.clock))
        self.queue.troubles = {}
        self.handlers = Handlers()
        self.statuses: list[int] = []
        self.at: dict[str, Callable[[], None]] = {"worker.idle": lambda: self.worker.stop()}
        self.points: list[str] = []
        hooks.setattr(sync, "hook", self._at_point)

    def _at_point(self, name: str) -> None:
        self.points.append(name)
        if name in self.at:
            self.at[name]()

    def run(self) -> None:
        self.worker = Worker(
            self.queue, self.handlers, clock=self.clock, leave=self.statuses.append
        )
        self.worker.run()

    def add(
        self, function: Callable[[Context], object], kind: str = "k", timeout: float = 900.0
    ) -> None:
        self.handlers(kind, timeout=timeout)(function)

    def job(self, job_id: int) -> Job:
        job = self.queue.get(job_id)
        assert job is not None
        return job

    def do(self, function: Callable[[Context], object], **options: Any) -> Job:
        """Run one job with this handler and return what became of it."""
        self.add(function)
        job_id = self.queue.enqueue("k", {"n": 1}, retry="fixed:100", **options)
        self.run()
        return self.job(job_id)


@pytest.fixture
def stand(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    stand = Stand(place / "queue.db", monkeypatch)
    yield stand
    stand.queue.close()


def outcomes(job: Job) -> list[str]:
    return [attempt.outcome for attempt in job.attempts]


def failing(error: BaseException) -> Callable[[Context], object]:
    def function(context: Context) -> object:
        raise error

    return function


# Success.


def test_what_a_handler_returns_is_the_result(stand: Stand) -> None:
    """Covers S0.40, S0.41, S1.32, S2.37."""
    job = stand.do(lambda context: {"seen": context.payload})

    assert (job.state, job.result) == ("succeeded", {"seen": {"n": 1}})


def test_a_result_that_json_cannot_hold_does_not_undo_the_success(stand: Stand) -> None:
    """Covers F31."""
    job = stand.do(lambda context: {1, 2})

    assert (job.state, job.attempt) == ("succeeded", 1)
    assert isinstance(job.result, dict)
    assert job.result["killproof_repr"] == "{1, 2}"


@pytest.mark.parametrize("trouble", [DatabaseBusy("locked"), OutcomeUnknown("perhaps")])
def test_a_busy_file_does_not_cut_a_large_result(stand: Stand, trouble: Exception) -> None:
    whole = "x" * 2_000_000
    stand.queue.troubles = {"transaction": [trouble]}
    job = stand.do(lambda context: whole)
    assert job.state == "succeeded"
    assert stand.queue.troubles == {"transaction": []}
    assert Payloads(stand.queue).result(job) == whole


def test_what_a_handler_sets_in_its_context_variables_is_gone_for_the_next(stand: Stand) -> None:
    seen = []

    @stand.handlers("k")
    def handler(context: Context) -> None:
        seen.append(TENANT.get())
        TENANT.set(f"of job {context.job.id}")

    stand.queue.enqueue_many([("k", None), ("k", None)])
    stand.run()
    assert seen == ["nobody's"] * 2


def test_a_coroutine_function_runs_to_its_end(stand: Stand) -> None:
    seen: list[object] = []

    async def handler(context: Context) -> object:
        await asyncio.sleep(0)
        seen.append(context.payload)
        return len(seen)

    job = stand.do(handler)

    assert (job.result, seen) == (1, [{"n": 1}])


def test_a_coroutine_that_a_decorator_hides_runs_to_its_end(stand: Stand) -> None:
    """It was a success that had run nothing."""
    seen: list[object] = []

    async def handler(context: Context) -> object:
        await asyncio.sleep(0)
        seen.append(context.payload)
        return len(seen)

    job = stand.do(lambda context: handler(context))

    assert (job.result, seen) == (1, [{"n": 1}])


def test_a_generator_that_a_decorator_hides_is_a_failure_because_it_ran_nothing(
    stand: Stand,
) -> None:
    job = stand.do(lambda context: (number for number in [1]))

    assert (job.state, job.error_class) == ("retryable", "TypeError")
    assert "returned a generator" in (job.error_message or "")


def test_the_ack_brings_the_next_job(stand: Stand) -> None:
    stand.add(lambda context: None)
    for _ in range(3):
        stand.queue.enqueue("k", None)
    stand.run()

    assert stand.queue.counts()["succeeded"] == 3
    assert stand.points.count("ack.begin") == 3
    assert stand.points.count("claim.begin") == 1


# Failure.


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        MemoryError(),
        RecursionError(),
    ],
    ids=repr,
)
def test_whatever_a_handler_raises_is_its_failed_attempt_and_the_worker_goes_on(
    stand: Stand, error: BaseException
) -> None:
    """Covers F26."""
    stand.add(lambda context: "fine", "other")
    other = stand.queue.enqueue("other", None, priority=9)
    job = stand.do(failing(error))

    assert (job.state, job.attempt, outcomes(job)) == ("retryable", 1, ["failed"])
    assert job.error_class == type(error).__name__
    assert stand.job(other).state == "succeeded"


class Hasty(RetryLater):
    """Whose author forgot `super().__init__()`."""

    def __init__(self) -> None:
        pass


def test_an_exception_that_can_not_be_judged_ends_no_worker(stand: Stand) -> None:
    negative = Snooze(1)
    negative.seconds = -5
    odd: list[Exception] = [Hasty(), negative]

    def handler(context: Context) -> None:
        raise odd[context.job.id - 1]

    stand.queue.enqueue("k", None, retry="fixed:100")
    stand.do(handler)
    jobs = [stand.job(1), stand.job(2)]
    assert [(job.state, outcomes(job)) for job in jobs] == [("retryable", ["failed"])] * 2


def test_an_attempt_keeps_class_message_and_traceback(stand: Stand) -> None:
    """Covers F32."""

    def handler(context: Context) -> object:
        empty: dict[str, int] = {}
        return empty["missing"]

    attempt = stand.do(handler).attempts[0]

    assert (attempt.error_class, attempt.error_message) == ("KeyError", "'missing'")
    assert attempt.traceback is not None
    assert 'return empty["missing"]' in attempt.traceback


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Leaving(BaseException):
    """Its text, asked for while the attempt is recorded, would take the worker along."""

    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a\0b"),
        ValueError("half \ud83d of a pair"),
        ValueError("\U0001f600" * 3_000_000),
        Mute(),
        Leaving(),
    ],
    ids=["NUL", "lone surrogate", "12 MB", "no text", "text that exits"],
)
def test_an_error_that_can_not_be_stored_as_it_is_is_stored(
    stand: Stand, error: BaseException
) -> None:
    job = stand.do(failing(error))

    assert (job.state, job.attempt) == ("retryable", 1)
    assert job.error_class == type(error).__name__
    assert len(job.error_message or "") <= model.ERROR_CHARS_MAX + 10
    (job.error_message or "").encode("utf-8")


def test_a_permanent_failure_is_dead_at_once(stand: Stand) -> None:
    """Covers F3."""
    job = stand.do(failing(Permanent("no such address")))

    assert (job.state, job.attempt, job.error_message) == ("dead", 1, "no such address")


def test_retry_later_sets_the_delay_and_costs_an_attempt(stand: Stand) -> None:
    """Covers F35."""
    before_ms = stand.clock.now_ms()
    job = stand.do(failing(RetryLater(3_600)))

    assert (job.state, job.attempt) == ("retryable", 1)
    assert 0 <= job.due_ms - before_ms - 3_600_000 < 1_000


def test_a_snooze_is_no_attempt(stand: Stand) -> None:
    job = stand.do(failing(Snooze(60)))

    assert (job.state, job.attempt, outcomes(job)) == ("scheduled", 0, ["snoozed"])


def test_a_hold_waits_for_a_person_and_says_why(stand: Stand) -> None:
    job = stand.do(failing(Hold("was it paid?")), max_attempts=1)

    assert (job.state, outcomes(job), job.error_message) == ("held", ["held"], "was it paid?")


def test_a_word_with_a_wrong_number_is_a_failed_attempt(stand: Stand) -> None:
    def handler(context: Context) -> object:
        raise Snooze(-1)

    job = stand.do(handler)

    assert (job.state, job.error_class) == ("retryable", "ValueError")


# Completion in the file.


def test_completing_writes_the_effect_and_the_success_together(stand: Stand) -> None:
    with stand.queue.transaction() as tx:
        tx.execute("CREATE TABLE paid (n INTEGER)")

    def handler(context: Context) -> None:
        with context.completing({"paid": 1}) as tx:
            tx.execute("INSERT INTO paid VALUES (1)")

    job = stand.do(handler)

    assert (job.state, job.result) == ("succeeded", {"paid": 1})
    assert "handler.effect" in stand.points


def test_a_completion_that_raises_leaves_no_effect(stand: Stand) -> None:
    with stand.queue.transaction() as tx:
        tx.execute("CREATE TABLE paid (n INTEGER)")

    def handler(context: Context) -> None:
        with context.completing() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            raise ValueError("changed my mind")

    job = stand.do(handler)

    with stand.queue.transaction() as tx:
        assert tx.rows("SELECT n FROM paid") == []
    assert (job.state, job.error_class) == ("retryable", "ValueError")


def test_after_its_completion_nothing_a_handler_does_changes_the_success(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(context: Context) -> None:
        with context.completing():
            pass
        raise RuntimeError("too late")

    job = stand.do(handler)

    assert (job.state, outcomes(job)) == ("succeeded", ["succeeded"])
    assert "raised after its completion: RuntimeError: too late" in caplog.text
    assert "refused" not in caplog.text


def test_an_error_after_the_completion_that_can_not_be_shown_ends_no_worker(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(context: Context) -> None:
        with context.completing():
            pass
        raise Leaving

    assert stand.do(handler).state == "succeeded"
    assert "raised after its completion: Leaving: <no text" in caplog.text


# A queue that does not answer.


@pytest.mark.parametrize(
    "error", [DatabaseBusy("locked"), StorageFull("no room"), OutcomeUnknown("cut")], ids=repr
)
def test_an_ack_that_meets_trouble_is_sent_again_and_the_job_not_failed(
    stand: Stand, error: Exception
) -> None:
    runs: list[int] = []
    stand.queue.troubles = {"ack_and_claim": [error] * 3}
    job = stand.do(lambda context: runs.append(1))

    assert runs == [1]
    assert (job.state, job.attempt, outcomes(job)) == ("succeeded", 1, ["succeeded"])


def test_a_worker_told_to_stop_while_its_ack_waits_claims_nothing_with_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.queue.troubles = {"ack_and_claim": [DatabaseBusy("locked")], "ack": []}
    first, second = (stand.queue.enqueue("k", None) for _ in range(2))
    stand.add(lambda context: None)
    monkeypatch.setattr(stand.clock, "sleep", lambda seconds: stand.worker.stop())
    stand.run()

    assert (stand.job(first).state, stand.job(second).deliveries) == ("succeeded", 0)


def test_an_ack_that_stays_impossible_is_given_up_when_the_lease_is_over(stand: Stand) -> None:
    stand.queue.troubles = {"ack_and_claim": [DatabaseBusy("locked")] * 1_000}
    job = stand.do(lambda context: None, lease=10)

    assert stand.clock.monotonic_ns() >= 10_000_000_000
    assert job.state == "leased"  # Nobody renews it: the next claim takes it back.
    stand.clock.advance(1)
    assert stand.queue.reap() == 1


def test_a_claim_that_meets_trouble_is_never_fatal_and_is_said_once(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers F16."""
    stand.queue.troubles = {"claim": [DatabaseBusy("locked"), StorageFull("no room")] * 3}
    job = stand.do(lambda context: None)

    assert job.state == "succeeded"
    assert sum("claim" in record.message for record in caplog.records) == 1


def test_a_failed_disk_ends_the_process_at_once(stand: Stand) -> None:
    stand.queue.troubles = {"ack_and_claim": [StorageFailed("EIO")]}
    stand.do(lambda context: None)

    assert stand.statuses == [EXIT_STORAGE_FAILED]


def test_a_disk_that_fails_inside_a_handler_is_not_its_failure(stand: Stand) -> None:
    job = stand.do(failing(StorageFailed("EIO")))

    assert stand.statuses == [EXIT_STORAGE_FAILED]
    assert outcomes(job) == []


# Kinds.


def test_an_unknown_kind_is_left_alone_and_reported_once(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers S1.33, F30."""
    strange = stand.queue.enqueue("strange", None)
    stand.add(lambda context: None)
    idles = iter(range(3))
    stand.at["worker.idle"] = lambda: (
        stand.worker.stop() if next(idles) == 2 else stand.clock.advance(100)
    )
    stand.run()

    assert stand.job(strange).state == "available"
    assert sum("'strange'" in record.message for record in caplog.records) == 1


def test_a_worker_without_handlers_is_refused(stand: Stand) -> None:
    with pytest.raises(ValueError, match="no handlers"):
        Worker(stand.queue, stand.handlers)


# Stopping.


def test_a_stop_between_claim_and_start_releases_the_job_at_once(stand: Stand) -> None:
    stand.at["handler.start"] = lambda: stand.worker.stop()
    job = stand.do(failing(AssertionError("started")), max_attempts=1)

    assert (job.state, job.attempt, outcomes(job)) == ("available", 0, ["released"])


def test_a_stopping_worker_waits_for_a_held_lock_no_longer_than_its_grace(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed for as long as the lock, up to the busy limit of 30 s."""
    stand.at = {}
    stand.add(lambda context: None)
    stand.queue.enqueue("k", None)
    stand.worker = Worker(stand.queue, stand.handlers, grace=1, clock=stand.clock)
    sleep = stand.clock.sleep

    def stop_once(seconds: float) -> None:
        if not stand.worker._stopping:
            stand.worker.stop()
        sleep(seconds)

    monkeypatch.setattr(stand.clock, "sleep", stop_once)
    with closing(sqlite3.connect(stand.queue.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        started_ns = stand.clock.monotonic_ns()
        stand.worker.run()

    assert stand.clock.monotonic_ns() - started_ns < 2e9
    assert stand.queue.database.busy_limit == 30


def test_a_job_claimed_with_the_last_ack_is_released_on_a_stop(stand: Stand) -> None:
    stand.add(lambda context: None)
    first, second = (stand.queue.enqueue("k", None) for _ in range(2))
    stand.at["ack.committed"] = lambda: stand.worker.stop()
    stand.run()

    assert stand.job(first).state == "succeeded"
    assert (stand.job(second).state, stand.job(second).attempt) == ("available", 0)


def test_a_stopping_worker_claims_nothing_with_its_last_ack(stand: Stand) -> None:
    stand.add(lambda context: stand.worker.stop())
    first, second = (stand.queue.enqueue("k", None) for _ in range(2))
    stand.run()

    assert (stand.job(first).state, stand.job(second).deliveries) == ("succeeded", 0)


def test_a_lease_that_ran_out_before_the_start_starts_nothing(stand: Stand) -> None:
    stand.at["handler.start"] = lambda: stand.clock.advance(61)
    stand.at["handler.end"] = lambda: pytest.fail("it was started")
    stand.add(failing(AssertionError("started")))
    job_id = stand.queue.enqueue("k", None)
    stand.at["release.committed"] = lambda: stand.worker.stop()
    stand.run()

    assert outcomes(stand.job(job_id)) == ["released"]


@pytest.mark.parametrize(("ended", "statuses"), [(False, [EXIT_HANDLER_HUNG]), (True, [])])
def test_a_handler_that_ends_while_it_is_left_behind_takes_no_next_job_with_it(
    stand: Stand, ended: bool, statuses: list[int]
) -> None:
    stand.add(lambda context: None, timeout=1.0)
    job_id = stand.queue.enqueue("k", None)
    lease = stand.queue.claim()
    assert lease is not None
    tenure = Tenure(lease, now_ns=stand.clock.monotonic_ns(), timeout=1.0)
    stand.at["nack.committed"] = lambda: setattr(tenure, "ended", ended)
    worker = Worker(stand.queue, stand.handlers, clock=stand.clock, leave=stand.statuses.append)
    worker._on_overdue(tenure, "timeout")

    assert outcomes(stand.job(job_id)) == ["failed"]
    assert stand.statuses == statuses


# Interruptions, by real signals to this process.


def spin(context: Context) -> object:
    while True:
        pass


@pytest.fixture
def live(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    """A stand on the real clock, for limits of some milliseconds."""
    stand = Stand(place / "queue.db", monkeypatch)
    stand.queue.close()
    stand.queue = Unwilling(place / "queue.db")
    stand.queue.troubles = {}
    yield stand
    stand.queue.close()


def run_live(
    stand: Stand,
    handler: Callable[[Context], object],
    *,
    timeout: float = 900.0,
    lease: float = 60.0,
) -> Job:
    stand.add(handler, timeout=timeout)
    job_id = stand.queue.enqueue("k", None, retry="fixed:100", lease=lease)
    stand.worker = Worker(stand.queue, stand.handlers, poll=0.01, leave=stand.statuses.append)
    stand.worker.run()
    return stand.job(job_id)


def test_a_handler_over_its_time_limit_is_interrupted_and_failed(live: Stand) -> None:
    """Covers F28."""
    job = run_live(live, spin, timeout=BRIEF_SECONDS)

    assert (job.state, job.attempt, job.error_class) == ("retryable", 1, "HandlerTimeout")
    assert "while True" in (job.attempts[0].traceback or "")


def test_the_limit_is_not_swallowed_by_a_handlers_own_except_exception(live: Stand) -> None:
    def handler(context: Context) -> object:
        while True:
            try:
                spin(context)
            except Exception:
                continue

    job = run_live(live, handler, timeout=BRIEF_SECONDS)

    assert job.error_class == "HandlerTimeout"


def test_a_coroutine_over_its_time_limit_is_cancelled(live: Stand) -> None:
    seen: list[str] = []

    async def handler(context: Context) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            seen.append("cleaned up")

    job = run_live(live, handler, timeout=BRIEF_SECONDS)

    assert (job.error_class, seen) == ("HandlerTimeout", ["cleaned up"])


def test_an_interruption_waits_for_the_end_of_a_transaction(live: Stand) -> None:
    """Cut inside a transaction, an outcome would be unknown that is known."""

    def handler(context: Context) -> object:
        end_ns = (context._tenure.timeout_at_ns or 0) + 50_000_000
        with context.completing("whole"):
            while live.worker._clock.monotonic_ns() < end_ns:
                pass
        return spin(context)

    job = run_live(live, handler, timeout=BRIEF_SECONDS)

    assert (job.state, job.result) == ("succeeded", "whole")


def test_a_handler_is_told_at_the_next_heartbeat_when_its_job_is_cancelled(live: Stand) -> None:
    told: list[bool] = []

    def handler(context: Context) -> object:
        live.queue.cancel(context.job.id)
        try:
            spin(context)
        finally:
            # Long before the window of its lease is over.
            told.append(live.worker._clock.monotonic_ns() < context._tenure.trusted_until_ns)
            assert context.lost
        return None

    job = run_live(live, handler, lease=3.0)

    assert told == [True]
    assert (job.state, outcomes(job)) == ("cancelled", ["cancelled"])


def test_a_signal_ends_a_handler_after_the_grace_and_releases_its_job(live: Stand) -> None:
    live.at = {}

    def handler(context: Context) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return spin(context)

    live.add(handler)
    job_id = live.queue.enqueue("k", None, max_attempts=1)
    Worker(live.queue, live.handlers, grace=0.02).run()

    assert outcomes(live.job(job_id)) == ["released"]
    assert live.job(job_id).state == "available"


def test_a_second_signal_ends_the_grace_at_once(live: Stand) -> None:
    live.at = {}

    def handler(context: Context) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        return spin(context)

    live.add(handler)
    job_id = live.queue.enqueue("k", None)
    Worker(live.queue, live.handlers, grace=3_600).run()

    assert outcomes(live.job(job_id)) == ["released"]


@pytest.mark.parametrize("way", ["ignored", "default", "blocked", "event loop"])
def test_a_handler_that_changes_the_signals_does_not_change_how_the_worker_stops(
    live: Stand, way: str
) -> None:
    live.at = {}

    async def serve() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)

    def change(context: Context) -> None:
        if way == "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGALRM])
        elif way == "event loop":
            asyncio.run(serve())  # Its end leaves SIGTERM at the default: death.
        else:
            action = signal.SIG_IGN if way == "ignored" else signal.SIG_DFL
            signal.signal(signal.SIGTERM, action)
            signal.signal(signal.SIGALRM, action)

    ours: list[bool] = []

    def look(context: Context) -> object:
        worker = live.worker
        ours.append(signal.getsignal(signal.SIGTERM) == worker._on_stop_signal)
        ours.append(signal.getsignal(signal.SIGALRM) == worker._on_alarm)
        ours.append(not signal.pthread_sigmask(signal.SIG_BLOCK, []))
        worker.stop()
        return all(ours)

    live.add(change, kind="change")
    live.add(look, kind="look")
    live.queue.enqueue("change", None, priority=0)
    job_id = live.queue.enqueue("look", None)
    live.worker = Worker(live.queue, live.handlers, poll=0.01, leave=live.statuses.append)
    live.worker.run()

    assert live.job(job_id).result is True


def test_run_gives_the_signals_back(live: Stand) -> None:
    former = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    run_live(live, lambda context: None)

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == former
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_run_outside_of_the_main_thread_is_refused(live: Stand) -> None:
    live.add(lambda context: None)
    worker = Worker(live.queue, live.handlers)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert "main thread" in str(errors[0])


# Logs.


def test_every_line_about_a_job_carries_its_id_kind_attempt_and_key(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    job = stand.do(failing(ValueError("boom")), key="report:1")
    line = f"job_id={job.id} kind=k attempt=1 key=report:1: nack after "
    records = [record for record in caplog.records if record.message.startswith(line)]

    assert len(records) == 1
    assert records[0].message.endswith("ValueError: boom")
    assert json.dumps([vars(records[0])[name] for name in ("job_id", "kind", "key")]) == (
        f'[{job.id}, "k", "report:1"]'
    )


def test_a_log_handler_that_raises_never_stops_the_work(stand: Stand) -> None:
    """Covers F2."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the log is on fire")

    logger = logging.Logger("broken", logging.DEBUG)
    logger.addHandler(Broken())
    stand.add(failing(ValueError("boom")))
    first, second = (stand.queue.enqueue("k", None, max_attempts=1) for _ in range(2))
    stand.worker = Worker(stand.queue, stand.handlers, clock=stand.clock, logger=logger)
    stand.worker.run()

    assert [stand.job(job_id).state for job_id in (first, second)] == ["dead", "dead"]


def test_orders_to_stop_are_no_exceptions_that_a_handler_catches_by_accident() -> None:
    assert not issubclass(HandlerTimeout, Exception)
    assert not issubclass(HandlerStopped, Exception)
