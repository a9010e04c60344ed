"""P17 to P21: what must come to pass after the heal, what is used up, and how a worker stops."""

from typing import TYPE_CHECKING, Any

import pytest

from killproof_evidence.checkers.liveness import quantile

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def worker(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


def done(worker: "Process", job: "Job") -> None:
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)


# --- P17.


def test_every_job_that_ended_after_the_heal_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    run.heals()
    done(worker, job)

    assert run.verdict("P17") == "pass"


@pytest.mark.parametrize("state", ["available", "leased", "retryable"])
def test_a_job_that_never_ends_is_seen(run: "Run", producer: "Process", state: str) -> None:
    job = producer.enqueues("a")
    run.commits(job, state)
    run.heals()
    run.passes(11_000)

    assert f"job 1 is still {state} after 11.1 s without faults" in run.story("P17")


def test_a_heal_phase_too_short_for_the_rest_leaves_it_unknown(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a")
    run.passes(10_000)
    run.heals()
    run.passes(500)

    finding = run.finding("P17")

    assert finding.verdict == "unknown"
    assert finding.reason is not None
    assert "had 0.6 s without faults of the 10.0 s" in finding.reason


def test_a_job_that_was_enqueued_at_the_very_end_is_not_held_against_the_queue(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.heals()
    run.passes(11_000)
    worker.claims(producer.enqueues("a"))

    assert run.verdict("P17") == "unknown"


@pytest.mark.parametrize("end", ["succeeded", "dead", "cancelled", "expired"])
def test_a_job_that_ended_long_ago_is_healthy(run: "Run", producer: "Process", end: str) -> None:
    run.commits(producer.enqueues("a"), end)
    run.heals()
    run.passes(11_000)

    assert run.verdict("P17") == "pass"


def test_without_an_audit_a_job_that_is_not_due_is_known_by_its_delay(
    run: "Run", producer: "Process"
) -> None:
    run.audited = False
    producer.enqueues("a", delay_ms=3_600_000)
    run.heals()
    run.passes(11_000)

    assert run.verdict("P17") == "pass"


def test_a_lost_job_is_not_accused_twice(run: "Run", producer: "Process") -> None:
    producer.enqueues("a").rows = 0
    run.heals()
    run.passes(11_000)

    assert run.verdict("P17") == "unknown"


def test_the_time_for_the_rest_may_be_declared(run: "Run", producer: "Process") -> None:
    run.parameters["drain_ms"] = 400
    producer.enqueues("a")
    run.heals()
    run.passes(500)

    assert "is still available" in run.story("P17")


def test_a_stall_is_no_time_for_the_rest(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    run.heals()
    run.stalls(11_000)

    assert run.verdict("P17") == "unknown"


def test_two_stalls_at_once_count_once(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    run.heals()
    run.strikes("stall", t_end=run.now + 5_000_000_000)
    run.strikes("lock", t_end=run.now + 5_000_000_000)
    run.passes(15_100)

    assert "is still available after 10.2 s" in run.story("P17")


@pytest.mark.parametrize("state", ["held", "blocked"])
def test_a_job_that_waits_for_somebody_need_not_end(
    run: "Run", producer: "Process", state: str
) -> None:
    run.commits(producer.enqueues("a"), state)
    run.heals()
    run.passes(11_000)

    assert run.verdict("P17") == "pass"


def test_a_job_that_is_not_due_need_not_end(run: "Run", producer: "Process") -> None:
    producer.enqueues("a", delay_ms=3_600_000)
    run.heals()
    run.passes(11_000)

    assert run.verdict("P17") == "pass"


def test_a_cancelled_or_unacknowledged_job_need_not_end(run: "Run", producer: "Process") -> None:
    producer.enqueues("a", answer="info")
    producer.cancels(producer.enqueues("b"), commits=False)
    run.heals()
    run.passes(11_000)

    assert run.verdict("P17") == "unknown"


def test_without_a_heal_nothing_has_to_end(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")

    assert run.verdict("P17") == "unknown"


# --- P18.


def recovered(run: "Run", job: "Job", ms: int | None, **facts: Any) -> None:
    t_kill = run.tick()
    if ms is not None:
        run.passes(ms)
    t_reclaim = None if ms is None else t_kill + ms * 1_000_000
    record = {"t_kill": t_kill, "pid": 1, "job": job.id, "t_reclaim": t_reclaim}
    run.recoveries.append(record | {"peers_idle": True} | facts)


def test_a_quick_recovery_is_healthy_and_measured(run: "Run", producer: "Process") -> None:
    job = producer.enqueues("a")
    for ms in (10, 20, 100):
        recovered(run, job, ms)

    finding = run.finding("P18")

    assert finding.verdict == "pass"
    assert finding.figures == {"p50": 20, "p99": 100, "max": 100}


def test_a_recovery_beyond_the_bound_is_seen(run: "Run", producer: "Process") -> None:
    recovered(run, producer.enqueues("a"), 300)

    assert "was claimed again 300 ms after the kill of its holder, and 200 ms" in run.story("P18")


def test_a_stall_does_not_count_as_recovery_time(run: "Run", producer: "Process") -> None:
    job = producer.enqueues("a")
    run.strikes("lock", t_end=run.now + 202_000_000)
    recovered(run, job, 300)

    assert run.verdict("P18") == "pass"


def test_a_job_that_is_never_claimed_again_is_seen(run: "Run", producer: "Process") -> None:
    recovered(run, producer.enqueues("a"), None)
    run.passes(200)

    assert "was never claimed again" in run.story("P18")


def test_a_run_that_ends_soon_after_a_kill_says_nothing_of_recovery(
    run: "Run", producer: "Process"
) -> None:
    """As Ctrl-C may end it, or a queue whose processes cannot go on."""
    recovered(run, producer.enqueues("a"), None)

    assert run.verdict("P18") == "unknown"


def test_a_job_that_ended_otherwise_needs_no_recovery(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job, other = producer.enqueues("a"), producer.enqueues("b")
    done(worker, job)
    recovered(run, job, None)
    recovered(run, other, 10)

    assert run.verdict("P18") == "pass"


def test_a_recovery_without_an_idle_peer_is_not_judged(run: "Run", producer: "Process") -> None:
    recovered(run, producer.enqueues("a"), 300, peers_idle=False)

    assert run.verdict("P18") == "unknown"


def test_without_a_declared_bound_recovery_is_unknown(run: "Run", producer: "Process") -> None:
    del run.parameters["recovery_ms"]
    recovered(run, producer.enqueues("a"), 300)

    assert run.verdict("P18") == "unknown"


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.2, 1), (0.21, 2), (0.5, 3), (0.99, 5), (1.0, 5)]
)
def test_a_quantile_is_one_of_the_values(share: float, expected: int) -> None:
    assert quantile([1, 2, 3, 4, 5], share) == expected


# --- P19.


def test_a_job_that_starts_soon_after_the_heal_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    run.heals()
    run.passes(40)
    done(worker, job)

    finding = run.finding("P19")

    assert finding.verdict == "pass"
    assert finding.figures["longest_wait_ms"] == pytest.approx(43)


def test_a_job_that_waits_beyond_the_bound_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    run.heals()
    run.passes(31_000)
    done(worker, job)

    assert "waited 31.0 s after the heal for its first start" in run.story("P19")


def test_a_bound_on_waiting_may_be_declared(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["starve_ms"] = 100
    job = producer.enqueues("a")
    run.heals()
    run.passes(200)
    done(worker, job)

    assert "and 0.1 s are declared" in run.story("P19")


def test_a_job_that_never_starts_is_seen(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    run.heals()
    run.passes(31_000)

    assert "for its first start" in run.story("P19")


def test_a_job_waits_from_its_due_time_on(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.heals()
    job = producer.enqueues("a", delay_ms=31_000)
    run.passes(31_100)
    done(worker, job)

    assert run.verdict("P19") == "pass"


def test_a_stall_is_no_waiting(run: "Run", producer: "Process", worker: "Process") -> None:
    job = producer.enqueues("a")
    run.heals()
    run.stalls(31_000)
    done(worker, job)

    assert run.verdict("P19") == "pass"


def test_a_cancelled_or_unacknowledged_job_may_wait_for_ever(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a", answer="info")
    producer.cancels(producer.enqueues("b"), commits=False)
    run.heals()
    run.passes(31_000)

    assert run.verdict("P19") == "unknown"


def test_where_nothing_waited_after_the_heal_starvation_is_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    done(worker, producer.enqueues("a"))
    run.heals()

    assert run.verdict("P19") == "unknown"


def test_without_a_heal_starvation_is_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    done(worker, producer.enqueues("a"))

    assert run.verdict("P19") == "unknown"


# --- P20.


def sampled(run: "Run", **values: list[int]) -> None:
    for name, numbers in values.items():
        run.samples += [{"t": t, "pid": 101, name: number} for t, number in enumerate(numbers)]


def test_flat_samples_are_healthy(run: "Run", producer: "Process", worker: "Process") -> None:
    done(worker, producer.enqueues("a"))
    sampled(run, wal_bytes=[4_000] * 12, open_files=[9, 17] * 6, threads=[2] * 12)

    finding = run.finding("P20")

    assert finding.verdict == "pass"
    assert finding.figures["open_files_max"] == 17


def test_a_wal_that_grows_without_bound_is_seen(run: "Run") -> None:
    sampled(run, wal_bytes=[4_000, 68_000_000])

    assert "the WAL had 68000000 bytes" in run.story("P20")


@pytest.mark.parametrize("name", ["open_files", "threads"])
def test_a_leak_is_seen(run: "Run", name: str) -> None:
    sampled(run, **{name: [10 + number for number in range(30)]})

    assert f"went from at most 19 {name} to never less than 30" in run.story("P20")


@pytest.mark.parametrize(("threads", "verdict"), [(3, "pass"), (2, "violated")])
def test_the_files_of_further_threads_are_no_leak(run: "Run", threads: int, verdict: str) -> None:
    for t in range(30):
        found = {"open_files": 10 if t < 10 else 26, "threads": 2 if t < 10 else threads}
        run.samples.append({"t": t, "pid": 101} | found)

    assert run.verdict("P20") == verdict


def test_a_short_life_shows_no_growth(run: "Run") -> None:
    sampled(run, open_files=[10, 40])

    assert run.verdict("P20") == "pass"


def test_a_declared_bound_on_threads_counts(run: "Run") -> None:
    run.parameters["threads"] = 4
    sampled(run, threads=[2, 9, 2])

    assert "process 101 had 9 threads, and 4 are allowed" in run.story("P20")


def test_a_pool_that_fills_up_to_its_declared_bound_is_no_leak(run: "Run") -> None:
    run.parameters["threads"] = 10
    sampled(run, threads=[1] * 6 + [10] * 12)

    assert run.verdict("P20") == "pass"


def test_a_storm_of_claims_is_seen(run: "Run", producer: "Process", worker: "Process") -> None:
    sampled(run, threads=[2])
    job = producer.enqueues("a")
    for _ in range(7):
        worker.claims(job)
        worker.releases(job)

    assert "a job was claimed 7.0 times on average, and 6 are allowed" in run.story("P20")


def test_a_storm_of_empty_polls_is_seen(run: "Run", worker: "Process") -> None:
    sampled(run, threads=[2])
    for _ in range(1_100):
        worker.polls()

    assert "w1 polled the empty queue" in run.story("P20")


def test_polls_of_a_short_life_show_no_storm(run: "Run", worker: "Process") -> None:
    sampled(run, threads=[2])
    for _ in range(100):
        worker.polls()

    assert run.verdict("P20") == "pass"


def test_without_samples_resources_are_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    done(worker, producer.enqueues("a"))

    assert run.verdict("P20") == "unknown"


# --- P21.


def test_a_worker_that_ends_within_the_grace_time_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    run.strikes("term", worker)
    worker.runs(job)
    worker.acks(job)
    worker.exits()

    assert run.verdict("P21") == "pass"


def test_a_worker_that_ends_too_late_is_seen(run: "Run", worker: "Process") -> None:
    run.strikes("term", worker)
    run.passes(2_100)
    worker.exits()

    assert "ms after SIGTERM, and 1000 ms are declared" in run.story("P21")


def test_a_paused_worker_gets_its_grace_time_when_it_goes_on(run: "Run", worker: "Process") -> None:
    run.strikes("term", worker)
    run.pauses(worker, 2_100)
    worker.exits()

    assert run.verdict("P21") == "pass"


def test_a_worker_that_does_not_end_in_order_is_seen(run: "Run", worker: "Process") -> None:
    worker.polls()
    run.strikes("term", worker)
    worker.alive = False
    run.process("w2")

    assert "was told to stop and did not end in order" in run.story("P21")


def test_a_worker_that_must_be_killed_after_the_grace_time_is_seen(
    run: "Run", worker: "Process"
) -> None:
    worker.polls()
    run.strikes("term", worker)
    run.passes(2_500)
    run.kills(worker)
    run.process("w2").polls()

    assert "did not end in order" in run.story("P21")


def test_a_worker_killed_within_its_grace_time_is_not_judged(run: "Run", worker: "Process") -> None:
    worker.polls()
    run.strikes("term", worker)
    run.kills(worker)

    assert run.verdict("P21") == "unknown"


def test_a_worker_without_a_history_ends_when_the_supervisor_says(
    run: "Run", worker: "Process"
) -> None:
    stranger = run.process("x1")
    stranger.alive = False
    run.strikes("term", stranger, t_end=run.now + 5_000_000_000)

    assert "ended 4999 ms after SIGTERM" in run.story("P21")


def test_where_no_worker_keeps_a_history_nobody_is_accused_of_ending_late(run: "Run") -> None:
    stranger = run.process("x1")
    stranger.alive = False
    run.strikes("term", stranger)
    run.passes(5_000)

    assert run.verdict("P21") == "unknown"


def test_one_without_a_history_hides_nobody_who_ends_late(run: "Run", worker: "Process") -> None:
    stranger = run.process("x1")
    stranger.alive = False
    run.strikes("term", stranger)
    run.strikes("term", worker)
    run.passes(5_000)
    worker.exits()

    assert "ms after SIGTERM, and 1000 ms are declared" in run.story("P21")


def test_a_worker_that_leaves_its_lease_behind_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    run.strikes("term", worker)
    worker.exits()

    assert "w1 stopped on SIGTERM and left job 1 leased" in run.story("P21")


def test_a_lease_that_was_taken_before_the_end_is_not_left_behind(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    run.passes(520)
    run.reaps(job)
    run.strikes("term", worker)
    worker.exits()

    assert run.verdict("P21") == "pass"


def test_a_worker_that_was_told_of_its_lost_lease_leaves_nothing(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.extends(job, answer="fail")
    run.strikes("term", worker)
    worker.exits()

    assert run.verdict("P21") == "pass"


@pytest.mark.parametrize(("forgiven", "verdict"), [(1, "pass"), (0, "violated")])
def test_a_release_on_sigterm_costs_no_attempt(
    run: "Run", producer: "Process", worker: "Process", forgiven: int, verdict: str
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    run.strikes("term", worker)
    worker.releases(job, forgiven=forgiven)
    worker.exits()

    assert run.verdict("P21") == verdict


def test_without_a_declared_grace_time_the_stop_is_unknown(run: "Run", worker: "Process") -> None:
    del run.parameters["grace_ms"]
    run.strikes("term", worker)

    assert run.verdict("P21") == "unknown"


def test_where_nobody_was_told_to_stop_the_stop_is_unknown(run: "Run", worker: "Process") -> None:
    worker.polls()

    assert run.verdict("P21") == "unknown"
