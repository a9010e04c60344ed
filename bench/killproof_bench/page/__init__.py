"""Reports of the bench as one offline HTML file each: `write(result, path)`.

The page is a pure function of the recorded result: the same result gives the same bytes, on any
machine, years later. It asks nothing of any network and forbids itself to, holds its script and its
charts, and says everything in text and tables as well, for readers without a script, on paper, or
who cannot see the pictures.

A new kind of result is one line in `kinds` and one module beside this one.
"""

from pathlib import Path
from typing import Final

from killproof_bench.page import kinds

#: A report is mailed and attached; 2 MiB pass everywhere, and 1.3 of them are the charts' script.
BYTES_MAX: Final = 2 * 1024 * 1024


def can_write(kind: type) -> bool:
    """Return whether there is a page for results of this type."""
    return kinds.of_type(kind) is not None


def read(text: str) -> object:
    """Return the result that a command recorded as JSON, of whatever kind it is.

    Raises:
        ValueError: this is no result of the bench, or one of a schema that is not known here.
    """
    return kinds.read(text)


def write(result: object, path: Path) -> None:
    """Write the page of a result to `path`, whole or not at all.

    Args:
        result: a result that a command of the bench makes or reads back.
        path: the HTML file itself, such as `capacity.html`; it is replaced.

    Raises:
        TypeError: there is no page for such a result; definite.
        OSError: the file cannot be written; definite, what was there is still there.
    """
    text = render(result)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def render(result: object) -> str:
    """Return the page of a result, which leaves out what would make it larger than `BYTES_MAX`.

    Raises:
        TypeError: there is no page for such a result.
    """
    kind = kinds.of_type(type(result))
    if kind is None:
        raise TypeError(f"there is no page for a {type(result).__name__}")
    # Not at the top: the chart library takes a second to import, and each command would pay it.
    from killproof_bench.page import document, weight

    return weight.fitted(kind.page(result), document.render, BYTES_MAX)
