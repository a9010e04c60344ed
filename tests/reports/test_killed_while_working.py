"""Jobs whose worker is killed in the handler: what public queues lost, looped or stranded.

Each test is a real process with a real SIGKILL. Its control takes one guard away from the queue,
in the killed process and in the one that recovers, and must see the same check fail.
"""

import dataclasses
import select
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from killproof import Host, Job, Lease, Queue
from killproof.core import host
from killproof.core.database import Transaction

SECONDS_MAX = 120.0


def unchecked(path: str) -> sqlite3.Connection:
    """Connect with the schema's own checks off: they are a guard of their own."""
    connection = host.connect(path)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    return connection


class DeletesAtClaim(Queue):
    """Takes the row away when it hands the job out: there is no acknowledgement."""

    def claim(self, kinds: Iterable[str] | None = None) -> Lease | None:
        lease = super().claim(kinds)
        if lease is not None:
            with self.transaction() as tx:
                tx.execute("DELETE FROM job WHERE id = ?", (lease.job.id,))
        return lease


def without(**statements: tuple[str, str]) -> Callable[[type[Queue]], type[Queue]]:
    """Replace a guard in statements of the class: name=(guard, instead)."""

    def apply(made: type[Queue]) -> type[Queue]:
        for name, (guard, instead) in statements.items():
            assert guard in getattr(Queue, name)
            setattr(made, name, getattr(Queue, name).replace(guard, instead))
        return made

    return apply


@without(END=("'released', 'snoozed'", "'released', 'snoozed', 'crashed', 'expired'"))
class ForgetsCrashes(Queue):
    """Recovery puts the row back as new: only handled failures are counted."""


class NeverCompares(Queue):
    """Recovery does not compare the attempt with the maximum."""

    def _take_back(self, tx: Transaction, job: Job, outcome: str, before_ns: int) -> None:
        endless = dataclasses.replace(job, max_attempts=1_000)
        super()._take_back(tx, endless, outcome, before_ns)


@without(HELD_BY=("AND lease", "AND deliveries - forgiven < max_attempts AND lease"))
class SkipsTheLast(Queue):
    """Recovery looks only at rows that have attempts left."""


#: Claims a job through the queue under test, says so, and works until it is killed.
WORKER = """
import signal, sys
sys.path.insert(0, sys.argv[1])
import test_killed_while_working as scenario
from killproof import Queue
lease = scenario.queue_of(sys.argv[3], sys.argv[2]).claim()
print("none" if lease is None else "in the handler", flush=True)
signal.pause()
"""


def queue_of(name: str, path: str) -> Queue:
    made: type[Queue] = globals()[name]
    connect = host.connect if name == "Queue" else unchecked
    return made(path, durability="process", host=Host(connect=connect))


def killed_in_the_handler(queue: Queue) -> bool:
    """Run a worker until its handler has begun, and kill it; False if it found no job."""
    here = str(Path(__file__).parent)
    argv = [sys.executable, "-c", WORKER, here, queue.path, type(queue).__name__]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], SECONDS_MAX)[0]
        said = process.stdout.readline().strip()
        process.kill()
    if said not in ("in the handler", "none"):
        raise RuntimeError("the worker ended with an error")  # No finding: not for a control.
    return said == "in the handler"


RECOVERIES: dict[str, Callable[[Queue], object]] = {
    "the reaper": lambda queue: queue.reap(),
    "another claim": lambda queue: (queue.wait(["none"], 0), queue.claim(["none"])),
}


def read(queue: Queue, job_id: int) -> Job | None:
    return queue.get(job_id)


def check_not_lost(queue: Queue) -> None:
    job_id = queue.enqueue("kind", {"order": 7})
    assert killed_in_the_handler(queue)
    queue.reap()

    job = read(queue, job_id)
    assert job is not None, "the job is gone"
    assert (job.state, job.payload) == ("available", {"order": 7})
    assert queue.claim() is not None


def check_starts(queue: Queue, max_attempts: int, recovery: str) -> None:
    job_id = queue.enqueue("kind", 1, max_attempts=max_attempts, retry="immediate")
    starts = 0
    while starts < max_attempts + 3 and killed_in_the_handler(queue):
        starts += 1
        RECOVERIES[recovery](queue)

    job = read(queue, job_id)
    assert job is not None
    assert starts == max_attempts
    assert (job.state, job.owner, job.error_class) == ("dead", None, "Crashed")
    assert [attempt.outcome for attempt in job.attempts] == ["crashed"] * max_attempts


def fails(check: Callable[..., None], *values: Any) -> bool:
    try:
        check(*values)
    except AssertionError:
        return True
    return False


@pytest.fixture
def path(place: Path) -> str:
    return str(place / "q.db")


def test_a_job_whose_worker_is_killed_in_the_handler_is_there_again(path: str) -> None:
    """B1: a task vanishes when its worker is killed, because the row is deleted at dequeue."""
    with queue_of("Queue", path) as queue:
        check_not_lost(queue)


def test_deleting_at_the_claim_is_seen_to_lose_the_job(path: str) -> None:
    """B1, control."""
    with queue_of("DeletesAtClaim", path) as queue:
        assert fails(check_not_lost, queue)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_job_that_kills_its_worker_each_time_starts_as_often_as_allowed_and_is_dead(
    path: str, recovery: str
) -> None:
    """B44: a job ran 54 times, because only handled failures raised its counter."""
    with queue_of("Queue", path) as queue:
        check_starts(queue, 3, recovery)


def test_a_recovery_that_forgets_the_crash_is_seen_to_loop(path: str) -> None:
    """B44, control."""
    with queue_of("ForgetsCrashes", path) as queue:
        assert fails(check_starts, queue, 2, "the reaper")


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_job_with_one_attempt_starts_once_however_it_ends(path: str, recovery: str) -> None:
    """B47: 32 attempts on a job with a maximum of 1, because the rescue did not compare."""
    with queue_of("Queue", path) as queue:
        check_starts(queue, 1, recovery)


def test_a_recovery_that_does_not_compare_is_seen_to_start_it_again(path: str) -> None:
    """B47, control."""
    with queue_of("NeverCompares", path) as queue:
        assert fails(check_starts, queue, 1, "the reaper")


def test_a_recovery_that_does_not_compare_is_stopped_by_the_schema_all_the_same(
    path: str,
) -> None:
    """B47: the second guard, a CHECK; the row is put aside instead of run again."""
    with NeverCompares(path, durability="process") as queue:
        job_id = queue.enqueue("kind", 1, max_attempts=1)
        assert killed_in_the_handler(queue)
        queue.reap()

        job = read(queue, job_id)
        assert job is not None
        assert (job.state, job.error_class) == ("held", "RowDamaged")


def test_a_job_that_dies_on_its_last_attempt_is_dead_and_not_locked_for_ever(path: str) -> None:
    """B40: recovery only considered rows with attempts left."""
    with queue_of("Queue", path) as queue:
        check_starts(queue, 1, "the reaper")
        assert queue.counts()["leased"] == 0


def test_a_recovery_that_skips_the_last_attempt_is_seen_to_strand_the_job(path: str) -> None:
    """B40, control."""
    with queue_of("SkipsTheLast", path) as queue:
        assert fails(check_starts, queue, 1, "the reaper")
        assert queue.counts()["leased"] == 1


def test_a_snooze_on_the_last_attempt_does_not_strand_the_job(path: str) -> None:
    """B40, its other half: a sleep on the last attempt."""
    with queue_of("Queue", path) as queue:
        queue.enqueue("kind", 1, max_attempts=1)
        lease = queue.claim()
        assert lease is not None
        queue.snooze(lease, 0)
        again = queue.claim()

        assert again is not None
        queue.ack(again)
