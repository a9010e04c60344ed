"""The turnstile: writers queue on a kernel lock before they ask SQLite for its own.

SQLite lets waiters poll, with pauses of up to 100 ms: whoever comes back first wins, and with 16
writers some win nothing for seconds.  A lock in the kernel wakes its waiters in order instead.
It is *advisory*: a holder that is stopped (SIGSTOP, a debugger, a frozen container) must not stop
the others, so nobody waits longer than a quarter of a second before going on without it.  Busy
comes from SQLite's lock alone, which stays the only thing that correctness rests on.

The lock is a `flock`, so the kernel frees it when its holder dies.  But `flock` cannot wait with a
time limit.  So it is only ever *tried*, and the waiting is done on a futex: a number in the shared
first bytes of the lock file, which each leaver changes before it wakes the first waiter.  A waiter
reads the number, tries the lock, and sleeps while the number is still what it read: a leaver in
between has changed it, so no wake-up is lost.  Only the kernel touches the mapped number: in a file
that somebody has emptied, a load or store of our own would be a SIGBUS, and end every process of
the queue; a system call answers EFAULT.  A holder that dies wakes nobody; waiters therefore
try again every 20 ms.  Whom it waited for in vain it does not wait for again, until somebody has
left.  (A helper thread that blocks in `flock` works as well; its two hand-overs of
the interpreter's lock cost a quarter of the throughput at 16 workers.)

The lock belongs to the open file description: one for each connection, or two threads would not
exclude each other.  A forked child must only close its copy: unlocking it would release the lock
of its parent.

At durability `process` no fsync separates two transactions of the same worker, so the one that
leaves is back before the kernel has woken the next.  There a second lock, the *gate*, lets one
waiter at a time stand before the turnstile, and only who entered less than a millisecond ago may
enter again without passing the gate.

Idle workers sleep at the same file, on an *event count* (Reed and Kanodia, 1979): read it, look for
a job, and sleep unless it has moved on since the reading.  A commit that lets jobs be claimed moves
it and wakes as many sleepers as there are jobs, the longest asleep first, and of those only who
look for such a kind: the kernel compares 32 bits, one for each class of kinds.  It too is a
courtesy: who dies between its commit and the wake, writes with another program, or wakes a worker
that was stopped, is found out by the look that every sleeper takes now and then.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

#: How long a caller waits at most before it goes on without the turnstile.
PATIENCE_SECONDS: Final = 0.25
#: How long a waiter sleeps at most before it tries again: the holder may have died.
SLICE_SECONDS: Final = 0.02
#: At level `process`: how long after entering one may enter again without passing the gate.
REENTRY_NS: Final = 1_000_000

#: The number of the futex system call, which the C library does not wrap (linux: asm/unistd.h).
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}.get(
    os.uname().machine
)
_FUTEX_WAIT: Final = 0
#: Wait and wake with 32 bits; a waiter is woken by whoever names one of its own.
_FUTEX_WAIT_BITSET: Final = 9
_FUTEX_WAKE_BITSET: Final = 10
#: Change the number and wake a waiter, in one call (linux: uapi/linux/futex.h).
_FUTEX_WAKE_OP: Final = 5
#: FUTEX_OP(ADD, 1, LT, -2048): the number grows by one.  The comparison would wake one more; it is
#: for a second futex, which there is not, and no count below two billions makes it true.
_ADD_ONE: Final = 1 << 28 | 2 << 24 | 1 << 12 | 0x800

#: Three numbers lie in the lock file: the line's, the event count, and one that nobody sleeps on.
_WORDS: Final = 3
_BYTES: Final = 4 * _WORDS
_COUNT: Final = 4
_NOBODY: Final = 8
#: Stands for every kind.
ALL_KINDS: Final = (1 << 32) - 1


class Turnstile:
    """One connection's place at the turnstile of a file; used by one thread at a time."""

    def __init__(self, path: str, *, gate: bool) -> None:
        """Open the lock files beside the database.

        Args:
            path: the database file, symbolic links resolved.
            gate: whether to queue at the gate first (durability `process`).

        Raises:
            OSError: a lock file can neither be opened nor made.
        """
        self._main = _Lock(f"{path}.turnstile")
        self._gate = _Lock(f"{path}.gate") if gate else None
        self._reentry_until_ns = 0
        #: What idle workers sleep on.
        self.arrivals = EventCount(self._main)
        #: Which file this is, for the rule that a thread never waits for itself.
        self.ident = self._main.ident

    def enter(self, seconds: float) -> bool:
        """Take the turnstile, waiting at most so long; False means go on without it."""
        deadline_ns = time.monotonic_ns() + round(min(seconds, PATIENCE_SECONDS) * 1e9)
        if self._gate is None:
            return self._main.take(deadline_ns)
        if time.monotonic_ns() < self._reentry_until_ns and self._main.try_take():
            return True
        if not self._gate.take(deadline_ns):
            return False
        try:
            entered = self._main.take(deadline_ns)
        finally:
            self._gate.give()
        self._reentry_until_ns = time.monotonic_ns() + REENTRY_NS
        return entered

    def leave(self) -> None:
        """Give the turnstile back."""
        self._main.give()

    def close(self) -> None:
        """Close the lock files; a lock still held is freed with them."""
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors and unlock nothing: all that a forked child may do."""
        self._main.close()
        if self._gate is not None:
            self._gate.close()


class _Lock:
    """A `flock` that can be waited for with a time limit."""

    def __init__(self, path: str) -> None:
        self._descriptor = open_lock_file(path)
        status = os.fstat(self._descriptor)
        self.ident = (status.st_dev, status.st_ino)
        self._word = _shared_words(self._descriptor, status.st_size)
        self._address = 0 if self._word is None else ctypes.addressof(self._word)
        #: The number at which a wait was in vain: that holder is not waited for a second time.
        self._given_up: int | None = None

    def try_take(self) -> bool:
        """Take the lock if nobody has it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # Taken; or a file system without such locks: nobody queues there.
            return False
        return True

    def take(self, deadline_ns: int) -> bool:
        """Take the lock, waiting until the deadline at most."""
        if self.try_take():  # The number is for who has to wait.
            self._given_up = None
            return True
        while True:
            seen = self._number()  # Before the try: see the module.
            if self.try_take():
                self._given_up = None
                return True
            left = (deadline_ns - time.monotonic_ns()) / 1e9
            if left <= 0 or seen == self._given_up:
                self._given_up = seen
                return False
            self._sleep(seen, min(left, SLICE_SECONDS))

    def give(self) -> None:
        """Free the lock and wake the first that waits for it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError:  # A commit has happened: an error here must not hide it.
            return
        if self._word is None:
            return
        if _add_and_wake(self._address, self._address) == errno.EFAULT:
            with suppress(OSError):  # Somebody has emptied the file: fairness comes back with this.
                os.pwrite(self._descriptor, bytes(4), 0)

    def close(self) -> None:
        """Close the descriptor."""
        self._word = None
        close_quietly(self._descriptor)

    def _number(self, offset: int = 0) -> int:
        """Read the number; 0 where there is none."""
        if self._word is None:
            return 0
        return int.from_bytes(os.pread(self._descriptor, 4, offset), sys.byteorder)

    def _sleep(self, seen: int, seconds: float) -> None:
        """Sleep until somebody leaves; where there is no futex, for a millisecond."""
        if self._word is None:
            time.sleep(min(seconds, 0.001))
            return
        limit = ctypes.byref(_Timespec(int(seconds), int(seconds % 1 * 1e9)))
        if _futex(self._address, _FUTEX_WAIT, seen, limit) == errno.EFAULT:
            time.sleep(min(seconds, 0.001))


class EventCount:
    """The count of arrivals, in the turnstile's file; one for each connection."""

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock

    def read(self) -> int:
        """Return the count; read it *before* looking for what it counts."""
        return self._lock._number(_COUNT)

    def advance(self, count: int, kinds: int) -> None:
        """Move the count on and wake the first sleepers, so many at most, of these kinds."""
        word = self._lock._word
        if word is None:
            return
        address = ctypes.addressof(word) + _COUNT
        # In two calls: the one that adds can not choose whom to wake, so it wakes nobody.
        if _add_and_wake(address, ctypes.addressof(word) + _NOBODY) == errno.EFAULT:
            with suppress(OSError):
                os.pwrite(self._lock._descriptor, bytes(_BYTES), 0)
        _futex(address, _FUTEX_WAKE_BITSET, count, third=kinds)

    def wait(self, seen: int, kinds: int, seconds: float) -> bool:
        """Sleep until the count is another than seen; True if it is, or was.

        False after so many seconds, or sooner when a signal has come.
        """
        word = self._lock._word  # Keeps the mapping, whoever closes the file meanwhile.
        until_ns = time.monotonic_ns() + round(seconds * 1e9)
        if word is not None:
            limit = ctypes.byref(_Timespec(until_ns // 1_000_000_000, until_ns % 1_000_000_000))
            address = ctypes.addressof(word) + _COUNT
            code = _futex(address, _FUTEX_WAIT_BITSET, seen, limit, third=kinds)
            if code in (0, errno.EAGAIN):
                return True
            if code in (errno.ETIMEDOUT, errno.EINTR):
                return False
        time.sleep(seconds)
        return False


def classes_of(kinds: Iterable[str] | None) -> int:
    """Return the bits of these kinds, None being all: the same in every process and version."""
    if kinds is None:
        return ALL_KINDS
    found = 0
    for kind in kinds:
        found |= 1 << (zlib.crc32(kind.encode()) & 31)
    return found


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _shared_words(descriptor: int, size: int) -> "ctypes.Array[ctypes.c_uint32] | None":
    """Map the numbers in the lock file; None where that or the system call can not be had."""
    if _SYS_FUTEX is None:
        return None
    try:
        if size < _BYTES:
            # Written, not truncated to: a hole would be filled by the first store into the mapping,
            # and on a full disk that is a SIGBUS.
            os.pwrite(descriptor, bytes(_BYTES - size), size)
        return (ctypes.c_uint32 * _WORDS).from_buffer(mmap.mmap(descriptor, _BYTES))
    except (OSError, ValueError):  # A read-only descriptor, or a file system that maps nothing.
        return None


def _futex(
    address: int,
    operation: int,
    number: int,
    limit: object = None,
    second: int | None = None,
    third: int = 0,
) -> int:
    """Wait or wake; return the number of the error, or 0: the caller looks again in any case."""
    done = _syscall(_SYS_FUTEX, address, operation, number, limit, second, third)
    return ctypes.get_errno() if done < 0 else 0


def _add_and_wake(address: int, waiters: int) -> int:
    """Let the kernel add one to the number and wake the first waiter; return the error's number.

    Args:
        address: of the number.
        waiters: of the number on which they sleep.
    """
    return _futex(waiters, _FUTEX_WAKE_OP, 1, None, address, _ADD_ONE)


_syscall = ctypes.CDLL(None, use_errno=True).syscall
# Told once: to find out at each call what each argument is costs more than the call.
_syscall.argtypes = (
    *(ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32),
)
_syscall.restype = ctypes.c_long


def open_lock_file(path: str) -> int:
    """Open a lock file with the mode and owner of the database; read-only where it must be.

    `flock` works on a read-only descriptor: a user without write permission keeps its place.

    Raises:
        OSError: it can neither be opened nor made.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with suppress(OSError):  # It is another user's; or there is no database yet.
        # The umask of whoever comes first, or a single call by root, would shut the others out.
        status = os.stat(path.rpartition(".")[0])
        os.fchmod(descriptor, status.st_mode & 0o666)
        os.fchown(descriptor, status.st_uid, status.st_gid)
    return descriptor


def close_quietly(descriptor: int) -> None:
    """Close a descriptor that a handler may have closed before us (closerange, daemonize)."""
    try:
        os.close(descriptor)
    except OSError:
        return
