"""What queueing theory says of N workers that share one lock: pure functions, no measurement.

The network is closed: each of N workers works Z seconds without the lock (its job, and the part of
a call that needs no lock), then wants the lock for D seconds. This is the machine-repairman model;
mean value analysis solves it, and with a second station for the processors too.

Sources: Reiser and Lavenberg, Mean-Value Analysis of Closed Multichain Queuing Networks, JACM 27
(1980); for several servers the recursion over marginal probabilities in Bolch, Greiner, de Meer and
Trivedi, Queueing Networks and Markov Chains, section 8.2; the bounds are those of Denning and
Buzen, The Operational Analysis of Queueing Network Models, Computing Surveys 10 (1978); the
Universal Scalability Law is Gunther's, Guerrilla Capacity Planning (2007), chapter 4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls  # type: ignore[attr-defined]  # It ships no types.

from killproof_bench.capacity.result import Usl
from killproof_bench.result import Figure

Rates = npt.NDArray[np.float64]

#: With fewer, three parameters follow the noise.
USL_POINTS_MIN: Final = 6
USL_RESAMPLES: Final = 499


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """A place where work waits its turn."""

    demand: float  #: Seconds of service that one job needs there; 0 where there is none.
    servers: int = 1
    #: Squared coefficient of variation of the service; 1 is exponential, 0 always the same. Of a
    #: single server only.
    variation: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The mean values of a closed network."""

    throughput: float  #: Jobs per second.
    residence: tuple[float, ...]  #: Seconds that a job spends at each station, waiting included.
    utilisation: tuple[float, ...]  #: Busy share of each station's servers.


def mva(stations: Sequence[Station], delay: float, workers: int) -> Solution:
    """Solve a closed network of one class, exactly where services are exponential.

    Who comes while a single server works waits for the rest of that service, on average
    (1 + variation) / 2 of it: Reiser's correction for services that vary less (or more) than
    exponential ones (A Queueing Network Analysis of Computer Communication Networks with Window
    Flow Control, IEEE Transactions on Communications 27, 1979).

    Args:
        stations: Each first come, first served.
        delay: Seconds of each cycle that wait for nobody.
        workers: At least 1.

    >>> mva([Station(demand=1.0)], 0.0, 5).throughput
    1.0
    >>> mva([Station(demand=1.0)], 3.0, 1).throughput
    0.25
    """
    return _populations(stations, delay, workers)[-1]


def _populations(stations: Sequence[Station], delay: float, workers: int) -> list[Solution]:
    """Solve for each number of workers from 1 on."""
    # How often a station of several servers is empty follows from the network without it.
    without = [
        _populations([*stations[:place], *stations[place + 1 :]], delay, workers)
        if station.servers > 1
        else []
        for place, station in enumerate(stations)
    ]
    queues = [0.0] * len(stations)
    busy = [0.0] * len(stations)
    # idle[m][j]: the probability of j jobs at station m, for as many as leave a server idle.
    idle = [[1.0] + [0.0] * (station.servers - 1) for station in stations]
    fastest = min(
        (station.servers / station.demand for station in stations if station.demand),
        default=math.inf,
    )
    found = []
    for population in range(1, workers + 1):
        residence = []
        for place, station in enumerate(stations):
            spare = sum(
                (station.servers - 1 - j) * idle[place][j] for j in range(station.servers - 1)
            )
            rest = busy[place] * (station.variation - 1) / 2 if station.servers == 1 else 0.0
            residence.append(station.demand / station.servers * (1 + queues[place] + spare + rest))
        cycle = delay + sum(residence)
        # The correction can forget that nothing leaves a station faster than it serves.
        throughput = min(population / cycle if cycle else math.inf, fastest)
        for place, station in enumerate(stations):
            queues[place] = throughput * residence[place]
            busy[place] = throughput * station.demand / station.servers
            if station.servers > 1:
                share = throughput / without[place][population - 1].throughput
                idle[place] = _idle(idle[place], throughput * station.demand, share)
        found.append(
            Solution(throughput=throughput, residence=tuple(residence), utilisation=tuple(busy))
        )
    return found


def _idle(before: Sequence[float], load: float, share: float) -> list[float]:
    """Return the probabilities of 0 to servers - 1 jobs, from those with one worker less.

    That of none is usually taken as what the others leave of 1. With more than a few servers such
    a difference of nearly equal numbers is all rounding near saturation, and grows: with 8 servers
    and 256 workers throughput was 2% too low, with 16 two thirds. It is taken as a product here:
    throughput over that of the network without the station (Reiser, Mean-value analysis and
    convolution method for queue-dependent servers in closed queueing networks, Performance
    Evaluation 1, 1981).
    """
    return [before[0] * share] + [load / j * before[j - 1] for j in range(1, len(before))]


def bound(demand: float, delay: float, workers: float) -> float:
    """Return the most that N workers can do: they are all busy, or the lock is.

    >>> bound(0.1, 0.9, 5), bound(0.1, 0.9, 100)
    (5.0, 10.0)
    """
    return min(workers / (delay + demand), 1 / demand)


def knee(demand: float, delay: float) -> float:
    """Return the number of workers at which the two bounds meet: more of them only wait.

    >>> knee(0.1, 0.9)
    10.0
    """
    return (delay + demand) / demand


def fit_usl(workers: Sequence[int], rates: Rates, *, seed: int) -> Usl:
    """Fit X(N) = gamma N / (1 + alpha (N - 1) + beta N (N - 1)).

    Divided into N the law is linear in its parameters: N / X = c0 + c1 (N - 1) + c2 N (N - 1), and
    none of them is below 0. The intervals come from drawing whole blocks of the run again: in a
    block every number of workers was measured, so what disturbed the machine stays together.

    Args:
        workers: Distinct numbers of workers.
        rates: Jobs/s, one row per block, one column per number of workers.
        seed: Of the bootstrap.
    """
    gamma, alpha, beta = _usl(workers, rates.mean(axis=0))
    coin = np.random.default_rng(seed)
    blocks = len(rates)
    drawn = [
        _usl(workers, rates[coin.integers(blocks, size=blocks)].mean(axis=0))
        for _ in range(USL_RESAMPLES if blocks > 1 else 0)
    ]
    intervals = [
        tuple(float(end) for end in np.percentile([each[place] for each in drawn], (2.5, 97.5)))
        if drawn
        else (None, None)
        for place in (1, 2)
    ]
    warnings = []
    if len(workers) < USL_POINTS_MIN:
        warnings.append(f"{len(workers)} numbers of workers; three parameters want six or more")
    low = intervals[1][0]
    if low is None or low <= 0:
        warnings.append("the interval of beta includes 0: the curve may have no peak")
    return Usl(
        gamma_per_s=gamma,
        alpha=Figure(value=alpha, low=intervals[0][0], high=intervals[0][1], n=rates.size),
        beta=Figure(value=beta, low=intervals[1][0], high=intervals[1][1], n=rates.size),
        peak_workers=math.sqrt((1 - alpha) / beta) if beta > 0 and alpha < 1 else None,
        warnings=tuple(warnings),
    )


def usl_rate(usl: Usl, workers: float) -> float:
    """Return what the fitted law says for so many workers."""
    alpha, beta = usl.alpha.value or 0.0, usl.beta.value or 0.0
    return usl.gamma_per_s * workers / (1 + alpha * (workers - 1) + beta * workers * (workers - 1))


def _usl(workers: Sequence[int], rates: Rates) -> tuple[float, float, float]:
    count = np.asarray(workers, dtype=np.float64)
    terms = np.column_stack([np.ones_like(count), count - 1, count * (count - 1)])
    # Each row is divided by its left side: an error of a tenth weighs the same everywhere.
    left = count / rates
    (c0, c1, c2), _ = nnls(terms / left[:, None], np.ones_like(left))
    return 1 / c0, c1 / c0, c2 / c0
