"""Histories right beside a clause of P11 and P12, as in `test_neighbours.py`."""

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


# --- P11.


def test_ids_that_are_no_numbers_give_no_order(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    for name in ("a", "b"):
        run.job(name).id = f"id-{name}"  # type: ignore[assignment]
    for job in run.jobs:
        producer.invokes("enqueue", value=job.asked)
        job.due_ms = 5
        run.commits(job, "available")
        producer.hears("ok", job=job)
    run.passes(20)
    worker.claims(run.jobs[1])

    assert run.verdict("P11") == "pass"


def test_the_job_that_was_due_first_goes_before_one_with_a_smaller_id(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    first, second = producer.enqueues("a"), producer.enqueues("b")
    for record, due_ms in zip(run.audit, (10, 5), strict=True):
        record["due_ms"] = due_ms
    first.due_ms, second.due_ms = 10, 5
    run.passes(20)
    worker.claims(first)

    assert "claimed job 1 (priority 5, due 10) while job 2 (priority 5, due 5)" in run.story("P11")


@pytest.mark.parametrize(("again", "verdict"), [(False, "pass"), (True, "violated")])
def test_a_job_that_was_due_for_a_quick_claim_may_be_passed_over_by_a_slow_one_and_stays_in_line(
    run: "Run", producer: "Process", worker: "Process", again: bool, verdict: str
) -> None:
    lax, lax_too = producer.enqueues("a", priority=7), producer.enqueues("b", priority=7)
    producer.enqueues("c", priority=2)
    urgent = producer.enqueues("d", priority=1)
    run.passes(20)
    worker.claims(urgent)
    worker.invokes("claim")
    lax.fence = lax.attempts = 1
    run.commits(lax, "leased")
    run.passes(60)
    worker.hears("ok", job=lax, fence=1)
    if again:
        worker.claims(lax_too)

    finding = run.finding("P11")

    assert finding.verdict == verdict, finding
    assert all("while job 3 (priority 2" in witness.story for witness in finding.witnesses)


def test_a_step_inside_of_a_claim_leaves_its_order_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax, _ = producer.enqueues("a", priority=7), producer.enqueues("b", priority=2)
    run.passes(20)
    worker.invokes("claim")
    run.steps_clock(3_600_000)
    lax.fence = lax.attempts = 1
    run.commits(lax, "leased")
    worker.hears("ok", job=lax, fence=1)

    assert run.verdict("P11") == "unknown"


@pytest.mark.parametrize(
    ("edges", "verdict"),
    [
        ({"held": ("leased",)}, "pass"),
        ({"retryable": ("leased",), "available": ("leased",)}, "violated"),
        ({}, "pass"),
    ],
)
def test_which_states_are_in_line_says_the_contract(
    run: "Run",
    producer: "Process",
    worker: "Process",
    edges: dict[str, tuple[str, ...]],
    verdict: str,
) -> None:
    run.edges = edges
    lax, urgent = producer.enqueues("a", priority=7), producer.enqueues("b", priority=2)
    run.commits(urgent, "retryable")
    run.passes(20)
    worker.claims(lax)

    assert (run.finding("P11").verdict == "violated") == (verdict == "violated")


def test_where_the_contract_names_no_state_that_may_be_claimed_it_is_the_available_ones(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.edges = {}
    lax, _ = producer.enqueues("a", priority=7), producer.enqueues("b", priority=2)
    run.passes(20)
    worker.claims(lax)

    assert "while job 2 (priority 2" in run.story("P11")


def test_a_leased_job_is_not_in_line_where_a_lease_may_be_taken_over(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.edges["leased"] = ("leased", "succeeded")
    lax, urgent = producer.enqueues("a", priority=7), producer.enqueues("b", priority=2)
    run.passes(20)
    worker.claims(urgent)
    run.passes(20)
    run.process("w2").claims(lax)

    assert run.verdict("P11") == "pass"


def test_who_asks_for_a_kind_may_not_pass_over_it_whatever_else_he_asks_for(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax, _ = producer.enqueues("a", priority=7), producer.enqueues("b", priority=2)
    run.passes(20)
    worker.claims(lax, kinds=["nobody's", "k"])

    assert "while job 2 (priority 2" in run.story("P11")


def test_a_job_whose_rate_may_keep_it_back_is_not_passed_over(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["limits"] = {"api": {"kinds": ["scrape"], "rate": 10.0}}
    producer.enqueues("a", priority=2, kind="scrape")
    lax = producer.enqueues("b", priority=7)
    run.passes(20)
    worker.claims(lax)

    assert run.verdict("P11") == "pass"


# --- P12.


def test_an_enqueue_that_asks_for_nothing_has_no_key(run: "Run", producer: "Process") -> None:
    producer.enqueues("a", key="invoice")
    job = run.job("b")
    producer.invokes("enqueue")
    run.commits(job, "available")
    producer.hears("ok", job=job)

    finding = run.finding("P12")

    assert (finding.verdict, finding.checked) == ("pass", 1)


def test_a_key_is_followed_past_jobs_without_one_and_jobs_that_ended(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a")
    ended = producer.enqueues("b", key="order")
    producer.cancels(ended)
    run.commits(ended, "cancelled", priority=1)
    producer.enqueues("c", key="invoice")
    producer.enqueues("d", key="invoice")

    assert "jobs 3 and 4 lived at once under key 'invoice'" in run.story("P12")


def test_who_ends_leaves_the_key_to_him_who_holds_it(run: "Run", producer: "Process") -> None:
    first = producer.enqueues("a", key="invoice")
    second = producer.enqueues("b", key="invoice")
    producer.cancels(first)
    producer.cancels(producer.enqueues("c", key="invoice"))
    producer.cancels(second)

    assert run.finding("P12").violations == 2
