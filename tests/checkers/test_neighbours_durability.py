"""Histories right beside a clause of P1, P2, P3, P14 and P16, as in `test_neighbours.py`."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkers.conftest import Process, Run


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def worker(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


# --- P1.


@pytest.mark.parametrize("old", ["expired", "leased"])
def test_the_row_of_a_job_that_ended_may_go_where_the_contract_says_so(
    run: "Run", producer: "Process", worker: "Process", old: str
) -> None:
    """It has ended by its state, or because its handler did all that it had to do."""
    run.edges[old] = ("deleted",)
    job = producer.enqueues("a")
    if old == "leased":
        worker.claims(job)
        worker.runs(job)
    else:
        run.commits(job, old)
    run.commits(job, None)

    assert run.verdict("P1") == "pass"


def test_the_name_of_an_enqueue_that_was_refused_is_none_that_a_job_may_bear(
    run: "Run", producer: "Process"
) -> None:
    job = producer.enqueues("a")
    producer.invokes("enqueue", value={"id": "z"})
    producer.hears("fail", job=job)
    job.row["payload"] = {"id": "z"}

    assert "job 1 has the payload of z at the end" in run.story("P1")


def test_an_enqueue_of_unknown_outcome_has_no_job_of_its_own(
    run: "Run", producer: "Process"
) -> None:
    job = producer.enqueues("a")
    producer.invokes("enqueue", value=job.asked)
    producer.hears("info", job=job)

    assert run.verdict("P1") == "pass"


def test_where_nobody_tells_what_was_asked_for_a_job_may_bear_any_name(
    run: "Run", producer: "Process"
) -> None:
    job = run.job("z")
    producer.invokes("enqueue")
    run.commits(job, "available")
    producer.hears("ok", job=job)
    producer.invokes("enqueue", value={"id": "y"})
    producer.hears("info", job=job)

    assert run.verdict("P1") == "pass"


def test_a_lost_job_after_one_of_which_nobody_was_told_is_seen(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a", answer="info")
    run.commits(producer.enqueues("b"), None)

    assert "job 2 was acknowledged, never ended, and is gone" in run.story("P1")


@pytest.mark.parametrize(
    ("spill", "bound", "forgiven", "verdict"),
    [
        (True, 3, 1, "violated"),
        (True, 3, 0, "pass"),
        (True, None, 1, "pass"),
        (False, 3, 1, "pass"),
    ],
)
def test_a_job_whose_payload_is_in_a_file_may_die_unstarted_only_at_its_last_attempt(
    run: "Run",
    producer: "Process",
    worker: "Process",
    spill: bool,
    bound: int | None,
    forgiven: int,
    verdict: str,
) -> None:
    if bound is None:
        del run.parameters["max_attempts"]
    job = producer.enqueues("a", digest="d", spill=spill)
    for _ in range(2):
        worker.claims(job)
        worker.releases(job, forgiven=0)
    worker.claims(job)
    job.forgiven = forgiven
    worker.nacks(job, "dead")

    assert run.verdict("P1") == verdict


# --- P2.


@pytest.mark.parametrize(("count", "verdict"), [(2, "pass"), (3, "violated")])
def test_as_many_nameless_jobs_may_exist_as_enqueues_were_never_answered(
    run: "Run", producer: "Process", count: int, verdict: str
) -> None:
    for name in ("a", "b"):
        producer.enqueues(name, answer="info", exists=False)
    for number in range(count):
        job = run.job(f"nameless {number}")
        run.commits(job, "available")
        del run.audit[-1]["harness_id"]
        job.row["payload"] = None

    assert run.verdict("P2") == verdict


def test_a_phantom_after_an_enqueue_that_left_no_trace_is_seen(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a", answer="info", exists=False)
    run.commits(run.job("z"), "available")

    assert "job 2 exists, but nobody enqueued it" in run.story("P2")


# --- P3.


def test_a_step_that_needs_nothing_may_be_cancelled_with_its_run(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    jobs = producer.starts_run("r", {"a": [], "b": []})
    worker.does_step(jobs["a"])
    worker.acks(jobs["a"])
    run.commits(jobs["b"], "cancelled")
    for job in jobs.values():
        del job.asked["needs"]

    assert run.verdict("P3") == "pass"


# --- P14.


def test_what_is_told_of_a_job_that_the_audit_does_not_know_as_it_is_is_named(
    run: "Run", producer: "Process"
) -> None:
    older, unknown = producer.enqueues("a", exists=False), producer.enqueues("b", exists=False)
    older.state = unknown.state = "available"
    run.commits(older, "leased")
    unknown.rows = 2

    stories = [witness.story for witness in run.finding("P14").witnesses]

    assert stories == [
        "job 1 was absent after one commit and available before the next",
        "job 2 was absent after the last commit, and the snapshot tells it as available, available",
    ]


# --- P16.


def test_a_lock_error_is_told_of_the_job_that_met_it(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.invokes("ack", job=job, fence=1)
    worker.hears("fail", value={"error": "database is locked"})

    assert [witness.job for witness in run.finding("P16").witnesses] == ["1"]
