"""Ending a lease: success, failure, return, cancellation; what is kept of each attempt."""

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, LiteralString, NoReturn

import pytest

from killproof import (
    Job,
    Lease,
    LeaseLost,
    ManualClock,
    NestedTransaction,
    OutcomeUnknown,
    Queue,
    operations,
)
from killproof.core import model

Sql = Callable[..., list[tuple[Any, ...]]]


def claimed(queue: Queue, **options: Any) -> Lease:
    queue.enqueue("kind", {"n": 1}, **options)
    return claim(queue)


def claim(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def read(queue: Queue, lease: Lease) -> Job:
    job = queue.get(lease.job.id)
    assert job is not None
    return job


# Every outcome must show the fence.

OUTCOMES: dict[str, Callable[[Queue, Lease], object]] = {
    "ack": lambda queue, lease: queue.ack(lease),
    "ack_many": lambda queue, lease: queue.ack_many([lease]),
    "ack_and_claim": lambda queue, lease: queue.ack_and_claim(lease),
    "nack": lambda queue, lease: queue.nack(lease, "no"),
    "nack for good": lambda queue, lease: queue.nack(lease, "no", permanent=True),
    "release": lambda queue, lease: queue.release(lease),
    "snooze": lambda queue, lease: queue.snooze(lease, 1),
    "extend": lambda queue, lease: queue.extend(lease),
    "completing": lambda queue, lease: queue.completing(lease).__enter__(),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("how", ["released", "claimed anew", "expired", "cancelled", "dead"])
def test_the_outcome_of_a_lease_that_is_not_current_is_refused_and_changes_nothing(
    queue: Queue, clock: ManualClock, sql: Sql, outcome: str, how: str
) -> None:
    """Covers F21, F38."""
    lease = claimed(queue, retry="immediate")
    if how == "cancelled":
        queue.cancel(lease.job.id)
    elif how == "dead":
        queue.nack(lease, "no", permanent=True)
    elif how == "expired":
        clock.advance(61)
        assert queue.reap() == 1
    else:
        queue.release(lease)
    if how == "claimed anew":
        claim(queue)
    before = sql("SELECT * FROM job"), sql("SELECT * FROM attempt")

    with pytest.raises(LeaseLost, match=f"job {lease.job.id} .fence 1.") as caught:
        OUTCOMES[outcome](queue, lease)
    assert caught.value.definite
    assert (caught.value.job_id, caught.value.fence) == (lease.job.id, 1)
    assert (sql("SELECT * FROM job"), sql("SELECT * FROM attempt")) == before


# Success.


def test_an_ack_keeps_the_result_and_clears_the_error(queue: Queue, clock: ManualClock) -> None:
    """Covers S1.34, F33."""
    lease = claimed(queue, retry="immediate")
    queue.nack(lease, "first")
    lease = claim(queue)
    clock.advance(1)
    queue.ack(lease, {"rows": 3})

    job = read(queue, lease)
    assert (job.state, job.result, job.finished_ms) == ("succeeded", {"rows": 3}, clock.now_ms())
    assert (job.error_class, job.error_message, job.owner) == (None, None, None)
    assert [attempt.outcome for attempt in job.attempts] == ["failed", "succeeded"]


def test_an_ack_repeated_after_an_unknown_outcome_is_harmless(queue: Queue, sql: Sql) -> None:
    lease = claimed(queue)
    queue.ack(lease, 1)
    before = sql("SELECT * FROM job"), sql("SELECT * FROM attempt")

    queue.ack(lease, 2)
    queue.ack_many([lease])
    assert (sql("SELECT * FROM job"), sql("SELECT * FROM attempt")) == before


UNJSONABLE: dict[str, tuple[object, str]] = {
    "an object": (object(), "<object object at"),
    "bytes": (b"\xff", "b'\\xff'"),
    "not a number": (float("nan"), "nan"),
    "a lone surrogate": ("\ud800", "'\\ud800'"),
    "a set": ({1}, "{1}"),
    "too large": ("x" * (model.RESULT_BYTES_MAX + 1), "xxx"),
}


@pytest.mark.parametrize("name", UNJSONABLE)
def test_a_result_that_json_cannot_hold_does_not_undo_the_work(queue: Queue, name: str) -> None:
    result, shown = UNJSONABLE[name]
    lease = claimed(queue)
    queue.ack(lease, result)

    job = read(queue, lease)
    assert job.state == "succeeded"
    assert isinstance(job.result, dict)
    assert shown in job.result["killproof_repr"]
    assert "result" in job.result["killproof_reason"]
    assert len(job.result["killproof_repr"]) <= model.ERROR_CHARS_MAX + 10


def test_a_result_that_raises_while_it_is_read_does_not_undo_the_work(queue: Queue) -> None:
    class Lazy(dict[str, int]):
        def items(self) -> NoReturn:
            raise ZeroDivisionError

    lease = claimed(queue)
    queue.ack(lease, Lazy(a=1))

    result = read(queue, lease).result
    assert isinstance(result, dict)
    assert "ZeroDivisionError while it was read" in result["killproof_reason"]


def test_a_result_whose_repr_raises_does_not_undo_the_work(queue: Queue) -> None:
    class Sullen:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    lease = claimed(queue)
    queue.ack(lease, Sullen())

    result = read(queue, lease).result
    assert isinstance(result, dict)
    assert "RuntimeError while describing" in result["killproof_repr"]


@pytest.mark.parametrize("result", [0, False, "", [], {}, [None]], ids=repr)
def test_a_falsy_result_is_kept_as_it_is(queue: Queue, result: object) -> None:
    lease = claimed(queue)
    queue.ack(lease, result)

    assert read(queue, lease).result == result


# Failure.


def test_a_failure_waits_by_the_policy_and_the_last_one_kills(
    queue: Queue, clock: ManualClock
) -> None:
    """Covers S0.42, S0.43, S1.35, S1.36, F34: with a delay, which the second article has not."""
    lease = claimed(queue, retry="fixed:10", max_attempts=2)
    queue.nack(lease, "first")
    job = read(queue, lease)
    assert (job.state, job.due_ms, job.failures) == ("retryable", clock.now_ms() + 10_000, 1)
    assert queue.claim() is None
    clock.advance(10)
    lease = claim(queue)
    assert lease.job.attempt == 2
    queue.nack(lease, "second")

    job = read(queue, lease)
    assert (job.state, job.failures, job.finished_ms) == ("dead", 2, clock.now_ms())
    assert job.payload == {"n": 1}
    assert [attempt.error_message for attempt in job.attempts] == ["first", "second"]
    clock.advance(10_000)
    assert queue.claim() is None


def test_a_failure_can_ask_for_its_own_delay_or_for_no_further_attempt(
    queue: Queue, clock: ManualClock
) -> None:
    lease = claimed(queue)
    queue.nack(lease, "busy", delay=0.0015)
    assert read(queue, lease).due_ms == clock.now_ms() + 2
    clock.advance(1)
    lease = claim(queue)
    queue.nack(lease, "never", permanent=True)

    job = read(queue, lease)
    assert (job.state, job.attempt) == ("dead", 2)


def test_an_asked_delay_does_not_save_the_last_attempt(queue: Queue) -> None:
    lease = claimed(queue, max_attempts=1)
    queue.nack(lease, "no", delay=5)

    assert read(queue, lease).state == "dead"


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), True, "1"], ids=repr)
def test_a_wrong_delay_of_an_outcome_is_refused_and_the_lease_stays(
    queue: Queue, delay: Any
) -> None:
    lease = claimed(queue)

    with pytest.raises(ValueError, match="delay"):
        queue.nack(lease, "no", delay=delay)
    with pytest.raises(ValueError, match="delay"):
        queue.snooze(lease, delay)
    queue.ack(lease)


def test_a_retry_policy_damaged_in_the_row_does_not_lose_the_job(queue: Queue, sql: Sql) -> None:
    lease = claimed(queue)
    sql("UPDATE job SET retry = 'nonsense:'")
    queue.release(lease)
    lease = claim(queue)
    queue.nack(lease, "no")

    assert read(queue, lease).state == "retryable"


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


def test_an_error_is_kept_with_class_message_and_traceback(queue: Queue) -> None:
    lease = claimed(queue)
    try:
        raise KeyError("missing")
    except KeyError as error:
        queue.nack(lease, error)

    job = read(queue, lease)
    assert (job.error_class, job.error_message) == ("KeyError", "'missing'")
    [attempt] = job.attempts
    assert (attempt.error_class, attempt.error_message) == ("KeyError", "'missing'")
    assert attempt.traceback is not None
    assert "test_core_outcomes.py" in attempt.traceback


ERRORS: dict[str, tuple[BaseException | str, str]] = {
    "text": ("plain", "plain"),
    "empty": ("", ""),
    "a NUL": ("a\0b", "a\\x00b"),
    "a surrogate": (ValueError("\ud800!"), "\\ud800!"),
    "ten megabytes": ("\N{SNOWMAN}" * 10_000_000, "\N{SNOWMAN}" * 100),
    "a text that raises": (Hostile(), "<no text: RuntimeError while describing the error>"),
    "a text that leaves": (Leaving(), "<no text: SystemExit while describing the error>"),
    "an exit": (SystemExit(3), "3"),
    "no text at all": (KeyboardInterrupt(), ""),
}


@pytest.mark.parametrize("name", ERRORS)
def test_no_error_is_too_odd_to_be_recorded(queue: Queue, name: str) -> None:
    error, shown = ERRORS[name]
    lease = claimed(queue)
    queue.nack(lease, error)

    job = read(queue, lease)
    assert job.state == "retryable"
    assert job.error_message is not None
    assert job.error_message.startswith(shown)
    assert len(job.error_message) <= model.ERROR_CHARS_MAX + 10


def test_a_long_traceback_keeps_its_end_and_a_long_message_its_start(queue: Queue) -> None:
    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("start" + "x" * 50_000 + "end")
        deep(levels - 1)

    lease = claimed(queue)
    with pytest.raises(ValueError, match="start") as caught:
        deep(500)
    queue.nack(lease, caught.value)

    [attempt] = read(queue, lease).attempts
    assert attempt.traceback is not None
    assert attempt.error_message is not None
    assert attempt.traceback.rstrip().endswith("end")
    assert attempt.error_message.startswith("start")
    assert len(attempt.traceback) <= model.ERROR_CHARS_MAX + 10


# Giving back.


def test_a_release_is_no_attempt_and_the_job_is_claimable_at_once(queue: Queue) -> None:
    lease = claimed(queue, max_attempts=1)
    for _ in range(5):
        queue.release(lease)
        lease = claim(queue)

    assert (lease.job.deliveries, lease.job.forgiven, lease.job.attempt) == (6, 5, 1)
    assert lease.job.fence == 6
    queue.nack(lease, "no")
    assert read(queue, lease).state == "dead"


def test_a_release_keeps_the_place_in_the_order(queue: Queue, clock: ManualClock) -> None:
    lease = claimed(queue)
    clock.advance(1)
    queue.enqueue("kind", "later")
    queue.release(lease)

    assert claim(queue).job.id == lease.job.id


def test_a_snooze_is_no_attempt_and_ten_thousand_of_them_keep_the_counters_sane(
    queue: Queue, clock: ManualClock
) -> None:
    lease = claimed(queue, max_attempts=2)
    snoozes = 10_000
    for _ in range(snoozes):
        queue.snooze(lease, 0.001)
        clock.advance(0.001)
        lease = claim(queue)

    job = lease.job
    assert (job.deliveries, job.forgiven, job.attempt) == (snoozes + 1, snoozes, 1)
    assert (job.failures, job.crashes, job.fence) == (0, 0, snoozes + 1)
    queue.nack(lease, "no", delay=0)
    queue.nack(claim(queue), "no")
    assert read(queue, lease).state == "dead"


def test_a_snoozed_job_is_not_claimed_early(queue: Queue, clock: ManualClock) -> None:
    lease = claimed(queue)
    queue.snooze(lease, 5)
    assert read(queue, lease).state == "scheduled"
    clock.wall_ms += 4_999
    assert queue.claim() is None
    clock.wall_ms += 1

    assert queue.claim() is not None


# Extending.


def test_an_extended_lease_lives_its_full_length_again(queue: Queue, clock: ManualClock) -> None:
    lease = claimed(queue, lease=10)
    for _ in range(5):
        clock.advance(9)
        assert queue.reap() == 0
        lease = queue.extend(lease)
        assert lease.deadline_ns == clock.monotonic_ns() + 10_000_000_000
    clock.advance(10)
    assert queue.reap() == 1

    with pytest.raises(LeaseLost):
        queue.extend(lease)


def test_a_lease_that_ran_out_but_was_not_taken_back_can_still_be_extended(
    queue: Queue, clock: ManualClock
) -> None:
    lease = claimed(queue, lease=1)
    clock.advance(100)

    queue.ack(queue.extend(lease))


# Calling off.


@pytest.mark.parametrize("state", ["available", "scheduled", "retryable", "leased"])
def test_a_cancelled_job_is_never_started_and_says_so(
    queue: Queue, clock: ManualClock, state: str
) -> None:
    job_id = queue.enqueue("kind", 1, delay=5 if state == "scheduled" else 0)
    if state in ("retryable", "leased"):
        lease = claim(queue)
        if state == "retryable":
            queue.nack(lease, "no")
    assert queue.cancel(job_id)
    assert queue.cancel(job_id)
    clock.advance(10_000)

    assert queue.claim() is None
    job = queue.get(job_id)
    assert job is not None
    assert job.state == "cancelled"
    assert job.finished_ms is not None
    outcomes = [attempt.outcome for attempt in job.attempts]
    assert outcomes == {"retryable": ["failed"], "leased": ["cancelled"]}.get(state, [])


def test_a_job_that_has_ended_otherwise_is_not_cancelled(queue: Queue) -> None:
    lease = claimed(queue)
    queue.ack(lease)
    dead = claimed(queue)
    queue.nack(dead, "no", permanent=True)

    assert not queue.cancel(lease.job.id)
    assert not queue.cancel(dead.job.id)
    assert read(queue, lease).state == "succeeded"
    assert read(queue, dead).state == "dead"


# In one transaction with the caller's own rows.


def test_completing_commits_the_callers_rows_and_the_ack_together(queue: Queue, sql: Sql) -> None:
    """Covers F41."""
    sql("CREATE TABLE effect (job_id)")
    lease = claimed(queue)
    with queue.completing(lease, {"ok": True}) as tx:
        tx.execute("INSERT INTO effect VALUES (?)", (lease.job.id,))
        assert sql("SELECT state FROM job") == [("leased",)]
        assert sql("SELECT * FROM effect") == []

    job = read(queue, lease)
    assert (job.state, job.result) == ("succeeded", {"ok": True})
    assert sql("SELECT * FROM effect") == [(lease.job.id,)]


def test_completing_is_exactly_once_for_two_holders_of_one_job(queue: Queue, sql: Sql) -> None:
    sql("CREATE TABLE effect (fence)")
    first = claimed(queue)
    queue.release(first)
    second = claim(queue)

    for lease in (second, first, second):
        try:
            with queue.completing(lease) as tx:
                tx.execute("INSERT INTO effect VALUES (?)", (lease.fence,))
        except LeaseLost:
            continue
    assert sql("SELECT fence FROM effect") == [(2,)]


@pytest.mark.parametrize("ending", ["INSERT OR ROLLBACK INTO done VALUES (1)", "ROLLBACK"])
def test_a_block_whose_transaction_was_ended_by_a_statement_acks_nothing(
    queue: Queue, sql: Sql, ending: LiteralString
) -> None:
    """The ack was a transaction of its own, and the effect rolled back."""
    sql("CREATE TABLE done (id INTEGER PRIMARY KEY)")
    sql("INSERT INTO done VALUES (1)")
    lease = claimed(queue)

    def complete() -> None:
        with queue.completing(lease) as tx:
            tx.execute("INSERT INTO done VALUES (2)")
            with suppress(sqlite3.IntegrityError):
                tx.execute(ending)

    with pytest.raises(OutcomeUnknown, match="has ended the transaction"):
        complete()

    assert sql("SELECT id FROM done") == [(1,)]
    assert read(queue, lease).state == "leased"
    queue.ack(lease)


def test_a_statement_after_the_end_of_the_transaction_is_refused(queue: Queue, sql: Sql) -> None:
    """It would commit itself, and a job that was put in with it too."""

    def put_in_too_late() -> None:
        with queue.transaction() as tx:
            tx.execute("COMMIT")
            queue.enqueue("kind", 1, tx=tx)

    with pytest.raises(OutcomeUnknown, match="has ended the transaction"):
        put_in_too_late()

    assert sql("SELECT count(*) FROM job") == [(0,)]


def test_an_error_in_the_block_rolls_back_the_rows_and_keeps_the_lease(
    queue: Queue, sql: Sql
) -> None:
    sql("CREATE TABLE effect (n UNIQUE)")
    lease = claimed(queue)
    with pytest.raises(sqlite3.IntegrityError), queue.completing(lease) as tx:
        tx.execute("INSERT INTO effect VALUES (1), (1)")

    assert sql("SELECT * FROM effect") == []
    assert read(queue, lease).state == "leased"
    queue.ack(lease)


def test_a_job_put_in_while_completing_exists_only_if_that_commits(queue: Queue) -> None:
    lease = claimed(queue)
    with suppress(RuntimeError), queue.completing(lease) as tx:
        queue.enqueue("next", 1, tx=tx)
        raise RuntimeError
    assert queue.counts()["available"] == 0
    with queue.completing(lease) as tx:
        queue.enqueue("next", 1, tx=tx)
        with pytest.raises(NestedTransaction):
            queue.enqueue("next", 2)

    assert (queue.counts()["available"], queue.counts()["succeeded"]) == (1, 1)


# What is kept.


def test_every_delivery_that_has_ended_has_a_row_of_its_own(
    queue: Queue, clock: ManualClock
) -> None:
    """Covers S0.3, S2.12, F22, F33, F49."""
    lease = claimed(queue, retry="immediate", lease=5)
    starts = []
    for end in ("release", "nack", "snooze", "expiry", "ack"):
        starts.append(clock.now_ms())
        clock.advance(1)
        if end == "release":
            queue.release(lease)
        elif end == "nack":
            queue.nack(lease, "no")
        elif end == "snooze":
            queue.snooze(lease, 0)
        elif end == "expiry":
            clock.advance(9)
            assert queue.reap() == 1
        else:
            queue.ack(lease)
            break
        lease = claim(queue)

    attempts = read(queue, lease).attempts
    assert [a.outcome for a in attempts] == [
        "released",
        "failed",
        "snoozed",
        "expired",
        "succeeded",
    ]
    assert [a.fence for a in attempts] == [1, 2, 3, 4, 5]
    assert [a.started_ms for a in attempts] == starts
    assert [a.finished_ms - a.started_ms for a in attempts] == [1_000, 1_000, 1_000, 10_000, 1_000]
    assert {a.worker for a in attempts} == {queue.worker_id}
    assert [a.error_class for a in attempts] == [None, "Error", None, "LeaseExpired", None]


def test_the_counts_add_up_to_all_jobs_in_every_state(queue: Queue, sql: Sql) -> None:
    assert queue.counts() == dict.fromkeys(model.STATES, 0)
    queue.enqueue_many([("kind", i) for i in range(10)])
    queue.enqueue("kind", 0, delay=9)
    leases = queue.claim_many(6)
    queue.ack(leases[0])
    queue.nack(leases[1], "no")
    queue.nack(leases[2], "no", permanent=True)
    queue.cancel(leases[3].job.id)
    sql("UPDATE job SET state = 'held' WHERE id = 8")
    sql("UPDATE job SET state = 'blocked' WHERE id = 9")
    sql("UPDATE job SET state = 'expired', finished_ms = 1 WHERE id = 10")

    counts = queue.counts()
    assert sum(counts.values()) == 11
    assert counts == {
        "blocked": 1,
        "scheduled": 1,
        "available": 1,
        "leased": 2,
        "retryable": 1,
        "held": 1,
        "succeeded": 1,
        "dead": 1,
        "cancelled": 1,
        "expired": 1,
    }


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(1)], ids=repr)
def test_an_error_that_ends_the_owner_counts_as_a_crash_of_what_it_held(
    queue: Queue, sql: Sql, error: BaseException
) -> None:
    """Given back as no attempt, a job that ends its worker would come again for ever."""
    queue.enqueue("kind", 1, max_attempts=2, retry="immediate")

    def work() -> None:
        with Queue(queue.path, host=queue.host) as owner:
            assert owner.claim() is not None
            raise error

    for _ in range(2):
        with pytest.raises(type(error)):
            work()

    queue.reap()
    assert sql("SELECT state, crashes FROM job") == [("dead", 2)]


@pytest.mark.parametrize("end", ["ack", "nack", "release", "hold"])
def test_a_job_that_was_set_back_by_hand_can_end_again(queue: Queue, sql: Sql, end: str) -> None:
    """Its fence comes a second time; each worker that met it died of the row in `attempt`."""
    ends: dict[str, Callable[[Lease], object]] = {
        "ack": queue.ack,
        "nack": lambda lease: queue.nack(lease, "no"),
        "release": queue.release,
        "hold": lambda lease: operations.hold_leased(queue, lease, "why"),
    }
    lease = claimed(queue)
    queue.ack(lease)
    sql(
        "UPDATE job SET state = 'available', fence = 0, deliveries = 0, finished_ms = NULL,"
        " result = NULL"
    )
    ends[end](claim(queue))

    assert sql("SELECT count(*) FROM attempt") == [(1,)]


def test_closing_after_an_error_of_sqlites_closes_all_the_same(queue: Queue, sql: Sql) -> None:
    with closing(Queue(queue.path, host=queue.host)) as other:
        other.enqueue("kind", 1)
        assert other.claim() is not None
        sql("ALTER TABLE attempt RENAME TO gone")
        with pytest.raises(sqlite3.OperationalError):
            other.close()

        with pytest.raises(ValueError, match="is closed"):
            other.counts()


def test_closing_gives_back_what_is_held_and_it_was_no_attempt(queue: Queue) -> None:
    with Queue(queue.path) as other:
        queue.enqueue("kind", 1)
        lease = claim(other)

    job = read(queue, lease)
    assert (job.state, job.attempt, job.deliveries) == ("available", 0, 1)
    with pytest.raises(ValueError, match="is closed"):
        other.claim()
    other.close()
