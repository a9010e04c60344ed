"""The statistics of detection, from scipy: what a few runs say, and what they leave open.

- A rate has a Wilson score interval: 20 of 20 is no certainty, it is "at least 84%".
- A time to detect is censored at the budget: a run that had found nothing by then says only that
  the time is longer. Median and p95 are read off the Kaplan-Meier estimate, and are unknown where
  too few runs found it in time.
- No false alarm in n runs bounds their rate: by the rule of three it is below 3/n, with 95%
  confidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How often, of how many, and what that says of the true rate."""

    count: int
    of: int
    low: float  #: of the Wilson interval at 95%; 0 to 1
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long it took, by Kaplan-Meier."""

    median: float | None  #: s; None: more than half were censored before it
    p95: float | None
    most: float | None  #: the longest that was seen to its end
    censored: int


def rate(count: int, of: int) -> Rate:
    """Return a rate with its Wilson score interval.

    >>> found = rate(20, 20)
    >>> f"{found.low:.2f} to {found.high:.2f}"
    '0.84 to 1.00'
    """
    if of == 0:
        return Rate(count=0, of=0, low=0.0, high=1.0)
    # Here: it takes a second to import, and only who measures needs it.
    from scipy.stats import binomtest  # type: ignore[attr-defined]  # It ships no types.

    interval = binomtest(count, of).proportion_ci(CONFIDENCE, method="wilson")
    return Rate(count=count, of=of, low=float(interval.low), high=float(interval.high))


def times(found: Sequence[float], censored: Sequence[float]) -> Times:
    """Return median and p95 of times of which some are only known to be longer.

    Args:
        found: times that were seen to their end, s.
        censored: times after which nothing had been found, s.

    >>> times([1.0, 2.0, 3.0], []).median
    2.0
    >>> times([1.0], [5.0, 5.0]).median is None
    True
    """
    if not found:
        return Times(median=None, p95=None, most=None, censored=len(censored))
    from scipy.stats import CensoredData, ecdf  # type: ignore[attr-defined]  # It ships no types.

    data: Any = CensoredData
    is_censored = [False] * len(found) + [True] * len(censored)
    cdf = ecdf(data.right_censored([*found, *censored], is_censored)).cdf
    steps = list(zip(cdf.quantiles, cdf.probabilities, strict=True))

    def quantile(share: float) -> float | None:
        # The estimate is a step function: the first time by which so many had been found.
        return next((float(at) for at, known in steps if known >= share - 1e-9), None)

    return Times(median=quantile(0.5), p95=quantile(0.95), most=max(found), censored=len(censored))


def bound(alarms: int, runs: int) -> float:
    """Return the rate below which false alarms lie, with 95% confidence.

    >>> round(bound(0, 300), 4)
    0.01
    """
    if runs == 0:
        return 1.0
    return 3 / runs if alarms == 0 and runs >= 3 else rate(alarms, runs).high
