"""How values are said to people: durations, moments, sizes, counts, and text from anywhere."""

from datetime import UTC, datetime
from typing import Final

#: Characters of an error or a payload in one line of a table.
SHOWN_CHARS_MAX: Final = 120


def printable(text: str) -> str:
    r"""Return text that moves no cursor: an error, a kind, a key come from anywhere.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text
    )


def one_line(text: str) -> str:
    r"""Return text that moves no cursor and begins no line of its own.

    >>> one_line("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    return printable(text).replace("\n", "\\n")


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_of(1, "job"), count_of(1_200, "job")
    ('1 job', '1,200 jobs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def span(ms: int) -> str:
    """Return a duration in its two largest units, rounded down.

    >>> span(58_400), span(420), span(3_725_000)
    ('58 s', '0.42 s', '1 h 2 min')
    """
    if ms < 1_000:
        return f"{ms / 1_000:g} s"
    seconds = ms // 1_000
    parts = [
        f"{count} {unit}"
        for count, unit in (
            (seconds // 86_400, "d"),
            (seconds // 3_600 % 24, "h"),
            (seconds // 60 % 60, "min"),
            (seconds % 60, "s"),
        )
        if count
    ]
    return " ".join(parts[:2])


def moment(ms: int) -> str:
    """Return a moment in UTC, to the second; the number itself beyond what a calendar shows.

    >>> moment(1_700_000_000_999)
    '2023-11-14 22:13:20Z'
    """
    try:
        return f"{datetime.fromtimestamp(ms // 1_000, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (OverflowError, ValueError):
        return f"{ms} ms"


def size_of(count: int) -> str:
    """Return a size as people write it.

    >>> size_of(1536), size_of(3 << 30)
    ('1.5 KiB', '3.0 GiB')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def error_line(error_class: str | None, message: str | None) -> str:
    """Return the first line of an error, cut."""
    first = (message or "").strip().splitlines()[:1]
    return shown(": ".join([error_class or "Error", *filter(None, first)]))


def shown(text: str) -> str:
    """Return text for one line: harmless, and cut."""
    text = printable(text)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[: SHOWN_CHARS_MAX - 3]}..."
