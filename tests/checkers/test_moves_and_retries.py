"""P7 to P13 and P15: edges, attempts, delays, order, keys, dead letters, cancels."""

from typing import TYPE_CHECKING, Any

import pytest

from killproof_evidence.checkers.retries import delay_ms_min
from killproof_evidence.evidence import payload_digest

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def worker(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


def attempt(run: "Run", worker: "Process", job: "Job", word: str = "raise") -> None:
    """Claim, run and fail the job, and wait out its delay."""
    worker.claims(job)
    worker.runs(job, word)
    worker.nacks(job)
    run.passes(60)


def buried(run: "Run", producer: "Process", worker: "Process", **asked: Any) -> "Job":
    """A job that failed as often as it may."""
    job = producer.enqueues("a", script=["raise"], **asked)
    attempt(run, worker, job)
    attempt(run, worker, job)
    worker.claims(job)
    worker.runs(job, "raise")
    worker.nacks(job, "dead")
    return job


# --- P7.


def test_an_edge_that_the_contract_does_not_allow_is_seen(run: "Run", producer: "Process") -> None:
    job = producer.enqueues("a")
    run.commits(job, "succeeded")

    assert "went from available to succeeded, which the contract does not" in run.story("P7")


def test_a_job_must_start_in_a_state_that_the_contract_allows(
    run: "Run", producer: "Process"
) -> None:
    run.edges["start"] = ("scheduled",)
    producer.enqueues("a")

    assert "went from nothing to available" in run.story("P7")


def test_without_declared_starts_a_job_may_start_anywhere(run: "Run", producer: "Process") -> None:
    del run.edges["start"]
    producer.enqueues("a")

    assert run.verdict("P7") == "pass"


def test_without_declared_starts_the_other_edges_still_count(
    run: "Run", producer: "Process"
) -> None:
    del run.edges["start"]
    run.commits(producer.enqueues("a"), "succeeded")

    assert "went from available to succeeded" in run.story("P7")


def test_a_change_that_keeps_the_state_is_no_edge(run: "Run", producer: "Process") -> None:
    job = producer.enqueues("a")
    run.commits(job, "available", priority=1)

    assert run.verdict("P7") == "pass"


def test_a_row_may_go_only_where_the_contract_says_so(run: "Run", producer: "Process") -> None:
    job = producer.enqueues("a")
    run.commits(job, None)

    assert "went from available to nothing" in run.story("P7")


def test_a_dead_job_that_comes_back_by_itself_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = buried(run, producer, worker)
    run.commits(job, "available")

    assert "left dead for available, and nobody replayed it" in run.story("P7")


def test_a_replay_brings_a_dead_job_back(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    producer.replays(buried(run, producer, worker))

    assert run.verdict("P7") == "pass"


@pytest.mark.parametrize("missing", ["edges", "audit"])
def test_without_edges_or_audit_the_moves_are_unknown(
    run: "Run", producer: "Process", missing: str
) -> None:
    producer.enqueues("a")
    if missing == "edges":
        run.edges = {}
    else:
        run.audited = False

    assert run.verdict("P7") == "unknown"


# --- P8.


def test_a_job_that_dies_at_its_bound_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    buried(run, producer, worker)

    assert run.verdict("P8") == "pass"


def test_one_start_too_many_is_seen(run: "Run", producer: "Process", worker: "Process") -> None:
    job = buried(run, producer, worker)
    worker.starts(job, fence=4)

    assert "was started 4 times (0 forgiven), and it may run 3 times" in run.story("P8")


def test_a_bound_of_the_job_s_own_counts(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    buried(run, producer, worker, max_attempts=2)

    assert "and it may run 2 times" in run.story("P8")


def test_a_bound_that_the_queue_raised_by_itself_does_not_count(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    buried(run, producer, worker, max_attempts=2).row["max_attempts"] = 9

    assert "and it may run 2 times" in run.story("P8")


def test_a_crashed_start_counts_too(run: "Run", producer: "Process", worker: "Process") -> None:
    job = producer.enqueues("a")
    for number in range(4):
        victim = run.process(f"v{number}")
        victim.claims(job)
        victim.starts(job)
        run.kills(victim)
        run.reaps(job)

    assert "was started 4 times" in run.story("P8")


def test_a_forgiven_start_is_no_attempt(run: "Run", producer: "Process", worker: "Process") -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.starts(job)
    worker.releases(job)
    for _ in range(2):
        attempt(run, worker, job)
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)

    assert run.verdict("P8") == "pass"


def test_a_start_that_is_forgiven_though_nobody_gave_it_back_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.starts(job)
    run.kills(worker)
    job.forgiven += 1
    run.reaps(job)

    assert "under token 1 was forgiven, and its worker had not given it back" in run.story("P8")


@pytest.mark.parametrize("answer", ["info", None])
def test_a_release_of_unknown_outcome_may_be_forgiven(
    run: "Run", producer: "Process", worker: "Process", answer: str | None
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.starts(job)
    worker.releases(job, answer=answer)
    run.kills(worker)

    assert run.verdict("P8") == "pass"


def test_a_start_that_the_queue_did_not_count_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = buried(run, producer, worker)
    job.row["attempts"] = 2

    assert "was started 3 times, and the queue counted 2" in run.story("P8")


def test_a_queue_that_counts_from_nought_after_a_replay_has_counted_the_life_before(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = buried(run, producer, worker)
    job.attempts = 0
    producer.replays(job)
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)

    assert run.verdict("P8") == "pass"


def test_a_claim_that_counts_twice_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    job.attempts = 1
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)

    assert "counted more than one attempt: 0 before it, 2 after it" in run.story("P8")


def test_attempts_that_change_after_the_last_commit_are_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)
    job.row["attempts"] = 2

    assert "had 1 attempts after the last commit, and the snapshot tells 2" in run.story("P8")


@pytest.mark.parametrize("where", ["row", "audit"])
def test_who_does_not_tell_attempts_is_not_held_to_them(
    run: "Run", producer: "Process", worker: "Process", where: str
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)
    if where == "row":
        job.row["attempts"] = None
    else:
        run.audit[-1]["attempts"] = None

    assert run.verdict("P8") == "pass"


def test_a_claim_that_does_not_count_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    run.audit[-1]["attempts"] = 0
    worker.runs(job)
    worker.acks(job)

    assert "the claim of job 1 did not count the attempt: 0 before" in run.story("P8")


def test_a_used_up_job_that_goes_back_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    attempt(run, worker, job)
    attempt(run, worker, job)
    attempt(run, worker, job)

    assert "used up its 3 attempts and went back to retryable" in run.story("P8")


def test_a_dead_job_that_is_claimed_again_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = buried(run, producer, worker, max_attempts=9)
    worker.claims(job)

    assert "was dead and was claimed again" in run.story("P8")


def test_a_replayed_job_may_run_again(run: "Run", producer: "Process", worker: "Process") -> None:
    job = buried(run, producer, worker)
    producer.replays(job)
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)

    assert run.verdict("P8") == "pass"


def fails_for_good(run: "Run", producer: "Process", worker: "Process", state: str) -> "Job":
    job = producer.enqueues("a", script=["permanent"])
    worker.claims(job)
    worker.runs(job, "permanent")
    worker.nacks(job, state, value={"permanent": True})
    run.passes(60)
    return job


def test_a_job_that_failed_for_good_and_is_claimed_again_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """Covers F3."""
    job = fails_for_good(run, producer, worker, "retryable")
    worker.claims(job)

    assert "which had failed for good under token 1" in run.story("P8")


def test_a_job_that_failed_for_good_may_run_again_when_it_is_replayed(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = fails_for_good(run, producer, worker, "dead")
    producer.replays(job)
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)

    assert run.verdict("P8") == "pass"


def test_a_failure_without_a_token_may_be_that_of_its_own_process_s_attempt(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """The lease of the first ran out, another had begun, and the first failed only then."""
    run.parameters["retry"] = "doubling:0.1"
    other = run.process("w2")
    job = producer.enqueues("a")
    worker.claims(job)
    worker.starts(job)
    run.passes(600)
    run.reaps(job)
    other.claims(job)
    other.starts(job)
    worker.nacks(job, token=False)
    run.passes(120)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_job_that_has_got_the_id_of_a_dead_one_is_not_that(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.edges["dead"] = ("deleted",)
    dead = fails_for_good(run, producer, worker, "dead")
    run.commits(dead, None)
    job = run.job("b")
    job.id, job.fence, dead.rows = dead.id, dead.fence, 0
    producer.invokes("enqueue", value=job.asked)
    run.commits(job, "available")
    producer.hears("ok", job=job)
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)

    assert run.verdict("P8") == "pass"


def test_a_dead_job_that_gets_another_priority_is_not_claimed(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = buried(run, producer, worker)
    run.commits(job, "dead", priority=1)

    assert run.verdict("P8") == "pass"


@pytest.mark.parametrize(("forgiven", "verdict"), [(0, "pass"), (3, "violated")])
def test_a_queue_may_count_from_zero_again_after_a_replay(
    run: "Run", producer: "Process", worker: "Process", forgiven: int, verdict: str
) -> None:
    """Four more starts are within a bound of 3 + 3 starts only if none was forgiven besides."""
    job = buried(run, producer, worker)
    producer.replays(job)
    run.audited = False
    job.row["forgiven"] = forgiven
    job.row["attempts"] = None
    for fence in range(4, 7 + bool(forgiven)):
        worker.starts(job, fence=fence)

    assert run.verdict("P8") == verdict


def test_what_a_target_does_not_count_is_not_held_against_it(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = buried(run, producer, worker)
    job.row["attempts"] = None
    for record in run.audit:
        del record["attempts"]
    gone = producer.enqueues("b")
    worker.claims(gone)
    worker.runs(gone)
    gone.rows = 0

    assert run.verdict("P8") == "pass"


def test_without_a_declared_bound_attempts_are_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    del run.parameters["max_attempts"]
    buried(run, producer, worker)

    assert run.verdict("P8") == "unknown"


# --- P9.


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        ("fixed:0.05", [50, 50, 50]),
        ("immediate", [0, 0, 0]),
        ("exponential:2", [0, 0, 0]),
        ("doubling:0.05", [50, 100, 200]),
        ("article", [60_000, 120_000, 240_000]),
    ],
)
def test_the_shortest_delay_of_a_policy_counts_no_chance(policy: str, delays: list[int]) -> None:
    assert [delay_ms_min(policy, attempt) for attempt in (1, 2, 3)] == delays


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="retry policy 'sometimes' is unknown"):
        delay_ms_min("sometimes", 1)


def retried(run: "Run", producer: "Process", worker: "Process", ms: int, **how: Any) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job, "raise")
    worker.nacks(job, **how)
    run.passes(ms)
    worker.claims(job)


def test_a_retry_after_its_delay_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    retried(run, producer, worker, 60)

    assert run.verdict("P9") == "pass"


def test_a_retry_before_its_delay_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    retried(run, producer, worker, 10)

    assert "ms after its failure, and 50 ms were due" in run.story("P9")


@pytest.mark.parametrize(("second_ms", "verdict"), [(110, "pass"), (60, "violated")])
def test_without_tokens_a_failure_is_that_of_the_attempt_which_had_begun(
    run: "Run", producer: "Process", worker: "Process", second_ms: int, verdict: str
) -> None:
    """The delays of later attempts are longer: held against the first, each retry is early."""
    run.parameters["retry"] = "doubling:0.05"
    job = producer.enqueues("a")
    for wait_ms in (60, second_ms):
        worker.claims(job)
        worker.runs(job, "raise")
        worker.nacks(job)
        run.passes(wait_ms)
    worker.claims(job)
    for record in (*worker.lines, *worker.effect_lines, *run.audit):
        record.pop("fence", None)

    finding = run.finding("P9")

    assert finding.verdict == verdict, finding


def test_a_delay_that_the_handler_asked_for_counts(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    retried(run, producer, worker, 60, value={"delay_ms": 200})

    assert "and 200 ms were due" in run.story("P9")


def test_a_replayed_job_may_run_at_once(run: "Run", producer: "Process", worker: "Process") -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job, "permanent")
    worker.nacks(job, "dead", value={"permanent": True})
    producer.replays(job)
    worker.claims(job)
    worker.runs(job, "raise")
    worker.nacks(job)
    run.passes(60)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_replay_that_was_asked_for_before_the_failure_may_take_effect_after_it(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job, "raise")
    producer.invokes("replay", job=job)
    worker.nacks(job, "dead")
    job.forgiven = job.attempts
    run.commits(job, "available")
    worker.claims(job)
    producer.hears("ok", value=True)
    worker.runs(job, "raise")
    worker.nacks(job)
    run.passes(60)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_poison_job_is_judged_by_an_index_as_a_small_one_is_without(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["max_attempts"] = 100
    job = producer.enqueues("a")
    for _ in range(30):
        attempt(run, worker, job)
    worker.claims(job)
    worker.settles("ack", job, None, fence=7)

    assert "under token 7, after w1 had claimed it with token 31" in run.story("P5")


def test_a_first_crash_may_go_back_at_once_and_a_second_may_not(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    run.kills(worker)
    run.reaps(job)
    other = run.process("w2")
    other.claims(job)
    run.kills(other)
    run.reaps(job, "retryable")
    run.process("w3").claims(job)

    assert "after crash 2 of its worker, and 50 ms were due" in run.story("P9")


@pytest.mark.parametrize(
    ("parameter", "value", "verdict"),
    [
        ("crash_first", "immediate", "unknown"),
        ("crash_first", "policy", "violated"),
    ],
)
def test_the_contract_says_how_a_first_crash_goes_back(
    run: "Run", producer: "Process", worker: "Process", parameter: str, value: str, verdict: str
) -> None:
    run.parameters[parameter] = value
    job = producer.enqueues("a")
    worker.claims(job)
    run.kills(worker)
    run.reaps(job)
    run.process("w2").claims(job)

    assert run.verdict("P9") == verdict


def crashed_twice(run: "Run", producer: "Process") -> "Job":
    """A job whose second worker died too; it waits for its delay."""
    job = producer.enqueues("a")
    for number in (1, 2):
        victim = run.process(f"v{number}")
        victim.claims(job)
        run.kills(victim)
        run.reaps(job, "available" if number == 1 else "retryable")
    return job


def test_a_second_crash_that_waits_is_healthy_whatever_else_changes(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = crashed_twice(run, producer)
    run.commits(job, "retryable", priority=1)
    run.passes(60)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_job_that_died_of_crashes_may_be_replayed_at_once(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    retried(run, producer, worker, 60)
    job = crashed_twice(run, producer)
    run.audit[-1]["new"] = job.state = "dead"
    producer.replays(job)
    worker.claims(job)

    assert run.verdict("P9") == "pass"


def test_a_failure_with_a_short_delay_of_its_own_is_no_crash(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["crash_first"] = "policy"
    retried(run, producer, worker, 12, value={"delay_ms": 10})

    assert run.verdict("P9") == "pass"


def test_a_failure_that_is_never_tried_again_broke_no_delay(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.nacks(job)

    assert run.verdict("P9") == "unknown"


def test_one_job_with_a_policy_does_not_speak_for_another_without(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    del run.parameters["retry"]
    retried(run, producer, worker, 60)
    job = producer.enqueues("b", retry="fixed:0.05")
    attempt(run, worker, job)
    attempt(run, worker, job)
    worker.claims(run.jobs[0])
    worker.runs(run.jobs[0])
    worker.starts(run.jobs[0], fence=9)

    assert run.verdict("P9") == "unknown"


def test_a_contract_may_say_that_every_crash_goes_back_at_once(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["crash_later"] = "immediate"
    retried(run, producer, worker, 60)
    job = run.jobs[0]
    for number in (2, 3):
        victim = run.process(f"w{number}")
        run.reaps(job)
        victim.claims(job)
        run.kills(victim)

    assert run.verdict("P9") == "pass"


def test_without_a_declared_policy_the_delay_is_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    del run.parameters["retry"]
    buried(run, producer, worker)

    assert run.verdict("P9") == "unknown"


# --- P10.


def test_a_delayed_job_that_waits_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a", delay_ms=100)
    run.passes(110)
    worker.claims(job)
    worker.runs(job)

    assert run.verdict("P10") == "pass"


def test_a_claim_before_its_time_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a", delay_ms=100)
    worker.claims(job)

    assert "was to wait 100 ms and was claimed" in run.story("P10")


def test_of_two_enqueues_under_one_key_the_one_that_made_the_job_counts(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """The first to ask was the second to commit: it got the other's job, without a delay."""
    other = run.process("p2")
    late = run.job("late", key="invoice", delay_ms=60_000)
    producer.invokes("enqueue", value=late.asked)
    job = other.enqueues("soon", key="invoice", delay_ms=1)
    producer.hears("ok", job=job)
    run.passes(10)
    worker.claims(job)
    worker.runs(job)

    assert run.verdict("P10") == "pass"


def test_a_start_before_its_time_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a", delay_ms=100)
    worker.starts(job, attempt=1)

    assert "was to wait 100 ms and started" in run.story("P10")


def test_a_commit_before_the_due_time_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.settles("snooze", job, None)
    job.due_ms = run.wall_ms + 300
    run.commits(job, "scheduled")
    worker.claims(job)

    assert "ms before it was due" in run.story("P10")


def test_a_target_that_shows_no_due_time_is_held_to_what_was_asked(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a", delay_ms=100)
    run.passes(110)
    worker.claims(job)
    for record in run.audit:
        del record["due_ms"]

    assert run.verdict("P10") == "pass"


def test_where_no_job_waits_earliness_is_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    worker.claims(producer.enqueues("a"))

    assert run.verdict("P10") == "unknown"


# --- P11.


def test_a_claim_that_passes_over_a_more_urgent_job_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax = producer.enqueues("a", priority=7)
    producer.enqueues("b", priority=2)
    run.passes(20)
    worker.claims(lax)

    story = run.story("P11")

    assert "w1 claimed job 1 (priority 7" in story
    assert "while job 2 (priority 2" in story


def test_a_claim_of_the_most_urgent_job_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax = producer.enqueues("a", priority=7)
    urgent = producer.enqueues("b", priority=2)
    run.passes(20)
    worker.claims(urgent)
    worker.claims(lax)

    assert run.verdict("P11") == "pass"


def test_among_equals_the_job_that_was_due_first_goes_first(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    producer.enqueues("a")
    later = producer.enqueues("b")
    run.passes(20)
    worker.claims(later)

    assert "claimed job 2" in run.story("P11")


def test_among_jobs_due_together_the_smaller_id_goes_first(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    first, second = producer.enqueues("a"), producer.enqueues("b")
    for record in run.audit:
        record["due_ms"] = 5
    second.due_ms = first.due_ms = 5
    run.passes(20)
    worker.claims(second)

    assert "claimed job 2" in run.story("P11")


def test_an_urgent_job_that_is_not_due_yet_may_be_passed_over(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax = producer.enqueues("a", priority=7)
    urgent = producer.enqueues("b", priority=2)
    run.audit[-1]["due_ms"] = urgent.due_ms = run.wall_ms + 500
    run.passes(20)
    worker.claims(lax)

    assert run.verdict("P11") == "pass"


def test_a_job_that_fell_due_inside_the_claim_may_be_passed_over(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax = producer.enqueues("a", priority=7)
    producer.enqueues("b", priority=2)
    worker.claims(lax)

    assert run.verdict("P11") == "pass"


def test_a_job_of_a_kind_that_nobody_asked_for_may_be_passed_over(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax = producer.enqueues("a", priority=7)
    producer.enqueues("b", priority=2, kind="other")
    run.passes(20)
    worker.claims(lax, kinds=["k"])

    assert run.verdict("P11") == "pass"


def test_a_claim_for_all_kinds_may_not_pass_over_any(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax = producer.enqueues("a", priority=7)
    producer.enqueues("b", priority=2, kind="other")
    run.passes(20)
    worker.claims(lax)

    assert "while job 2" in run.story("P11")


def test_a_job_that_left_the_queue_is_not_passed_over(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax = producer.enqueues("a", priority=7)
    producer.cancels(producer.enqueues("b", priority=2))
    run.passes(20)
    worker.claims(lax)

    assert run.verdict("P11") == "pass"


def test_where_no_worker_keeps_a_history_the_order_is_unknown(
    run: "Run", producer: "Process"
) -> None:
    lax = producer.enqueues("a", priority=7)
    producer.enqueues("b", priority=2)
    run.passes(20)
    lax.fence = lax.attempts = 1
    run.commits(lax, "leased")

    finding = run.finding("P11")

    assert finding.verdict == "unknown"
    assert finding.reason == "no claim is both in the audit and in the history"


def test_a_claim_that_was_never_told_is_not_judged_by_order(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax, urgent = producer.enqueues("a", priority=7), producer.enqueues("b", priority=2)
    run.passes(20)
    worker.invokes("claim")
    lax.fence = lax.attempts = 1
    run.commits(lax, "leased")
    run.kills(worker)
    run.process("w2").claims(urgent)

    assert run.verdict("P11") == "pass"


def test_a_lease_that_is_taken_over_directly_stood_in_no_line(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    lax = producer.enqueues("a", priority=7)
    worker.claims(lax)
    run.kills(worker)
    producer.enqueues("b", priority=2)
    run.passes(20)
    run.process("w2").claims(lax)

    assert run.verdict("P11") == "pass"


def test_a_doubtful_clock_does_not_lose_a_waiting_job(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """A job that was surely due for one claim and perhaps not for a slower one stays in line."""
    lax, lax_too = producer.enqueues("a", priority=7), producer.enqueues("b", priority=7)
    run.passes(5)
    producer.enqueues("c", priority=2)
    run.passes(4)
    worker.invokes("claim")
    lax.fence = lax.attempts = 1
    run.commits(lax, "leased")
    run.passes(60)
    worker.hears("ok", job=lax, fence=1)
    worker.claims(lax_too)

    story = run.story("P11")

    assert "claimed job 2" in story
    assert "while job 3" in story


def test_without_priorities_in_the_audit_the_order_is_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    worker.claims(producer.enqueues("a"))
    for record in run.audit:
        del record["priority"]

    assert run.verdict("P11") == "unknown"


# --- P12.


def test_two_live_jobs_of_one_key_are_seen(run: "Run", producer: "Process") -> None:
    producer.enqueues("a", key="invoice")
    producer.enqueues("b", key="invoice")

    assert "jobs 1 and 2 lived at once under key 'invoice'" in run.story("P12")


def test_a_key_may_be_used_again_once_its_job_has_ended(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a", key="invoice")
    worker.claims(job)
    worker.acks(job)
    producer.enqueues("b", key="invoice")

    assert run.verdict("P12") == "pass"


def test_a_key_may_be_used_again_once_its_job_is_gone(run: "Run", producer: "Process") -> None:
    run.commits(producer.enqueues("a", key="invoice"), None)
    producer.enqueues("b", key="invoice")

    assert run.verdict("P12") == "pass"


def test_enqueueing_a_live_key_again_gives_the_same_job(run: "Run", producer: "Process") -> None:
    job = producer.enqueues("a", key="invoice", answer="info")
    producer.invokes("enqueue", value=job.asked)
    producer.hears("ok", job=job)

    assert run.verdict("P12") == "pass"


def test_without_an_audit_two_jobs_alive_at_the_end_are_seen(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a", key="invoice")
    producer.enqueues("b", key="invoice")
    run.audited = False

    assert "jobs 1, 2 are both alive under key 'invoice'" in run.story("P12")


def test_without_an_audit_a_key_that_is_used_once_is_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """Two jobs may have lived at once and both have ended: the end alone does not tell."""
    for name in ("a", "b"):
        job = producer.enqueues(name, key="invoice")
        worker.claims(job)
        worker.acks(job)
    run.audited = False

    finding = run.finding("P12")

    assert finding.verdict == "unknown"
    assert finding.reason == "no audit: jobs that lived at once under one key cannot be told"


def test_without_keys_idempotence_is_unknown(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")

    assert run.verdict("P12") == "unknown"


# --- P13.


def test_a_dead_letter_that_keeps_everything_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    payload = {"id": "a", "script": ["raise"], "sink": "log"}
    buried(run, producer, worker, digest=payload_digest(payload))

    assert run.verdict("P13") == "pass"


def test_a_dead_letter_with_another_payload_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    buried(run, producer, worker, digest=payload_digest({"id": "a", "body": "more"}))

    assert "is not the one that was enqueued" in run.story("P13")


def test_a_dead_letter_without_its_payload_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = buried(run, producer, worker)
    job.row["payload"] = {"id": "somebody else"}

    assert "lost its payload" in run.story("P13")


def test_a_dead_letter_without_an_error_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    buried(run, producer, worker).row["error"] = None

    assert "does not say what failed" in run.story("P13")


def test_a_dead_letter_that_forgot_an_attempt_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    del buried(run, producer, worker).history[0]

    assert "counts 3 attempts and keeps 2 of them" in run.story("P13")


def test_a_dead_letter_that_counts_more_attempts_than_claims_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """Counted at the claim and at the failure, two attempts are four: half of them were lost."""
    job = producer.enqueues("a", max_attempts=4, script=["raise"])
    attempt(run, worker, job)
    worker.claims(job)
    worker.runs(job, "raise")
    worker.nacks(job, "dead")
    job.row |= {"attempts": 4, "history": None}

    assert "counts 4 attempts, and was claimed 2 times" in run.story("P13")


def test_a_target_that_keeps_no_attempts_is_not_asked_for_them(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    buried(run, producer, worker).row["history"] = None

    assert run.verdict("P13") == "pass"


def dead_at_once(run: "Run", producer: "Process", worker: "Process", word: str, **how: Any) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job, word)
    worker.nacks(job, "dead", **how)


def test_a_job_that_died_before_its_bound_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    dead_at_once(run, producer, worker, "raise")

    assert "is dead after 1 of 3 attempts" in run.story("P13")


@pytest.mark.parametrize("word", ["permanent", "unjsonable"])
def test_a_permanent_failure_may_end_a_job_at_once(
    run: "Run", producer: "Process", worker: "Process", word: str
) -> None:
    dead_at_once(run, producer, worker, word)

    assert run.verdict("P13") == "pass"


def test_a_nack_may_say_that_the_failure_is_permanent(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    dead_at_once(run, producer, worker, "raise", value={"permanent": True})

    assert run.verdict("P13") == "pass"


def test_a_target_that_shows_no_payload_is_not_asked_for_it(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    buried(run, producer, worker, digest="of something").row["payload"] = None

    assert run.verdict("P13") == "pass"


def test_a_dead_job_that_nobody_is_known_to_have_enqueued_keeps_its_payload_too(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    buried(run, producer, worker)
    producer.lines.clear()
    producer.number = 0

    assert run.verdict("P13") == "pass"


@pytest.mark.parametrize("unknown", ["attempts", "maximum"])
def test_a_dead_job_of_unknown_bound_may_have_reached_it(
    run: "Run", producer: "Process", worker: "Process", unknown: str
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.nacks(job, "dead")
    if unknown == "attempts":
        job.row["attempts"] = None
    else:
        del run.parameters["max_attempts"]

    assert run.verdict("P13") == "pass"


def test_a_replay_without_an_audit_is_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    producer.replays(buried(run, producer, worker))
    run.audited = False

    assert run.verdict("P13") == "unknown"


def test_a_nack_that_says_nothing_of_permanence_is_not_permanent(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    dead_at_once(run, producer, worker, "raise", value={"delay_ms": 10, "permanent": False})

    assert "is dead after 1 of 3 attempts" in run.story("P13")


def test_a_job_that_stands_twice_in_the_snapshot_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    buried(run, producer, worker).rows = 2

    assert "stands 2 times in the snapshot" in run.story("P13")


@pytest.mark.parametrize(("moves", "verdict"), [(0, "violated"), (1, "pass"), (2, "violated")])
def test_a_replay_moves_a_dead_job_exactly_once(
    run: "Run", producer: "Process", worker: "Process", moves: int, verdict: str
) -> None:
    producer.replays(buried(run, producer, worker), commits=moves)

    assert run.verdict("P13") == verdict


def test_where_nothing_died_dead_letters_are_unknown(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")

    assert run.verdict("P13") == "unknown"


# --- P15.


def test_a_cancelled_job_that_stays_quiet_is_healthy(run: "Run", producer: "Process") -> None:
    producer.cancels(producer.enqueues("a"))

    assert run.verdict("P15") == "pass"


def test_a_claim_after_the_cancel_s_commit_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    producer.cancels(job)
    job.fence = job.attempts = 1
    run.commits(job, "leased")
    worker.starts(job)

    assert "was claimed (token 1) after the commit of its cancel" in run.story("P15")


def test_a_claim_after_an_acknowledged_cancel_is_seen_without_an_audit(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a")
    producer.cancels(job)
    worker.claims(job)

    assert "w1 claimed job 1 after its cancel was acknowledged" in run.story("P15")


def test_a_start_after_an_acknowledged_cancel_is_seen_without_claims(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.audited = False
    job = producer.enqueues("a")
    producer.cancels(job)
    worker.starts(job, attempt=1)

    assert "started after its cancel was acknowledged" in run.story("P15")


def test_a_start_under_an_older_claim_is_allowed(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    producer.cancels(job)
    worker.runs(job)
    worker.acks(job, answer="fail")

    assert run.verdict("P15") == "pass"


def test_an_acknowledged_cancel_that_changes_nothing_is_seen(
    run: "Run", producer: "Process"
) -> None:
    producer.cancels(producer.enqueues("a"), commits=False)

    assert "was acknowledged, but no commit cancelled it" in run.story("P15")


def test_a_cancel_may_take_the_row_away(run: "Run", producer: "Process") -> None:
    job = producer.enqueues("a")
    producer.invokes("cancel", job=job)
    run.commits(job, None)
    producer.hears("ok", value=True)

    assert run.verdict("P15") == "pass"


def test_a_cancel_that_came_too_late_promises_nothing(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    producer.cancels(job, told=False)
    worker.claims(job)

    assert run.verdict("P15") == "unknown"


def test_a_cancelled_job_that_is_replayed_may_run(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    producer.cancels(job)
    producer.invokes("replay", job=job)
    run.commits(job, "available")
    producer.hears("ok", value=True)
    worker.claims(job)

    assert run.verdict("P15") == "pass"


@pytest.mark.parametrize(
    ("commits_ms", "fails", "verdict"),
    [(30, True, "pass"), (5, True, "violated"), (30, False, "violated")],
)
def test_where_no_worker_keeps_a_history_the_delay_counts_from_the_handlers_end(
    run: "Run", producer: "Process", commits_ms: int, fails: bool, verdict: str
) -> None:
    """A failure is known before its commit; of one that never ended the commit alone is known."""
    run.parameters["crash_first"] = "policy"
    stranger = run.process("x1")
    stranger.alive = False
    job = producer.enqueues("a", script=["raise"])
    job.fence = job.attempts = 1
    run.commits(job, "leased")
    stranger.starts(job)
    if fails:
        stranger.ends(job, "raise")
    run.passes(commits_ms)
    run.commits(job, "available")
    run.passes(30)
    job.fence = job.attempts = 2
    run.commits(job, "leased")

    assert run.verdict("P9") == verdict
