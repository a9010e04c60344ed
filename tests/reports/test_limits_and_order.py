"""Limits that leak or are given back twice, and an order that starves somebody."""

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from killproof import Host, Lease, LeaseLost, ManualClock, Queue, limits
from killproof.core.database import Transaction
from killproof.explain import RULES, Rule, explain, order
from killproof.limits import Limits
from killproof.limits_aging import age

SECONDS_MAX = 120.0
Made = type[Queue]


def opened(place: Path, make: Made = Queue) -> tuple[Queue, ManualClock]:
    clock = ManualClock()
    return make(place / "q.db", durability="process", host=Host(clock=clock)), clock


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


# B23: a place of a limit is given back twice.

AT_ONCE = 3
JOBS = 100
UNFINISHED = ("available", "scheduled", "retryable", "leased")


def end_somehow(queue: Queue, clock: ManualClock, lease: Lease, chance: random.Random) -> bool:
    """End a lease as jobs end, or as holders die; True if its holder comes back later."""
    match chance.choice(("ack", "ack", "ack", "nack", "snooze", "release", "dies", "cancel")):
        case "ack":
            queue.ack(lease)
        case "nack":
            queue.nack(lease, "no")
        case "snooze":
            queue.snooze(lease, 1)
        case "release":
            queue.release(lease)
        case "cancel":
            queue.cancel(lease.job.id)
            with suppress(LeaseLost):
                queue.ack(lease)
        case _:
            clock.advance(lease.job.lease_ms / 1_000 + 1)
            queue.reap()
            return True
    return False


def check_a_limit_is_never_exceeded_and_never_leaks(place: Path) -> None:
    queue, clock = opened(place)
    chance, late = random.Random(7), list[Lease]()
    with queue:
        Limits(queue).set("shop", kinds=["scrape"], running=AT_ONCE)
        with queue.transaction() as tx:
            for number in range(JOBS):
                queue.enqueue(
                    "scrape", number, tx=tx, max_attempts=1_000, retry="immediate", lease=5
                )
        leases: list[Lease] = []
        for _ in range(20 * JOBS):
            if not sum(queue.counts()[state] for state in UNFINISHED):
                break
            if len(leases) < 2 * AT_ONCE and (lease := queue.claim()) is not None:
                leases.append(lease)
                assert queue.counts()["leased"] <= AT_ONCE, "over the limit"
                continue
            clock.advance(0.3)
            if leases:
                lease = leases.pop(chance.randrange(len(leases)))
                with suppress(LeaseLost):  # Another one's death took as long as its lease.
                    if end_somehow(queue, clock, lease, chance):
                        late.append(lease)
            if late and chance.random() < 0.5:
                with suppress(LeaseLost):  # It was given up long ago, and gives back once more.
                    queue.ack(late.pop())
        else:
            raise AssertionError("nothing starts")

        queue.enqueue_many([("scrape", None)] * (AT_ONCE + 1))
        assert all(queue.claim() for _ in range(AT_ONCE)), "a place is lost"
        assert queue.claim() is None, "over the limit"


def test_a_limit_is_neither_exceeded_nor_lost_however_its_holders_end(place: Path) -> None:
    """B23: a place was given back by the expiry and by the job: eleven ran where one may.

    `tests/process/test_limits.py` kills real holders.
    """
    check_a_limit_is_never_exceeded_and_never_leaks(place)


@pytest.mark.parametrize(
    ("guard", "instead", "words"),
    [
        # Whatever moves a job that does not run gives a place back as well.
        ("OLD.state = 'leased' AND NEW.state <> 'leased'", "NEW.state <> 'leased'", "over"),
        ("SET running = max(running - 1, 0)", "SET running = running", "nothing starts|is lost"),
    ],
)
def test_a_place_that_is_given_back_twice_or_never_is_seen(
    place: Path, monkeypatch: pytest.MonkeyPatch, guard: str, instead: str, words: str
) -> None:
    """B23, control."""
    script = limits.script()
    assert guard in script
    monkeypatch.setattr(limits, "script", lambda: script.replace(guard, instead))
    with pytest.raises(AssertionError, match=words):
        check_a_limit_is_never_exceeded_and_never_leaks(place)


# B34: a dead job occupies its limit for ever.


class RecoversWithinTheLimit(Queue):
    """Takes nothing back while a limit is full: the dead one is counted."""

    def _sweep(self, tx: Transaction, limit: int) -> int:
        if tx.row("SELECT 1 FROM throttle") is not None:
            return 0
        return super()._sweep(tx, limit)


HOLDER = """
import sys
from killproof import Queue
with Queue(sys.argv[1]) as queue:
    assert queue.claim() is not None
    print("holds", flush=True)
    sys.stdin.readline()
"""


def check_a_dead_holder_is_taken_over(place: Path, make: Made) -> None:
    with make(place / "q.db", durability="process") as queue:
        Limits(queue).set("mutex", kinds=["backup"], running=1)
        job_id = queue.enqueue("backup", None, lease=3_600)
        queue.enqueue("backup", None)
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, queue.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"holds\n"
            assert queue.claim() is None
            holder.kill()
        assert holder.returncode == -signal.SIGKILL
        queue.reap()
        lease = queue.claim()
        assert lease is not None, "the place is kept"
        assert (lease.job.id, lease.job.attempt) == (job_id, 2)


def test_a_killed_holder_of_a_mutex_is_taken_over_at_once(place: Path) -> None:
    """B34: the recovery counted the dead job, so that nothing of its type ran any more."""
    check_a_dead_holder_is_taken_over(place, Queue)


def test_a_recovery_that_keeps_to_the_limit_is_seen_to_wait(place: Path) -> None:
    """B34, control."""
    with pytest.raises(AssertionError, match="the place is kept"):
        check_a_dead_holder_is_taken_over(place, RecoversWithinTheLimit)


# B115: what a limit lets go ignores the priorities.


class InOrderOfRelease(Queue):
    """Orders the kinds by age: what was kept back stands behind what came meanwhile."""

    BY_AGE = Queue.FIRST_OF_ALL.replace("BY priority, due_ms, job.id LIMIT", "BY job.id LIMIT")
    FIRST_OF_ALL = BY_AGE  # type: ignore[misc]


def check_what_was_kept_back_goes_by_its_priority(place: Path, make: Made) -> None:
    queue, clock = opened(place, make)
    with queue:
        Limits(queue).set("mutex", kinds=["scrape"], running=1)
        queue.enqueue("scrape", "holder", priority=0)
        holder = claimed(queue)
        for number in range(3):
            queue.enqueue("mail", number, priority=7)
        for priority in (9, 3, 0):
            queue.enqueue("scrape", priority, priority=priority)
        clock.advance(1)
        assert [claimed(queue).job.kind for _ in range(2)] == ["mail", "mail"]
        queue.ack(holder)
        done = []
        while (lease := queue.claim()) is not None:
            queue.ack(lease)
            done.append((lease.job.kind, lease.job.priority))
        assert done == [("scrape", 0), ("scrape", 3), ("mail", 7), ("scrape", 9)]


def test_what_a_limit_kept_back_goes_by_its_priority_among_all(place: Path) -> None:
    """B115: jobs that a limit let go were put in a line of their own."""
    check_what_was_kept_back_goes_by_its_priority(place, Queue)


def test_an_order_by_age_is_seen_to_let_the_others_go_first(place: Path) -> None:
    """B115, control."""
    with pytest.raises(AssertionError, match="mail"):
        check_what_was_kept_back_goes_by_its_priority(place, InOrderOfRelease)


# B116: low priorities wait for ever, and nobody says why.

BOUND_SECONDS = 900.0


def check_the_last_one_starts(
    place: Path, rules: tuple[Rule, ...], ages: Callable[[Queue], None]
) -> None:
    queue, clock = opened(place)
    with queue:
        ages(queue)
        queue.enqueue("first", None)
        queue.ack(claimed(queue))  # From here on it is known that somebody works.
        job_id = queue.enqueue("report", None, priority=9)
        started = set[int]()
        told = list[tuple[str, ...]]()
        for _ in range(round(BOUND_SECONDS / 10) + 5):
            queue.enqueue("urgent", None, priority=0)
            clock.advance(10)
            why = tuple(reason.rule for reason in explain(queue, job_id, rules).keeping)
            lease = claimed(queue)
            if job_id not in started and lease.job.id != job_id:
                told.append(why)
            queue.ack(lease)
            started.add(lease.job.id)
        assert set(told) == {("order",)}, "nobody says why"
        assert job_id in started, "starved"


def test_a_job_of_the_last_priority_starts_within_its_bound_and_its_waiting_is_explained(
    place: Path,
) -> None:
    """B116: strict priorities under a steady stream; the page blamed something else."""
    check_the_last_one_starts(place, RULES, lambda queue: age(queue, "report", BOUND_SECONDS))


def test_priorities_that_do_not_age_are_seen_to_starve(place: Path) -> None:
    """B116, control."""
    with pytest.raises(AssertionError, match="starved"):
        check_the_last_one_starts(place, RULES, lambda _: None)


def test_an_explanation_without_the_order_is_seen_to_say_nothing(place: Path) -> None:
    """B116, control."""
    rules = tuple(rule for rule in RULES if rule is not order)
    with pytest.raises(AssertionError, match="nobody says why"):
        check_the_last_one_starts(place, rules, lambda queue: age(queue, "report", BOUND_SECONDS))
