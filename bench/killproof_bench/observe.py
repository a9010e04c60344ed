"""Watch the locks and the WAL of a database from outside.

Run as `python -m killproof_bench.observe FILE`: a process of its own, for closing any descriptor
of the database or of the -shm file in a process that holds a SQLite connection drops that
connection's POSIX locks. It reads /proc/locks and maps the -shm file; it never opens the database.
It stops when its standard input ends, and prints one line of JSON.

Offsets are those of SQLite's wal-index format (https://sqlite.org/walformat.html, section 2).
"""

import contextlib
import dataclasses
import json
import mmap
import os
import select
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from killproof_bench.result import LockWatch

#: A hundred looks a second bound the share of a held lock to a few per cent within five seconds,
#: and cost the measured processes about one per cent of one core, the same for both arms.
INTERVAL_SECONDS = 0.01
WRITE_LOCK_BYTE = 120
_FRAMES_OFFSET = 16  #: mxFrame, host byte order.
_SALT_OFFSET = 32  #: First salt, big-endian; SQLite adds 1 to it at each restart of the WAL.
_BACKFILLED_OFFSET = 96  #: nBackfill, host byte order.


def watch(database: Path) -> LockWatch:
    """Sample until standard input ends."""
    shm = Path(f"{database}-shm")
    descriptor = os.open(shm, os.O_RDONLY | os.O_CLOEXEC)
    shm_inode = os.fstat(descriptor).st_ino
    samples = held = turnstile = 0
    wal_bytes: list[int] = []
    behind: list[int] = []
    begin = time.monotonic()
    first_salt: int | None = None
    with mmap.mmap(descriptor, 4096, prot=mmap.PROT_READ) as index:
        os.close(descriptor)
        while not select.select([sys.stdin], [], [], INTERVAL_SECONDS)[0]:
            locks = read_locks(Path("/proc/locks").read_text(), shm_inode, _turnstile(database))
            samples += 1
            held += locks.write_lock_held
            turnstile += locks.turnstile_held
            second = int(time.monotonic() - begin)
            with contextlib.suppress(FileNotFoundError):
                keep_most(wal_bytes, second, os.stat(f"{database}-wal").st_size)
            (frames,) = struct.unpack_from("=I", index, _FRAMES_OFFSET)
            (backfilled,) = struct.unpack_from("=I", index, _BACKFILLED_OFFSET)
            keep_most(behind, second, frames - backfilled)
            if first_salt is None and frames:
                # The first write to an empty log draws the salt at random.
                first_salt = _salt(index)
        restarts = 0 if first_salt is None else (_salt(index) - first_salt) % 2**32
    return LockWatch(
        samples=samples,
        write_lock_held=held / samples if samples else None,
        turnstile_held=turnstile / samples if samples else None,
        wal_bytes_max=max(wal_bytes, default=0),
        frames_behind_max=max(behind, default=0),
        restarts=restarts,
        wal_bytes=tuple(wal_bytes),
        frames_behind=tuple(behind),
    )


def keep_most(seconds: list[int], second: int, value: int) -> None:
    """Note a value of some second where it is the largest; seconds without a look hold 0.

    >>> keep_most(seen := [3], 2, 5); keep_most(seen, 2, 4); seen
    [3, 0, 5]
    """
    seconds.extend([0] * (second + 1 - len(seconds)))
    seconds[second] = max(seconds[second], value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locks:
    """One look at /proc/locks."""

    write_lock_held: bool
    turnstile_held: bool


def read_locks(text: str, shm_inode: int, turnstile_inode: int | None) -> Locks:
    """Find SQLite's write lock and the turnstile in the text of /proc/locks.

    Inodes alone are compared: on overlay file systems the device of a lock differs from stat's.
    A process that waits in the kernel has a line marked with an arrow: it holds nothing.
    """
    held = turnstile = False
    for line in text.splitlines():
        fields = line.split()
        if fields[1] == "->":
            continue
        kind, access, file, start = fields[1], fields[3], fields[5], fields[6]
        inode = int(file.rpartition(":")[2])
        if (inode, kind, access, start) == (shm_inode, "POSIX", "WRITE", str(WRITE_LOCK_BYTE)):
            held = True
        elif (inode, kind) == (turnstile_inode, "FLOCK"):
            turnstile = True
    return Locks(write_lock_held=held, turnstile_held=turnstile)


def _turnstile(database: Path) -> int | None:
    try:
        return os.stat(f"{database}.turnstile").st_ino
    except FileNotFoundError:
        return None


def _salt(index: mmap.mmap) -> int:
    (salt,) = struct.unpack_from(">I", index, _SALT_OFFSET)
    return int(salt)


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(watch(Path(sys.argv[1])))))
