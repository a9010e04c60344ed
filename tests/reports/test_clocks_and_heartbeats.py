"""Clocks that jump or differ, heartbeats that tell too little or too much, and stops.

What needs no process runs under clocks that move by hand; signals and hung handlers are real.
"""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from killproof import Host, Job, Lease, LeaseLost, ManualClock, Queue, worker
from killproof.heartbeat import Heartbeat, Tenure
from killproof.worker import Handlers, Worker

SECONDS_MAX = 120.0
HOUR = 3_600
Made = type[Queue]


def opened(place: Path, clock: ManualClock, make: Made = Queue) -> Queue:
    return make(place / "q.db", durability="process", host=Host(clock=clock))


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def read(queue: Queue, job_id: int) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job


class OneClock(ManualClock):
    """Measures leases and waits by the clock on the wall."""

    def monotonic_ns(self) -> int:
        return self.wall_ms * 1_000_000


# B88: a function of SQLite's that knows no such argument gives NULL, and NULL is never true.


#: Lets SQLite compute the time: before 3.42 it does not know 'subsec', and says NULL.
AsksSqlite: Made = type(
    "AsksSqlite",
    (Queue,),
    {"PROMOTE": Queue.PROMOTE.replace("<= :now_ms", "<= unixepoch(:now_ms, 'no such word')")},
)


def check_a_delayed_job_runs_at_its_time(place: Path, make: Made) -> None:
    clock = ManualClock()
    with opened(place, clock, make) as queue:
        queue.enqueue("kind", 1, delay=60)
        clock.advance(59.999)
        assert queue.claim() is None, "early"
        clock.advance(0.001)
        assert queue.claim() is not None, "never"


def test_a_delayed_job_runs_at_its_very_millisecond(place: Path) -> None:
    """B88: delayed jobs never ran on SQLite."""
    check_a_delayed_job_runs_at_its_time(place, Queue)


def test_a_time_that_sqlite_computes_is_seen_to_be_null(place: Path) -> None:
    """B88, control."""
    with pytest.raises(AssertionError, match="never"):
        check_a_delayed_job_runs_at_its_time(place, AsksSqlite)


TIME_FUNCTIONS = ("unixepoch", "julianday", "strftime", "datetime(", "current_timestamp", "'now'")


def check_no_statement_tells_the_time(make: Made) -> None:
    statements = {name: getattr(make, name) for name in dir(make) if name.isupper()}
    assert len(statements) > 20
    for name, sql in statements.items():
        assert not any(word in str(sql).lower() for word in TIME_FUNCTIONS), name


def test_no_statement_asks_sqlite_for_the_time() -> None:
    """B88, B85: every time is an integer that one function of ours made."""
    check_no_statement_tells_the_time(Queue)
    with pytest.raises(AssertionError, match="PROMOTE"):  # The control.
        check_no_statement_tells_the_time(AsksSqlite)


# B89, B97: clocks that differ, and clocks that jump.


def check_clocks_that_differ_take_no_live_lease(place: Path, make: type[ManualClock]) -> None:
    """Two programs a quarter of an hour apart on the wall, and together since the boot."""
    ours, theirs = make(), make()
    theirs.step_wall(900)
    with opened(place, ours) as queue, opened(place, theirs) as other:
        job_id = queue.enqueue("kind", 1, lease=60)
        lease = claimed(queue)
        for clock in (ours, theirs):
            clock.advance(50)
        assert other.reap() == 0, "a live lease was taken"
        queue.extend(lease)
        for clock in (ours, theirs):
            clock.advance(61)
        assert other.reap() == 1, "a dead lease is kept"
        assert read(queue, job_id).state == "available"


def test_programs_whose_wall_clocks_differ_take_no_live_lease_and_keep_no_dead_one(
    place: Path,
) -> None:
    """B89: a sleep computed with one clock and compared with another; 492 double runs."""
    check_clocks_that_differ_take_no_live_lease(place, ManualClock)


def test_leases_on_the_wall_clock_are_seen_to_be_taken(place: Path) -> None:
    """B89, control."""
    with pytest.raises(AssertionError, match="live lease"):
        check_clocks_that_differ_take_no_live_lease(place, OneClock)


def check_a_jump_ends_no_lease_and_no_wait(
    place: Path, make: type[ManualClock], hours: int
) -> None:
    clock = make()
    with opened(place, clock) as queue, opened(place, clock) as other:
        queue.enqueue("kind", 1, lease=60)
        lease = claimed(queue)
        clock.step_wall(hours * HOUR)
        assert other.reap() == 0, "a live lease was taken"
        before = clock.elapsed_ns
        assert not other.wait(["none"], 2)
        waited = (clock.elapsed_ns - before) / 1e9
        assert 1.9 <= waited < 3, "the wait went by the wall"
        clock.advance(61)
        assert other.reap() == 1, "a dead lease is kept"
        with pytest.raises(LeaseLost):
            queue.ack(lease)


@pytest.mark.parametrize("hours", [1, -1])
def test_a_jump_of_the_wall_clock_ends_no_lease_and_stretches_no_wait(
    place: Path, hours: int
) -> None:
    """B97: a jump backwards stalled the queue, or leased again."""
    check_a_jump_ends_no_lease_and_no_wait(place, ManualClock, hours)


@pytest.mark.parametrize(("hours", "words"), [(1, "live lease"), (-1, "dead lease is kept")])
def test_leases_on_the_wall_clock_are_seen_to_jump_with_it(
    place: Path, hours: int, words: str
) -> None:
    """B97, control."""
    with pytest.raises(AssertionError, match=words):
        check_a_jump_ends_no_lease_and_no_wait(place, OneClock, hours)


# B38: a durable sleep whose wake-up is a timer in memory.


class SleepsInMemory(Queue):
    """Keeps what is due in the process that put it in."""

    def _promote(self, *_: Any) -> None:
        return


def check_a_sleep_outlives_its_process(place: Path, make: Made) -> None:
    clock = ManualClock()
    with opened(place, clock) as queue:
        queue.enqueue("kind", 1)
        queue.snooze(claimed(queue), 2)
    clock.advance(5)  # Nobody lives.
    with opened(place, clock, make) as again:
        assert again.wait(None, 0)
        assert again.claim() is not None, "it never wakes"


def test_a_sleep_that_ends_while_nobody_lives_is_over_at_the_next_start(place: Path) -> None:
    """B38: the wake-up was a timer in memory."""
    check_a_sleep_outlives_its_process(place, Queue)


def test_a_sleep_that_nobody_looks_up_is_seen_never_to_end(place: Path) -> None:
    """B38, control."""
    with pytest.raises(AssertionError, match="never wakes"):
        check_a_sleep_outlives_its_process(place, SleepsInMemory)


# B22: a renewal that blocks for longer than the lease.


class Blocked:
    """A file that is locked for longer than the lease while it is renewed."""

    def __init__(self, queue: Queue, clock: ManualClock) -> None:
        self.queue, self.clock = queue, clock

    def extend(self, lease: Lease) -> object:
        renewed = self.queue.extend(lease)
        self.clock.advance(70)
        return renewed


def silent_heartbeat(queue: Any, clock: ManualClock, lost: list[Tenure]) -> Heartbeat:
    return Heartbeat(
        queue, clock, on_lost=lost.append, on_overdue=lambda *_: None,
        on_storage_failed=lambda *_: None, overdue_grace=5, log=lambda *_: None,
    )  # fmt: skip


def check_trust_ends_before_others_may_claim(place: Path, make: type[Tenure]) -> None:
    clock = ManualClock()
    with opened(place, clock) as queue, opened(place, clock) as other:
        queue.enqueue("kind", 1, lease=60)
        tenure = make(claimed(queue), now_ns=clock.monotonic_ns())
        heartbeat = silent_heartbeat(Blocked(queue, clock), clock, [])
        heartbeat.watch(tenure)
        clock.advance(20)
        heartbeat.beat()
        others_may = other.reap() == 1
        assert others_may
        assert tenure.is_lost(clock.monotonic_ns()), "two attempts at once"


class TrustsFromTheEnd(Tenure):
    """Counts its window from when the renewal came back."""

    def renewed(self, started_ns: int, now_ns: int) -> None:
        self.trusted_until_ns = now_ns + self.length_ns


def test_a_worker_whose_renewal_hangs_stops_trusting_before_others_may_claim(place: Path) -> None:
    """B22: renewals succeeded, and two attempts ran at once."""
    check_trust_ends_before_others_may_claim(place, Tenure)


def test_a_window_that_counts_from_the_answer_is_seen_to_overlap(place: Path) -> None:
    """B22, control."""
    with pytest.raises(AssertionError, match="two attempts"):
        check_trust_ends_before_others_may_claim(place, TrustsFromTheEnd)


# B103: a false 'lease lost' after the success.


class Overtaken:
    """The ack comes between the heartbeat's look and its renewal."""

    def __init__(self, queue: Queue, tenure: Tenure, settles: bool) -> None:
        self.queue, self.tenure, self.settles = queue, tenure, settles

    def extend(self, lease: Lease) -> object:
        self.tenure.settling = self.settles
        self.queue.ack(lease)
        return self.queue.extend(lease)


def check_an_overtaken_renewal_is_no_loss(place: Path, settles: bool) -> None:
    clock = ManualClock()
    with opened(place, clock) as queue:
        queue.enqueue("kind", 1, lease=60)
        tenure = Tenure(claimed(queue), now_ns=clock.monotonic_ns())
        lost: list[Tenure] = []
        heartbeat = silent_heartbeat(Overtaken(queue, tenure, settles), clock, lost)
        heartbeat.watch(tenure)
        clock.advance(20)
        heartbeat.beat()
        assert lost == [], "told that it lost a job that it had finished"
        assert not tenure.is_lost(clock.monotonic_ns())


def test_a_renewal_that_the_ack_overtook_is_no_loss(place: Path) -> None:
    """B103: the renewal was in flight while the ack deleted the lease."""
    check_an_overtaken_renewal_is_no_loss(place, settles=True)


def test_a_heartbeat_that_does_not_know_of_the_ack_is_seen_to_tell_a_loss(place: Path) -> None:
    """B103, control."""
    with pytest.raises(AssertionError, match="told that it lost"):
        check_an_overtaken_renewal_is_no_loss(place, settles=False)


# B104: an exception that is no Exception.


def catches_exceptions_only() -> Callable[..., Any]:
    """Return the worker's call of a handler with a narrower `except`."""
    source = textwrap.dedent(inspect.getsource(Worker._call))
    guard = "except BaseException as error:"
    assert guard in source
    made: dict[str, Any] = {}
    exec(source.replace(guard, "except Exception as error:"), vars(worker), made)
    call: Callable[..., Any] = made["_call"]
    return call


def check_a_cancellation_leaves_a_legal_state(place: Path, at: int) -> None:
    handlers = Handlers()

    @handlers("kind")
    async def awaits(context: object) -> None:
        for number in range(3):
            if number == at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            await asyncio.sleep(0)

    with Queue(place / "q.db", durability="process") as queue:
        job_id = queue.enqueue("kind", 1, max_attempts=2, retry="fixed:3600")
        made = Worker(queue, handlers, poll=0.01)
        queue.enqueue("stop", 1, priority=9)

        @handlers("stop")
        def stop(context: object) -> None:
            made.stop()

        with suppress(asyncio.CancelledError):
            made.run()
        job = read(queue, job_id)
        assert (job.state, job.error_class) == ("retryable", "CancelledError")
        assert queue.counts()["succeeded"] == 1, "the worker did not go on"


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_cancellation_at_any_await_is_a_failed_attempt_and_not_the_workers_end(
    place: Path, at: int
) -> None:
    """B104: CancelledError is no Exception, and slipped through."""
    check_a_cancellation_leaves_a_legal_state(place, at)


def test_a_worker_that_catches_exceptions_only_is_seen_to_lose_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B104, control."""
    monkeypatch.setattr(Worker, "_call", catches_exceptions_only())
    with pytest.raises(AssertionError):
        check_a_cancellation_leaves_a_legal_state(place, 1)


# B101, B106, B107, B52: hung handlers, signals, and the grace.

WORKER = """
import os, signal, sys, time
from killproof import Queue
from killproof.core import sync
from killproof.handlers import Handler
from killproof.worker import Handlers, Worker

handlers = Handlers()

def note(word):
    said = os.open(sys.argv[1] + ".said", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(said, f"{word}\\n".encode())
    os.close(said)

@handlers("hangs", timeout=TIMEOUT)
def hangs(context):
    note("starts")
    while True:
        time.sleep(0.01)

exec(sys.argv[2])
with Queue(sys.argv[1]) as queue:
    Worker(queue, handlers, grace=GRACE, overdue_grace=30.0, poll=0.02).run()
note("left")
"""


def start(queue: Queue, timeout: str, grace: str, guard: str = "") -> "subprocess.Popen[bytes]":
    code = WORKER.replace("TIMEOUT", timeout).replace("GRACE", grace)
    argv = [sys.executable, "-c", code, queue.path, guard]
    return subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)


def wait_until(condition: Callable[[], bool], seconds: float = SECONDS_MAX) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def has_said(queue: Queue, word: str) -> bool:
    try:
        return word in Path(f"{queue.path}.said").read_text().split()
    except FileNotFoundError:
        return False


def check_a_hung_job_is_ended(place: Path, timeout: str, renewals: int) -> None:
    """Wait for the job's end, or until its lease has been renewed so often."""
    ends_ns: set[object] = set()

    def is_over() -> bool:
        sql = "SELECT lease_deadline_ns FROM job WHERE lease_deadline_ns IS NOT NULL"
        ends_ns.update(end_ns for (end_ns,) in queue.database.peek(sql))
        return read(queue, job_id).state == "dead" or len(ends_ns) > renewals

    with Queue(place / "q.db", durability="process") as queue:
        job_id = queue.enqueue("hangs", 1, lease=2.0, max_attempts=1)
        process = start(queue, timeout, "5")
        try:
            assert wait_until(lambda: has_said(queue, "starts"))
            assert wait_until(is_over)
        finally:
            process.kill()
            process.wait()
        assert read(queue, job_id).state == "dead", "it holds its lease for ever"
        assert read(queue, job_id).error_class == "HandlerTimeout"


def test_a_hung_job_is_ended_by_its_time_limit_while_its_heartbeat_goes_on(place: Path) -> None:
    """B101: the engine renewed for a job that hung."""
    check_a_hung_job_is_ended(place, "1.0", 1_000)


def test_a_hung_job_without_a_limit_is_seen_to_keep_its_lease(place: Path) -> None:
    """B101, control."""
    with pytest.raises(AssertionError, match="for ever"):
        check_a_hung_job_is_ended(place, "None", 2)


def stopped(queue: Queue, signals: int, grace: str, guard: str = "") -> int:
    """Start a worker whose handler hangs, and stop its group so often; return its status."""
    process = start(queue, "None", grace, guard)
    try:
        assert wait_until(lambda: has_said(queue, "starts"))
        for signum in (signal.SIGTERM, signal.SIGINT)[:signals]:  # Two equal ones would be one.
            os.killpg(process.pid, signum)
        return process.wait(SECONDS_MAX)
    finally:
        process.kill()
        process.wait()


def check_a_stop_gives_the_attempt_back(
    place: Path, signals: int, grace: str, guard: str = ""
) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        job_id = queue.enqueue("hangs", 1, max_attempts=1)
        assert stopped(queue, signals, grace, guard) == 0
        job = read(queue, job_id)
        assert (job.state, job.attempt, job.failures) == ("available", 0, 0), "an attempt is burnt"
        assert has_said(queue, "left")


@pytest.mark.parametrize(
    ("signals", "grace"), [(1, "0.1"), (2, "60")], ids=["grace over", "a second signal"]
)
def test_a_job_that_outlives_the_grace_is_released_and_its_attempt_returned(
    place: Path, signals: int, grace: str
) -> None:
    """B52, B106, B107: no rule for jobs over the grace; TERM to the whole group; a burnt try."""
    check_a_stop_gives_the_attempt_back(place, signals, grace)


BURNS = """
Worker._interruption = lambda *_: RuntimeError("stopped")
"""


def test_a_stop_that_counts_as_a_failure_is_seen(place: Path) -> None:
    """B52, B106, B107, control."""
    with pytest.raises(AssertionError, match="burnt"):
        check_a_stop_gives_the_attempt_back(place, 1, "0.1", BURNS)


def check_ten_deploys_burn_nothing(place: Path, give_back: Callable[[Queue, Lease], None]) -> None:
    clock = ManualClock()
    with opened(place, clock) as queue:
        queue.enqueue("kind", 1, max_attempts=2, retry="immediate")
    for _ in range(10):
        with opened(place, clock) as queue:
            give_back(queue, claimed(queue))
            clock.advance(1)
    with opened(place, clock) as queue:
        assert claimed(queue).job.attempt == 1


def test_after_ten_deploys_a_job_of_two_attempts_still_runs(place: Path) -> None:
    """B52: what a closing queue still holds is given back, and was no attempt."""
    check_ten_deploys_burn_nothing(place, lambda queue, lease: None)


def test_deploys_that_count_as_failures_are_seen_to_end_the_job(place: Path) -> None:
    """B52, control."""
    with pytest.raises(AssertionError):
        check_ten_deploys_burn_nothing(place, lambda queue, lease: queue.nack(lease, "deploy"))
