"""What the commands of all engines share: options, a new store, progress, and how a run ends.

The verdict goes to stdout and everything else to stderr; with `--json` the only result is
verdict.json. Exit codes: 0 no violation found, 1 violated, 2 unknown, 3 the harness itself failed,
64 wrong usage.

`killproof_chaos.cli` imports this module and those of all commands before it knows which one is
asked for. So at their top they import only what their options and their words need; engines, pages
and the judge are imported inside the functions that use them, and `chaos targets` waits for none.
`import_engines` is for who performs many runs.
"""

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar

import typer
from rich.console import Console, RenderableType

from killproof_evidence.store import Store
from killproof_evidence.target import TargetFailed

if TYPE_CHECKING:
    from killproof_evidence.judge import Row

EXIT_OF: Final = {"pass": 0, "violated": 1, "unknown": 2}
EXIT_FAILED: Final = 3
STORES: Final = "killproof-store"
#: What the commands that run a queue's code import when they act.
ENGINES: Final = ("engines.crash", "engines.disk", "engines.proc", "sim.campaign", "sim.result")
#: Engines whose runs are repeated by their command and not from a plan.
PLANLESS: Final = frozenset({"disk", "model", "prove"})
#: Of a log or a pipe; 80 would fold the longest sentence of the table.
FILE_COLUMNS: Final = 110
#: Reasons that are printed: room for every place that a run of `proc` can miss.
REASONS_MAX: Final = 100
#: Seconds between two lines of progress in a log, and between two pictures on a terminal.
PLAIN_SECONDS: Final = 5.0
TERMINAL_SECONDS: Final = 0.2


class Unknown(StrEnum):
    """What CI makes of `unknown`."""

    PASS = "pass"
    FAIL = "fail"


TargetOption = Annotated[
    str, typer.Option(help="A name of `chaos targets`, module:attribute, path.py or path.toml.")
]
StoreOption = Annotated[Path | None, typer.Option(help="A new folder for all evidence of the run.")]
UnknownOption = Annotated[
    Unknown | None, typer.Option(help="Exit as for pass or fail when the verdict is unknown.")
]
JunitOption = Annotated[Path | None, typer.Option(help="Also write the verdict as JUnit XML.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print verdict.json on stdout.")]
ReportOption = Annotated[
    bool,
    typer.Option(
        envvar="KILLPROOF_REPORT", help="Write report.html too; its pictures cost a second or two."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a command tells its verdict."""

    unknown: Unknown | None = None  #: exit as for this word; None: as for unknown
    junit: Path | None = None  #: also there, as XML
    as_json: bool = False  #: verdict.json on stdout, the words on stderr
    report: bool = True  #: write the page

    def page(self, write: Callable[[Path], Path], store: Path) -> tuple[str, ...]:
        """Write the page of a judged run, where it is wanted; return the line that names it."""
        return (f"report: {write(store)}",) if self.report else ()

    def __post_init__(self) -> None:
        """Refuse a place for the XML that cannot be written, before the run and not after it."""
        if self.junit is not None:
            refuse_unwritable("--junit", self.junit)


def refuse_unwritable(option: str, file: Path) -> None:
    """Refuse the place of a report before the run that it is about.

    Raises:
        ValueError: it cannot be written; the message names the option and the place.
    """
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise ValueError(
            f"{option} {str(file)!r} cannot be written: give a file in a folder of yours"
        )


def import_engines() -> None:
    """Import what the commands act with, for a process that forks their runs or measures them."""
    for name in ENGINES:
        importlib.import_module(f"killproof_chaos.{name}")


def new_store(asked: Path | None, *words: str, told: str = "") -> Store:
    """Make the store of a run where it was asked for, or under a name of these words and the time.

    Args:
        asked: the user's choice.
        words: of the name: the engine where it is not `proc`, the target, the seed.
        told: what else the line on stderr says before the place.

    Raises:
        StoreError: the folder holds something already, or cannot be made; definite.
    """
    name = "-".join([*words, time.strftime("%Y%m%d-%H%M%S")]).replace(":", "-")
    store = Store.create(asked or Path(STORES) / name)
    print(f"{told}evidence in {store.path}", file=sys.stderr)
    return store


def refuse_plan(folder: Path) -> None:
    """Refuse to replay a run of an engine that has no plan: it is repeated by its command.

    Raises:
        ValueError: the folder holds such a run; the message names the command.
    """
    store = Store(folder)
    record = store.read_run() if store.run.exists() else {}
    engine = record.get("engine")
    if engine in PLANLESS:
        raise ValueError(
            f"{folder} is a run of the engine {engine}, which has no plan: judge it again with "
            f"`killproof chaos check {folder}`, or repeat it with `{record['replay']}`"
        )


def console(*, stderr: bool = False) -> Console:
    """Return a console that is wide enough for the table when nobody says how wide it is."""
    made = Console(stderr=stderr)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = FILE_COLUMNS
    return made


@contextmanager
def harness() -> Iterator[None]:
    """Run an engine; when the harness itself fails, say so in a line and end with its code.

    SIGTERM ends it as Ctrl-C does: CI cancels a job that way, and what the run has found, its
    children and its folders in memory must not be left behind.
    """
    from killproof_chaos.engines.crew import EngineFailed

    owner = os.getpid()

    def on_term(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # A forked child ends as it would have ended without us.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_term)
    try:
        yield
    except EngineFailed as error:
        print(
            f"killproof: the harness failed, which says nothing of the queue: {error}",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED) from None
    except TargetFailed as error:
        print(
            f"killproof: the target's own code failed, which says nothing of the queue: {error} "
            "(`killproof chaos lint-target` tries each part of it)",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED) from None
    except SystemExit as error:
        # Of the target's code: our own ends are `typer.Exit`. Its code must not pass for a verdict.
        print(
            f"killproof: the target's code ended the harness (SystemExit: {error.code}), "
            "which says nothing of the queue: take the exit out of it",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:  # Later on the engine itself ends early, and tells what it has.
        print("killproof: interrupted before anything was judged: unknown", file=sys.stderr)
        raise typer.Exit(EXIT_OF["unknown"]) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def conclude(
    record: dict[str, Any],
    ending: Ending,
    *,
    rows: "Sequence[Row] | None" = None,
    figures: Iterable[str] | None = None,
    pictures: Iterable[RenderableType] = (),
    places: Iterable[str] = (),
) -> None:
    """Tell the verdict in every form that was asked for; end with its exit code.

    Args:
        record: verdict.json.
        ending: the forms.
        rows: of the table, and of every other form but verdict.json; None: all promises.
        figures: what was measured beside it; None: as for every engine.
        pictures: what stands above the table.
        places: lines that say where more is to be found.
    """
    from killproof_chaos import summary
    from killproof_evidence.judge import render_rows

    told = list(render_rows(record) if rows is None else rows)
    out = console(stderr=ending.as_json)
    for picture in pictures:
        out.print(picture, highlight=False)
    out.print(summary.table(told))
    reasons = summary.reasons(record)
    more = len(reasons) - REASONS_MAX
    for style, lines in (
        ("dim", summary.figures(record) if figures is None else figures),
        ("red", summary.stories(record)),
        ("yellow", [f"unknown because {reason}" for reason in reasons[:REASONS_MAX]]),
        ("yellow", [f"and {more} more reasons in verdict.json"] if more > 0 else []),
        ("bold", [summary.headline(record)]),
    ):
        for line in lines:
            out.print(line, style=style, markup=False, highlight=False)
    # Plain print: a path or a command that is folded to the width can not be pasted.
    for line in (f"again:  {record['replay']}", *places):
        print(line, file=sys.stderr if ending.as_json else sys.stdout)
    if ending.as_json:
        print(json.dumps(record))
    if ending.junit is not None:
        with _told_if_not_written("--junit", ending.junit), ending.junit.open("wb") as file:
            file.write(summary.junit(record, told))
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        with _told_if_not_written("GITHUB_STEP_SUMMARY", place), open(place, "ab") as file:
            file.write(summary.markdown(record, told).encode())
    code = EXIT_OF[record["verdict"]]
    if code == EXIT_OF["unknown"] and ending.unknown is not None:
        code = 0 if ending.unknown is Unknown.PASS else 1
    raise typer.Exit(code)


@contextmanager
def _told_if_not_written(what: str, place: Path | str) -> Iterator[None]:
    """Write a further form of the verdict; where that fails, the verdict and its exit code stay."""
    try:
        yield
    except OSError as error:
        print(
            f"killproof: {what} {str(place)!r} could not be written ({error.strerror}): the "
            "verdict above stands, and its exit code",
            file=sys.stderr,
        )


class Turn(Protocol):
    """How far an engine is that knows how much it has to do."""

    @property
    def done(self) -> int:
        """What is done."""

    @property
    def total(self) -> int:
        """Of how much; 0 while that is not known."""


Told = TypeVar("Told", bound=Turn)


@contextmanager
def shown(text_of: Callable[[Told], str]) -> Iterator[Callable[[Told], None]]:
    """Give the function that shows how far a run is: a bar on a terminal, else lines on stderr."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield _at_most_every(PLAIN_SECONDS, lambda turn: print(text_of(turn), file=sys.stderr))
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
    )
    # No thread of its own: some engines fork from this process.
    with Progress(*columns, console=screen, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("starting", total=None)

        def show(turn: Told) -> None:
            progress.update(
                task, description=text_of(turn), completed=turn.done, total=turn.total or None
            )
            progress.refresh()

        yield _at_most_every(TERMINAL_SECONDS, show)


def _at_most_every(seconds: float, show: Callable[[Told], None]) -> Callable[[Told], None]:
    """Return a function that shows the first turn, the last, and others at such intervals."""
    latest = -seconds

    def seldom(turn: Told) -> None:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= seconds or turn.done == turn.total:
            latest = now
            show(turn)

    return seldom


def within(name: str, value: int, low: int, high: int) -> int:
    """Return the option's value if it lies within its bounds.

    Raises:
        ValueError: it does not; the message names the option and the bounds.
    """
    if not low <= value <= high:
        raise ValueError(f"--{name} {value} must be an integer from {low} to {high}")
    return value


def points_of(text: str) -> int | None:
    """Return how many points; None for all.

    Raises:
        ValueError: it is neither `all` nor a number from 1.
    """
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--points {text!r} is neither all nor a number from 1")
    return int(text)
