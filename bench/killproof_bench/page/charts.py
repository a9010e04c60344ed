"""The pictures of a page: bokeh models made of `content`, turned into plain JSON.

Colours are those of Okabe and Ito, which stay apart for colour-blind readers, and never speak
alone: a series has a marker and a dash of its own and its name at its end. Each model carries the
name of its ink as a tag, and the page's script gives it the shade that fits a light, a dark or a
printed page, because only the browser knows which it is.

Bokeh numbers its models from a counter of the process; `pictures` numbers them anew, so that the
same result gives the same bytes.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from bokeh.document import Document
from bokeh.models import (
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
    PanTool,
    Range1d,
    ResetTool,
    WheelZoomTool,
)
from bokeh.models.annotations import BoxAnnotation, Label, Span
from bokeh.models.annotations.html import HTMLLabel
from bokeh.plotting import figure
from bokeh.resources import Resources

from killproof_bench.page import scales
from killproof_bench.page.content import (
    Axis,
    Bars,
    Chart,
    Curves,
    Ink,
    Level,
    Series,
    Stacks,
    Zone,
)

#: The shades of a light page; the style sheet has those of the others under the same names.
SHADES: Final[Mapping[Ink, str]] = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "orange": "#E69F00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "grey": "#7A8087",
}
FONT: Final = "system-ui, sans-serif"
TEXT: Final[dict[str, Any]] = {
    "text_font": FONT,
    "text_font_size": "12px",
    "text_font_style": "normal",
}

#: Room for the labels of a y axis, so that pictures stand under each other.
LABEL_WIDTH: Final = 70
ROW_HEIGHT: Final = 30
#: Of one character of a label, in pixels; labels are measured before there is a browser.
CHARACTER_WIDTH: Final = 6.6
#: Labels at the ends of lines lie no closer than this, in pixels.
LABEL_GAP: Final = 15
#: What the x axis and its name take of a picture's height, and the border above it.
AXIS_HEIGHT: Final = 52
TOP_BORDER: Final = 10

Plot = Any  #: Bokeh types its models by descriptors that a type checker cannot read.


def script() -> str:
    """Return the JavaScript that draws the pictures, as the bokeh package ships it."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def pictures(charts: Sequence[Chart]) -> str:
    """Return all pictures as JSON for the page's script; safe inside a script element.

    Returns:
        `{"document": ..., "roots": {element id: root id}}`.
    """
    shared: dict[str, Range1d] = {}
    document, roots = Document(), {}
    # All at once: with each picture the library would look through all those before it again.
    with document.models.freeze():
        for chart in charts:
            plot = _drawn(chart, shared)
            document.add_root(plot)
            roots[f"plot-{chart.id}"] = plot.id
    whole = document.to_json().content if roots else None
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


def _drawn(chart: Chart, shared: dict[str, Range1d]) -> Plot:
    match chart.picture:
        case Curves() as curves:
            return _curves(curves, shared)
        case Bars() as bars:
            return _bars(bars)
        case Stacks() as stacks:
            return _stacks(stacks)


def _plot(height: int, **options: Any) -> Plot:
    """Return an empty plot without whatever only decorates."""
    plot: Plot = figure(
        height=height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        output_backend="svg",
        min_border_top=TOP_BORDER,
        min_border_bottom=6,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        **options,
    )
    for axis in plot.axis:
        axis.minor_tick_line_color = None
        axis.major_label_text_font = axis.axis_label_text_font = FONT
        axis.major_label_text_font_size = axis.axis_label_text_font_size = "12px"
        axis.axis_label_text_font_style = "normal"
        axis.tags = ["axis"]
    plot.grid.tags = ["grid"]
    return plot


# Curves.


def _curves(curves: Curves, shared: dict[str, Range1d]) -> Plot:
    xs = [x for series in curves.series for x in series.x]
    xs += [level.at for level in curves.levels if level.axis == "x"]
    ys = [y for series in curves.series for y in (*series.y, *series.low, *series.high)]
    ys += [level.at for level in curves.levels if level.axis == "y"]
    x_range = _range(curves.x, [x for x in xs if _shown(x, curves.x)], across=True)
    y_range = _range(curves.y, [y for y in ys if y is not None and _shown(y, curves.y)])
    if curves.shared:
        x_range = shared.setdefault(curves.shared, x_range)
    longest = max((len(series.label) for series in curves.series), default=0)
    plot = _plot(
        curves.height,
        x_range=x_range,
        y_range=y_range,
        x_axis_type="log" if curves.x.log else "linear",
        y_axis_type="log" if curves.y.log else "linear",
        min_border_left=LABEL_WIDTH,
        min_border_right=round(14 + longest * CHARACTER_WIDTH) if longest else 16,
    )
    plot.xgrid.grid_line_color = None
    _label_axis(plot.xaxis[0], curves.x, x_range)
    _label_axis(plot.yaxis[0], curves.y, y_range)
    if curves.shared:
        # With a modifier: the wheel alone must go on scrolling the page.
        zoom = WheelZoomTool(dimensions="width", modifiers="ctrl")
        plot.add_tools(PanTool(dimensions="width"), zoom, ResetTool())
    for zone in curves.zones:
        _zone(plot, zone, y_range)
    for series in curves.series:
        _series(plot, series)
    _end_labels(plot, curves, y_range)
    for level in curves.levels:
        _level(plot, level, y_range)
    return plot


def _shown(value: float, axis: Axis) -> bool:
    return value > 0 if axis.log else True


def _range(axis: Axis, values: Sequence[float], *, across: bool = False) -> Range1d:
    """Return the ends of an axis: a rate begins at 0, a log axis just below its least value."""
    low = min(values, default=1.0 if axis.log else 0.0)
    high = max(values, default=10.0 if axis.log else 1.0)
    if axis.log:
        room = max((high / low) ** 0.05, 1.05) if across else 1.35
        # Names stand at the right ends of lines: no room there that a grid line would cross.
        start, end = low / room, high * (1 + (room - 1) / 4 if across else room)
    elif across:
        room = 0.03 * (high - low or 1.0)
        start, end = low - room, high + room / 3
    else:
        start, end = min(0.0, low * 1.1), high * 1.12 or 1.0
    start = start if axis.low is None else axis.low
    return Range1d(start=start, end=end if axis.high is None else axis.high)


def _start(ends: Range1d) -> float:
    start: Any = ends.start
    return float(start)


def _end(ends: Range1d) -> float:
    end: Any = ends.end
    return float(end)


def _label_axis(drawn: Plot, axis: Axis, ends: Range1d) -> None:
    drawn.axis_label = axis.name
    ticks = axis.ticks
    if ticks is None and axis.log:
        ticks = scales.log_ticks(_start(ends), _end(ends), axis.times)
    if ticks is None:
        drawn.formatter = NumeralTickFormatter(format="0,0.[000]")
        return
    drawn.ticker = FixedTicker(ticks=list(ticks))
    drawn.major_label_overrides = dict(ticks)


def _series(plot: Plot, series: Series) -> None:
    """Draw the intervals first, then the line, then the points that the pointer finds."""
    kept = [place for place, y in enumerate(series.y) if y is not None]
    columns: dict[str, list[Any]] = {
        "x": [_short(series.x[place]) for place in kept],
        "y": [_short(series.y[place] or 0.0) for place in kept],
    }
    if any(series.tips):
        columns["tip"] = [series.tips[place] for place in kept]
    source = ColumnDataSource(columns)
    ink = SHADES[series.ink]
    tags = [f"ink-{series.ink}"]
    _intervals(plot, series, tags)
    if series.dash != "none":
        whole = {
            "x": [_short(x) for x in series.x],
            "y": [math.nan if y is None else _short(y) for y in series.y],
        }
        line = plot.line(
            whole["x"], whole["y"], line_color=ink, line_width=2, line_dash=series.dash
        )
        line.glyph.tags = tags
    points = plot.scatter(
        "x",
        "y",
        source=source,
        marker="circle" if series.marker == "none" else series.marker,
        size=series.size or (10 if series.marker == "diamond" else 7),
        fill_color=ink,
        line_color=ink,
        alpha=0.0 if series.marker == "none" else 1.0,
    )
    points.glyph.tags = tags
    if any(series.tips):
        plot.add_tools(HoverTool(tooltips=[("", "@tip")], renderers=[points]))


def _intervals(plot: Plot, series: Series, tags: list[str]) -> None:
    known = [
        (x, low, high)
        for x, low, high in zip(series.x, series.low, series.high, strict=False)
        if low is not None and high is not None
    ]
    if not known:
        return
    x, low, high = ([_short(value) for value in column] for column in zip(*known, strict=True))
    ink = SHADES[series.ink]
    if series.band:
        drawn = plot.varea(x, low, high, fill_color=ink, fill_alpha=0.22)
    else:
        drawn = plot.segment(x, low, x, high, line_color=ink, line_width=1.6)
        for ends in (low, high):
            caps = plot.scatter(x, ends, marker="dash", size=9, line_color=ink, line_width=1.6)
            caps.glyph.tags = tags
    drawn.glyph.tags = tags


def _end_labels(plot: Plot, curves: Curves, y_range: Range1d) -> None:
    """Write each name at the end of its line, moved apart where two would touch."""
    place = _pixels(curves.y, y_range, curves.height)
    ends = []
    for series in curves.series:
        known = [
            (x, y)
            for x, y in zip(series.x, series.y, strict=True)
            if y is not None and _shown(y, curves.y)
        ]
        if series.label and known:
            ends.append((place(known[-1][1]), known[-1], series))
    ends.sort(key=lambda end: end[0])
    heights = scales.apart([end[0] for end in ends], LABEL_GAP)
    for height, (own, (x, y), series) in zip(heights, ends, strict=True):
        where = {"x": _short(x), "y": _short(y), "x_offset": 9, "y_offset": round(height - own, 1)}
        _beside(plot, series.label, series.ink, where)


def _beside(plot: Plot, text: str, ink: Ink | Literal["ink"], where: dict[str, Any]) -> None:
    """Write a text into the border: of HTML, for what is drawn ends where the axes do."""
    options: dict[str, Any] = {**where, **TEXT, "text_baseline": "middle"}
    plot.add_layout(HTMLLabel(text=text, tags=[f"text-{ink}"], **options))


def _inside(plot: Plot, text: str, ink: Ink, where: dict[str, Any]) -> None:
    """Write a text among what is drawn."""
    options: dict[str, Any] = {**where, **TEXT}
    plot.add_layout(Label(text=text, tags=[f"text-{ink}"], **options))


def _pixels(axis: Axis, ends: Range1d, height: int) -> Callable[[float], float]:
    """Return the function from a value to its height in the picture, in pixels."""
    inner = height - AXIS_HEIGHT - TOP_BORDER
    start, end = _start(ends), _end(ends)
    if axis.log:
        return lambda value: inner * math.log(value / start) / math.log(end / start)
    return lambda value: inner * (value - start) / (end - start)


def _level(plot: Plot, level: Level, y_range: Range1d) -> None:
    tags = [f"ink-{level.ink}"]
    span = Span(
        location=level.at,
        dimension="width" if level.axis == "y" else "height",
        line_color=SHADES[level.ink],
        line_width=1.6,
        line_dash=level.dash,
        tags=tags,
    )
    plot.add_layout(span)
    where: dict[str, Any] = {"x": level.at, "y": _end(y_range), "x_offset": 5, "y_offset": -15}
    if level.axis == "y":
        where = {"x": 6, "x_units": "screen", "y": level.at, "y_offset": 3}
    _inside(plot, level.name, level.ink, where)


def _zone(plot: Plot, zone: Zone, y_range: Range1d) -> None:
    ink = SHADES[zone.ink]
    edges: dict[str, Any] = {"left": zone.low, "right": zone.high}
    if zone.axis == "y":
        edges = {"bottom": zone.low, "top": zone.high}
    box = BoxAnnotation(
        **edges,
        fill_color=ink,
        fill_alpha=0.06,
        hatch_pattern="right_diagonal_line",
        hatch_color=ink,
        hatch_alpha=0.35,
        hatch_weight=1,
        hatch_scale=14,
        line_color=None,
        level="underlay",
        tags=[f"ink-{zone.ink}"],
    )
    plot.add_layout(box)
    if zone.name and zone.axis == "x" and zone.low is not None:
        where = {"x": zone.low, "y": _end(y_range), "x_offset": 5, "y_offset": -15}
        _inside(plot, zone.name, zone.ink, where)


# Bars and stacks.


def _rows(names: Sequence[str], axis: Axis, ends: Range1d, right: int) -> Plot:
    """Return an empty plot with a named row for each name, the first at the top."""
    count = len(names)
    plot = _plot(
        AXIS_HEIGHT + TOP_BORDER + ROW_HEIGHT * count,
        x_range=ends,
        x_axis_type="log" if axis.log else "linear",
        y_range=Range1d(start=0.4, end=count + 0.6),
        min_border_right=right,
    )
    plot.ygrid.grid_line_color = None
    plot.yaxis.ticker = FixedTicker(ticks=list(range(1, count + 1)))
    plot.yaxis.major_label_overrides = {count - place: name for place, name in enumerate(names)}
    plot.yaxis.major_tick_line_color = None
    _label_axis(plot.xaxis[0], axis, ends)
    return plot


def _bars(bars: Bars) -> Plot:
    """Draw a bar to each figure, its interval over it, and its text behind it."""
    values = [v for row in bars.rows for v in (row.value, row.low, row.high) if v]
    values += [level.at for level in bars.levels]
    ends = _range(bars.axis, values)
    longest = max((len(row.text) for row in bars.rows), default=0)
    plot = _rows(
        [row.name for row in bars.rows], bars.axis, ends, round(16 + longest * CHARACTER_WIDTH)
    )
    for place, row in enumerate(bars.rows):
        y = len(bars.rows) - place
        end = _start(ends) if row.value is None else row.value
        _bar(plot, y, _start(ends), end, row.tip, row.ink)
        known = row.low is not None and row.high is not None and row.value is not None
        if known:
            over = plot.segment(
                [row.low], [y], [row.high], [y], line_color=SHADES["grey"], line_width=2
            )
            over.glyph.tags = ["ink-axis"]
        edge = max(end, row.high) if known and row.high is not None else end
        _beside(plot, row.text, "ink", {"x": edge, "y": y, "x_offset": 7})
    for level in bars.levels:
        _level(plot, level, plot.y_range)
    return plot


def _bar(plot: Plot, y: float, left: float, right: float, tip: str, ink: Ink) -> None:
    source = ColumnDataSource({"y": [y], "left": [left], "right": [right], "tip": [tip]})
    drawn = plot.hbar(
        y="y",
        left="left",
        right="right",
        height=0.62,
        source=source,
        fill_color=SHADES[ink],
        line_color=None,
    )
    drawn.glyph.tags = [f"ink-{ink}"]
    plot.add_tools(HoverTool(tooltips=[("", "@tip")], renderers=[drawn]))


def _stacks(stacks: Stacks) -> Plot:
    """Draw the parts of each row behind each other."""
    totals = [sum(values) for _, values in stacks.rows]
    ends = _range(stacks.axis, totals)
    plot = _rows([name for name, _ in stacks.rows], stacks.axis, ends, 16)
    for place, (name, values) in enumerate(stacks.rows):
        left = 0.0
        for (part, ink), value in zip(stacks.parts, values, strict=True):
            share = value / totals[place] if totals[place] else 0.0
            tip = f"{name}, {part}: {value:,.3g} {stacks.unit}, {share:.0%}"
            _bar(plot, len(stacks.rows) - place, left, left + value, tip, ink)
            left += value
    return plot


def _short(value: float) -> float:
    """Keep six digits: no picture shows more, and each digit is a byte."""
    return float(f"{value:.6g}")
