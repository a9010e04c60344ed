"""The interactive pictures of a report: bokeh models turned into plain JSON.

Three strips share one time axis (throughput, latency, faults): dragging one drags all. Titles and
legends are the page's, not the pictures', so that they wrap on a phone and are read aloud.
Colours are those of Okabe and Ito, which stay apart for colour-blind readers; what a colour says
is also said by a dash, a hatch or a shape. The page's script colours axes and grids, because only
the browser knows whether the reader wants a dark page.

Bokeh numbers its models from a counter of the process; `pictures` numbers them anew, so that the
same store gives the same bytes.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from bokeh.document import Document
from bokeh.models import FixedTicker, HoverTool, PanTool, Range1d, ResetTool, WheelZoomTool
from bokeh.plotting import figure
from bokeh.resources import Resources

from killproof_chaos.report_figures import Bin, FaultMark, Figures, Spread, thinned

BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
VERMILLION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
#: Legible on white and on near black, should the page's script not run its colours.
GREY: Final = "#7A8087"

KILLS: Final = ("kill", "producer-kill")
CRASHES: Final = ("handler-exit", "handler-abort", "died")
#: Faults of no worker or producer, such as another program's lock.
FOREIGN_LANE: Final = "other"
LANE_HEIGHT: Final = 18
#: With more processes than this a lane is a kind of fault: nobody looks for one of a hundred.
LANES_MAX: Final = 24
#: Width that the labels of every y axis get, so that the strips stand under each other.
LABEL_WIDTH: Final = 58

Plot = Any  #: Bokeh types its models by descriptors that a type checker cannot read.


def script() -> str:
    """Return the JavaScript that draws the pictures, as the bokeh package ships it."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def pictures(figures: Figures, recovery_bound_ms: float | None) -> str:
    """Return all pictures as JSON for the page's script; safe inside a script element.

    Returns:
        `{"document": ..., "roots": {element id: root id}}`; a picture without data is left out.
    """
    plots: dict[str, Plot] = {}
    if figures.bins:
        # A little room on both sides: the last faults are made at the very end.
        length = max(figures.seconds, 0.1)
        shared = Range1d(start=-0.01 * length, end=1.01 * length, bounds="auto")
        plots["plot-throughput"] = _throughput(figures, shared)
        plots["plot-latency"] = _latency(figures, shared)
        plots["plot-faults"] = _faults(figures, shared)
    if figures.recovery_idle.count or figures.recovery_busy.count:
        plots["plot-recovery"] = _recovery(figures, recovery_bound_ms)
    document = Document()
    for plot in plots.values():
        document.add_root(plot)
    roots = {name: plot.id for name, plot in plots.items()}
    whole = document.to_json().content if plots else None
    numbered = _renumbered({"document": whole, "roots": roots}, {})
    text = json.dumps(numbered, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _renumbered(value: Any, names: dict[str, str]) -> Any:
    """Return the same JSON with the ids of models numbered in the order of their occurrence."""
    if isinstance(value, dict):
        renamed: dict[str, Any] = {}
        for key, inner in value.items():
            if key == "id" and isinstance(inner, str):
                renamed[key] = names.setdefault(inner, f"m{len(names)}")
            elif key == "roots" and isinstance(inner, dict):
                renamed[key] = {name: names[root] for name, root in inner.items()}
            else:
                renamed[key] = _renumbered(inner, names)
        return renamed
    if isinstance(value, list):
        return [_renumbered(inner, names) for inner in value]
    return value


def _plot(height: int, **options: Any) -> Plot:
    """Return an empty plot without whatever only decorates."""
    plot: Plot = figure(
        height=height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        output_backend="svg",
        min_border_left=LABEL_WIDTH,
        min_border_right=14,
        min_border_top=6,
        min_border_bottom=6,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        **options,
    )
    for axis in plot.axis:
        axis.axis_line_color = GREY
        axis.major_tick_line_color = GREY
        axis.minor_tick_line_color = None
        axis.major_label_text_color = GREY
        axis.axis_label_text_color = GREY
        axis.major_label_text_font_size = "12px"
        axis.axis_label_text_font_size = "12px"
        axis.axis_label_text_font_style = "normal"
    plot.xgrid.grid_line_color = None
    plot.ygrid.grid_line_color = GREY
    plot.ygrid.grid_line_alpha = 0.2
    return plot


def _strip(shared: Range1d, height: int, **options: Any) -> Plot:
    """Return an empty plot over the time of the run."""
    plot = _plot(height, x_range=shared, **options)
    # With a modifier: the wheel alone must go on scrolling the page.
    zoom = WheelZoomTool(dimensions="width", modifiers="ctrl")
    plot.add_tools(PanTool(dimensions="width"), zoom, ResetTool())
    return plot


def _shade(plot: Plot, figures: Figures, *, pauses: bool) -> None:
    """Shade when faults were under way, and the time after them."""
    if pauses:
        _vertical(plot, figures.of("pause"), ORANGE, 0.2, None)
        _vertical(plot, figures.of("lock"), PURPLE, 0.25, "right_diagonal_line")
    if figures.heal is not None:
        x0, x1 = _round(figures.heal), _round(figures.seconds)
        plot.vstrip(x0=[x0], x1=[x1], fill_color=GREEN, fill_alpha=0.12, line_color=None)


def _vertical(
    plot: Plot, marks: Sequence[FaultMark], color: str, alpha: float, hatch: str | None
) -> None:
    lasting = thinned([mark for mark in marks if mark.end is not None])
    if lasting:
        plot.vstrip(
            x0=[_round(mark.start) for mark in lasting],
            x1=[_round(mark.end or 0.0) for mark in lasting],
            fill_color=color,
            fill_alpha=alpha,
            line_color=None,
            hatch_pattern=hatch,
            hatch_color=color,
            hatch_alpha=0.6,
        )


def _kill_rug(plot: Plot, figures: Figures, height: float) -> None:
    """Mark each kill with a tick at the lower edge."""
    kills = thinned(figures.of(*KILLS))
    if kills:
        x = [_round(mark.start) for mark in kills]
        plot.segment(x0=x, x1=x, y0=0, y1=height, line_color=VERMILLION, line_width=1.5)


def _throughput(figures: Figures, shared: Range1d) -> Plot:
    rates = [rate for b in figures.bins for rate in (b.ended_per_second, b.enqueued_per_second)]
    top = max(*rates, 1.0) * 1.1
    plot = _strip(shared, 200, y_range=Range1d(start=0, end=top))
    _shade(plot, figures, pauses=True)
    _kill_rug(plot, figures, top * 0.06)
    x, ended = _stairs(figures.bins, lambda b: b.ended_per_second)
    _, enqueued = _stairs(figures.bins, lambda b: b.enqueued_per_second)
    plot.line(x, enqueued, line_color=GREY, line_width=1.5, line_dash="dashed")
    plot.line(x, ended, line_color=BLUE, line_width=2)
    return plot


def _stairs(bins: Sequence[Bin], value: Callable[[Bin], float]) -> tuple[list[float], list[float]]:
    """Return a staircase: the value of an interval holds over all of it."""
    x = [_round(edge) for b in bins for edge in (b.start, b.end)]
    y = [round(value(b), 2) for b in bins for _ in range(2)]
    return x, y


def _latency(figures: Figures, shared: Range1d) -> Plot:
    names = ("claim_ms", "claim_ms_max", "job_ms", "job_ms_max")
    series = {name: [_positive(getattr(b, name)) for b in figures.bins] for name in names}
    values = [v for own in series.values() for v in own if not math.isnan(v)]
    low, high = (min(values) / 1.5, max(values) * 1.5) if values else (0.1, 10.0)
    plot = _strip(shared, 260, y_axis_type="log", y_range=Range1d(start=low, end=high))
    _shade(plot, figures, pauses=True)
    centres = [_round((b.start + b.end) / 2) for b in figures.bins]
    for name, color in (("job_ms", VERMILLION), ("claim_ms", BLUE)):
        slowest = series[f"{name}_max"]
        plot.scatter(centres, slowest, marker="dash", size=8, line_color=color, line_width=2)
        plot.line(centres, series[name], line_color=color, line_width=2)
        # A value between two gaps has no line.
        plot.scatter(centres, series[name], size=4, color=color)
    _label_decades(plot.yaxis[0])
    return plot


def _label_decades(axis: Plot) -> None:
    """Write durations instead of powers of ten."""
    words = {0.001: "1 µs", 0.01: "10 µs", 0.1: "0.1 ms", 1: "1 ms", 10: "10 ms", 100: "100 ms"}
    words |= {1_000: "1 s", 10_000: "10 s", 100_000: "100 s", 1_000_000: "1,000 s"}
    axis.major_label_overrides = words


def _positive(value: float | None) -> float:
    """Return a gap where there is no value: a log axis has no zero."""
    return round(value, 3) if value is not None and value > 0 else math.nan


def _faults(figures: Figures, shared: Range1d) -> Plot:
    lanes = _Lanes(figures.faults)
    count = len(lanes.rows)
    plot = _strip(
        shared, 60 + LANE_HEIGHT * max(2, count), y_range=Range1d(start=0.4, end=count + 0.6)
    )
    plot.yaxis.ticker = FixedTicker(ticks=sorted(lanes.rows.values()))
    plot.yaxis.major_label_overrides = {row: lane for lane, row in lanes.rows.items()}
    plot.xaxis.axis_label = "seconds since the start"
    _shade(plot, figures, pauses=False)
    drawn = [
        lanes.bars(plot, figures.of("pause"), ORANGE, None),
        lanes.bars(plot, figures.of("lock"), PURPLE, "right_diagonal_line"),
        lanes.points(plot, figures.of("term"), "inverted_triangle", GREEN),
        lanes.points(plot, figures.of(*CRASHES), "asterisk", BLUE),
        lanes.points(plot, figures.of(*KILLS), "x", VERMILLION),
    ]
    tips = [("", "@fault of @process"), ("at", "@x{0.00} s"), ("in", "@phase")]
    shown = [renderer for renderer in drawn if renderer is not None]
    plot.add_tools(HoverTool(tooltips=tips, renderers=shown))
    return plot


class _Lanes:
    """The rows of the strip of faults, and how marks are drawn into them."""

    def __init__(self, faults: Sequence[FaultMark]) -> None:
        """Give workers, then producers a row each, in the order of their numbers."""
        marks = [mark for mark in faults if mark.fault != "kill-all"]
        names = {mark.lane or FOREIGN_LANE for mark in marks}
        self._by_fault = len(names) > LANES_MAX
        if self._by_fault:
            names = {mark.fault for mark in marks}
        ordered = sorted(names, key=_place)
        self.rows = {name: len(ordered) - index for index, name in enumerate(ordered)}

    def bars(
        self, plot: Plot, marks: Sequence[FaultMark], color: str, hatch: str | None
    ) -> Plot | None:
        """Draw what lasts; None where nothing does."""
        lasting = thinned([mark for mark in marks if mark.end is not None])
        if not lasting:
            return None
        ends = {"end": [_round(mark.end or 0.0) for mark in lasting]}
        return plot.hbar(
            y="y",
            left="x",
            right="end",
            height=0.62,
            source=self._columns(lasting) | ends,
            fill_color=color,
            fill_alpha=0.75,
            line_color=None,
            hatch_pattern=hatch,
            hatch_color="#FFFFFF",
            hatch_alpha=0.5,
        )

    def points(
        self, plot: Plot, marks: Sequence[FaultMark], marker: str, color: str
    ) -> Plot | None:
        """Draw what happens at a moment; None where there is nothing."""
        if not marks:
            return None
        columns = self._columns(thinned(marks))
        return plot.scatter(
            "x", "y", source=columns, marker=marker, size=9, color=color, line_width=2
        )

    def _columns(self, marks: Sequence[FaultMark]) -> dict[str, list[Any]]:
        lanes = [m.fault if self._by_fault else m.lane or FOREIGN_LANE for m in marks]
        return {
            "x": [_round(mark.start) for mark in marks],
            "y": [self.rows[lane] for lane in lanes],
            "fault": [mark.fault for mark in marks],
            "process": [mark.process or "another program" for mark in marks],
            "phase": [mark.phase or "no named phase" for mark in marks],
        }


def _place(name: str) -> tuple[bool, str, int, str]:
    letters = name.rstrip("0123456789")
    kind = {"w": "0", "p": "1"}.get(letters, letters)
    return name == FOREIGN_LANE, kind, int(name[len(letters) :] or 0), name


def _recovery(figures: Figures, bound_ms: float | None) -> Plot:
    """Return the share of kills after which the job was claimed again, over the time it took."""
    spreads = (figures.recovery_idle, figures.recovery_busy)
    values = [ms for spread in spreads for ms in spread.values if ms > 0]
    low, high = min(values, default=1.0) / 1.5, max([*values, bound_ms or 0.0, 2.0]) * 1.5
    plot = _plot(
        240,
        x_axis_type="log",
        x_range=Range1d(start=low, end=high),
        y_range=Range1d(start=0, end=103),
    )
    plot.xaxis.axis_label = "from the kill to the next claim of its job, log scale"
    _label_decades(plot.xaxis[0])
    plot.yaxis.axis_label = "% of kills"
    for spread, color, dash in ((spreads[1], VERMILLION, "dashed"), (spreads[0], BLUE, "solid")):
        if spread.count:
            x, y = _shares(spread, low)
            plot.line(x, y, line_color=color, line_width=2, line_dash=dash)
    if bound_ms is not None:
        plot.vspan(x=[bound_ms], line_color=GREY, line_dash="dotted", line_width=2)
    return plot


def _shares(spread: Spread, low: float) -> tuple[list[float], list[float]]:
    """Return the empirical distribution as a staircase from the left edge."""
    x, y, share = [low], [0.0], 0.0
    ranks = thinned(range(1, spread.count + 1))
    for rank in ranks:
        value = round(max(spread.values[rank - 1], low), 3)
        x += [value, value]
        y += [share, share := round(100 * rank / spread.count, 3)]
    return x, y


def _round(seconds: float) -> float:
    """Keep the milliseconds: no picture shows more, and each digit is a byte."""
    return round(seconds, 3)
