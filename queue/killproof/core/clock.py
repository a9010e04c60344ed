"""Time, as an argument: the only place of the queue that reads a clock.

Two clocks are needed and never mixed. Due times are *wall clock*: they name a moment in the world.
Leases are *monotonic*: a step of the wall clock must neither end a living lease nor prolong a dead
one. CLOCK_MONOTONIC stands still while the machine sleeps, so that a suspend does not end every
lease.
"""

import os
import time
from collections.abc import Callable
from typing import Protocol

BOOT_ID = "/proc/sys/kernel/random/boot_id"
TIME_NAMESPACE = "/proc/self/timens_offsets"


class Clock(Protocol):
    """What the queue asks of time."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch, UTC."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never step; comparable under equal `ident()` only."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def ident(self) -> str:
        """Name the clock behind `monotonic_ns`: equal names mean comparable readings."""

    def rest(self, seconds: float, wait: Callable[[float], bool]) -> bool:
        """Wait by this function, which may be woken before; say whether it was."""


class SystemClock:
    """The clocks of this machine."""

    def __init__(self) -> None:
        self._ident = ""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch, UTC, rounded down."""
        return time.time_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """Return CLOCK_MONOTONIC in nanoseconds."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Sleep for real."""
        time.sleep(seconds)

    def rest(self, seconds: float, wait: Callable[[float], bool]) -> bool:
        """Sleep for real, and be woken."""
        return wait(seconds)

    def ident(self) -> str:
        """Return the boot and the time namespace; a random name where the kernel does not tell.

        A container in a time namespace shares the boot id, yet its clock is shifted: seen by a day.
        A name that nobody else has makes others fall back to watching the lease: slow, never wrong.
        """
        if not self._ident:
            try:
                boot = _text(BOOT_ID).strip()
            except OSError:
                boot = os.urandom(16).hex()
            try:
                offsets = "/".join(_text(TIME_NAMESPACE).split())
            except OSError:
                offsets = ""
            self._ident = f"{boot} {offsets}"
        return self._ident


class ManualClock:
    """A clock that moves only when told to, for tests and simulation; sleeping moves it."""

    def __init__(self, *, now_ms: int = 1_700_000_000_000, ident: str = "manual") -> None:
        self.wall_ms = now_ms
        self.elapsed_ns = 1_000_000_000
        self._ident = ident

    def now_ms(self) -> int:
        """Return the wall clock as set."""
        return self.wall_ms

    def monotonic_ns(self) -> int:
        """Return the elapsed time as set."""
        return self.elapsed_ns

    def sleep(self, seconds: float) -> None:
        """Move both clocks on, by at least a millisecond so that no waiting loop stands still."""
        self.advance(max(seconds, 0.001))

    def rest(self, seconds: float, wait: Callable[[float], bool]) -> bool:
        """Move both clocks on; whoever sleeps here is the only one, so nobody wakes it."""
        self.sleep(seconds)
        return False

    def ident(self) -> str:
        """Return the name given."""
        return self._ident

    def advance(self, seconds: float) -> None:
        """Move both clocks on."""
        self.wall_ms += round(seconds * 1_000)
        self.elapsed_ns += round(seconds * 1_000_000_000)

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock alone, as NTP or an administrator does; may be negative."""
        self.wall_ms += round(seconds * 1_000)


def _text(path: str | os.PathLike[str]) -> str:
    with open(path, encoding="utf-8") as file:  # pathlib would double what importing us costs.
        return file.read()
