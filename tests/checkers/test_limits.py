"""P22: limits hold over all processes, and are used; and what P11 and P19 make of them."""

from typing import TYPE_CHECKING, Any

import pytest

from killproof_evidence.judge import judge

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run


@pytest.fixture
def producer(run: "Run") -> "Process":
    run.parameters["limits"] = {"shop": {"kinds": ["scrape", "sync"], "running": 2}}
    return run.process("p1")


@pytest.fixture
def workers(run: "Run", producer: "Process") -> "list[Process]":
    return [run.process(f"w{number}") for number in (1, 2, 3)]


def jobs(producer: "Process", *kinds: str, **asked: Any) -> "list[Job]":
    number = len(producer.run.jobs)
    return [producer.enqueues(f"j{number + n}", kind=kind, **asked) for n, kind in enumerate(kinds)]


def done(worker: "Process", job: "Job") -> None:
    worker.runs(job)
    worker.acks(job)


# --- Kept.


def test_as_many_at_once_as_may_run_is_healthy(
    producer: "Process", workers: "list[Process]"
) -> None:
    first, second, third, other = jobs(producer, "scrape", "sync", "scrape", "report")
    for worker, job in zip(workers, (first, second, other), strict=True):
        worker.claims(job)
    done(workers[0], first)
    workers[0].claims(third)

    finding = producer.run.finding("P22")

    assert finding.verdict == "pass", finding
    assert finding.figures == {"running_max shop": 2}


def test_one_more_than_may_run_is_seen_whatever_its_kind(
    producer: "Process", workers: "list[Process]"
) -> None:
    for worker, job in zip(workers, jobs(producer, "scrape", "sync", "scrape"), strict=True):
        worker.claims(job)

    assert "3 jobs of shop ran at once when job 3 was claimed, and 2 may" in producer.run.story(
        "P22"
    )


@pytest.mark.parametrize("end", ["retryable", "available", "dead", "cancelled", None])
def test_whatever_ends_a_lease_makes_room(
    producer: "Process", workers: "list[Process]", end: str | None
) -> None:
    found = jobs(producer, "scrape", "sync", "scrape")
    for worker, job in zip(workers, found[:2], strict=False):
        worker.claims(job)
    producer.run.commits(found[0], end)
    workers[2].claims(found[2])

    assert producer.run.verdict("P22") == "pass"


def test_a_lease_that_is_taken_over_is_counted_once(
    producer: "Process", workers: "list[Process]"
) -> None:
    first, second = jobs(producer, "scrape", "sync")
    workers[0].claims(first)
    workers[1].claims(second)
    workers[2].claims(first)

    assert producer.run.verdict("P22") == "pass"


def test_a_limit_that_was_never_reached_has_not_been_tried(
    producer: "Process", workers: "list[Process]"
) -> None:
    workers[0].claims(jobs(producer, "scrape")[0])

    finding = producer.run.finding("P22")

    assert finding.verdict == "unknown"
    assert finding.reason == (
        "the limit of shop was never reached: at most 1 jobs ran at once, and 2 may"
    )


@pytest.mark.parametrize("missing", ["limits", "audit"])
def test_without_limits_or_without_an_audit_it_is_unknown(
    producer: "Process", workers: "list[Process]", missing: str
) -> None:
    run = producer.run
    for worker, job in zip(workers, jobs(producer, "scrape", "sync"), strict=False):
        worker.claims(job)
    if missing == "limits":
        run.parameters.pop("limits")
    else:
        run.audited = False

    assert run.verdict("P22") == "unknown"


# --- Rates.


def starts(run: "Run", gaps_ms: list[int]) -> None:
    """Claim one job after another, each so long after the one before; a claim takes 2 ms."""
    run.parameters["limits"] = {"api": {"kinds": ["scrape"], "rate": 10.0, "burst": 2}}
    producer, worker = run.process("p1"), run.process("w1")
    for job, gap_ms in zip(jobs(producer, *["scrape"] * len(gaps_ms)), gaps_ms, strict=True):
        run.passes(gap_ms)
        worker.claims(job)
        done(worker, job)


def test_a_burst_and_then_one_for_each_token_is_healthy(run: "Run") -> None:
    starts(run, [0, 0, 95, 95, 95, 95])

    finding = run.finding("P22")

    assert finding.verdict == "pass", finding
    assert finding.figures["starts api"] == 6


def test_more_than_the_burst_at_once_is_seen(run: "Run") -> None:
    starts(run, [0, 0, 0, 0])

    story = run.story("P22")
    assert "3 jobs of api started within 0.0" in story
    assert "10 a second after a burst of 2" in story


def test_a_rate_that_is_a_little_too_high_is_seen_in_the_long_run(run: "Run") -> None:
    starts(run, [0, *[85] * 40])

    assert "its rate is 10 a second after a burst of 2" in run.story("P22")


def test_a_rest_saves_no_more_tokens_than_the_burst(run: "Run") -> None:
    starts(run, [0, 5_000, 0, 0, 0])

    assert "its rate is 10 a second" in run.story("P22")


@pytest.mark.parametrize("gaps_ms", [[0, 200, 200], []])
def test_a_rate_whose_tokens_were_never_gone_has_not_been_tried(
    run: "Run", gaps_ms: list[int]
) -> None:
    starts(run, gaps_ms)
    other = jobs(run.processes[0], "report")[0]
    run.processes[1].claims(other)

    finding = run.finding("P22")

    assert finding.verdict == "unknown", finding
    assert str(finding.reason).startswith("the rate of api was never tried: at most ")


@pytest.mark.parametrize(("after_ms", "verdict"), [(900, "pass"), (1_500, "violated")])
def test_a_token_that_must_have_come_back_is_used(run: "Run", after_ms: int, verdict: str) -> None:
    starts(run, [0, 0, 95])
    producer, worker = run.processes
    jobs(producer, "scrape")
    run.passes(after_ms)
    worker.polls()
    run.passes(30)

    finding = run.finding("P22")

    assert finding.verdict == verdict, finding


# --- Used.


def test_who_asks_while_a_job_waits_below_its_limit_must_get_it(
    producer: "Process", workers: "list[Process]"
) -> None:
    reached(producer, workers)
    jobs(producer, "scrape")
    producer.run.passes(20)
    workers[2].polls()
    producer.run.passes(20)

    assert "w3 was told that there is nothing to do, while job 3 of kind scrape waited" in (
        producer.run.story("P22")
    )


def test_a_place_that_nobody_was_told_of_yet_may_be_unseen(
    producer: "Process", workers: "list[Process]"
) -> None:
    """Who is stopped between his statement and its commit has freed nothing for the others."""
    run = producer.run
    reached(producer, workers)
    first, second, third = jobs(producer, "scrape", "sync", "scrape")
    workers[0].claims(first)
    workers[1].claims(second)
    workers[0].runs(first)
    workers[0].invokes("ack", job=first, fence=first.fence)
    run.commits(first, "succeeded")
    run.passes(20)
    workers[2].polls()
    run.passes(20)
    workers[0].hears("ok")
    workers[2].claims(third)

    assert run.verdict("P22") == "pass"


@pytest.mark.parametrize(
    ("engine", "under_way", "verdict"),
    [("sim", False, "violated"), ("sim", True, "pass"), ("proc", False, "pass")],
)
def test_a_place_that_a_reaper_freed_is_seen_once_every_call_of_a_simulated_run_has_ended(
    producer: "Process", workers: "list[Process]", engine: str, under_way: bool, verdict: str
) -> None:
    """A reaper tells nobody what it took back; real processes may do so outside of any call."""
    run = producer.run
    run.facts["engine"] = engine
    reached(producer, workers)
    (lost,) = jobs(producer, "scrape")
    workers[0].claims(lost)
    run.strikes("kill", workers[0])
    run.passes(600)
    if under_way:
        workers[1].invokes("claim")
    run.commits(lost, "available")
    workers[2].polls()
    run.passes(20)
    workers[2].polls()
    run.passes(20)
    if under_way:
        workers[1].hears("ok")

    finding = run.finding("P22")

    assert finding.verdict == verdict, finding


def reached(producer: "Process", workers: "list[Process]") -> None:
    """Let the limit be reached, and end what runs."""
    first, second = jobs(producer, "scrape", "sync")
    workers[0].claims(first)
    workers[1].claims(second)
    done(workers[0], first)
    done(workers[1], second)


@pytest.mark.parametrize("why", ["full", "early", "other kinds", "too short"])
def test_who_could_not_be_given_it_is_no_witness(
    producer: "Process", workers: "list[Process]", why: str
) -> None:
    run = producer.run
    reached(producer, workers)
    if why == "full":
        for worker, job in zip(workers[:2], jobs(producer, "scrape", "sync"), strict=True):
            worker.claims(job)
    jobs(producer, "scrape", **({"delay_ms": 60_000} if why == "early" else {}))
    run.passes(20)
    if why == "other kinds":
        workers[2].invokes("claim", value={"kinds": ["report"]})
        workers[2].hears("ok")
    elif why == "too short":
        workers[2].invokes("claim")
        workers[2].claims(run.jobs[-1])
    else:
        workers[2].polls()
    run.passes(20)

    finding = run.finding("P22")

    assert finding.verdict == "pass", finding


def test_a_job_must_not_wait_below_its_limit_beside_a_worker_that_has_nothing(
    producer: "Process", workers: "list[Process]"
) -> None:
    reached(producer, workers)
    jobs(producer, "scrape")
    producer.run.passes(6_000)

    assert "job 3 of kind scrape waited 6.1 s, fewer jobs of its limits ran than may, and w1" in (
        producer.run.story("P22")
    )


@pytest.mark.parametrize("why", ["busy", "stopped", "stalled", "starved"])
def test_a_job_may_wait_where_nobody_could_have_taken_it(
    producer: "Process", workers: "list[Process]", why: str
) -> None:
    run = producer.run
    reached(producer, workers)
    if why == "busy":
        for worker, job in zip(workers, jobs(producer, *["report"] * 3), strict=True):
            worker.claims(job)
    jobs(producer, "scrape")
    if why == "stopped":
        for worker in workers:
            run.strikes("pause", worker, t_end=run.now + 7_000_000_000)
    if why == "stalled":
        run.stalls(6_000)
    else:
        run.passes(6_000)
    run.facts["starved"] = why == "starved"

    finding = run.finding("P22")

    assert finding.verdict == "pass", finding


def test_without_the_faults_on_record_nobody_is_accused_of_a_wait(
    producer: "Process", workers: "list[Process]"
) -> None:
    """A stop that excuses the worker may be the line that is torn."""
    run = producer.run
    run.promises["P22"] = True
    reached(producer, workers)
    jobs(producer, "scrape")
    for worker in workers:
        run.strikes("pause", worker, t_end=run.now + 7_000_000_000)
    run.passes(6_000)
    store = run.store()
    store.nemesis.write_text("torn\n" * 3)

    assert judge(store).record["properties"]["P22"]["verdict"] == "unknown"


# --- What others make of limits.


def test_a_job_behind_its_limit_is_not_passed_over(
    producer: "Process", workers: "list[Process]"
) -> None:
    first, second, _, later = jobs(producer, "scrape", "sync", "scrape", "report")
    workers[0].claims(first)
    workers[1].claims(second)
    workers[2].claims(later)

    assert producer.run.verdict("P11") == "pass"


def test_a_job_below_its_limit_goes_first(producer: "Process", workers: "list[Process]") -> None:
    first, _, later = jobs(producer, "scrape", "sync", "report")
    producer.run.passes(20)
    workers[0].claims(first)
    workers[2].claims(later)

    assert "claimed job 3" in producer.run.story("P11")


def test_what_has_a_rate_has_an_order_among_itself(run: "Run") -> None:
    """The claim of one shows that the rate let its kind through."""
    run.parameters["limits"] = {"api": {"kinds": ["scrape"], "rate": 10.0, "burst": 2}}
    producer, worker = run.process("p1"), run.process("w1")
    _, later = jobs(producer, "scrape", "scrape")
    run.passes(20)
    worker.claims(later)

    assert "w1 claimed job 2 " in run.story("P11")


@pytest.mark.parametrize(("limited", "verdict"), [(True, "pass"), (False, "violated")])
def test_a_wait_for_a_place_below_the_limit_is_no_starvation(
    producer: "Process", workers: "list[Process]", limited: bool, verdict: str
) -> None:
    run = producer.run
    run.parameters["starve_ms"] = 1_000
    if not limited:
        run.parameters.pop("limits")
    first, second, third = jobs(producer, "scrape", "sync", "scrape")
    run.heals()
    workers[0].claims(first)
    workers[0].starts(first)
    workers[1].claims(second)
    workers[1].starts(second)
    run.passes(2_000)
    done(workers[0], first)
    workers[0].claims(third)
    done(workers[0], third)

    assert run.verdict("P19") == verdict
