"""Taking jobs out: order, kinds, promotion, batches, and the idle wait."""

import itertools
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from killproof import DatabaseBusy, Host, LeaseLost, ManualClock, Queue
from killproof.core.jobs import BATCH_MAX, HOLDERS_PAUSE, IDLE_PAUSE, SWEEP_ROWS_MAX

Sql = Callable[..., list[tuple[Any, ...]]]


def drain(queue: Queue, kinds: list[str] | None = None) -> list[object]:
    """Claim one by one until nothing is left; return the payloads."""
    payloads = []
    while (lease := queue.claim(kinds)) is not None:
        payloads.append(lease.job.payload)
    return payloads


# Order.


def test_jobs_are_claimed_by_priority_then_due_time_then_id(
    queue: Queue, clock: ManualClock
) -> None:
    """Covers S0.76, S1.10, S1.17, F50."""
    wanted = list(itertools.product("ab", [0, 5, 9], [0, 0.001, 5], range(2)))
    for kind, priority, delay, _ in random.Random(3).sample(wanted, len(wanted)):
        queue.enqueue(kind, 0, priority=priority, delay=delay)
    clock.advance(6)

    seen = []
    while (lease := queue.claim()) is not None:
        seen.append((lease.job.priority, lease.job.due_ms, lease.job.id))
    assert seen == sorted(seen)
    assert len(seen) == len(wanted)


def test_a_column_that_somebody_added_to_the_table_stops_nothing(queue: Queue, sql: Sql) -> None:
    """The file may be the application's own, and the table gets its own columns. Covers F1."""
    sql("ALTER TABLE job ADD COLUMN tenant TEXT DEFAULT 'x'")
    job_id = queue.enqueue("k", {"n": 1})
    odd = queue.enqueue("k", 2)
    sql("PRAGMA ignore_check_constraints = ON")
    sql("UPDATE job SET payload = '{' WHERE id = ?", odd)
    [lease] = queue.claim_many(2)
    queue.ack(lease, "done")

    job = queue.get(job_id)
    assert (lease.job.payload, job and job.result) == ({"n": 1}, "done")
    assert sql("SELECT state FROM job ORDER BY id") == [("succeeded",), ("dead",)]


def test_the_order_holds_across_kinds_and_within_each(queue: Queue) -> None:
    for number, kind in enumerate("abcabc"):
        queue.enqueue(kind, number, priority=9 - number)

    assert drain(queue, ["a", "c"]) == [5, 3, 2, 0]
    assert drain(queue) == [4, 1]


def test_a_retry_enters_the_order_by_its_due_time_not_by_its_age(
    queue: Queue, clock: ManualClock
) -> None:
    """Covers S1.12."""
    queue.enqueue("kind", "old", retry="fixed:10")
    lease = queue.claim()
    assert lease is not None
    queue.nack(lease, "no")
    clock.advance(5)
    queue.enqueue("kind", "young")
    clock.advance(5)

    assert drain(queue) == ["young", "old"]


def test_a_job_of_another_kind_is_never_taken(queue: Queue) -> None:
    """Covers S0.78."""
    queue.enqueue("a", 1)

    assert queue.claim(["b", "A", "a "]) is None
    assert queue.claim([]) is None
    assert drain(queue, ["a", "a"]) == [1]


def test_kinds_none_takes_any_kind_there_is(queue: Queue) -> None:
    kinds = ["", "a", "Z", "\N{SNOWMAN}", "a%", "x" * 200]
    for kind in kinds[1:]:
        queue.enqueue(kind, kind)

    assert drain(queue) == kinds[1:]


@pytest.mark.parametrize("kinds", ["mail", [""], [5], [None], ["a\0"]], ids=repr)
def test_kinds_that_are_no_list_of_kinds_are_refused_with_the_value(
    queue: Queue, kinds: Any
) -> None:
    lease = claimed(queue)
    for call in (
        lambda: queue.claim(kinds),
        lambda: queue.wait(kinds, 0),
        lambda: queue.ack_and_claim(lease, kinds=kinds),
    ):
        with pytest.raises(ValueError, match="kind"):
            call()
    queue.ack(lease)


def claimed(queue: Queue) -> Any:
    queue.enqueue("own", 0)
    lease = queue.claim(["own"])
    assert lease is not None
    return lease


# Promotion.


def test_what_falls_due_is_claimed_in_the_same_call_that_promotes_it(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("kind", 1, delay=3)
    assert queue.claim() is None
    clock.advance(3)

    assert drain(queue) == [1]


def test_one_call_promotes_a_bounded_number_and_the_next_calls_the_rest(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    count = SWEEP_ROWS_MAX * 2 + 5
    for number in range(count):
        queue.enqueue("kind", number, delay=1 + number / 1_000)
    clock.advance(10)

    first = queue.claim()
    assert first is not None
    assert sql("SELECT count(*) FROM job WHERE state = 'scheduled'") == [(SWEEP_ROWS_MAX + 5,)]
    assert [first.job.payload, *drain(queue)] == list(range(count))


def test_an_urgent_job_that_falls_due_is_promoted_with_those_due_before_it(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("kind", "early", delay=1, priority=9)
    queue.enqueue("kind", "urgent", delay=2, priority=0)
    clock.advance(2)

    assert drain(queue) == ["urgent", "early"]


# Claims count themselves.


def test_a_claim_raises_the_fence_and_counts_the_delivery(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue("kind", 0, lease=2.5)
    lease = queue.claim()

    assert lease is not None
    assert (lease.fence, lease.job.fence, lease.job.deliveries, lease.job.attempt) == (1, 1, 1, 1)
    assert lease.deadline_ns == clock.monotonic_ns() + 2_500_000_000
    assert (lease.owner, lease.claimed_ms) == (queue.worker_id, clock.now_ms())
    assert (lease.job.state, lease.job.owner) == ("leased", queue.worker_id)
    job = queue.get(job_id)
    assert job is not None
    assert (job.state, job.deliveries, job.attempts) == ("leased", 1, ())


def test_a_fence_never_comes_twice_whatever_ends_the_lease(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("kind", 0, max_attempts=9, retry="immediate")
    fences = []
    for end in ("release", "nack", "snooze", "expiry", "release"):
        lease = queue.claim()
        assert lease is not None
        fences.append(lease.fence)
        if end == "release":
            queue.release(lease)
        elif end == "nack":
            queue.nack(lease, "no")
        elif end == "snooze":
            queue.snooze(lease, 0)
        else:
            clock.advance(61)

    assert fences == [1, 2, 3, 4, 5]


def test_the_identity_is_none_before_the_first_claim_and_stays_after_it(queue: Queue) -> None:
    assert queue.worker_id is None
    queue.claim()
    ident = queue.worker_id
    assert ident is not None
    assert len(bytes.fromhex(ident)) == 16
    queue.claim()
    assert queue.worker_id == ident


# Batches.


def test_a_batch_of_claims_comes_in_order_and_stops_at_its_limit(queue: Queue) -> None:
    for number in range(5):
        queue.enqueue("kind", number, priority=9 - number)

    assert [lease.job.payload for lease in queue.claim_many(3)] == [4, 3, 2]
    assert [lease.job.payload for lease in queue.claim_many(3)] == [1, 0]
    assert queue.claim_many(3) == []


@pytest.mark.parametrize("limit", [0, -1, BATCH_MAX + 1, True, 1.0, "1", None])
def test_a_batch_limit_that_cannot_be_one_is_refused(queue: Queue, limit: Any) -> None:
    queue.enqueue("kind", 0)
    with pytest.raises(ValueError, match=r"limit .* must be an integer from 1 to"):
        queue.claim_many(limit)
    assert queue.counts()["available"] == 1


def test_ack_and_claim_is_both_or_neither(queue: Queue) -> None:
    ids = queue.enqueue_many([("kind", 1), ("kind", 2), ("other", 3)])
    first = queue.claim()
    assert first is not None

    second = queue.ack_and_claim(first, {"done": 1}, ["kind"])
    assert second is not None
    assert second.job.payload == 2
    with pytest.raises(LeaseLost):
        queue.ack_and_claim(lost(queue, second))
    assert queue.counts()["available"] == 1
    assert queue.claim() is not None
    job = queue.get(ids[0])
    assert job is not None
    assert (job.state, job.result) == ("succeeded", {"done": 1})


def lost(queue: Queue, lease: Any) -> Any:
    queue.nack(lease, "gone", permanent=True)
    return lease


def test_ack_and_claim_with_nothing_left_acks_and_gives_none(queue: Queue) -> None:
    queue.enqueue("kind", 1)
    lease = queue.claim()
    assert lease is not None

    assert queue.ack_and_claim(lease) is None
    assert queue.counts()["succeeded"] == 1


def test_an_ack_is_not_doubted_because_the_next_job_can_not_be_read(queue: Queue, sql: Sql) -> None:
    first, damaged, third = queue.enqueue_many([("kind", 1), ("kind", 2), ("kind", 3)])
    lease = queue.claim()
    assert lease is not None
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE job SET payload = 'nope' WHERE id = ?", (damaged,))

    assert queue.ack_and_claim(lease) is None
    after = queue.claim()
    assert after is not None
    assert after.job.id == third
    states = {row[0]: row[1] for row in sql("SELECT id, state FROM job")}
    assert states == {first: "succeeded", damaged: "dead", third: "leased"}


def test_ack_many_is_all_or_none(queue: Queue) -> None:
    queue.enqueue_many([("kind", i) for i in range(3)])
    leases = queue.claim_many(3)
    queue.release(leases[2])

    with pytest.raises(LeaseLost):
        queue.ack_many(leases)
    assert (queue.counts()["leased"], queue.counts()["succeeded"]) == (2, 0)
    queue.ack_many(leases[:2])
    queue.ack_many([])
    assert queue.counts()["succeeded"] == 2
    with pytest.raises(ValueError, match="1001"):
        queue.ack_many([leases[0]] * (BATCH_MAX + 1))


def test_several_acks_and_the_next_claims_are_one_transaction(queue: Queue) -> None:
    ids = queue.enqueue_many([("kind", number) for number in range(7)] + [("other", 7)])
    leases = queue.ack_and_claim_many([], 3)

    again = queue.ack_and_claim_many(leases, 9, ["kind"], results=[10, None, 12])
    assert [lease.job.payload for lease in again] == [3, 4, 5, 6]
    jobs = [queue.get(job_id) for job_id in ids[:3]]
    assert [job and (job.state, job.result) for job in jobs] == [
        ("succeeded", 10),
        ("succeeded", None),
        ("succeeded", 12),
    ]
    assert queue.ack_and_claim_many(again, 1, ["kind"]) == []


def test_one_stale_lease_among_several_acks_leaves_all_as_they_were(queue: Queue) -> None:
    queue.enqueue_many([("kind", number) for number in range(4)])
    leases = queue.claim_many(3)
    queue.release(leases[1])

    with pytest.raises(LeaseLost):
        queue.ack_and_claim_many(leases, 2)
    assert (queue.counts()["leased"], queue.counts()["available"]) == (2, 2)


def test_acks_and_claims_of_a_wrong_number_are_refused(queue: Queue) -> None:
    queue.enqueue("kind", 0)
    [lease] = queue.claim_many(1)
    calls: tuple[Callable[[], object], ...] = (
        lambda: queue.ack_and_claim_many([lease] * (BATCH_MAX + 1), 1),
        lambda: queue.ack_and_claim_many([lease], 0),
        lambda: queue.ack_and_claim_many([lease], 1, results=[1, 2]),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"1001|limit|zip"):
            call()
    assert queue.is_current(lease)


def test_a_job_whose_worker_has_died_never_waits_with_others(queue: Queue, sql: Sql) -> None:
    """It may be the cause: those claimed with it would lose an attempt for nothing."""
    queue.enqueue_many([("kind", number) for number in range(6)])
    sql("UPDATE job SET crashes = 1, deliveries = 1, fence = 1 WHERE payload IN ('1', '2', '5')")

    assert [[lease.job.payload for lease in queue.ack_and_claim_many([], 9)] for _ in range(6)] == [
        [0],
        [1],
        [2],
        [3, 4],
        [5],
        [],
    ]


def test_a_lease_is_current_until_somebody_else_ends_it(queue: Queue) -> None:
    first, second = queue.enqueue_many([("kind", 1), ("kind", 2)])
    leases = queue.claim_many(2)
    assert [queue.is_current(lease) for lease in leases] == [True, True]

    queue.cancel(first)
    queue.release(leases[1])
    again = queue.claim()
    assert again is not None
    assert again.job.id == second
    assert [queue.is_current(lease) for lease in (*leases, again)] == [False, False, True]


# An empty poll.


def test_an_empty_poll_takes_no_write_lock(place: Path) -> None:
    """A transaction of another program holds the lock; a look goes on, a claim would wait.

    Covers S2.27, F15.
    """
    with Queue(place / "q.db", durability="process", busy_limit=0.01) as queue:
        assert queue.claim() is None  # The first looks under the lock.
        with closing(sqlite3.connect(queue.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert [queue.claim() for _ in range(5)] == [None] * 5
            assert not queue.wait(None, 0.001)
            with pytest.raises(DatabaseBusy, match=r"locked by another program for 0.01 s"):
                queue.enqueue("kind", 1)


class Nudging(ManualClock):
    """A clock during whose first sleeps something happens elsewhere."""

    def __init__(self, *events: Callable[[], object]) -> None:
        super().__init__()
        self.events = list(events)

    def sleep(self, seconds: float) -> None:
        if self.events:
            self.events.pop(0)()
        super().sleep(seconds)


def waiting(place: Path, *events: Callable[[], object]) -> tuple[Queue, Nudging]:
    clock = Nudging(*events)
    return Queue(place / "q.db", durability="process", host=Host(clock=clock)), clock


def test_an_idle_wait_ends_at_another_connections_commit(place: Path) -> None:
    """Covers S0.47, S1.37, F53: a commit wakes it, where the articles slept 5 and 2 seconds."""
    with Queue(place / "q.db", durability="process") as other:
        queue, clock = waiting(place, lambda: None, lambda: other.enqueue("kind", 1))
        with queue:
            start_ns = clock.elapsed_ns

            assert queue.wait(None, 60)
            assert clock.elapsed_ns - start_ns < 2.5 * IDLE_PAUSE * 1e9
            assert queue.claim() is not None


def test_an_idle_wait_sleeps_through_commits_of_other_kinds(place: Path) -> None:
    with Queue(place / "q.db", durability="process") as other:
        queue, clock = waiting(place, lambda: other.enqueue("other", 1))
        with queue:
            start_ns = clock.elapsed_ns

            assert not queue.wait(["kind"], 5)
            assert 5.0 <= (clock.elapsed_ns - start_ns) / 1e9 < 5.1


def test_an_idle_wait_ends_when_a_job_falls_due(place: Path) -> None:
    queue, clock = waiting(place)
    with queue:
        queue.enqueue("kind", 1, delay=7)
        start_ms = clock.wall_ms

        assert queue.wait(None, 60)
        assert 7_000 <= clock.wall_ms - start_ms <= 7_010
        assert queue.claim() is not None


def test_an_idle_wait_ends_when_a_lease_runs_out(place: Path) -> None:
    queue, clock = waiting(place)
    with queue:
        queue.enqueue("kind", 1, lease=3)
        queue.claim()
        start_ns = clock.elapsed_ns

        assert queue.wait(None, 60)
        # It looks so often while somebody holds a lease, and its pauses are up to a quarter longer.
        assert 3.0 <= (clock.elapsed_ns - start_ns) / 1e9 <= 3.0 + 1.25 * HOLDERS_PAUSE
        lease = queue.claim()
        assert lease is not None
        assert lease.fence == 2


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1, "1"])
def test_an_idle_wait_is_a_number_of_seconds(queue: Queue, seconds: Any) -> None:
    with pytest.raises(ValueError, match="seconds"):
        queue.wait(seconds=seconds)


def test_an_idle_wait_gives_up_after_its_time(place: Path) -> None:
    queue, clock = waiting(place)
    with queue:
        start_ns = clock.elapsed_ns

        assert not queue.wait(None, 2)
        assert 2.0 <= (clock.elapsed_ns - start_ns) / 1e9 < 2.1
        assert not queue.wait(None, 0)


def test_an_idle_wait_that_nobody_ends_looks_now_and_then_at_odd_times(place: Path) -> None:
    """Covers S0.47."""
    pauses: list[float] = []

    class Noting(ManualClock):
        def sleep(self, seconds: float) -> None:
            pauses.append(seconds)
            super().sleep(seconds)

    with Queue(place / "q.db", durability="process", host=Host(clock=Noting())) as queue:
        queue.wait(None, 10)

    assert min(pauses[:-1]) >= 0.75 * IDLE_PAUSE
    assert max(pauses) <= 1.25 * IDLE_PAUSE
    assert len(set(pauses[-20:-1])) > 10  # Jitter: idle workers must not march in step.
