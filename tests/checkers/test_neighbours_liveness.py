"""Histories right beside a clause of P17, P18 and P19, as in `test_neighbours.py`."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def worker(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


# --- P17.


@pytest.mark.parametrize(
    ("state", "due_ms", "verdict"),
    [
        ("available", 3_600_000, "pass"),
        ("leased", 3_600_000, "violated"),
        ("available", None, "violated"),
    ],
)
def test_a_job_that_was_put_off_need_not_end_unless_somebody_has_it(
    run: "Run", producer: "Process", state: str, due_ms: int | None, verdict: str
) -> None:
    job = producer.enqueues("a")
    run.commits(job, state)
    job.row["due_ms"] = None if due_ms is None else run.wall_ms + due_ms
    run.heals()
    run.passes(11_000)

    assert run.verdict("P17") == verdict


def test_each_job_is_asked_whether_it_ends_whatever_stands_before_it(
    run: "Run", producer: "Process"
) -> None:
    """Before it: one of which nobody was told, one that ended, and one that was told of late."""
    other = run.process("p2")
    producer.enqueues("a", answer="info")
    run.commits(producer.enqueues("b"), "cancelled")
    late = run.job("c")
    other.invokes("enqueue", value=late.asked)
    run.commits(late, "available")
    producer.enqueues("d")
    run.heals()
    run.passes(11_000)
    other.hears("ok", job=late)

    finding = run.finding("P17")

    assert (finding.checked, [witness.job for witness in finding.witnesses]) == (3, ["4"])


def test_the_time_that_was_missing_is_told_as_declared(run: "Run", producer: "Process") -> None:
    run.parameters["drain_ms"] = 60_000
    producer.enqueues("a")
    run.heals()

    assert str(run.finding("P17").reason).endswith("of the 60.0 s that a queue gets")


@pytest.mark.parametrize(("rest_ms", "verdict"), [(2_000, "unknown"), (8_000, "violated")])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_job_that_waits_may_be_behind_those_that_begin_until_the_end(
    run: "Run",
    producer: "Process",
    worker: "Process",
    rest_ms: int,
    verdict: str,
    has_begun: bool,
) -> None:
    job, other = producer.enqueues("a"), producer.enqueues("b")
    if has_begun:
        worker.claims(job)
        worker.runs(job, "raise")
        worker.nacks(job, "available")
    run.heals()
    run.passes(11_000)
    worker.claims(other)
    worker.runs(other)
    worker.acks(other)
    run.passes(rest_ms)

    assert run.verdict("P17") == verdict


@pytest.mark.parametrize(
    ("starts", "rest_ms", "verdict"),
    [(3, 400, "unknown"), (3, 600, "violated"), (4, 400, "violated")],
)
def test_an_attempt_that_the_job_has_left_lasts_as_long_as_its_lease(
    run: "Run", producer: "Process", worker: "Process", starts: int, rest_ms: int, verdict: str
) -> None:
    job = producer.enqueues("a")
    run.heals()
    run.passes(11_000)
    for number in range(starts):
        worker.claims(job)
        worker.starts(job)
        if number < starts - 1:
            run.reaps(job)
    run.passes(rest_ms)

    assert run.verdict("P17") == verdict


@pytest.mark.parametrize(
    ("rest_ms", "verdict"), [(None, "unknown"), (9_000, "unknown"), (11_000, "violated")]
)
def test_a_queue_that_leaves_no_record_stands_still_until_its_workers_are_asked_to_end(
    run: "Run", producer: "Process", worker: "Process", rest_ms: int | None, verdict: str
) -> None:
    """Its worker keeps no history and has no job: nothing is on record from then on."""
    producer.alive = worker.alive = False
    job = producer.enqueues("a")
    worker.starts(job, attempt=1, fence=1)
    run.strikes("term", worker)  # Before the heal it is a fault, and no end.
    run.heals()
    run.strikes("term", producer)
    if rest_ms is not None:
        run.passes(rest_ms)
        run.strikes("term", worker)
    run.passes(5_000)

    assert run.verdict("P17") == verdict


# --- P18.


def recovered(run: "Run", job: "Job", ms: float | None, *, peers_idle: bool = True) -> None:
    """The holder of a job is killed, and the job is claimed again so much later, or never."""
    t_kill = run.tick()
    t_reclaim = None if ms is None else t_kill + round(ms * 1e6)
    record = {"t_kill": t_kill, "pid": 1, "job": job.id, "t_reclaim": t_reclaim}
    run.recoveries.append(record | {"peers_idle": peers_idle})


def test_each_recovery_is_looked_at_whatever_stands_before_it(
    run: "Run", producer: "Process"
) -> None:
    job, ended = producer.enqueues("a"), producer.enqueues("b")
    run.commits(ended, "cancelled")
    recovered(run, job, 300, peers_idle=False)
    recovered(run, ended, None)
    recovered(run, job, 10)
    recovered(run, job, None)
    recovered(run, job, 300)
    run.passes(300)
    recovered(run, job, None)
    run.recoveries.insert(0, run.recoveries.pop())

    finding = run.finding("P18")

    assert (finding.checked, finding.violations) == (4, 2)


def test_a_job_that_was_cancelled_needs_no_recovery(run: "Run", producer: "Process") -> None:
    job = producer.enqueues("a")
    producer.cancels(job, commits=False)
    recovered(run, job, None)
    run.passes(300)

    assert run.finding("P18").reason == "no holder was killed while a peer was idle"


def test_a_stall_is_no_time_in_which_a_job_could_be_claimed_again(
    run: "Run", producer: "Process"
) -> None:
    recovered(run, producer.enqueues("a"), None)
    run.stalls(300)

    assert run.verdict("P18") == "unknown"


def test_recoveries_are_measured_to_a_tenth_of_a_millisecond(
    run: "Run", producer: "Process"
) -> None:
    job = producer.enqueues("a")
    for ms in (7.26, 1.26, 9.26):
        recovered(run, job, ms)

    assert run.finding("P18").figures == {"p50": 7.3, "p99": 9.3, "max": 9.3}


# --- P19.


@pytest.mark.parametrize("why", ["claimed", "ended"])
def test_a_job_that_was_claimed_or_has_ended_waits_no_longer(
    run: "Run", producer: "Process", worker: "Process", why: str
) -> None:
    job = producer.enqueues("a")
    run.heals()
    if why == "claimed":
        worker.claims(job)
    else:
        run.commits(job, "expired")
    run.passes(31_000)

    assert run.verdict("P19") == "unknown"


def test_how_long_a_rate_keeps_a_job_waiting_is_not_judged(run: "Run", producer: "Process") -> None:
    run.parameters["limits"] = {"api": {"kinds": ["scrape"], "rate": 10.0}}
    producer.enqueues("a", kind="scrape")
    run.heals()
    run.passes(31_000)

    assert run.finding("P19").reason == "no job waited for its first start after the heal"


def test_a_wait_is_told_to_a_tenth_of_a_millisecond_and_its_bound_as_declared(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["starve_ms"] = 60_000
    job = producer.enqueues("a")
    run.heals()
    run.passes(61_000.26)
    worker.claims(job)
    worker.starts(job)

    finding = run.finding("P19")

    assert finding.figures["longest_wait_ms"] == 61_003.3
    assert finding.witnesses[0].story.endswith("and 60.0 s are declared")


@pytest.mark.parametrize(
    ("since_ms", "others_go_on", "verdict"),
    [(700, True, "unknown"), (1_100, True, "violated"), (700, False, "violated")],
)
def test_a_lease_that_has_just_run_out_may_wait_behind_a_backlog(
    run: "Run",
    producer: "Process",
    worker: "Process",
    since_ms: int,
    others_go_on: bool,
    verdict: str,
) -> None:
    """The lease is 500 ms: for as long again somebody may come, if there is a backlog at all."""
    job, other = producer.enqueues("a"), producer.enqueues("b")
    run.heals()
    if not others_go_on:
        worker.claims(other)
        worker.runs(other)
        worker.acks(other)
    run.passes(11_000)
    worker.claims(job)
    worker.starts(job)
    if others_go_on:
        worker.claims(other)
        worker.runs(other)
        worker.acks(other)
    run.passes(since_ms)
    producer.enqueues("c")

    story = run.finding("P17")
    assert (story.verdict, len(story.witnesses)) == (verdict, int(verdict == "violated"))
