"""The file as it was after the set-up, and the way back to it between two schedules.

The pages of that moment lie in the database file itself, for the log was cut back then; whatever a
schedule commits goes to the log. So the way back is to forget the log: the head of its index, which
SQLite keeps in shared memory, is made what it was when the log was empty. That takes back rows,
tables, and settings of the file alike, and costs as much for a big file as for a small one.

SQLite tells by the head of the index whether pages that a connection has kept are still good. Each
schedule therefore gets a salt that no other has, as SQLite gives a log that it begins anew: no page
of one schedule can be taken for one of another. The shared memory is reached where SQLite has
mapped it. Opening the file a second time would take SQLite's locks away when it is closed.

Where there is no such index, or a checkpoint has written to the file itself, a copy of the whole
file is written back, as SQLite's own backup does it.
"""

import ctypes
import os
import sqlite3
import struct
from pathlib import Path
from typing import Final

#: The head of the index (https://www.sqlite.org/walformat.html, section 2.1): two equal copies of
#: 48 bytes, and 40 bytes of checkpoint information.
_COPY_BYTES: Final = 48
_HEAD_BYTES: Final = 136
#: Of a copy: `mxFrame` at 16, the salts at 32, then the checksum of all that stands before it.
_LAST_FRAME_AT: Final = 16
_SALT_AT: Final = 32
#: The time of change that the file is given: nobody who writes to it leaves it so.
_LONG_AGO_NS: Final = 0
_WORD: Final = struct.Struct("=I")
_PAIR: Final = struct.Struct("=2I")
_MASK: Final = 0xFFFF_FFFF


class Image:
    """One file at one moment, while its connections stay open."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        """Remember the file as it is now; nobody may be in a transaction.

        Args:
            database: a connection of the caller's own to it, which stays open as long as this.
            path: the file.
        """
        self._database, self._path = database, path
        self._copy = sqlite3.connect(":memory:", check_same_thread=False)
        database.backup(self._copy)
        self._log = self._empty_log()

    @property
    def forgets_log(self) -> bool:
        """Whether the quick way works for this file."""
        return self._log is not None

    def put_back(self) -> None:
        """Make the file what it was; nobody may be in a transaction."""
        if self._log is not None and self._is_untouched():
            self._log.forget()
            return
        self._copy.backup(self._database)
        self._log = self._empty_log()

    def close(self) -> None:
        """Give the copy back."""
        self._copy.close()

    def _empty_log(self) -> "_Log | None":
        """Move all pages into the file; return the log, if it is empty now."""
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._database.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        address = _mapped_at(f"{os.path.realpath(self._path)}-shm")
        if address is None:
            return None
        os.utime(self._path, ns=(_LONG_AGO_NS, _LONG_AGO_NS))
        log = _Log(address)
        return log if log.is_empty else None

    def _is_untouched(self) -> bool:
        """Whether no checkpoint has written to the file."""
        return os.stat(self._path).st_mtime_ns == _LONG_AGO_NS


class _Log:
    """The index of a log that was empty at first, where SQLite has mapped it."""

    def __init__(self, address: int) -> None:
        self._address = address
        head = ctypes.string_at(address, _HEAD_BYTES)
        self._first, self._rest = head[:_SALT_AT], head[2 * _COPY_BYTES :]
        self._salts = _PAIR.unpack_from(head, _SALT_AT)
        self._sum = (0, 0)
        for pair in _PAIR.iter_unpack(self._first):
            self._sum = _added(self._sum, pair)
        (last,) = _WORD.unpack_from(head, _LAST_FRAME_AT)
        copies = head[:_COPY_BYTES], head[_COPY_BYTES : 2 * _COPY_BYTES]
        #: And it is as this module believes it to be.
        self.is_empty = last == 0 and copies == (self._head(), self._head())

    def forget(self) -> None:
        """Make the log empty."""
        one, two = self._salts
        self._salts = one, (two + 1) & _MASK
        head = self._head()
        ctypes.memmove(self._address, head + head + self._rest, _HEAD_BYTES)

    def _head(self) -> bytes:
        """Return one copy of the head, with its checksum: SQLite believes no other."""
        total = _added(self._sum, self._salts)
        return self._first + _PAIR.pack(*self._salts) + _PAIR.pack(*total)


def _added(total: tuple[int, int], pair: tuple[int, int]) -> tuple[int, int]:
    """Return the checksum of what came before and two words more."""
    one = (total[0] + pair[0] + total[1]) & _MASK
    return one, (total[1] + pair[1] + one) & _MASK


def _mapped_at(name: str) -> int | None:
    """Return where this process has mapped the beginning of a file; None: nowhere."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in text.splitlines():
        span, _, offset, _, _, *found = line.split(None, 5)
        if found == [name] and int(offset, 16) == 0:
            return int(span.split("-")[0], 16)
    return None
