"""Workers that really die, stop or leave children behind: when others take their jobs."""

import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from killproof import Job, Queue

SECONDS_MAX = 120.0

#: Claims a job, says its fence, then does what it is told to: a line of Python on its input.
WORKER = """
import os, signal, sys, time
from killproof import KillproofError, Queue
queue = Queue(sys.argv[1])
lease = queue.claim()
print(lease.fence, flush=True)
for line in sys.stdin:
    try:
        print(eval(line) or "done", flush=True)
    except KillproofError as error:
        print(type(error).__name__, flush=True)
"""


#: Forks as C code does, past Python's hooks: the child keeps every descriptor.
RAW_FORK = (
    "(lambda pid: pid or (signal.pause(), os._exit(0)))(__import__('ctypes').CDLL(None).fork())"
)
#: Forks as Python does: the child closes what it must not hold.
FORK = "(lambda pid: pid or (signal.pause(), os._exit(0)))(os.fork())"


class Worker:
    """A process that holds a lease."""

    def __init__(self, queue: Queue) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, queue.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.fence = int(self.told())

    def told(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], SECONDS_MAX)[0]
        return self.process.stdout.readline().strip()

    def ask(self, expression: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{expression}\n")
        return self.told()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()


@contextmanager
def worker(queue: Queue) -> Iterator[Worker]:
    found = Worker(queue)
    try:
        yield found
    finally:
        found.end()


def let_leases_run_out(queue: Queue) -> None:
    """Move their ends in the file: no machine is so slow that they did before, or did not now."""
    with closing(sqlite3.connect(queue.path, timeout=SECONDS_MAX)) as other, other:
        other.execute("UPDATE job SET lease_deadline_ns = 1 WHERE state = 'leased'")


def claim_when_claimable(queue: Queue) -> Job:
    """Wait as an idle worker does; return the job it gets."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        if queue.wait(None, 1) and (lease := queue.claim()):
            return lease.job
    raise AssertionError("nothing became claimable in time")


@pytest.fixture(params=["process", "power"])
def queue(place: Path, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with Queue(place / "q.db", durability=request.param) as queue:
        yield queue


def test_a_killed_workers_job_is_taken_at_once_whatever_its_lease(queue: Queue) -> None:
    """Covers S0.48, S0.52, S1.48."""
    job_id = queue.enqueue("kind", 1, lease=86_400)
    with worker(queue) as victim:
        assert not queue.wait(None, 0.05)
        victim.process.kill()
        job = claim_when_claimable(queue)

    assert (job.id, job.fence, job.crashes, job.error_class) == (job_id, 2, 1, "Crashed")
    attempts = queue.get(job_id)
    assert attempts is not None
    assert [attempt.outcome for attempt in attempts.attempts] == ["crashed"]


def test_a_stopped_workers_job_is_taken_after_the_lease_and_its_outcome_is_refused(
    queue: Queue,
) -> None:
    """Covers S2.34, F21."""
    job_id = queue.enqueue("kind", 1, lease=86_400)
    with worker(queue) as zombie:
        os.kill(zombie.process.pid, signal.SIGSTOP)
        assert queue.reap() == 0
        let_leases_run_out(queue)
        job = claim_when_claimable(queue)
        assert (job.id, job.fence, job.error_class) == (job_id, 2, "LeaseExpired")
        os.kill(zombie.process.pid, signal.SIGCONT)

        assert zombie.ask("queue.ack(lease)") == "LeaseLost"
        assert zombie.ask("queue.extend(lease)") == "LeaseLost"
        assert zombie.ask("queue.nack(lease, 'no')") == "LeaseLost"


def test_a_worker_that_leaves_in_order_gives_back_and_it_was_no_attempt(queue: Queue) -> None:
    queue.enqueue("kind", 1)
    with worker(queue) as leaving:
        assert leaving.ask("queue.close()") == "done"
        job = claim_when_claimable(queue)

    assert (job.attempt, job.deliveries, job.crashes) == (1, 2, 0)


def test_a_forked_child_that_outlives_its_parent_keeps_the_byte_and_the_lease_decides(
    queue: Queue,
) -> None:
    """A held byte proves nothing: late, never wrong."""
    queue.enqueue("kind", 1, lease=86_400)
    with worker(queue) as parent:
        orphan = int(parent.ask(RAW_FORK))
        try:
            parent.process.kill()
            parent.process.wait()
            assert queue.reap() == 0
            let_leases_run_out(queue)
            job = claim_when_claimable(queue)
            assert job.error_class == "LeaseExpired"
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_a_child_forked_by_python_frees_nothing_and_holds_nothing_of_its_parents(
    queue: Queue,
) -> None:
    queue.enqueue("kind", 1, lease=86_400)
    with worker(queue) as parent:
        child = int(parent.ask(FORK))
        try:
            assert queue.reap() == 0  # The parent lives.
            parent.process.kill()
            parent.process.wait()
            assert claim_when_claimable(queue).error_class == "Crashed"  # The child does not count.
        finally:
            os.kill(child, signal.SIGKILL)


def test_an_executed_child_that_outlives_the_worker_does_not_count(queue: Queue) -> None:
    queue.enqueue("kind", 1, lease=86_400)
    run = (
        "__import__('subprocess').Popen([sys.executable, '-c', 'import signal; signal.pause()'],"
        " close_fds=False, stdout=2).pid"
    )
    with worker(queue) as parent:
        orphan = int(parent.ask(run))
        try:
            parent.process.kill()
            parent.process.wait()
            assert claim_when_claimable(queue).error_class == "Crashed"
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_killed_again_and_again_a_job_uses_up_its_attempts_and_dies(queue: Queue) -> None:
    """Covers F20."""
    job_id = queue.enqueue("kind", 1, max_attempts=3, retry="immediate", lease=86_400)
    for _ in range(3):
        with worker(queue) as victim:
            victim.process.kill()
        queue.reap()

    job = queue.get(job_id)
    assert job is not None
    assert (job.state, job.deliveries, job.crashes) == ("dead", 3, 3)
    assert [attempt.outcome for attempt in job.attempts] == ["crashed"] * 3
    assert queue.claim() is None


def test_a_deleted_lock_file_never_buries_the_living(queue: Queue) -> None:
    """Every file made anew has every byte free."""
    queue.enqueue("kind", 1, lease=86_400)
    with worker(queue) as living:
        os.unlink(f"{queue.path}.workers")
        with Queue(queue.path) as newcomer:
            assert newcomer.claim() is None
            assert newcomer.reap() == 0

        assert living.ask("queue.extend(lease) and 1") == "1"
        assert living.ask("queue.ack(lease)") == "done"


def test_an_acknowledgement_survives_the_death_of_its_process(queue: Queue) -> None:
    """Covers S1.13."""
    queue.enqueue("kind", 1)
    with worker(queue) as victim:
        assert victim.ask("queue.ack(lease)") == "done"
        victim.process.kill()
        victim.process.wait()

    assert queue.counts()["succeeded"] == 1
    assert queue.claim() is None
