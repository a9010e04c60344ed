"""The two sides of the comparison: killproof, and the same code without its locks.

The reference is not another program that happens to be slower. It is `killproof.Queue` with the
same statements on the same kept connection, whose host gives it no turnstile and no barrier:
SQLite's own busy handler waits for the lock, SQLite's own sync makes a commit durable, and SQLite's
own automatic checkpoint moves the log. What differs between the arms is what is measured.
"""

import os
import signal
import sqlite3
import time
from dataclasses import dataclass, field
from typing import Protocol

from killproof import Host, Queue, SystemClock
from killproof.core import host as core_host
from killproof.core.host import Barrier, KernelLocks, Liveness, Locks, Turnstile

#: How long SQLite's busy handler waits in the reference, as long as killproof's own limit.
BUSY_MS = 30_000
#: SQLite's default, which a plain program has.
AUTOCHECKPOINT_PAGES = 1_000

SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


@dataclass(slots=True)
class Connections:
    """Opens connections and remembers the latest, so that its pragmas can be read back."""

    latest: sqlite3.Connection | None = None

    def connect(self, path: str) -> sqlite3.Connection:
        """Open as the core does."""
        self.latest = core_host.connect(path)
        return self.latest

    def facts(self) -> dict[str, str]:
        """Read back what the claim card says about the connection in use."""
        assert self.latest is not None
        (mode,) = self.latest.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = self.latest.execute("PRAGMA synchronous").fetchone()
        (autocheckpoint,) = self.latest.execute("PRAGMA wal_autocheckpoint").fetchone()
        return {
            "journal_mode": mode,
            "synchronous": SYNCHRONOUS[synchronous],
            "autocheckpoint": str(autocheckpoint),
            "sqlite": sqlite3.sqlite_version,
        }


class Pauses(Protocol):
    """Where the pauses of killproof's own loop before SQLite's lock are counted."""

    retries: int


class CountingClock(SystemClock):
    """The machine's clock; counts its sleeps, which are what a claim does when it meets a lock."""

    def __init__(self, pauses: Pauses) -> None:
        super().__init__()
        self._pauses = pauses

    def sleep(self, seconds: float) -> None:
        """Sleep for real, and count."""
        self._pauses.retries += 1
        super().sleep(seconds)


def open_arm(
    arm: str,
    path: str,
    *,
    synchronous: str,
    stoppable: bool = False,
    told_of_pauses: Pauses | None = None,
) -> "Arm":
    """Open one arm's queue on an existing file.

    Args:
        arm: `killproof` or `reference`.
        path: The seeded database.
        synchronous: What the reference runs at: FULL where the file promises `power`.
        stoppable: Whether SIGUSR1 and SIGUSR2 make the process stop itself, see `Stoppable`.
        told_of_pauses: Counts each pause; the reference pauses inside SQLite, unseen.
    """
    connections = Connections()
    locks: Locks = KernelLocks()
    if arm == "reference":
        locks = PlainLocks(connections=connections, synchronous=synchronous)
    elif stoppable:
        locks = Stoppable()
    clock = SystemClock() if told_of_pauses is None else CountingClock(told_of_pauses)
    queue = Queue(path, host=Host(clock=clock, connect=connections.connect, lock=locks))
    return Arm(queue=queue, connections=connections)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An open queue, and its connections."""

    queue: Queue
    connections: Connections


@dataclass(slots=True, kw_only=True)
class PlainLocks:
    """What a plain program has: SQLite alone; the death lock stays, it costs a claim nothing."""

    connections: Connections
    synchronous: str
    kernel: KernelLocks = field(default_factory=KernelLocks)

    def turnstile(self, path: str, *, gate: bool) -> Turnstile:
        """Set the connection up as a plain program does; the core asks for this last.

        The core sets synchronous=NORMAL and no automatic checkpoint, for its barrier and its own
        checkpoints. Neither exists here, so both go back to what SQLite does by itself.
        """
        connection = self.connections.latest
        assert connection is not None
        assert not connection.in_transaction
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}").fetchall()
        connection.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_PAGES}").fetchall()
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        return NoTurnstile()

    def liveness(self, path: str) -> Liveness:
        """Open the death lock."""
        return self.kernel.liveness(path)

    def barrier(self, path: str) -> Barrier:
        """Return nothing to wait for: the commit itself was synced."""
        return NoBarrier()

    def refusal(self, path: str, durability: str) -> str | None:
        """Refuse what the core refuses."""
        return self.kernel.refusal(path, durability)


@dataclass(slots=True)
class NoTurnstile:
    """Nobody queues; `enter` says so, and the core goes straight to SQLite's lock."""

    ident: tuple[int, int] = (0, 0)

    @property
    def arrivals(self) -> "NoArrivals":
        """Return what wakes nobody."""
        return NoArrivals()

    def enter(self, seconds: float) -> bool:
        """Take nothing."""
        return False

    def leave(self) -> None:
        """Give nothing back."""

    def close(self) -> None:
        """Close nothing."""

    def abandon(self) -> None:
        """Abandon nothing."""


class NoArrivals:
    """Nobody is woken: who is idle polls."""

    def read(self) -> int:
        """Return 0."""
        return 0

    def advance(self, count: int, kinds: int) -> None:
        """Wake nobody."""

    def wait(self, seen: int, kinds: int, seconds: float) -> bool:
        """Sleep."""
        time.sleep(seconds)
        return False


class NoBarrier:
    """Nothing to wait for."""

    def log_bytes(self) -> int:
        """Return 0: only the core's own checkpoints ask."""
        return 0

    def wait(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Close nothing."""


class Stoppable(KernelLocks):
    """Locks of a process that can be stopped exactly where it matters.

    After SIGUSR1 it stops itself as soon as it holds the turnstile and before it asks for SQLite's
    lock; after SIGUSR2 as soon as it has left the turnstile and holds nothing. A signal from
    outside cannot know where it lands.
    """

    def turnstile(self, path: str, *, gate: bool) -> Turnstile:
        """Open the turnstile with the two stops around it."""
        return StoppableTurnstile(super().turnstile(path, gate=gate))


class StoppableTurnstile:
    """The real turnstile, whose holder stops itself when told to."""

    def __init__(self, inner: Turnstile) -> None:
        self._inner = inner
        self.ident = inner.ident
        self.arrivals = inner.arrivals
        self._stop_holding = self._stop_free = False
        signal.signal(signal.SIGUSR1, self._arm_holding)
        signal.signal(signal.SIGUSR2, self._arm_free)

    def enter(self, seconds: float) -> bool:
        """Enter, and stop inside when armed."""
        held = self._inner.enter(seconds)
        if held and self._stop_holding:
            self._stop_holding = False
            os.kill(os.getpid(), signal.SIGSTOP)
        return held

    def leave(self) -> None:
        """Leave, and stop outside when armed."""
        self._inner.leave()
        if self._stop_free:
            self._stop_free = False
            os.kill(os.getpid(), signal.SIGSTOP)

    def close(self) -> None:
        """Close."""
        self._inner.close()

    def abandon(self) -> None:
        """Abandon."""
        self._inner.abandon()

    def _arm_holding(self, _signal: int, _frame: object) -> None:
        self._stop_holding = True

    def _arm_free(self, _signal: int, _frame: object) -> None:
        self._stop_free = True
