"""What idle workers cost, read from outside: processor time, looks, locks, writes.

This process holds no SQLite connection: closing any descriptor of the -shm file in one that does
would drop its POSIX locks.  Offsets are those of SQLite's wal-index format
(https://sqlite.org/walformat.html, section 2).
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from killproof_bench.observe import read_locks

#: How often /proc/locks is looked at, in seconds.
LOOK_SECONDS = 0.01
#: iChange, mxFrame and the salts: each transaction that wrote changes them.
_INDEX_BYTES = slice(8, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters at one moment."""

    cpu_ns: tuple[int, ...]  #: By process, all its threads together.
    switches: tuple[int, ...]  #: Voluntary context switches, likewise.
    turns: tuple[int | None, ...]  #: By file, how often the turnstile was left; `None`: untold.
    index: tuple[bytes, ...]  #: By file, the counters of its WAL index.


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What happened between two readings."""

    seconds: float
    cpu: tuple[float, ...]  #: By process, share of one core.
    switches_per_s: float  #: Of one process, the mean.
    turns: int | None  #: Write transactions that were begun, by the turnstiles; `None`: untold.
    changed: int  #: Files that somebody has written to.
    looks: int
    held: int  #: Looks that saw a write lock or a turnstile taken.


def read(pids: Sequence[int], files: Sequence[Path]) -> Reading:
    """Read all counters now."""
    tasks = [list(Path("/proc", str(pid), "task").iterdir()) for pid in pids]
    return Reading(
        cpu_ns=tuple(sum(_ran_ns(task) for task in each) for each in tasks),
        switches=tuple(sum(_switches(task) for task in each) for each in tasks),
        turns=tuple(_turns(file) for file in files),
        index=tuple(Path(f"{file}-shm").read_bytes()[_INDEX_BYTES] for file in files),
    )


def watch(pids: Sequence[int], files: Sequence[Path], seconds: float) -> Watched:
    """Look for so long."""
    inodes = [(_inode(f"{file}-shm"), _inode(f"{file}.turnstile")) for file in files]
    looks = held = 0
    before, begin = read(pids, files), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        time.sleep(LOOK_SECONDS)
        text = Path("/proc/locks").read_text()
        seen = [read_locks(text, index or 0, turnstile) for index, turnstile in inodes]
        looks += 1
        held += any(each.write_lock_held or each.turnstile_held for each in seen)
    spent, after = time.perf_counter() - begin, read(pids, files)
    return between(before, after, spent, looks=looks, held=held)


def between(before: Reading, after: Reading, seconds: float, *, looks: int, held: int) -> Watched:
    """Return what happened between two readings."""
    switches = sum(after.switches) - sum(before.switches)
    turns = [
        None if earlier is None or later is None else (later - earlier) % 2**32
        for earlier, later in zip(before.turns, after.turns, strict=True)
    ]
    told = [each for each in turns if each is not None]
    return Watched(
        seconds=seconds,
        cpu=tuple(
            (later - earlier) / 1e9 / seconds
            for earlier, later in zip(before.cpu_ns, after.cpu_ns, strict=True)
        ),
        switches_per_s=switches / len(before.switches) / seconds,
        turns=sum(told) if len(told) == len(turns) else None,
        changed=sum(a != b for a, b in zip(before.index, after.index, strict=True)),
        looks=looks,
        held=held,
    )


def _ran_ns(task: Path) -> int:
    """Return how long a thread has run: scheduler statistics of the kernel, in ns."""
    return int((task / "schedstat").read_text().split()[0])


def _switches(task: Path) -> int:
    text = (task / "status").read_text()
    return int(text.partition("\nvoluntary_ctxt_switches:")[2].split(None, 1)[0])


def _turns(file: Path) -> int | None:
    """Return the first number in the turnstile's file: each leaver adds one to it."""
    try:
        word = Path(f"{file}.turnstile").read_bytes()[:4]
    except FileNotFoundError:
        return None
    return int.from_bytes(word, sys.byteorder) if len(word) == 4 else None


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None
