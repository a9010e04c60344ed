"""Death and expiry: what proves that a lease is lost, and what does not.

The lives of other workers are rows and bytes here; tests/process kills real ones.
"""

import dataclasses
import errno
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from killproof import Host, Job, Lease, LeaseLost, ManualClock, Queue, SystemClock
from killproof.core import clock as clocks
from killproof.core import host, sync
from killproof.core.host import KernelLocks
from killproof.core.jobs import NEVER_NS
from killproof.core.liveness import BYTE_END, BYTE_FIRST, Liveness

Sql = Callable[..., list[tuple[Any, ...]]]


def claimed(queue: Queue, **options: Any) -> Lease:
    queue.enqueue("kind", 1, **options)
    lease = queue.claim()
    assert lease is not None
    return lease


def read(queue: Queue, job_id: int) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job


@pytest.fixture
def peer(queue: Queue, clock: ManualClock) -> Iterator[Queue]:
    """Another worker on the same file and clock, with a life of its own."""
    with Queue(queue.path, host=Host(clock=clock, random=random.Random(5))) as peer:
        yield peer


def outcome_of(queue: Queue, lease: Lease) -> str:
    return read(queue, lease.job.id).attempts[-1].outcome


def die(queue: Queue) -> None:
    """End a worker as the kernel ends it: its byte is free, and nothing was given back."""
    liveness = queue.database.liveness
    assert liveness is not None
    liveness.close()
    queue._identity = None  # Closing must not give its leases back.


# The kernel's part.


def test_a_held_byte_is_seen_as_held_by_others_and_by_its_own_tester(place: Path) -> None:
    path = str(place / "q.db")
    mine, other = Liveness(path), Liveness(path)
    byte = mine.hold()
    assert BYTE_FIRST <= byte < BYTE_END
    assert not mine.is_free(byte)
    assert not other.is_free(byte)
    assert other.is_free(byte + 1)
    mine.release()

    assert other.is_free(byte)
    assert (place / "q.db.workers").stat().st_size == 0
    mine.close()
    other.close()


def test_a_life_ends_with_its_descriptors(place: Path) -> None:
    mine, other = Liveness(str(place / "q.db")), Liveness(str(place / "q.db"))
    byte = mine.hold()
    mine.close()

    assert other.is_free(byte)
    other.close()


def test_bytes_are_random_and_never_handed_out_twice(place: Path) -> None:
    lives = [Liveness(str(place / "q.db")) for _ in range(40)]

    assert len({life.hold() for life in lives}) == 40
    for life in lives:
        life.close()


def test_a_deleted_or_replaced_file_is_noticed_by_who_holds_a_byte_of_it(place: Path) -> None:
    mine = Liveness(str(place / "q.db"))
    mine.hold()
    assert mine.is_sound()
    (place / "q.db.workers").unlink()
    assert not mine.is_sound()
    (place / "q.db.workers").touch()
    assert not mine.is_sound()
    mine.close()

    assert not mine.is_sound()


def test_a_byte_that_somebody_freed_is_noticed(place: Path) -> None:
    mine = Liveness(str(place / "q.db"))
    byte = mine.hold()
    mine.release()
    mine._byte = byte

    assert not mine.is_sound()
    mine.close()


def test_where_no_lock_can_be_had_the_lease_alone_decides(place: Path) -> None:
    (place / "q.db.workers").mkdir()
    mine = Liveness(str(place / "q.db"))

    assert (mine.file, mine.hold(), mine.is_sound()) == ("", 0, True)
    mine.close()


def test_locks_that_only_pretend_are_found_out_and_not_relied_upon(place: Path) -> None:
    """Some file systems accept a lock and keep none: every holder would be taken for dead."""

    class Pretending(Liveness):
        def _lock(self, byte: int) -> bool:
            return True

    mine = Pretending(str(place / "q.db"))

    assert (mine.file, mine.hold()) == ("", 0)
    mine.close()


# What proves a death.


def test_a_dead_workers_job_is_taken_back_at_once_not_after_the_lease(
    queue: Queue, peer: Queue
) -> None:
    lease = claimed(queue)
    die(queue)

    assert peer.reap() == 1
    job = read(peer, lease.job.id)
    assert (job.state, job.crashes, job.attempt) == ("available", 1, 1)
    assert job.attempts[0].outcome == "crashed"
    assert (job.error_class, job.error_message) == ("Crashed", "the worker died")


def test_a_process_that_never_claimed_sees_deaths_too(queue: Queue, peer: Queue) -> None:
    claimed(queue)
    die(queue)

    assert peer.worker_id is None
    assert peer.wait(None, 0)
    assert peer.claim() is not None


def test_a_claim_takes_back_what_the_dead_held(
    queue: Queue, peer: Queue, clock: ManualClock
) -> None:
    """Covers S0.50, F24."""
    lease = claimed(queue)
    assert peer.claim() is None
    die(queue)
    clock.advance(0.02)

    again = peer.claim()
    assert again is not None
    assert (again.job.id, again.fence) == (lease.job.id, 2)


def test_the_outcome_of_a_worker_that_was_believed_dead_is_refused(
    queue: Queue, peer: Queue
) -> None:
    lease = claimed(queue)
    die(queue)
    peer.reap()

    with pytest.raises(LeaseLost):
        queue.ack(lease)


def test_a_living_worker_keeps_its_lease_until_it_runs_out(
    queue: Queue, peer: Queue, clock: ManualClock
) -> None:
    lease = claimed(queue, lease=10)
    clock.elapsed_ns += 9_999_999_999
    assert peer.reap() == 0
    clock.elapsed_ns += 1

    assert peer.reap() == 1
    job = read(peer, lease.job.id)
    assert (job.attempts[0].outcome, job.error_class) == ("expired", "LeaseExpired")


def test_a_free_byte_of_another_file_proves_nothing(
    queue: Queue, peer: Queue, sql: Sql, clock: ManualClock
) -> None:
    """A re-created file knows no byte of the old one: without this, the living are buried."""
    claimed(queue, lease=10)
    sql("UPDATE worker SET file = '1:1'")
    die(queue)
    assert peer.reap() == 0
    clock.advance(10)

    assert peer.reap() == 1


@pytest.mark.parametrize(
    "damage",
    ["byte = -1", "byte = 0", "byte = 5", f"byte = {(1 << 63) - 1}", "file = CAST(x'ff' AS TEXT)"],
)
def test_a_damaged_row_of_a_worker_proves_nothing_and_stops_nobody(
    queue: Queue, peer: Queue, sql: Sql, clock: ManualClock, damage: str
) -> None:
    claimed(queue, lease=10)
    peer.enqueue("kind", 2)
    sql(f"UPDATE worker SET {damage}")  # noqa: S608
    assert peer.reap() == 0
    other = peer.claim()
    assert other is not None
    assert other.job.payload == 2
    clock.advance(10)
    peer.extend(other)

    assert peer.reap() == 1


def test_a_worker_without_locks_is_never_believed_dead(
    queue: Queue, peer: Queue, sql: Sql, clock: ManualClock
) -> None:
    claimed(queue, lease=10)
    sql("UPDATE worker SET file = '', byte = 0")
    die(queue)
    assert peer.reap() == 0
    clock.advance(10)

    assert peer.reap() == 1


def test_a_reaper_without_locks_waits_for_the_lease(queue: Queue, clock: ManualClock) -> None:
    class Lockless(KernelLocks):
        def liveness(self, path: str) -> host.Liveness:
            life = Liveness(path)
            life.file = ""
            return life

    claimed(queue, lease=10)
    die(queue)
    with Queue(queue.path, host=Host(clock=clock, lock=Lockless())) as reaper:
        assert reaper.reap() == 0
        assert reaper.claim() is None
        clock.advance(10)
        assert reaper.reap() == 1
        assert claimed(reaper).owner == reaper.worker_id


# What proves nothing: a missing row, another clock.


@pytest.mark.parametrize("how", ["no row", "another clock"])
def test_a_lease_of_unknown_clock_is_dead_only_when_watched_for_its_length_and_more(
    queue: Queue, peer: Queue, clock: ManualClock, sql: Sql, how: str
) -> None:
    lease = claimed(queue, lease=10)
    sql("DELETE FROM worker" if how == "no row" else "UPDATE worker SET clock = 'elsewhere'")
    sql("UPDATE job SET lease_deadline_ns = 1")  # Of a clock that reads less: means nothing here.
    for _ in range(15):
        assert peer.reap() == 0
        clock.advance(0.99)
    clock.advance(0.2)

    assert peer.reap() == 1
    assert read(peer, lease.job.id).attempts[0].outcome == "expired"


def test_an_extension_begins_the_watch_anew(
    queue: Queue, peer: Queue, clock: ManualClock, sql: Sql
) -> None:
    lease = claimed(queue, lease=10)
    sql("UPDATE worker SET clock = 'elsewhere'")
    for _ in range(5):
        assert peer.reap() == 0
        clock.advance(14)
        lease = queue.extend(lease)
    assert peer.reap() == 0
    clock.advance(15.1)

    assert peer.reap() == 1


def test_a_new_claim_begins_the_watch_anew(
    queue: Queue, peer: Queue, clock: ManualClock, sql: Sql
) -> None:
    lease = claimed(queue, lease=10)
    sql("UPDATE worker SET clock = 'elsewhere'")
    assert peer.reap() == 0
    clock.advance(14)
    queue.release(lease)
    assert queue.claim() is not None
    sql("UPDATE job SET lease_deadline_ns = ?", lease.deadline_ns)  # Only the fence tells.
    clock.advance(5)

    assert peer.reap() == 0


def test_an_idle_wait_lets_a_claim_look_at_leases_of_another_clock(
    queue: Queue, peer: Queue, clock: ManualClock, sql: Sql
) -> None:
    claimed(queue, lease=3)
    sql("UPDATE worker SET clock = 'elsewhere'")
    end_ns = clock.elapsed_ns + 10_000_000_000
    lease = None
    while lease is None and clock.elapsed_ns < end_ns:
        if peer.wait(None, 1):
            lease = peer.claim()

    assert lease is not None
    assert lease.fence == 2


@pytest.mark.parametrize("hours", [-1, 1, -10_000])
def test_a_step_of_the_wall_clock_neither_ends_nor_prolongs_a_lease(
    queue: Queue, peer: Queue, clock: ManualClock, hours: int
) -> None:
    lease = claimed(queue, lease=10)
    clock.step_wall(hours * 3_600)
    assert peer.reap() == 0
    assert queue.extend(lease).deadline_ns == lease.deadline_ns
    clock.elapsed_ns += 9_999_999_999
    assert peer.reap() == 0
    clock.elapsed_ns += 1

    assert peer.reap() == 1


def test_the_clock_is_named_after_boot_and_time_namespace(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may share the boot id and yet have a clock that is shifted by a day."""
    (place / "boot").write_text("b00t\n")
    (place / "offsets").write_text("monotonic  86400  0\nboottime 0 0\n")
    monkeypatch.setattr(clocks, "BOOT_ID", place / "boot")
    monkeypatch.setattr(clocks, "TIME_NAMESPACE", place / "absent")
    plain = SystemClock().ident()
    monkeypatch.setattr(clocks, "TIME_NAMESPACE", place / "offsets")
    shifted = SystemClock().ident()

    assert plain != shifted
    assert plain.startswith("b00t")
    assert SystemClock().ident() == shifted


def test_an_untold_boot_is_never_taken_for_anybodys(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "BOOT_ID", place / "absent")
    first, second = SystemClock(), SystemClock()

    assert first.ident() != second.ident()
    assert first.ident() == first.ident()


# What becomes of the job.


def test_the_first_crash_goes_back_at_once_and_the_later_ones_by_the_policy(
    queue: Queue, clock: ManualClock
) -> None:
    job_id = queue.enqueue("kind", 1, retry="fixed:100", lease=1)
    states = []
    for _ in range(5):
        assert queue.claim() is not None
        clock.advance(1)
        assert queue.reap() == 1
        job = read(queue, job_id)
        states.append((job.state, job.attempt, job.due_ms > clock.now_ms()))
        clock.advance(100)

    assert states == [
        ("available", 1, False),
        ("retryable", 2, True),
        ("retryable", 3, True),
        ("retryable", 4, True),
        ("dead", 5, False),
    ]
    job = read(queue, job_id)
    assert (job.crashes, job.failures, job.finished_ms) == (5, 0, clock.now_ms() - 100_000)
    assert queue.claim() is None


def test_one_call_reaps_a_bounded_number_and_reap_all_of_them(queue: Queue, peer: Queue) -> None:
    queue.enqueue_many([("kind", i) for i in range(250)])
    queue.claim_many(250)
    die(queue)
    assert peer.claim() is not None
    assert peer.counts()["leased"] == 151

    assert peer.reap() == 150
    assert peer.counts()["available"] == 249


def test_the_reaper_repeats_the_fence_the_owner_and_the_deadline_it_believes(
    queue: Queue, peer: Queue, clock: ManualClock
) -> None:
    """What it read may be old when it writes: each of the three must stop it on its own."""
    lease = claimed(queue, lease=10)
    clock.advance(10)
    with peer.database.write("reap") as tx:
        job = peer._read(tx, lease.job.id)
    queue.extend(lease)
    now_ns = clock.monotonic_ns()
    for believed, before_ns in (
        (dataclasses.replace(job, fence=7), NEVER_NS),
        (dataclasses.replace(job, owner="f" * 32), NEVER_NS),
        (job, now_ns),  # Only the deadline has moved.
    ):
        with pytest.raises(LeaseLost), peer.database.write("reap") as tx:
            peer._take_back(tx, believed, "expired", before_ns)

    queue.ack(lease)


# Identities.


class Noting(KernelLocks):
    """Locks that note lives in the same list as the statements."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def liveness(self, path: str) -> host.Liveness:
        events = self.events

        class Life(Liveness):
            def hold(self) -> int:
                events.append("hold")
                return super().hold()

            def release(self) -> None:
                events.append("free")
                super().release()

        return Life(path)


def test_the_byte_comes_before_the_row_before_the_lease_and_goes_the_other_way(
    place: Path,
) -> None:
    """A row without its byte would be a death; a lease without its row proves nothing."""
    locks = Noting()

    def note(statement: str) -> None:
        words = " ".join(statement.split()[:4])
        if words.startswith(("INSERT OR IGNORE", "DELETE", "UPDATE job SET state", "COMMIT")):
            locks.events.append(words)

    def connect(path: str) -> sqlite3.Connection:
        connection = host.connect(path)
        connection.set_trace_callback(note)
        return connection

    queue = Queue(place / "q.db", durability="process", host=Host(lock=locks, connect=connect))
    queue.enqueue("kind", 1)
    del locks.events[:]
    assert queue.claim() is not None
    began = list(locks.events)
    del locks.events[:]
    queue.close()

    assert began[:2] == ["hold", "INSERT OR IGNORE INTO"]
    assert began[-2:] == ["UPDATE job SET state", "COMMIT"]
    assert locks.events == ["UPDATE job SET state", "DELETE FROM worker WHERE", "COMMIT", "free"]


def test_a_deleted_lock_file_is_healed_by_the_next_heartbeat_and_old_leases_stay(
    queue: Queue, peer: Queue, clock: ManualClock
) -> None:
    old = claimed(queue)
    os.unlink(f"{queue.path}.workers")
    old = queue.extend(old)
    new = claimed(queue)

    assert new.owner != old.owner
    assert new.owner == queue.worker_id
    assert peer.reap() == 0
    queue.ack(old)
    die(queue)
    assert peer.reap() == 1  # The new identity's death is seen at once.


def test_descriptors_closed_by_a_handler_are_healed_by_the_next_heartbeat(
    queue: Queue, peer: Queue
) -> None:
    old = claimed(queue)
    life = queue.database.liveness
    assert isinstance(life, Liveness)
    os.close(life._hold)
    os.close(life._test)
    assert peer.reap() == 1  # Believed dead: harmless, because it is told.
    with pytest.raises(LeaseLost):
        queue.extend(old)
    new = claimed(queue)

    assert new.owner != old.owner
    assert peer.reap() == 0
    queue.ack(new)


def test_closing_after_a_handler_has_closed_the_descriptors_raises_nothing(queue: Queue) -> None:
    lease = claimed(queue)
    life = queue.database.liveness
    assert isinstance(life, Liveness)
    os.close(life._hold)
    queue.close()

    with Queue(queue.path) as other:
        assert outcome_of(other, lease) == "released"


def test_a_lease_that_can_not_be_given_back_is_still_seen_to_be_a_dead_workers(
    queue: Queue, peer: Queue, clock: ManualClock
) -> None:
    lease = claimed(queue)
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE job SET failures = -5")
    queue.close()

    assert peer.reap() == 1
    assert read(peer, lease.job.id).error_class == "RowDamaged"


def test_the_rows_of_workers_that_are_gone_are_forgotten_and_those_of_the_living_kept(
    queue: Queue, peer: Queue, clock: ManualClock, sql: Sql
) -> None:
    queue.claim()
    holder = claimed(queue)
    with Queue(queue.path, host=Host(clock=clock)) as gone:
        gone.claim()
        die(gone)
    unknown = "e" * 32
    sql("INSERT INTO worker VALUES (?, 'c', '1:1', 5, 1, ?)", unknown, clock.now_ms())
    sql("INSERT INTO worker VALUES (?, 'c', '1:1', 5, 1, 1)", "d" * 32)
    peer.claim()

    assert {row[0] for row in sql("SELECT id FROM worker")} == {
        holder.owner,
        peer.worker_id,
        unknown,
    }


def test_a_worker_that_was_forgotten_registers_again(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    queue.claim()
    sql("DELETE FROM worker")
    clock.advance(0.02)
    lease = claimed(queue)

    assert sql("SELECT id FROM worker") == [(lease.owner,)]


def test_a_claim_that_was_rolled_back_registers_again(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    """Else its death would be noticed by the lease alone, for as long as it lives."""

    def hook(name: str) -> None:
        if name == "claim.written":
            raise KeyboardInterrupt

    queue.enqueue("kind", 1)
    sync.hook = hook
    try:
        with pytest.raises(KeyboardInterrupt):
            queue.claim()
    finally:
        sync.hook = None
    assert sql("SELECT count(*) FROM worker") == [(0,)]
    clock.advance(0.02)

    lease = queue.claim()
    assert lease is not None
    assert sql("SELECT id FROM worker") == [(lease.owner,)]


def test_a_lock_call_that_fails_leaves_the_lease_to_decide(place: Path) -> None:
    """An error of the kernel's lock is no reason to refuse a claim, and proves no death."""
    mine, other = Liveness(str(place / "q.db")), Liveness(str(place / "q.db"))
    byte = other.hold()
    assert not mine.is_free(byte)
    for descriptor in (mine._hold, mine._test):
        os.close(descriptor)

    assert not mine.is_free(byte)
    assert mine.hold() == 0
    assert mine.file == ""
    other.close()


def test_a_claim_without_a_lock_is_one_that_only_its_lease_can_end(place: Path) -> None:
    class FailingLater(Liveness):
        is_tried = False

        def _lock(self, byte: int) -> bool:
            if self.is_tried:
                raise OSError(errno.EIO, "refused")
            self.is_tried = True
            return super()._lock(byte)

    class Locks(KernelLocks):
        def liveness(self, path: str) -> Liveness:
            return FailingLater(path)

    with Queue(place / "q.db", host=Host(lock=Locks())) as queue:
        queue.enqueue("kind", 1)
        lease = queue.claim()

        assert lease is not None
        rows = queue.database.peek("SELECT file, byte FROM worker")
        assert rows == [("", 0)]
