"""Histories right beside a clause of P22 and P19's limits, as in `test_neighbours.py`."""

from typing import TYPE_CHECKING, Any

import pytest

from killproof_evidence.checkers.limits import Full

if TYPE_CHECKING:
    from tests.checkers.conftest import Job, Process, Run

HOUR_MS = 3_600_000


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


def reached(producer: "Process", workers: "list[Process]") -> None:
    """Let the first two reach the limit and end what runs; the third has asked for work."""
    found = jobs(producer, "scrape", "sync")
    workers[2].polls()
    for worker, job in zip(workers[:2], found, strict=True):
        worker.claims(job)
    for worker, job in zip(workers[:2], found, strict=True):
        worker.runs(job)
        worker.acks(job)
    producer.run.passes(20)


# --- Used: who asked, and was told that there is nothing.


@pytest.mark.parametrize("answer", ["another job", "a refusal", "no claim", "the job at once"])
def test_who_was_not_told_that_there_is_nothing_is_no_witness(
    run: "Run", producer: "Process", workers: "list[Process]", answer: str
) -> None:
    reached(producer, workers)
    (job,) = jobs(producer, "scrape")
    other = jobs(producer, "report")[0]
    run.passes(20)
    if answer == "another job":
        workers[2].claims(other)
    elif answer == "a refusal":
        workers[2].invokes("claim")
        workers[2].hears("fail")
    elif answer == "no claim":
        producer.invokes("cancel", value={"kind": "nothing"})
        producer.hears("ok")
    else:
        workers[2].polls()
    run.passes(0 if answer == "the job at once" else 20)
    workers[0].claims(job)

    finding = run.finding("P22")

    assert finding.verdict == "pass", finding


def test_who_asks_for_one_limited_kind_of_two_is_a_witness_for_that(
    run: "Run", producer: "Process", workers: "list[Process]"
) -> None:
    reached(producer, workers)
    jobs(producer, "sync")
    run.passes(20)
    workers[2].invokes("claim", value={"kinds": ["sync"]})
    workers[2].hears("ok")
    run.passes(20)

    assert "while job 3 of kind sync waited" in run.story("P22")


def test_a_job_that_is_available_and_not_due_does_not_wait(
    run: "Run", producer: "Process", workers: "list[Process]"
) -> None:
    reached(producer, workers)
    (job,) = jobs(producer, "scrape")
    run.audit[-1]["due_ms"] = job.due_ms = run.wall_ms + 60_000
    run.passes(20)
    workers[2].polls()
    run.passes(20)

    assert run.verdict("P22") == "pass"


def test_a_job_that_was_cancelled_waits_no_longer(
    run: "Run", producer: "Process", workers: "list[Process]"
) -> None:
    reached(producer, workers)
    (job,) = jobs(producer, "scrape")
    run.passes(20)
    producer.cancels(job)
    run.passes(20)
    workers[2].polls()
    run.passes(20)

    assert run.verdict("P22") == "pass"


@pytest.mark.parametrize(("steps", "verdict"), [("before", "violated"), ("between", "pass")])
def test_nobody_is_accused_of_a_wait_between_the_steps_of_the_clock(
    run: "Run", producer: "Process", workers: "list[Process]", steps: str, verdict: str
) -> None:
    if steps == "before":
        run.steps_clock(HOUR_MS)
        run.steps_clock(0)
        run.passes(50)
    reached(producer, workers)
    jobs(producer, "scrape")
    if steps == "between":
        run.steps_clock(HOUR_MS)
    run.passes(20)
    workers[2].polls()
    run.passes(20)

    assert run.verdict("P22") == verdict


def test_without_a_call_that_ties_the_clocks_no_wait_is_measured(run: "Run") -> None:
    run.parameters["limits"] = {"shop": {"kinds": ["k"], "running": 1}}
    job = run.job("a")
    run.commits(job, "available")
    job.fence = job.attempts = 1
    run.commits(job, "leased")

    assert run.finding("P22").reason == (
        "nothing ties the audit's clock to the others, so no wait can be measured"
    )


def test_a_resource_without_a_bound_of_which_nothing_ran_says_nothing(
    run: "Run", producer: "Process", workers: "list[Process]"
) -> None:
    run.parameters["limits"] = {"shop": {"kinds": ["scrape"]}}
    workers[0].claims(jobs(producer, "report")[0])

    assert run.finding("P22").reason == "no job of a limited kind was claimed"


# --- Used: by when a place was certainly free.


@pytest.mark.parametrize(
    ("later", "verdict"),
    [("claim", "violated"), ("ack", "violated"), ("enqueue", "violated"), ("sweep", "pass")],
)
def test_what_stands_before_a_commit_that_somebody_was_told_of_is_committed(
    run: "Run", producer: "Process", workers: "list[Process]", later: str, verdict: str
) -> None:
    """A reaper tells nobody; who is told of a later commit shows that his is there too."""
    reached(producer, workers)
    lost, held, other = jobs(producer, "scrape", "report", "report")
    asleep = producer.enqueues("asleep", kind="report", delay_ms=500)
    workers[0].claims(lost)
    workers[1].claims(held)
    run.kills(workers[0])
    run.passes(600)
    run.commits(lost, "available")
    if later == "claim":
        workers[1].claims(other)
    elif later == "ack":
        workers[1].acks(held)
    elif later == "enqueue":
        jobs(producer, "report")
    else:
        run.commits(asleep, "available")
    run.passes(20)
    workers[2].polls()
    run.passes(20)

    finding = run.finding("P22")

    assert finding.verdict == verdict, finding


@pytest.mark.parametrize(("f", "answer"), [("extend", "ok"), ("ack", "fail")])
def test_an_extension_and_a_refused_outcome_do_not_tell_that_a_lease_has_ended(
    run: "Run", producer: "Process", workers: "list[Process]", f: str, answer: str
) -> None:
    reached(producer, workers)
    first, second, third = jobs(producer, "scrape", "sync", "scrape")
    workers[0].claims(first)
    workers[1].claims(second)
    workers[0].settles(f, first, None, answer=answer)
    workers[0].invokes("ack", job=first, fence=first.fence)
    run.commits(first, "succeeded")
    run.passes(20)
    workers[2].polls()
    run.passes(20)
    workers[0].hears("ok")
    workers[2].claims(third)

    finding = run.finding("P22")

    assert finding.verdict == "pass", finding


# --- Used: when a place was certainly free, in a simulated run.


def freed(run: "Run", producer: "Process", workers: "list[Process]") -> None:
    """Let a reaper free the place of a job whose worker died, while calls are under way."""
    run.facts["engine"] = "sim"
    reached(producer, workers)
    (job,) = jobs(producer, "scrape")
    workers[0].claims(job)
    run.kills(workers[0])
    run.passes(600)


@pytest.mark.parametrize(
    ("call", "verdict"),
    [("ended", "violated"), ("killed", "violated"), ("open", "pass"), ("slow", "pass")],
)
def test_a_call_that_was_under_way_counts_until_it_ended_or_its_process_died(
    run: "Run", producer: "Process", workers: "list[Process]", call: str, verdict: str
) -> None:
    last = run.process("w4")
    freed(run, producer, workers)
    last.invokes("claim", value={"kinds": ["report"]})
    if call == "ended":
        last.hears("ok")
    run.commits(run.jobs[2], "available")
    if call == "killed":
        run.kills(last)
    if call == "slow":
        run.passes(7)
        last.hears("ok")
        run.passes(5)
    else:
        run.passes(20)
    workers[2].polls()
    run.passes(20)
    if call == "ended":
        run.kills(last)
        run.passes(20)

    finding = run.finding("P22")

    assert finding.verdict == verdict, finding


# --- Used: who had nothing in hand all the time.


def idle(run: "Run", producer: "Process", workers: "list[Process]") -> None:
    """Let a job wait for longer than it may; the first two workers are told to stop before."""
    reached(producer, workers)
    for worker in workers[:2]:
        run.strikes("term", worker)
    jobs(producer, "scrape")
    run.passes(6_000)


def test_the_last_line_of_an_idle_worker_that_was_killed_is_shown(
    run: "Run", producer: "Process", workers: "list[Process]"
) -> None:
    workers[2].polls()
    idle(run, producer, workers)
    workers[2].polls()
    run.kills(workers[2])
    lines = run.finding("P22").witnesses[-1].lines

    assert lines == (("audit.jsonl", 7), ("history/w3.jsonl", 1), ("history/w3.jsonl", 6))


def test_a_stop_that_ended_before_the_wait_excuses_nobody(
    run: "Run", producer: "Process", workers: "list[Process]"
) -> None:
    run.pauses(workers[2], 50)
    run.passes(10)
    idle(run, producer, workers)

    assert "and w3 had nothing in hand" in run.story("P22")


@pytest.mark.parametrize("why", ["told to stop", "takes other kinds", "came too late"])
def test_who_could_not_be_expected_to_take_it_is_not_accused(
    run: "Run", producer: "Process", workers: "list[Process]", why: str
) -> None:
    if why == "told to stop":
        reached(producer, workers)
        run.strikes("term", workers[2])
    else:
        # The third has asked for nothing but what is said below.
        found = jobs(producer, "scrape", "sync")
        for worker, job in zip(workers[:2], found, strict=True):
            worker.claims(job)
        for worker, job in zip(workers[:2], found, strict=True):
            worker.acks(job)
        if why == "takes other kinds":
            workers[2].invokes("claim", value={"kinds": ["report"]})
            workers[2].hears("ok")
            run.passes(20)
    for worker in workers[:2]:
        run.strikes("term", worker)
    jobs(producer, "scrape")
    if why == "came too late":
        workers[2].polls()
    run.passes(6_000)

    finding = run.finding("P22")

    assert finding.verdict == "pass", finding


def test_what_a_worker_claims_after_the_wait_is_no_excuse_for_it(
    run: "Run", producer: "Process", workers: "list[Process]"
) -> None:
    idle(run, producer, workers)
    workers[0].claims(run.jobs[-1])
    run.passes(20)
    workers[2].claims(jobs(producer, "report")[0])

    assert "and w3 had nothing in hand" in run.story("P22")


@pytest.mark.parametrize("how", ["extended, and acked later", "a claim without an answer"])
def test_a_worker_that_may_have_held_another_job_is_not_accused(
    run: "Run", producer: "Process", workers: "list[Process]", how: str
) -> None:
    reached(producer, workers)
    (other,) = jobs(producer, "report")
    if how == "a claim without an answer":
        workers[2].invokes("claim", job=other)
    else:
        workers[2].claims(other)
        workers[2].extends(other)
    for worker in workers[:2]:
        run.strikes("term", worker)
    run.passes(20)
    jobs(producer, "scrape")
    run.passes(6_000)
    if how == "a claim without an answer":
        workers[2].starts(other, fence=1)
    else:
        workers[2].acks(other)

    finding = run.finding("P22")

    assert finding.verdict == "pass", finding


def test_how_long_a_job_may_wait_may_be_declared(
    run: "Run", producer: "Process", workers: "list[Process]"
) -> None:
    run.parameters["limit_wait_ms"] = 100
    reached(producer, workers)
    jobs(producer, "scrape")
    run.passes(200)

    assert "waited 0.3 s" in run.story("P22")


@pytest.mark.parametrize(("between", "verdict"), [("enqueue", "violated"), ("start", "pass")])
def test_a_wait_is_over_when_one_of_its_kind_starts_and_not_when_another_comes(
    run: "Run", producer: "Process", workers: "list[Process]", between: str, verdict: str
) -> None:
    reached(producer, workers)
    _, first = jobs(producer, "scrape", "scrape")
    run.passes(3_000)
    if between == "enqueue":
        jobs(producer, "scrape")
    else:
        workers[0].claims(first)
    run.passes(3_000)

    assert run.verdict("P22") == verdict


# --- Rates.


def rated(run: "Run", *, burst: int = 2, **kinds: "list[str]") -> "tuple[Process, Process]":
    """A resource with a rate of 10 a second."""
    rule = {"kinds": ["scrape"], "rate": 10.0, "burst": burst} | kinds
    run.parameters["limits"] = {"api": rule}
    return run.process("p1"), run.process("w1")


def does(worker: "Process", job: "Job") -> None:
    worker.claims(job)
    worker.runs(job)
    worker.acks(job)


@pytest.mark.parametrize(("after_ms", "verdict"), [(1_000, "pass"), (1_200, "violated")])
def test_a_token_comes_back_after_its_time_and_the_second_that_is_allowed_for(
    run: "Run", after_ms: int, verdict: str
) -> None:
    producer, worker = rated(run)
    for job in jobs(producer, "scrape", "scrape"):
        does(worker, job)
    jobs(producer, "scrape")
    run.passes(after_ms)
    worker.polls()
    run.passes(200)

    assert run.verdict("P22") == verdict


def test_a_token_of_a_resource_that_rested_is_there_at_once(run: "Run") -> None:
    """Whatever started beside it in the meantime."""
    producer, worker = rated(run)
    for job in jobs(producer, "scrape", "scrape", "report"):
        does(worker, job)
    run.passes(2_000)
    jobs(producer, "scrape")
    run.passes(50)
    worker.polls()
    run.passes(20)

    assert "while job 4 of kind scrape waited" in run.story("P22")


@pytest.mark.parametrize(
    ("kinds", "verdict"), [(["scrape", "sync"], "pass"), (["scrape"], "violated")]
)
def test_who_takes_a_token_takes_it_from_all_kinds_of_its_resource_and_from_no_other(
    run: "Run", kinds: list[str], verdict: str
) -> None:
    producer, worker = rated(run, kinds=kinds)
    run.parameters["limits"]["shop"] = {"kinds": ["sync"], "running": 1}
    run.parameters["limit_wait_ms"] = 1_500
    other = run.process("w2")
    other.polls()
    for job in jobs(producer, "scrape", "scrape"):
        does(worker, job)
    run.passes(2_000)
    jobs(producer, "scrape")
    run.passes(1_000)
    does(worker, jobs(producer, "sync")[0])
    run.passes(900)

    assert run.verdict("P22") == verdict


@pytest.mark.parametrize(("stepped", "verdict"), [(True, "pass"), (False, "violated")])
def test_what_a_step_of_the_wall_clock_does_to_a_bucket_is_not_held_against_it(
    run: "Run", stepped: bool, verdict: str
) -> None:
    producer, worker = rated(run)
    found = jobs(producer, *["scrape"] * 4)
    for job in found[:2]:
        does(worker, job)
    if stepped:
        run.steps_clock(HOUR_MS)
    for job in found[2:]:
        does(worker, job)

    assert run.verdict("P22") == verdict


def test_a_first_start_is_within_a_burst_of_one_however_short_its_claim(run: "Run") -> None:
    producer, worker = rated(run, burst=1)
    for job in jobs(producer, "scrape", "scrape"):
        does(worker, job)
        run.passes(200)
    for asked, told in zip(worker.lines[::2], worker.lines[1::2], strict=True):
        told["t"] = asked["t"]

    assert run.finding("P22").violations == 0


def test_a_rate_is_kept_by_the_commits_also_where_no_call_is_on_record(run: "Run") -> None:
    run.parameters["limits"] = {"api": {"kinds": ["k"], "rate": 10.0, "burst": 2}}
    for number in range(3):
        job = run.job(f"j{number}")
        run.commits(job, "available")
        job.fence = job.attempts = 1
        run.commits(job, "leased")

    assert "3 jobs of api started" in run.story("P22")


def dies_in_a_claim(run: "Run", job: "Job", *, ms: int = 0) -> None:
    """Claim a job, and be killed before the answer; the claim takes so long."""
    victim = run.process(f"dying {job.name}")
    victim.invokes("claim")
    run.passes(ms)
    job.fence = job.attempts = 1
    run.commits(job, "leased")
    run.kills(victim)


@pytest.mark.parametrize(
    ("what", "verdict"),
    [
        ("nothing", "violated"),
        ("died before", "violated"),
        ("still asks", "pass"),
        ("took long", "pass"),
    ],
)
def test_who_died_in_a_claim_may_have_begun_when_it_or_another_open_call_did(
    run: "Run", what: str, verdict: str
) -> None:
    producer, worker = rated(run)
    found = jobs(producer, *["scrape"] * 3)
    other = run.process("w2")
    if what in {"died before", "still asks"}:
        other.invokes("claim")
    if what == "died before":
        run.kills(other)
    run.passes(1_000)
    dies_in_a_claim(run, found[0], ms=1_000 if what == "took long" else 0)
    for job in found[1:]:
        worker.claims(job)

    assert (run.finding("P22").violations > 0) == (verdict == "violated")


@pytest.mark.parametrize(("place", "after_ms"), [(0, 83), (2, 93)])
def test_a_start_without_an_answer_is_placed_with_the_doubt_of_its_commit_and_the_longest_call(
    run: "Run", place: int, after_ms: int
) -> None:
    producer, worker = rated(run)
    found = jobs(producer, *["scrape"] * 3)
    worker.invokes("claim", value={"kinds": ["report"]})
    run.passes(9)
    worker.hears("ok")
    for number, job in enumerate(found):
        if number == 2:
            run.passes(after_ms - 2)
        if number == place:
            dies_in_a_claim(run, job)
        else:
            worker.claims(job)

    assert run.finding("P22").violations == 0


def test_a_limit_that_says_no_more_is_for_the_kind_of_its_name_and_has_a_burst_of_one(
    run: "Run",
) -> None:
    producer, worker = rated(run)
    run.parameters["limits"] = {"scrape": {"rate": 10.0}}
    for job in jobs(producer, "scrape", "scrape"):
        does(worker, job)

    assert "its rate is 10 a second after a burst of 1" in run.story("P22")


# --- P19: what a wait for a place below the limit is.


def test_the_time_without_a_place_is_added_up() -> None:
    full = Full()
    full.add(10, 20)
    full.add(30, 50)

    assert full.within(0, 100) == 30
    assert full.within(0, 5) == 0
    assert full.within(0, 15) == 5
    assert full.within(15, 40) == 15


@pytest.mark.parametrize(("place", "verdict"), [("never", "pass"), ("soon", "violated")])
def test_a_job_may_wait_for_a_place_until_there_is_one(
    run: "Run", producer: "Process", workers: "list[Process]", place: str, verdict: str
) -> None:
    run.parameters["starve_ms"] = 1_000
    found = jobs(producer, "scrape", "sync", "scrape")
    run.heals()
    for worker, job in zip(workers[:2], found, strict=False):
        worker.claims(job)
        worker.starts(job)
    if place == "soon":
        workers[0].acks(found[0])
    run.passes(2_000)

    assert run.verdict("P19") == verdict
