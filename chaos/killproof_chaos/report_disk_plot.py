"""The pictures of a run of the engine `disk`, as SVG text: no script, no network, no colour needed.

`strips` shows the whole recording from left to right: what was written, synced and answered, who
was killed, and under it a strip for each policy. A stretch in which a cut takes acknowledgements is
a block; one in which it takes none is a thin line. `scene` shows the records around one cut: a row
for each process, syncs as bars from begin to end, answers as flags.

Every mark has a title, which browsers show under the pointer and screen readers read.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Final

#: Columns of the strips; one point or more each.
COLUMNS_MAX: Final = 240
WIDTH: Final = 960
LABEL: Final = 118
PLOT: Final = WIDTH - LABEL - 8
LANE: Final = 26
STRIP: Final = 17
GAP: Final = 5
AXIS: Final = 22
#: Of an axis: more labels would touch.
TICKS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One point of the recording."""

    ms: float  #: since the first record
    record: int
    lane: str | None  #: log, database, sync; None: neither
    answers: int  #: given since the point before
    #: policy -> acknowledgements that a cut here takes; -1: it does not open; None: not cut here
    left: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One thing in a scene."""

    row: str  #: the process
    at: float  #: place on the axis: a record's number
    until: float | None  #: of a bar
    kind: str  #: write, sync, answer, gone
    title: str


LANES: Final = (("log", "log written"), ("database", "database written"), ("sync", "synced"))


def strips(moments: Sequence[Moment], policies: Sequence[str], kills: Iterable[float]) -> str:
    """Return the picture of a whole run.

    Args:
        moments: all points, in order.
        policies: from top to bottom.
        kills: when somebody was killed, ms since the first record.
    """
    count = min(COLUMNS_MAX, len(moments))
    edges = [len(moments) * at // count for at in range(count + 1)]
    columns = [moments[edges[at] : edges[at + 1]] for at in range(count)]
    wide = PLOT / count
    parts = []
    top = 16
    parts += _kills([m.ms for m in moments], kills, len(moments), top)
    for name, label in (*LANES, ("answer", "answers")):
        parts += _lane(columns, name, label, top, wide)
        top += LANE + GAP
    top += 8
    parts.append(_text(0, top + 4, "a cut takes, when the disk", "axis"))
    top += 12
    for policy in policies:
        parts += _strip(columns, policy, top, wide)
        top += STRIP + GAP
    parts += _axis(moments, top)
    height = top + AXIS
    label = "The recording from left to right, and under it what a power cut takes at each point"
    return _svg(height, label, parts)


def _kills(times: Sequence[float], kills: Iterable[float], count: int, top: int) -> list[str]:
    found = Counter(min(bisect_left(times, ms), count - 1) for ms in kills)
    parts = [_text(0, top - 4, "killed", "label")]
    for at, killed in sorted(found.items()):
        x = LABEL + PLOT * at / count
        word = "1 process is" if killed == 1 else f"{killed} processes are"
        title = f"{word} killed at {times[at]:.0f} ms"
        parts.append(
            f'<g class="kill"><title>{title}</title><path d="M{x - 4:.1f} {top - 12}l8 8m0 -8l-8 8"'
            f"/>{_text(x + 6, top - 4, str(killed), 'tiny') if killed > 1 else ''}</g>"
        )
    return parts


def _lane(
    columns: Sequence[Sequence[Moment]], name: str, label: str, top: int, wide: float
) -> list[str]:
    counts = [
        sum(m.answers if name == "answer" else m.lane == name for m in column) for column in columns
    ]
    most = max(counts, default=0) or 1
    parts = [_text(0, top + LANE - 6, label, "label")]
    parts.append(
        f'<line class="base" x1="{LABEL}" x2="{LABEL + PLOT}" y1="{top + LANE}" y2="{top + LANE}"/>'
    )
    for at, count in enumerate(counts):
        if count:
            height = max(1.5, LANE * count / most)
            parts.append(
                f'<rect class="{name}" x="{LABEL + at * wide:.1f}" y="{top + LANE - height:.1f}" '
                f'width="{max(wide - 0.4, 0.6):.1f}" height="{height:.1f}">'
                f"<title>{_when(columns[at])}: {count} {label}</title></rect>"
            )
    return parts


def _strip(columns: Sequence[Sequence[Moment]], policy: str, top: int, wide: float) -> list[str]:
    parts = [_text(0, top + STRIP - 4, POLICY_WORDS.get(policy, policy), "label")]
    states = [_state(column, policy) for column in columns]
    at = 0
    for (state, title), same in groupby(
        enumerate(states), key=lambda pair: (pair[1][0], pair[1][1] or pair[0])
    ):
        length = len(list(same))
        x, width = LABEL + at * wide, max(length * wide - 0.2, 0.8)
        y, height = (top, STRIP) if state in ("gone", "shut") else (top + STRIP / 2 - 1, 2)
        first, last = columns[at], columns[at + length - 1]
        told = title if isinstance(title, str) else ""
        what = told or {"kept": "nothing is lost", "blank": "not cut here"}[state]
        where = _when([*first, *last])
        parts.append(
            f'<rect class="{state}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}"><title>{policy}, {where}: {escape(what)}</title></rect>'
        )
        at += length
    return parts


#: In the words of the picture's heading.
POLICY_WORDS: Final = {
    "keep": "keeps all",
    "drop": "drops all",
    "subset": "keeps some",
    "torn": "tears sectors",
    "metadata": "loses names, sizes",
    "late": "keeps the newest",
    "files": "keeps whole files",
}


def _state(column: Sequence[Moment], policy: str) -> tuple[str, str]:
    """Return how a column of a strip looks, and its title where it is one of its own."""
    found = [left for m in column if (left := m.left.get(policy)) is not None]
    if not found:
        return "blank", "not cut here"
    if min(found) < 0:
        return "shut", f"the file does not open at {sum(left < 0 for left in found)} points"
    if max(found) > 0:
        lost = sum(left > 0 for left in found)
        most = f"up to {max(found)} acknowledgements gone"
        return "gone", f"{most}, at {lost} of {len(found)} points"
    return "kept", "nothing is lost"


def _when(column: Sequence[Moment]) -> str:
    first, last = column[0], column[-1]
    if first.record == last.record:
        return f"{first.ms:.0f} ms, record {first.record}"
    return f"{first.ms:.0f} to {last.ms:.0f} ms, records {first.record} to {last.record}"


def _axis(moments: Sequence[Moment], top: int) -> list[str]:
    parts = []
    for tick in range(TICKS + 1):
        at = min(len(moments) - 1, len(moments) * tick // TICKS)
        x = LABEL + PLOT * tick / TICKS
        anchor = "end" if tick == TICKS else "start" if tick == 0 else "middle"
        parts.append(_text(x, top + 14, f"{moments[at].ms:,.0f} ms", "axis", anchor))
    return parts


def scene(marks: Sequence[Mark], cut: float, rows: Sequence[str]) -> str:
    """Return the picture of the records around one cut.

    Args:
        marks: what happened.
        cut: the record behind which the power is cut.
        rows: the processes, from top to bottom.
    """
    low = min(mark.at for mark in marks)
    high = max(cut + 1, *(mark.until or mark.at for mark in marks))
    scale = PLOT / (high - low + 2)

    def place(at: float) -> float:
        return LABEL + (at - low + 1) * scale

    top, parts = 24, []
    for number, row in enumerate(rows):
        y = top + number * LANE
        middle = y + LANE / 2
        parts.append(_text(0, middle + 4, row, "label"))
        line = f'x1="{LABEL}" x2="{LABEL + PLOT}" y1="{middle}" y2="{middle}"'
        parts.append(f'<line class="base" {line}/>')
        parts += [_mark(mark, place, middle, scale) for mark in marks if mark.row == row]
    bottom, x = top + len(rows) * LANE, place(cut + 0.5)
    parts.append(f'<line class="cut" x1="{x:.1f}" x2="{x:.1f}" y1="14" y2="{bottom}"/>')
    anchor = "end" if x > WIDTH / 2 else "start"
    parts.append(_text(x, 10, f"the power is cut behind record {cut:.0f}", "axis", anchor))
    return _svg(bottom + 6, "What each process did around the cut", parts)


def _mark(mark: Mark, place: Callable[[float], float], middle: float, scale: float) -> str:
    x = place(mark.at)
    title = f"<title>{escape(mark.title)}</title>"
    if mark.kind == "sync":
        width = max(place(mark.until if mark.until is not None else mark.at + 1) - x, 3)
        return (
            f'<rect class="sync" x="{x:.1f}" y="{middle - 5}" width="{width:.1f}" height="10">'
            f"{title}</rect>"
        )
    if mark.kind == "write":
        wide = max(2.0, min(6.0, scale * 0.8))
        return (
            f'<rect class="log" x="{x:.1f}" y="{middle - 7}" width="{wide:.1f}" height="14">'
            f"{title}</rect>"
        )
    return f'<path class="{mark.kind}" d="M{x:.1f} {middle + 9}v-18l9 4.5l-9 4.5">{title}</path>'


def _svg(height: float, label: str, parts: Iterable[str]) -> str:
    return (
        f'<svg class="cuts" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{style}" {place}>{escape(text)}</text>'
