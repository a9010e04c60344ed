"""P1, P2, P3, P14, P16: each clause tripped by the shortest history, beside a healthy neighbour."""

from typing import TYPE_CHECKING

import pytest

from killproof_evidence.judge import judge

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run


def worked_off(run: "Run") -> tuple["Process", "Process", "Job"]:
    """A producer, a worker, and a job that went its whole way."""
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)
    return producer, worker, job


HEALTHY = ["P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P11", "P14", "P16"]


@pytest.mark.parametrize("promise", HEALTHY)
def test_a_job_that_went_its_whole_way_breaks_no_promise(run: "Run", promise: str) -> None:
    worked_off(run)

    assert run.verdict(promise) == "pass"


# --- P1.


def test_an_acknowledged_job_that_is_gone_is_lost(run: "Run") -> None:
    producer = run.process("p1")
    job = producer.enqueues("a")
    run.commits(job, None)

    assert "was acknowledged, never ended, and is gone" in run.story("P1")


def test_an_acknowledged_job_that_never_was_is_lost(run: "Run") -> None:
    run.process("p1").enqueues("a", exists=False)

    assert "is gone" in run.story("P1")


def test_a_job_whose_enqueue_nobody_acknowledged_need_not_be_there(run: "Run") -> None:
    producer, _, _ = worked_off(run)
    producer.enqueues("b", answer="info", exists=False)

    assert run.verdict("P1") == "pass"


@pytest.mark.parametrize(
    ("given", "verdict"), [("whole", "pass"), ("other", "violated"), (None, "unknown")]
)
def test_a_payload_in_a_file_is_given_to_the_handler_as_it_was_enqueued(
    run: "Run", given: str | None, verdict: str
) -> None:
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a", digest="whole", spill=True)
    worker.claims(job)
    worker.runs(job)
    if given is not None:
        worker.effect_lines[0]["given"] = given
    worker.acks(job)

    finding = run.finding("P1")

    assert finding.verdict == verdict, finding
    if verdict == "violated":
        assert "was given another payload than was enqueued" in finding.witnesses[0].story


@pytest.mark.parametrize("answer", ["ok", "info"])
@pytest.mark.parametrize(("began", "verdict"), [(True, "pass"), (False, "violated")])
def test_a_job_whose_payload_was_lost_for_a_moment_is_seen(
    run: "Run", began: bool, verdict: str, answer: str
) -> None:
    """Its file may be back when the run ends: what is left of the job looks whole then."""
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b", answer=answer, digest="whole", spill=True)
    worker.claims(job)
    if began:
        worker.runs(job, "permanent")
        worker.effect_lines[-2]["given"] = "whole"
    worker.nacks(job, "dead")

    assert run.verdict("P1") == verdict


def test_a_finished_job_may_go_where_the_contract_says_so(run: "Run") -> None:
    _, _, job = worked_off(run)
    run.edges["succeeded"] = ("deleted",)
    run.commits(job, None)

    assert run.verdict("P1") == "pass"


def test_a_finished_job_may_not_go_where_the_contract_is_silent(run: "Run") -> None:
    _, _, job = worked_off(run)
    run.commits(job, None)

    assert "is gone" in run.story("P1")


def test_a_queue_that_deletes_at_ack_loses_a_job_that_never_ran(run: "Run") -> None:
    run.edges["leased"] = ("deleted",)
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a")
    worker.claims(job)
    run.commits(job, None)

    assert "is gone" in run.story("P1")


def test_without_an_audit_a_finished_job_may_be_gone_if_any_may(run: "Run") -> None:
    _, _, job = worked_off(run)
    run.edges["leased"] = ("deleted",)
    run.audited = False
    job.rows = 0

    assert run.verdict("P1") == "pass"


@pytest.mark.parametrize(("given", "verdict"), [("as asked", "pass"), ("other", "violated")])
def test_a_payload_that_comes_out_changed_is_lost(run: "Run", given: str, verdict: str) -> None:
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a", digest="as asked")
    worker.claims(job)
    worker.starts(job)
    worker.effect_lines[-1]["given"] = given

    assert run.verdict("P1") == verdict


def test_two_enqueues_acknowledged_as_one_job_have_lost_one(run: "Run") -> None:
    """As of an id that is asked for after an insert that another has overtaken. Rule C1."""
    producer, _, job = worked_off(run)
    producer.enqueues("b", exists=False)
    producer.lines[-1]["job"] = job.id

    assert run.story("P1") == "2 enqueues without a key were acknowledged as job 1, and it is 1"


def test_two_enqueues_of_one_key_may_be_one_job(run: "Run") -> None:
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a", key="k")
    producer.enqueues("a", exists=False, key="k")
    producer.lines[-1]["job"] = job.id
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)

    assert run.verdict("P1") == "pass"


def test_the_id_of_a_row_that_is_gone_may_be_given_again(run: "Run") -> None:
    producer, _, job = worked_off(run)
    run.edges["succeeded"] = ("deleted",)
    run.commits(job, None)
    other = producer.enqueues("b")
    producer.lines[-1]["job"] = job.id
    run.audit[-1]["job"] = job.id
    other.id, job.rows = job.id, 0

    assert run.verdict("P1") == "pass"


@pytest.mark.parametrize("may_go", [False, True])
def test_without_an_audit_one_id_for_two_jobs_is_seen_where_rows_stay(
    run: "Run", may_go: bool
) -> None:
    producer, _, job = worked_off(run)
    run.audited = False
    if may_go:
        run.edges["succeeded"] = ("deleted",)
    producer.enqueues("b", exists=False)
    producer.lines[-1]["job"] = job.id

    assert run.verdict("P1") == ("pass" if may_go else "violated")


def test_a_job_that_has_another_s_payload_at_the_end_is_lost(run: "Run") -> None:
    _, _, job = worked_off(run)
    job.row["payload"] = {"id": "z"}

    assert "job 1 has the payload of z at the end" in run.story("P1")


def test_a_job_may_bear_the_name_of_an_enqueue_under_its_key_that_nobody_heard_of(
    run: "Run",
) -> None:
    """A producer is killed between the commit and its answer, and another asks for the same key."""
    producer, other = run.process("p1"), run.process("p2")
    job = producer.enqueues("a", key="k", answer="info")
    other.enqueues("b", key="k", exists=False)
    other.lines[-1]["job"] = job.id

    assert run.verdict("P1") == "pass"


@pytest.mark.parametrize("audited", [True, False])
def test_an_id_that_is_given_again_may_be_that_of_a_job_nobody_heard_of(
    run: "Run", audited: bool
) -> None:
    producer, _, job = worked_off(run)
    run.edges["succeeded"] = ("deleted",)
    run.commits(job, None)
    other = producer.enqueues("b", answer="info")
    run.audit[-1]["job"] = other.id = job.id
    run.audited = audited

    assert run.verdict("P1") == "pass"


def test_no_acknowledged_enqueue_is_no_evidence(run: "Run") -> None:
    run.process("p1").enqueues("a", answer="info")

    assert run.verdict("P1") == "unknown"


# --- P2.


def test_a_job_that_nobody_enqueued_is_a_phantom(run: "Run") -> None:
    worked_off(run)
    run.commits(run.job("ghost"), "available")

    assert "nobody enqueued it" in run.story("P2")


def test_a_handler_that_runs_an_unknown_job_betrays_a_phantom(run: "Run") -> None:
    _, worker, _ = worked_off(run)
    worker.starts(run.job("ghost"), attempt=1)

    assert "nobody enqueued it" in run.story("P2")


def test_a_refused_job_that_exists_is_a_phantom(run: "Run") -> None:
    run.process("p1").enqueues("a", answer="fail")

    assert "was refused, yet the job exists" in run.story("P2")


def test_a_job_of_an_unanswered_enqueue_may_exist(run: "Run") -> None:
    """Rule C10."""
    run.process("p1").enqueues("a", answer="info")

    assert run.verdict("P2") == "pass"


def nameless(run: "Run") -> None:
    """Put a job there whose payload the target does not show."""
    job = run.job("hidden")
    run.commits(job, "available", harness_id=None)
    job.row["payload"] = None


def test_a_nameless_job_may_belong_to_an_unanswered_enqueue(run: "Run") -> None:
    run.process("p1").enqueues("a", answer="info", exists=False)
    nameless(run)

    assert run.verdict("P2") == "pass"


def test_more_nameless_jobs_than_unanswered_enqueues_are_phantoms(run: "Run") -> None:
    run.process("p1").enqueues("a", answer="info", exists=False)
    nameless(run)
    nameless(run)

    assert "no unanswered enqueue is left" in run.story("P2")


# --- P3.


def test_a_success_without_a_start_is_seen(run: "Run") -> None:
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a")
    worker.claims(job)
    worker.acks(job)

    assert "its handler never started" in run.story("P3")


def test_a_success_without_an_effect_is_seen(run: "Run") -> None:
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a")
    worker.claims(job)
    worker.starts(job)
    worker.ends(job)
    worker.acks(job)

    assert "succeeded without an effect" in run.story("P3")


def test_a_success_that_only_the_snapshot_tells_needs_an_effect_too(run: "Run") -> None:
    worked_off(run)
    run.audited = False
    run.processes[1].effect_lines.clear()

    assert "never started" in run.story("P3")


def test_a_success_of_a_job_that_is_gone_needs_an_effect_too(run: "Run") -> None:
    _, _, job = worked_off(run)
    run.commits(job, None)
    run.processes[1].effect_lines.clear()

    assert "never started" in run.story("P3")


def test_a_row_in_the_table_is_an_effect(run: "Run") -> None:
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a", sink="table")
    worker.claims(job)
    worker.starts(job)
    worker.ends(job)
    worker.acks(job)
    run.tables.append({"job": "a", "what": "applied"})

    assert run.verdict("P3") == "pass"


def test_a_success_that_nobody_acked_is_seen(run: "Run") -> None:
    _, worker, _ = worked_off(run)
    job = run.processes[0].enqueues("b")
    worker.claims(job)
    worker.runs(job)
    run.commits(job, "succeeded")

    assert "nobody had acked that" in run.story("P3")


def test_an_ack_without_an_answer_is_a_cause(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    worker.runs(job)
    worker.acks(job, answer=None)
    run.kills(worker)

    assert run.verdict("P3") == "pass"


def test_a_lease_taken_from_a_living_worker_is_seen(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    run.reaps(job)

    assert "while its holder w1 lived" in run.story("P3")


def test_a_death_is_a_cause_for_the_end_of_a_lease(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    run.kills(worker)
    run.passes(20)
    run.reaps(job)

    assert run.verdict("P3") == "pass"


def test_a_holder_that_never_heard_of_its_claim_had_nothing_to_lose(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.invokes("claim")
    job.fence = job.attempts = 1
    run.commits(job, "leased")
    run.kills(worker)
    run.reaps(job)

    assert run.verdict("P3") == "pass"


def test_a_death_that_comes_later_is_no_cause(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    run.reaps(job)
    run.passes(100)
    run.kills(worker)

    assert "while its holder w1 lived" in run.story("P3")


def test_the_deadline_is_a_cause_for_the_end_of_a_lease(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    run.passes(520)
    run.reaps(job)

    assert run.verdict("P3") == "pass"


def test_an_extension_moves_the_deadline(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    run.passes(400)
    worker.extends(job)
    run.passes(200)
    run.reaps(job)

    assert "while its holder w1 lived" in run.story("P3")


def test_a_lease_length_of_the_job_s_own_counts(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b", lease_ms=50)
    worker.claims(job)
    run.passes(70)
    run.reaps(job)

    assert run.verdict("P3") == "pass"


def test_a_cancel_is_a_cause_for_the_end_of_a_lease(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    producer.cancels(job)
    run.passes(100)

    assert run.verdict("P3") == "pass"


def test_a_lease_that_ends_as_cancelled_though_nobody_cancelled_is_seen(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    run.commits(job, "cancelled")
    run.passes(100)

    assert "ended as cancelled without an outcome" in run.story("P3")


def test_an_effect_that_no_start_stands_before_is_seen(run: "Run") -> None:
    """Its file has all of its numbers, so no line is missing."""
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    worker.makes_effect(job)
    worker.ends(job)
    worker.acks(job)

    assert "the handler of job 2 left traces" in run.story("P3")


def test_an_end_that_no_start_stands_before_is_seen_of_a_job_that_began_before(run: "Run") -> None:
    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job, "raise")
    worker.nacks(job)
    run.passes(60)
    worker.claims(job)
    worker.makes_effect(job)
    worker.ends(job)
    worker.acks(job)

    finding = run.finding("P3")

    assert (finding.verdict, finding.violations) == ("violated", 2)
    assert finding.witnesses[0].lines == (("effects/101.jsonl", 3), ("effects/101.jsonl", 4))


def test_in_a_file_without_numbers_an_effect_without_a_start_accuses_nobody(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    worker.makes_effect(job)
    for record in worker.effect_lines:
        del record["n"]
    worker.acks(job)

    assert run.judged().record["properties"]["P3"]["verdict"] == "unknown"


@pytest.mark.parametrize("outcome", ["raise", "permanent"])
def test_an_ack_of_a_handler_that_failed_is_seen(run: "Run", outcome: str) -> None:
    """Though an attempt before it has made the effect, and died before its ack."""
    producer, worker, _ = worked_off(run)
    other = run.process("w2")
    job = producer.enqueues("b")
    other.claims(job)
    other.starts(job)
    other.makes_effect(job)
    run.kills(other)
    run.reaps(job)
    worker.claims(job)
    worker.runs(job, outcome)
    worker.acks(job)

    assert f"whose handler failed ({outcome})" in run.story("P3")


def test_an_ack_of_a_handler_that_never_ended_is_seen(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    worker.starts(job)
    worker.makes_effect(job)
    worker.acks(job)

    assert "whose handler never came to its end" in run.story("P3")


def test_a_worker_that_died_may_have_ended_its_handler_unseen(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    worker.starts(job)
    worker.makes_effect(job)
    worker.acks(job)
    run.kills(worker)

    assert run.verdict("P3") == "pass"


@pytest.mark.parametrize(("sink", "verdict"), [("http", "violated"), ("table", "pass")])
def test_an_ack_of_a_handler_that_made_no_effect_is_seen(
    run: "Run", sink: str, verdict: str
) -> None:
    """A row of a table is written by the queue, so the handler does not tell of it."""
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b", sink=sink)
    worker.claims(job)
    worker.starts(job)
    worker.ends(job)
    worker.acks(job)
    traces = run.tables if sink == "table" else run.posts
    traces.append({"t": run.tick(), "job": "b", "what": "applied"})

    assert run.verdict("P3") == verdict


def test_whose_ack_came_from_another_process_is_not_asked_for_his_handler(run: "Run") -> None:
    """A handler may run in a process of its own, of whose end the worker knows more."""
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    handler = run.process("h1")
    handler.starts(job)
    handler.makes_effect(job)
    worker.acks(job)

    assert run.verdict("P3") == "pass"


def test_whoever_cancels_all_jobs_of_a_kind_names_none(run: "Run") -> None:
    producer, _, _ = worked_off(run)
    job = producer.enqueues("b", delay_ms=500)
    producer.invokes("cancel", value={"kind": "k"})
    run.commits(job, "cancelled")
    producer.hears("ok", value=1)

    assert run.verdict("P3") == "pass"


def test_a_job_that_is_cancelled_and_nobody_asked_is_seen(run: "Run") -> None:
    producer, _, _ = worked_off(run)
    job = producer.enqueues("b", delay_ms=500)
    run.commits(job, "cancelled")

    assert run.story("P3") == "job 2 was cancelled, and nobody had asked for that"


def test_a_cancel_that_was_refused_does_not_cancel(run: "Run") -> None:
    producer, _, _ = worked_off(run)
    job = producer.enqueues("b", delay_ms=500)
    producer.cancels(job)
    producer.lines[-1]["type"] = "fail"

    assert run.verdict("P3") == "violated"


def test_a_step_is_cancelled_when_its_run_can_not_go_on(run: "Run") -> None:
    _, worker, _ = worked_off(run)
    jobs = run.process("p2").starts_run("r", {"a": [], "b": ["a"]})
    worker.claims(jobs["a"])
    worker.runs(jobs["a"], "permanent")
    worker.nacks(jobs["a"], "dead")
    run.commits(jobs["b"], "cancelled")

    assert run.verdict("P3") == "pass"


def test_a_step_that_is_recorded_by_itself_is_cancelled_with_its_run(run: "Run") -> None:
    producer, _, _ = worked_off(run)
    job = producer.enqueues("b", delay_ms=500, needs=["a"])
    run.commits(job, "cancelled")

    assert run.verdict("P3") == "pass"


def test_with_a_stepped_clock_no_end_of_a_lease_is_judged(run: "Run") -> None:
    producer, worker, _ = worked_off(run)
    job = producer.enqueues("b")
    worker.claims(job)
    run.audit[-1]["t_ms"] += 3_600_000
    run.reaps(job)

    finding = run.finding("P3")

    assert finding.verdict == "unknown"
    assert finding.reason is not None
    assert "clock was stepped" in finding.reason


# --- P14.


def test_a_job_that_changes_between_two_commits_is_seen(run: "Run") -> None:
    job = run.process("p1").enqueues("a")
    job.state = "scheduled"
    run.commits(job, "available")

    assert "was available after one commit and scheduled before the next" in run.story("P14")


def test_a_snapshot_that_tells_another_state_is_seen(run: "Run") -> None:
    job = run.process("p1").enqueues("a")
    job.row["state"] = "dead"

    assert "the snapshot tells it as dead" in run.story("P14")


def test_a_job_missing_from_the_snapshot_is_seen(run: "Run") -> None:
    """Rule C6."""
    run.process("p1").enqueues("a").rows = 0

    assert "the snapshot tells it as absent" in run.story("P14")


def test_a_deleted_job_is_absent_from_both(run: "Run") -> None:
    _, _, job = worked_off(run)
    run.commits(job, None)

    assert run.verdict("P14") == "pass"


def test_without_an_audit_the_sums_are_unknown(run: "Run") -> None:
    worked_off(run)
    run.audited = False

    assert run.verdict("P14") == "unknown"


# --- P16.


def test_a_broken_file_is_seen(run: "Run") -> None:
    worked_off(run)
    run.database = None
    store = run.store()
    page = b"SQLite format 3\0" + b"\x10\x00\x01\x01\x00\x40\x20\x20" + b"\xff" * 4072
    (store.db / "queue.db").write_bytes(page)

    assert judge(store).record["properties"]["P16"]["verdict"] == "violated"


def test_a_dangling_reference_is_seen(run: "Run") -> None:
    worked_off(run)
    run.database = """
        CREATE TABLE job (id INTEGER PRIMARY KEY);
        CREATE TABLE attempt (job_id INTEGER REFERENCES job (id));
        INSERT INTO attempt VALUES (7);"""

    assert "row 1 of attempt refers to no row of job" in run.story("P16")


def test_a_lock_error_within_the_busy_limit_is_seen(run: "Run") -> None:
    producer, _, _ = worked_off(run)
    producer.invokes("enqueue", value={"id": "b"})
    producer.hears("fail", value={"error": "OperationalError: database is locked"})

    assert "met a lock error after 1 ms" in run.story("P16")


def test_a_file_that_was_broken_for_a_moment_is_seen_in_what_its_clients_were_told(
    run: "Run",
) -> None:
    _, worker, done = worked_off(run)
    worker.invokes("ack", job=done, fence=1)
    worker.hears("info", value={"error": "DatabaseError: database disk image is malformed"})

    assert "ack of process w1 was told that the file is broken" in run.story("P16")


def test_a_lock_error_after_the_busy_limit_is_declared(run: "Run") -> None:
    producer, _, _ = worked_off(run)
    producer.invokes("enqueue", value={"id": "b"})
    run.passes(30_000)
    producer.hears("fail", value={"error": "OperationalError: database is locked"})

    assert run.verdict("P16") == "pass"


def test_a_caller_that_asked_for_less_patience_is_told_after_it(run: "Run") -> None:
    """A worker that was told to stop waits no longer than its grace."""
    producer, _, _ = worked_off(run)
    producer.invokes("enqueue", value={"id": "b"})
    run.passes(400)
    producer.hears("fail", value={"error": "DatabaseBusy: locked", "limit_ms": 250})

    assert run.verdict("P16") == "pass"


def test_a_caller_that_was_told_before_its_own_patience_ended_is_seen(run: "Run") -> None:
    producer, _, _ = worked_off(run)
    producer.invokes("enqueue", value={"id": "b"})
    producer.hears("fail", value={"error": "DatabaseBusy: locked", "limit_ms": 250})

    assert "within the 250 ms it may wait" in run.story("P16")


def test_without_a_copy_of_the_file_its_integrity_is_unknown(run: "Run") -> None:
    worked_off(run)
    run.database = None

    assert run.verdict("P16") == "unknown"
