"""What the search offers next, and how it judges what came of an offer."""

import numpy as np
import pytest

from killproof_bench.capacity import search
from killproof_bench.capacity.pool import Slice, Written
from killproof_bench.capacity.question import slo
from killproof_bench.capacity.result import Step
from killproof_bench.capacity.search import Crowd
from killproof_bench.load import Ended
from killproof_bench.measure import Samples
from killproof_bench.recording import COLUMNS, SERVED_COLUMNS, Call, Kind, Served
from killproof_bench.result import Correctness, Figure

SECOND = 1_000_000_000
UNKNOWN = Figure(value=None, low=None, high=None, n=0)


def step(rate: float, *, passed: bool | None) -> Step:
    return Step(
        phase="bracket",
        rate_per_s=rate,
        served_per_s=rate,
        seconds=6.0,
        workers=12,
        claim_p50_ms=UNKNOWN,
        claim_p99_ms=UNKNOWN,
        time_to_claim_p99_ms=UNKNOWN,
        enqueue_p99_ms=UNKNOWN,
        backlog_slope_per_s=UNKNOWN,
        predicted_claim_p99_ms=None,
        predicted_time_to_claim_p99_ms=None,
        passed=passed,
        because="",
        correctness=Correctness(verdict="unknown", because=(), jobs=0),
    )


def searched(edge: float, *, ceiling: float = 1_000.0) -> list[Step]:
    """Return all steps of a search on a machine that keeps its limits up to an edge."""
    steps: list[Step] = []
    while (trial := search.following(ceiling, steps)) is not None:
        steps.append(step(trial.rate_per_s, passed=trial.rate_per_s <= edge))
        assert len(steps) < 20, "the search has no end"
    return steps


@pytest.mark.parametrize("edge", [90.0, 420.0, 777.0, 860.0, 1_330.0])
def test_the_edge_is_found_within_a_twentieth(edge: float) -> None:
    found = search.edge(searched(edge))

    assert found is not None
    assert edge / (1 + search.EDGE) <= found <= edge


def test_nothing_is_offered_twice() -> None:
    rates = [each.rate_per_s for each in searched(777.0)]

    assert len(set(rates)) == len(rates)


def test_where_the_lowest_load_fails_there_is_no_edge() -> None:
    steps = searched(1.0)

    assert search.edge(steps) is None
    assert steps[-1].rate_per_s == pytest.approx(50.0)


def test_a_load_that_passed_above_one_that_failed_is_no_edge() -> None:
    steps = [step(300.0, passed=True), step(500.0, passed=False), step(700.0, passed=True)]

    assert search.edge(steps) == 300.0


def test_a_machine_beyond_every_bracket_ends_the_search() -> None:
    steps = searched(1e9)

    assert search.edge(steps) == pytest.approx(search.BRACKET[-1] * 1_000.0)


PART = Slice(begin_ns=10 * SECOND, end_ns=16 * SECOND, ended=())


def written(intended: Samples, waits: Samples, *, unclaimed: int = 0) -> Written:
    """Return what a producer and a worker wrote down: each job is claimed so long after."""
    count = len(intended)
    enqueues = np.zeros((count, COLUMNS), dtype=np.int64)
    enqueues[:, Call.INTENDED] = enqueues[:, Call.BEGIN] = intended
    enqueues[:, Call.END] = intended + 1_000_000
    enqueues[:, Call.JOB] = np.arange(1, count + 1)
    enqueues[:, Call.KIND] = Kind.ENQUEUE
    claims = np.zeros((count, COLUMNS), dtype=np.int64)
    claims[:, Call.END] = intended + waits
    claims[:, Call.BEGIN] = claims[:, Call.END] - 2_000_000
    claims[:, Call.KIND] = Kind.CLAIM
    claims = claims[np.argsort(claims[:, Call.END])]
    served = np.zeros((count, SERVED_COLUMNS), dtype=np.int64)
    served[:, Served.JOB] = np.arange(1, count + 1)
    served[:, Served.CLAIMED] = intended + waits
    served = served[: count - unclaimed][::-1]
    return Written(accounts=(), calls=(enqueues, claims), served=(served[:0], served))


def every(gap_ms: float, seconds: float = 6.0) -> Samples:
    count = round(seconds * 1_000 / gap_ms)
    return 10 * SECOND + np.arange(count, dtype=np.int64) * round(gap_ms * 1e6)


def judged(found: Written, part: Slice = PART, *limits: str) -> Step:
    return search.judged(
        found,
        part,
        phase="bracket",
        rate_per_s=500.0,
        crowd=Crowd(workers=12, job_ms=5.0),
        slos=[slo(text) for text in limits or ("claim.p99<50ms", "time_to_claim.p99<200ms")],
        predicted=None,
        seed=1,
    )


def flat(count: int, ms: float) -> Samples:
    return np.full(count, round(ms * 1e6), dtype=np.int64)


def test_a_load_whose_jobs_are_soon_claimed_passes() -> None:
    found = judged(written(every(2.0), flat(3_000, 5.0)))

    assert found.passed
    assert found.time_to_claim_p99_ms.value == pytest.approx(5.0)
    assert found.claim_p99_ms.value == pytest.approx(2.0)
    assert found.enqueue_p99_ms.value == pytest.approx(1.0)


def test_a_broken_limit_is_named_with_its_figure() -> None:
    found = judged(written(every(2.0), flat(3_000, 300.0)))

    assert not found.passed
    assert "time_to_claim.p99<200ms does not hold: 300 ms" in found.because
    assert "claim.p99<50ms" not in found.because


def test_a_job_that_nobody_claims_is_not_left_out_of_the_wait() -> None:
    found = judged(written(every(2.0), flat(3_000, 5.0), unclaimed=600))

    assert not found.passed
    assert found.time_to_claim_p99_ms.value is not None
    assert found.time_to_claim_p99_ms.value > 1_000
    assert found.served_per_s == pytest.approx(400.0, rel=0.01)


def test_a_backlog_that_grows_fails_even_while_every_limit_holds() -> None:
    growing = np.linspace(0, 1.5e9, 3_000).astype(np.int64)
    found = judged(written(every(2.0), growing), PART, "time_to_claim.p99<10s")

    assert "the backlog grows by" in found.because


def test_a_producer_that_cannot_keep_up_is_no_load() -> None:
    end = Ended(
        worker=None, error=None, ran_dry=False, late=0, skipped=100, user_ns=0, system_ns=0,
        run_delay_ns=0, switches=0,
    )  # fmt: skip
    part = Slice(begin_ns=PART.begin_ns, end_ns=PART.end_ns, ended=(end,))

    assert (
        "could not enqueue 100 jobs" in judged(written(every(2.0), flat(3_000, 5.0)), part).because
    )


def test_too_few_samples_are_a_limit_neither_kept_nor_broken() -> None:
    found = judged(written(every(20.0), flat(300, 5.0)))

    assert found.passed is None
    assert "too few to tell" in found.because
    growing = np.linspace(0, 1.5e9, 300).astype(np.int64)
    assert judged(written(every(20.0), growing)).passed is False


def test_a_load_with_too_few_jobs_is_followed_by_a_higher_one_and_is_no_edge() -> None:
    steps = [step(300.0, passed=None)]
    following = search.following(1_000.0, steps)

    assert following is not None
    assert following.rate_per_s == pytest.approx(500.0)
    assert search.edge(steps) is None


def test_a_step_lasts_until_its_rarest_quantile_has_enough_samples() -> None:
    usual, rare = [slo("claim.p50<5ms")], [slo("claim.p99.9<50ms")]

    assert search.step_seconds(2_000.0, usual) == search.STEP_SECONDS_MIN
    assert search.step_seconds(100.0, usual) == pytest.approx(12.0)
    assert search.step_seconds(1_000.0, rare) == pytest.approx(12.0)
    assert search.step_seconds(1.0, usual) == search.STEP_SECONDS_MAX
