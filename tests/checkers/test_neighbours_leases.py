"""P4 and P5, right beside a clause: each history tells it from one that is nearly the same.

They were found by `make mutate-checkers`: without them the checkers could be changed, and nothing
here would have gone red.
"""

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


# --- P4: whose claims are on record.


def test_a_process_that_only_enqueues_is_not_asked_for_the_claim_of_what_it_runs(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job, other = producer.enqueues("a"), producer.enqueues("b")
    worker.claims(job)
    worker.acks(job)
    other.fence = 1
    producer.runs(other)

    assert run.verdict("P4") == "pass"


def test_a_run_without_a_token_hides_no_run_under_a_token_that_nobody_claimed(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.runs(job)
    for record in worker.effect_lines:
        record["fence"] = None
    worker.claims(job)
    worker.acks(job)
    worker.starts(job, fence=7)

    assert run.verdict("P4") == "unknown"


# --- P4: how long a lease was live.


def test_a_refused_extension_hides_no_accepted_one(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.extends(job, answer="fail")
    run.passes(400)
    worker.extends(job)
    run.passes(200)
    run.process("w2").claims(job)

    assert "while w1 held it" in run.story("P4")


@pytest.mark.parametrize(
    ("when", "answer", "verdict"),
    [
        ("after", "ok", "pass"),
        ("after", "info", "pass"),
        ("after", "fail", "violated"),
        ("before", "ok", "violated"),
    ],
)
def test_a_cancel_ends_a_lease_only_if_it_came_later_and_was_not_refused(
    run: "Run", producer: "Process", worker: "Process", when: str, answer: str, verdict: str
) -> None:
    job = producer.enqueues("a")
    if when == "after":
        worker.claims(job)
    producer.invokes("cancel", job=job)
    producer.hears(answer)
    if when == "before":
        worker.claims(job)
    run.process("w2").claims(job)
    run.audited = False

    assert run.verdict("P4") == verdict


# --- P5.


def test_an_ack_that_changed_nothing_is_shown_with_the_last_commit_of_its_job(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.acks(job, commits=False)
    run.reaps(job)
    run.commits(job, "cancelled")

    lines = run.finding("P5").witnesses[0].lines

    assert ("audit.jsonl", len(run.audit)) in lines


def test_each_stale_outcome_that_is_told_ok_is_seen_also_after_a_refused_one(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    stale = worker.claims(job)
    run.passes(600)
    run.reaps(job)
    run.process("w2").claims(job)
    worker.acks(job, fence=stale, answer="fail")
    for _ in range(2):
        worker.acks(job, fence=stale, commits=False)

    assert run.finding("P5").violations == 2


def test_an_outcome_before_any_claim_was_told_is_not_stale(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a")
    worker.claims(job)
    worker.lines[-1]["type"] = "info"
    worker.nacks(job)
    run.process("w2").claims(job)

    assert run.verdict("P5") == "pass"


def test_an_outcome_while_the_next_claim_is_under_way_is_not_stale(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a")
    worker.claims(job)
    other = run.process("w2")
    other.invokes("claim")
    worker.nacks(job)
    other.hears("ok", job=job, fence=job.fence + 1)

    assert run.verdict("P5") == "pass"


def test_a_claim_of_unknown_outcome_makes_no_outcome_stale(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a")
    worker.claims(job)
    other = run.process("w2")
    other.invokes("claim")
    other.hears("info", job=job, fence=job.fence + 1)
    worker.acks(job)

    assert run.verdict("P5") == "pass"


def test_a_stale_outcome_is_shown_with_the_first_claim_of_the_later_token(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a")
    stale = worker.claims(job)
    for name in ("w2", "w3"):
        other = run.process(name)
        other.invokes("claim")
        other.hears("ok", job=job, fence=stale + 1)
    worker.acks(job)

    assert "after w2 had claimed it with token 2" in run.story("P5")
