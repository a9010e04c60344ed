"""`killproof bench report`: the page of a recorded result, made again, and nothing measured."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from killproof_bench.command import EXIT_FAILED

#: A recorded result has kilobytes, one of many rounds a few megabytes; more is another file.
BYTES_MAX: Final = 64 * 1024 * 1024


def report(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT.json", help="What a command left beside its report.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="By default, beside the result."),
    ] = None,
) -> None:
    """Make the HTML page of a recorded result again, of whatever command it is."""
    target = result.with_suffix(".html") if output is None else output
    if target.suffix != ".html":
        raise ValueError(f"--output {str(target)!r}: give the name of an .html file")
    if not target.parent.is_dir():
        raise ValueError(f"--output {str(target)!r}: make the folder first")
    from killproof_bench import page

    try:
        recorded = page.read(_text(result))
    except ValueError as error:
        raise ValueError(f"{str(result)!r}: {error}") from None
    try:
        page.write(recorded, target)
    except OSError as error:
        print(f"killproof bench: {str(target)!r}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from error
    print(target)


def _text(file: Path) -> str:
    """Return what a file holds.

    Raises:
        ValueError: it cannot be read, or cannot be a result.
    """
    try:
        if file.stat().st_size > BYTES_MAX:
            raise ValueError(f"a result of the bench is smaller than {BYTES_MAX >> 20} MiB")
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(error.strerror or "it cannot be read") from None
    except UnicodeDecodeError:
        raise ValueError("this is no text") from None
