"""What the kernel tells of a process or a database file to somebody who opens neither.

Opening and closing a database file in a process that has a connection to it would drop that
process's locks; sizes, lock tables and process states can be read without.
"""

import os
import time
from pathlib import Path
from typing import Final

#: How long a signal may need to act before we say that it did not.
STATE_SECONDS_MAX: Final = 2.0
#: Byte 120 of the -shm file is the lock of SQLite's one writer (WAL_WRITE_LOCK, wal.c).
WAL_WRITE_LOCK_BYTE: Final = 120


def kernel_state(pid: int) -> str:
    """Return the letter that the kernel shows for a process: R, S, D, T (stopped), Z, or ""."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for_kernel_state(pid: int, wanted: bool) -> bool:
    """Wait until the process is stopped, or with False no longer is; return whether it came so."""
    deadline = time.monotonic() + STATE_SECONDS_MAX
    while time.monotonic() < deadline:
        letter = kernel_state(pid)
        if letter in ("", "Z"):
            return not wanted  # It went on, and has ended since.
        if (letter == "T") == wanted:
            return True
        time.sleep(0.0002)
    return False


def holds_write_lock(pid: int, database: Path) -> bool:
    """Say whether the process holds the lock of SQLite's one writer on this database."""
    try:
        inode = os.stat(f"{database}-shm").st_ino
        with open("/proc/locks", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except FileNotFoundError:
        return False
    return any(
        int(row[4]) == pid
        and int(row[5].rpartition(":")[2]) == inode
        and int(row[6]) <= WAL_WRITE_LOCK_BYTE
        and (row[7] == "EOF" or int(row[7]) >= WAL_WRITE_LOCK_BYTE)
        for row in rows
        if len(row) == 8 and row[3] == "WRITE" and row[1] == "POSIX"
    )


def wal_bytes(database: Path) -> int:
    """Return the size of the database's log; 0 where there is none."""
    try:
        return os.stat(f"{database}-wal").st_size
    except FileNotFoundError:
        return 0


def open_counts(pid: int) -> dict[str, int] | None:
    """Return how many files and threads a process has; None: it has just ended."""
    try:
        return {
            "open_files": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
        }
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
