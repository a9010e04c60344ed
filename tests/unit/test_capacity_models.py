"""The queueing models against what can be worked out in another way."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from killproof_bench.capacity import models
from killproof_bench.capacity.models import Station

demands = st.floats(min_value=1e-5, max_value=0.1)
delays = st.floats(min_value=0.0, max_value=1.0)
crowds = st.integers(min_value=1, max_value=40)


def machine_repairman(demand: float, delay: float, workers: int, servers: int = 1) -> float:
    """Jobs/s by the balance of a birth-and-death process: arrivals (N-j)/Z, service min(j,c)/D."""
    logs = [0.0]
    for waiting in range(1, workers + 1):
        arrives = (workers - waiting + 1) / delay
        logs.append(logs[-1] + math.log(arrives * demand / min(waiting, servers)))
    weights = [math.exp(log - max(logs)) for log in logs]
    busy = sum(w * min(j, servers) for j, w in enumerate(weights))
    return busy / sum(weights) / demand


@pytest.mark.parametrize("servers", [1, 2, 3, 15, 63])
@pytest.mark.parametrize("workers", [1, 2, 7, 30, 256])
def test_mva_equals_the_exact_machine_repairman(workers: int, servers: int) -> None:
    solved = models.mva([Station(demand=0.02, servers=servers)], 0.1, workers)

    exact = machine_repairman(0.02, 0.1, workers, servers)
    assert solved.throughput == pytest.approx(exact, rel=1e-9)


def test_a_station_that_nobody_needs_changes_nothing() -> None:
    """Such as the processor of calls that had to wait for it while they held the lock."""
    lock = Station(demand=0.02)
    both = models.mva([lock, Station(demand=0.0, servers=3)], 0.1, 7)

    assert both.throughput == pytest.approx(models.mva([lock], 0.1, 7).throughput)


@settings(max_examples=60, deadline=None)
@given(demand=demands, delay=delays, workers=crowds, variation=st.floats(0.0, 1.0))
def test_throughput_keeps_its_asymptotic_bounds(
    demand: float, delay: float, workers: int, variation: float
) -> None:
    """Denning and Buzen: below the bound of an idle and of a busy lock, above all-wait-for-all."""
    station = Station(demand=demand, variation=variation)
    throughput = models.mva([station], delay, workers).throughput

    assert throughput <= models.bound(demand, delay, workers) * (1 + 1e-9)
    assert throughput >= workers / (delay + workers * demand) * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(first=demands, second=demands, delay=delays, workers=crowds)
def test_more_workers_never_do_less_and_a_second_station_never_helps(
    first: float, second: float, delay: float, workers: int
) -> None:
    lock, processor = Station(demand=first), Station(demand=second, servers=2)
    both = models.mva([lock, processor], delay, workers).throughput

    assert both <= models.mva([lock, processor], delay, workers + 1).throughput * (1 + 1e-9)
    assert both <= models.mva([lock], delay, workers).throughput * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(demand=demands, delay=delays, workers=crowds)
def test_littles_law_holds_over_the_whole_cycle(demand: float, delay: float, workers: int) -> None:
    solved = models.mva([Station(demand=demand)], delay, workers)

    assert solved.throughput * (delay + solved.residence[0]) == pytest.approx(workers)


def test_services_that_are_always_the_same_wait_for_half_of_one() -> None:
    """Two workers: whoever meets the other at the lock waits for the rest of one service."""
    alone = models.mva([Station(demand=0.4)], 0.6, 1).utilisation[0]
    equal = models.mva([Station(demand=0.4, variation=0.0)], 0.6, 2)

    assert equal.residence[0] == pytest.approx(0.4 + alone * 0.4 / 2)


def test_the_bounds_meet_at_the_knee() -> None:
    demand, delay = 0.4e-3, 5e-3
    knee = models.knee(demand, delay)

    assert models.bound(demand, delay, knee) == pytest.approx(1 / demand)
    assert knee / (delay + demand) == pytest.approx(1 / demand)


WORKERS = (1, 2, 4, 8, 12, 16)


def usl_rates(alpha: float, beta: float, *, noise: float, seed: int = 1) -> models.Rates:
    coin = np.random.default_rng(seed)
    count = np.array(WORKERS, dtype=np.float64)
    law = 2_000 * count / (1 + alpha * (count - 1) + beta * count * (count - 1))
    rates: models.Rates = law * (1 + noise * coin.standard_normal((8, len(count))))
    return rates


def test_the_law_that_made_the_points_is_found_again() -> None:
    usl = models.fit_usl(WORKERS, usl_rates(0.6, 0.01, noise=0.0), seed=1)

    assert usl.gamma_per_s == pytest.approx(2_000)
    assert usl.alpha.value == pytest.approx(0.6)
    assert usl.beta.value == pytest.approx(0.01)
    assert usl.peak_workers == pytest.approx(math.sqrt(0.4 / 0.01))
    assert usl.warnings == ()
    assert models.usl_rate(usl, 8) == pytest.approx(usl_rates(0.6, 0.01, noise=0.0)[0, 3])


def test_a_beta_that_may_be_0_is_told() -> None:
    usl = models.fit_usl(WORKERS, usl_rates(0.6, 0.0, noise=0.05), seed=1)

    assert any("beta" in warning for warning in usl.warnings)


def test_too_few_points_for_three_parameters_are_told() -> None:
    usl = models.fit_usl(WORKERS[:4], usl_rates(0.6, 0.01, noise=0.0)[:, :4], seed=1)

    assert any("4 numbers of workers" in warning for warning in usl.warnings)


def test_no_parameter_of_the_law_is_below_0() -> None:
    """Faster than linear: the unbounded fit would have a negative alpha."""
    rates = np.array([[100.0, 220.0, 480.0, 1_000.0, 1_600.0, 2_200.0]])
    usl = models.fit_usl(WORKERS, rates, seed=1)

    assert (usl.alpha.value, usl.beta.value) == (0.0, 0.0)
    assert usl.peak_workers is None
