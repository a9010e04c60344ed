"""What the commands of `killproof bench` share: options, places, conditions, exit codes.

Results go to standard output, everything else to standard error.  Exit codes: 0 every figure comes
from a run that was right; 1 a run was wrong, and its figures are void; 2 unknown: interrupted, or a
backlog that ran dry; 3 a process failed; 64 wrong usage.  A goal that is missed is printed and
changes no exit code: these commands measure, and a gate decides.
"""

import os
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from killproof_evidence.environment import environment as describe_machine

if TYPE_CHECKING:
    from rich.progress import Progress

EXIT_CODES: Final = {"pass": 0, "violated": 1, "unknown": 2}
EXIT_FAILED: Final = 3


class Level(StrEnum):
    """Durability of the measured file."""

    POWER = "power"
    PROCESS = "process"


Dir = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", help="A folder on the disk to measure; left as it was."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.md", help="Write a Markdown report; FILE.json and its page go beside it."
    ),
]
Seed = Annotated[int, typer.Option(help="Of the order of rounds and of the intervals.")]
Durable = Annotated[Level, typer.Option(help="What an acknowledgement survives.")]


def progress() -> "Progress":
    """Return a bar on standard error that says how long it will take."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
    )


def surroundings(folder: Path) -> dict[str, str]:
    """Return the machine and the versions as text, as the report prints them."""
    found = describe_machine(folder)
    return {
        "machine": f"{found['cpu'] or found['machine']}, {found['cores']} cores, "
        f"{found['memory_bytes'] / 2**30:.0f} GiB",
        "cpu": f"{found['cpu'] or found['machine']}, {found['cores']} cores",
        "filesystem": found["fs"] or "unknown",
        "kernel": found["kernel"],
        "python": found["python"],
        "sqlite": found["sqlite"],
        "WAL-reset fault in this SQLite": "yes" if found["wal_reset_affected"] else "no",
    }


@contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """Give a folder of its own on the disk to be measured, and remove it whatever happens.

    SIGTERM, which is what a pipeline sends when its time is over, ends the run as Ctrl-C does.

    Raises:
        OSError: SQLite could not write there, as on a full disk.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix=".killproof-bench-", dir=directory)).resolve()
    try:
        yield folder
    except sqlite3.Error as error:
        raise OSError(f"--dir {str(directory)!r}: {error}") from error
    finally:
        # A second Ctrl-C must not leave half of it behind.
        pressed = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGINT, pressed)


def check_places(directory: Path, report: Path | None) -> None:
    """Refuse before anything is measured, and before numpy is imported.

    Raises:
        ValueError: Nothing can be written there; it names the option.
    """
    if not directory.is_dir():
        raise ValueError(f"--dir {str(directory)!r} is no folder: make it first")
    if not _takes_files(directory):
        raise ValueError(f"--dir {str(directory)!r} takes no files: give a folder of yours")
    if report is None:
        return
    name = f"--report {str(report)!r}"
    if not report.parent.is_dir():
        raise ValueError(f"{name}: make the folder first")
    if report.is_dir():
        raise ValueError(f"{name} is a folder: give a file")
    if report.suffix in (".json", ".html"):
        raise ValueError(f"{name}: name it FILE.md, what ends in {report.suffix} comes beside it")
    for file in (report, report.with_suffix(".json"), report.with_suffix(".html")):
        if file.is_dir():
            raise ValueError(f"{name}: {file.name} beside it is a folder")
        if file.exists() and not os.access(file, os.W_OK):
            raise ValueError(f"{name}: {file.name} cannot be written")
    if not _takes_files(report.parent):
        raise ValueError(f"{name}: its folder takes no files")


def _takes_files(folder: Path) -> bool:
    """Tell whether a file can be made there; of a read-only mount the permissions do not tell."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def failed(error: Exception) -> typer.Exit:
    """Say in one line what ended the tool, and return the exit to raise."""
    print(f"killproof bench: {error}", file=sys.stderr)
    return typer.Exit(EXIT_FAILED)


def within(option: str, value: float, lowest: float, highest: float) -> float:
    """Return the value of an option, or refuse it by name.

    Raises:
        ValueError: it is outside the bounds.
    """
    if not lowest <= value <= highest:
        raise ValueError(f"{option} {value:g}: give a number from {lowest:g} to {highest:g}")
    return value
