"""The verdict beside a figure: each way in which a run can be wrong voids it."""

from dataclasses import replace

import pytest

from killproof_bench.ledger import Account, Stored, judge, merged

ACCOUNTS = (
    Account(worker="a" * 32, acked=(1, 3), error=None),
    Account(worker="b" * 32, acked=(2,), error=None),
)
STORED = Stored(
    counts={"available": 2, "succeeded": 3},
    done={1: "a" * 32, 2: "b" * 32, 3: "a" * 32},
    attempts=3,
    deliveries=3,
    integrity="ok",
)


def test_a_run_where_both_accounts_agree_passes() -> None:
    verdict = judge(5, ACCOUNTS, STORED)

    assert (verdict.verdict, verdict.because, verdict.jobs) == ("pass", (), 3)


def test_one_job_acked_by_two_workers_voids_the_run() -> None:
    twice = (ACCOUNTS[0], replace(ACCOUNTS[1], acked=(2, 3)))
    verdict = judge(5, twice, STORED)

    assert verdict.verdict == "violated"
    assert "1 jobs acked more than once, the first: 3" in verdict.because


def test_one_job_acked_twice_by_the_same_worker_voids_the_run() -> None:
    twice = (replace(ACCOUNTS[0], acked=(1, 3, 3)), ACCOUNTS[1])

    assert judge(5, twice, STORED).verdict == "violated"


def test_a_worker_that_met_an_error_voids_the_run() -> None:
    failed = (replace(ACCOUNTS[0], error="DatabaseBusy: 30 s"), ACCOUNTS[1])
    verdict = judge(5, failed, STORED)

    assert verdict.because == ("a worker met an error: DatabaseBusy: 30 s",)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (
            replace(STORED, done={1: "a" * 32, 2: "b" * 32}),
            "1 jobs acked, and not stored as succeeded, the first: 3",
        ),
        (
            replace(STORED, done={**STORED.done, 4: "a" * 32}),
            "1 jobs stored as succeeded, and acked by nobody, the first: 4",
        ),
        (
            replace(STORED, done={**STORED.done, 2: "a" * 32}),
            "1 jobs acked by one worker and stored as another's, the first: 2",
        ),
        (
            replace(STORED, counts={"available": 1, "succeeded": 3}),
            "5 jobs went in and 4 are stored",
        ),
        (
            replace(STORED, counts={"available": 1, "leased": 1, "succeeded": 3}),
            "states nobody asked for: {'available': 1, 'leased': 1, 'succeeded': 3}",
        ),
        (
            replace(STORED, deliveries=4),
            "3 jobs succeeded with 4 deliveries and 3 ended attempts; one each was due",
        ),
        (replace(STORED, integrity="row 7 missing"), "integrity_check says row 7 missing"),
    ],
)
def test_each_disagreement_with_the_database_voids_the_run(stored: Stored, reason: str) -> None:
    verdict = judge(5, ACCOUNTS, stored)

    assert (verdict.verdict, verdict.because) == ("violated", (reason,))


FED = replace(STORED, waiting=frozenset({4, 5}))


def test_what_producers_put_in_belongs_to_the_count() -> None:
    assert judge(2, ACCOUNTS, FED, enqueued=(5, 3, 4)).verdict == "pass"
    assert judge(5, ACCOUNTS, FED, enqueued=(5, 3, 4)).because == (
        "8 jobs went in and 5 are stored",
    )


@pytest.mark.parametrize(
    ("enqueued", "reason"),
    [
        ((3, 4, 6), "1 jobs enqueued, and not stored, the first: 6"),
        ((3, 4, 4), "1 jobs enqueued more than once, the first: 4"),
    ],
)
def test_an_acknowledged_enqueue_that_is_lost_or_told_twice_voids_the_run(
    enqueued: tuple[int, ...], reason: str
) -> None:
    verdict = judge(2, ACCOUNTS, FED, enqueued=enqueued)

    assert (verdict.verdict, verdict.because) == ("violated", (reason,))


def test_several_runs_pass_only_if_there_are_some_and_all_pass() -> None:
    good = judge(5, ACCOUNTS, STORED)
    bad = judge(6, ACCOUNTS, STORED)

    assert merged([good, good]).verdict == "pass"
    assert merged([good, good]).jobs == 6
    assert merged([good, bad]).verdict == "violated"
    assert merged([good, replace(good, verdict="unknown")]).verdict == "unknown"
    assert merged([]).verdict == "unknown"
