"""Histories right beside a clause: each tells the clause from one that is nearly the same.

They were found by `make mutate-checkers`: without them a checker could be changed, and nothing here
would have gone red.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def first(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


@pytest.fixture
def second(run: "Run", first: "Process") -> "Process":
    return run.process("w2")


def ran(producer: "Process", worker: "Process", outcome: str = "ok") -> "Job":
    """A job that a worker has run to its end, and has said nothing of."""
    job = producer.enqueues("a")
    worker.claims(job)
    worker.starts(job)
    worker.makes_effect(job)
    worker.ends(job, outcome)
    return job


def again(worker: "Process", job: "Job") -> None:
    worker.claims(job)
    worker.runs(job)


# --- P6: what excuses one more run.


def test_a_key_is_promised_to_be_applied_once_also_where_transactions_are_not(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    run.promises["P6"] = "key"
    job = producer.enqueues("a", sink="http")
    first.claims(job)
    first.runs(job)
    first.acks(job)
    run.posts += [{"job": "a"}, {"job": "a"}]

    finding = run.finding("P6")

    assert (finding.verdict, finding.level) == ("violated", "key")


def test_a_bare_promise_has_no_level(run: "Run", producer: "Process", first: "Process") -> None:
    run.promises["P6"] = True
    ran(producer, first)

    assert run.finding("P6").level is None


def test_the_repeated_effects_of_all_jobs_are_counted(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    for name in ("a", "b"):
        job = producer.enqueues(name)
        for _ in range(2):
            again(first, job)
            first.nacks(job)
            run.passes(60)

    finding = run.finding("P6")

    assert (finding.verdict, finding.figures["repeated_effects"]) == ("pass", 2)


@pytest.mark.parametrize("outcome", ["ok", "sleep"])
def test_a_job_that_was_acked_and_runs_again_is_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process", outcome: str
) -> None:
    job = ran(producer, first, outcome)
    first.acks(job)
    again(second, job)

    assert run.verdict("P6") == "violated"


def test_a_job_that_was_acked_and_replayed_may_run_again(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = ran(producer, first)
    first.acks(job)
    producer.replays(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


def test_a_replay_that_was_refused_excuses_nothing(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = ran(producer, first)
    first.acks(job)
    producer.replays(job, commits=0)
    producer.lines[-1] |= {"type": "fail", "value": None}
    again(second, job)

    assert run.verdict("P6") == "violated"


def test_an_extension_is_no_reason_to_run_a_job_again(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = ran(producer, first)
    first.extends(job)
    again(second, job)

    assert run.verdict("P6") == "violated"


@pytest.mark.parametrize("f", ["ack", "nack", "release"])
def test_an_outcome_that_nobody_was_told_of_excuses_one_more_run(
    run: "Run", producer: "Process", first: "Process", second: "Process", f: str
) -> None:
    job = ran(producer, first)
    first.settles(f, job, None, answer="info")
    again(second, job)

    assert run.verdict("P6") == "pass"


@pytest.mark.parametrize(("f", "to"), [("nack", "retryable"), ("release", "available")])
@pytest.mark.parametrize(("answer", "verdict"), [("ok", "pass"), ("fail", "violated")])
def test_a_job_that_was_given_back_may_run_again_unless_that_was_refused(
    run: "Run",
    producer: "Process",
    first: "Process",
    second: "Process",
    f: str,
    to: str,
    answer: str,
    verdict: str,
) -> None:
    job = ran(producer, first)
    first.settles(f, job, to, answer=answer)
    again(second, job)

    assert run.verdict("P6") == verdict


@pytest.mark.parametrize(("dies", "verdict"), [(True, "pass"), (False, "violated")])
def test_where_no_length_of_a_lease_is_declared_a_death_excuses_one_more_run(
    run: "Run", producer: "Process", first: "Process", second: "Process", dies: bool, verdict: str
) -> None:
    del run.parameters["lease_ms"]
    job = ran(producer, first)
    if dies:
        run.kills(first)
    again(second, job)

    assert run.verdict("P6") == verdict


def test_without_tokens_what_was_said_of_another_attempt_excuses_nothing(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = ran(producer, first)
    again(second, job)
    second.nacks(job)
    for process in (first, second):
        for record in process.effect_lines:
            record["fence"] = None

    assert run.verdict("P6") == "violated"


def test_an_extension_counts_for_the_lease_that_a_second_run_is_held_against(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    first.claims(job)
    run.passes(400)
    first.extends(job)
    first.runs(job)
    run.passes(200)
    again(second, job)

    assert run.verdict("P6") == "violated"


# --- P4.


def test_claims_after_one_of_unknown_outcome_are_held_against_each_other_too(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    other = run.process("w3")
    other.invokes("claim")
    other.hears("info", job=job)
    first.claims(job)
    second.claims(job)

    assert run.verdict("P4") == "violated"


def test_all_overlaps_of_a_job_are_added_up(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    workers = (first, second, run.process("w3"))
    for fence, worker in enumerate(workers, 1):
        worker.starts(job, fence=fence)
    run.passes(9.4)
    for fence, worker in enumerate(workers, 1):
        worker.ends(job, fence=fence)

    figures = run.finding("P4").figures

    assert (figures["overlapping_executions"], figures["overlapping_ms"]) == (2, 22)


def test_an_extension_of_the_second_claim_counts_too(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    first.claims(job)
    second.claims(job)
    second.extends(job)

    assert run.verdict("P4") == "violated"


def test_an_outcome_that_was_refused_ends_no_lease(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    first.claims(job)
    first.acks(job, answer="fail")
    second.claims(job)

    assert run.verdict("P4") == "violated"


def test_a_worker_that_only_ever_claimed_is_asked_for_its_claims_too(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    first.claims(job)
    first.runs(job)
    first.acks(job)
    second.polls()
    other = producer.enqueues("b")
    other.fence = 1
    second.runs(other)

    assert run.verdict("P4") == "unknown"


# --- P7, P13, P15.


def test_all_letters_and_replays_are_counted(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    for name in ("a", "b"):
        job = producer.enqueues(name, max_attempts=1)
        first.claims(job)
        first.runs(job, "raise")
        first.nacks(job, "dead")
        producer.replays(job)

    assert run.finding("P13").checked == 2


def test_attempts_that_were_forgiven_do_not_make_a_death_due(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = producer.enqueues("a")
    for _ in range(2):
        first.claims(job)
        first.releases(job)
    first.claims(job)
    first.runs(job, "raise")
    first.nacks(job, "dead")

    assert "is dead after 1 of 3 attempts" in run.story("P13")


def test_a_replay_that_was_refused_moves_nothing(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = producer.enqueues("a", max_attempts=1)
    first.claims(job)
    first.runs(job, "raise")
    first.nacks(job, "dead")
    producer.replays(job, commits=1)
    producer.lines[-1] |= {"type": "fail", "value": None}

    assert run.verdict("P13") == "violated"


def test_a_cancel_may_have_been_told_of_and_is_no_replay(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = producer.enqueues("a", max_attempts=1)
    first.claims(job)
    first.runs(job, "raise")
    first.nacks(job, "dead")
    producer.cancels(job, told=False)
    producer.replays(job, commits=2)

    assert run.verdict("P13") == "violated"


def test_each_cancelled_job_is_looked_at(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    """Also those after one that was not cancelled, and after one that was replayed."""
    producer.enqueues("x")
    for name in ("a", "b"):
        job = producer.enqueues(name)
        producer.cancels(job)
        producer.replays(job)
    last = producer.enqueues("c")
    producer.cancels(last)
    first.claims(last)

    finding = run.finding("P15")

    assert (finding.verdict, finding.checked) == ("violated", 3)
