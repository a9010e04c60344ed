"""P2 and P12 of a schedule: nobody enqueues its jobs, and each slot has exactly one."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Run

EVERY_MS = 500
PREFIX = "schedule:tick:"


@pytest.fixture
def first_ms(run: "Run") -> int:
    """The first slot, which is now; a producer has put in a job of its own."""
    run.parameters["schedules"] = {"tick": {"every_ms": EVERY_MS, "prefix": PREFIX}}
    run.process("p1").enqueues("a", key="of a producer")
    return run.wall_ms


def fires(run: "Run", slot_ms: int) -> "Job":
    """Put in the job of a slot, as a worker does, without a word in the history."""
    moment = datetime.fromtimestamp(slot_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    job = run.job(f"{PREFIX}{moment}", key=f"{PREFIX}{moment}")
    job.due_ms = run.wall_ms
    run.commits(job, "available")
    return job


def test_one_job_for_each_slot_is_healthy(run: "Run", first_ms: int) -> None:
    for number in range(4):
        fires(run, first_ms + number * EVERY_MS)
        run.passes(EVERY_MS)

    assert run.verdict("P12") == "pass"


def test_a_job_of_a_schedule_is_no_phantom(run: "Run", first_ms: int) -> None:
    fires(run, first_ms)

    assert run.verdict("P2") == "pass"


def test_a_job_that_only_looks_like_one_is_a_phantom(run: "Run", first_ms: int) -> None:
    fires(run, first_ms)
    run.parameters["schedules"]["tick"]["prefix"] = "schedule:other:"

    assert "nobody enqueued it" in run.story("P2")


def test_two_jobs_for_one_slot_are_seen_also_one_after_the_other(run: "Run", first_ms: int) -> None:
    run.commits(fires(run, first_ms), "cancelled")
    fires(run, first_ms)

    assert run.story("P12") == "jobs 2 and 3 were put in for one slot of schedule tick"


def test_a_slot_that_was_passed_over_is_seen(run: "Run", first_ms: int) -> None:
    fires(run, first_ms)
    run.passes(2 * EVERY_MS)
    fires(run, first_ms + 2 * EVERY_MS)

    assert "jobs for two that are 1000 ms apart and none in between" in run.story("P12")


def test_a_job_before_its_slot_is_seen(run: "Run", first_ms: int) -> None:
    fires(run, first_ms + 40)

    assert "was put in 40 ms before its slot" in run.story("P12")


def test_a_key_without_a_slot_is_seen(run: "Run", first_ms: int) -> None:
    job = run.job("x", key=f"{PREFIX}now")
    run.commits(job, "available")

    assert "names no slot" in run.story("P12")


def test_a_schedule_that_never_fired_leaves_it_unknown(run: "Run", first_ms: int) -> None:
    assert run.verdict("P12") == "unknown"


@pytest.mark.parametrize("why", ["silent", "short", "stalled", "starved", "nobody asks"])
def test_a_schedule_that_falls_silent_while_workers_ask_is_seen(
    run: "Run", first_ms: int, why: str
) -> None:
    fires(run, first_ms)
    run.passes(EVERY_MS)
    fires(run, first_ms + EVERY_MS)
    if why == "stalled":
        run.stalls(7_000)
    else:
        run.passes(3_000 if why == "short" else 7_000)
    if why != "nobody asks":
        run.process("w1").polls()
    run.facts["starved"] = why == "starved"

    finding = run.finding("P12")

    words = {"silent": "violated", "starved": "unknown"}
    assert finding.verdict == words.get(why, "pass"), finding
    if why == "silent":
        assert "schedule tick put no job in for 7.0 s" in finding.witnesses[0].story


def test_a_job_long_after_a_step_of_the_clock_and_before_its_slot_is_seen(
    run: "Run", first_ms: int
) -> None:
    run.steps_clock(5)
    run.passes(60_000)
    fires(run, run.wall_ms + 40)

    assert "was put in 40 ms before its slot" in run.story("P12")


@pytest.mark.parametrize(("asks", "verdict"), [(True, "violated"), (False, "pass")])
def test_it_is_the_last_claim_that_tells_how_long_a_schedule_was_silent(
    run: "Run", first_ms: int, asks: bool, verdict: str
) -> None:
    """What others do later asks for no job."""
    worker = run.process("w1")
    fires(run, first_ms)
    worker.polls()
    run.passes(7_000)
    if asks:
        worker.polls()
    run.process("p2").enqueues("b", key="another of a producer")

    assert run.verdict("P12") == verdict
