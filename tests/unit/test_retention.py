"""What a prune deletes, and what it never touches."""

import contextlib
from collections.abc import Callable

import pytest

from killproof import Lease, ManualClock, Queue, retention
from killproof.core import model
from killproof.effects import Effect, Ledger, Rejected
from killproof.retention import Pruned, prune

Sql = Callable[..., list[tuple[object, ...]]]
DAY = 86_400.0


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def test_a_job_is_kept_by_its_end_and_not_by_its_beginning(
    queue: Queue, clock: ManualClock
) -> None:
    """Goal: what waited a month and ended today is of today."""
    old, young = queue.enqueue("k", 1), queue.enqueue("k", 2)
    queue.ack(claimed(queue))
    clock.advance(30 * DAY)
    queue.ack(claimed(queue))
    clock.advance(1)

    assert prune(queue, {"succeeded": 7 * DAY}) == Pruned(deleted={"succeeded": 1}, dry_run=False)
    assert (queue.get(old), queue.get(young) is not None) == (None, True)


def test_only_the_states_that_are_named_are_pruned(queue: Queue, clock: ManualClock) -> None:
    dead = queue.enqueue("k", 1)
    queue.nack(claimed(queue), "no", permanent=True)
    cancelled = queue.enqueue("k", 1)
    queue.cancel(cancelled)
    clock.advance(DAY)

    assert prune(queue, {"cancelled": 60, "expired": 60}).deleted == {"cancelled": 1, "expired": 0}
    assert queue.get(dead) is not None


@pytest.mark.parametrize("state", sorted(model.LIVE))
def test_a_live_state_can_not_be_pruned(queue: Queue, state: str) -> None:
    with pytest.raises(ValueError, match=f"state '{state}' can not be pruned"):
        prune(queue, {state: 0})


def test_live_jobs_stay_whatever_their_age(queue: Queue, clock: ManualClock, sql: Sql) -> None:
    """The schema gives no live row an end, and the statement names the states as well."""
    queue.enqueue("k", 1)
    queue.enqueue("k", 1)
    claimed(queue)
    queue.enqueue("k", 1, delay=1)
    clock.advance(1_000 * DAY)
    prune(queue, dict.fromkeys(sorted(model.TERMINAL), 0.0))

    assert sql("SELECT count(*) FROM job") == [(3,)]
    assert "AND +state IN ('succeeded', 'dead', 'cancelled', 'expired')" in retention.DELETE


def test_the_attempts_go_with_their_job_and_no_others(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    queue.enqueue("k", 1)
    queue.ack(claimed(queue))
    clock.advance(DAY)
    kept = queue.enqueue("k", 1)
    queue.nack(claimed(queue), "no", delay=3_600)
    prune(queue, {"succeeded": 60})

    assert sql("SELECT job_id FROM attempt") == [(kept,)]


def test_a_dry_run_counts_and_deletes_nothing(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue("k", 1)
    queue.ack(claimed(queue))
    clock.advance(DAY)

    assert prune(queue, {"succeeded": 60}, dry_run=True) == Pruned(
        deleted={"succeeded": 1}, dry_run=True
    )
    assert queue.get(job_id) is not None


def test_a_prune_goes_in_steps_and_leaves_the_lock_between_them(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody waits for a prune.  Method: another writer commits after each step.

    Covers F61.
    """
    monkeypatch.setattr(retention, "PRUNE_BATCH", 2)
    for _ in range(5):
        queue.enqueue("k", 1)
        queue.ack(claimed(queue))
    clock.advance(DAY)
    steps: list[int] = []

    def step(done: int) -> None:
        steps.append(done)
        with Queue(queue.path, busy_limit=0) as other:
            other.enqueue("k", 1)

    prune(queue, {"succeeded": 60}, progress=step)

    assert steps == [2, 4, 5]
    assert queue.counts()["available"] == 3


def test_effects_are_forgotten_by_a_limit_of_their_own_and_never_in_doubt(
    queue: Queue, clock: ManualClock, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in doubt stays, and what a living job may ask for; a step is two entries here."""
    monkeypatch.setattr(retention, "PRUNE_BATCH", 2)
    assert prune(queue, {}, effects=0).deleted == {"effects": 0}  # No ledger yet.

    def apply(key: str, function: Callable[[str], object] = str, *, ends: bool = True) -> None:
        queue.enqueue("k", key, lease=10 * DAY)
        lease = claimed(queue)
        effect = Effect(scope="s", key=key, function=function, in_doubt="held")
        with contextlib.suppress(TimeoutError, Rejected):
            Ledger(queue, lease, clock=clock).apply(effect)
        if ends:
            queue.ack(lease)

    def unanswered(key: str) -> None:
        raise TimeoutError

    def rejected(key: str) -> None:
        raise Rejected

    for number in range(5):
        apply(f"old {number}")
    apply("old rejected", rejected)
    apply("in doubt", unanswered)
    apply("of a living job", ends=False)
    clock.advance(DAY)
    apply("young")
    clock.advance(1)

    assert prune(queue, {}, effects=60, dry_run=True).deleted == {"effects": 6}
    assert prune(queue, {}, effects=60).deleted == {"effects": 6}
    assert sql("SELECT key FROM effect ORDER BY key") == [
        ("in doubt",),
        ("of a living job",),
        ("young",),
    ]
