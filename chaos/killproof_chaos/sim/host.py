"""The machine of the simulation: what `Target.open(place, host)` gets.

The kernel's parts are plain variables here. The turnstile lets everybody in at once: it is a
courtesy, and correctness must not rest on it. Whoever sleeps on its event count is an actor that
waits for a signal; a wake-up may be lost, if the scenario's budget has lost ones. The barrier has
nothing to wait for, for the file is in memory and no power is cut. A byte of the death lock is free
when the life behind it has ended.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from killproof_chaos.sim.connection import Connection
from killproof_chaos.sim.dice import Dice
from killproof_chaos.sim.runtime import ENDED, Life, Runtime

#: Bytes below this are never handed out, as in the real file.
_BYTE_FIRST: Final = 1 << 20
#: The signal of the event count; behind it stand the kinds that a worker looks for.
ARRIVAL: Final = "arrival"


class Clock:
    """The virtual clocks."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def now_ms(self) -> int:
        """Return the wall clock, ms since the epoch."""
        return self._runtime.told_clock(self._runtime.wall_ms)

    def monotonic_ns(self) -> int:
        """Return the clock that never steps, ns."""
        return self._runtime.told_clock(self._runtime.now_ns)

    def sleep(self, seconds: float) -> None:
        """Let others run until the clock has moved on by so much."""
        self._runtime.sleep(seconds)

    def rest(self, seconds: float, wait: Callable[[float], bool]) -> bool:
        """Let others run until one of them wakes us, or the clock has moved on by so much."""
        return wait(seconds)

    def ident(self) -> str:
        """Name the one clock that all processes share."""
        return "sim"

    # What code asks that reads the module `time` through an attribute.

    def time_ns(self) -> int:
        """Return the wall clock, ns."""
        return self.now_ms() * 1_000_000

    def time(self) -> float:
        """Return the wall clock, s."""
        return self.now_ms() / 1_000

    def monotonic(self) -> float:
        """Return the clock that never steps, s."""
        return self.monotonic_ns() / 1e9


class _EventCount:
    """What idle workers sleep on; all processes of a run share the runtime's count."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def read(self) -> int:
        """Return the count; it is something that the asker learns."""
        self._runtime.observe(self._runtime.arrivals)
        return self._runtime.arrivals

    def advance(self, count: int, kinds: int) -> None:
        """Move it on, and wake the first that wait for any of these kinds."""
        self._runtime.arrivals += 1
        for life in self._runtime.lives:
            prefix, _, wanted = life.signal.partition(" ")
            if count and prefix == ARRIVAL and not life.woken and int(wanted, 16) & kinds:
                self._runtime.wake(life)
                count -= 1

    def wait(self, seen: int, kinds: int, seconds: float) -> bool:
        """Wait for the signal, unless it has come since the count was read."""
        if self._runtime.arrivals != seen:
            return True
        if self._runtime.quiet:
            self._runtime.sleep(seconds)
            return False
        return self._runtime.wait(round(seconds * 1e9), signal=f"{ARRIVAL} {kinds:x}")


class _Turnstile:
    """Open at any time."""

    def __init__(self, ident: int, arrivals: _EventCount) -> None:
        self.ident = (0, ident)
        self.arrivals = arrivals

    def enter(self, seconds: float) -> bool:
        """Go in."""
        return True

    def leave(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing is open."""

    def abandon(self) -> None:
        """Nothing is open."""


class _Barrier:
    """Memory has no disk to wait for."""

    def log_bytes(self) -> int:
        """Return no size, so that only chance brings a checkpoint."""
        return 0

    def wait(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Nothing is open."""


class _Liveness:
    """The death lock of one process; its byte is free when its life has ended."""

    file = "sim"

    def __init__(self, locks: "Locks") -> None:
        self._locks = locks

    def hold(self) -> int:
        """Begin a life."""
        return self._locks.hold()

    def is_free(self, byte: int) -> bool:
        """Say whether the life behind a byte has ended."""
        return self._locks.is_free(byte)

    def is_sound(self) -> bool:
        """Say that nothing has happened to the lock file, which there is not."""
        return True

    def release(self) -> None:
        """End this identity; the process may take another."""
        self._locks.release()

    def close(self) -> None:
        """End it, as the kernel does."""
        self._locks.release()


class Locks:
    """The kernel's part for one process."""

    def __init__(self, runtime: Runtime, root: Life, register: dict[int, Life]) -> None:
        self._runtime, self._root, self._register = runtime, root, register
        self._byte: int | None = None
        self._held = 0

    def reset(self) -> None:
        """Hold nothing."""
        self._byte, self._held = None, 0

    def turnstile(self, path: str, *, gate: bool) -> _Turnstile:
        """Open a place in a line that does not exist."""
        return _Turnstile(self._root.index, _EventCount(self._runtime))

    def liveness(self, path: str) -> _Liveness:
        """Open what deaths are seen by."""
        return _Liveness(self)

    def barrier(self, path: str) -> _Barrier:
        """Open the log."""
        return _Barrier()

    def refusal(self, path: str, durability: str) -> str | None:
        """Vouch for the file system: no power is cut here."""
        return None

    def hold(self) -> int:
        """Take a byte of one's own."""
        self._held += 1
        self._byte = _BYTE_FIRST + (self._root.index << 16) + self._held
        self._register[self._byte] = self._root
        return self._byte

    def is_free(self, byte: int) -> bool:
        """Look a byte up; it is something that the asker learns."""
        life = self._register.get(byte)
        found = life is None or life.state == ENDED
        self._runtime.death_mark += 1
        self._runtime.observe(found)
        return found

    def release(self) -> None:
        """Give the byte back."""
        if self._byte is not None and not self._root.is_dead:
            self._register.pop(self._byte, None)
        self._byte = None


class SimHost:
    """One process's view of the machine: clock, random, connect, lock, token and sync."""

    def __init__(
        self, runtime: Runtime, root: Life, register: dict[int, Life], *, syncs: bool
    ) -> None:
        """Make the host of one process.

        Args:
            runtime: what its statements, sleeps and reads of the clock go to.
            root: the process.
            register: who holds which byte of the death lock; shared by all hosts of a run.
            syncs: whether the target's sync points are points as well.
        """
        self._runtime, self._root = runtime, root
        self.clock = Clock(runtime)
        self.random = Dice(root.index)
        self.lock = Locks(runtime, root, register)
        self._tokens = 0
        self._syncs = syncs

    def reset(self) -> None:
        """Begin the next run."""
        self.random.again()
        self.lock.reset()
        self._tokens = 0

    def connect(self, path: Any, **options: Any) -> sqlite3.Connection:
        """Open a connection that stops before each statement and never waits inside SQLite.

        As `killproof.core.host.connect` does, it begins nothing by itself; say so if it should.
        """
        is_patient = options.get("timeout", 1) > 0
        options |= {"timeout": 0, "factory": Connection, "check_same_thread": False}
        options.setdefault("isolation_level", None)
        connection = sqlite3.connect(path, **options)
        assert isinstance(connection, Connection)
        connection.attach(self._runtime, self._root)
        connection.is_patient = connection.begins_patient = is_patient
        return connection

    def token(self) -> str:
        """Return 32 hex digits that nobody else has in this run."""
        self._tokens += 1
        return f"{self._root.index:016x}{self._tokens:016x}"

    def sync(self, name: str) -> None:
        """Be at a named point of the target's protocol."""
        if self._syncs and self._runtime.current is not None:
            self._runtime.point()
