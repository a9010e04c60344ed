"""Large payloads with real processes: races with the collection, kills, and what a worker does."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from killproof import Queue
from killproof.payloads import Payloads, Reference

SECONDS_MAX = 120.0
#: Jobs that have to be done while everybody is being killed.
JOBS_MIN = 100
JOBS_A_KILL = 6

#: A few contents that come again and again, so that files come and go all the time.
PRODUCER = """
import itertools
from killproof import Queue
from killproof.payloads import Payloads
with Queue("queue.db") as queue:
    payloads = Payloads(queue, threshold=10)
    for number in itertools.count():
        payloads.enqueue("k", f"content {number % 3}" * 1_000)
        while queue.counts()["available"] > 4:
            queue.reap()
"""

#: A payload that is not there is an error, and the end of this process.
CONSUMER = """
from killproof import Queue
from killproof.payloads import Payloads
with Queue("queue.db") as queue:
    payloads = Payloads(queue)
    while True:
        lease = queue.claim()
        if lease is not None:
            assert payloads.payload(lease.job).startswith("content")
            queue.ack(lease)
"""

COLLECTOR = """
import os
from killproof import Queue
from killproof.payloads import Payloads
from killproof.retention import prune
with Queue("queue.db") as queue:
    while True:
        done = prune(queue, {"succeeded": 0}).deleted["succeeded"]
        files = Payloads(queue).collect().files
        os.write(1, f"{done} {files}\\n".encode())
"""

HANDLERS = """
from killproof.worker import Handlers
handlers = Handlers()

@handlers("echo")
def echo(context):
    return {"back": context.payload.decode() * 2}

@handlers("later")
async def later(context):
    return {"back": context.payload.decode() * 2}
"""


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process in the folder; it ends with the test."""
    with ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            with (place / "said").open("ab") as said:
                process = subprocess.Popen([sys.executable, *arguments], cwd=place, stdout=said)

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
        time.sleep(0.01)


def test_no_job_ever_misses_its_file_whoever_collects_and_whoever_is_killed(
    place: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Covers S0.80.  Method: producers, a consumer and collectors on three contents, with kills."""
    chance = random.Random(7)
    said = place / "said"
    Queue(place / "queue.db", durability="process").close()
    roles = [PRODUCER, PRODUCER, CONSUMER, COLLECTOR, COLLECTOR]
    running = [(role, start("-c", role)) for role in roles]

    def totals() -> tuple[int, int]:
        lines = [line.split() for line in said.read_text().split("\n")[:-1]]
        return sum(int(done) for done, _ in lines), sum(int(files) for _, files in lines)

    while totals()[0] < JOBS_MIN or totals()[1] < 15:
        # The kills follow the work, not the clock: who is slow to start must come to it.
        done = totals()[0]
        until(lambda: totals()[0] >= done + JOBS_A_KILL)  # noqa: B023 - called at once
        number = chance.randrange(len(running))
        role, victim = running[number]
        assert victim.poll() is None, "an error ended it, and not us"
        victim.kill()
        victim.wait()
        running[number] = (role, start("-c", role))
    for _, process in running:
        assert process.poll() is None, "an error ended it, and not us"
        process.kill()
        process.wait()

    with Queue(place / "queue.db") as queue:
        payloads = Payloads(queue)
        assert payloads.check(whole=True).lost == ()
        payloads.collect()
        assert payloads.check().orphans == 0  # What the dead have left is gone as well.


@pytest.mark.parametrize("options", [(), ("--slots", "2")], ids=["worker", "dispatcher"])
def test_a_handler_gets_the_value_and_a_lost_file_is_a_dead_letter(
    place: Path, start: Callable[..., subprocess.Popen[bytes]], options: tuple[str, ...]
) -> None:
    """Covers S0.80."""
    (place / "my_handlers.py").write_text(HANDLERS)
    content = os.urandom(400_000).hex().encode()
    with Queue(place / "queue.db", durability="process") as queue:
        payloads = Payloads(queue)
        lost = payloads.enqueue("echo", b"lost")
        job = queue.get(lost)
        assert job is not None
        reference = Reference.of(job.payload)
        assert reference is not None
        (payloads.folder.path / reference.sha256).unlink()
        good = [payloads.enqueue(kind, content) for kind in ("echo", "later")]
        worker = start("-m", "killproof", "work", "my_handlers", "--log-level", "error", *options)
        until(lambda: queue.counts()["succeeded"] == 2 and queue.counts()["dead"] == 1)
        worker.terminate()
        assert worker.wait(SECONDS_MAX) == 0
        dead = queue.get(lost)
        assert dead is not None
        for number in good:
            done = queue.get(number)
            assert done is not None
            assert Reference.of(done.result) is not None
            assert payloads.result(done) == {"back": content.decode() * 2}

    assert (dead.error_class, dead.attempt) == ("PayloadLost", 1)
    assert "is missing: restore it from a backup, then killproof replay 1" in str(
        json.dumps(dead.error_message)
    )
