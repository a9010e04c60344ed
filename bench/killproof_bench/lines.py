"""Speak with a process of the bench by lines of JSON, and end it; the supervisor's side.

Each such process writes one line and then waits for one, so nothing is left behind in a buffer.
The standard library only: children import this too, numpy never.
"""

import contextlib
import json
import select
import subprocess
from collections.abc import Iterable
from typing import Any

Process = subprocess.Popen[str]


class CrewError(RuntimeError):
    """A process failed to start, or ended without its account: the tool failed, exit 3."""


def tell(process: Process, line: str) -> None:
    """Write one line.

    Raises:
        CrewError: It has ended.
    """
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError as error:
        raise CrewError(f"a process ended with status {process.wait()}") from error


def answer(process: Process, seconds: float) -> dict[str, Any]:
    """Return the next line.

    Raises:
        CrewError: It has ended, or said nothing for so long.
    """
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds)[0]:
        raise CrewError(f"a process said nothing for {seconds:g} s")
    line = process.stdout.readline()
    if not line:
        raise CrewError(f"a process ended with status {process.wait()}")
    message: dict[str, Any] = json.loads(line)
    return message


def wait_for_end(processes: Iterable[Process], seconds: float) -> None:
    """Wait until all have ended in order.

    Raises:
        CrewError: One failed, or did not end.
    """
    for process in processes:
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise CrewError(f"a process did not end within {seconds:g} s") from error
        if status:
            raise CrewError(f"a process ended with status {status}")


def end(processes: Iterable[Process]) -> None:
    """End what still runs; a stopped process dies of SIGKILL alone."""
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                # What was not written is written by the close. To one that was killed it cannot be,
                # and the command line would take that for its own reader's end: exit 0.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
