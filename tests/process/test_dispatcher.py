"""Real dispatchers, killed, told to leave, locked out, and blocked.

Each is a process of its own that runs the handlers below.  A handler writes what it does to the
file `said`, one `write` a line, so that a kill loses nothing; it goes on when the file `go` exists.
"""

import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from killproof import Queue

SECONDS_MAX = 120.0

JOBS = """
import asyncio, os, time
from killproof.worker import Handlers

handlers = Handlers()


def say(context, word):
    said = os.open("said", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(said, f"{word} {context.job.id} {context.job.attempt} {os.getpid()}\\n".encode())
    os.close(said)


@handlers("wait")
async def wait(context):
    say(context, "start")
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    say(context, "end")


@handlers("plain")
def plain(context):
    say(context, "start")
    while not os.path.exists("go"):
        time.sleep(0.01)
    say(context, "end")


@handlers("blocks", timeout=1.0)
async def blocks(context):
    say(context, "start")
    time.sleep(3600)


@handlers("thread")
async def thread(context):
    say(context, "start")
    await asyncio.to_thread(time.sleep, 3600)
"""

MAIN = """
import asyncio, os, sys
from killproof import Queue
from killproof.dispatcher import Dispatcher
from my_jobs import handlers
with Queue("queue.db") as queue:
    Dispatcher(queue, handlers, 20, grace=float(sys.argv[1]), overdue_grace=0.2).serve()
"""


class House:
    """A folder with a queue, and the dispatchers that were started in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "my_jobs.py").write_text(JOBS)
        (place / "main.py").write_text(MAIN)
        self.queue = Queue(place / "queue.db")
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, grace: float = 20.0) -> subprocess.Popen[bytes]:
        with (self.place / f"log.{len(self.started)}").open("wb") as log:
            argv = [sys.executable, "main.py", str(grace)]
            process = subprocess.Popen(argv, cwd=self.place, stdout=log, stderr=log)
        self.started.append(process)
        return process

    def said(self) -> list[list[str]]:
        path = self.place / "said"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def starts(self, process: subprocess.Popen[bytes]) -> set[str]:
        """The ids of the jobs that this process has begun."""
        return {
            job for what, job, _, pid in self.said() if (what, pid) == ("start", str(process.pid))
        }

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                logs = "".join(path.read_text() for path in self.place.glob("log.*"))
                raise AssertionError(f"{self.said()}\n{self.queue.counts()}\n{logs}")
            time.sleep(0.01)

    def let_go(self) -> None:
        (self.place / "go").touch()

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait(SECONDS_MAX)
        self.queue.close()


@pytest.fixture
def house(place: Path) -> Iterator[House]:
    house = House(place)
    yield house
    house.close()


def test_the_running_jobs_of_a_killed_dispatcher_come_back_at_once_to_another(
    house: House,
) -> None:
    """Covers S1.13, S1.48, S1.31. F25: their leases have a minute to go, and nobody waits for it.

    An in-memory queue lost them all; here the file knows them, and the kernel tells of the death.
    """
    ids = house.queue.enqueue_many(
        [("wait", number) for number in range(18)] + [("plain", number) for number in range(2)]
    )
    first = house.start()
    house.until(lambda: len(house.starts(first)) == 20)
    second = house.start()
    first.send_signal(signal.SIGKILL)
    house.until(lambda: len(house.starts(second)) == 20)
    house.let_go()
    house.until(lambda: house.queue.counts()["succeeded"] == 20)
    second.send_signal(signal.SIGTERM)

    assert second.wait(SECONDS_MAX) == 0
    attempts = [house.queue.get(job_id) for job_id in ids]
    outcomes = Counter(tuple(a.outcome for a in job.attempts) for job in attempts if job)
    assert outcomes == {("crashed", "succeeded"): 20}
    assert Counter(what for what, *_ in house.said()) == {"start": 40, "end": 20}


def test_a_signal_lets_the_running_jobs_end_and_claims_no_more(house: House) -> None:
    """F27."""
    house.queue.enqueue_many([("wait", number) for number in range(25)])
    dispatcher = house.start()
    house.until(lambda: len(house.starts(dispatcher)) == 20)
    dispatcher.send_signal(signal.SIGTERM)
    house.let_go()

    assert dispatcher.wait(SECONDS_MAX) == 0
    counts = house.queue.counts()
    assert (counts["succeeded"], counts["available"], counts["leased"]) == (20, 5, 0)


def test_the_command_runs_a_dispatcher_with_its_panel_in_lines(house: House) -> None:
    """Covers S1.40, S1.47."""
    house.queue.enqueue_many([("wait", number) for number in range(4)])
    command = [str(Path(sys.executable).parent / "killproof"), "work", "my_jobs"]
    with (house.place / "log.command").open("wb") as log, (house.place / "lines").open("wb") as out:
        process = subprocess.Popen(
            [*command, "--slots", "4", "--panel"], cwd=house.place, stdout=out, stderr=log
        )
    house.started.append(process)
    house.let_go()
    house.until(lambda: house.queue.counts()["succeeded"] == 4)
    house.until(lambda: "of 4" in (house.place / "lines").read_text())
    process.send_signal(signal.SIGTERM)

    assert process.wait(SECONDS_MAX) == 0
    log_text = (house.place / "log.command").read_text()
    assert "works on: wait, plain, blocks, thread" in log_text
    assert "jobs at once: 4" in log_text
    assert log_text.count("succeeded in") == 4
    lines = (house.place / "lines").read_text()
    assert "slots: " in lines
    assert "\x1b" not in lines


def test_a_second_signal_gives_the_jobs_back_at_once_which_is_no_attempt(house: House) -> None:
    job_id = house.queue.enqueue("wait", None, max_attempts=1)
    dispatcher = house.start(grace=3600)
    house.until(lambda: bool(house.starts(dispatcher)))
    dispatcher.send_signal(signal.SIGTERM)
    dispatcher.send_signal(signal.SIGINT)  # Another one: two equal ones at once are one.

    assert dispatcher.wait(SECONDS_MAX) == 0
    job = house.queue.get(job_id)
    assert job is not None
    assert (job.state, job.attempt) == ("available", 0)


def test_a_plain_handler_that_outlives_the_grace_is_given_back_and_left_behind(
    house: House,
) -> None:
    """Nothing can end a thread but the end of its process."""
    job_id = house.queue.enqueue("plain", None, max_attempts=1)
    dispatcher = house.start(grace=0.1)
    house.until(lambda: bool(house.starts(dispatcher)))
    dispatcher.send_signal(signal.SIGTERM)

    assert dispatcher.wait(SECONDS_MAX) == 128 + signal.SIGTERM
    job = house.queue.get(job_id)
    assert job is not None
    assert (job.state, job.attempt) == ("available", 0)


def test_a_thread_that_a_cancelled_coroutine_left_does_not_hold_the_process(house: House) -> None:
    job_id = house.queue.enqueue("thread", None, max_attempts=1)
    dispatcher = house.start(grace=0.1)
    house.until(lambda: bool(house.starts(dispatcher)))
    dispatcher.send_signal(signal.SIGTERM)

    assert dispatcher.wait(SECONDS_MAX) == 128 + signal.SIGTERM
    job = house.queue.get(job_id)
    assert job is not None
    assert (job.state, job.attempt) == ("available", 0)


def test_who_blocks_the_loop_past_its_limit_is_failed_and_the_others_are_given_back(
    house: House,
) -> None:
    """F46."""
    others = house.queue.enqueue_many([("wait", number) for number in range(5)])
    blocking = house.queue.enqueue("blocks", None, retry="fixed:100", priority=9)
    dispatcher = house.start()

    assert dispatcher.wait(SECONDS_MAX) == 70
    job = house.queue.get(blocking)
    assert job is not None
    assert (job.state, job.error_class) == ("retryable", "HandlerTimeout")
    assert "time.sleep(3600)" in (job.attempts[0].traceback or "")
    found = [house.queue.get(job_id) for job_id in others]
    assert {(job.state, job.attempt) for job in found if job} == {("available", 0)}


def test_the_panel_is_drawn_on_a_terminal(house: House) -> None:
    """Covers S1.45."""
    house.queue.enqueue("wait", None)
    command = [str(Path(sys.executable).parent / "killproof"), "panel", "--once"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=house.place, stdout=theirs, stderr=theirs) as process:
        process.wait(SECONDS_MAX)
    os.close(theirs)
    drawn = b""
    with suppress(OSError):  # The end of a terminal nobody holds any more is an error.
        while chunk := os.read(ours, 4096):
            drawn += chunk
    os.close(ours)

    assert "available" in drawn.decode()
    assert "─" in drawn.decode()
