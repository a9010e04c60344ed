"""The words of the shim: kinds of calls, files and actions, numbered as in `preload.c`."""

from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    """What a call does. The 64-bit, `at` and vector variants of a call are the same kind."""

    NONE = 0
    OPEN = 1
    CLOSE = 2
    WRITE = 3  #: write, pwrite, writev, pwritev, pwritev2
    FSYNC = 4
    FDATASYNC = 5
    SYNC_RANGE = 6  #: sync_file_range: makes nothing durable that a power cut could not take
    TRUNCATE = 7
    ALLOCATE = 8
    RENAME = 9
    UNLINK = 10
    MKDIR = 11
    RMDIR = 12
    LINK = 13
    LOCK = 14  #: fcntl (POSIX and open file description) and flock
    UNLOCK = 15
    GETLOCK = 16
    MAP = 17  #: a writable shared map; counted, never numbered: no rule applies to it


class File(IntEnum):
    """Which file a call is about, told by its name."""

    NONE = 0
    DATABASE = 1  #: the watched path itself, or *.db, *.sqlite, *.sqlite3
    WAL = 2
    SHM = 3
    JOURNAL = 4
    TURNSTILE = 5
    GATE = 6
    WORKERS = 7
    FAILED = 8
    DIRECTORY = 9
    OTHER = 10  #: any other file below the prefix: payloads, temporary files


class Action(IntEnum):
    """What a rule does to a call."""

    NONE = 0
    SIGNAL_BEFORE = 1  #: value: the signal, SIGKILL or SIGSTOP
    SIGNAL_AFTER = 2
    FAIL = 3  #: value: the errno; the call is not made (close is, as in the kernel)
    SHORT = 4  #: value: how many bytes a write writes, 0 for half of them; other calls pass


class RecordType(IntEnum):
    """What a record of the log says."""

    NONE = 0
    START = 1
    BEGIN = 2
    END = 3
    NOTE = 4
    SIGNAL = 5
    SEEN = 6
    BLIND = 7


#: All kinds that a rule can apply to.
ALL_KINDS: Final = frozenset(Kind) - {Kind.NONE, Kind.MAP}
ALL_FILES: Final = frozenset(File) - {File.NONE}
SYNCS: Final = frozenset({Kind.FSYNC, Kind.FDATASYNC})
LOCKS: Final = frozenset({Kind.LOCK, Kind.UNLOCK, Kind.GETLOCK})
#: What changes the disk or makes it durable: enough to rebuild it.
DISK_KINDS: Final = ALL_KINDS - LOCKS - {Kind.CLOSE}


def mask(numbers: frozenset[Kind] | frozenset[File]) -> int:
    """Return the set as the bit mask that the shim reads."""
    return sum(1 << number for number in numbers)
