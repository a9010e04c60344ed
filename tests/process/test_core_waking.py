"""Idle workers: woken by the commit that brings them a job, and found out without it all the same.

`IDLE_PAUSE` is put off in most tests, so that only a wake-up ends a wait in time.
"""

import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from killproof import Lease, Queue
from killproof.core import jobs
from killproof.core import turnstile as turnstile_module
from killproof.core.turnstile import Turnstile, classes_of
from killproof.workflow import Workflow, Workflows

SECONDS_MAX = 60.0
NEVER = 3 * SECONDS_MAX

pytestmark = pytest.mark.skipif(turnstile_module._SYS_FUTEX is None, reason="no futex here")


@pytest.fixture
def path(place: Path) -> str:
    return str(place / "q.db")


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself: whoever is not woken sleeps longer than the test waits."""
    monkeypatch.setattr(jobs, "IDLE_PAUSE", NEVER)
    monkeypatch.setattr(jobs, "HOLDERS_PAUSE", NEVER)


class Waiter:
    """A thread in `Queue.wait`, on an object of its own."""

    def __init__(self, path: str, kinds: list[str] | None = None, seconds: float = NEVER) -> None:
        self.found: bool | None = None
        self.is_stopped = False
        self._path, self._kinds, self._seconds = path, kinds, seconds
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()
        wait_until(lambda: is_asleep(self._thread))

    def _wait(self) -> None:
        with Queue(self._path) as queue:
            self.found = queue.wait(self._kinds, self._seconds, until=lambda: self.is_stopped)

    def is_asleep(self) -> bool:
        return is_asleep(self._thread)

    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> bool | None:
        self._thread.join(SECONDS_MAX)
        assert self.has_ended(), "nobody woke it"
        return self.found


def is_asleep(thread: threading.Thread) -> bool:
    """Whether a thread sleeps in a futex with a time limit, as only the event count's do here."""
    try:
        number = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()
    except OSError:
        return False
    if number[0] != str(turnstile_module._SYS_FUTEX):
        return False
    return int(number[2], 16) == turnstile_module._FUTEX_WAIT_BITSET


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process until it says its first word; kill it at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], SECONDS_MAX)[0]
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("durability", ["power", "process"])
def test_an_enqueue_wakes_an_idle_worker_of_another_connection(path: str, durability: str) -> None:
    with Queue(path, durability=durability) as queue:  # type: ignore[arg-type]  # One of the two.
        waiter = Waiter(path)
        queue.enqueue("kind", 1)

        assert waiter.join()


@pytest.mark.usefixtures("patience")
def test_of_several_idle_workers_one_job_wakes_one_and_a_batch_several(path: str) -> None:
    with Queue(path, durability="process") as queue:
        waiters = [Waiter(path) for _ in range(5)]
        queue.enqueue("kind", 1)
        wait_until(lambda: sum(waiter.has_ended() for waiter in waiters) == 1)
        assert sum(waiter.is_asleep() for waiter in waiters) == 4
        queue.enqueue_many([("kind", 1), ("kind", 2), ("kind", 3)])
        wait_until(lambda: sum(waiter.has_ended() for waiter in waiters) == 4)
        assert sum(waiter.is_asleep() for waiter in waiters) == 1
        queue.enqueue("kind", 4)

        assert all(waiter.join() for waiter in waiters)


@pytest.mark.usefixtures("patience")
def test_a_worker_of_other_kinds_is_neither_woken_nor_in_the_way(path: str) -> None:
    """It has slept for longer, so without the kinds it would be the one to be woken."""
    assert classes_of(["kind"]) != classes_of(["other"])
    with Queue(path, durability="process") as queue:
        other, waiter = Waiter(path, ["other"]), Waiter(path, ["kind", "third"])
        queue.enqueue("kind", 1)

        assert waiter.join()
        assert not other.has_ended()
        queue.enqueue("other", 1)
        assert other.join()


@pytest.mark.usefixtures("patience")
def test_a_run_wakes_for_the_steps_that_may_start_and_not_for_those_that_wait(path: str) -> None:
    with Queue(path, durability="process") as queue:
        chain = Workflow("chain")
        for name in ("first", "second", "third"):  # Each needs the one before it.
            chain.step(name=name)(lambda _: None)
        waiters = [Waiter(path) for _ in range(3)]
        Workflows(queue).start(chain, {})

        wait_until(lambda: any(waiter.has_ended() for waiter in waiters))
        assert sum(waiter.is_asleep() for waiter in waiters) == 2
        queue.enqueue_many([("kind", 1), ("kind", 2)])
        assert all(waiter.join() for waiter in waiters)


@pytest.mark.usefixtures("patience")
def test_whatever_lets_a_job_be_claimed_wakes_a_worker(path: str) -> None:
    with Queue(path, durability="process") as queue:

        def held() -> Lease:
            queue.enqueue("kind", 1)
            lease = queue.claim()
            assert lease is not None
            return lease

        def enqueue_in_transaction() -> None:
            with queue.transaction() as tx:
                queue.enqueue("kind", 1, tx=tx)

        leases = [held() for _ in range(3)]
        ways: tuple[Callable[[], object], ...] = (
            lambda: queue.release(leases[0]),
            lambda: queue.nack(leases[1], "again", delay=0),
            lambda: queue.snooze(leases[2], 0),
            enqueue_in_transaction,
        )
        for way in ways:
            waiter = Waiter(path)
            way()
            assert waiter.join()
            while queue.claim() is not None:
                continue  # What is left would keep the next from waiting.


@pytest.mark.usefixtures("patience")
def test_no_wake_up_is_lost_between_the_look_and_the_sleep(path: str) -> None:
    """The count is read before the look: a commit in between keeps the worker from sleeping."""
    with Queue(path, durability="process") as queue, Queue(path) as other:
        real = queue._is_available
        looks: list[bool] = []

        def look(wanted: str | None) -> bool:
            found = real(wanted)
            if not looks:
                other.enqueue("kind", 1)
            looks.append(found)
            return found

        queue._is_available = look  # type: ignore[method-assign]

        assert queue.wait(None, NEVER)
        assert looks == [False, True]


@pytest.mark.usefixtures("patience")
def test_two_workers_hand_jobs_to_each_other_and_never_sleep_through_one(path: str) -> None:
    with Queue(path, durability="process"):
        done: list[str] = []

        def work(mine: str, next_kind: str) -> None:
            with Queue(path) as queue:
                for _ in range(100):
                    while (lease := queue.claim([mine])) is None:
                        queue.wait([mine], NEVER)
                    queue.enqueue(next_kind, 1)
                    queue.ack(lease)
                done.append(mine)

        pair = [("ping", "pong"), ("pong", "ping")]
        threads = [threading.Thread(target=work, args=kinds, daemon=True) for kinds in pair]
        for thread in threads:
            thread.start()
        with Queue(path) as queue:
            queue.enqueue("ping", 1)
        for thread in threads:
            thread.join(SECONDS_MAX)

    assert sorted(done) == ["ping", "pong"]


#: Enqueues, and is killed after the commit and before anybody was woken.
KILLED_BEFORE_THE_WAKE = """
import os, signal, sys
from killproof import Queue
from killproof.core.turnstile import EventCount
EventCount.advance = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with Queue(sys.argv[1]) as queue:
    print("ready", flush=True)
    queue.enqueue("kind", 1)
"""


def test_a_job_whose_enqueuer_was_killed_before_the_wake_is_found_all_the_same(path: str) -> None:
    with Queue(path, durability="process"):
        waiter = Waiter(path)
        with child(KILLED_BEFORE_THE_WAKE, path) as process:
            assert process.wait(SECONDS_MAX) == -signal.SIGKILL

        assert waiter.join()


def test_a_job_that_joins_a_transaction_of_the_callers_own_is_found_all_the_same(path: str) -> None:
    """Nobody but the caller knows when it commits."""
    with (
        Queue(path, durability="process") as queue,
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
    ):
        waiter = Waiter(path)
        connection.execute("BEGIN IMMEDIATE")
        queue.enqueue("kind", 1, tx=connection)
        connection.execute("COMMIT")

        assert waiter.join()


#: Waits for a job, and dies in its sleep.
SLEEPER = """
import sys
from killproof import Queue
with Queue(sys.argv[1]) as queue:
    print("ready", flush=True)
    queue.wait(None, 600)
"""


@pytest.mark.usefixtures("patience")
def test_a_worker_that_was_killed_in_its_sleep_takes_no_wake_up_along(path: str) -> None:
    with Queue(path, durability="process") as queue:
        with child(SLEEPER, path) as process:
            process.kill()
            process.wait(SECONDS_MAX)
        waiter = Waiter(path)
        queue.enqueue("kind", 1)

        assert waiter.join()


def test_a_wait_ends_soon_after_its_worker_is_told_to_stop(path: str) -> None:
    with Queue(path, durability="process"):
        waiter = Waiter(path)
        waiter.is_stopped = True

        assert waiter.join() is False


@pytest.mark.usefixtures("patience")
def test_a_signal_ends_the_wait_of_a_worker_that_it_tells_to_stop(path: str) -> None:
    told: list[int] = []
    main = threading.main_thread().ident
    assert main is not None

    def kill_when_asleep() -> None:
        wait_until(lambda: is_asleep(threading.main_thread()))
        signal.pthread_kill(main, signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, lambda number, _: told.append(number))
    try:
        with Queue(path, durability="process") as queue:
            threading.Thread(target=kill_when_asleep, daemon=True).start()

            assert not queue.wait(None, NEVER, until=lambda: bool(told))
    finally:
        signal.signal(signal.SIGUSR1, former)


@pytest.mark.usefixtures("patience")
def test_a_stop_is_noticed_right_after_the_pause_that_follows_a_vain_wake_up(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Queue(path, durability="process") as queue:
        done: list[str] = []
        arrivals, _ = queue.database.arrivals()

        def woken(*_: object) -> bool:
            done.append("woken")
            return True

        monkeypatch.setattr(type(arrivals), "wait", woken)
        monkeypatch.setattr(type(queue.host.clock), "sleep", lambda *_: done.append("paused"))

        assert not queue.wait(None, NEVER, until=lambda: "paused" in done)

    assert done == ["woken", "paused"]


@pytest.mark.usefixtures("patience")
def test_who_is_woken_in_vain_lets_others_be_woken_for_longer_and_longer(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the idle workers of a busy queue would take the CPU from the busy ones."""
    monkeypatch.setattr(jobs, "IDLE_PAUSE", 0.5)
    with Queue(path, durability="process") as queue:
        pauses: list[float] = []
        arrivals, _ = queue.database.arrivals()
        clock = queue.host.clock
        monkeypatch.setattr(type(arrivals), "wait", lambda *_: True)
        monkeypatch.setattr(type(clock), "sleep", lambda _, seconds: pauses.append(seconds))

        assert not queue.wait(None, NEVER, until=lambda: len(pauses) >= 12)

    assert pauses[0] < 0.002
    assert pauses[-1] > 0.3
    assert max(pauses) <= 0.5 * 1.25


@pytest.mark.usefixtures("patience")
def test_an_emptied_file_costs_a_wake_up_and_nothing_else(path: str) -> None:
    """A load or store of our own would be a SIGBUS there, and end every process of the queue."""
    turnstile, other = Turnstile(path, gate=False), Turnstile(path, gate=False)
    os.truncate(f"{path}.turnstile", 0)
    assert not other.arrivals.wait(other.arrivals.read(), 1, 0.001)
    turnstile.arrivals.advance(1, 1)

    seen = other.arrivals.read()
    turnstile.arrivals.advance(1, 1)
    assert other.arrivals.read() == seen + 1
    assert other.arrivals.wait(seen, 1, NEVER)
    turnstile.close()
    other.close()


def test_where_no_futex_can_be_had_idle_workers_look_by_themselves(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnstile_module, "_SYS_FUTEX", None)
    with Queue(path, durability="process") as queue:
        timer = threading.Timer(0.01, queue.enqueue, ("kind", 1))
        timer.start()

        assert queue.wait(None, NEVER)
        timer.join()


def test_idle_workers_take_no_write_lock(path: str) -> None:
    """SQLite's writer lock is a byte of the -shm: nobody is ever seen to hold or await it."""
    with Queue(path, durability="process") as queue:
        waiter = Waiter(path, seconds=0.6)
        ino = os.stat(f"{path}-shm").st_ino
        seen = []
        while not waiter.has_ended():
            for line in Path("/proc/locks").read_text().splitlines():
                if f":{ino} 120 " in line and " WRITE " in line:
                    seen.append(line)
        assert waiter.join() is False
        assert seen == []
        assert queue.counts()["available"] == 0
