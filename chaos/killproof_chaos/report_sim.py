"""The page of a run of the engine `sim`: the story of each broken promise, and what was explored.

A pure function of verdict.json: one HTML file that opens without a network. The picture is the
story in lanes, an actor to a column and a step to a row; it needs no colour to be read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos import report, report_words, summary
from killproof_chaos.sim.story import HEALER
from killproof_evidence.judge import render_rows
from killproof_evidence.store import Store

#: A sign for each kind of fault, so that none rests on its colour.
SIGNS: Final = {"pass": "»", "crash": "✗", "clock": "±", "lost": "∅"}
#: What no run of this engine shows, whatever it found.
LIMITS: Final = (
    "A schedule beyond the bound: more preemptions, more crashes, more actors, other scenarios. "
    "Bugs of real queues need one or two preemptions as a rule; nothing here proves that.",
    "A race inside one SQL statement or inside SQLite. Between two statements of one process "
    "everything may happen; within one, nothing does.",
    "The kernel's part: the turnstile lets everybody in, the death lock is a variable, and no sync "
    "is waited for. The engines proc, crash and disk run on the real ones.",
    "Time in small pieces: none passes while anybody can run, but for the pass of a whole lease at "
    "once. A timer that is shorter fires when all others wait, or when all leases run out.",
    "A lock that does not come in time: where SQLite would wait for one it waits as long as it "
    "takes, whatever patience the queue asks for; and the lock that a caller keeps who leaves rows "
    "of a RETURNING unread.",
    "A power cut, a full disk, a killed thread: a crash here is the end of a process between two "
    "statements.",
    "What the scenarios do not call. Each is a few calls of the queue by two to four actors.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of the picture."""

    number: int
    t_ms: int
    lane: int | None  #: the column of the actor; None: all of them
    sign: str
    text: str  #: without the actor's name, which stands above the column
    changes: Sequence[str]
    details: Sequence[str]
    opens: bool  #: the operation has begun above
    breaks_off: bool  #: the operation goes on below
    gone: Sequence[bool]  #: which lanes have ended by a crash before this row


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One story in lanes."""

    promise: str
    scenario: str
    title: str
    lanes: Sequence[str]
    cells: Sequence[Cell]
    endings: Sequence[str]
    token: str


def write_report(store: Path) -> Path:
    """Write report.html into the store of a run; return its path.

    Raises:
        StoreError: the store has no verdict; definite.
    """
    opened = Store(store)
    part = opened.report.with_name(f".{opened.report.name}.part")
    part.write_text(render(opened), encoding="utf-8")
    part.replace(opened.report)
    return opened.report


def render(store: Store) -> str:
    """Return the page."""
    record, run = store.read_verdict(), store.read_run()
    environment = report.pages()
    environment.filters |= {"counted": summary.counted}
    # Not at the top: the command's figures need the simulator, which a reader of reports does not.
    from killproof_chaos.sim import result

    return environment.get_template("sim.html.j2").render(
        record=record,
        run=run,
        sentence=summary.headline(record),
        mark=report_words.mark,
        words=report_words.WORDS,
        reasons=record["unknown_because"],
        pictures=[picture(story) for story in record["stories"]],
        rows=render_rows(record),
        figures=result.figures(record),
        environment=report_words.environment_rows(record, run),
        limits=LIMITS,
        started=report_words.started(run),
    )


def picture(story: Mapping[str, Any]) -> Picture:
    """Return a story of verdict.json in lanes."""
    steps = story["steps"]
    lanes = [*story["actors"]]
    if any(step["actor"] == HEALER for step in steps):
        lanes.append(HEALER)
    gone: set[str] = set()
    cells = []
    for step in steps:
        actor, fault = step["actor"], step["fault"]
        everybody = fault in ("pass", "clock") or actor not in lanes
        text = step["text"].removeprefix(f"{actor} ")
        cells.append(
            Cell(
                number=step["number"],
                t_ms=step["t_ms"],
                lane=None if everybody else lanes.index(actor),
                sign=SIGNS.get(fault, ""),
                text=text,
                changes=step["changes"],
                details=step["details"],
                opens=text.startswith("goes on"),
                breaks_off=text.startswith("begins to"),
                gone=[name in gone for name in lanes],
            )
        )
        if fault == "crash":
            gone.add(actor)
    return Picture(
        promise=story["promise"],
        scenario=story["scenario"],
        title=story["title"],
        lanes=lanes,
        cells=cells,
        endings=[line.strip() for line in story["endings"]],
        token=story["token"],
    )
