"""Pictures for a terminal and a CI log, in plain ASCII: bars, and curves over two axes.

Whoever reads a bench over ssh or in the log of a pipeline sees no other picture. Rates are drawn
from zero and latencies on a logarithmic scale, as on the page; every bar ends in its own figure,
so that nobody has to read a length. All functions are pure.

>>> print(bars("jobs/s", [Bar(label="1 worker", value=50.0, text="50"),
...                       Bar(label="2 workers", value=100.0, text="100")], columns=10))
jobs/s, from 0 to 100
 1 worker |##### 50
2 workers |########## 100
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Of a bar; with its label and its figure a line stays under 80.
BAR_COLUMNS: Final = 40
CURVE_COLUMNS: Final = 60
CURVE_LINES: Final = 14
#: Where two curves meet, so that neither hides the other without a word.
BOTH: Final = "="


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One line of a bar chart."""

    label: str
    value: float | None  #: `None`: refused or not measured; the line has its text alone.
    text: str  #: What stands behind the bar: the figure, with its interval where there is one.
    mark: str = "#"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a chart over two axes."""

    name: str
    mark: str  #: One character, told beside the name under the chart.
    points: Sequence[tuple[float, float]]


def bars(
    heading: str, rows: Sequence[Bar], *, log: bool = False, columns: int = BAR_COLUMNS
) -> str:
    """Return one bar a line, under a heading that says the scale.

    Args:
        heading: what is drawn, with its unit; the ends of the scale are added.
        rows: from top to bottom.
        log: from the power of ten below the smallest value, for latencies; else from 0.
        columns: of the longest bar.
    """
    known = [row.value for row in rows if row.value is not None and row.value > 0]
    if not known:
        return heading
    low, high = _decades(known) if log else (0.0, max(known))
    scale = f"log scale from {low:g} to {high:g}" if log else f"from 0 to {high:,.0f}"
    width = max(len(row.label) for row in rows)
    lines = [f"{heading}, {scale}"]
    for row in rows:
        share = _share(row.value, low, high, log) if row.value else 0.0
        lines.append(f"{row.label:>{width}} |{row.mark * round(share * columns)} {row.text}")
    return "\n".join(lines)


def curves(
    lines: Sequence[Curve],
    *,
    x_name: str,
    y_name: str,
    log_x: bool = False,
    log_y: bool = False,
    level: tuple[float, str] | None = None,
) -> str:
    """Return curves over two axes, with the mark of each under them.

    Args:
        lines: drawn in order; where two meet there is an equals sign.
        x_name: with its unit; it stands under the axis.
        y_name: with its unit; it stands above the axis.
        log_x: such as for numbers of workers that double.
        log_y: such as for latencies; else the axis begins at 0.
        level: a horizontal limit, such as a promised latency, and its name.
    """
    points = [(x, y) for line in lines for x, y in line.points if not log_y or y > 0]
    if not points:
        return y_name
    heights = [y for _, y in points] + ([level[0]] if level is not None else [])
    bottom, top = _decades(heights) if log_y else (0.0, max(heights) or 1.0)
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    canvas = [[" "] * (CURVE_COLUMNS + 1) for _ in range(CURVE_LINES + 1)]
    if level is not None:
        canvas[_line(level[0], bottom, top, log_y)] = ["."] * (CURVE_COLUMNS + 1)
    for line in lines:
        for x, y in line.points:
            if log_y and y <= 0:
                continue
            column = round(_share(x, left, right, log_x) * CURVE_COLUMNS)
            row = canvas[_line(y, bottom, top, log_y)]
            row[column] = line.mark if row[column] in {" ", ".", line.mark} else BOTH
    labels = {0: f"{top:,.4g}", CURVE_LINES: f"{bottom:,.4g}"}
    drawn = [
        f"{labels.get(number, ''):>8} |{''.join(row).rstrip()}" for number, row in enumerate(canvas)
    ]
    ends = f"{left:,.4g}{x_name:^{CURVE_COLUMNS - 8}}{right:>8,.4g}"
    key = [f"{line.mark} {line.name}" for line in lines]
    if level is not None:
        key.append(f". {level[1]}")
    scale = f"{y_name}, log scale" if log_y else y_name
    rule = f"{'':>8} +{'-' * (CURVE_COLUMNS + 1)}"
    return "\n".join([scale, *drawn, rule, f"{'':>10}{ends}", f"{'':>10}{'   '.join(key)}"])


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Return the powers of ten around the values, at least one decade apart."""
    low = 10.0 ** math.floor(math.log10(min(values)))
    return low, low * 10.0 ** max(1, math.ceil(math.log10(max(values) / low)))


def _share(value: float, low: float, high: float, log: bool) -> float:
    """Return the place of a value between the ends of its axis, 0 to 1."""
    if high <= low:
        return 0.0
    share = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
    return min(max(share, 0.0), 1.0)


def _line(value: float, bottom: float, top: float, log: bool) -> int:
    return CURVE_LINES - round(_share(value, bottom, top, log) * CURVE_LINES)
