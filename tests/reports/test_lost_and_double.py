"""Jobs that were lost, and jobs that ran twice, without any process being killed.

The clock moves by hand, so that minutes of leases cost nothing. Each control takes one guard out
of a statement or a method.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from killproof import Host, Lease, LeaseLost, ManualClock, Queue
from killproof.core.database import Transaction

SECONDS_MAX = 120.0
Made = type[Queue]


def without(**statements: tuple[str, str]) -> Callable[[Made], Made]:
    """Replace a guard in statements of the class: name=(guard, instead)."""

    def apply(made: Made) -> Made:
        for name, (guard, instead) in statements.items():
            assert guard in getattr(Queue, name)
            setattr(made, name, getattr(Queue, name).replace(guard, instead))
        return made

    return apply


def opened(place: Path, make: Made, clock: ManualClock | None = None) -> Queue:
    host = Host(clock=clock or ManualClock())
    return make(place / "q.db", durability="process", host=host)


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def state(queue: Queue, job_id: int) -> str:
    job = queue.get(job_id)
    return "gone" if job is None else job.state


# B2: due tasks vanish when the scheduler dies at the wrong moment.


class PromotesInTwoSteps(Queue):
    """Takes what is due out of the schedule, and puts it back in as new afterwards."""

    def _promote(self, tx: Transaction, now_ms: int) -> None:
        super()._promote(tx, now_ms)
        tx.change("DELETE FROM job WHERE state = 'available'")
        tx._connection.execute("COMMIT")
        os.kill(os.getpid(), signal.SIGKILL)


#: Dies in the middle of the promotion, at the point given.
PROMOTER = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_lost_and_double as scenario
from killproof import Queue
from killproof.core import sync
def hook(name):
    if name == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
queue = getattr(scenario, sys.argv[4])(sys.argv[2])
sync.hook = hook
queue.claim(["none of these"])
"""


def check_due_jobs_survive_their_promoter(place: Path, make: Made, point: str) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        for _ in range(3):
            queue.enqueue("kind", 1, delay=0.001)
        queue.wait(["none of these"], 0.05)
        here = str(Path(__file__).parent)
        argv = [sys.executable, "-c", PROMOTER, here, queue.path, point, make.__name__]
        done = subprocess.run(argv, timeout=SECONDS_MAX, check=False)
        assert done.returncode == -signal.SIGKILL
        queue.claim(["none of these"])
        assert queue.counts()["available"] == 3


@pytest.mark.parametrize("point", ["promote.written", "claim.written", "claim.committed"])
def test_due_jobs_survive_the_death_of_whoever_promotes_them(place: Path, point: str) -> None:
    """B2: due rows were taken from the schedule first and enqueued afterwards."""
    check_due_jobs_survive_their_promoter(place, Queue, point)


def test_a_promotion_in_two_steps_is_seen_to_lose_them(place: Path) -> None:
    """B2, control."""
    with pytest.raises(AssertionError, match="0 == 3"):
        check_due_jobs_survive_their_promoter(place, PromotesInTwoSteps, "never")


# B4, B124: an id that is used again.


class Reusing(sqlite3.Connection):
    """Makes the table as most programs do: the next id is the largest one plus one."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("PRIMARY KEY AUTOINCREMENT", "PRIMARY KEY"), *values)


def reusing_ids(path: str) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, factory=Reusing
    )


def check_no_id_comes_again(
    place: Path, connect: Callable[[str], sqlite3.Connection] | None
) -> None:
    host = Host(clock=ManualClock(), connect=connect) if connect else Host(clock=ManualClock())
    with Queue(place / "q.db", durability="process", host=host) as queue:
        ids = [queue.enqueue("kind", number) for number in range(3)]
        late = queue.claim_many(3)
        with queue.transaction() as tx:  # Somebody tidies up by hand, the newest first.
            tx.execute("DELETE FROM job WHERE id >= ?", (ids[1],))
        with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:
            connection.execute("VACUUM")
        again = [queue.enqueue("kind", "new") for _ in range(2)]
        leases = queue.claim_many(2)
        for lease in late[1:]:
            with suppress(LeaseLost):
                queue.ack(lease)
        states = [state(queue, job_id) for job_id in again]
        assert states == ["leased", "leased"], "a late ack hit another job"
        assert not set(ids) & set(again)
        queue.ack_many(leases)


def test_an_id_is_never_used_again_however_the_newest_rows_went(place: Path) -> None:
    """B4, B124: a new row got the id of a deleted one, and was taken for handled."""
    check_no_id_comes_again(place, None)


def test_a_table_that_gives_the_largest_id_plus_one_is_seen(place: Path) -> None:
    """B4, B124, control."""
    with pytest.raises(AssertionError, match="hit another job"):
        check_no_id_comes_again(place, reusing_ids)


# B5: enqueued again while the first one runs, and lost with its ack.


class AcksByKey(Queue):
    """Lets the key in twice, and finishes whatever has it."""

    def enqueue(self, kind: str, payload: object, **options: Any) -> int:
        self._key = options.pop("key")
        return super().enqueue(kind, payload, **options)

    def ack(self, lease: Lease, result: object = None) -> None:
        with self.transaction() as tx:
            tx.execute(
                "UPDATE job SET state = 'succeeded', deliveries = 1, fence = fence + 1,"
                " finished_ms = 1, owner = NULL, lease_deadline_ns = NULL"
            )


def check_the_second_is_refused_or_kept(place: Path, make: Made) -> None:
    with opened(place, make) as queue:
        first = queue.enqueue("kind", "old", key="K")
        lease = claimed(queue)
        second = queue.enqueue("kind", "new", key="K")
        queue.ack(lease)
        assert second == first or state(queue, second) == "available", "the second was lost"
        assert state(queue, first) == "succeeded"


def test_a_key_that_is_enqueued_again_while_its_job_runs_answers_with_that_job(
    place: Path,
) -> None:
    """B5: the ack deleted by id, whichever delivery it belonged to."""
    check_the_second_is_refused_or_kept(place, Queue)


def test_an_ack_that_does_not_name_its_delivery_is_seen_to_lose_the_second(place: Path) -> None:
    """B5, control."""
    with pytest.raises(AssertionError, match="second was lost"):
        check_the_second_is_refused_or_kept(place, AcksByKey)


# B110: the existing job finishes between the conflict and the look.


class LooksAfterwards(Queue):
    """Finds the job of a key in a statement of its own; it may have ended meanwhile."""

    def _enqueue(self, tx: Transaction, values: Any) -> int:
        new = tx.insert(self.ENQUEUE, values)
        if new is not None:
            return new
        tx._connection.execute("COMMIT")
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute(
                "UPDATE job SET state = 'succeeded', finished_ms = 1, owner = NULL,"
                " lease_deadline_ns = NULL"
            )
        tx._connection.execute("BEGIN IMMEDIATE")
        found = tx.row(self.FIND_KEY, values)
        assert found is not None, "neither the old job nor a new one"
        return int(str(found[0]))


def check_the_race_for_a_key_has_an_answer(place: Path, make: Made) -> None:
    with opened(place, make) as queue, opened(place, Queue) as other:
        first = queue.enqueue("kind", 1, key="K")
        lease = claimed(other)
        assert queue.enqueue("kind", 2, key="K") == first
        other.ack(lease)
        assert queue.enqueue("kind", 3, key="K") != first


def test_an_enqueue_that_races_with_the_end_of_its_keys_job_answers_with_an_id(
    place: Path,
) -> None:
    """B110: the enqueue failed, or returned nothing; in one transaction it can do neither."""
    check_the_race_for_a_key_has_an_answer(place, Queue)


def test_a_look_after_the_conflict_is_seen_to_find_nothing(place: Path) -> None:
    """B110, control."""
    with pytest.raises(AssertionError, match="neither"):
        check_the_race_for_a_key_has_an_answer(place, LooksAfterwards)


# B13: opening the queue 'recovers' what somebody else is working on.


class RecoversAtOpen(Queue):
    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        with self.transaction() as tx:
            tx.execute(
                "UPDATE job SET state = 'available', owner = NULL, lease_deadline_ns = NULL"
                " WHERE state = 'leased'"
            )


#: Opens the queue while a job of it runs elsewhere, and takes what there is.
SECOND = """
import sys
sys.path.insert(0, sys.argv[1])
import test_lost_and_double as scenario
from killproof import Queue
with getattr(scenario, sys.argv[3])(sys.argv[2]) as queue:
    print(queue.wait(None, 0.05), queue.claim() is not None)
"""


def check_opening_recovers_nothing(place: Path, make: Made) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        queue.enqueue("kind", 1, lease=60)
        claimed(queue)
        here = str(Path(__file__).parent)
        argv = [sys.executable, "-c", SECOND, here, queue.path, make.__name__]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS_MAX, check=True)
        assert done.stdout.split() == ["False", "False"], "a second start"


def test_a_second_process_that_opens_the_queue_starts_nothing_that_runs(place: Path) -> None:
    """B13: two consumers got the same item, since an open queue put back what was taken."""
    check_opening_recovers_nothing(place, Queue)


def test_an_open_that_recovers_is_seen_to_start_the_job_twice(place: Path) -> None:
    """B13, control."""
    with pytest.raises(AssertionError, match="second start"):
        check_opening_recovers_nothing(place, RecoversAtOpen)


# B16: a worker claims more jobs than it asked for.


@without(CLAIM=("id = :id AND", ":id > 0 AND"))
class ClaimsWithoutLimit(Queue):
    """As where a layer drops the LIMIT of an UPDATE without a word."""


def check_a_claim_takes_so_many(place: Path, make: Made) -> None:
    with opened(place, make) as queue:
        queue.enqueue_many([("kind", number) for number in range(10)])
        leases = queue.claim_many(3)
        assert len(leases) == 3
        counts = queue.counts()
        assert (counts["leased"], counts["available"]) == (3, 7)


def test_a_claim_of_three_takes_three_of_ten(place: Path) -> None:
    """B16: SQLite builds without LIMIT on UPDATE."""
    check_a_claim_takes_so_many(place, Queue)


def test_a_claim_without_a_limit_is_stopped_by_its_own_count(place: Path) -> None:
    """B16, control."""
    with pytest.raises(AssertionError, match="nobody else can have taken it"):
        check_a_claim_takes_so_many(place, ClaimsWithoutLimit)


# B17: the lease counts from before the execution.


@without(CLAIM=("+ lease_ms *", "+ (lease_ms - :now_ms + created_ms) *"))
class LeasesFromTheEnqueue(Queue):
    """The visibility timeout counts from when the job was put in."""


def check_a_long_delay_does_not_eat_the_lease(place: Path, make: Made) -> None:
    clock = ManualClock()
    with opened(place, make, clock) as queue, opened(place, Queue, clock) as other:
        queue.enqueue("kind", 1, delay=3_600, lease=60)
        clock.advance(3_601)
        lease = claimed(queue)
        clock.advance(59)
        assert other.reap() == 0, "it ran twice"
        assert other.claim() is None
        queue.ack(lease)


def test_a_job_that_was_delayed_for_longer_than_its_lease_runs_once(place: Path) -> None:
    """B17: the visibility timeout counted from the prefetch, and an ETA was longer than it."""
    check_a_long_delay_does_not_eat_the_lease(place, Queue)


def test_a_lease_that_counts_from_the_enqueue_is_seen_to_run_out_before_the_start(
    place: Path,
) -> None:
    """B17, control."""
    with pytest.raises(AssertionError, match="ran twice"):
        check_a_long_delay_does_not_eat_the_lease(place, LeasesFromTheEnqueue)


# B20: renewals that renew by a constant.


@without(EXTEND=(":deadline_ns", ":deadline_ns * 0 + 60000000000"))
class RenewsByAMinute(Queue):
    """Renews to a constant, whatever was claimed."""


def check_a_renewal_is_as_long_as_the_lease(place: Path, make: Made) -> None:
    clock = ManualClock()
    with opened(place, make, clock) as queue, opened(place, Queue, clock) as other:
        queue.enqueue("kind", 1, lease=600)
        lease = claimed(queue)
        for _ in range(6):
            clock.advance(500)
            lease = queue.extend(lease)
        assert lease.deadline_ns == clock.monotonic_ns() + 600 * 10**9
        clock.advance(599)
        assert other.reap() == 0, "taken from a worker that renews"
        queue.ack(lease)


def test_a_renewed_lease_runs_for_its_full_length_from_the_renewal(place: Path) -> None:
    """B20: renewed by 60 s instead of the claimed length, a long job began again for ever."""
    check_a_renewal_is_as_long_as_the_lease(place, Queue)


def test_a_renewal_by_a_constant_is_seen_to_lose_the_job(place: Path) -> None:
    """B20, control."""
    with pytest.raises((AssertionError, LeaseLost)):
        check_a_renewal_is_as_long_as_the_lease(place, RenewsByAMinute)


# B41: leases of those who left never expire, or slow ones that live are reaped.


@without(
    HELD_BY=("AND lease_deadline_ns <= :before_ns", "AND :before_ns > 0"),
    END=("AND lease_deadline_ns <= :before_ns", ""),
)
class LooksAtTheClaim(Queue):
    """Its sweep looks at when a job was claimed, and not at its progress."""


def check_only_the_silent_are_reaped(place: Path, make: Made) -> None:
    clock = ManualClock()
    with opened(place, Queue, clock) as busy, opened(place, make, clock) as sweeper:
        alive, silent = (busy.enqueue("kind", number, lease=60) for number in range(2))
        leases = {lease.job.id: lease for lease in busy.claim_many(2)}
        for _ in range(3):
            clock.advance(50)
            leases[alive] = busy.extend(leases[alive])
            sweeper.reap()
        assert (state(busy, alive), state(busy, silent)) == ("leased", "available")
        busy.ack(leases[alive])


def test_an_old_job_whose_worker_speaks_is_kept_and_a_silent_one_is_taken(place: Path) -> None:
    """B41: the first fix would have reclaimed what was slow but alive."""
    check_only_the_silent_are_reaped(place, Queue)


def test_a_sweep_that_looks_at_the_claim_is_seen_to_take_from_the_living(place: Path) -> None:
    """B41, control."""
    with pytest.raises(LeaseLost):
        check_only_the_silent_are_reaped(place, LooksAtTheClaim)


# B26: recovery re-runs work that was cleared meanwhile.


AS_BELIEVED = """AND fence = :fence AND owner = :worker AND state = 'leased'
           AND lease_deadline_ns <= :before_ns"""


@without(END=(AS_BELIEVED, ""))
class ForgetsTheState(Queue):
    """Its recovery names the job, and nothing of what it believes about it."""


def check_cleared_work_stays_cleared(place: Path, make: Made) -> None:
    clock = ManualClock()
    with opened(place, make, clock) as queue:
        job_id = queue.enqueue("kind", 1, lease=1)
        claimed(queue)
        clock.advance(2)
        with queue.database.write("reap") as tx:
            listed = queue._read(tx, job_id)
        assert queue.cancel(job_id)
        with suppress(LeaseLost), queue.database.write("reap") as tx:
            queue._take_back(tx, listed, "expired", clock.monotonic_ns())
        assert state(queue, job_id) == "cancelled"
        assert queue.claim() is None


def test_a_job_that_is_cancelled_between_the_list_and_its_recovery_does_not_run(
    place: Path,
) -> None:
    """B26: the list of what to recover was an old snapshot."""
    check_cleared_work_stays_cleared(place, Queue)


def test_a_recovery_by_id_is_seen_to_run_what_was_cancelled(place: Path) -> None:
    """B26, control."""
    with pytest.raises(AssertionError, match="available"):
        check_cleared_work_stays_cleared(place, ForgetsTheState)
