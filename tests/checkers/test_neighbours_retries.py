"""Histories right beside a clause of P8, P9 and P10, as in `test_neighbours.py`."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run

HOUR_MS = 3_600_000


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def worker(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


# --- P8.


def test_each_replay_that_may_have_happened_gives_another_life_and_nothing_else_does(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a")
    producer.replays(job)
    producer.cancels(job, told=False)
    producer.invokes("replay", job=job)
    producer.hears("fail", job=job)
    job.forgiven, job.row = 0, {"attempts": None}
    for fence in range(7):
        worker.starts(job, fence=fence + 1)

    assert "was started 7 times (0 forgiven), and it may run 6 times" in run.story("P8")


def test_where_the_audit_tells_nothing_of_forgiven_starts_those_of_the_row_leave_attempts(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.releases(job)
    for _ in range(2):
        worker.claims(job)
        worker.nacks(job)
    for record in run.audit:
        del record["forgiven"]

    assert run.verdict("P8") == "unknown"


def test_a_start_that_is_forgiven_later_leaves_no_attempt_to_a_job_that_had_used_up_all(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    for _ in range(3):
        worker.claims(job)
        worker.nacks(job)
    worker.claims(job)
    worker.releases(job)

    assert "used up its 3 attempts and went back to retryable" in run.story("P8")


@pytest.mark.parametrize("line", [0, 1])
def test_a_change_that_tells_nothing_of_forgiven_starts_has_forgiven_none(
    run: "Run", producer: "Process", worker: "Process", line: int
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)
    del run.audit[line]["forgiven"]

    assert run.verdict("P8") == "pass"


def test_whose_claim_is_not_on_record_may_have_given_the_job_back(
    run: "Run", producer: "Process"
) -> None:
    job = producer.enqueues("a")
    job.fence = job.attempts = 1
    run.commits(job, "leased")
    job.forgiven = 1
    run.commits(job, "available")

    assert run.verdict("P8") == "unknown"


@pytest.mark.parametrize("f", ["extend", "release"])
def test_an_extension_or_a_refused_release_gives_nothing_back(
    run: "Run", producer: "Process", worker: "Process", f: str
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.settles(f, job, None, answer="ok" if f == "extend" else "fail")
    job.forgiven = 1
    run.commits(job, "available")

    assert "under token 1 was forgiven, and its worker had not given it back" in run.story("P8")


def test_a_job_that_is_older_than_the_audit_was_not_dead(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a", exists=False)
    job.state = "available"
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)

    assert run.verdict("P8") == "pass"


def test_an_enqueue_that_was_refused_gives_the_id_of_a_job_to_nobody(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.nacks(job, value={"permanent": True})
    producer.invokes("enqueue", value=job.asked)
    producer.hears("fail")
    worker.claims(job)

    assert "claimed job 1, which had failed for good under token 1" in run.story("P8")


def test_what_a_dead_job_started_again_is_shown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job, "raise")
    worker.nacks(job, "dead")
    worker.claims(job)
    worker.starts(job)
    lines = run.finding("P8").witnesses[0].lines

    assert lines == (("audit.jsonl", 3), ("audit.jsonl", 4), ("effects/101.jsonl", 3))


def test_where_no_handler_started_nothing_is_known_of_attempts(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a")

    assert run.finding("P8").reason == "no handler started"


def test_what_was_forgiven_once_and_is_not_at_the_end_counts(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    for number in range(4):
        worker.claims(job)
        worker.starts(job, fence=number + 1)
        job.forgiven = int(number < 3)
        run.commits(job, "available")

    assert "was started 4 times (0 forgiven), and it may run 3 times" in run.story("P8")


def test_a_start_that_somebody_asked_to_forgive_and_was_refused_counts(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    for _ in range(4):
        worker.claims(job)
        worker.starts(job)
        worker.settles("release", job, None, answer="fail")

    assert "was started 4 times (0 forgiven), and it may run 3 times" in run.story("P8")


# --- P9: which attempt a failure was, and how long it has to wait.


@pytest.mark.parametrize("lacking", ["audit", "attempts"])
def test_where_the_audit_counts_no_attempts_the_handlers_do(
    run: "Run", producer: "Process", worker: "Process", lacking: str
) -> None:
    run.parameters["retry"] = "doubling:0.05"
    job = producer.enqueues("a")
    for _ in range(2):
        worker.claims(job)
        worker.runs(job, "raise")
        worker.nacks(job)
        run.passes(60)
    worker.claims(job)
    run.audited = lacking != "audit"
    for record in run.audit:
        del record["attempts"]

    assert "and 100 ms were due" in run.story("P9")


@pytest.mark.parametrize("begun", ["never", "without a number"])
def test_a_failure_of_an_attempt_without_a_number_is_that_of_the_first(
    run: "Run", producer: "Process", worker: "Process", begun: str
) -> None:
    run.parameters["retry"] = "doubling:0.05"
    job = producer.enqueues("a")
    worker.claims(job)
    if begun != "never":
        worker.runs(job, "raise")
        for record in worker.effect_lines:
            record["attempt"] = None
    worker.nacks(job, token=False)
    run.passes(60)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_failure_that_another_tells_without_a_token_is_that_of_the_last_attempt(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["retry"] = "doubling:0.05"
    job = producer.enqueues("a")
    for fence in (1, 2, 3):
        worker.starts(job, fence=fence)
    run.process("w2").nacks(job, token=False)
    run.passes(120)
    worker.claims(job)

    assert "and 200 ms were due" in run.story("P9")


def test_where_no_handler_tells_its_attempt_the_audit_does(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["retry"] = "doubling:0.05"
    job = producer.enqueues("a")
    for _ in range(2):
        worker.claims(job)
        worker.nacks(job)
        run.passes(60)
    worker.claims(job)

    assert "and 100 ms were due" in run.story("P9")


def test_a_start_that_was_forgiven_makes_no_delay_longer(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["retry"] = "doubling:0.05"
    job = producer.enqueues("a")
    worker.claims(job)
    worker.releases(job)
    worker.claims(job)
    worker.nacks(job)
    run.passes(60)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_failure_under_a_token_that_nobody_else_tells_of_is_that_of_the_first_attempt(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["retry"] = "doubling:0.05"
    run.audited = False
    job = producer.enqueues("a")
    worker.claims(job)
    worker.nacks(job)
    run.passes(60)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_snooze_that_names_no_delay_is_held_to_none(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.settles("snooze", job, "available")
    run.passes(10)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_retry_within_the_rounding_of_its_delay_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.nacks(job)
    run.passes(47)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_clock_that_is_set_back_ends_no_delay(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.nacks(job)
    run.steps_clock(-HOUR_MS)
    worker.claims(job)

    assert "ms after its failure, and 50 ms were due" in run.story("P9")


@pytest.mark.parametrize(
    ("f", "answer", "verdict"),
    [
        ("nack", "ok", "unknown"),
        ("nack", None, "unknown"),
        ("nack", "fail", "violated"),
        ("extend", "ok", "violated"),
    ],
)
def test_an_outcome_without_a_token_that_was_under_way_may_have_ended_the_lease(
    run: "Run", producer: "Process", worker: "Process", f: str, answer: str | None, verdict: str
) -> None:
    """Then it was no crash, and no delay of a crash is due."""
    run.parameters["crash_first"] = "policy"
    job = producer.enqueues("a")
    worker.claims(job)
    worker.invokes(f, job=job, value={"delay_ms": 0} if f == "nack" else None)
    run.commits(job, "available")
    if answer is not None:
        worker.hears(answer, job=job)
    run.process("w2").claims(job)
    finding = run.finding("P9")

    assert (finding.verdict == "violated") == (verdict == "violated"), finding


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_outcome_without_a_token_at_another_time_did_not_end_the_lease(
    run: "Run", producer: "Process", worker: "Process", when: str
) -> None:
    run.parameters["crash_first"] = "policy"
    job = producer.enqueues("a")
    worker.claims(job)
    if when == "before":
        worker.settles("ack", job, None, token=False)
    run.passes(50)
    run.commits(job, "available")
    run.process("w2").claims(job)
    run.passes(50)
    if when == "after":
        worker.settles("ack", job, None, token=False, answer=None)

    assert "ms after crash 1 of its worker" in run.story("P9")


def test_where_nothing_ties_the_clocks_any_outcome_without_a_token_may_have_ended_the_lease(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["crash_first"] = "policy"
    job = producer.enqueues("a", answer="info")
    worker.settles("ack", job, None, token=False)
    run.passes(50)
    for new, fence in (("leased", 1), ("available", 1), ("leased", 2)):
        run.commits(job, new, fence=fence)

    assert run.verdict("P9") == "unknown"


def crashes(run: "Run", job: "Job", count: int = 2) -> None:
    """Let one worker after another die with the job."""
    for number in range(count):
        victim = run.process(f"{job.name}{number}")
        victim.claims(job)
        run.kills(victim)
        run.reaps(job)


def test_where_the_audit_tells_nothing_of_forgiven_starts_those_of_the_row_are_spared(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["retry"] = "doubling:0.05"
    job = producer.enqueues("a")
    crashes(run, job)
    run.passes(60)
    worker.claims(job)
    job.row["forgiven"] = 1
    for record in run.audit:
        del record["forgiven"]

    assert run.verdict("P9") == "pass"


def test_a_start_that_is_forgiven_later_makes_no_delay_of_a_crash_shorter(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["retry"] = "doubling:0.05"
    job = producer.enqueues("a")
    crashes(run, job)
    run.passes(60)
    worker.claims(job)
    worker.releases(job)

    assert "after crash 2 of its worker, and 100 ms were due" in run.story("P9")


def test_a_crash_of_an_attempt_without_a_number_is_that_of_the_first(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters |= {"retry": "doubling:0.05", "crash_first": "policy"}
    job = producer.enqueues("a")
    crashes(run, job, 1)
    run.passes(60)
    worker.claims(job)
    for record in run.audit:
        del record["attempts"]

    assert run.verdict("P9") == "pass"


def test_a_step_between_the_decision_to_reap_and_its_commit_accuses_nobody(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """The delay was counted from the old time, and the audit tells the new one."""
    run.steps_clock(-HOUR_MS)
    job = producer.enqueues("a")
    crashes(run, job, 1)
    victim = run.process("w2")
    victim.claims(job)
    run.kills(victim)
    job.due_ms = run.wall_ms + 50
    run.steps_clock(0)
    run.reaps(job, "retryable")
    worker.claims(job)

    assert run.verdict("P9") == "unknown"


def test_delays_after_failures_and_after_crashes_are_counted_together(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    failed, crashed = producer.enqueues("a"), producer.enqueues("b")
    worker.claims(failed)
    worker.nacks(failed)
    crashes(run, crashed)
    run.passes(60)
    worker.claims(failed)
    worker.claims(crashed)

    assert run.finding("P9").checked == 2


def test_a_crash_whose_delay_was_not_over_when_the_clock_was_set_back_is_early(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["retry"] = "fixed:0.2"
    job = producer.enqueues("a")
    crashes(run, job, 1)
    victim = run.process("w2")
    victim.claims(job)
    run.kills(victim)
    job.due_ms = run.wall_ms + 200
    run.reaps(job, "retryable")
    run.passes(100)
    run.steps_clock(-HOUR_MS)
    worker.claims(job)

    assert "was claimed 0 ms after crash 2 of its worker" in run.story("P9")


def test_a_crash_that_is_claimed_within_the_doubt_of_its_delay_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    crashes(run, job)
    run.passes(47)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


@pytest.mark.parametrize(("count", "verdict"), [(1, "pass"), (2, "unknown")])
def test_only_a_job_that_ran_again_needs_a_policy(
    run: "Run", producer: "Process", worker: "Process", count: int, verdict: str
) -> None:
    del run.parameters["retry"]
    judged, other = producer.enqueues("a", retry="fixed:0.05"), producer.enqueues("b")
    worker.claims(judged)
    worker.nacks(judged)
    run.passes(60)
    worker.claims(judged)
    for fence in range(count):
        worker.starts(other, fence=fence + 1)

    assert run.verdict("P9") == verdict


def test_a_snooze_that_ends_too_early_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.settles("snooze", job, "available", value={"delay_ms": 200})
    worker.claims(job)

    assert "and 200 ms were due" in run.story("P9")


@pytest.mark.parametrize(
    ("slow", "verdict"), [("claim", "pass"), ("reap", "pass"), ("enqueue", "violated")]
)
def test_who_reaps_may_have_read_the_clock_a_claim_or_a_reap_earlier(
    run: "Run", producer: "Process", worker: "Process", slow: str, verdict: str
) -> None:
    job = producer.enqueues("a")
    worker.invokes(slow, value={"id": "b"} if slow == "enqueue" else None)
    run.passes(20)
    worker.hears("ok")
    crashes(run, job)
    run.passes(35)
    other = run.process("w2")
    other.claims(job)
    other.invokes("claim")  # Without an answer: how long it took, nobody knows.
    run.kills(other)

    assert run.verdict("P9") == verdict


def test_where_nobody_ever_claimed_no_delay_is_known(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")

    assert run.finding("P9").reason == "no attempt failed and was tried again"


# --- P10.


def test_a_lease_that_is_taken_over_directly_waited_for_no_due_time(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """A queue may keep the end of a lease where it keeps the due time."""
    job = producer.enqueues("a")
    worker.claims(job)
    job.due_ms = run.wall_ms + 300
    run.commits(job, "leased")
    run.process("w2").claims(job)

    assert run.verdict("P10") == "unknown"


def test_an_hour_that_was_told_under_another_due_time_does_not_excuse_an_early_claim(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    run.passes(100)
    run.steps_clock(-HOUR_MS)
    run.passes(100)
    worker.invokes("snooze", job=job, fence=job.fence)
    job.due_ms = run.wall_ms + 300
    run.commits(job, "scheduled")
    worker.hears("ok")
    run.passes(100)
    run.commits(job, "leased", fence=2)

    assert "ms before it was due" in run.story("P10")


def test_a_claim_within_the_rounding_of_its_due_time_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a", delay_ms=100)
    run.passes(97)
    worker.claims(job)
    worker.runs(job)

    assert run.verdict("P10") == "pass"


def test_a_clock_that_is_set_back_makes_nothing_due(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a", delay_ms=500)
    run.steps_clock(-HOUR_MS)
    run.passes(100)
    worker.claims(job)

    assert "job 1 was to wait 500 ms and was claimed" in run.story("P10")


@pytest.mark.parametrize("what", ["claims", "starts"])
def test_a_job_that_is_early_twice_is_told_of_once(
    run: "Run", producer: "Process", worker: "Process", what: str
) -> None:
    run.audited = False
    job = producer.enqueues("a", delay_ms=500)
    for fence in (1, 2):
        if what == "claims":
            worker.claims(job, commits=False)
        else:
            worker.starts(job, fence=fence)

    assert run.finding("P10").violations == 1
