"""What the commands share: the options, the way to an existing file, and the way text is printed.

Tables are imported by the commands that print one: `killproof enqueue` in a shell script is called
often.  Whatever comes out of a file (an error, a kind, a key) may hold anything, so it passes
through `printable` before it reaches a terminal.
"""

import json
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from killproof.core.errors import FileRefused
from killproof.core.jobs import Queue
from killproof.wording import error_line as error_line
from killproof.wording import shown as shown
from killproof.wording import size_of, span

if TYPE_CHECKING:
    from rich.table import Table

EXIT_FAULT: Final = 1

SHOWN_JOBS_MAX: Final = 20

Db = Annotated[
    Path, typer.Option("--db", metavar="FILE", envvar="KILLPROOF_DB", help="The database file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[int, typer.Argument(metavar="ID", help="The job's id, as `enqueue` printed it.")]
Level = Annotated[
    str | None,
    typer.Option(
        "--durability", metavar="LEVEL", help="Of a new file: power (the default) or process."
    ),
]
DB_DEFAULT: Final = Path("queue.db")

#: Seconds in each unit of a time as people write it.
UNITS: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def seconds_of(text: str, name: str) -> float:
    """Return the seconds that a text like 90s, 15min, 12h, 30d or 2w means.

    Raises:
        ValueError: it is no such text; the message shows it.

    >>> seconds_of("15min", "--keep"), seconds_of("2.5", "--keep")
    (900.0, 2.5)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|w)?", text.strip())
    if found is None:
        raise ValueError(f"{name} {shown(text)!r} is no time: write 90s, 15min, 12h, 30d or 2w")
    return float(found[1]) * UNITS[found[2] or "s"]


def existing(db: Path) -> Queue:
    """Open a queue that must be there: a look at a mistyped name must not make a file."""
    try:
        found = db.exists()
    except OSError as error:  # A name that is too long, a folder that may not be searched.
        raise FileRefused(f"{db}: {error.strerror}: name another file") from error
    if not found:
        raise FileRefused(
            f"{db} does not exist: make it with killproof enqueue KIND JSON --db {db}, "
            "or name another file with --db or $KILLPROOF_DB"
        )
    return Queue(db)


def demand(changed: bool, queue: Queue, job_id: int) -> None:
    """Complain if a command changed nothing, and say in which state the job is."""
    if not changed:
        job = queue.get(job_id)
        text = f"job {job_id} is {job.state if job else 'gone'}: nothing was changed"
        # A step that is held may not be let go before its needs: the state alone does not say so.
        raise ValueError(f"{text}; see killproof explain {job_id}" if job else text)


def print_json(value: object) -> None:
    """Print a value as JSON that this terminal can show."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not is_unicode, indent=2))


def table_of(*columns: str, right: Iterable[str] = ("jobs",)) -> "Table":
    """Return an empty table with these columns."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    numeric = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    return table


def print_table(table: "Table") -> None:
    """Print a table, with colours where they are wanted."""
    from rich.console import Console

    Console(highlight=False).print(table)


def plain(text: str) -> str:
    """Return text that a table does not take for markup."""
    from rich.markup import escape

    return escape(text)


def style_of(state: str, count: int) -> str:
    """Return the colour of a state; without colours the word alone says it."""
    if not count:
        return "dim"
    return {"dead": "red", "held": "yellow", "retryable": "yellow", "succeeded": "green"}.get(
        state, ""
    )


class Steps:
    """Says on stderr how far a long command is, once a second after the second second."""

    def __init__(self, verb: str, unit: str) -> None:
        self._verb = verb
        self._unit = unit
        self._began = self._said = time.monotonic()
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._shown:
            print(file=sys.stderr)

    def show(self, done: int, total: int | None = None) -> None:
        """Say so much of so much, with the time left where the whole is known."""
        now = time.monotonic()
        if now - self._began < 2 or now - self._said < 1:
            return
        self._said, self._shown = now, True
        text = f"{self._verb} {self._amount(done)}"
        if total and done:
            left_ms = round((now - self._began) * (total - done) / done) * 1_000
            text += f" of {self._amount(total)}, about {span(left_ms)} left"
        print(f"\rkillproof: {text}   ", end="", file=sys.stderr, flush=True)

    def _amount(self, number: int) -> str:
        return size_of(number) if self._unit == "bytes" else f"{number:,} {self._unit}"
