"""What people do to jobs, and that two of them doing it at once do it once."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from killproof import Host, Job, JobNotFound, Lease, LeaseLost, ManualClock, Queue
from killproof import operations as ops


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(place: Path, clock: ManualClock) -> Iterator[Queue]:
    with Queue(place / "queue.db", durability="process", host=Host(clock=clock)) as queue:
        yield queue


def job_of(queue: Queue, job_id: int) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def dead_letter(queue: Queue, kind: str = "k", key: str | None = None) -> int:
    job_id = queue.enqueue(kind, {"n": 1}, key=key)
    queue.nack(claimed(queue), "no", permanent=True)
    return job_id


def test_a_replay_gives_all_attempts_again_and_keeps_the_old_ones(queue: Queue) -> None:
    job_id = dead_letter(queue)
    before = job_of(queue, job_id)
    done = ops.replay(queue, [job_id])
    job = job_of(queue, job_id)

    assert done == ops.Replayed(moved=(job_id,), refused=())
    assert (job.state, job.attempt, job.deliveries, job.forgiven) == ("available", 0, 1, 1)
    assert job.attempts == before.attempts
    assert (job.payload, job.error_message) == (before.payload, "no")
    assert claimed(queue).fence == 2


@pytest.mark.parametrize("state", ["dead", "cancelled"])
def test_a_replay_moves_a_job_exactly_once(queue: Queue, state: str) -> None:
    job_id = dead_letter(queue)
    if state == "cancelled":
        ops.replay(queue, [job_id])
        queue.cancel(job_id)

    assert ops.replay(queue, [job_id, job_id]).moved == (job_id,)
    assert ops.replay(queue, state=state).moved == ()


def test_a_replay_refuses_what_has_not_ended_or_succeeded_and_says_why(queue: Queue) -> None:
    waiting = queue.enqueue("k", None, priority=9)
    done = queue.enqueue("k", None)
    queue.ack(claimed(queue))
    refused = dict(ops.replay(queue, [waiting, done, 999]).refused)

    assert "'available'" in refused[waiting]
    assert "'succeeded'" in refused[done]
    assert refused[999] == "there is no such job"


def test_a_replay_never_makes_two_living_jobs_with_one_key(queue: Queue) -> None:
    old = dead_letter(queue, key="event:1")
    queue.enqueue("k", None, key="event:1")
    done = ops.replay(queue, [old])

    assert done.moved == ()
    assert "'event:1' is alive" in done.refused[0][1]
    assert ops.replay(queue, state="dead").moved == ()
    assert job_of(queue, old).state == "dead"


def test_a_replay_by_state_takes_the_kind_asked_for_and_stops_at_the_limit(queue: Queue) -> None:
    ids = [dead_letter(queue, kind) for kind in ("a", "b", "a", "a")]

    assert ops.replay(queue, state="dead", kind="a", limit=2).moved == (ids[0], ids[2])
    assert ops.replay(queue, state="dead").moved == (ids[1], ids[3])


def test_a_replay_of_all_goes_on_over_its_batches(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "REPLAY_BATCH", 2)
    ids = [dead_letter(queue, key=f"key:{n}") for n in range(5)]
    queue.enqueue("k", None, key="key:0")  # Refused, and still in its state: it must be passed.

    assert set(ops.replay(queue, state="dead").moved) == set(ids[1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"state": "succeeded"}, "can not be replayed"), ({"limit": 0}, "limit")],
)
def test_a_replay_refuses_wrong_arguments(
    queue: Queue, options: dict[str, str | int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ops.replay(queue, **options)  # type: ignore[arg-type]  # Wrong on purpose.


def test_a_new_priority_decides_the_next_claim(queue: Queue) -> None:
    """Covers S1.28."""
    queue.enqueue("k", None)
    second = queue.enqueue("k", None)

    assert ops.reprioritise(queue, second, 0)
    assert claimed(queue).job.id == second


def test_the_priority_of_a_running_job_counts_when_it_comes_back(queue: Queue) -> None:
    job_id = queue.enqueue("k", None)
    lease = claimed(queue)
    assert ops.reprioritise(queue, job_id, 9)
    queue.release(lease)

    assert job_of(queue, job_id).priority == 9


def test_a_job_that_has_ended_keeps_its_priority(queue: Queue) -> None:
    assert not ops.reprioritise(queue, dead_letter(queue), 0)


def test_a_held_job_is_not_claimed_until_somebody_decides(queue: Queue) -> None:
    job_id = queue.enqueue("k", None)

    assert ops.hold(queue, job_id)
    assert not ops.hold(queue, job_id)
    assert queue.claim() is None
    assert ops.unhold(queue, job_id)
    assert not ops.unhold(queue, job_id)
    assert claimed(queue).job.id == job_id


def test_a_delayed_job_that_was_held_runs_when_it_is_let_go(
    queue: Queue, clock: ManualClock
) -> None:
    job_id = queue.enqueue("k", None, delay=3_600)
    ops.hold(queue, job_id)
    ops.unhold(queue, job_id)

    assert job_of(queue, job_id).due_ms == clock.now_ms()
    assert claimed(queue).job.id == job_id


def test_a_running_job_is_not_held_over_its_workers_head(queue: Queue) -> None:
    job_id = queue.enqueue("k", None)
    claimed(queue)

    assert not ops.hold(queue, job_id)


def test_a_worker_holds_its_job_and_it_can_run_again_after_its_last_attempt(queue: Queue) -> None:
    job_id = queue.enqueue("k", None, max_attempts=1)
    ops.hold_leased(queue, claimed(queue), ValueError("was it paid?"))
    job = job_of(queue, job_id)

    assert (job.state, job.attempt, job.error_message) == ("held", 0, "was it paid?")
    assert [attempt.outcome for attempt in job.attempts] == ["held"]
    assert ops.unhold(queue, job_id)
    assert claimed(queue).job.attempt == 1


def test_a_stale_lease_holds_nothing(queue: Queue) -> None:
    job_id = queue.enqueue("k", None)
    lease = claimed(queue)
    queue.release(lease)
    with pytest.raises(LeaseLost):
        ops.hold_leased(queue, lease, "why")

    assert job_of(queue, job_id).state == "available"


@pytest.mark.parametrize("operation", [ops.hold, ops.unhold])
def test_an_id_that_is_not_there_is_named(queue: Queue, operation: object) -> None:
    assert callable(operation)
    with pytest.raises(JobNotFound, match="there is no job 5"):
        operation(queue, 5)


def test_the_kinds_that_wait_are_those_with_an_available_job(queue: Queue) -> None:
    for kind in ("b", "a", "b"):
        queue.enqueue(kind, None)
    queue.enqueue("later", None, delay=60)
    queue.enqueue("running", None, priority=0)
    claimed(queue)

    assert ops.waiting_kinds(queue) == {"a", "b"}


@pytest.mark.parametrize(
    "name", [name for name in vars(ops) if name.isupper() and isinstance(vars(ops)[name], str)]
)
def test_no_statement_scans_the_jobs(queue: Queue, name: str) -> None:
    values = dict.fromkeys(
        ("id", "now_ms", "state", "kind", "after_ms", "after_id", "limit", "priority")
    )
    with closing(sqlite3.connect(queue.path)) as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {vars(ops)[name]}", values).fetchall()
    plan = [row[3] for row in rows]

    assert not [step for step in plan if step.startswith("SCAN") and step != "SCAN waiting"]
    assert not [step for step in plan if "TEMP B-TREE" in step]
