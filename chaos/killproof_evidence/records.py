"""Append and read JSON lines so that a SIGKILL costs at most the record being written.

Every log of a run (history, effects, nemesis, samples) is written through `RecordWriter`: one
`os.write` for each record on an O_APPEND descriptor, no buffer in the process. What the kernel
has accepted outlives the process; a buffered line would die with it, and a checker would then
report a loss that never happened.

Deliberately not here: fsync. The harness kills processes, not the machine it runs on; engines
that cut the power record the disk themselves.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Lines decoded by one call of the JSON scanner: large enough to hide the cost of the call,
#: small enough that a malformed line costs only one slow pass over its neighbours.
CHUNK_LINES = 2_000


class RecordWriter:
    """Appends records to one file that belongs to one process alone."""

    def __init__(self, path: Path | str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.path = Path(path)
        self._descriptor = os.open(path, flags, 0o644)

    def append(self, record: dict[str, Any]) -> None:
        """Append one record with one system call.

        Raises:
            OSError: the record is not, or only partly, in the file (a full disk); indefinite.
        """
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written != len(line):
            # The rest must not follow in a second write: a kill between the two would look
            # like any other torn line, but without a kill to explain it.
            raise OSError(f"{self.path}: {written} of {len(line)} bytes written; is the disk full?")

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextmanager
def without_alarms() -> Iterator[None]:
    """Hold back SIGALRM for a block: a worker's time limit may raise between any two instructions.

    Between numbering a record and writing it, that would look like a missing line.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def read_records(path: Path | str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield (line number from 1, record); the record is None where the line is no JSON object.

    A last line without its newline is yielded as None too: it was torn. A missing file is empty.
    """
    try:
        # Sealed by "\n" alone: other separators may stand inside a JSON string.
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    with file:
        number = 1
        while lines := file.readlines(CHUNK_LINES * 200):
            yield from enumerate(_decode(lines), number)
            number += len(lines)


def _decode(lines: list[bytes]) -> list[dict[str, Any] | None]:
    if lines[-1].endswith(b"\n"):
        try:
            # One scan over many lines costs half of one call for each line.
            records = json.loads(b"[" + b",".join(lines) + b"]")
        except ValueError:
            pass
        else:
            if len(records) == len(lines) and all(type(r) is dict for r in records):
                return records  # type: ignore[no-any-return]
    return [_decode_line(line) for line in lines]


def _decode_line(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if type(record) is dict else None


def read_lines(path: Path | str, numbers: set[int]) -> dict[int, str]:
    """Return the text of the lines with these numbers, without their newline."""
    found: dict[int, str] = {}
    last = max(numbers, default=0)
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number in numbers:
                found[number] = line.decode(errors="replace").rstrip("\n")
            if number >= last:
                break
    return found
