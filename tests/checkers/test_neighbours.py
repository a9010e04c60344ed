"""Histories right beside a clause: each tells the clause from one that is nearly the same.

They were found by `make mutate-checkers`: without them a checker could be changed, and nothing here
would have gone red.
"""

from typing import TYPE_CHECKING

import pytest

from killproof_evidence.checkers import CHECKERS
from killproof_evidence.evidence import Evidence

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


# --- P1, P2: what may be gone, and what nobody enqueued.


@pytest.mark.parametrize("may_go", [True, False])
@pytest.mark.parametrize(
    ("ended", "gone"),
    [("cancelled", True), ("done", True), ("failed", False), ("unfinished", False)],
)
def test_without_an_audit_a_row_may_be_gone_only_of_a_job_that_ended_and_only_where_rows_go(
    run: "Run", producer: "Process", first: "Process", may_go: bool, ended: str, gone: bool
) -> None:
    run.audited = False
    if may_go:
        run.edges["succeeded"] = ("deleted",)
    job = producer.enqueues("a")
    if ended == "cancelled":
        producer.cancels(job)
    elif ended == "unfinished":
        first.starts(job)
        first.makes_effect(job)
    else:
        first.runs(job, "ok" if ended == "done" else "raise")
    job.rows = 0

    assert run.verdict("P1") == ("pass" if gone and may_go else "violated")


@pytest.mark.parametrize(
    ("began", "deaths", "lost"), [(True, 0, False), (False, 1, False), (False, 0, True)]
)
def test_where_at_most_once_is_promised_a_job_may_go_with_who_took_it_and_not_without(
    run: "Run", producer: "Process", first: "Process", began: bool, deaths: int, lost: bool
) -> None:
    run.promises["P6"] = "at-most-once"
    run.edges["available"] = ("deleted",)
    job = producer.enqueues("a")
    if began:
        first.starts(job)
    run.commits(job, None)
    job.rows = 0
    for _ in range(deaths):
        run.kills(first)

    assert run.verdict("P1") == ("violated" if lost else "pass")


def test_a_producer_that_was_killed_had_no_job_in_hand_that_could_go_with_it(
    run: "Run", producer: "Process"
) -> None:
    run.promises["P6"] = "at-most-once"
    run.edges["available"] = ("deleted",)
    job = producer.enqueues("a")
    run.commits(job, None)
    job.rows = 0
    run.kills(producer)

    assert run.verdict("P1") == "violated"


@pytest.mark.parametrize(("level", "verdict"), [("at-most-once", "violated"), (True, "pass")])
def test_no_death_excuses_a_second_start_where_at_most_once_is_promised(
    run: "Run",
    producer: "Process",
    first: "Process",
    second: "Process",
    level: str | bool,
    verdict: str,
) -> None:
    run.promises["P6"] = level
    job = producer.enqueues("a")
    first.claims(job)
    first.starts(job)
    run.kills(first)
    run.reaps(job)
    second.claims(job)
    second.runs(job)

    assert run.verdict("P6") == verdict


@pytest.mark.parametrize("replayed", [False, True])
def test_where_at_most_once_is_promised_one_start_passes_and_one_more_for_each_replay(
    run: "Run", producer: "Process", first: "Process", replayed: bool
) -> None:
    run.promises["P6"] = "at-most-once"
    job = producer.enqueues("a")
    first.claims(job)
    first.runs(job, "raise")
    first.nacks(job, "dead")
    if replayed:
        producer.replays(job)
        first.claims(job)
        first.runs(job)

    assert run.verdict("P6") == "pass"


def test_a_run_that_was_started_twice_under_its_name_has_its_steps_once(run: "Run") -> None:
    producer = run.process("p1")
    producer.starts_run("r", {"a": []})
    started = [line for line in producer.lines if line["f"] == "start"]
    for line in started:
        producer.number += line["type"] == "invoke"
        producer.lines.append(line | {"t": run.tick(), "n": producer.number})

    assert run.verdict("P1") == "pass"


@pytest.mark.parametrize(
    ("payload", "state", "verdict"),
    [(None, None, "pass"), ({"id": "z"}, None, "violated"), ({"id": "z"}, "dead", "pass")],
)
def test_a_payload_that_is_hidden_or_is_of_a_dead_job_is_not_held_against_its_name(
    run: "Run", producer: "Process", payload: object, state: str | None, verdict: str
) -> None:
    job = producer.enqueues("a")
    job.row = {"payload": payload} | ({} if state is None else {"state": state})

    assert run.verdict("P1") == verdict


def test_a_phantom_after_the_job_of_a_schedule_is_seen(run: "Run") -> None:
    run.parameters["schedules"] = {"tick": {"every_ms": 500, "prefix": "tick:"}}
    run.commits(run.job("tick:1", key="tick:1"), "available")
    run.commits(run.job("z"), "available")

    assert "job 2 exists, but nobody enqueued it" in run.story("P2")


def test_where_nothing_was_enqueued_nothing_is_known_of_phantoms(run: "Run") -> None:
    run.process("p1")

    assert run.finding("P2").reason == "no job exists"


@pytest.mark.parametrize("sink", ["table", "http"])
def test_an_effect_of_a_job_that_nobody_enqueued_is_shown(
    run: "Run", producer: "Process", sink: str
) -> None:
    producer.enqueues("a")
    (run.tables if sink == "table" else run.posts).append({"job": "z"})

    finding = run.finding("P2")

    assert finding.witnesses[0].lines == ((f"effects/{sink}.jsonl", 1),)


# --- P3, P14, P16.


def test_where_nobody_knows_of_a_sink_no_effect_is_asked_for(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = producer.enqueues("a")
    del job.asked["sink"]
    first.claims(job)
    first.starts(job)
    first.ends(job)
    first.acks(job)
    run.tables.append({"job": "a"})

    assert run.verdict("P3") == "pass"


def test_a_cancel_that_was_begun_before_the_claim_may_end_its_lease(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    done, job = producer.enqueues("a"), producer.enqueues("b")
    first.claims(done)
    first.runs(done)
    first.acks(done)
    producer.invokes("cancel", job=job)
    first.claims(job)
    run.commits(job, "cancelled")
    producer.hears("ok", value=True)
    run.passes(100)

    assert run.verdict("P3") == "pass"


def test_a_success_under_a_token_of_which_there_is_no_claim_is_seen(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    job = producer.enqueues("a")
    first.claims(job)
    first.runs(job, "raise")
    first.nacks(job)
    run.commits(job, "available")
    job.fence = job.attempts = 2
    run.commits(job, "leased")
    first.runs(job)
    run.commits(job, "succeeded")

    assert "under token 2, and nobody had acked that" in run.story("P3")


def test_a_job_that_comes_from_nowhere_twice_or_is_there_though_gone_is_seen(
    run: "Run", producer: "Process"
) -> None:
    job, other = producer.enqueues("a"), producer.enqueues("b")
    job.state = None
    run.commits(job, "available")
    run.commits(other, None)
    other.state = "available"

    stories = [witness.story for witness in run.finding("P14").witnesses]

    assert stories == [
        "job 1 was available after one commit and absent before the next",
        "job 2 was absent after the last commit, and the snapshot tells it as available",
    ]


def test_each_copied_file_is_looked_at_and_all_that_is_wrong_is_told(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a")
    run.database = """
        CREATE TABLE a (id INTEGER PRIMARY KEY);
        CREATE TABLE b (a INTEGER REFERENCES a (id));
        INSERT INTO b VALUES (1), (2);
    """
    store = run.store()
    (store.db / "other.db").write_bytes((store.db / "queue.db").read_bytes())

    finding = CHECKERS["P16"](Evidence(store))

    assert (finding.checked, finding.violations) == (2, 2)
    assert finding.witnesses[1].story == (
        "queue.db: row 1 of b refers to no row of a; row 2 of b refers to no row of a"
    )


def test_without_a_copy_it_is_said_that_there_is_none(run: "Run", producer: "Process") -> None:
    producer.enqueues("a")
    run.database = None

    assert run.finding("P16").reason == "no copy of the database in db/"


@pytest.mark.parametrize(
    ("answer", "value", "busy_ms", "verdict"),
    [
        ("fail", "database is locked", 30_000, "violated"),
        ("fail", {"error": "database is locked"}, 30_000, "violated"),
        ("fail", "database is locked", 1, "pass"),
        ("fail", "database is locked", None, "violated"),
        ("ok", {"error": "database is locked"}, 30_000, "pass"),
    ],
)
def test_a_lock_error_counts_where_it_is_told_as_an_error_before_its_time(
    run: "Run", producer: "Process", answer: str, value: object, busy_ms: int | None, verdict: str
) -> None:
    del run.parameters["busy_ms"]
    if busy_ms is not None:
        run.parameters["busy_ms"] = busy_ms
    producer.invokes("enqueue", value={"id": "z"})
    run.passes(3)
    producer.hears(answer, value=value)

    assert run.verdict("P16") == verdict


def test_a_lease_that_was_taken_over_is_not_p3_s(
    run: "Run", producer: "Process", first: "Process", second: "Process"
) -> None:
    job = producer.enqueues("a")
    first.claims(job)
    second.claims(job)
    second.runs(job)
    second.acks(job)
    run.passes(100)

    assert run.verdict("P3") == "pass"


def test_where_no_job_succeeded_nothing_is_known_of_success(run: "Run") -> None:
    run.process("p1")

    assert run.finding("P3").reason == "no job succeeded"


@pytest.mark.parametrize(("answer", "verdict"), [("ok", "pass"), ("fail", "violated")])
def test_who_cancels_all_names_none_and_if_it_is_refused_cancels_none(
    run: "Run", producer: "Process", first: "Process", answer: str, verdict: str
) -> None:
    done, job = producer.enqueues("a"), producer.enqueues("b")
    first.claims(done)
    first.runs(done)
    first.acks(done)
    producer.invokes("cancel", value={"kind": "k"})
    run.commits(job, "cancelled")
    producer.hears(answer)

    assert run.verdict("P3") == verdict


def test_a_cancelled_job_that_changes_its_priority_is_cancelled_once(
    run: "Run", producer: "Process", first: "Process"
) -> None:
    done, job = producer.enqueues("a"), producer.enqueues("b")
    first.claims(done)
    first.runs(done)
    first.acks(done)
    run.commits(job, "cancelled")
    run.commits(job, "cancelled", priority=1)

    assert run.finding("P3").violations == 1
