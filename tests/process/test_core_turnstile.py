"""The turnstile between threads and processes: fair while it moves, harmless when it is stuck."""

import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from killproof import Queue
from killproof.core import turnstile as turnstile_module
from killproof.core.turnstile import Turnstile

SECONDS_MAX = 60.0

#: Takes the turnstile, says so, and keeps it until it is killed.
HOLDER = """
import signal, sys
from killproof.core.turnstile import Turnstile
turnstile = Turnstile(sys.argv[1], gate=sys.argv[2] == "process")
assert turnstile.enter(5)
print("held", flush=True)
while True:
    signal.pause()
"""


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


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def path(place: Path) -> str:
    return str(place / "q.db")


@pytest.fixture(params=[False, True], ids=["plain", "gate"])
def gate(request: pytest.FixtureRequest) -> bool:
    assert isinstance(request.param, bool)
    return request.param


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes on without the turnstile: whoever leaves it may be slow to get the CPU."""
    monkeypatch.setattr(turnstile_module, "PATIENCE_SECONDS", 3 * SECONDS_MAX)


def test_the_turn_is_one_writers_at_a_time(path: str, gate: bool) -> None:
    first, second = Turnstile(path, gate=gate), Turnstile(path, gate=gate)
    assert first.enter(0)
    assert not second.enter(0)
    first.leave()
    assert second.enter(0)
    second.leave()
    first.close()
    second.close()


@pytest.mark.usefixtures("patience")
def test_a_waiting_writer_is_let_in_when_the_holder_leaves(path: str, gate: bool) -> None:
    """Covers F14."""
    first, second = Turnstile(path, gate=gate), Turnstile(path, gate=gate)
    assert first.enter(0)
    threading.Timer(0.02, first.leave).start()

    assert second.enter(SECONDS_MAX)
    assert not first.enter(0)
    second.leave()
    first.close()
    second.close()


@pytest.mark.usefixtures("patience")
def test_no_wake_up_is_lost_between_trying_and_sleeping(
    path: str, gate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retries that cover a killed holder are put off, so that only a wake-up ends a wait."""
    monkeypatch.setattr(turnstile_module, "SLICE_SECONDS", 3 * SECONDS_MAX)
    first, second = Turnstile(path, gate=gate), Turnstile(path, gate=gate)

    def take_turns(turnstile: Turnstile) -> None:
        for _ in range(500):
            assert turnstile.enter(3 * SECONDS_MAX)
            turnstile.leave()

    threads = [threading.Thread(target=take_turns, args=(each,)) for each in (first, second)]
    for thread in threads:
        thread.daemon = True  # A thread that was never woken must not keep the test from ending.
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)

    assert not any(thread.is_alive() for thread in threads)
    first.close()
    second.close()


def test_a_caller_that_has_left_takes_no_turn(path: str, gate: bool) -> None:
    """Else the turnstile would belong to nobody who ever leaves it."""
    holder, impatient, third = (Turnstile(path, gate=gate) for _ in range(3))
    assert holder.enter(0)
    assert not impatient.enter(0.01)
    holder.leave()

    assert third.enter(0)
    third.leave()
    assert impatient.enter(0)
    impatient.leave()
    for turnstile in (holder, impatient, third):
        turnstile.close()


class Futexes:
    """Passes the waits and wakes on to the kernel; notes how each wait ended."""

    def __init__(self) -> None:
        self.kernel = turnstile_module._futex
        self.before_wait: Callable[[], object] = lambda: None
        self.waits: list[str] = []

    def __call__(self, address: int, operation: int, number: int, *rest: Any) -> int:
        waits = operation == turnstile_module._FUTEX_WAIT
        if waits:
            self.before_wait()
        code = self.kernel(address, operation, number, *rest)
        if waits:
            self.waits.append(errno.errorcode.get(code, "woken"))
        return code


@pytest.fixture
def futexes(monkeypatch: pytest.MonkeyPatch) -> Futexes:
    if turnstile_module._SYS_FUTEX is None:
        pytest.skip("no futex on this machine")
    found = Futexes()
    monkeypatch.setattr(turnstile_module, "_futex", found)
    return found


def test_a_holder_waited_for_in_vain_is_not_waited_for_again(
    path: str, gate: bool, futexes: Futexes
) -> None:
    """A stopped holder costs each connection one wait, not one for each statement."""
    holder, impatient = Turnstile(path, gate=gate), Turnstile(path, gate=gate)
    assert holder.enter(0)
    assert not impatient.enter(SECONDS_MAX)
    waits = len(futexes.waits)
    for _ in range(100):
        assert not impatient.enter(SECONDS_MAX)

    assert len(futexes.waits) == waits > 0
    holder.leave()
    assert impatient.enter(0)
    impatient.leave()
    holder.close()
    impatient.close()


@pytest.mark.usefixtures("patience")
def test_a_leave_between_the_try_and_the_sleep_is_not_slept_through(
    path: str, gate: bool, futexes: Futexes
) -> None:
    holder, other = Turnstile(path, gate=gate), Turnstile(path, gate=gate)
    assert holder.enter(0)
    left: list[bool] = []

    def leave_once() -> None:
        if not left:
            left.append(True)
            holder.leave()

    futexes.before_wait = leave_once

    assert other.enter(SECONDS_MAX)
    assert futexes.waits == ["EAGAIN"]
    holder.close()
    other.close()


@pytest.mark.usefixtures("patience")
def test_a_leaver_wakes_who_sleeps(
    path: str, gate: bool, futexes: Futexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnstile_module, "SLICE_SECONDS", 3 * SECONDS_MAX)
    holder, other = Turnstile(path, gate=gate), Turnstile(path, gate=gate)
    for _ in range(50):  # The holder may leave before the other is asleep.
        assert holder.enter(0)
        timer = threading.Timer(0.002, holder.leave)
        timer.start()
        assert other.enter(SECONDS_MAX)
        timer.join()
        other.leave()
        if "woken" in futexes.waits:
            break

    assert "woken" in futexes.waits
    holder.close()
    other.close()


@pytest.mark.usefixtures("patience")
def test_where_no_futex_can_be_had_a_waiter_looks_again_and_again(
    path: str, gate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turnstile_module, "_SYS_FUTEX", None)
    holder, other = Turnstile(path, gate=gate), Turnstile(path, gate=gate)
    assert holder.enter(0)
    threading.Timer(0.01, holder.leave).start()

    assert other.enter(SECONDS_MAX)
    holder.close()
    other.close()


@pytest.mark.usefixtures("patience")
def test_an_emptied_lock_file_costs_fairness_and_nothing_else(
    path: str, gate: bool, futexes: Futexes
) -> None:
    """A store into the mapping would be a SIGBUS: whoever tidies up would kill every process."""
    holder, other = Turnstile(path, gate=gate), Turnstile(path, gate=gate)
    assert holder.enter(0)
    os.truncate(f"{path}.turnstile", 0)

    def leave_at_second_wait() -> None:
        if len(futexes.waits) == 1:
            holder.leave()

    futexes.before_wait = leave_at_second_wait

    assert other.enter(SECONDS_MAX)
    assert futexes.waits[0] == "EFAULT"
    assert os.path.getsize(f"{path}.turnstile") == 4
    other.leave()
    holder.close()
    other.close()


def test_a_closed_turnstile_takes_no_turn(path: str, gate: bool) -> None:
    holder, impatient, third = (Turnstile(path, gate=gate) for _ in range(3))
    assert holder.enter(0)
    assert not impatient.enter(0.01)
    impatient.close()
    holder.leave()

    wait_until(lambda: third.enter(0))
    holder.close()
    third.close()


@pytest.mark.parametrize("level", ["power", "process"])
def test_a_stopped_holder_does_not_stop_the_others_and_is_counted(path: str, level: str) -> None:
    """With a strict turnstile they would do nothing until somebody wakes the holder."""
    with Queue(path, durability=level) as queue:  # type: ignore[arg-type]  # One of the two.
        with child(HOLDER, path, level) as holder:
            os.kill(holder.pid, signal.SIGSTOP)
            ids = [queue.enqueue("kind", i) for i in range(50)]
            lease = queue.claim()
            assert lease is not None
            queue.ack(lease)

            assert len(set(ids)) == 50
            assert queue.database.bypasses >= 50
        wait_until(lambda: not bypasses_again(queue))  # The kernel freed it with the holder.


def bypasses_again(queue: Queue) -> bool:
    before = queue.database.bypasses
    queue.counts()
    queue.enqueue("kind", 0)
    return queue.database.bypasses > before


def test_a_killed_holder_frees_the_turnstile(path: str) -> None:
    with Queue(path, durability="process") as queue:
        with child(HOLDER, path, "process") as holder:
            holder.kill()
            holder.wait(SECONDS_MAX)
            queue.enqueue("kind", 1)

        assert queue.database.bypasses == 0


@pytest.mark.usefixtures("patience")
def test_a_holder_that_works_is_waited_for_and_not_bypassed(path: str) -> None:
    with Queue(path, durability="process") as queue:
        stop = threading.Event()

        def work() -> None:
            with Queue(path) as other:
                while not stop.is_set():
                    with other.transaction():
                        time.sleep(0.005)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(20):
                queue.enqueue("kind", 1)
        finally:
            stop.set()
            thread.join()

        assert queue.database.bypasses == 0


def test_a_user_without_write_permission_keeps_its_place_in_line(path: str) -> None:
    """flock works on a read-only descriptor."""
    first = Turnstile(path, gate=False)
    code = f"""
import fcntl, os, signal
descriptor = os.open({path!r} + ".turnstile", os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
signal.pause()
"""
    with child(code):
        assert not first.enter(0)
    wait_until(lambda: first.enter(0))
    first.close()


def test_lock_files_get_the_mode_of_the_database(place: Path) -> None:
    (place / "q.db").touch(mode=0o600)
    with Queue(place / "q.db") as queue:
        queue.claim()

    assert {path.stat().st_mode & 0o777 for path in place.glob("q.db.*")} == {0o600}
