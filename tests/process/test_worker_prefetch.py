"""Workers that claim several jobs at once: each keeps its lease, and none starts without it."""

import logging
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from killproof import DatabaseBusy, Host, Job, Lease, LeaseLost, ManualClock, Queue
from killproof.core import sync
from killproof.heartbeat import Tenure
from killproof.journal import Journal
from killproof.outcomes import Outcome
from killproof.prefetching import KEEP_SECONDS, Prefetch
from killproof.worker import Context, Handlers, Worker

SECONDS_MAX = 20.0


@pytest.fixture
def queue(place: Path) -> Iterator[Queue]:
    with Queue(place / "q.db", durability="process") as queue:
        yield queue


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks are written with the next claim alone."""
    monkeypatch.setattr("killproof.prefetching.KEEP_SECONDS", 3 * SECONDS_MAX)


def work(
    queue: Queue, handle: Callable[[Context], object], *, last: int, prefetch: int = 3
) -> list[object]:
    """Run a worker until it has started so many jobs; return their payloads."""
    handlers = Handlers()
    started: list[object] = []

    @handlers("kind", timeout=SECONDS_MAX)
    def kind(context: Context) -> object:
        started.append(context.payload)
        if len(started) == last:
            worker.stop()
        return handle(context)

    worker = Worker(queue, handlers, prefetch=prefetch, poll=0.05)
    worker.run()
    return started


def read(queue: Queue, job_id: int) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("prefetch", [0, -1, 101, 1.5, True])
def test_a_prefetch_that_cannot_be_one_is_refused_with_the_value(
    queue: Queue, prefetch: int
) -> None:
    handlers = Handlers()
    handlers("kind")(lambda _: None)
    with pytest.raises(ValueError, match=f"prefetch {prefetch}"):
        Worker(queue, handlers, prefetch=prefetch)


@pytest.mark.usefixtures("patience")
def test_one_transaction_acks_what_is_finished_and_claims_the_next(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(25)])
    points: list[str] = []
    monkeypatch.setattr(sync, "hook", points.append)

    assert work(queue, lambda c: c.payload, last=25, prefetch=10) == list(range(25))
    assert points.count("ack.committed") == 4  # 10 claims, 10 and 10, 10 and 5, 5 and a stop.
    assert points.count("claim.committed") == 0
    assert [read(queue, job_id).result for job_id in ids] == list(range(25))


def test_what_waits_at_a_stop_is_given_back_and_was_no_attempt(queue: Queue) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(3)])

    assert work(queue, lambda _: None, last=1) == [0]
    jobs = [read(queue, job_id) for job_id in ids]
    assert [job.state for job in jobs] == ["succeeded", "available", "available"]
    assert [(job.deliveries, job.forgiven, job.crashes) for job in jobs[1:]] == [(1, 1, 0)] * 2


def test_what_waits_at_a_stop_does_not_wait_for_the_handler_that_runs(queue: Queue) -> None:
    _, second, _ = queue.enqueue_many([("kind", number) for number in range(3)])
    with Queue(queue.path) as other:

        def handle(_: Context) -> None:
            wait_until(lambda: read(other, second).state == "available")
            seen.append(True)

        seen: list[bool] = []
        assert work(queue, handle, last=1) == [0]
    assert seen


def test_a_job_that_was_cancelled_while_it_waited_is_never_started(queue: Queue) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(3)])

    def handle(context: Context) -> None:
        if context.payload == 0:
            queue.cancel(ids[1])

    assert work(queue, handle, last=2) == [0, 2]
    assert read(queue, ids[1]).state == "cancelled"


def test_a_job_that_somebody_else_has_taken_while_it_waited_is_never_started(queue: Queue) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(3)])

    def handle(context: Context) -> None:
        if context.payload == 0:
            with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:
                connection.execute(
                    "UPDATE job SET fence = fence + 1, deliveries = deliveries + 1 WHERE id = ?",
                    (ids[1],),
                )

    assert work(queue, handle, last=2) == [0, 2]


def test_a_job_whose_deadline_passed_while_it_waited_is_never_started(queue: Queue) -> None:
    queue.enqueue("kind", 0)
    moment = time.time() + 0.3
    late = queue.enqueue("kind", 1, deadline=moment)
    queue.enqueue("kind", 2)

    def handle(context: Context) -> None:
        if context.payload == 0:
            wait_until(lambda: time.time() > moment)

    assert work(queue, handle, last=2) == [0, 2]
    queue.claim()
    assert read(queue, late).state == "expired"


def test_no_ack_waits_for_a_handler_that_takes_long(queue: Queue) -> None:
    first, *_ = queue.enqueue_many([("kind", number) for number in range(3)])
    with Queue(queue.path) as other:

        def handle(context: Context) -> None:
            if context.payload == 1:
                wait_until(lambda: read(other, first).state == "succeeded")
                seen.append(True)

        seen: list[bool] = []
        assert work(queue, handle, last=3) == [0, 1, 2]
    assert seen


def test_an_ack_is_written_in_time_though_the_thread_has_looked_just_before(place: Path) -> None:
    clock = ManualClock()
    with Queue(place / "m.db", durability="process", host=Host(clock=clock)) as queue:
        queue.enqueue_many([("kind", number) for number in range(3)])
        ahead = Prefetch(
            queue,
            ["kind"],
            3,
            clock=clock,
            journal=Journal(logging.getLogger("killproof")),
            admit=lambda lease: Tenure(lease, now_ns=clock.monotonic_ns()),
            is_stopping=lambda: False,
            on_storage_failed=lambda error: None,
        )
        ahead.claim()
        tenure = ahead.next()
        assert tenure is not None
        ahead.keep(tenure, Outcome(word="ack"))
        clock.advance(KEEP_SECONDS / 2)
        rest = ahead._beat()
        assert rest == pytest.approx(KEEP_SECONDS / 2)
        assert ahead.has_unwritten()
        clock.advance(rest)
        ahead._beat()

        assert not ahead.has_unwritten()
        assert queue.counts()["succeeded"] == 1


def test_the_lease_of_what_waits_is_renewed(queue: Queue) -> None:
    queue.enqueue("kind", 0, lease=600)
    queue.enqueue("kind", 1, lease=3)
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:

        def deadline_ns() -> int:
            sql = "SELECT lease_deadline_ns FROM job WHERE payload = '1'"
            return int(connection.execute(sql).fetchone()[0])

        def handle(context: Context) -> None:
            if context.payload == 0:
                before = deadline_ns()
                wait_until(lambda: deadline_ns() > before)
                seen.append(True)

        seen: list[bool] = []
        assert work(queue, handle, last=2) == [0, 1]
    assert seen


def test_failures_and_stale_acks_among_several_harm_no_other(queue: Queue) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(4)])

    def handle(context: Context) -> object:
        if context.payload == 0:
            queue.release(context.lease)  # Its own ack is refused now.
        if context.payload == 1:
            raise ValueError("no")
        return context.payload

    assert work(queue, handle, last=4, prefetch=4) == [0, 1, 2, 3]
    assert [read(queue, job_id).state for job_id in ids] == [
        "available",
        "retryable",
        "succeeded",
        "succeeded",
    ]


@pytest.mark.usefixtures("patience")
def test_acks_kept_back_outlive_a_busy_file(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(2)])
    queue.database.busy_limit = 0.01
    real = Prefetch.claim
    calls: list[int] = []

    def claim(self: Prefetch) -> None:
        calls.append(len(calls))
        if len(calls) != 2:
            real(self)
            return
        with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            real(self)

    monkeypatch.setattr(Prefetch, "claim", claim)
    queue.enqueue("kind", 2)

    assert work(queue, lambda c: c.payload, last=3, prefetch=2) == [0, 1, 2]
    assert [read(queue, job_id).state for job_id in ids] == ["succeeded"] * 2


def test_a_file_that_is_busy_when_the_next_is_looked_at_ends_no_worker(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(3)])
    real = Queue.is_current
    looks: list[Lease] = []

    def is_current(self: Queue, lease: Lease) -> bool:
        looks.append(lease)
        if len(looks) == 2:
            raise DatabaseBusy("locked")
        return real(self, lease)

    monkeypatch.setattr(Queue, "is_current", is_current)

    assert work(queue, lambda _: None, last=3) == [0, 1, 2]
    assert [read(queue, job_id).state for job_id in ids] == ["succeeded"] * 3


@pytest.mark.usefixtures("patience")
def test_an_ack_that_sqlite_refuses_takes_no_other_with_it(queue: Queue) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(4)])
    with queue.transaction() as tx:
        tx.execute(
            "CREATE TRIGGER odd BEFORE UPDATE ON job WHEN NEW.state = 'succeeded'"
            " AND NEW.payload = '1' BEGIN SELECT RAISE(ABORT, 'odd'); END"
        )

    assert work(queue, lambda _: None, last=4) == [0, 1, 2, 3]
    ids.pop()
    assert [read(queue, job_id).state for job_id in ids] == ["succeeded", "leased", "succeeded"]


@pytest.mark.usefixtures("patience")
def test_a_worker_that_ends_by_an_error_writes_the_acks_it_has_kept_back(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(3)])

    def odd(_: Prefetch) -> Tenure | None:
        raise RuntimeError("odd")

    def handle(_: Context) -> None:
        monkeypatch.setattr(Prefetch, "next", odd)

    with pytest.raises(RuntimeError, match="odd"):
        work(queue, handle, last=3)
    assert [read(queue, job_id).state for job_id in ids] == ["succeeded", *["available"] * 2]


def test_a_worker_that_leaves_waits_for_the_acks_that_its_thread_is_writing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("killproof.heartbeat.LEAVE_SECONDS", 0.01)
    ids = queue.enqueue_many([("kind", number) for number in range(2)])
    writing: list[str] = []

    def note(point: str) -> None:
        if point == "ack.begin":
            writing.append(threading.current_thread().name)

    monkeypatch.setattr(sync, "hook", note)
    with closing(
        sqlite3.connect(queue.path, isolation_level=None, check_same_thread=False)
    ) as connection:
        end = threading.Timer(0.2, connection.execute, ("ROLLBACK",))

        def handle(context: Context) -> None:
            if context.payload == 1:
                connection.execute("BEGIN IMMEDIATE")
                wait_until(lambda: "killproof-heartbeat" in writing)
                end.start()
                raise LeaseLost(context.lease.job.id, context.lease.fence, "handler")

        assert work(queue, handle, last=2, prefetch=2) == [0, 1]
        assert read(queue, ids[0]).state == "succeeded"
        end.join()


#: Works with jobs waiting; the poisonous one ends it as the out-of-memory killer does.
KILLED = """
import os, signal, sys
from killproof import Queue
from killproof.worker import Handlers, Worker
handlers = Handlers()
@handlers("kind")
def kind(context):
    if context.payload == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    if context.payload == "last":
        worker.stop()
worker = Worker(Queue(sys.argv[1]), handlers, prefetch=8)
worker.run()
"""


def test_a_job_that_kills_its_worker_costs_its_neighbours_one_attempt_at_most(
    queue: Queue,
) -> None:
    innocent = queue.enqueue_many([("kind", "before")])
    poison = queue.enqueue("kind", "poison", max_attempts=3, retry="immediate")
    innocent += queue.enqueue_many([("kind", "behind"), ("kind", "behind")])
    queue.enqueue("kind", "last", priority=9)
    codes: list[int] = []
    while not codes or codes[-1] != 0:
        assert len(codes) < 9
        codes.append(
            subprocess.run([sys.executable, "-c", KILLED, queue.path], check=False).returncode
        )

    assert codes == [-signal.SIGKILL] * 3 + [0]
    assert read(queue, poison).state == "dead"
    jobs = [read(queue, job_id) for job_id in innocent]
    assert [job.state for job in jobs] == ["succeeded"] * 3
    assert max(job.crashes for job in jobs) == 1
