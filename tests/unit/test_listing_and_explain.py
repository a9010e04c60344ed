"""Lists of jobs, and which rule keeps a job from running."""

import os
from collections.abc import Callable, Iterator

import pytest

from killproof import Host, JobNotFound, Lease, ManualClock, Queue, listing, operations, presence
from killproof.core import model, sync
from killproof.explain import RULES, Explanation, Look, Reason, explain
from killproof.worker import Handlers, Worker

Sql = Callable[..., list[tuple[object, ...]]]


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def kept_by(queue: Queue, job_id: int) -> dict[str, str]:
    return {reason.rule: reason.text for reason in explain(queue, job_id).keeping}


# Lists.


@pytest.fixture
def all_states(queue: Queue, sql: Sql, clock: ManualClock) -> Queue:
    """A queue with two jobs in each state, made as the queue makes them where it can."""
    for number in range(2):
        clock.advance(1)
        for end in ("succeeded", "dead", "leased", "retryable", "held", "cancelled"):
            job_id = queue.enqueue(end, number, max_attempts=1 if end == "dead" else 5)
            if end == "cancelled":
                queue.cancel(job_id)
            elif end == "held":
                operations.hold(queue, job_id)
            else:
                lease = claimed(queue)
                if end == "succeeded":
                    queue.ack(lease)
                elif end in ("dead", "retryable"):
                    queue.nack(lease, "no")
        queue.enqueue("scheduled", number, delay=60)
        blocked = queue.enqueue("blocked", number)
        sql("UPDATE job SET state = 'blocked' WHERE id = ?", blocked)
        expired = queue.enqueue("expired", number)
        sql("UPDATE job SET state = 'expired', finished_ms = 1 WHERE id = ?", expired)
    for number in range(2):
        queue.enqueue("available", number)
    return queue


def test_a_list_holds_the_jobs_of_its_state_and_the_latest_is_first(all_states: Queue) -> None:
    """Covers S0.61, S0.74."""
    for state in model.STATES:
        found = listing.jobs(all_states, state=state)
        ids = [job.id for job in found]

        assert [job.state for job in found] == [state, state]
        assert ids == sorted(ids, reverse=True)
        assert listing.jobs(all_states, state=state, limit=1) == found[:1]
        assert listing.jobs(all_states, state=state, kind="nothing of this kind") == []


def test_a_list_of_all_is_cut_at_its_limit_and_filtered_by_kind(all_states: Queue) -> None:
    assert len(listing.jobs(all_states, limit=5)) == 5
    assert [job.kind for job in listing.jobs(all_states, kind="dead")] == ["dead", "dead"]
    assert listing.jobs(all_states)[0].payload is None


@pytest.mark.parametrize(("options", "said"), [({"state": "done"}, "done"), ({"limit": 0}, "0")])
def test_a_list_of_nonsense_is_refused_with_the_value(
    queue: Queue, options: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        listing.jobs(queue, **options)  # type: ignore[arg-type]  # That is the point.


# Explanations.


def test_a_job_that_has_ended_says_how_and_how_to_run_it_again(queue: Queue) -> None:
    done, dead = queue.enqueue("k", 1), queue.enqueue("k", 1)
    queue.ack(claimed(queue))
    queue.nack(claimed(queue), ValueError("no such address"), permanent=True)

    assert "it succeeded at" in kept_by(queue, done)["ended"]
    (reason,) = explain(queue, dead).keeping
    assert "after 1 attempt: ValueError: no such address" in reason.text
    assert reason.remedy == f"killproof replay {dead}"


def test_a_job_that_waits_says_until_when_and_after_what(queue: Queue, clock: ManualClock) -> None:
    later, failed = queue.enqueue("k", 1, delay=60), queue.enqueue("k", 1)
    queue.nack(claimed(queue), KeyError("sku"), delay=30)

    assert "due in 1 min, at 2023-11-14" in kept_by(queue, later)["due"]
    assert "after failure 1 of 5 (KeyError: 'sku')" in kept_by(queue, failed)["due"]
    clock.advance(60)
    assert "due" not in kept_by(queue, later)


def test_a_held_and_a_blocked_job_say_who_has_to_act(queue: Queue, sql: Sql) -> None:
    held, blocked = queue.enqueue("k", 1), queue.enqueue("k", 1)
    operations.hold(queue, held)
    sql("UPDATE job SET state = 'blocked' WHERE id = ?", blocked)

    assert "until a person decides" in kept_by(queue, held)["held"]
    assert "waits for other jobs" in kept_by(queue, blocked)["blocked"]


def test_a_deadline_says_by_when_it_must_start_or_that_it_has_passed(
    queue: Queue, clock: ManualClock
) -> None:
    """Covers S1.28."""
    job_id = queue.enqueue("k", 1, deadline=clock.now_ms() / 1_000 + 60)
    words = [reason.text for reason in explain(queue, job_id).reasons]
    assert any("must start within 1 min" in text for text in words)
    clock.advance(61)

    assert "its deadline passed" in kept_by(queue, job_id)["deadline"]


def test_a_closed_kind_says_who_closed_it(queue: Queue, sql: Sql, clock: ManualClock) -> None:
    job_id = queue.enqueue("scrape", 1)
    until_ms = clock.now_ms() + 60_000
    sql("INSERT INTO throttle VALUES ('scrape', 'the API said 429', ?)", until_ms)

    assert "'scrape' is closed: the API said 429" in kept_by(queue, job_id)["throttled"]


def test_a_running_job_names_its_worker_and_when_its_lease_ends(
    queue: Queue, clock: ManualClock
) -> None:
    job_id = queue.enqueue("k", 1, lease=60)
    claimed(queue)
    clock.advance(3)
    text = kept_by(queue, job_id)["lease"]

    assert f"process {os.getpid()} (worker {(queue.worker_id or '')[:8]}) has held it" in text
    assert "for 3 s, attempt 1 of 5, and lives; its lease runs for 57 s more" in text
    clock.advance(60)
    assert "its lease has run out" in kept_by(queue, job_id)["lease"]


def test_a_dead_workers_job_says_that_anybody_takes_it_back(queue: Queue) -> None:
    job_id = queue.enqueue("k", 1)
    claimed(queue)
    assert queue.database.liveness is not None
    queue.database.liveness.release()  # As the kernel does when the process dies.

    assert "is dead: any worker that looks takes the job back" in kept_by(queue, job_id)["lease"]


def test_a_lease_on_another_clock_says_that_it_is_watched(queue: Queue, sql: Sql) -> None:
    job_id = queue.enqueue("k", 1)
    claimed(queue)
    sql("UPDATE worker SET clock = 'another boot', file = 'another file'")
    text = kept_by(queue, job_id)["lease"]

    assert "and may live; its clock is another one" in text


@pytest.fixture
def worker(queue: Queue) -> Iterator[Queue]:
    """Another process's queue object, as far as the file can tell: it has claimed once."""
    with Queue(queue.path, host=Host(clock=queue.host.clock)) as worker:
        worker.claim()
        yield worker


def test_without_a_worker_for_its_kind_a_job_says_so(queue: Queue, worker: Queue) -> None:
    job_id = queue.enqueue("k", 1)
    presence.announce(worker, ["other", "another"])
    assert "1 worker runs, and none has a handler for 'k'" in kept_by(queue, job_id)["worker"]
    presence.announce(worker, ["k"])

    assert explain(queue, job_id).keeping == ()
    worker.close()
    assert kept_by(queue, job_id) == {"worker": "no worker runs"}


def test_workers_that_are_all_busy_are_named_as_such(queue: Queue, worker: Queue) -> None:
    queue.enqueue("k", 1)
    claimed(worker)
    job_id = queue.enqueue("k", 1)
    texts = [reason.text for reason in explain(queue, job_id).reasons if reason.rule == "worker"]

    assert texts == [f"it can be run by process {os.getpid()}, at work on other jobs"]


def test_what_a_worker_said_goes_with_it(queue: Queue, worker: Queue, sql: Sql) -> None:
    presence.announce(worker, ["k"])
    assert sql("SELECT kind FROM worker_kind") == [("k",)]
    worker.close()

    assert sql("SELECT kind FROM worker_kind") == []


def test_who_has_never_claimed_announces_nothing(queue: Queue, sql: Sql) -> None:
    presence.announce(queue, ["k"])

    assert sql("SELECT 1 FROM sqlite_schema WHERE name = 'worker_kind'") == []


def test_the_order_says_how_many_are_before_and_how_to_be_first(
    queue: Queue, worker: Queue, sql: Sql
) -> None:
    """Covers S1.8, S1.26, S1.57."""
    queue.enqueue("k", 1)
    queue.enqueue("urgent", 1, priority=0)
    queue.enqueue("closed", 1, priority=0)
    sql("INSERT INTO throttle VALUES ('closed', 'paused', ?)", 1 << 60)
    job_id = queue.enqueue("k", 1)
    queue.enqueue("k", 1)
    (reason,) = explain(queue, job_id).keeping

    assert reason.text == "2 available jobs before it, 1 of its kind"
    assert reason.remedy == f"killproof reprioritise {job_id} 0 puts it first"
    operations.reprioritise(queue, job_id, 0)
    assert kept_by(queue, job_id)["order"] == "1 available job before it, 0 of its kind"


def test_a_rule_of_what_stands_above_is_one_function_more(queue: Queue) -> None:
    def full_moon(look: Look) -> Iterator[Reason]:
        yield Reason(rule="moon", keeps=True, text=f"no {look.job.kind} at full moon")

    job_id = queue.enqueue("k", 1)
    found: Explanation = explain(queue, job_id, (*RULES, full_moon))

    assert found.keeping[-1].text == "no k at full moon"


def test_a_job_that_is_not_there_is_named(queue: Queue) -> None:
    with pytest.raises(JobNotFound, match="no job 7"):
        explain(queue, 7)


def test_a_worker_writes_its_kinds_down_once_when_it_has_nothing_to_do(
    queue: Queue, clock: ManualClock, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = Handlers()
    handlers("mail")(lambda context: None)
    worker = Worker(queue, handlers, clock=clock)
    changes: list[object] = []

    def at_point(name: str) -> None:
        if name == "worker.idle":
            changes.append(sql("PRAGMA data_version"))
            if len(changes) == 3:
                worker.stop()

    monkeypatch.setattr(sync, "hook", at_point)
    worker.run()

    assert sql("SELECT kind FROM worker_kind") == [("mail",)]
    assert changes[0] == changes[1] == changes[2]  # Nothing is written at the later looks.


def test_a_worker_that_can_not_write_its_kinds_down_works_all_the_same(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queue.transaction() as tx:
        tx.execute("CREATE TABLE worker_kind (mine INTEGER)")
    handlers = Handlers()
    handlers("mail")(lambda context: "sent")
    worker = Worker(queue, handlers, clock=clock)
    idle: list[str] = []

    def at_point(name: str) -> None:
        if name == "worker.idle":
            idle.append(name)
            if len(idle) == 2:
                worker.stop()
            else:
                queue.enqueue("mail", None)

    monkeypatch.setattr(sync, "hook", at_point)
    worker.run()

    assert (queue.get(1) or pytest.fail("gone")).result == "sent"
