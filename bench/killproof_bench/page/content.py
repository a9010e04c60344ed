"""What a page says, before anything is drawn: the parts that every report is put together from.

A report's own module (`contention`, `capacity`, ...) turns a recorded result into a `Page` of these
values, and knows nothing of HTML or of the chart library. The template and `charts` know these
values, and nothing of a result. So all reports look alike, and a new one is a list of sections.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

#: The traffic light. Each is shown as a colour, as a sign and as a word.
Light = Literal["good", "bad", "doubt"]

#: Colours of Okabe and Ito, by name: what shade a name has, light and dark pages decide.
Ink = Literal["blue", "vermillion", "green", "orange", "purple", "sky", "grey"]

Dash = Literal["solid", "dashed", "dotted", "dotdash", "none"]
Marker = Literal["circle", "square", "diamond", "triangle", "inverted_triangle", "dash", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """A short judgement."""

    light: Light
    word: str
    because: Sequence[str] = ()  #: Sentences under the badges, where there is something to say.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure."""

    name: str
    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose:
    """A paragraph."""

    text: str
    small: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; a column whose cells are figures is set right."""

    label: str  #: Read aloud before the table.
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)  #: Columns of words; all others hold figures.
    #: Cells of the last column that are judgements: their text, and the colour it gets.
    lights: Mapping[str, Light] | None = None
    folded: bool = False  #: Behind its label, until somebody opens it or prints the page.


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names and what they stand for."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What made this, to be copied."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a picture."""

    name: str  #: With its unit.
    log: bool = False
    times: bool = False  #: Milliseconds: ticks are told in the unit that suits each.
    low: float | None = None  #: `None`: from 0, or on a log axis a little below the least value.
    high: float | None = None
    ticks: Mapping[float, str] | None = None  #: Only these, in these words.


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that belong together, joined or not, with or without intervals."""

    name: str
    ink: Ink
    x: Sequence[float]
    y: Sequence[float | None]  #: `None` is a gap.
    tips: Sequence[str]  #: One for each point; shown under the pointer.
    low: Sequence[float | None] = ()  #: Lower ends of the intervals.
    high: Sequence[float | None] = ()
    dash: Dash = "solid"
    marker: Marker = "circle"
    size: int = 0  #: In pixels; 0: what suits the marker.
    band: bool = False  #: Intervals as an area; else as a bar at each point.
    label: str = ""  #: Written at the line's end.


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A line across the picture: a limit, a ceiling, a knee."""

    at: float
    name: str
    axis: Literal["x", "y"] = "y"
    ink: Ink = "grey"
    dash: Dash = "dashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A hatched part of the picture, from one x or y to another; `None` is the picture's edge."""

    name: str
    low: float | None = None
    high: float | None = None
    axis: Literal["x", "y"] = "x"
    ink: Ink = "vermillion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Series over two axes."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    zones: Sequence[Zone] = ()
    height: int = 320
    shared: str = ""  #: Pictures of the same word share their x axis: dragging one drags all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a bar chart."""

    name: str
    value: float | None  #: `None`: there is no figure, and `text` says why.
    text: str  #: Stands behind the bar.
    tip: str
    ink: Ink
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Figures of the same kind under each other, each with its own beside it."""

    axis: Axis
    rows: Sequence[Bar]
    levels: Sequence[Level] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """What something is made of, one bar for each row."""

    axis: Axis
    parts: Sequence[tuple[str, Ink]]  #: From left to right.
    rows: Sequence[tuple[str, Sequence[float]]]
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture, what it says in words, and the same as a table."""

    id: str
    title: str
    picture: Curves | Bars | Stacks
    caption: str  #: With n and how intervals were made.
    numbers: Table | None = None  #: `None`: a table beside it has them already.


Part = Prose | Bullets | Table | Facts | Command | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page with a heading, which its contents name."""

    id: str
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report."""

    title: str
    kicker: Sequence[str]  #: What was run, how, when.
    sentence: str  #: The answer; a reader who stops here has it.
    badges: Sequence[Badge]  #: The verdict first.
    tiles: Sequence[Tile]
    sections: Sequence[Section]
