"""The test of layer 2: exact, sequential, with its error rates bounded by construction.

The statistic of a block is `d`, the mean log time of its two B arms less that of its two A arms.
Which code runs first and last is decided by a fair coin, so under "the same code" the sign of `d`
is fair whatever the noise, the drift, the outliers or the autocorrelation: the exact Wilcoxon
signed-rank test is then a randomisation test, and no model of the noise is needed.

Two tests are made at each of four looks. FAIL: `d` less log(1.02) is positive; subtracting a
constant only lowers the statistic, so a change of at most 2% is called slower no more often than
the same code is. PASS: `d` less log(1.10) is negative: a slowdown of 10% is ruled out. FAIL is
asked first: a slowdown between the two margins can satisfy both.

A run that ends inconclusive is repeated once, with a fresh coin and at levels of its own. The
levels of all looks of both runs add up to 0.005 and 0.05, so by the union bound those are the
largest chances of a false alarm and of a missed 10% slowdown, without any assumption on how the
looks depend on each other. Nine tenths are the first run's: where the gate can promise to find a
slowdown, fewer than one run in a hundred needs the second.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import (  # type: ignore[attr-defined]  # It ships no types.
    binomtest,
    chi2,
    wilcoxon,
)

from killproof_bench.gate.result import GateVerdict, Look, Power
from killproof_bench.result import Figure

#: Slower by less than this is not worth a red build.
MARGIN = 0.02
#: What the gate promises to find.
SLOWDOWN = 0.10
#: Blocks at which the data are looked at. At 10, only ten positive signs reach the first level.
LOOKS = (10, 20, 40, 80)


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """At or below which p each look of one run decides."""

    fail: tuple[float, ...]
    passes: tuple[float, ...]


FIRST = Levels(fail=(0.001, 0.001, 0.0012, 0.0013), passes=(0.01, 0.01, 0.012, 0.013))
RETRY = Levels(fail=(0.0, 0.0001, 0.0002, 0.0002), passes=(0.001, 0.001, 0.0015, 0.0015))
#: The largest chance of a false alarm, and of a pass at a slowdown of 10%, the retry counted in.
ALPHA = math.fsum((*FIRST.fail, *RETRY.fail))
BETA = math.fsum((*FIRST.passes, *RETRY.passes))
#: Up to here the chance of finding a 10% slowdown is at least 95% (`expected`, and the proof).
SIGMA_MAX = 0.12
CONFIDENCE = 0.95

Array = npt.NDArray[np.float64]


def log_ratio(times: Sequence[float], order: str) -> float:
    """Return `d` of one block: mean log time of its B arms less that of its A arms.

    >>> round(log_ratio([1.0, 1.1, 1.1, 1.0], "ABBA"), 4) == round(math.log(1.1), 4)
    True
    """
    sides = {side: [math.log(t) for t, s in zip(times, order, strict=True) if s == side]
             for side in "AB"}  # fmt: skip
    return math.fsum(sides["B"]) / len(sides["B"]) - math.fsum(sides["A"]) / len(sides["A"])


def look_at(differences: Sequence[float], levels: Levels = FIRST) -> Look | None:
    """Look at the blocks so far; `None` where no look is planned at their number."""
    count = len(differences)
    if count not in LOOKS:
        return None
    index = LOOKS.index(count)
    slower, faster = _p_values(np.array([differences]))
    p_slower, p_faster = float(slower[0]), float(faster[0])
    return Look(
        blocks=count,
        p_slower=p_slower,
        p_fail_at=levels.fail[index],
        p_not_slower=p_faster,
        p_pass_at=levels.passes[index],
        verdict=_verdict(p_slower, p_faster, index, levels),
    )


def _p_values(rows: Array) -> tuple[Array, Array]:
    """Return for each row the exact p of the two tests."""
    slower = wilcoxon(
        rows - math.log1p(MARGIN), alternative="greater", method="exact", axis=1
    ).pvalue
    faster = wilcoxon(
        rows - math.log1p(SLOWDOWN), alternative="less", method="exact", axis=1
    ).pvalue
    return slower, faster


def _verdict(p_slower: float, p_faster: float, index: int, levels: Levels) -> GateVerdict:
    if p_slower <= levels.fail[index]:
        return "fail"
    return "pass" if p_faster <= levels.passes[index] else "inconclusive"


def outcomes(rows: Array) -> tuple[list[GateVerdict], list[int]]:
    """Run the whole sequential test, without its retry, on each row of at least 80 differences.

    Returns:
        The verdict of each row, and the number of blocks after which it was known.
    """
    verdicts: list[GateVerdict] = ["inconclusive"] * len(rows)
    blocks = [LOOKS[-1]] * len(rows)
    undecided = np.arange(len(rows))
    for index, count in enumerate(LOOKS):
        slower, faster = _p_values(rows[undecided, :count])
        left = []
        for row, p_slower, p_faster in zip(undecided, slower, faster, strict=True):
            verdicts[row] = _verdict(float(p_slower), float(p_faster), index, FIRST)
            blocks[row] = count
            if verdicts[row] == "inconclusive":
                left.append(row)
        undecided = np.array(left, dtype=np.intp)
        if not left:
            break
    return verdicts, blocks


def ratio(differences: Sequence[float]) -> Figure:
    """Return the Hodges-Lehmann estimate of head over base, with its exact 95% interval.

    The estimate is the median of the Walsh averages. An end of the interval is the outermost Walsh
    average that the signed-rank test at half the remaining 5% does not reject: p rises as the
    tested value passes the averages in order, so it is found by bisection.
    """
    count = len(differences)
    if not count:
        return Figure(value=None, low=None, high=None, n=0)
    values = np.array(differences)
    first, second = np.triu_indices(count)
    walsh = np.sort((values[first] + values[second]) / 2)
    middle = math.exp(float(np.median(walsh)))
    tail = (1 - CONFIDENCE) / 2
    if 0.5**count > tail:  # Not even all signs alike would reject: the interval has no ends.
        return Figure(value=middle, low=None, high=None, n=count)
    low = _first_kept(walsh, lambda tested: _p(values - tested, "greater") > tail)
    high = -_first_kept(-walsh[::-1], lambda tested: _p(values + tested, "less") > tail)
    return Figure(value=middle, low=math.exp(low), high=math.exp(high), n=count)


def _p(shifted: Array, alternative: str) -> float:
    # Off the averages themselves, where the tested value makes a tie or a zero of a difference.
    return float(wilcoxon(shifted, alternative=alternative, method="exact").pvalue)


def _first_kept(ordered: Array, is_kept: Callable[[float], bool]) -> float:
    """Return the smallest of the ordered values beyond which the test does not reject."""
    low, high = 0, len(ordered) - 1
    while low < high:
        middle = (low + high) // 2
        between = (ordered[middle] + ordered[middle + 1]) / 2
        low, high = (low, middle) if is_kept(float(between)) else (middle + 1, high)
    return float(ordered[low])


def sigma(differences: Sequence[float]) -> Figure:
    """Return the standard deviation of `d` with its 95% chi-square interval."""
    count = len(differences)
    if count < 2:
        return Figure(value=None, low=None, high=None, n=count)
    value = float(np.std(differences, ddof=1))
    freedom = count - 1
    low, high = (
        value * math.sqrt(freedom / float(chi2.ppf(quantile, freedom)))
        for quantile in ((1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2)
    )
    return Figure(value=value, low=low, high=high, n=count)


def share(hits: int, runs: int) -> Figure:
    """Return a share of runs with its Clopper-Pearson interval.

    >>> share(0, 300).high < 0.0123
    True
    """
    if not runs:
        return Figure(value=None, low=None, high=None, n=0)
    interval = binomtest(hits, runs).proportion_ci(CONFIDENCE, method="exact")
    return Figure(value=hits / runs, low=float(interval.low), high=float(interval.high), n=runs)


def expected(sigma: float, slowdown: float, *, block_seconds: float, runs: int, seed: int) -> Power:
    """Simulate what the gate does at a true slowdown, where `d` is normal with this sigma."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(math.log1p(slowdown), max(sigma, 1e-9), (runs, LOOKS[-1]))
    verdicts, blocks = outcomes(rows)
    return Power(
        slowdown=slowdown,
        fails=verdicts.count("fail") / runs,
        passes=verdicts.count("pass") / runs,
        inconclusive=verdicts.count("inconclusive") / runs,
        blocks_mean=float(np.mean(blocks)),
        seconds_mean=float(np.mean(blocks)) * block_seconds,
        runs=runs,
    )
