"""The trust window and the limits, on a clock that the test moves."""

import logging
import signal
import threading
from collections.abc import Callable

import pytest

from killproof import DatabaseBusy, Job, Lease, LeaseLost, ManualClock, StorageFailed
from killproof import heartbeat as heartbeat_module
from killproof.heartbeat import BEAT_SECONDS_MAX, BEAT_SECONDS_MIN, Cause, Heartbeat, Tenure

SECOND = 1_000_000_000


def lease_of(clock: ManualClock, *, seconds: float = 60.0) -> Lease:
    job = Job(
        id=7, kind="k", state="leased", payload=None, priority=5, due_ms=0, key=None,
        max_attempts=5, lease_ms=round(seconds * 1_000), retry="article", fence=1, deliveries=1,
        forgiven=0, failures=0, crashes=0, owner="w", claimed_ms=0, created_ms=0,
        finished_ms=None, error_class=None, error_message=None, result=None,
    )  # fmt: skip
    deadline_ns = clock.monotonic_ns() + round(seconds * SECOND)
    return Lease(job=job, fence=1, owner="w", claimed_ms=0, deadline_ns=deadline_ns)


class Renewals:
    """A queue whose `extend` does what the test says."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.answer: Callable[[], None] = lambda: None

    def extend(self, lease: Lease) -> None:
        self.leases.append(lease)
        self.answer()


class Bench:
    """A heartbeat without its thread, and what it told the worker."""

    def __init__(self, *, seconds: float = 60.0, grace: float = 5.0, **limits: float) -> None:
        self.clock = ManualClock()
        self.queue = Renewals()
        self.lost: list[Tenure] = []
        self.overdue: list[Cause] = []
        self.failed: list[StorageFailed] = []
        self.lines: list[tuple[int, str]] = []
        self.tenure = Tenure(
            lease_of(self.clock, seconds=seconds), now_ns=self.clock.monotonic_ns(), **limits
        )
        self.heartbeat = Heartbeat(
            self.queue,
            self.clock,
            on_lost=self.lost.append,
            on_overdue=lambda tenure, cause: self.overdue.append(cause),
            on_storage_failed=self.failed.append,
            overdue_grace=grace,
            log=lambda level, lease, text: self.lines.append((level, text)),
        )
        self.heartbeat.watch(self.tenure)

    def after(self, seconds: float) -> float:
        """Let time pass, then beat."""
        self.clock.advance(seconds)
        return self.heartbeat.beat()

    def is_lost(self) -> bool:
        return self.tenure.is_lost(self.clock.monotonic_ns())


def raises(error: Exception) -> Callable[[], None]:
    def answer() -> None:
        raise error

    return answer


@pytest.mark.parametrize("seconds", [0.5, 60.0, 600.0])
def test_the_interval_of_renewals_follows_from_the_lease(seconds: float) -> None:
    bench = Bench(seconds=seconds)

    bench.after(seconds / 3 - 0.01)
    assert bench.queue.leases == []
    bench.after(0.02)
    assert len(bench.queue.leases) == 1


def test_a_long_lease_is_renewed_by_its_own_length() -> None:
    bench = Bench(seconds=600)
    bench.after(201)

    assert bench.queue.leases[0].job.lease_ms == 600_000
    bench.clock.advance(590)
    assert not bench.is_lost()


def test_the_window_counts_from_the_start_of_the_renewal() -> None:
    bench = Bench(seconds=60)
    bench.queue.answer = lambda: bench.clock.advance(10)
    bench.after(20)
    started_ns = bench.clock.monotonic_ns() - 10 * SECOND

    assert bench.tenure.trusted_until_ns == started_ns + 59 * SECOND


def test_trust_ends_before_others_may_claim() -> None:
    bench = Bench(seconds=60)
    deadline_ns = bench.tenure.lease.deadline_ns

    assert bench.tenure.trusted_until_ns < deadline_ns
    bench.clock.elapsed_ns = bench.tenure.trusted_until_ns
    assert bench.is_lost()


def test_a_renewal_that_blocks_past_the_window_comes_too_late() -> None:
    bench = Bench(seconds=60)
    bench.queue.answer = lambda: bench.clock.advance(45)  # From 20 to 65 of 60 seconds.
    bench.after(20)

    assert bench.is_lost()


def test_once_lost_a_lease_stays_lost() -> None:
    bench = Bench(seconds=60)
    bench.clock.advance(60)
    assert bench.is_lost()
    bench.tenure.renewed(bench.clock.monotonic_ns(), bench.clock.monotonic_ns())

    assert bench.is_lost()


def test_a_lost_lease_is_not_renewed_any_more() -> None:
    bench = Bench(seconds=60)
    wait = bench.after(61)

    assert bench.queue.leases == []
    assert wait == BEAT_SECONDS_MAX


def test_a_refused_renewal_is_told_to_the_worker() -> None:
    bench = Bench(seconds=60)
    bench.queue.answer = raises(LeaseLost(7, 1, "extend"))
    bench.after(21)

    assert bench.lost == [bench.tenure]
    assert bench.is_lost()


def test_a_renewal_that_the_ack_overtook_is_no_loss() -> None:
    bench = Bench(seconds=60)

    def answer() -> None:
        bench.tenure.settling = True  # The main thread acks while the renewal is on its way.
        raise LeaseLost(7, 1, "extend")

    bench.queue.answer = answer
    bench.after(21)

    assert bench.lost == []
    assert not bench.is_lost()


def test_a_handler_that_has_ended_is_not_renewed() -> None:
    bench = Bench(seconds=60)
    bench.tenure.settling = True
    bench.after(21)

    assert bench.queue.leases == []


@pytest.mark.parametrize("error", [DatabaseBusy("locked"), RuntimeError("a fault of ours")])
def test_a_failed_renewal_is_tried_again_while_the_window_lasts(error: Exception) -> None:
    bench = Bench(seconds=60)
    bench.queue.answer = raises(error)
    for _ in range(60):
        bench.after(1)

    assert 5 <= len(bench.queue.leases) <= 10
    assert bench.is_lost()
    assert {level for level, _ in bench.lines} <= {logging.WARNING, logging.ERROR}


def test_a_failed_disk_is_told_to_the_worker() -> None:
    bench = Bench(seconds=60)
    bench.queue.answer = raises(StorageFailed("EIO"))
    bench.after(21)

    assert len(bench.failed) == 1


def test_a_handler_past_its_limit_gets_the_grace_before_it_is_left() -> None:
    bench = Bench(seconds=600, timeout=10, grace=5)
    bench.after(10)
    bench.after(4.9)
    assert bench.overdue == []
    bench.after(0.2)

    assert bench.overdue == ["timeout"]


def test_the_grace_counts_from_when_the_limit_was_seen_to_pass() -> None:
    """A process that was stopped for an hour must give its handler the chance to end."""
    bench = Bench(seconds=6_000, timeout=10, grace=5)
    bench.after(3_600)

    assert bench.overdue == []


def test_a_time_limit_does_not_care_about_renewals() -> None:
    bench = Bench(seconds=60, timeout=100, grace=1)
    for _ in range(110):
        bench.after(1)

    assert not bench.is_lost()
    assert bench.overdue[0] == "timeout"


def test_a_stopping_worker_leaves_a_handler_that_outlives_the_grace() -> None:
    bench = Bench(seconds=60, grace=1)
    bench.tenure.stop_at_ns = bench.clock.monotonic_ns() + 2 * SECOND
    bench.after(2)
    bench.after(1)

    assert bench.overdue == ["stopped"]


def test_a_heartbeat_without_a_grace_still_rests_between_its_looks() -> None:
    bench = Bench(seconds=600, timeout=10, grace=0)

    assert bench.after(1) == BEAT_SECONDS_MIN
    assert (bench.after(9), bench.after(0)) == (BEAT_SECONDS_MIN, BEAT_SECONDS_MIN)
    assert bench.overdue == ["timeout"]


def test_a_handler_that_has_ended_is_not_left_behind() -> None:
    bench = Bench(seconds=600, timeout=10, grace=1)
    bench.after(10)
    bench.tenure.ended = True
    bench.after(5)

    assert bench.overdue == []


def test_each_cause_interrupts_once() -> None:
    bench = Bench(seconds=60, timeout=10)
    bench.clock.advance(10)
    cause = bench.tenure.cause(bench.clock.monotonic_ns())
    assert cause == "timeout"
    bench.tenure.told.add("timeout")

    assert bench.tenure.cause(bench.clock.monotonic_ns()) is None
    bench.clock.advance(50)
    assert bench.tenure.cause(bench.clock.monotonic_ns()) == "lost"


def test_a_completed_job_has_no_lease_to_lose() -> None:
    bench = Bench(seconds=60, timeout=100)
    bench.tenure.completed = True
    bench.clock.advance(99)
    assert bench.tenure.cause(bench.clock.monotonic_ns()) is None
    bench.clock.advance(1)

    assert bench.tenure.cause(bench.clock.monotonic_ns()) == "timeout"


def test_the_timer_is_set_to_the_first_cause_not_told_yet() -> None:
    bench = Bench(seconds=60, timeout=10)
    start_ns = bench.clock.monotonic_ns()
    assert bench.tenure.next_cause_ns() == start_ns + 10 * SECOND
    bench.tenure.told.add("timeout")

    assert bench.tenure.next_cause_ns() == bench.tenure.trusted_until_ns


def test_the_lease_of_a_kind_is_what_renewals_ask_for() -> None:
    bench = Bench(seconds=60, length=600)
    bench.after(21)

    assert bench.queue.leases[0].job.lease_ms == 600_000
    # Whoever can not compare clocks watches for the 60 s in the row: renewals come by those.
    assert bench.tenure.renew_at_ns == bench.clock.monotonic_ns() + 20 * SECOND


# The thread itself.


class Clock(ManualClock):
    """A manual clock that runs something when it is read for the first time."""

    at_first_reading: Callable[[], None] | None = None

    def monotonic_ns(self) -> int:
        first, self.at_first_reading = self.at_first_reading, None
        if first is not None:
            first()
        return super().monotonic_ns()


@pytest.mark.parametrize("while_looking", [True, False])
def test_a_lease_that_is_due_sooner_wakes_the_thread(
    monkeypatch: pytest.MonkeyPatch, while_looking: bool
) -> None:
    """Also when it comes while the thread looks at what was there before."""
    monkeypatch.setattr(heartbeat_module, "BEAT_SECONDS_MAX", 3_600.0)
    bench = Bench(seconds=10_800, grace=3_600)
    bench.clock = bench.heartbeat._clock = bench.heartbeat._pulse._clock = clock = Clock()
    asleep, renewed = threading.Event(), threading.Event()
    short = Tenure(lease_of(clock, seconds=0.5), now_ns=clock.monotonic_ns() - SECOND)
    bench.queue.answer = renewed.set
    if while_looking:
        clock.at_first_reading = lambda: bench.heartbeat.watch(short)
    else:
        wait = bench.heartbeat._pulse._wake.wait

        def told(seconds: float) -> bool:
            asleep.set()
            return wait(seconds)

        monkeypatch.setattr(bench.heartbeat._pulse._wake, "wait", told)
    with bench.heartbeat:
        if not while_looking:
            assert asleep.wait(60)
            bench.heartbeat.watch(short)
        assert renewed.wait(60)


def test_signals_are_left_to_the_main_thread() -> None:
    bench = Bench(seconds=0.5)
    masks: list[set[int]] = []
    seen = threading.Event()

    def answer() -> None:
        masks.append({int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, [])})
        seen.set()

    bench.queue.answer = answer
    bench.clock.advance(0.2)
    with bench.heartbeat:
        assert seen.wait(60)

    assert masks[0] >= {signal.SIGALRM, signal.SIGTERM, signal.SIGINT}


def test_what_a_job_waited_in_its_worker_is_no_part_of_its_handlers_grace() -> None:
    clock = ManualClock()
    tenure = Tenure(lease_of(clock, seconds=600), now_ns=clock.monotonic_ns(), timeout=1)
    tenure.overdue_since_ns = clock.monotonic_ns()  # Its limit passed while it waited.

    tenure.begin(now_ns=clock.monotonic_ns(), timeout=1)
    assert tenure.overdue_since_ns is None
