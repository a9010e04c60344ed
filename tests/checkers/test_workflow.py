"""P23: a step starts only after its needs, its result survives, and its run's state follows."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run

DIAMOND: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


@pytest.fixture
def producer(run: "Run") -> "Process":
    run.edges |= {"start": ("available", "blocked"), "blocked": ("available", "cancelled")}
    return run.process("p1")


@pytest.fixture
def worker(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


@pytest.fixture
def steps(producer: "Process", worker: "Process") -> "dict[str, Job]":
    return producer.starts_run("r", DIAMOND)


def succeeds(worker: "Process", job: "Job", *unblocked: "Job") -> None:
    """End a step well; what waits for nothing more is let go in the same transaction."""
    worker.invokes("ack", job=job, fence=job.fence)
    worker.run.commits(job, "succeeded")
    for other in unblocked:
        worker.run.commits(other, "available")
    if all(step.state == "succeeded" for step in worker.run.jobs):
        worker.run.commits_run("r", "succeeded")
    worker.hears("ok", job=job)


def does(worker: "Process", job: "Job", *unblocked: "Job") -> None:
    worker.does_step(job)
    succeeds(worker, job, *unblocked)


def does_all(worker: "Process", steps: "dict[str, Job]") -> None:
    a, b, c, d = steps.values()
    does(worker, a, b, c)
    does(worker, b)
    does(worker, c, d)
    does(worker, d)


def test_a_diamond_in_order_is_healthy(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)

    finding = run.finding("P23")

    assert finding.verdict == "pass", finding
    assert finding.figures == {"runs": 1}


@pytest.mark.parametrize("state", ["blocked", "leased", "dead"])
def test_a_step_that_starts_before_a_need_has_succeeded_is_seen(
    run: "Run", worker: "Process", steps: "dict[str, Job]", state: str
) -> None:
    a, b, c, d = steps.values()
    does(worker, a, b, c)
    does(worker, b)
    if state != "blocked":
        run.process("w2").claims(c)
    if state == "dead":
        run.commits(c, "dead")
    else:
        run.commits(d, "available")
    found = {"blocked": "available"}.get(state, state)
    worker.does_step(d)

    assert f"step r.d (job 4) was claimed while r.c, which it needs, was {found}" in run.story(
        "P23"
    )


def test_a_step_that_is_given_another_result_is_seen(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    a, b, c, _ = steps.values()
    does(worker, a, b, c)
    worker.does_step(b, saw={"r.a": "another"})

    assert "step r.b (job 2) was given another result of r.a" in run.story("P23")


def test_a_step_that_is_given_nothing_is_seen(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    a, b, c, _ = steps.values()
    does(worker, a, b, c)
    worker.does_step(b, saw={})

    assert "was given another result of r.a" in run.story("P23")


def test_it_is_the_attempt_that_succeeded_whose_result_survives(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    a, b, c, d = steps.values()
    worker.does_step(a, result="of the first attempt")
    run.kills(worker)
    run.reaps(a)
    other = run.process("w2")
    does(other, a, b, c)
    does(other, b)
    does(other, c, d)
    does(other, d)

    assert run.verdict("P23") == "pass"


def test_a_step_that_does_not_tell_what_it_was_given_leaves_it_unknown(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    for record in worker.effect_lines:
        record.pop("saw", None)

    assert run.verdict("P23") == "unknown"


def test_a_run_that_does_not_follow_its_last_step_is_seen(
    run: "Run", worker: "Process", steps: "dict[str, Job]", producer: "Process"
) -> None:
    does_all(worker, steps)
    run.audit.pop()
    producer.enqueues("other")

    assert "run r was running after a commit at which its steps say succeeded" in run.story("P23")


def test_a_run_that_succeeds_before_its_steps_is_seen(
    run: "Run", worker: "Process", steps: "dict[str, Job]", producer: "Process"
) -> None:
    does(worker, steps["a"], steps["b"], steps["c"])
    run.commits_run("r", "succeeded")
    producer.enqueues("other")

    assert "run r was succeeded after a commit at which its steps say running" in run.story("P23")


@pytest.mark.parametrize("end", ["failed", "succeeded"])
def test_a_run_of_which_a_step_died_has_failed(
    run: "Run", worker: "Process", steps: "dict[str, Job]", end: str
) -> None:
    a, *others = steps.values()
    worker.does_step(a)
    run.commits(a, "dead")
    for other in others:
        run.commits(other, "cancelled")
    run.commits_run("r", end)
    worker.polls()

    assert (run.verdict("P23") == "violated") == (end == "succeeded")


def test_a_replay_takes_a_failed_run_up_again(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]"
) -> None:
    a, *others = steps.values()
    worker.does_step(a)
    run.commits(a, "dead")
    for other in others:
        run.commits(other, "cancelled")
    run.commits_run("r", "failed")
    run.commits(a, "available")
    run.commits_run("r", "running")
    for other in others:
        run.commits(other, "blocked")
    does_all(worker, steps)

    assert run.verdict("P23") == "pass"


def test_a_run_that_goes_on_at_the_end_leaves_it_unknown(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does(worker, steps["a"], steps["b"], steps["c"])

    finding = run.finding("P23")

    assert finding.verdict == "unknown"
    assert finding.reason == "run r had not ended when the run of the harness did"


def test_a_step_that_nobody_let_go_is_seen(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does(worker, steps["a"])

    assert "step r.b (job 2) was still blocked at the end" in run.story("P23")


def test_a_start_that_left_a_part_of_its_steps_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    jobs = producer.starts_run("r", DIAMOND, commits=False, answer="info")
    run.commits_run("r", "running")
    run.commits(jobs["a"], "available")

    assert "run r was started with 4 steps, and 1 of them exist" in run.story("P23")


def test_a_start_of_unknown_outcome_may_have_left_nothing(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    producer.starts_run("s", DIAMOND, commits=False, answer="info")

    assert run.verdict("P23") == "pass"


def test_a_run_that_nobody_started_is_seen(run: "Run", steps: "dict[str, Job]") -> None:
    run.commits_run("x", "running", run=9)

    assert "run 9 (x) exists, and nobody started it" in run.story("P23")


def test_its_steps_are_jobs_that_were_enqueued(run: "Run", steps: "dict[str, Job]") -> None:
    assert run.verdict("P2") == "pass"


def test_without_a_run_or_an_audit_it_is_unknown(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    worker.claims(producer.enqueues("a"))

    assert run.finding("P23").reason == "no run of a workflow was started"


# --- Remembered steps.


def attempt(worker: "Process", job: "Job", *names: str, read: dict[str, str] | None) -> None:
    """Run the named steps of a handler; `read` is what it has at its end, None: it was killed."""
    worker.claims(job)
    worker.starts(job)
    for name in names:
        worker.remembers(job, name)
    if read is not None:
        worker.makes_effect(job)
        worker.ends(job)
        worker.effect_lines[-1]["read"] = read


@pytest.mark.parametrize(("again", "verdict"), [("yz", "pass"), ("z", "pass"), ("xyz", "violated")])
def test_a_step_whose_result_was_recorded_does_not_run_again(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]",
    again: str, verdict: str,
) -> None:  # fmt: skip
    does_all(worker, steps)
    other = run.process("w2")
    job = producer.enqueues("m")
    attempt(worker, job, "x", "y", read=None)
    run.kills(worker)
    run.reaps(job)
    attempt(other, job, *again, read={"x": "r", "y": "r", "z": "r"})
    other.acks(job)

    finding = run.finding("P23")

    assert finding.verdict == verdict, finding
    if verdict == "violated":
        assert "step x of job 5 ran again" in finding.witnesses[0].story


def test_a_recorded_result_that_comes_back_changed_is_seen(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    attempt(worker, producer.enqueues("m"), "x", read={"x": "other"})

    assert "was given a result of step x that no run of it returned" in run.story("P23")


@pytest.mark.parametrize("is_replayed", [True, False])
def test_what_a_failure_cancelled_comes_back_by_a_replay_in_its_run_and_not_by_itself(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]", is_replayed: bool
) -> None:
    """P7: the run is what is replayed, by the step that failed."""
    run.edges |= {"cancelled": ("available",), "dead": ("available",)}
    a, b, c, d = steps.values()
    worker.does_step(a)
    run.commits(a, "dead")
    for step in (b, c, d):
        run.commits(step, "cancelled")
    if is_replayed:
        producer.replays(a)
        worker.does_step(a)
        run.commits(a, "succeeded")
    run.commits(b, "available")

    finding = run.finding("P7")
    assert (finding.verdict == "violated") != is_replayed, finding


# --- What was never tried is not shown.


def test_steps_that_nobody_claimed_show_no_order(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    for step in steps.values():
        run.commits(step, "cancelled")
    run.commits_run("r", "cancelled")

    finding = run.finding("P23")

    assert (finding.verdict, finding.reason) == (
        "unknown",
        "no step that needs another was claimed",
    )


def test_results_that_nobody_returned_show_no_survival(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    for record in worker.effect_lines:
        record.pop("result", None)

    finding = run.finding("P23")

    assert (finding.verdict, finding.reason) == ("unknown", "no result of a step was handed on")


def test_a_run_that_is_undone_for_ever_leaves_it_unknown(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    a, *others = steps.values()
    worker.does_step(a)
    run.commits(a, "dead")
    for other in others:
        run.commits(other, "cancelled")
    run.commits_run("r", "compensating")

    assert run.verdict("P23") == "unknown"


def test_a_run_that_is_forgotten_before_its_steps_is_seen(
    run: "Run", worker: "Process", steps: "dict[str, Job]", producer: "Process"
) -> None:
    does(worker, steps["a"], steps["b"], steps["c"])
    run.commits_run("r", None)
    producer.enqueues("other")

    assert "run r was gone after a commit at which its steps say running" in run.story("P23")


def test_a_run_may_be_forgotten_with_its_steps(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    run.commits_run("r", None)
    for step in steps.values():
        run.commits(step, None)

    assert run.verdict("P23") == "pass"


def test_a_run_that_is_started_twice_is_seen(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    run.commits_run("r", "succeeded", run=2)

    assert "run r is there twice" in run.story("P23")


def test_a_start_that_does_not_say_what_it_starts_is_malformed(
    run: "Run", worker: "Process", producer: "Process", steps: "dict[str, Job]"
) -> None:
    run.promises["P23"] = True
    does_all(worker, steps)
    next(line for line in producer.lines if line["f"] == "start").pop("value")

    verdict = run.judged()

    assert verdict.record["properties"]["P23"]["verdict"] == "unknown"


@pytest.mark.parametrize("kept", ["steps", "read"])
def test_a_handler_that_does_not_tell_what_it_remembered_leaves_it_unknown(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]", kept: str
) -> None:
    does_all(worker, steps)
    job = producer.enqueues("m", memo=["x"])
    attempt(worker, job, *(["x"] if kept == "steps" else []), read={"x": "r"})
    if kept == "steps":
        worker.effect_lines[-1].pop("read")
    else:
        worker.effect_lines[-1]["read"] = {}
    worker.acks(job)

    finding = run.finding("P23")

    assert finding.verdict == "unknown", finding


# --- Right beside a clause: found by `make mutate-checkers`.


def test_a_step_that_needs_what_nobody_started_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    steps = producer.starts_run("r", {"b": ["a"]})
    worker.does_step(steps["b"])

    assert "while r.a, which it needs, was not there" in run.story("P23")


def test_a_step_whose_need_ran_and_did_not_succeed_is_accused_of_its_start_alone(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    a, b, _, _ = steps.values()
    worker.does_step(a)
    worker.does_step(b, saw={"r.a": "another"})

    finding = run.finding("P23")

    assert (finding.verdict, finding.violations) == ("violated", 1)


def test_an_attempt_that_does_not_tell_what_it_was_given_hides_no_later_one(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    a, b, c, _ = steps.values()
    does(worker, a, b, c)
    worker.does_step(b)
    worker.effect_lines[-3].pop("saw")
    run.reaps(b)
    run.process("w2").does_step(b, saw={"r.a": "another"})

    assert "step r.b (job 2) was given another result of r.a" in run.story("P23")


def test_a_need_that_does_not_tell_what_it_returned_hides_no_other(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    a, b, c, d = steps.values()
    does(worker, a, b, c)
    does(worker, b)
    worker.effect_lines[-1].pop("result")
    does(worker, c, d)
    worker.does_step(d, saw={"r.b": "r", "r.c": "another"})

    assert "step r.d (job 4) was given another result of r.c" in run.story("P23")


def test_a_run_that_nobody_started_or_a_job_of_none_hides_no_other_run(
    run: "Run", worker: "Process", steps: "dict[str, Job]", producer: "Process"
) -> None:
    run.commits_run("x", "running", run=9)
    producer.enqueues("other")
    does(worker, steps["a"], steps["b"], steps["c"])
    run.commits_run("r", "succeeded")
    producer.enqueues("another")

    assert run.finding("P23").violations == 2


def test_a_replayed_run_may_go_on_for_more_than_one_commit(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]"
) -> None:
    a, *others = steps.values()
    worker.does_step(a)
    run.commits(a, "dead")
    for other in others:
        run.commits(other, "cancelled")
    run.commits_run("r", "failed")
    run.commits(a, "available")
    run.commits_run("r", "running")
    for other in others:
        run.commits(other, "blocked")
    producer.enqueues("other")
    does_all(worker, steps)
    run.commits_run("r", "succeeded")

    assert run.verdict("P23") == "pass"


def test_steps_without_their_run_are_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    jobs = producer.starts_run("r", {"a": []}, commits=False)
    run.commits(jobs["a"], "available")
    producer.enqueues("other")
    producer.starts_run("s", {"b": []})

    assert "run r was not there after a commit at which its steps say running" in run.story("P23")


def test_the_first_commit_at_which_a_run_went_wrong_is_shown(
    run: "Run", worker: "Process", steps: "dict[str, Job]", producer: "Process"
) -> None:
    run.commits_run("r", "succeeded")
    wrong = len(run.audit)
    run.commits_run("r", "failed")
    producer.enqueues("other")

    assert ("audit.jsonl", wrong) in run.finding("P23").witnesses[0].lines


def test_the_result_of_another_remembered_step_is_not_taken_for_its_own(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    job = producer.enqueues("m")
    worker.claims(job)
    worker.starts(job)
    worker.remembers(job, "x", "of x")
    worker.remembers(job, "y", "of y")
    worker.makes_effect(job)
    worker.ends(job)
    worker.effect_lines[-1]["read"] = {"x": "of y", "y": "of y"}

    assert run.finding("P23").violations == 1


@pytest.mark.parametrize(("end", "verdict"), [("failed", "unknown"), ("succeeded", "violated")])
def test_a_run_of_one_step_goes_on_until_that_has_ended_and_ends_as_it_did(
    run: "Run", producer: "Process", worker: "Process", end: str, verdict: str
) -> None:
    """Unknown, for nothing was handed on."""
    step = producer.starts_run("r", {"a": []})["a"]
    producer.enqueues("other")
    worker.does_step(step)
    run.commits(step, "dead")
    run.commits_run("r", end)

    assert run.verdict("P23") == verdict


def test_a_run_without_a_step_has_succeeded_at_once(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    producer.starts_run("r", {})
    run.commits_run("r", "succeeded")
    producer.enqueues("other")

    assert run.finding("P23").violations == 0


def test_a_run_none_of_whose_steps_was_written_may_be_forgotten(
    run: "Run", producer: "Process"
) -> None:
    producer.starts_run("r", {"a": []}, commits=False, answer="info")
    run.commits_run("r", "running")
    run.commits_run("r", None)
    producer.enqueues("other")

    assert run.finding("P23").violations == 0


def test_a_run_may_be_forgotten_long_before_its_ended_steps(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    run.commits_run("r", None)
    producer.enqueues("other")

    assert run.verdict("P23") == "pass"


def test_without_an_audit_the_order_of_the_steps_is_unknown(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    run.audited = False

    finding = run.finding("P23")

    assert (finding.verdict, finding.reason) == (
        "unknown",
        "no audit: in what order steps moved cannot be told",
    )


def test_where_the_audit_has_no_runs_it_is_unknown_whether_they_follow(
    run: "Run", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    run.audit = [record for record in run.audit if "run" not in record]

    finding = run.finding("P23")

    assert (finding.verdict, finding.reason) == ("unknown", "the audit has no change of a run")


def test_an_attempt_that_was_killed_need_not_tell_what_it_remembered(
    run: "Run", producer: "Process", worker: "Process", steps: "dict[str, Job]"
) -> None:
    does_all(worker, steps)
    job = producer.enqueues("m", memo=["x"])
    attempt(worker, job, "x", read=None)
    run.kills(worker)
    run.reaps(job)
    attempt(run.process("w2"), job, "x", read={"x": "r"})

    assert run.verdict("P23") == "pass"


@pytest.mark.parametrize(("read", "violations"), [({"x": "r"}, 1), (None, 0)])
def test_the_last_step_is_recorded_once_the_handler_has_read_it_and_not_by_its_end_alone(
    run: "Run", producer: "Process", worker: "Process", read: dict[str, str] | None, violations: int
) -> None:
    job = producer.enqueues("m")
    attempt(worker, job, "x", read=read)
    if read is None:
        worker.ends(job, "raise")
    run.reaps(job)
    attempt(worker, job, "x", read={"x": "r"})

    assert run.finding("P23").violations == violations


def test_an_attempt_that_starts_late_under_an_old_token_knows_nothing_of_a_later_one(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("m")
    old = worker.claims(job)
    run.reaps(job)
    attempt(run.process("w2"), job, "x", read={"x": "r"})
    worker.starts(job, fence=old)
    worker.remembers(job, "x")
    worker.effect_lines[-1] |= {"fence": old, "attempt": 1}

    assert run.finding("P23").violations == 0
