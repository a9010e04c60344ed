"""A disk that is full, and outcomes that can not be written: real workers on a real small disk."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from killproof import Queue, StorageFull

SECONDS_MAX = 120.0

#: Notes each try to claim, each start and each end outside of the small disk.
WORKER = """
import logging, os, sqlite3, sys, time
from killproof import DatabaseBusy, Queue, worker
from killproof.core import sync
from killproof.heartbeat import Heartbeat, Tenure
from killproof.worker import Handlers, Worker

handlers = Handlers()
logging.basicConfig(format="%(message)s")

def note(word):
    said = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(said, f"{word}\\n".encode())
    os.close(said)

@handlers("kind")
def handle(context):
    note(f"ran {context.job.id}")

def hook(name):
    if name == "claim.begin":
        note("tries")

sync.hook = hook
exec(sys.argv[3])
with Queue(sys.argv[1]) as queue:
    Worker(queue, handlers, poll=0.02).run()
"""


@contextmanager
def worker(queue: Queue, notes: Path, *lines: str) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", WORKER, queue.path, str(notes), "\n".join(lines)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(notes: Path, word: str) -> list[str]:
    try:
        lines = notes.read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line.removeprefix(word).strip() for line in lines if line.startswith(word)]


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> bool:
    """Wait for what can be seen; False when the process has ended or the time is over."""
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            return condition()
        time.sleep(0.005)
    return True


# B125.


@contextmanager
def disk_of_a_mebibyte(place: Path) -> Iterator[Path]:
    point = place / "disk"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(point)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def fill(point: Path) -> None:
    """Use up what is left, to the last byte that the file system gives."""
    with (point / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            return


def check_a_full_disk_is_outlived(place: Path, guard: str) -> None:
    notes = place / "notes"
    with disk_of_a_mebibyte(place) as point, Queue(point / "q.db", durability="process") as queue:
        queue.database.checkpoint_commits = 1 << 60  # The log only grows: every write needs room.
        acknowledged = [queue.enqueue("kind", "x" * 20_000) for _ in range(10)]
        fill(point)
        with pytest.raises(StorageFull, match="disk is full: nothing was changed; make room"):
            acknowledged.append(queue.enqueue("kind", "x" * 20_000))
        with worker(queue, notes, guard) as process:
            assert wait_until(lambda: len(said(notes, "tries")) >= 4, process), "it has given up"
            assert said(notes, "ran") == []
            remount = ["mount", "-o", "remount,size=16m", str(point)]
            subprocess.run(remount, check=True)
            done = wait_until(lambda: queue.counts()["succeeded"] == len(acknowledged), process)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=SECONDS_MAX)

    assert done, "it does not go on by itself"
    assert sorted(map(int, said(notes, "ran"))) == acknowledged
    assert process.returncode == 0
    assert errors.count("trying again until it works") == 1, "it is said at every try"
    assert "Traceback" not in errors


def test_a_full_disk_is_said_once_loses_no_job_and_is_outlived(place: Path) -> None:
    """B125: 95,000 error events from one host; a crash in the retry path; silent retries."""
    check_a_full_disk_is_outlived(place, "")


def test_a_worker_that_takes_a_full_disk_for_its_end_is_seen_to_give_up(place: Path) -> None:
    """B125, control."""
    with pytest.raises(AssertionError, match="given up"):
        check_a_full_disk_is_outlived(place, "worker.TRANSIENT = ()")


EACH_TIME = """
once = Worker._note_transient
def each_time(self, what, error):
    self._busy_streak = 0
    once(self, what, error)
Worker._note_transient = each_time
"""


def test_a_worker_that_says_it_at_every_try_is_seen(place: Path) -> None:
    """B125, control."""
    with pytest.raises(AssertionError, match="every try"):
        check_a_full_disk_is_outlived(place, EACH_TIME)


# B31: the outcome can not be written, and the heartbeat protects the claim.

#: No ack gets through, while everything else does.
NO_ACK = """
tried = False
def hook(name):
    global tried
    if name == "ack.locked":
        note("tries")
        tried = True
        raise DatabaseBusy("for the test")
    if name == "claim.begin" and tried:
        time.sleep(3600)  # Who takes it next is another, not this worker again.
sync.hook = hook
"""
#: The control: the handler has ended, and its lease is renewed all the same.
RENEWED_FOR_EVER = """
Tenure.settling = property(lambda self: False, lambda self, value: None)
watch = Heartbeat.watch
Heartbeat.watch = lambda self, tenure: tenure and watch(self, tenure)
"""


def check_the_job_is_recovered(place: Path, guard: str, renewals: int) -> None:
    """Wait until another can claim it, or its lease has been renewed so often."""
    notes = place / "notes"
    ends_ns: set[object] = set()
    with Queue(place / "q.db", durability="process") as queue:
        job_id = queue.enqueue("kind", 1, lease=2.0)
        with worker(queue, notes, NO_ACK + guard) as process:
            assert wait_until(lambda: len(said(notes, "tries")) >= 2, process), "no second try"
            again = None
            end = time.monotonic() + SECONDS_MAX
            while again is None and time.monotonic() < end and len(ends_ns) <= renewals:
                sql = "SELECT lease_deadline_ns FROM job WHERE lease_deadline_ns IS NOT NULL"
                ends_ns.update(end_ns for (end_ns,) in queue.database.peek(sql))
                queue.wait(None, 0.1)
                again = queue.claim()

    assert again is not None, "the job stays claimed"
    assert (again.job.id, again.job.attempt) == (job_id, 2)
    assert os.path.exists(notes)


def test_a_job_whose_outcome_can_not_be_written_is_tried_again_and_then_recovered(
    place: Path,
) -> None:
    """B31: nothing retried the write of the finish, and the heartbeat protected the claim."""
    check_the_job_is_recovered(place, "", 1_000)


def test_a_heartbeat_that_goes_on_after_the_handler_is_seen_to_keep_the_job(place: Path) -> None:
    """B31, control."""
    with pytest.raises(AssertionError, match="stays claimed"):
        check_the_job_is_recovered(place, RENEWED_FOR_EVER, 2)
