"""What the queue asks of the machine, as one small argument: clock, random, connect, lock, token.

The default is this machine.  A simulator passes its own: virtual time, a scheduled connection, and
locks that are plain variables; the queue's code is the same.  `lock` is the seam to the kernel: the
turnstile, the death lock, the barrier, and the question whether a level of durability can be kept.
"""

import random as random_module
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from killproof.core import barrier as kernel_barrier
from killproof.core import liveness as kernel_liveness
from killproof.core import turnstile as kernel_turnstile
from killproof.core.clock import Clock, SystemClock


class EventCount(Protocol):
    """What idle workers sleep on; `core/turnstile.py` has the meaning of each."""

    def read(self) -> int:
        """Return the count."""

    def advance(self, count: int, kinds: int) -> None:
        """Move it on, and wake so many that look for these kinds."""

    def wait(self, seen: int, kinds: int, seconds: float) -> bool:
        """Sleep until it is another than seen; False after so long without, or for a signal."""


class Turnstile(Protocol):
    """A place in the line of writers; `core/turnstile.py` has the meaning of each."""

    ident: tuple[int, int]

    @property
    def arrivals(self) -> EventCount:
        """What idle workers sleep on, in the same file."""

    def enter(self, seconds: float) -> bool:
        """Wait for the turn at most so long; False means go on without it."""

    def leave(self) -> None:
        """Let the next one in."""

    def close(self) -> None:
        """Give everything back."""

    def abandon(self) -> None:
        """Close descriptors and unlock nothing, in a forked child."""


class Liveness(Protocol):
    """A life that others can see the end of; `core/liveness.py` has the meaning of each."""

    file: str

    def hold(self) -> int:
        """Begin a life: return the byte that stands for it."""

    def is_free(self, byte: int) -> bool:
        """Whether the life behind the byte has ended."""

    def is_sound(self) -> bool:
        """Whether others can still see this life."""

    def release(self) -> None:
        """End this life in order."""

    def close(self) -> None:
        """Close descriptors."""


class Barrier(Protocol):
    """The wait for the disk; `core/barrier.py` has the meaning of each."""

    def log_bytes(self) -> int:
        """Return the size of the log."""

    def wait(self) -> None:
        """Return when all that was committed before is durable."""

    def close(self) -> None:
        """Close the log."""


class Locks(Protocol):
    """The kernel's part, for one database path (symbolic links resolved)."""

    def turnstile(self, path: str, *, gate: bool) -> Turnstile:
        """Open a place in the line."""

    def liveness(self, path: str) -> Liveness:
        """Open what deaths are seen by."""

    def barrier(self, path: str) -> Barrier:
        """Open the log."""

    def refusal(self, path: str, durability: str) -> str | None:
        """Say why the level can not be kept here, or None."""


class KernelLocks:
    """The locks of this machine's kernel."""

    def turnstile(self, path: str, *, gate: bool) -> Turnstile:
        """Open the turnstile, with the gate before it at level `process`."""
        return kernel_turnstile.Turnstile(path, gate=gate)

    def liveness(self, path: str) -> Liveness:
        """Open the death lock."""
        return kernel_liveness.Liveness(path)

    def barrier(self, path: str) -> Barrier:
        """Open the log; inside a read transaction only."""
        return kernel_barrier.Barrier(path)

    def refusal(self, path: str, durability: str) -> str | None:
        """Say why this file system can not keep the level, or None."""
        return kernel_barrier.refusal(path, durability)


def connect(path: str) -> sqlite3.Connection:
    """Open a connection that begins nothing by itself and never waits inside SQLite.

    `close()` of the queue may come from another thread than the one that opened the connection.
    """
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine as the queue sees it; each part can be replaced on its own.

    `token` names one life of a worker, in 32 hex digits that nobody else has.  It is the kernel's
    randomness, not that of `random`, which a forked child would draw once more.
    """

    clock: Clock = field(default_factory=SystemClock)
    random: random_module.Random = field(default_factory=random_module.Random)
    connect: Callable[[str], sqlite3.Connection] = connect
    lock: Locks = field(default_factory=KernelLocks)
    token: Callable[[], str] = lambda: random_module.SystemRandom().randbytes(16).hex()
