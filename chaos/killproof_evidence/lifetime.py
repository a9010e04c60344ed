"""Processes that end with who started them, also when that is killed.

Nobody can clean up behind a process that gets SIGKILL, so its children ask the kernel to do it.
The kernel's bond is to the *thread* that made the child: when that ends, the parent's other threads
do not count (prctl(2), PR_SET_PDEATHSIG). It outlasts `exec`; a child's own children do not get it.
"""

import ctypes
import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

#: linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1
#: How a process ends that finds its parent dead.
ORPHANED: Final = 3


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Have this process ended when its parent dies; end it now if that is dead already.

    Without that look a parent that died before this call would never be noticed: the kernel tells
    of no death that has been.

    Args:
        parent: its pid, told by itself; None: nobody has told, so only a later death is noticed.
        number: of the signal; SIGTERM where something has to be given back.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os._exit(ORPHANED)


def has_ended(pid: int, seconds: float) -> bool:
    """Wait for the end of a child, and leave it to be reaped; False: it did not come in time.

    Until it is reaped, its number is that of its group and of no other's, which can be killed.
    """
    watched = os.pidfd_open(pid)
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)


def end_all_with(variable: str, value: str) -> int:
    """Kill every process but this one that was started with this variable; return how many.

    A queue's worker may leave behind what no group and no parent leads to: a daemon that has called
    setsid(2). Its environment still says whose it is. It would go on writing into what is judged.
    """
    wanted = f"{variable}={value}".encode()
    ended = set[int]()
    while found := [pid for pid in _others() if pid not in ended and wanted in _environment(pid)]:
        for pid in found:
            ended.add(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return len(ended)


def _others() -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if pid != os.getpid()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # It has ended, or is another user's.
        return []
