"""The answer: what limits, how many workers, how far it goes, and how it is said."""

import dataclasses
import math

import numpy as np
import pytest

from killproof_bench.capacity import answer, compiled
from killproof_bench.capacity.answer import Job, Told
from killproof_bench.capacity.closed import Cell
from killproof_bench.capacity.predictor import Predictor, chosen
from killproof_bench.capacity.question import question
from killproof_bench.capacity.result import Demand, Forecast, Question
from killproof_bench.capacity.search import Learned
from killproof_bench.capacity.simulation import Service
from killproof_bench.capacity.terms import Calibration, Observed
from killproof_bench.result import Figure
from tests.unit.test_capacity_search import step

JOB = Job(lock=1e-3, call=2e-3, processor=1.5e-3, cores=2)


def service(hold: float) -> Service:
    return Service(
        entry=np.array([50.0]),
        hold=np.array([hold]),
        handover=np.array([100.0]),
        place=np.array([1.0]),
        after=np.array([350.0]),
    )


LEARNED = Learned(
    enqueue=service(200.0),
    claim=service(300.0),
    ack_and_claim=service(400.0),
    wake=np.array([300.0]),
    cpu_us=1_500.0,
)


def ask(rate: str | None = None, *, peak: float = 1.0, growth: str | None = None) -> Question:
    return question(
        slos=(), rate_text=rate, peak=peak, job_ms=5.0, workers=None, growth_text=growth
    )


def test_a_job_asks_the_lock_for_its_enqueue_its_claim_and_ack_and_its_heartbeats() -> None:
    job = answer.job_of(LEARNED, 2, 60_000.0, 80.0)

    assert job.lock == pytest.approx((200 + 400 + 2 * 100 + 3 * 80) / 1e6)
    assert job.call == pytest.approx((50 + 400 + 350) / 1e6)


def test_no_number_of_workers_does_more_than_the_lock_or_the_processors() -> None:
    assert answer.most(JOB, 200, 5.0) == pytest.approx(1_000.0)
    slow = dataclasses.replace(JOB, processor=4e-3)
    assert answer.most(slow, 200, 5.0) == pytest.approx(500.0)
    assert answer.most(JOB, 1, 98.0) == pytest.approx(10.0)


@pytest.mark.parametrize("peak", [5.0, 120.0, 700.0])
def test_the_workers_recommended_are_the_fewest_with_a_quarter_to_spare(peak: float) -> None:
    workers = answer.workers_for(JOB, peak, 200.0 if peak < 700 else 20.0)

    assert workers is not None
    job_ms = 200.0 if peak < 700 else 20.0
    assert answer.most(JOB, workers, job_ms) * (1 - answer.HEADROOM) >= peak
    if workers > 1:
        assert answer.most(JOB, workers - 1, job_ms) * (1 - answer.HEADROOM) < peak


def test_what_does_not_fit_with_any_number_of_workers_gets_none() -> None:
    assert answer.workers_for(JOB, 1_000.0, 5.0) is None


@pytest.mark.parametrize("peak", [800.0, 990.0])
def test_what_fits_with_little_to_spare_gets_the_workers_that_reach_it(peak: float) -> None:
    workers = answer.workers_for(JOB, peak, 5.0)

    assert workers is not None
    assert peak <= answer.most(JOB, workers, 5.0) < 1_000.0


def test_the_limit_is_what_ends_it_first() -> None:
    assert "number of workers" in answer.limit(JOB, 4, 200.0)
    assert "one write lock" in answer.limit(JOB, 16, 5.0)
    # No number of workers reaches the peak: then it is not that there are none.
    assert "one write lock" in answer.limit(JOB, 0, 5.0)
    assert "processor" in answer.limit(dataclasses.replace(JOB, processor=3e-3), 16, 5.0)


def test_capacity_is_below_the_most_and_keeps_the_limits() -> None:
    job = answer.job_of(LEARNED, 2, 5.0, 80.0)
    asked = ask("10/s")
    found = answer.capacity(LEARNED, job, asked.slos, workers=12, job_ms=5.0, seed=1)
    most = answer.most(job, 12, 5.0)

    assert 0.5 * most < found < most
    played = LEARNED.play(found, workers=12, job_ms=5.0, jobs=3_000, seed=1)
    assert answer.holds(played, asked.slos)


def ahead(peak: float, *, growth: str | None = None) -> Forecast:
    return answer.forecast(
        ask("10/s", growth=growth), JOB, workers=4, capacity_per_s=500.0, peak_per_s=peak
    )


def test_headroom_is_what_the_peak_leaves() -> None:
    assert ahead(310.0).headroom == pytest.approx(0.38)
    assert ahead(600.0).headroom == pytest.approx(-0.2)
    assert ahead(310.0).lock_utilisation == pytest.approx(0.31)


def test_growth_tells_the_months_until_the_lock_is_three_fifths_busy() -> None:
    told = ahead(300.0, growth="10%/month")

    assert told.outgrown_per_s == pytest.approx(600.0)
    assert told.months == pytest.approx(math.log(2) / math.log(1.1))
    assert ahead(300.0).months is None
    assert ahead(700.0, growth="10%/month").months == 0.0


def test_yes_is_said_with_its_headroom_and_how_it_is_known() -> None:
    told = answer.with_rate(ask("31/s", peak=10.0), ahead(310.0), True, "the limit is L", ran=True)

    assert told.verdict == "pass"
    assert told.sentence.startswith("yes with 38% headroom at 4 workers: 310 jobs/s")
    assert "confirmed by runs at the peak" in told.sentence
    unrun = answer.with_rate(ask("31/s"), ahead(310.0), None, "the limit is L", ran=False)
    assert "by the model, not run" in unrun.sentence
    unsure = answer.with_rate(ask("1/s"), ahead(310.0), None, "the limit is L", ran=True)
    assert unsure.verdict == "pass"
    assert "by the model, runs at the peak had too few jobs to tell" in unsure.sentence


@pytest.mark.parametrize("peak", [600.0, 1e9])
def test_what_runs_at_the_peak_have_shown_the_model_does_not_deny(peak: float) -> None:
    told = answer.with_rate(ask("31/s"), ahead(peak), True, "the limit is L", ran=True)

    assert told.verdict == "pass"
    assert told.sentence.startswith("yes without headroom at 4 workers")


def test_without_a_capacity_there_is_no_headroom_and_the_record_stays_json() -> None:
    none = answer.forecast(ask("1/s"), JOB, workers=4, capacity_per_s=0.0, peak_per_s=1.0)

    assert none.headroom is None
    assert answer.with_rate(ask("1/s"), none, None, "L", ran=False).verdict == "fail"


@pytest.mark.parametrize(("peak", "confirmed"), [(600.0, None), (310.0, False)])
def test_no_is_said_with_the_limit(peak: float, confirmed: bool | None) -> None:
    told = answer.with_rate(ask("31/s"), ahead(peak), confirmed, "the limit is L", ran=True)

    assert told.verdict == "fail"
    assert told.sentence.startswith("no: ")
    assert told.sentence.endswith("the limit is L.")


def sought(*passed: bool | None, sustainable: float | None = None, ended: bool = True) -> Told:
    steps = [step(100.0 * place, passed=each) for place, each in enumerate(passed, 1)]
    return answer.with_slo(ask(), sustainable, steps, 12, "the limit is L", ended=ended)


def test_a_number_that_was_not_confirmed_is_no_answer() -> None:
    assert sought(True, False, sustainable=95.0).verdict == "pass"
    assert sought(True, False).verdict == "inconclusive"


def test_no_is_said_of_loads_that_broke_a_limit_alone() -> None:
    """Not of a budget that ended before, and not of loads that had too few jobs to tell."""
    broken = sought(False, False)
    assert broken.verdict == "fail"
    assert broken.sentence.startswith("no: not even 100 jobs/s keep claim.p99<50ms")
    for unknown in (sought(ended=False), sought(False, ended=False), sought(None, None, False)):
        assert unknown.verdict == "inconclusive"
        assert unknown.sentence.startswith("no answer: ")


def demand(name: str, hold: float) -> Demand:
    figure = Figure(value=hold, low=None, high=None, n=300)
    return Demand(operation=name, hold_us=figure, outside_us=figure, per_job=1.0)


def test_levers_are_ranked_by_what_they_give() -> None:
    holds = {
        "enqueue": 150.0,
        "claim": 190.0,
        "ack": 180.0,
        "ack_and_claim": 270.0,
        "enqueue_many": 27.0,
        "claim_many": 53.0,
        "ack_many": 54.0,
        "enqueue, 10 kB": 240.0,
        "claim, 10 kB": 300.0,
    }
    demands = {name: demand(name, hold) for name, hold in holds.items()}
    levers = answer.levers(demands, JOB, 150.0)

    gains = [lever.gain for lever in levers]
    assert gains == sorted(gains, reverse=True)
    assert levers[0].name == "both in batches of 10"
    assert levers[0].gain == pytest.approx((150 + 270 + 300) / (27 + 53 + 54 + 45))
    assert levers[-1].gain == 1.0


def calibration(workers: tuple[int, ...], job_ms: float, hold: float) -> Calibration:
    observed = Observed(
        service=service(hold), latency=np.array([900.0]), queued=0.5 if workers[0] > 1 else 0.0
    )
    return Calibration(
        job_ms=job_ms,
        workers=workers,
        observed=tuple(observed for _ in workers),
        cpu_us=tuple(hold + 300.0 for _ in workers),
    )


def predictor(measured: dict[Cell, float]) -> tuple[Predictor, str]:
    return chosen(
        alone=calibration((1,), 0.0, 200.0),
        idle=calibration((4, 8), 0.0, 400.0),
        working=calibration((4, 8), 5.0, 450.0),
        cores=2,
        seed=1,
        measured=measured,
    )


def test_one_worker_alone_hands_nothing_over() -> None:
    found, _ = predictor({Cell(workers=8, job_ms=0.0): 2_000.0})

    assert found.throughput(1, 0.0) == pytest.approx(1e6 / (200 + 50 + 350))


def test_many_workers_do_what_hold_and_hand_over_allow() -> None:
    found, because = predictor({Cell(workers=8, job_ms=0.0): 2_000.0})

    assert found.throughput(32, 0.0) == pytest.approx(1e6 / (400 + 100), rel=0.01)
    assert found.throughput(2, 100.0) == pytest.approx(2 / 0.1009, rel=0.01)
    assert "largest error at the calibrated points" in because


def test_the_second_station_has_to_earn_its_place() -> None:
    found, _ = predictor({Cell(workers=4, job_ms=0.0): 1_900.0})
    one = dataclasses.replace(found, kind="lock")
    two = dataclasses.replace(found, kind="lock and processor")

    assert two.throughput(8, 5.0) < one.throughput(8, 5.0)
    for made in (one, two):
        cell = Cell(workers=8, job_ms=5.0)
        assert predictor({cell: made.throughput(8, 5.0)})[0].kind == made.kind


def test_each_operations_demand_has_an_interval_over_groups_of_calls() -> None:
    coin = np.random.default_rng(1)
    found = compiled.demands({"enqueue": [(h, 300.0) for h in coin.normal(150, 20, 300)]}, seed=1)
    hold = found["enqueue"].hold_us

    assert hold.low is not None
    assert hold.high is not None
    assert hold.value is not None
    assert hold.low < hold.value < hold.high
    assert hold.n == 300
