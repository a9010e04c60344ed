"""Schedules fired by several processes, some of which are killed or stopped."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from killproof import Queue
from killproof.schedule import Schedules, key_of

SECONDS_MAX = 120.0
SLOTS = 60

#: Fires slot after slot, as if a minute passed each time.
RACER = """
import sys
from killproof import Queue
from killproof.schedule import Schedules
first, slots = float(sys.argv[1]), int(sys.argv[2])
with Queue("queue.db") as queue:
    for slot in range(slots):
        Schedules(queue).fire(first + 60 * slot)
"""

JOBS = """
import time
from pathlib import Path
from killproof.worker import Handlers
handlers = Handlers()

@handlers("long")
def long(context):
    while not Path("enough").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process in the folder; it ends with the test."""
    with ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([sys.executable, *arguments], cwd=place)

            def end() -> None:
                process.kill()
                process.wait()

            stack.callback(end)
            return process

        yield start


def until(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not seen():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_each_slot_has_one_job_whoever_fires_and_whoever_is_killed(
    place: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Covers S1.54, B7, B92: the slot moves in the transaction that puts its job in."""
    chance = random.Random(7)
    with Queue(place / "queue.db", durability="process") as queue:
        first = time.time() + 3_600
        Schedules(queue).every("ping", 60, "ping", first=first, missed="all")
        racer = ("-c", RACER, repr(first), str(SLOTS))
        racers = [start(*racer) for _ in range(3)]
        for threshold in (15, 35):
            until(lambda: queue.counts()["available"] >= threshold)  # noqa: B023 - called at once
            victim = chance.choice(racers)
            victim.kill()
            victim.wait()
            racers[racers.index(victim)] = start(*racer)
        for racer_process in racers:
            racer_process.wait(SECONDS_MAX)
        keys = [key for (key,) in queue.database.peek("SELECT key FROM job ORDER BY id")]

    first_ms = int(-(-first * 1_000 // 1))
    assert keys == [key_of("ping", first_ms + 60_000 * slot) for slot in range(SLOTS)]


def test_a_worker_fires_while_its_handler_runs_and_catches_up_after_a_stop(
    place: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """B94: a stopped process takes the path of every late one, and fires no slot twice."""
    (place / "jobs.py").write_text(JOBS)
    with Queue(place / "queue.db", durability="process") as queue:
        queue.enqueue("long", None)
        schedules = Schedules(queue)
        schedules.every("ping", 0.05, "ping")
        worker = start("-m", "killproof", "work", "jobs", "--log-level", "error")
        until(lambda: queue.counts()["leased"] == 1)
        fired = queue.counts()["available"]
        until(lambda: queue.counts()["available"] >= fired + 3)
        os.kill(worker.pid, signal.SIGSTOP)
        before = schedules.get("ping")
        assert before is not None
        assert before.next_ms is not None
        until(lambda: time.time() * 1_000 > (before.next_ms or 0) + 400)
        os.kill(worker.pid, signal.SIGCONT)
        until(lambda: (found := schedules.get("ping")) is not None and found.fired > before.fired)
        after = schedules.get("ping")
        assert after is not None
        (place / "enough").touch()
        worker.terminate()
        assert worker.wait(SECONDS_MAX) == 0
        keys = [key for (key,) in queue.database.peek("SELECT key FROM job WHERE kind = 'ping'")]

    assert after.missed >= before.missed + 6
    assert len(keys) == len(set(keys))
