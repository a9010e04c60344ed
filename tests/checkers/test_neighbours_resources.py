"""P20 and P21, right beside a clause: each history tells it from one that is nearly the same.

They were found by `make mutate-checkers`: without them the checkers could be changed, and nothing
here would have gone red.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkers.conftest import Process, Run


@pytest.fixture
def producer(run: "Run") -> "Process":
    return run.process("p1")


@pytest.fixture
def worker(run: "Run", producer: "Process") -> "Process":
    return run.process("w1")


# --- P21: what a worker leaves behind.


def test_what_it_gave_back_before_is_not_the_lease_that_it_leaves_behind(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.releases(job)
    worker.claims(job)
    run.strikes("term", worker)
    worker.exits()

    assert "left job 1 leased" in run.story("P21")


def test_what_another_said_under_its_token_gives_nothing_back(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    run.process("w2").acks(job, answer="info", commits=False)
    run.strikes("term", worker)
    worker.exits()

    assert "left job 1 leased" in run.story("P21")


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_lease_that_was_only_extended_is_left_behind(
    run: "Run", producer: "Process", worker: "Process", is_committed: bool
) -> None:
    """The commit of an extension ends no lease either."""
    job = producer.enqueues("a")
    worker.claims(job)
    worker.extends(job)
    if is_committed:
        run.commits(job, "leased")
    run.strikes("term", worker)
    worker.exits()

    assert "left job 1 leased" in run.story("P21")


def test_a_lease_that_was_taken_after_the_end_was_left_behind(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    run.strikes("term", worker)
    worker.exits()
    run.passes(520)
    run.reaps(job)

    assert "left job 1 leased" in run.story("P21")


def test_a_job_that_somebody_may_have_cancelled_is_not_left_behind(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    producer.cancels(job, told=False)
    run.strikes("term", worker)
    worker.exits()

    assert run.verdict("P21") == "pass"


def test_a_release_costs_an_attempt_where_only_an_earlier_one_was_forgiven(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.claims(job)
    worker.releases(job)
    worker.claims(job)
    run.strikes("term", worker)
    worker.releases(job, forgiven=0)
    worker.exits()

    assert "the release of job 1 on SIGTERM cost it an attempt" in run.story("P21")


# --- P21: when a worker ends.


def test_who_was_struck_otherwise_was_not_told_to_stop(run: "Run", worker: "Process") -> None:
    worker.polls()
    run.pauses(worker, 10)
    run.passes(5_000)
    worker.exits()

    assert run.finding("P21").reason == "no process was told to stop"


def test_a_stall_is_no_grace_time(run: "Run", worker: "Process") -> None:
    run.strikes("term", worker)
    run.stalls(2_100)
    worker.exits()

    assert run.verdict("P21") == "pass"


def test_who_is_killed_after_a_stall_was_still_within_its_grace_time(
    run: "Run", worker: "Process"
) -> None:
    worker.polls()
    run.strikes("term", worker)
    run.stalls(2_100)
    run.kills(worker)

    assert run.verdict("P21") == "unknown"


def test_a_stall_after_the_end_excuses_nothing(run: "Run", worker: "Process") -> None:
    run.strikes("term", worker)
    run.passes(2_100)
    worker.exits()
    run.stalls(1_000)
    run.process("w2").polls()

    assert "ended 2101 ms after SIGTERM" in run.story("P21")


def test_a_short_pause_excuses_no_more_than_itself(run: "Run", worker: "Process") -> None:
    run.strikes("term", worker)
    run.pauses(worker, 100)
    run.passes(2_100)
    worker.exits()

    assert "and 1000 ms are declared" in run.story("P21")


@pytest.mark.parametrize(("late_ms", "violations"), [(0, 0), (2_500, 1)])
def test_what_a_killed_worker_held_is_not_held_against_its_stop(
    run: "Run", producer: "Process", worker: "Process", late_ms: int, violations: int
) -> None:
    worker.claims(producer.enqueues("a"))
    run.strikes("term", worker)
    run.passes(late_ms)
    run.kills(worker)
    run.process("w2").polls()

    assert run.finding("P21").violations == violations


@pytest.mark.parametrize("ends", [True, False])
def test_each_worker_that_was_told_to_stop_counts(
    run: "Run", worker: "Process", ends: bool
) -> None:
    for process in (worker, run.process("w2")):
        run.strikes("term", process)
        if ends:
            process.exits()
        process.alive = False
    run.passes(5_000)
    run.process("w3").polls()

    finding = run.finding("P21")

    assert (finding.checked, finding.violations) == (2, 0 if ends else 2)


def test_a_claim_that_was_never_told_left_no_lease_behind_for_certain(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    job = producer.enqueues("a")
    worker.invokes("claim")
    worker.hears("info", job=job)
    run.strikes("term", worker)
    worker.exits()

    assert run.verdict("P21") == "pass"


def test_a_worker_that_was_killed_hides_no_other(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    worker.polls()
    other = run.process("w2")
    other.claims(producer.enqueues("a"))
    run.strikes("term", worker)
    run.kills(worker)
    run.strikes("term", other)
    other.exits()

    assert "w2 stopped on SIGTERM and left job 1 leased" in run.story("P21")


# --- P20.


@pytest.mark.parametrize(
    ("times", "verdict"), [(range(20, 22), "pass"), (range(12, 18), "violated")]
)
def test_a_further_thread_has_files_of_its_own_if_it_is_there_in_the_last_third(
    run: "Run", times: range, verdict: str
) -> None:
    for t in range(30):
        found = {"open_files": 10 if t < 10 else 26, "threads": 3 if t in times else 2}
        run.samples.append({"t": t, "pid": 101} | found)

    assert run.verdict("P20") == verdict


@pytest.mark.parametrize(
    ("name", "highest", "verdict"),
    [
        ("wal_bytes", 5_000, "pass"),
        ("wal_bytes", 5_001, "violated"),
        ("open_files", 5_000, "pass"),
        ("open_files", 5_001, "violated"),
    ],
)
def test_a_declared_bound_may_be_reached_and_not_passed(
    run: "Run", name: str, highest: int, verdict: str
) -> None:
    run.parameters[name] = 5_000
    run.samples.append({"t": 1, "pid": 101, name: highest})

    assert run.verdict("P20") == verdict


def test_the_least_samples_that_mean_anything_show_a_leak_also_after_a_short_life(
    run: "Run",
) -> None:
    run.samples.append({"t": 1, "pid": 100, "threads": 1})
    run.samples += [{"t": t, "pid": 101, "threads": 10 * t} for t in range(12)]

    assert "process 101 went from at most 30 threads" in run.story("P20")


@pytest.mark.parametrize(("bound", "verdict"), [(2, "pass"), (4 / 3, "pass"), (1, "violated")])
def test_a_declared_bound_on_claims_is_held_against_the_average_of_all_jobs(
    run: "Run", producer: "Process", worker: "Process", bound: float, verdict: str
) -> None:
    run.parameters["claims_per_job"] = bound
    run.samples.append({"t": 1, "pid": 101, "threads": 2})
    for name, times in (("a", 1), ("b", 1), ("c", 2)):
        job = producer.enqueues(name)
        for _ in range(times):
            worker.claims(job)
            worker.releases(job)
    producer.enqueues("never claimed")

    finding = run.finding("P20")

    assert (finding.verdict, finding.figures["claims_per_job"]) == (verdict, 1.33)
    assert [witness.job for witness in finding.witnesses] == ["3"] * (verdict == "violated")


@pytest.mark.parametrize(
    ("what", "verdict"),
    [("empty", "violated"), ("found", "pass"), ("unknown", "pass"), ("backup", "pass")],
)
def test_only_a_claim_that_was_told_of_no_job_polls_an_empty_queue(
    run: "Run", producer: "Process", worker: "Process", what: str, verdict: str
) -> None:
    run.parameters["polls_per_second"] = 1
    run.samples.append({"t": 1, "pid": 101, "threads": 2})
    job = producer.enqueues("a")
    for _ in range(5):
        if what == "found":
            worker.claims(job)
        else:
            worker.invokes("backup" if what == "backup" else "claim")
            worker.hears("info" if what == "unknown" else "ok")
        run.passes(500)

    assert run.verdict("P20") == verdict


def test_a_process_that_lived_for_a_moment_hides_no_storm(
    run: "Run", producer: "Process", worker: "Process"
) -> None:
    run.parameters["polls_per_second"] = 1
    run.samples.append({"t": 1, "pid": 101, "threads": 2})
    producer.polls()
    producer.exits()
    for _ in range(5):
        worker.polls()
        run.passes(500)

    assert "w1 polled the empty queue 2 times a second, and 1 are allowed" in run.story("P20")
