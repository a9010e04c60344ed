"""Two workers that meet: double runs, lock errors, and recoveries that act on an old look."""

import dataclasses
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from killproof import Host, Lease, LeaseLost, ManualClock, Queue
from killproof.core.jobs import _Identity
from killproof.core.liveness import Liveness

SECONDS_MAX = 120.0


def fails(check: Callable[..., None], *values: Any) -> bool:
    try:
        check(*values)
    except AssertionError:
        return True
    return False


def without(**statements: tuple[str, str]) -> Callable[[type[Queue]], type[Queue]]:
    """Replace a guard in statements of the class: name=(guard, instead)."""

    def apply(made: type[Queue]) -> type[Queue]:
        for name, (guard, instead) in statements.items():
            assert guard in getattr(Queue, name)
            setattr(made, name, getattr(Queue, name).replace(guard, instead))
        return made

    return apply


# B11: two workers both run the same job.


class LooksThenTakes(Queue):
    """Reads the next job without the write lock, then takes it without looking again."""

    def claim(self, kinds: Iterable[str] | None = None) -> Lease | None:
        found = self.database.peek(
            "SELECT id FROM job WHERE state = 'available' ORDER BY priority, due_ms, id LIMIT 1"
        )
        if not found:
            return None
        self.host.clock.sleep(0.002)
        job_id, owner = cast(int, found[0][0]), f"{os.getpid():032x}"
        with self.transaction() as tx:
            tx.execute(
                "UPDATE job SET state = 'leased', owner = :owner, lease_deadline_ns = 1 << 62,"
                " fence = fence + 1, deliveries = deliveries + 1, claimed_ms = 1,"
                " finished_ms = NULL, result = NULL, max_attempts = 1000 WHERE id = :id",
                {"id": job_id, "owner": owner},
            )
        job = self.get(job_id)
        assert job is not None
        return Lease(job=job, fence=job.fence, owner=owner, claimed_ms=1, deadline_ns=1 << 62)


#: Drains the queue; the effect of each job is a line, written at once.
DRAINER = """
import os, sys
sys.path.insert(0, sys.argv[1])
import test_two_at_once as scenario
from killproof import KillproofError
queue = getattr(scenario, sys.argv[3])(sys.argv[2])
effects = os.open(sys.argv[2] + ".effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
sys.stdin.readline()
while (lease := queue.claim()) is not None:
    os.write(effects, f"{lease.job.payload}\\n".encode())
    try:
        queue.ack(lease)
    except KillproofError:
        pass
"""


def check_each_effect_once(place: Path, make: type[Queue], jobs: int) -> None:
    path = place / "q.db"
    with make(path, durability="process") as queue:
        queue.enqueue_many([("kind", number) for number in range(jobs)])
        here = str(Path(__file__).parent)
        argv = [sys.executable, "-c", DRAINER, here, str(path), make.__name__]
        processes = [
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        for process in processes:
            process.communicate(timeout=SECONDS_MAX)
        if any(process.returncode for process in processes):
            raise RuntimeError(
                "a worker ended with an error"
            )  # No finding, for the control either.

    effects = Path(f"{path}.effects").read_text().split()
    assert Counter(map(int, effects)) == Counter(range(jobs))


def test_several_processes_drain_a_thousand_jobs_with_a_thousand_effects(place: Path) -> None:
    """B11, B25: two workers ran one workflow on SQLite: select and reserve were not one step."""
    check_each_effect_once(place, Queue, 1_000)


def test_a_claim_that_looks_before_it_locks_is_seen_to_run_jobs_twice(place: Path) -> None:
    """B11, B25, control."""
    assert fails(check_each_effect_once, place, LooksThenTakes, 100)


# B56: lock errors long before the busy limit.

#: Reads a counter and writes it back, in one transaction, many times.
COUNTER = """
import sys
from killproof import Queue
queue = Queue(sys.argv[1])
for _ in range(100):
    with queue.transaction() as tx:
        (n,) = tx.execute("SELECT n FROM counter").fetchone()
        tx.execute("UPDATE counter SET n = ?", (n + 1,))
"""


def test_two_processes_that_read_and_then_write_meet_no_lock_error(place: Path) -> None:
    """B56: 684 of 4,247 writes failed within milliseconds despite a busy timeout of 5 s."""
    with Queue(place / "q.db", durability="process") as queue:
        with queue.transaction() as tx:
            tx.execute("CREATE TABLE counter (n)")
            tx.execute("INSERT INTO counter VALUES (0)")
        argv = [sys.executable, "-c", COUNTER, queue.path]
        processes = [subprocess.Popen(argv) for _ in range(2)]

        assert [process.wait(SECONDS_MAX) for process in processes] == [0, 0]
        assert queue.database.peek("SELECT n FROM counter") == [(200,)]


def test_a_deferred_transaction_that_read_first_is_seen_to_fail_at_once(place: Path) -> None:
    """B56, control: the busy timeout of 60 s is not even tried."""
    Queue(place / "q.db", durability="process").close()
    with (
        closing(sqlite3.connect(place / "q.db", isolation_level=None, timeout=60)) as first,
        closing(sqlite3.connect(place / "q.db", isolation_level=None, timeout=60)) as second,
    ):
        first.execute("CREATE TABLE counter (n)")
        for connection in (first, second):
            connection.execute("BEGIN")
            connection.execute("SELECT n FROM counter").fetchall()
        first.execute("INSERT INTO counter VALUES (1)")
        first.execute("COMMIT")
        with pytest.raises(sqlite3.OperationalError, match="database is locked") as caught:
            second.execute("INSERT INTO counter VALUES (2)")

        assert caught.value.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT


# B14: a rescuer that acts on an old look.


AS_BELIEVED = """AND fence = :fence AND owner = :worker AND state = 'leased'
           AND lease_deadline_ns <= :before_ns"""


# That a delivery ends only once is a guard of the schema's, of its own.
@without(END=(AS_BELIEVED, ""))
class RescuesById(Queue):
    """Its rescuer names the row by its id alone."""


def check_an_old_look_changes_nothing(place: Path, make: type[Queue], meanwhile: str) -> None:
    clock = ManualClock()
    with make(place / "q.db", durability="process", host=Host(clock=clock)) as queue:
        job_id = queue.enqueue("kind", 1, lease=1)
        lease = queue.claim()
        assert lease is not None
        clock.advance(2)
        with queue.database.write("reap") as tx:
            seen = queue._read(tx, job_id)
        if meanwhile == "completed":
            queue.ack(lease, "done")
        else:
            queue.release(lease)
            lease = queue.claim()
        before = dataclasses.replace(queue.get(job_id) or seen, attempts=())
        with suppress(LeaseLost), queue.database.write("reap") as tx:
            queue._take_back(tx, seen, "expired", clock.monotonic_ns())

        after = dataclasses.replace(queue.get(job_id) or seen, attempts=())
        assert after == before


@pytest.mark.parametrize("meanwhile", ["completed", "released and claimed anew"])
def test_a_rescuer_that_looked_before_the_job_moved_on_changes_nothing(
    place: Path, meanwhile: str
) -> None:
    """B14: a completed job was set back to retryable by the rescuer, and ran again."""
    check_an_old_look_changes_nothing(place, Queue, meanwhile)


@pytest.mark.parametrize("meanwhile", ["completed", "released and claimed anew"])
def test_a_rescuer_that_names_the_row_by_its_id_is_seen_to_undo_what_was_done(
    place: Path, meanwhile: str
) -> None:
    """B14, control."""
    assert fails(check_an_old_look_changes_nothing, place, RescuesById, meanwhile)


# B28: jobs that stay 'doing' for ever.


@without(HOLDERS=("LEFT JOIN", "JOIN"))
class JoinsTheWorkers(Queue):
    """Its stalled-job query joins on the workers' table."""


@without(REGISTER=("OR IGNORE", "OR REPLACE"))
class ReusesItsName(Queue):
    """A restarted worker registers under the name of its former life."""

    def _register(self, tx: Any, *, again: bool) -> str:
        if self._identity is None:
            self._identity = _Identity(self._liveness(), "0123456789abcdef" * 2)
            again = True
        return super()._register(tx, again=again)


def die(queue: Queue) -> None:
    """End a worker as the kernel does: its byte is free, and nothing was given back."""
    liveness = queue.database.liveness
    assert isinstance(liveness, Liveness)
    liveness.close()
    queue._identity = None
    queue.close()


def check_found_without_its_worker(place: Path, make: type[Queue]) -> None:
    clock = ManualClock()
    host = Host(clock=clock)
    with make(place / "q.db", durability="process", host=host) as queue:
        victim = make(place / "q.db", host=host)
        victim.enqueue("kind", 1, lease=10)
        assert victim.claim() is not None
        die(victim)
        with queue.transaction() as tx:
            tx.execute("DELETE FROM worker")
        recovered = 0
        for _ in range(20):
            recovered += queue.reap()
            clock.advance(1)

        assert recovered == 1


def test_a_job_whose_workers_row_was_pruned_is_still_found(place: Path) -> None:
    """B28: the dead worker's row was pruned before the query that joined on it."""
    check_found_without_its_worker(place, Queue)


def test_a_query_that_joins_on_the_pruned_row_is_seen_to_lose_the_job(place: Path) -> None:
    """B28, control."""
    assert fails(check_found_without_its_worker, place, JoinsTheWorkers)


def check_recovered_after_a_restart(place: Path, make: type[Queue]) -> None:
    host = Host(clock=ManualClock())
    former = make(place / "q.db", durability="process", host=host)
    job_id = former.enqueue("kind", 1, lease=86_400)
    assert former.claim() is not None
    die(former)
    with make(place / "q.db", host=host) as again:
        again.claim(["another kind"])  # It lives, and says so.
        again.reap()

        job = again.get(job_id)
        assert job is not None
        assert (job.state, job.error_class) == ("available", "Crashed")


def test_a_restarted_worker_does_not_vouch_for_its_former_life(place: Path) -> None:
    """B28: under the same id, its fresh heartbeat vouched for the old process's jobs."""
    check_recovered_after_a_restart(place, Queue)


def test_a_worker_that_takes_its_old_name_again_is_seen_to_keep_the_job_for_ever(
    place: Path,
) -> None:
    """B28, control."""
    assert fails(check_recovered_after_a_restart, place, ReusesItsName)
