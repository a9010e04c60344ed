"""Make figures of samples: quantiles that refuse, fairness, intervals by block bootstrap.

Pure functions of arrays. Quantiles are exact: the sample of that rank, never an interpolation and
never a histogram's bucket. They are refused where too few samples lie beyond them, because such a
figure is one slow call wearing a name.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import bootstrap  # type: ignore[attr-defined]  # It ships no types.

from killproof_bench.result import CURVE_MILLIONTHS, Figure

Samples = npt.NDArray[np.int64]

#: At least so many samples must lie beyond a quantile: p99.9 needs 10,000 samples.
BEYOND_MIN = 10
#: Fewer blocks than this make an interval that is only the range of the blocks: it is refused.
BLOCKS_MIN = 5
#: The percentile interval's ends move by less than a block's own noise from here on.
RESAMPLES = 999
#: First and last third of a steady run differ by less than this.
STEADY_SHARE = 0.05


def rank_of(permille: int, count: int) -> int:
    """Return the 1-based rank of a quantile given in thousandths, in whole numbers.

    Whole numbers, because 0.999 * 1000 is not 999 for every count in floating point.

    >>> rank_of(999, 10_000)
    9990
    """
    return -(-permille * count // 1000)


def samples_needed(permille: int) -> int:
    """Return how many samples a quantile needs before it is printed.

    >>> samples_needed(999), samples_needed(990)
    (10000, 1000)
    """
    return -(-BEYOND_MIN * 1000 // (1000 - permille))


def quantile(samples: Samples, permille: int) -> int | None:
    """Return the exact quantile, or `None` with fewer than `BEYOND_MIN` samples beyond it."""
    count = len(samples)
    rank = rank_of(permille, count)
    if count - rank < BEYOND_MIN:
        return None
    return int(np.partition(samples, rank - 1)[rank - 1])


def curve(samples: Samples) -> tuple[float, ...]:
    """Return the quantiles of `CURVE_MILLIONTHS` of latencies in ns, in ms, up to a refused one.

    >>> [round(ms, 6) for ms in curve(np.arange(1, 101))]
    [1e-05, 2.5e-05, 5e-05, 7.5e-05, 9e-05]
    """
    ordered, count = np.sort(samples), len(samples)
    ranks = [-(-part * count // 1_000_000) for part in CURVE_MILLIONTHS]
    return tuple(float(ordered[rank - 1]) / 1e6 for rank in ranks if count - rank >= BEYOND_MIN)


def tails_per_block(
    latencies: Samples, blocks: Samples, count: int
) -> tuple[tuple[float | None, ...], tuple[float, ...]]:
    """Return p99 and the longest of each block in ms; p99 is `None` where it is refused.

    Args:
        latencies: in ns.
        blocks: the block of each, from 0.
        count: of the blocks.
    """
    parts = [latencies[blocks == block] for block in range(count)]
    tails = [quantile(part, 990) for part in parts]
    longest = [float(part.max()) / 1e6 if len(part) else 0.0 for part in parts]
    return tuple(None if tail is None else tail / 1e6 for tail in tails), tuple(longest)


def quantile_figure(samples: Samples, blocks: Samples, permille: int, *, seed: int) -> Figure:
    """Return a quantile of latencies in ns as a figure in ms with its 95% interval.

    Args:
        samples: Latencies, ns.
        blocks: For each sample the number of the block (one second of one round) it belongs to.
        permille: The quantile in thousandths.
        seed: Of the bootstrap; the same seed gives the same interval.
    """
    value = quantile(samples, permille)
    if value is None:
        return Figure(value=None, low=None, high=None, n=len(samples))
    low, high = _quantile_interval(samples, blocks, permille, seed=seed)
    return Figure(
        value=value / 1e6,
        low=None if low is None else low / 1e6,
        high=None if high is None else high / 1e6,
        n=len(samples),
    )


def rate_figure(ends_per_block: Samples, *, block_seconds: float, seed: int) -> Figure:
    """Return the mean rate over blocks, per second, with its 95% interval."""
    if len(ends_per_block) == 0:
        return Figure(value=None, low=None, high=None, n=0)
    rates = ends_per_block / block_seconds
    low: float | None = None
    high: float | None = None
    if len(rates) >= BLOCKS_MIN:
        interval = bootstrap(
            (rates,),
            np.mean,
            n_resamples=RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(seed),
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    return Figure(value=float(np.mean(rates)), low=low, high=high, n=int(np.sum(ends_per_block)))


def _quantile_interval(
    samples: Samples, blocks: Samples, permille: int, *, seed: int
) -> tuple[float | None, float | None]:
    """Bootstrap a quantile over whole blocks of time.

    Neighbouring calls wait for the same lock, so they are not independent: an interval from single
    samples is far too narrow. Whole seconds are drawn instead (Kunsch 1989, block bootstrap).
    Drawing a block k times is giving its samples the weight k, so one sort serves every resample.
    """
    distinct, blocks = np.unique(blocks, return_inverse=True)
    if len(distinct) < BLOCKS_MIN:
        return None, None
    order = np.argsort(samples, kind="stable")
    ordered, block_of = samples[order], blocks[order]

    def resampled(picked: Samples) -> float:
        weights = np.bincount(picked, minlength=len(distinct))
        reached = np.cumsum(weights[block_of])
        return float(ordered[np.searchsorted(reached, rank_of(permille, int(reached[-1])))])

    interval = bootstrap(
        (np.arange(len(distinct)),),
        resampled,
        vectorized=False,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def fewest_over_most(counts: Sequence[int]) -> float:
    """Return the share that the worst-served worker got of what the best-served one got.

    >>> fewest_over_most([10, 20])
    0.5
    """
    return min(counts) / max(counts) if max(counts) else 0.0


def jain(counts: Sequence[int]) -> float:
    """Return Jain's fairness index: 1 when all are equal, 1/n when one has everything.

    Source: Jain, Chiu and Hawe, DEC-TR-301 (1984).

    >>> jain([5, 5, 5, 5]), jain([20, 0, 0, 0])
    (1.0, 0.25)
    """
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0


def is_steady(ends_per_block: Sequence[int]) -> bool:
    """Tell whether the first and the last third of a run have nearly the same median rate."""
    third = len(ends_per_block) // 3
    if third == 0:
        return False
    first = float(np.median(ends_per_block[:third]))
    final = float(np.median(ends_per_block[-third:]))
    return abs(first - final) <= STEADY_SHARE * max(first, final)
