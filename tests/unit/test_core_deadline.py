"""What time and the throttle keep from being claimed: deadlines, and kinds that wait."""

from collections.abc import Callable
from typing import Any

import pytest

from killproof import ManualClock, Queue, operations
from killproof.core.jobs import NEVER_NS, SWEEP_ROWS_MAX

Sql = Callable[..., list[tuple[Any, ...]]]


def state_of(queue: Queue, job_id: int) -> str:
    job = queue.get(job_id)
    assert job is not None
    return job.state


def in_seconds(clock: ManualClock, seconds: float) -> float:
    return clock.now_ms() / 1_000 + seconds


# Deadlines.


def test_a_job_whose_deadline_has_passed_is_never_started(queue: Queue, clock: ManualClock) -> None:
    """A datum that is worth nothing in ten minutes. Covers S0.6, S1.28."""
    late = queue.enqueue("k", "late", deadline=in_seconds(clock, 600))
    timeless = queue.enqueue("k", "timeless")
    clock.advance(600)

    lease = queue.claim()
    assert lease is not None
    assert lease.job.id == timeless
    assert queue.claim() is None
    assert state_of(queue, late) == "expired"


def test_a_job_is_started_until_the_last_moment_before_its_deadline(
    queue: Queue, clock: ManualClock
) -> None:
    job_id = queue.enqueue("k", 0, deadline=in_seconds(clock, 600))
    clock.advance(599.999)
    lease = queue.claim()
    assert lease is not None
    assert lease.job.id == job_id
    assert lease.job.expires_ms == clock.now_ms() + 1


def test_a_running_job_may_end_after_its_deadline_but_is_not_tried_again(
    queue: Queue, clock: ManualClock
) -> None:
    done = queue.enqueue("k", 0, deadline=in_seconds(clock, 10))
    failed = queue.enqueue("k", 0, deadline=in_seconds(clock, 10), retry="immediate")
    first, second = queue.claim(), queue.claim()
    assert first is not None
    assert second is not None
    clock.advance(11)
    queue.ack(first)
    queue.nack(second, "no")

    assert queue.claim() is None
    assert state_of(queue, done) == "succeeded"
    assert state_of(queue, failed) == "expired"


@pytest.mark.parametrize("state", ["scheduled", "retryable", "held", "blocked"])
def test_a_job_that_waits_for_something_expires_as_well(
    queue: Queue, clock: ManualClock, sql: Sql, state: str
) -> None:
    job_id = queue.enqueue("k", 0, delay=5, deadline=in_seconds(clock, 10))
    sql("UPDATE job SET state = ?", state)
    clock.advance(20)
    assert queue.claim() is None
    assert state_of(queue, job_id) == "expired"


def test_no_expired_job_is_started_however_many_expire_at_once(
    queue: Queue, clock: ManualClock
) -> None:
    """The claim moves a bounded number of rows; what is left over must not be taken instead."""
    for _ in range(2 * SWEEP_ROWS_MAX + 50):
        queue.enqueue("k", 0, deadline=in_seconds(clock, 1))
    clock.advance(2)
    assert queue.claim() is None
    counts = queue.counts()
    assert counts["available"] + counts["expired"] == 2 * SWEEP_ROWS_MAX + 50
    assert counts["leased"] == 0


def test_an_idle_worker_wakes_to_expire_what_is_due(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("k", 0, delay=50, deadline=in_seconds(clock, 60))
    sooner = queue.enqueue("other", 0, delay=5, deadline=in_seconds(clock, 6))
    queue.claim()
    clock.advance(7)
    assert queue.wait(["k"], 0.0)
    queue.claim(["k"])
    assert state_of(queue, sooner) == "expired"


def test_a_damaged_row_does_not_stop_the_others_from_expiring(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    damaged = queue.enqueue("k", 0, deadline=in_seconds(clock, 1))
    sound = queue.enqueue("k", 0, deadline=in_seconds(clock, 2))
    sql("PRAGMA ignore_check_constraints = ON")
    sql("UPDATE job SET result = '1' WHERE id = ?", damaged)
    clock.advance(3)
    assert queue.claim() is None
    assert state_of(queue, damaged) == "held"
    assert state_of(queue, sound) == "expired"


def test_a_replayed_job_has_no_deadline_any_more(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue("k", 0, deadline=in_seconds(clock, 1))
    clock.advance(2)
    assert queue.claim() is None
    assert operations.replay(queue, [job_id]).moved == (job_id,)
    lease = queue.claim()
    assert lease is not None
    assert lease.job.expires_ms is None


def test_a_deadline_that_leaves_no_time_is_refused_and_nothing_is_put_in(
    queue: Queue, clock: ManualClock
) -> None:
    for delay, deadline in ((0, 0), (0, -1), (10, 10)):
        with pytest.raises(ValueError, match="must be later than the moment the job is due"):
            queue.enqueue("k", 0, delay=delay, deadline=in_seconds(clock, deadline))
    assert sum(queue.counts().values()) == 0


# Kinds that wait.


def throttle(queue: Queue, kind: str, until_ms: int = NEVER_NS, reason: str = "test") -> None:
    with queue.transaction() as tx:
        tx.execute("INSERT INTO throttle VALUES (?, ?, ?)", (kind, reason, until_ms))


def test_nothing_is_claimed_of_a_kind_that_is_throttled(queue: Queue) -> None:
    queue.enqueue("stopped", 0, priority=0)
    free = queue.enqueue("free", 0)
    throttle(queue, "stopped")
    for kinds in (None, ["stopped", "free"]):
        lease = queue.claim(kinds)
        assert lease is not None
        assert lease.job.id == free
        queue.release(lease)
    assert queue.claim(["stopped"]) is None


def test_one_reason_does_not_open_what_another_has_closed(queue: Queue) -> None:
    queue.enqueue("k", 0)
    throttle(queue, "k", reason="paused")
    throttle(queue, "k", reason="limit")
    with queue.transaction() as tx:
        tx.execute("DELETE FROM throttle WHERE reason = 'limit'")
    assert queue.claim() is None
    with queue.transaction() as tx:
        tx.execute("DELETE FROM throttle WHERE reason = 'paused'")
    assert queue.claim() is not None


def test_a_throttle_ends_by_itself_and_wakes_who_waits(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("k", 0)
    throttle(queue, "k", clock.now_ms() + 1_000)
    assert queue.claim() is None
    assert not queue.wait(["k"], 0.5)
    assert queue.claim() is None
    assert queue.wait(["k"], 5.0)
    assert queue.claim() is not None


def test_who_waits_for_a_throttled_kind_does_not_ask_for_the_write_lock(queue: Queue) -> None:
    """Else it would spin: the look says yes, the claim takes the lock and finds nothing."""
    queue.enqueue("k", 0)
    throttle(queue, "k")
    for kinds in (None, ["k"]):
        assert not queue.wait(kinds, 0.0)
    assert queue.claim() is None
    with queue.transaction():
        assert queue.claim() is None  # A write would be refused as nested.


def test_a_kind_that_is_closed_within_a_batch_is_not_claimed_further(
    queue: Queue, sql: Sql
) -> None:
    """What stands above closes a kind by a trigger, in the transaction that claims."""
    sql(
        "CREATE TRIGGER one_at_a_time AFTER UPDATE ON job WHEN NEW.state = 'leased' BEGIN "
        "INSERT INTO throttle VALUES (NEW.kind, 'limit', 9223372036854775807); END"
    )
    for _ in range(3):
        queue.enqueue("k", 0)
    assert len(queue.claim_many(3)) == 1
