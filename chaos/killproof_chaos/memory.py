"""Folders in memory, for engines that cut no power: a sync there costs nothing.

Memory is not given back by a process that is killed, and a full /dev/shm looks to a queue like a
full disk. So a folder carries the pid of its owner, and whoever makes one removes those of the
dead.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

#: Where Linux keeps a file system in memory that anybody may write to.
MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "killproof-"
#: A killed process is gone within milliseconds; on the busiest machine within seconds.
REMOVALS_MAX: Final = 100


def folder(
    purpose: str, *, bytes_min: int = 0, otherwise: Path | None = None, parent: Path = MEMORY
) -> Path:
    """Make an empty folder in memory, if there is room; else somewhere else.

    Args:
        purpose: a word that tells people whose it is.
        bytes_min: what must be free.
        otherwise: where it lies if not in memory; None: where temporary files go.
        parent: the file system in memory.

    Raises:
        OSError: no folder can be made; definite.
    """
    usable = parent.is_dir() and os.access(parent, os.W_OK)
    if usable:
        _remove_of_the_dead(parent)
        usable = shutil.disk_usage(parent).free >= bytes_min
    prefix = f"{PREFIX}{purpose}-{os.getpid()}-"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent if usable else otherwise))


@contextmanager
def lent(purpose: str, *, bytes_min: int = 0, otherwise: Path | None = None) -> Iterator[Path]:
    """Give a folder as `folder` does, and remove it at the end."""
    place = folder(purpose, bytes_min=bytes_min, otherwise=otherwise)
    try:
        yield place
    finally:
        _remove(place)


def sweep(parent: Path = MEMORY) -> None:
    """Remove the folders of processes that were killed."""
    if parent.is_dir():
        _remove_of_the_dead(parent)


def _remove(place: Path) -> None:
    """Remove a folder; processes that are just being ended may still make a file in it."""
    for _ in range(REMOVALS_MAX):
        shutil.rmtree(place, ignore_errors=True)
        if not place.exists():
            return
        time.sleep(0.02)


def _remove_of_the_dead(parent: Path) -> None:
    for found in parent.glob(f"{PREFIX}*-*-*"):
        pid = found.name.removeprefix(PREFIX).split("-")[1]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(found, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):  # Alive, and another user's.
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
