"""The picture of times to detect, as SVG text: no script, no network, no colour needed.

A row for each broken queue: a dot at the median, a bar from there to p95, a tick at the longest,
and a hollow diamond at the budget. A row without a dot was not found in time by half of its runs.
Every mark has a title, which browsers show under the pointer and screen readers read.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

WIDTH: Final = 960
LABEL: Final = 250
PLOT: Final = WIDTH - LABEL - 20
ROW: Final = 17
TOP: Final = 8
AXIS: Final = 34
#: The axis is logarithmic: a schedule takes a tenth of a second, a run with processes six.
SHORTEST: Final = 0.05
TICKS: Final = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)


def times(queues: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture; empty where there is no queue."""
    if not queues:
        return ""
    known = [
        value
        for queue in queues
        for value in (queue["budget_seconds"], queue["seconds"]["most"] or 0.0)
    ]
    longest = next((tick for tick in TICKS if tick >= max(known)), TICKS[-1])
    bottom = TOP + ROW * len(queues)
    parts = []
    for tick in TICKS:
        if tick <= longest:
            x = _x(tick, longest)
            parts.append(f'<line class="base" x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>')
            parts.append(_text(x, bottom + 14, f"{tick:g} s", "tiny", "middle"))
    for number, queue in enumerate(queues):
        parts += _row(queue, TOP + ROW * number + ROW / 2, longest)
    label = "Time to detect each broken queue: median, p95, longest, and its budget"
    return (
        f'<svg class="times" viewBox="0 0 {WIDTH} {bottom + AXIS}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )


def _row(queue: Mapping[str, Any], y: float, longest: float) -> list[str]:
    found = queue["seconds"]
    parts = [_text(LABEL - 10, y + 4, queue["name"], "label", "end")]
    budget = _x(queue["budget_seconds"], longest)
    diamond = f"M{budget} {y - 4}l4 4l-4 4l-4 -4z"
    parts.append(
        f'<path class="budget" d="{diamond}">'
        f"<title>{escape(queue['name'])}: budget {queue['budget_seconds']:g} s</title></path>"
    )
    if found["median"] is None:
        return parts
    median, most = _x(found["median"], longest), _x(found["most"], longest)
    p95 = most if found["p95"] is None else _x(found["p95"], longest)
    told = f"{queue['name']}, by {queue['engine']}: median {found['median']:.2f} s"
    told += "" if found["p95"] is None else f", p95 {found['p95']:.2f} s"
    told += f", longest {found['most']:.2f} s, {found['censored']} censored"
    bar = f'<rect class="span" x="{median}" y="{y - 2}" width="{max(p95 - median, 0.1):.1f}" '
    parts.append(
        f"<g><title>{escape(told)}</title>{bar}"
        f'height="4"/><line class="most" x1="{most}" x2="{most}" y1="{y - 5}" y2="{y + 5}"/>'
        f'<circle class="{queue["engine"]}" cx="{median}" cy="{y}" r="4.5"/></g>'
    )
    return parts


def _x(seconds: float, longest: float) -> float:
    share = math.log(max(seconds, SHORTEST) / SHORTEST) / math.log(longest / SHORTEST)
    return round(LABEL + PLOT * min(share, 1.0), 1)


def _text(x: float, y: float, text: str, style: str, anchor: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
