"""A process that runs a reader's code, in bounds, and leaves nothing behind.

A repair may loop, wait for ever, print or allocate without end, start daemons or end its process.
Each of these has a bound here, and whatever the code has started is ended with it. These are
bounds for mistakes and no prison: the code has the rights of whoever grades it.
"""

import ctypes
import faulthandler
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from killproof_evidence.lifetime import die_with_parent

#: Between two looks at the process.
TURN_SECONDS: Final = 0.05
TERM_SECONDS: Final = 10.0
#: Of each file that it writes. The shim's table in memory needs more than 16 MiB; a `print` in a
#: loop writes gigabytes within the time that it has.
FILE_BYTES_MAX: Final = 256 * 2**20
#: Of memory. A list that grows without end meets a MemoryError, and the machine does not.
DATA_BYTES_MAX: Final = 4 * 2**30
#: Of its log that is read: the last lines, a traceback among them.
LOG_BYTES_MAX: Final = 65_536
#: linux/prctl.h
PR_SET_CHILD_SUBREAPER: Final = 36


class Endless(Exception):
    """The reader's code did not end in its time; the message says where it was."""


def run(
    function: Callable[[], None],
    log: Path,
    turn: Callable[[float], None],
    *,
    cpu_seconds: int,
    wall_seconds: int,
    file: str,
) -> str:
    """Run a function in a forked process until it ends; return the last line that it has said.

    Args:
        function: what the process does.
        log: where stdout and stderr of it and its children go.
        turn: is told again and again since when it runs, by the monotonic clock.
        cpu_seconds: of the processor, of each of its processes.
        wall_seconds: of the clock, for one that waits.
        file: the reader's, whose line is named.

    Raises:
        Endless: it did not end in its time; the message names the line of the reader's file.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # What is not written yet would be written twice.
    process = multiprocessing.get_context("fork").Process(
        target=_inside, args=(function, log, cpu_seconds, wall_seconds, os.getpid())
    )
    with _adopting():
        process.start()
        since = time.monotonic()
        try:
            while process.is_alive():
                process.join(TURN_SECONDS)
                turn(since)
        finally:
            _end(process)
    lines = _last_lines(log)
    if process.exitcode == -signal.SIGXCPU or _TIMEOUT in "\n".join(lines):
        raise Endless(_place_of(lines, file))
    return next((line for line in reversed(lines) if line.startswith("killproof: ")), "")


#: What `faulthandler` writes when the time by the clock has ended.
_TIMEOUT: Final = "Timeout ("
_FRAME: Final = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')


def _inside(
    function: Callable[[], None], log: Path, cpu_seconds: int, wall_seconds: int, parent: int
) -> None:
    """Be the process: its own group, its own log, and an end in any case."""
    os.setsid()
    # Whatever kills the grading ends this too; SIGTERM, by which an engine removes its folders.
    die_with_parent(parent, signal.SIGTERM)
    out = log.open("w", encoding="utf-8", errors="backslashreplace")
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
    sys.stdout = sys.stderr = out
    # Whoever loops is told by the kernel, and tells where; then the default action ends it.
    faulthandler.register(signal.SIGXCPU, file=out, all_threads=False, chain=True)
    faulthandler.dump_traceback_later(wall_seconds, exit=True, file=out)
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILE_BYTES_MAX),
        (resource.RLIMIT_DATA, DATA_BYTES_MAX),
        (resource.RLIMIT_CPU, _used() + cpu_seconds),
    ):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
    try:
        function()
    finally:
        with suppress(OSError):  # The log may be as long as it may get.
            out.flush()


def _used() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round(used.ru_utime + used.ru_stime)


@contextmanager
def _adopting() -> Iterator[None]:
    """Be the parent of whatever the process leaves behind, a daemon too, and end all of it."""
    libc = ctypes.CDLL(None)
    before = {child.pid for child in psutil.Process().children()}
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        # Each round may find the children of those that the one before has killed.
        while left := [child for child in psutil.Process().children() if child.pid not in before]:
            for child in left:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(left, timeout=TURN_SECONDS)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """See a process and its group to their end."""
    assert process.pid is not None, "it was started"
    if process.is_alive():
        process.terminate()  # The engines give back what they hold.
        process.join(TERM_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES_MAX))
        return file.read().decode(errors="backslashreplace").splitlines()


def _place_of(lines: list[str], file: str) -> str:
    """Return where a process was when its time ended, as far as its log tells."""
    mine = Path(file).resolve()
    for line in lines:
        frame = _FRAME.fullmatch(line)
        if frame is not None and Path(frame["file"]).resolve() == mine:
            return f"line {frame['line']}, in {frame['name']}: give that loop an end"
    return "look for a loop or a wait without an end"
