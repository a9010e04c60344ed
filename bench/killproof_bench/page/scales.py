"""Where ticks and labels of a picture stand: arithmetic, without the chart library."""

import math
from collections.abc import Sequence


def log_ticks(low: float, high: float, times: bool) -> dict[float, str]:
    """Return the powers of ten, and 2 and 5 times them where there would be too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside = [10.0**power for power in powers if low <= 10.0**power <= high]
    if len(inside) < 3:
        inside = [
            digit * 10.0**power
            for power in powers
            for digit in (1, 2, 5)
            if low <= digit * 10.0**power <= high
        ]
    return {round(value, 9): duration(value) if times else f"{value:,.6g}" for value in inside}


def duration(ms: float) -> str:
    """Return a time in the unit that suits it.

    >>> duration(0.05), duration(20), duration(5000)
    ('50 µs', '20 ms', '5 s')
    """
    if ms < 0.9999:
        return f"{ms * 1_000:.3g} µs"
    return f"{ms:.4g} ms" if ms < 999.9 else f"{ms / 1_000:,.4g} s"


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Return ascending heights at least `gap` apart, moved as little as that takes.

    >>> apart([10, 12, 40], 10)
    [6.0, 16.0, 40.0]
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        # A group that reaches into the one before takes its members over, around their mean.
        while len(groups) > 1 and _foot(groups[-1], gap) - _head(groups[-2], gap) < gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_foot(group, gap) + number * gap for group in groups for number, _ in enumerate(group)]


def _foot(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _head(group: Sequence[float], gap: float) -> float:
    return _foot(group, gap) + gap * (len(group) - 1)
