"""Attempts that were counted wrongly, and delays that overflowed.

Controls take a guard out of a statement or a method of a subclass; the check must then fail.
"""

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from killproof import Host, Job, Lease, LeaseLost, ManualClock, Queue
from killproof.core import host, retry
from killproof.core.database import Transaction
from killproof.core.liveness import Liveness

Made = type[Queue]


def without(**statements: tuple[str, str]) -> Callable[[Made], Made]:
    """Replace a guard in statements of the class: name=(guard, instead)."""

    def apply(made: Made) -> Made:
        for name, (guard, instead) in statements.items():
            assert guard in getattr(Queue, name)
            setattr(made, name, getattr(Queue, name).replace(guard, instead))
        return made

    return apply


def unchecked(path: str) -> sqlite3.Connection:
    """Connect with the schema's own checks off: they are a guard of their own."""
    connection = host.connect(path)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    return connection


def opened(place: Path, make: Made, clock: ManualClock | None = None) -> Queue:
    connect = host.connect if make is Queue else unchecked
    machine = Host(clock=clock or ManualClock(), random=random.Random(7), connect=connect)
    return make(place / "q.db", durability="process", host=machine)


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def read(queue: Queue, job_id: int) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job


def die(queue: Queue) -> None:
    """End a worker as the kernel does: its byte is free, and nothing was given back."""
    liveness = queue.database.liveness
    assert isinstance(liveness, Liveness)
    liveness.close()
    queue._identity = None
    queue.close()


# B32, B55: what becomes of a job whose worker crashed.


class CrashesReturnAtOnce(Queue):
    """Has no cool-off on the crash path."""

    def _policy_ms(self, job: Job) -> int:
        return 0


class CrashesFail(Queue):
    """Ends the job with its worker."""

    def _take_back(self, tx: Transaction, job: Job, outcome: str, before_ns: int) -> None:
        self._end(tx, _lease(job), "reap", "dead", outcome, before_ns=before_ns)


def _lease(job: Job) -> Lease:
    assert job.owner is not None
    return Lease(job=job, fence=job.fence, owner=job.owner, claimed_ms=1, deadline_ns=1)


def check_the_crash_policy(place: Path, make: Made) -> None:
    clock = ManualClock()
    waits = []
    with opened(place, make, clock) as queue:
        job_id = queue.enqueue("kind", 1, retry="article", max_attempts=4)
        for _ in range(3):
            victim = opened(place, Queue, clock)
            claimed(victim)
            die(victim)
            assert queue.reap() == 1
            job = read(queue, job_id)
            assert job.state in ("available", "retryable"), "a crash was the end of the job"
            waits.append(job.due_ms - clock.now_ms())
            clock.advance(4_000)
        assert read(queue, job_id).crashes == 3
    assert waits[0] <= 0
    assert 120_000 <= waits[1] <= 140_000, "no delay before a job that crashes comes again"
    assert 240_000 <= waits[2] <= 260_000


def test_the_first_crash_returns_at_once_and_later_ones_by_the_policy_with_its_jitter(
    place: Path,
) -> None:
    """B32, B55: a crashed job ended as failed; or was released, and crashed again at once."""
    check_the_crash_policy(place, Queue)


@pytest.mark.parametrize(
    ("make", "words"), [(CrashesReturnAtOnce, "no delay"), (CrashesFail, "end of the job")]
)
def test_a_crash_without_a_policy_is_seen(place: Path, make: Made, words: str) -> None:
    """B32, B55, control."""
    with pytest.raises(AssertionError, match=words):
        check_the_crash_policy(place, make)


# B46: cancel could not stop a job that crashes again and again.


class CancelsAtTheEnd(Queue):
    """Honours a cancel only at the end of an attempt."""

    def cancel(self, job_id: int) -> bool:
        return True


def check_a_cancel_ends_a_crash_loop(place: Path, make: Made, leased: bool) -> None:
    clock = ManualClock()
    with opened(place, make, clock) as queue:
        job_id = queue.enqueue("kind", 1, retry="immediate", max_attempts=100)
        for _ in range(2):
            victim = opened(place, Queue, clock)
            claimed(victim)
            die(victim)
            if not leased:
                queue.reap()
        # The victim is dead, its lease is not over, and nobody has swept yet; or it waits.
        assert queue.cancel(job_id)
        queue.reap()
        clock.advance(3_600)
        assert queue.claim() is None, "it goes on"
        assert read(queue, job_id).state == "cancelled"


@pytest.mark.parametrize("leased", [True, False], ids=["between crash and sweep", "waiting"])
def test_a_cancel_stops_a_job_in_a_crash_loop(place: Path, leased: bool) -> None:
    """B46: it looped for 17 h, and cancel could not stop it."""
    check_a_cancel_ends_a_crash_loop(place, Queue, leased)


def test_a_cancel_that_waits_for_the_end_of_an_attempt_is_seen_to_go_on(place: Path) -> None:
    """B46, control."""
    with pytest.raises(AssertionError, match="goes on"):
        check_a_cancel_ends_a_crash_loop(place, CancelsAtTheEnd, leased=False)


# B49: a crash is charged to another worker's live attempt.


AS_BELIEVED = """AND fence = :fence AND owner = :worker AND state = 'leased'
           AND lease_deadline_ns <= :before_ns"""


@without(END=(AS_BELIEVED, ""))
class ChargesById(Queue):
    """Accounts a crash by the job's id."""


def check_the_crash_is_charged_to_whose_it_is(place: Path, make: Made) -> None:
    clock = ManualClock()
    with opened(place, make, clock) as supervisor, opened(place, Queue, clock) as second:
        job_id = supervisor.enqueue("kind", 1, lease=1, retry="immediate")
        first = opened(place, Queue, clock)
        claimed(first)
        with supervisor.database.write("reap") as tx:
            seen = supervisor._read(tx, job_id)
        clock.advance(2)
        second.reap()  # Its lease is over; now the job is another's.
        live = claimed(second)
        die(first)
        try:
            with supervisor.database.write("reap") as tx:
                supervisor._take_back(tx, seen, "crashed", 1 << 62)
        except LeaseLost:
            pass
        job = read(supervisor, job_id)
        assert (job.state, job.fence, job.crashes) == ("leased", live.fence, 1), "charged to B"
        second.ack(live)


def test_a_crash_is_charged_to_the_attempt_that_crashed_and_not_to_the_next(place: Path) -> None:
    """B49: B claimed before the parent of A had reaped A."""
    check_the_crash_is_charged_to_whose_it_is(place, Queue)


def test_a_crash_that_is_charged_by_id_is_seen_to_hit_the_living(place: Path) -> None:
    """B49, control."""
    with pytest.raises(AssertionError, match="charged to B"):
        check_the_crash_is_charged_to_whose_it_is(place, ChargesById)


# B50: snoozing overflows the attempts, and the backoff grows with it.


@without(END=("('released', 'snoozed', 'held')", "('released', 'held')"))
class CountsSnoozes(Queue):
    """Takes a snooze for an attempt."""


def check_snoozes_are_no_attempts(place: Path, make: Made) -> None:
    clock = ManualClock()
    with opened(place, make, clock) as queue:
        job_id = queue.enqueue("kind", 1, max_attempts=2, retry="article")
        with queue.transaction() as tx:  # As after so many of them.
            tx.execute("UPDATE job SET fence = 99998, deliveries = 99998, forgiven = 99998")
        for _ in range(2):
            queue.snooze(claimed(queue), 0)
        lease = claimed(queue)
        assert lease.job.attempt == 1, "a snooze was an attempt"
        queue.nack(lease, "no")
        job = read(queue, job_id)
        assert (job.state, job.deliveries, job.failures) == ("retryable", 100_001, 1)
        assert 60_000 <= job.due_ms - clock.now_ms() <= 80_000  # The delay of attempt 1.


def test_a_hundred_thousand_snoozes_cost_no_attempt_and_lengthen_no_delay(place: Path) -> None:
    """B50: the maximum was raised instead, and overflowed a smallint."""
    check_snoozes_are_no_attempts(place, Queue)


def test_a_snooze_that_counts_is_seen(place: Path) -> None:
    """B50, control."""
    with pytest.raises(AssertionError):
        check_snoozes_are_no_attempts(place, CountsSnoozes)


# B53: the delay overflows inside of the failure path.

POLICIES = ["article", "immediate", "fixed:2592000", "exponential:0.001", "exponential:2592000"]
Delay = Callable[[str, int, random.Random], int]


def overflows(policy: str, attempt: int, source: random.Random) -> int:
    """Compute the delay as the formula stands."""
    name, number = retry.parse(policy)
    if name == "article":
        return round(min(3600, 2.0**attempt * 30) + source.randint(0, 20)) * 1_000
    return round(number * 2.0**attempt * 1_000)


def check_every_delay_is_a_number(delay: Delay, policy: str, attempt: int) -> None:
    delay_ms = delay(policy, attempt, random.Random(attempt))
    cap_seconds = max(retry.DELAY_SECONDS_MAX + 20, retry.parse(policy)[1])
    assert isinstance(delay_ms, int)
    assert 0 <= delay_ms <= cap_seconds * 1_000


@given(st.sampled_from(POLICIES), st.integers(0, 2**63))
@settings(deadline=None, max_examples=300)
def test_the_delay_after_any_number_of_attempts_is_within_the_cap(
    policy: str, attempt: int
) -> None:
    """B53: after 16 retries the job disappeared for ever: the wait overflowed a datetime."""
    check_every_delay_is_a_number(retry.delay_ms, policy, attempt)


def test_a_formula_without_a_cap_is_seen_to_overflow() -> None:
    """B53, control."""
    with pytest.raises(OverflowError):
        check_every_delay_is_a_number(overflows, "article", 100_000)
    with pytest.raises(AssertionError):
        check_every_delay_is_a_number(overflows, "exponential:2592000", 50)


class TrustsThePolicy(Queue):
    def _policy_ms(self, job: Job) -> int:
        return retry.delay_ms(job.retry, job.attempt, self.host.random)


def check_a_policy_that_raises_loses_no_job(place: Path, make: Made) -> None:
    clock = ManualClock()
    with opened(place, make, clock) as queue:
        job_id = queue.enqueue("kind", 1, max_attempts=99)
        with queue.transaction() as tx:
            tx.execute("UPDATE job SET retry = 'exponential:1e400'")
        queue.nack(claimed(queue), "no")
        job = read(queue, job_id)
        assert (job.state, job.error_message) == ("retryable", "no")
        clock.advance(3_700)
        assert queue.claim() is not None


def test_a_retry_policy_that_can_not_be_computed_does_not_lose_the_job(place: Path) -> None:
    """B53: the exception left the row in limbo."""
    check_a_policy_that_raises_loses_no_job(place, Queue)


def test_a_failure_path_that_itself_fails_is_seen(place: Path) -> None:
    """B53, control."""
    with pytest.raises(ValueError, match="1e400"):
        check_a_policy_that_raises_loses_no_job(place, TrustsThePolicy)
