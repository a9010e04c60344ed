"""P4, P5, P6: leases, stale outcomes and effects, each clause with its neighbour."""

from typing import TYPE_CHECKING, Any

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


def claimed(producer: "Process", worker: "Process", **asked: Any) -> "Job":
    job = producer.enqueues("a", **asked)
    worker.claims(job)
    return job


# --- P4.


def test_a_job_that_ran_under_a_token_that_nobody_claimed_leaves_it_unknown(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    first.acks(job)
    other = producer.enqueues("b")
    other.fence = 1
    first.runs(other)

    finding = run.finding("P4")

    assert finding.verdict == "unknown"
    assert "ran job 2 under token 1, and no claim of that is on record" in str(finding.reason)


def test_a_claim_that_was_refused_is_no_lease_to_run_a_job_under(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    first.acks(job)
    other = producer.enqueues("b")
    first.claims(other)
    first.lines[-1]["type"] = "fail"
    first.runs(other)

    assert run.verdict("P4") == "unknown"


@pytest.mark.parametrize(
    "untold", ["token of the run", "tokens of claims", "claims of the process"]
)
def test_whoever_does_not_tell_tokens_is_not_asked_for_the_claim(
    run: "Run", producer: "Process", first: "Process", untold: str
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    first.acks(job)
    other = producer.enqueues("b")
    runner = run.process("h1") if untold == "claims of the process" else first
    runner.runs(other)
    for record in runner.effect_lines if untold == "token of the run" else ():
        record["fence"] = None
    for record in first.lines if untold == "tokens of claims" else ():
        record.pop("fence", None)

    assert run.verdict("P4") == "pass"


def test_a_claim_inside_another_lease_is_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    run.audited = False
    job = claimed(producer, first)
    run.passes(100)
    job.state = "available"
    second.claims(job)

    assert "w2 claimed job 1 while w1 held it" in run.story("P4")


def test_a_claim_after_the_lease_has_run_out_is_allowed(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    run.passes(520)
    run.reaps(job)
    second.claims(job)

    assert run.verdict("P4") == "pass"


def test_a_claim_after_the_holder_s_death_is_allowed(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    run.kills(first)
    run.reaps(job)
    second.claims(job)

    assert run.verdict("P4") == "pass"


def test_a_claim_after_the_holder_ended_by_itself_is_allowed(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job, "exit")
    first.alive = False
    run.reaps(job)
    second.claims(job)

    assert run.verdict("P4") == "pass"


def test_a_claim_after_the_first_gave_the_job_back_is_allowed(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.releases(job)
    second.claims(job)

    assert run.verdict("P4") == "pass"


def test_an_extended_lease_still_excludes_others(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    run.audited = False
    job = claimed(producer, first)
    run.passes(400)
    first.extends(job)
    run.passes(300)
    job.state = "available"
    second.claims(job)

    assert "while w1 held it" in run.story("P4")


def test_two_claims_with_one_token_are_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    second.claims(job, commits=False)

    assert "both claimed job 1 with token 1" in run.story("P4")


def test_claims_without_tokens_are_told_apart_by_time(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    for worker in (first, second):
        worker.invokes("claim")
        worker.hears("ok", job=job)
        worker.settles("release", job, None, token=False)

    assert run.verdict("P4") == "pass"


def test_two_claims_at_the_same_time_that_both_hold_are_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a")
    first.invokes("claim")
    second.invokes("claim")
    first.hears("ok", job=job, fence=1)
    second.hears("ok", job=job, fence=2)

    assert "while w1 held it" in run.story("P4")


def test_two_claims_at_the_same_time_may_follow_each_other(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a")
    first.invokes("claim")
    second.invokes("claim")
    first.hears("ok", job=job, fence=1)
    first.settles("release", job, None, fence=1)
    second.hears("ok", job=job, fence=2)

    assert run.verdict("P4") == "pass"


def test_without_a_declared_lease_no_overlap_is_certain(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    del run.parameters["lease_ms"]
    job = claimed(producer, first)
    run.reaps(job)
    second.claims(job)

    assert run.verdict("P4") == "pass"


def test_an_extension_that_began_after_the_next_claim_prolongs_nothing(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    run.passes(520)
    run.reaps(job)
    second.claims(job)
    first.extends(job, fence=1)

    assert run.verdict("P4") == "pass"


def test_an_extension_of_unknown_outcome_prolongs_nothing(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    run.passes(400)
    first.extends(job, answer="info")
    run.passes(200)
    run.reaps(job)
    second.claims(job)

    assert run.verdict("P4") == "pass"


def test_a_leased_job_that_gets_another_priority_is_not_taken(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first)
    run.commits(job, "leased", priority=1)

    assert run.verdict("P4") == "pass"


def test_a_lease_taken_straight_from_a_living_holder_is_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    job.fence = job.attempts = 2
    run.commits(job, "leased")

    assert "was leased again (token 2) straight from w1" in run.story("P4")


def test_a_lease_taken_straight_from_a_dead_holder_is_allowed(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    run.kills(first)
    second.claims(job)

    assert run.verdict("P4") == "pass"


def test_handlers_that_overlap_are_counted_and_not_accused(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.starts(job)
    run.pauses(first, 520)
    run.reaps(job)
    second.claims(job)
    second.runs(job)
    first.ends(job, fence=1)

    finding = run.finding("P4")

    assert finding.verdict == "pass"
    assert finding.figures["overlapping_executions"] == 1


def test_without_claims_exclusion_is_unknown(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")

    assert run.verdict("P4") == "unknown"


@pytest.mark.parametrize(
    ("lease_ms", "between", "verdict"),
    [
        (5_000, "nothing", "violated"),
        (5_000, "its end", "pass"),
        (5_000, "a pause", "pass"),
        (5_000, "a stall", "pass"),
        (5_000, "4.1 s", "pass"),  # The claim may have been a while before the start.
        (900, "nothing", "pass"),
        (None, "a pause", "violated"),  # A lease of no length has no end.
    ],
)
def test_where_no_claims_are_kept_a_second_start_during_a_handler_is_a_second_lease(
    run: "Run", producer: "Process", lease_ms: int | None, between: str, verdict: str
) -> None:
    run.parameters["lease_ms"] = lease_ms
    if lease_ms is None:
        del run.parameters["lease_ms"]
    first, second = run.process("w1"), run.process("w2")
    first.alive = second.alive = False  # They write no history, not even of their end.
    job = producer.enqueues("a")
    first.starts(job, fence=1)
    if between == "its end":
        first.ends(job, fence=1)
    elif between == "a pause":
        run.pauses(first, 100)
    elif between == "a stall":
        run.stalls(100)
    elif between == "4.1 s":
        run.passes(4_100)
    second.starts(job, fence=2)
    if between != "its end":
        first.ends(job, fence=1)
    second.ends(job, fence=2)

    assert run.verdict("P4") == verdict


def test_a_worker_that_keeps_a_history_without_claims_is_not_judged_by_its_handlers(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    run.parameters["lease_ms"] = 60_000
    job = producer.enqueues("a")
    first.starts(job, fence=1)
    second.starts(job, fence=2)
    first.ends(job, fence=1)

    assert run.verdict("P4") == "unknown"


# --- P5.


def test_a_token_that_does_not_rise_is_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.nacks(job)
    job.fence = 0
    second.claims(job)

    assert "claimed with token 1 after token 1: it must rise" in run.story("P5")


def zombie(run: "Run", producer: "Process", first: "Process", second: "Process") -> "Job":
    """A paused worker whose job has gone to another one."""
    job = claimed(producer, first)
    run.pauses(first, 520)
    run.reaps(job)
    second.claims(job)
    return job


@pytest.mark.parametrize("f", ["ack", "nack", "release", "snooze", "extend"])
def test_a_stale_outcome_that_is_told_ok_is_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process", f: str
) -> None:
    job = zombie(run, producer, first, second)
    first.settles(f, job, None, fence=1)

    assert (
        f"w1 was told ok for the {f} of job 1 under token 1, after w2 had claimed it with token 2"
        in run.story("P5")
    )


@pytest.mark.parametrize("f", ["ack", "nack", "release", "extend"])
def test_a_stale_outcome_that_is_refused_is_right_and_counted(
    run: "Run", producer: "Process", first: "Process", second: "Process", f: str
) -> None:
    job = zombie(run, producer, first, second)
    first.settles(f, job, "succeeded", fence=1, answer="fail")
    second.acks(job)

    finding = run.finding("P5")

    assert finding.verdict == "pass"
    assert finding.figures["refused"] == 1


def test_a_stale_ack_before_anybody_else_claimed_is_seen(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first)
    run.pauses(first, 520)
    run.reaps(job)
    first.acks(job, commits=False)

    assert "but that lease ended as available" in run.story("P5")


def test_an_ack_that_is_told_ok_and_changes_nothing_is_seen(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first)
    first.acks(job, commits=False)

    assert "but no commit ended that lease" in run.story("P5")


def test_a_second_outcome_of_one_lease_is_seen(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first)
    first.acks(job)
    first.nacks(job, commits=False)

    assert "whose lease a ack had already ended" in run.story("P5")


def test_an_extension_after_the_outcome_is_seen(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first)
    first.acks(job)
    first.extends(job)

    assert "told ok for the extend" in run.story("P5")


def test_an_extension_under_a_live_lease_is_right(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first)
    first.extends(job)
    first.acks(job)

    assert run.verdict("P5") == "pass"


def test_an_extension_while_the_ack_is_under_way_may_be_accepted(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    second.invokes("extend", job=job, fence=1)
    first.acks(job)
    second.hears("ok", job=job)

    assert run.verdict("P5") == "pass"


def test_without_an_audit_an_ack_of_the_only_claim_is_right(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    run.audited = False
    job = claimed(producer, first)
    first.acks(job)

    assert run.verdict("P5") == "pass"


def test_a_claim_that_is_told_late_does_not_hide_a_newer_one(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    first.invokes("claim")
    job.fence = job.attempts = 1
    run.commits(job, "leased")
    run.passes(520)
    run.reaps(job)
    second.claims(job)
    first.hears("ok", job=job, fence=1)
    first.settles("ack", job, None, fence=1)

    finding = run.finding("P5")

    assert finding.violations == 1
    assert "after w2 had claimed it with token 2" in finding.witnesses[0].story


def test_rising_tokens_alone_leave_fencing_unknown(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    claimed(producer, first)

    finding = run.finding("P5")

    assert finding.verdict == "unknown"
    assert finding.reason == "no outcome was accepted"


def test_an_outcome_without_a_token_leaves_fencing_unknown(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first)
    first.acks(job, token=False)

    assert run.verdict("P5") == "unknown"


# --- P6.


def table_job(producer: "Process", worker: "Process") -> "Job":
    job = claimed(producer, worker, sink="table")
    worker.starts(job)
    worker.ends(job)
    return job


def test_one_row_for_a_succeeded_job_is_exactly_once(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = table_job(producer, first)
    first.acks(job)
    run.tables.append({"job": "a"})

    assert run.verdict("P6") == "pass"


@pytest.mark.parametrize("rows", [0, 2])
def test_another_number_of_rows_is_seen(
    run: "Run", producer: "Process", first: "Process", rows: int
) -> None:
    job = table_job(producer, first)
    first.acks(job)
    run.tables += [{"job": "a"}] * rows

    assert f"its transaction left {rows} rows where 1 was due" in run.story("P6")


def test_a_row_of_a_job_that_did_not_succeed_is_seen(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = table_job(producer, first)
    first.nacks(job, "dead")
    run.tables.append({"job": "a"})

    assert "left 1 rows where 0 was due" in run.story("P6")


def test_rows_are_counted_only_where_the_transaction_is_promised(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    run.promises["P6"] = "key"
    job = table_job(producer, first)
    first.acks(job)

    assert run.verdict("P6") == "pass"


def test_where_only_effects_bounded_by_faults_are_promised_no_sink_is_counted(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    run.promises["P6"] = True
    job = claimed(producer, first, sink="http")
    first.runs(job)
    first.acks(job)

    assert run.verdict("P6") == "pass"


def test_rows_of_a_job_of_unknown_end_are_not_judged(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    run.audited = False
    table_job(producer, first).rows = 0
    run.tables.append({"job": "a"})

    assert run.verdict("P6") == "pass"


def test_a_key_that_the_sink_applied_twice_is_seen(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    """Rule C9a."""
    job = claimed(producer, first, sink="http")
    first.runs(job)
    first.acks(job)
    run.posts += [{"job": "a"}] * 2

    assert "the sink applied the key of job 1 2 times" in run.story("P6")


def test_a_success_whose_key_the_sink_never_saw_is_seen(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = claimed(producer, first, sink="http")
    first.runs(job)
    first.acks(job)

    assert "applied the key of job 1 0 times" in run.story("P6")


def test_a_key_applied_once_over_two_attempts_is_exactly_once(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    run.promises["P6"] = "key"
    job = claimed(producer, first, sink="http")
    first.runs(job, "raise")
    first.nacks(job)
    run.passes(60)
    first.claims(job)
    first.runs(job)
    first.acks(job)
    run.posts.append({"job": "a"})

    finding = run.finding("P6")

    assert finding.verdict == "pass"
    assert finding.level == "key"


def test_two_effects_of_one_execution_are_seen(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    """Rule C9a."""
    job = claimed(producer, first)
    first.starts(job)
    first.makes_effect(job)
    first.makes_effect(job)
    first.ends(job)
    first.acks(job)

    assert "one execution of job 1 made its effect 2 times" in run.story("P6")


def again(worker: "Process", job: "Job") -> None:
    """Let the job run once more."""
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)


def test_a_second_run_that_no_fault_explains_is_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    """Rule C9a."""
    job = claimed(producer, first)
    first.runs(job)
    run.reaps(job)
    again(second, job)

    assert "ran to its end and ran once more, and no fault explains it" in run.story("P6")


def test_a_second_run_beside_one_that_has_not_ended_is_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    """Rule C13."""
    job = claimed(producer, first)
    first.starts(job)
    first.makes_effect(job)
    run.reaps(job)
    again(second, job)

    assert "no fault explains it" in run.story("P6")


@pytest.mark.parametrize(("ms", "verdict"), [(10, "violated"), (520, "pass")])
def test_where_a_claim_was_never_told_the_lease_counts_from_the_start(
    run: "Run", producer: "Process", first: "Process", second: "Process", ms: int, verdict: str
) -> None:
    job = producer.enqueues("a")
    job.fence = job.attempts = 1
    run.commits(job, "leased")
    first.runs(job)
    run.passes(ms)
    run.reaps(job)
    again(second, job)

    assert run.verdict("P6") == verdict


def test_where_no_claims_are_recorded_an_unfinished_run_explains_the_next(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    first.starts(job, attempt=1)
    second.starts(job, attempt=2)

    assert run.verdict("P6") == "pass"


def test_a_second_run_after_an_acknowledged_ack_is_seen(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    first.acks(job)
    run.passes(600)
    again(second, job)

    assert "no fault explains it" in run.story("P6")


def test_a_second_run_after_a_replay_was_asked_for(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    first.acks(job)
    producer.replays(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


@pytest.mark.parametrize("word", ["raise", "exit", "abort", "unjsonable", "hang", "permanent"])
def test_a_scripted_failure_explains_a_second_run(
    run: "Run", producer: "Process", first: "Process", second: "Process", word: str
) -> None:
    job = claimed(producer, first)
    first.runs(job, word)
    run.reaps(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


def test_a_kill_explains_a_second_run(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    run.kills(first)
    run.reaps(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


def test_a_kill_after_the_second_run_explains_nothing(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    run.reaps(job)
    again(second, job)
    run.kills(first)

    assert "no fault explains it" in run.story("P6")


def test_a_pause_past_the_lease_explains_a_second_run(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    run.pauses(first, 520)
    run.reaps(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


def test_a_pause_within_the_lease_explains_nothing(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    run.pauses(first, 100)
    run.reaps(job)
    again(second, job)

    assert "no fault explains it" in run.story("P6")


def test_without_a_declared_lease_any_pause_of_the_worker_explains_a_second_run(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    del run.parameters["lease_ms"]
    job = claimed(producer, first)
    first.runs(job)
    run.pauses(first, 100)
    run.reaps(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


def test_a_worker_stopped_before_its_handler_may_start_last(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    run.pauses(first, 520)
    run.reaps(job)
    again(second, job)
    first.starts(job, fence=1, attempt=1)
    first.makes_effect(job, fence=1)
    first.ends(job, fence=1)
    first.acks(job, fence=1, answer="fail")

    assert run.verdict("P6") == "pass"


def test_a_pause_of_somebody_else_explains_nothing(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    del run.parameters["lease_ms"]
    job = claimed(producer, first)
    first.runs(job)
    run.pauses(second, 100)
    run.reaps(job)
    again(second, job)

    assert "no fault explains it" in run.story("P6")


def test_a_pause_may_be_ended_by_a_line_of_its_own(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    del run.parameters["lease_ms"]
    run.strikes("pause", first)
    run.strikes("cont", first)
    job = claimed(producer, first)
    first.runs(job)
    run.reaps(job)
    again(second, job)

    assert "no fault explains it" in run.story("P6")


def test_without_a_declared_lease_a_stall_explains_a_second_run(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    del run.parameters["lease_ms"]
    job = claimed(producer, first)
    first.runs(job)
    run.stalls(100)
    run.reaps(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


def test_an_ack_of_unknown_outcome_explains_a_second_run(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    first.acks(job, answer="info", commits=False)
    run.reaps(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


def test_a_release_explains_a_second_run(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = claimed(producer, first)
    first.runs(job)
    first.releases(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


def test_a_lease_that_ran_out_explains_a_second_run(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    """Rule C13."""
    job = claimed(producer, first)
    first.runs(job)
    run.passes(520)
    run.reaps(job)
    again(second, job)

    assert run.verdict("P6") == "pass"


def test_without_a_start_no_effect_is_judged(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")

    assert run.verdict("P6") == "unknown"


def handled(process: "Process", job: "Job", worker: "Process") -> None:
    """Begin a handler in a program of its own, for a worker that keeps no history."""
    process.alive = False  # It ends by itself, and says nothing of that.
    process.starts(job, attempt=1, fence=0)
    process.effect_lines[-1] |= {"worker": worker.pid, "fence": None}


def over(process: "Process", job: "Job") -> None:
    process.ends(job, fence=0)
    process.effect_lines[-1]["fence"] = None


@pytest.mark.parametrize("promise", ["P4", "P6"])
@pytest.mark.parametrize(
    ("fault", "verdict"), [(None, "violated"), ("first", "pass"), ("second", "pass")]
)
def test_a_program_that_handles_is_excused_by_the_pause_of_its_worker_alone(
    run: "Run", producer: "Process", promise: str, fault: str | None, verdict: str
) -> None:
    """Who was stopped past its lease between claim and handler begins after its successor."""
    run.promises["P6"], run.parameters["lease_ms"] = True, 3_000
    workers = {"first": run.process("w1"), "second": run.process("w2")}
    programs = [run.process("h1"), run.process("h2")]
    job = producer.enqueues("a")
    if fault is not None:
        run.pauses(workers[fault], 3_100)
    handled(programs[0], job, workers["first"])
    run.passes(100)
    if promise == "P4":
        handled(programs[1], job, workers["second"])
        over(programs[0], job)
    else:
        over(programs[0], job)
        handled(programs[1], job, workers["second"])
    run.passes(50)
    other = producer.enqueues("b")
    handled(programs[0], other, workers["first"])  # It lives on, so its death explains nothing.
    over(programs[0], other)
    over(programs[1], job)

    assert run.verdict(promise) == verdict


@pytest.mark.parametrize("promise", ["P4", "P6"])
def test_a_program_that_handles_may_need_two_seconds_to_begin(
    run: "Run", producer: "Process", promise: str
) -> None:
    run.promises["P6"], run.parameters["lease_ms"] = True, 3_000
    workers, programs = [run.process("w1"), run.process("w2")], [run.process(n) for n in "gh"]
    job = producer.enqueues("a")
    handled(programs[0], job, workers[0])
    run.passes(1_100)  # Its claim may have been two seconds before: the lease had run out.
    handled(programs[1], job, workers[1])
    over(programs[0], job)
    over(programs[1], job)

    assert run.verdict(promise) == "pass"


@pytest.mark.parametrize("promise", ["P4", "P6"])
def test_a_program_whose_worker_had_died_holds_no_job(
    run: "Run", producer: "Process", promise: str
) -> None:
    run.promises["P6"], run.parameters["lease_ms"] = True, 30_000
    worker, programs = run.process("w1"), [run.process(name) for name in "gh"]
    job = producer.enqueues("a")
    handled(programs[0], job, worker)
    programs[0].effect_lines[-1]["worker"] = 0
    if promise == "P6":
        over(programs[0], job)
    handled(programs[1], job, worker)
    if promise == "P4":
        over(programs[0], job)
    over(programs[1], job)

    assert run.verdict(promise) == "pass"


@pytest.mark.parametrize(
    ("killed", "verdict"),
    [(None, "violated"), ("first", "pass"), ("second", "violated"), ("late", "violated")],
)
def test_a_program_that_outlives_its_worker_holds_no_job_from_then_on(
    run: "Run", producer: "Process", killed: str | None, verdict: str
) -> None:
    """A queue that sees that a worker is dead may give its job away before the lease is over."""
    run.parameters["lease_ms"] = 30_000
    workers = {name: run.process(name) for name in ("first", "second")}
    programs = [run.process("h1"), run.process("h2")]
    job = producer.enqueues("a")
    handled(programs[0], job, workers["first"])
    if killed in workers:
        run.kills(workers[killed])
    handled(programs[1], job, workers["second"])
    if killed == "late":
        run.kills(workers["first"])
    over(programs[0], job)
    over(programs[1], job)
    other = producer.enqueues("b")
    for name in {"first", "second"} - {killed}:  # Who lives on is not taken for dead.
        handled(programs[0], other, workers[name])
        over(programs[0], other)

    assert run.verdict("P4") == verdict


@pytest.mark.parametrize("excuse", ["its worker was dead", "its worker is killed", "the lease"])
def test_an_overlap_that_is_excused_hides_no_further_one_of_the_job(
    run: "Run", producer: "Process", excuse: str
) -> None:
    run.parameters["lease_ms"] = 3_000
    workers = [run.process(name) for name in ("w1", "w2", "w3")]
    programs = [run.process(name) for name in ("h1", "h2", "h3")]
    job = producer.enqueues("a")
    handled(programs[0], job, workers[0])
    if excuse == "its worker was dead":
        programs[0].effect_lines[-1]["worker"] = 0
    elif excuse == "its worker is killed":
        run.kills(workers[0])
    else:
        run.passes(3_100)
    handled(programs[1], job, workers[1])
    handled(programs[2], job, workers[2])
    for program in programs:
        over(program, job)
    other = producer.enqueues("b")
    handled(programs[1], other, workers[1])  # It lives on, so its death explains nothing.
    over(programs[1], other)

    assert run.verdict("P4") == "violated"


def test_what_a_handler_did_last_shows_that_it_was_still_at_the_job(
    run: "Run", producer: "Process"
) -> None:
    """It never came to its end: its effect is the last that there is of it."""
    run.parameters["lease_ms"] = 3_000
    one, two = run.process("w1"), run.process("w2")
    one.alive = two.alive = False
    job = producer.enqueues("a")
    one.starts(job, attempt=1, fence=1)
    two.starts(job, attempt=2, fence=2)
    one.makes_effect(job, fence=1)
    two.ends(job, fence=2)

    [witness] = run.finding("P4").witnesses
    assert [line for file, line in witness.lines if file == witness.lines[0][0]] == [1, 2]


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "verdict"),
    [(1_700, 0, "pass"), (1_300, 0, "violated"), (0, 1_300, "violated")],
)
def test_a_stall_before_a_handler_of_a_worker_without_a_history_moves_its_claim_back(
    run: "Run", producer: "Process", before_ms: int, after_ms: int, verdict: str
) -> None:
    """One after its start counts once, as the time it took."""
    run.promises["P6"], run.parameters["lease_ms"] = True, 3_000
    one, two = run.process("w1"), run.process("w2")
    one.alive = two.alive = False
    job = producer.enqueues("a")
    if before_ms:
        run.stalls(before_ms)
    one.runs(job)
    run.passes(400)
    if after_ms:
        run.stalls(after_ms)
    two.runs(job)
    one.runs(producer.enqueues("b"))  # It lives on, so its death explains nothing.

    assert run.verdict("P6") == verdict


@pytest.mark.parametrize(
    ("passes_ms", "paused_ms", "verdict"),
    [
        (500, None, "violated"),
        (1_500, None, "violated"),
        (2_100, None, "pass"),  # Its claim may have been a second before.
        (500, 4_000, "violated"),  # The pause was over a lease before the handler began.
        (500, 1_000, "pass"),
        (500, -100, "violated"),  # The pause came when all was over.
    ],
)
def test_of_workers_without_a_history_a_second_run_needs_a_lease_that_may_have_run_out(
    run: "Run", producer: "Process", passes_ms: int, paused_ms: int | None, verdict: str
) -> None:
    run.promises["P6"], run.parameters["lease_ms"] = True, 3_000
    one, two = run.process("w1"), run.process("w2")
    one.alive = two.alive = False
    jobs = [producer.enqueues("a"), producer.enqueues("b")]
    if paused_ms is not None and paused_ms > 0:
        run.pauses(one, 50)
        run.passes(paused_ms)
    one.runs(jobs[0])
    run.passes(passes_ms)
    two.runs(jobs[0])
    if paused_ms is not None and paused_ms < 0:
        run.passes(-paused_ms)
        run.pauses(one, 50)
    one.runs(jobs[1])  # It lives on, so its death explains nothing.

    assert run.verdict("P6") == verdict


@pytest.mark.parametrize(
    ("passes_ms", "paused_ms", "verdict"),
    [
        (500, None, "violated"),
        (1_500, None, "violated"),
        (2_100, None, "pass"),  # Its claim may have been a second before.
        (500, 4_000, "violated"),  # The pause was over a lease before the handler began.
        (500, 1_000, "pass"),
        (500, -100, "violated"),  # The pause came when the second had begun.
    ],
)
def test_of_workers_without_a_history_two_at_once_need_a_lease_that_may_have_run_out(
    run: "Run", producer: "Process", passes_ms: int, paused_ms: int | None, verdict: str
) -> None:
    run.parameters["lease_ms"] = 3_000
    one, two = run.process("w1"), run.process("w2")
    one.alive = two.alive = False
    job = producer.enqueues("a")
    two.starts(job, attempt=1, fence=1)
    two.ends(job, "raise", fence=1)  # Nobody else was at it.
    if paused_ms is not None and paused_ms > 0:
        run.pauses(one, 50)
        run.passes(paused_ms)
    one.starts(job, attempt=2, fence=2)
    run.passes(passes_ms)
    two.starts(job, attempt=3, fence=3)
    if paused_ms is not None and paused_ms < 0:
        run.passes(-paused_ms)
        run.pauses(one, 50)
    one.ends(job, fence=2)
    two.ends(job, fence=3)

    assert run.verdict("P4") == verdict
