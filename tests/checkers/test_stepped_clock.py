"""A wall clock that the nemesis steps: due times follow it, leases and bounds do not."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from killproof_evidence.evidence import Evidence
from killproof_evidence.wall_clock import Step, WallClock

if TYPE_CHECKING:
    from tests.checkers.conftest import Process, Run

HOUR_MS = 3_600_000


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def worker(run: "Run") -> "Process":
    return run.process("w1")


def test_the_true_time_is_what_was_told_less_the_offset_in_force() -> None:
    back = Step(t=10, t_end=11, wall_ms=5 * HOUR_MS, before_ms=0, offset_ms=-HOUR_MS)
    forward = Step(t=90, t_end=91, wall_ms=5 * HOUR_MS + 1, before_ms=-HOUR_MS, offset_ms=0)
    clock = WallClock([back, forward])

    assert clock.true_ms(4 * HOUR_MS + 7) == 5 * HOUR_MS + 7
    assert clock.true_ms(5 * HOUR_MS + 7) == 5 * HOUR_MS + 7
    assert (back.is_forward, forward.is_forward) == (False, True)
    assert [clock.stepped(start, start + 5) for start in (0, 6, 12, 86, 92)] == [
        False, True, False, True, False,
    ]  # fmt: skip
    assert not clock.stepped(0, 50, forward=True)
    assert clock.stepped(0, 90, forward=True)


def test_a_commit_is_placed_in_time_whatever_the_clock_told(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    run.steps_clock(-HOUR_MS)
    worker.claims(job)
    claimed = run.now
    run.steps_clock(0)
    worker.runs(job)
    worker.acks(job)

    evidence = Evidence(run.store())

    assert not evidence.clock_stepped
    moment = evidence.moment(evidence.changes[1].t_ms)
    assert moment is not None
    assert abs(moment - claimed) < 3_000_000


def test_a_lease_that_a_step_has_ended_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.steps_clock(-HOUR_MS)
    done, job = producer.enqueues("a"), producer.enqueues("b")
    worker.claims(done)
    worker.runs(done)
    worker.acks(done)
    worker.claims(job)
    run.steps_clock(0)
    run.reaps(job)
    run.passes(50)

    assert "while its holder w1 lived and its deadline was to come" in run.story("P3")


def test_a_delayed_job_may_run_at_once_when_the_clock_is_set_forward(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.steps_clock(-HOUR_MS)
    job = producer.enqueues("a", delay_ms=500)
    run.steps_clock(0)
    run.passes(20)
    worker.claims(job)
    worker.runs(job)

    assert run.verdict("P10") == "pass"


def test_a_delayed_job_that_is_early_by_the_stepped_clock_is_seen(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """The true time has come, and the contract says that the wall clock decides."""
    job = producer.enqueues("a", delay_ms=500)
    run.steps_clock(-HOUR_MS)
    run.passes(600)
    worker.claims(job)

    assert "ms before it was due" in run.story("P10")


def test_a_job_that_was_due_stays_due_when_the_clock_is_set_back(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    run.passes(100)  # A commit right before the step would be in doubt.
    run.steps_clock(-HOUR_MS)
    run.passes(20)
    worker.claims(job)

    assert run.finding("P10").verdict != "violated"


def test_a_job_that_was_due_stays_due_when_its_worker_dies_after_the_clock_was_set_back(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    """Seen in a real run: the first crash goes back at once, with the due time it had."""
    job = producer.enqueues("a")
    run.passes(100)
    run.steps_clock(-HOUR_MS)
    run.passes(50)
    worker.claims(job)
    run.kills(worker)
    run.reaps(job)
    run.passes(50)
    run.process("w2").claims(job)

    assert run.finding("P10").verdict != "violated"


def test_a_second_crash_that_waited_before_the_clock_was_set_back_is_healthy(
    run: "Run", producer: "Process"
) -> None:
    job = producer.enqueues("a")
    for number in (1, 2):
        other = run.process(f"dying{number}")
        other.claims(job)
        run.kills(other)
        if number == 2:
            job.due_ms = run.wall_ms + 50
        run.reaps(job, "available" if number == 1 else "retryable")
    run.passes(60)
    run.commits(job, "available")
    run.passes(50)
    run.steps_clock(-HOUR_MS)
    run.passes(50)
    run.process("w2").claims(job)

    assert run.finding("P9").verdict == "pass"


@pytest.mark.parametrize("offset_ms", [0, -2 * HOUR_MS])
def test_a_step_inside_of_a_claim_accuses_nobody(
    run: "Run", producer: "Process", worker: "Process", offset_ms: int
) -> None:
    """The claim read the clock before the step, the audit after it."""
    run.steps_clock(-HOUR_MS)
    delayed = producer.enqueues("a", delay_ms=40)
    urgent = producer.enqueues("b", delay_ms=60, priority=0)
    run.passes(50)
    worker.invokes("claim")
    run.steps_clock(offset_ms)
    run.commits(delayed, "available")
    run.commits(urgent, "available")
    delayed.fence += 1
    delayed.attempts += 1
    run.commits(delayed, "leased")
    worker.hears("ok", job=delayed, fence=1)

    verdict = run.judged().record["properties"]
    assert {verdict[promise]["verdict"] for promise in ("P10", "P11")} <= {"pass", "unknown"}


def test_a_retry_whose_delay_a_step_has_ended_is_healthy(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.steps_clock(-HOUR_MS)
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job, "raise")
    worker.nacks(job)
    run.steps_clock(0)
    worker.claims(job)

    assert run.finding("P9").verdict != "violated"


def test_a_retry_before_its_delay_is_seen_while_the_clock_is_back(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.steps_clock(-HOUR_MS)
    job = producer.enqueues("a")
    worker.claims(job)
    worker.runs(job, "raise")
    worker.nacks(job)
    worker.claims(job)
    run.passes(20)
    run.steps_clock(0)

    assert "and 50 ms were due" in run.story("P9")


def test_a_step_without_its_fields_is_evidence_that_cannot_be_trusted(
    run: "Run", producer: "Process"
) -> None:
    producer.enqueues("a")
    run.strikes("clock", t_end=run.now)

    assert [m.file for m in Evidence(run.store()).malformed] == ["nemesis.jsonl"]


def test_a_process_that_ended_after_a_failed_call_needs_no_other_explanation(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    producer.enqueues("a")
    worker.polls()
    run.strikes("term", worker)
    run.kills(worker, "io-end")

    evidence = Evidence(run.store())
    assert evidence.unexplained == []
    assert worker.pid in evidence.self_ended
    assert worker.pid not in evidence.killed


def test_the_folder_of_a_run_without_steps_tells_the_true_time(tmp_path: Path) -> None:
    assert WallClock().true_ms(123) == 123
    assert not WallClock().stepped(0, 1 << 62)
