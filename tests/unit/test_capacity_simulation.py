"""The played line against formulas, where there are some."""

import numpy as np
import pytest

from killproof_bench.capacity import models, simulation
from killproof_bench.capacity.models import Station
from killproof_bench.capacity.simulation import Service, Times

NOTHING = np.zeros(1)


def exponential(mean_us: float, seed: int = 5) -> Times:
    times: Times = np.random.default_rng(seed).exponential(mean_us, size=20_000)
    return times


def service(hold: Times, *, place: float = 1.0, handover: float = 0.0) -> Service:
    return Service(
        entry=NOTHING,
        hold=hold,
        handover=np.array([handover]),
        place=np.array([place]),
        after=NOTHING,
    )


@pytest.mark.parametrize("workers", [1, 4, 16])
def test_a_closed_loop_is_the_machine_repairman(workers: int) -> None:
    played = simulation.closed(
        service(exponential(300.0)), workers=workers, job_ms=2.0, jobs=8_000, seed=1
    )

    exact = models.mva([Station(demand=300e-6)], 2e-3, workers).throughput
    assert played.jobs_per_s == pytest.approx(exact, rel=0.05)


def test_first_come_first_served_with_equal_holds_waits_exactly_for_the_others() -> None:
    played = simulation.closed(
        service(np.array([500.0]), handover=100.0), workers=8, job_ms=0.0, jobs=2_000, seed=1
    )

    assert played.call(500) == pytest.approx(8 * 0.6)
    assert played.call(990) == pytest.approx(8 * 0.6)
    assert played.jobs_per_s == pytest.approx(1e6 / 600, rel=0.01)


def test_who_is_let_go_past_others_makes_the_tail_longer_and_not_the_mean() -> None:
    fair = service(np.array([500.0]))
    barging = Service(
        entry=NOTHING,
        hold=fair.hold,
        handover=NOTHING,
        place=np.array([0.0, 0.0, 1.0, 1.0, 3.0]),
        after=NOTHING,
    )
    first, second = (
        simulation.closed(each, workers=8, job_ms=0.0, jobs=4_000, seed=1)
        for each in (fair, barging)
    )

    assert second.call(990) > 2 * first.call(990)
    assert second.jobs_per_s == pytest.approx(first.jobs_per_s, rel=0.01)


def opened(rate_per_s: float, hold: Times) -> simulation.Played:
    """Claims and acks cost nothing: what is left is one line of enqueues with random arrivals."""
    free = service(np.array([1e-3]), place=0.0)
    return simulation.opened(
        enqueue=service(hold),
        claim=free,
        ack_and_claim=free,
        wake=NOTHING,
        rate_per_s=rate_per_s,
        producers=1,
        workers=50,
        job_ms=0.0,
        jobs=12_000,
        seed=2,
    )


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_random_arrivals_at_exponential_holds_are_m_m_1(load: float) -> None:
    played = opened(load / 300e-6, exponential(300.0))

    # The time in the system of M/M/1 is exponential with mean S / (1 - rho).
    mean_ms = 0.3 / (1 - load)
    assert played.waited(500) == pytest.approx(mean_ms * np.log(2), rel=0.15)
    assert played.waited(990) == pytest.approx(mean_ms * np.log(100), rel=0.2)
    assert played.stable


def test_equal_holds_wait_half_as_long_as_exponential_ones() -> None:
    """Pollaczek and Khinchine: the mean wait goes with 1 + cv squared."""
    equal = opened(0.7 / 300e-6, np.array([300.0])).waits_ms.mean() - 0.3
    random = opened(0.7 / 300e-6, exponential(300.0)).waits_ms.mean() - 0.3

    assert equal / random == pytest.approx(0.5, abs=0.1)


def test_an_offer_beyond_the_lock_is_not_stable() -> None:
    assert not opened(1.3 / 300e-6, exponential(300.0)).stable


def test_fewer_workers_than_the_jobs_need_are_not_stable() -> None:
    quick = service(np.array([10.0]))

    def played(workers: int) -> simulation.Played:
        return simulation.opened(
            enqueue=quick,
            claim=quick,
            ack_and_claim=quick,
            wake=NOTHING,
            rate_per_s=100.0,
            producers=2,
            workers=workers,
            job_ms=100.0,
            jobs=3_000,
            seed=3,
        )

    assert played(14).stable
    assert not played(8).stable
    assert played(8).jobs_per_s == pytest.approx(80.0, rel=0.05)


def test_the_same_seed_plays_the_same() -> None:
    first, second = (
        simulation.closed(service(exponential(300.0)), workers=4, job_ms=1.0, jobs=500, seed=7)
        for _ in range(2)
    )

    assert first.calls_ms.tolist() == second.calls_ms.tolist()
