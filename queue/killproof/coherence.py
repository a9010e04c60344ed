"""Whether two processes see each other's memory and locks where a database lies.

SQLite's log needs both.  File systems that lack one are known by name and refused; this looks, for
those whose name says nothing (a mount of a container or of a virtual machine, say).  It works on a
file of its own beside the database, never on the database.
"""

import fcntl
import mmap
import os
import subprocess
import sys
import tempfile
from typing import Final

SECONDS_MAX: Final = 10.0
MINE: Final = 0x5A
OTHERS: Final = 0xA5

#: What the other process does: see the first one's byte, be refused its lock, leave a byte.
OTHER: Final = f"""
import fcntl, mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    if memory[0] != {MINE}:
        sys.exit("memory")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        memory[1] = {OTHERS}
    else:
        sys.exit("locks")
"""


def problem(folder: str) -> str | None:
    """Say what two processes do not share in a folder, or None; it takes some 50 ms.

    Raises:
        OSError: no file can be made there.
        subprocess.TimeoutExpired: the other process did not end.
    """
    with (
        tempfile.NamedTemporaryFile(prefix=".killproof-", suffix=".probe", dir=folder) as file,
        _shared(file.fileno()) as memory,
    ):
        fcntl.lockf(file, fcntl.LOCK_EX)
        memory[0] = MINE
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", OTHER, file.name],
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            return done.stderr.strip().splitlines()[-1] if done.stderr else "nothing"
        return None if memory[1] == OTHERS else "memory"


def _shared(descriptor: int) -> mmap.mmap:
    os.truncate(descriptor, mmap.PAGESIZE)
    return mmap.mmap(descriptor, mmap.PAGESIZE)
