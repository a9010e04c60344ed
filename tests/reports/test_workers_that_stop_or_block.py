"""Workers between claim and start, and handlers that block everything: real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from killproof import Job, Queue

SECONDS_MAX = 120.0

WORKER = """
import asyncio, os, signal, sys, time
from killproof import Queue
from killproof.core import sync
from killproof.heartbeat import Heartbeat
from killproof.worker import Handlers, Worker

handlers = Handlers()

def note(word):
    said = os.open(sys.argv[1] + ".said", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(said, f"{word}\\n".encode())
    os.close(said)

@handlers("plain")
def plain(context):
    note("start")

@handlers("async that sleeps")
async def sleeps(context):
    note("start")
    time.sleep(context.payload)
    note("end")

@handlers("computes")
def computes(context):
    note("start")
    until, n = time.monotonic() + context.payload, 0
    while time.monotonic() < until:
        n += 1
    note("end")

def terminate_after_the_claim(name):
    if name == "claim.synced":
        os.kill(os.getpid(), signal.SIGTERM)

def stop_when_a_handler_has_ended(name):
    if name == "handler.end":
        os.kill(os.getpid(), signal.SIGTERM)

exec(sys.argv[2])
with Queue(sys.argv[1]) as queue:
    Worker(queue, handlers).run()
"""


def start(queue: Queue, *lines: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-c", WORKER, queue.path, "\n".join(lines)]
    return subprocess.Popen(argv, stderr=subprocess.DEVNULL)


def said(queue: Queue) -> list[str]:
    try:
        return Path(f"{queue.path}.said").read_text().split()
    except FileNotFoundError:
        return []


def read(queue: Queue, job_id: int) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job


# B10: rows picked shortly before SIGTERM stay picked.

TERM = "sync.hook = terminate_after_the_claim"
#: The control: a stop that forgets what was claimed and not yet started.
FORGETS = "Queue.release = lambda *_: None; Queue._leave = lambda *_: None"


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
def test_a_job_claimed_just_before_sigterm_is_given_back_at_once_and_no_attempt_is_burnt(
    place: Path, guarded: bool
) -> None:
    """B10: the loop was stopped after the claim and before the dispatch; so does the control."""
    with Queue(place / "q.db", durability="process") as queue:
        job_id = queue.enqueue("plain", 1, max_attempts=1)
        worker = start(queue, TERM, "" if guarded else FORGETS)
        assert worker.wait(SECONDS_MAX) == 0
        job = read(queue, job_id)

        assert said(queue) == []
        given_back = (job.state, job.attempt) == ("available", 0)
        assert given_back == guarded


# B98: a healthy worker is declared dead because its own job blocks the heartbeat.

STOP = "sync.hook = stop_when_a_handler_has_ended"
#: The control: no renewal gets through while the handler runs.
SILENT = "Heartbeat._renew = lambda *_: None"


def runs_and_takeovers(
    place: Path, kind: str, *lines: str, lease: float, seconds: float
) -> tuple[list[str], bool]:
    """Run one job for longer than its lease; say whether another could take it, even at the end."""
    with Queue(place / "q.db", durability="process") as queue:
        queue.enqueue(kind, seconds, lease=lease)
        worker = start(queue, STOP, *lines)
        taken = False
        while worker.poll() is None:
            if said(queue) and not taken and queue.wait(None, 0.02):
                taken = queue.claim() is not None
        assert worker.returncode in (0, -9)
        return said(queue), taken or queue.claim() is not None


@pytest.mark.parametrize("kind", ["async that sleeps", "computes"])
def test_a_handler_that_blocks_past_its_lease_keeps_its_job(place: Path, kind: str) -> None:
    """B98, B100: the heartbeat was a task on the very loop that it certifies.

    B19: or there was none, and the lease was written once.
    """
    # So long that a heartbeat on a crowded machine may come more than a second late.
    assert runs_and_takeovers(place, kind, lease=2.0, seconds=2.6) == (["start", "end"], False)


def test_a_heartbeat_that_the_handler_silences_is_seen_to_lose_the_job(place: Path) -> None:
    """B98, B100, B19, control."""
    found = runs_and_takeovers(place, "async that sleeps", SILENT, lease=0.25, seconds=1.25)

    assert found == (["start"], True)


# B134: stopped at any moment.

#: TERM at this point of the worker's life, whatever it is doing there.
TERM_AT = """
def terminate_at(name):
    if name == {point!r}:
        os.kill(os.getpid(), signal.SIGTERM)
sync.hook = terminate_at
"""
#: The control: a worker that leaves signals to chance.
DEAF = "Worker._own_signals = lambda self: None"
MOMENTS = [
    "worker.idle",
    "claim.locked",
    "claim.synced",
    "handler.start",
    "handler.end",
    "ack.locked",
]


def check_a_stop_ends_in_order(place: Path, point: str, guard: str) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        job_id = queue.enqueue("plain", 1, max_attempts=1)
        worker = start(queue, TERM_AT.format(point=point), guard)
        assert worker.wait(SECONDS_MAX) == 0, "it did not end in order"
        job = read(queue, job_id)
        started = said(queue) == ["start"]
        assert (job.state, job.failures, job.crashes) == (
            "succeeded" if started else "available", 0, 0,
        )  # fmt: skip


@pytest.mark.parametrize("point", MOMENTS)
def test_a_worker_that_is_stopped_at_any_moment_ends_in_order_with_its_job_whole(
    place: Path, point: str
) -> None:
    """B134: jobs ran on while connections were closed under them."""
    check_a_stop_ends_in_order(place, point, "")


def test_a_worker_that_does_not_own_its_signals_is_seen_to_die(place: Path) -> None:
    """B134, control."""
    with pytest.raises(AssertionError, match="in order"):
        check_a_stop_ends_in_order(place, "claim.locked", DEAF)


def test_the_processes_of_these_reports_are_on_the_queue_under_test(place: Path) -> None:
    """A worker that imported another killproof would prove nothing."""
    code = "import killproof, sys; print(killproof.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert os.path.samefile(done.stdout.strip(), sys.modules["killproof"].__file__ or "")
