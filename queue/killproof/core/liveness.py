"""Death, noticed through the kernel: each worker holds a byte of `<database>.workers` locked.

The kernel frees the byte when the process dies, however it dies: seen 1.3 ms after a SIGKILL.
*A free byte of the right file proves death; nothing else proves anything*: not a held byte (a
forked child may hold it on), not a foreign boot id, not a missing row.  A wrong verdict stays
harmless, because every outcome is fenced.

The locks are open-file-description locks (F_OFD_SETLK): POSIX locks would vanish when any code of
the process closes any descriptor of the file.  The file is opened twice: a description does not see
its own locks as held, so one descriptor holds and the other tests; with a single one, 674 of 1,003
acknowledgements of living workers were refused.  Bytes are random in [2^20, 2^62): no slot is
handed out, so none is handed out twice, and the file stays empty.
"""

import fcntl
import os
import struct
from contextlib import suppress

from killproof.core.turnstile import close_quietly, open_lock_file

BYTE_FIRST = 1 << 20
BYTE_END = 1 << 62
#: struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi4x"


class Liveness:
    """This process's descriptors of the `.workers` file of one database."""

    def __init__(self, path: str) -> None:
        """Open the file twice and try the locks once.

        Args:
            path: the database file, symbolic links resolved.
        """
        self._path = f"{path}.workers"
        self._byte: int | None = None
        self._hold = self._test = -1
        #: (device, inode) as text: which file the bytes belong to; '' when only the lease decides.
        self.file = ""
        try:
            self._hold = open_lock_file(self._path)
            self._test = open_lock_file(self._path)
            self.file = self._same_file()
            if self.file and not self._self_test():
                self.file = ""
        except OSError:
            # No permission, no such locks (gVisor, some FUSE): the lease alone, and doctor says so.
            self.file = ""

    def hold(self) -> int:
        """Lock a random byte for as long as this process lives; return it (0 without locks)."""
        while self.file:
            byte = _random_byte()
            try:
                if self._lock(byte):
                    self._byte = byte
                    return byte
            except OSError:  # The lock call fails: the lease alone, as when it never worked.
                self.file = ""
        return 0

    def is_free(self, byte: int) -> bool:
        """Whether nobody holds the byte; proves a death only if the byte is of this very file."""
        assert self.file
        # A byte that nobody can hold is a damaged row, and proves nothing.
        try:
            return BYTE_FIRST <= byte < BYTE_END and _get_lock(self._test, byte) == fcntl.F_UNLCK
        except OSError:  # Nor does a test that fails.
            return False

    def is_sound(self) -> bool:
        """Whether the descriptors, the path and the lock are still what they were.

        A handler may have closed every descriptor; somebody may have deleted the file.  The holder
        then takes a new identity for new claims; the old leases keep theirs.
        """
        if not self.file:
            return True
        try:
            return self._same_file() == self.file and (
                self._byte is None or not self.is_free(self._byte)
            )
        except OSError:
            return False

    def release(self) -> None:
        """Free the byte: the identity that held it counts as dead from here on."""
        if self._byte is not None:
            with suppress(OSError):  # A handler has closed the descriptor, and freed it so.
                _set_lock(self._hold, self._byte, fcntl.F_UNLCK)
            self._byte = None

    def close(self) -> None:
        """Close the descriptors; in a forked child this frees nothing of the parent's."""
        for descriptor in (self._hold, self._test):
            if descriptor >= 0:
                close_quietly(descriptor)
        self._hold = self._test = -1  # The numbers may be somebody else's from here on.

    def _same_file(self) -> str:
        """Return the identity that both descriptors and the path share, or ''."""
        found = {
            (status.st_dev, status.st_ino)
            for status in (os.fstat(self._hold), os.fstat(self._test), os.stat(self._path))
        }
        if len(found) != 1:
            return ""
        device, inode = found.pop()
        return f"{device}:{inode}"

    def _self_test(self) -> bool:
        """Whether locks behave: held is seen as held, and free as free."""
        byte = _random_byte()
        if not self._lock(byte):
            return False
        held = not self.is_free(byte)
        _set_lock(self._hold, byte, fcntl.F_UNLCK)
        return held and self.is_free(byte)

    def _lock(self, byte: int) -> bool:
        try:
            _set_lock(self._hold, byte, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True


def _random_byte() -> int:
    return BYTE_FIRST + int.from_bytes(os.urandom(8), "big") % (BYTE_END - BYTE_FIRST)


def _set_lock(descriptor: int, byte: int, kind: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))


def _get_lock(descriptor: int, byte: int) -> int:
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    kind: int = struct.unpack(_FLOCK, answer)[0]
    return kind
