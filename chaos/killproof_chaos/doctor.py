"""Can this machine run the harness? Each answer and, where it is bad, the remedy."""

import ctypes
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_evidence.environment import environment

DISK_BYTES_MIN: Final = 500 * 1024 * 1024
#: File systems in memory: nothing on them survives a power cut, and fsync does nothing.
RAM_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer."""

    good: bool
    text: str


def examine(place: Path) -> list[Finding]:
    """Look at the machine and at the folder where runs would be stored."""
    found = environment(place)
    linux = platform.system() == "Linux"
    free = shutil.disk_usage(place).free
    reset = found["wal_reset_affected"]
    return [
        _say(linux, f"system is {platform.system()}", "the harness needs Linux"),
        _say(True, f"Python {found['python']}, {found['cores']} cores", ""),
        _say(
            True,
            f"SQLite {found['sqlite']}"
            + (" (has the WAL-reset fault of 3.7.0 to 3.51.2)" if reset else ""),
            "",
        ),
        _say(hasattr(os, "pidfd_open"), "processes are signalled through pidfd", "Linux 5.3"),
        _say(_has_prctl(), "children die with the supervisor (prctl)", "a libc with prctl"),
        _say(os.access("/proc/locks", os.R_OK), "kernel locks are visible", "mount /proc"),
        _say(
            found["fs"] not in RAM_FILE_SYSTEMS,
            f"{place} is on {found['fs']}",
            "a folder on a disk: give --store",
        ),
        _say(free > DISK_BYTES_MIN, f"{free // 2**20} MiB are free", "make room: 500 MiB"),
        _say(True, f"interpreter {sys.executable}", ""),
        _shim(),
    ]


def _shim() -> Finding:
    """Say whether disk calls and the clock can be reached: by crash, disk, and two nemeses."""
    needs = "chaos crash, chaos disk, and --nemesis clock and io"
    try:
        build()
    except ShimUnavailable as error:
        return Finding(good=False, text=f"{needs} cannot run: {error}")
    return _say(True, f"the shim is built: {needs} can run", "")


def _say(good: bool, text: str, remedy: str) -> Finding:
    return Finding(good=good, text=text if good else f"{text}: it needs {remedy}")


def _has_prctl() -> bool:
    return hasattr(ctypes.CDLL(None), "prctl")
