"""The surroundings of a run, as they stand in each verdict and report.

A verdict on corruption names no cause that the run did not isolate; so the SQLite version, and
whether it has the WAL-reset fault, stand beside every one.
"""

import os
import platform
import sqlite3
import sys
from pathlib import Path
from typing import Any, Final

Version = tuple[int, int, int]

#: Versions with the fix, as [first, before): it was ported back, so a plain >= is wrong.
#: Source: the SQLite release notes of 3.53.0, 3.51.3, 3.50.7 and 3.44.6.
WAL_RESET_FIXED: Final[tuple[tuple[Version, Version], ...]] = (
    ((3, 44, 6), (3, 45, 0)),
    ((3, 50, 7), (3, 51, 0)),
    ((3, 51, 3), (3, 52, 0)),
    ((3, 53, 0), (4, 0, 0)),
)


def wal_reset_affected(version: str) -> bool:
    """Say whether this SQLite has the WAL-reset fault.

    Two connections can lose committed frames when one checkpoints while another commits and
    resets the WAL.

    >>> wal_reset_affected("3.40.1"), wal_reset_affected("3.44.6"), wal_reset_affected("3.52.0")
    (True, False, True)
    """
    numbers = [int(part) for part in version.split(".")]
    major, minor, patch = (*numbers, 0, 0)[:3]
    return not any(first <= (major, minor, patch) < before for first, before in WAL_RESET_FIXED)


def environment(path: Path | str, *, durability: str | None = None) -> dict[str, Any]:
    """Describe this machine as seen from the folder of a run.

    Args:
        path: the folder that holds the database; its file system is named.
        durability: the level read back from the queue, `power` or `process`; None: unknown.
    """
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "wal_reset_affected": wal_reset_affected(sqlite3.sqlite_version),
        "durability": durability,
        "cores": _cores(),
        "cpu": _cpu(),
        "fs": file_system(path),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def file_system(path: Path | str) -> str | None:
    """Return the type of the file system that holds the path, such as `ext4`; None: not told."""
    place = Path(path).resolve()
    best, found = -1, None
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = Path(left.split(" ")[4].encode().decode("unicode_escape"))
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), right.split(" ")[0]
    return found


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line)
    return next(names, None)
