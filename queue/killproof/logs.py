r"""Log lines for people or for programs, each written by one call.

Two processes may write one log file: it is opened to append, and each line is one `write`, which
the kernel puts at the end as a whole.  A buffered stream would cut a long line, or a traceback, in
two, and the other process's line would land in between.

In a line of text nothing out of a job can begin a line of its own: what follows the first line of a
message is set in.  In JSON each record is one line, with the job's id, kind, attempt and key as
fields, and the whole error.
"""

import json
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

from killproof.wording import printable

Format = Literal["text", "json"]

#: What the worker attaches to a record about a job.
JOB_FIELDS: Final = ("job_id", "kind", "attempt", "key")


class AppendHandler(logging.Handler):
    """A handler that writes each record with one call to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; a disk that is full costs the line and nothing else."""
        try:
            line = self.format(record) + "\n"
            os.write(self._descriptor, line.encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)


class CallHandler(logging.Handler):
    """A handler that gives each record's lines to a function, such as a drawn panel's."""

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Give the record's lines; a function that raises costs the line and nothing else."""
        try:
            self._write(self.format(record))
        except Exception:
            self.handleError(record)


def open_log(path: str | os.PathLike[str]) -> int:
    """Open a log file to append to, made if there is none; return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


class TextFormatter(logging.Formatter):
    """Time, level and message; what comes after the first line is set in."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        text = f"{_moment(record)} {record.levelname} {record.getMessage()}"
        if (trace := _trace(self, record)) is not None:
            text += f"\n{trace.rstrip()}"
        return printable(text).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, object] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in JOB_FIELDS if hasattr(record, name)}
        if (trace := _trace(self, record)) is not None:
            line["traceback"] = trace
        return json.dumps(line, ensure_ascii=False, default=repr)


def _moment(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """Return the whole error of a record: of the job that failed, or of the call that logged."""
    if (kept := getattr(record, "traceback", None)) is not None:
        return str(kept)
    return formatter.formatException(record.exc_info) if record.exc_info else None


def handler(form: Format, to: int | Callable[[str], object]) -> logging.Handler:
    """Return a handler that writes lines of this form, to a descriptor or by a function."""
    found = AppendHandler(to) if isinstance(to, int) else CallHandler(to)
    found.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    return found
