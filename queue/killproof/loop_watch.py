"""Whether an event loop still answers, seen from another thread.

A coroutine that does not await stops all others, and nothing on the loop can tell of it.  So the
loop is asked for an answer from outside, and what it is inside of is read from its thread.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from traceback import format_stack
from typing import Final

from killproof.core.clock import Clock

#: A loop that has not answered for so long is blocked, and who blocks it is named.
BLOCKED_SECONDS: Final = 1.0


class LoopWatch:
    """Watches one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._asked_ns: int | None = None  # Since when the loop owes an answer.
        self._told = False
        self._moved_ns = clock.monotonic_ns()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch this loop, which the calling thread runs."""
        self._loop = loop
        self._thread = threading.get_ident()
        self._moved_ns = self._clock.monotonic_ns()

    @property
    def still_seconds(self) -> float:
        """How long ago the loop answered last."""
        return (self._clock.monotonic_ns() - self._moved_ns) / 1e9

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, from any thread; a loop that is over is asked nothing."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)

    def look(self) -> bool:
        """Ask the loop for an answer; True when it has owed one for too long, once each time."""
        if self._asked_ns is None:
            self._asked_ns = self._clock.monotonic_ns()
            self.call(self._answer)
        elif self.is_blocked(BLOCKED_SECONDS) and not self._told:
            self._told = True
            return True
        return False

    def _answer(self) -> None:
        self._asked_ns, self._told = None, False
        self._moved_ns = self._clock.monotonic_ns()

    def is_blocked(self, seconds: float) -> bool:
        """Whether the loop has owed an answer for so long."""
        asked_ns = self._asked_ns
        return asked_ns is not None and self._clock.monotonic_ns() - asked_ns >= seconds * 1e9

    def task(self) -> asyncio.Task[object] | None:
        """Return the task that the loop is inside of."""
        return None if self._loop is None else asyncio.current_task(self._loop)

    def stack(self) -> str:
        """Return where the thread of the loop is."""
        frame = sys._current_frames().get(self._thread)
        return "".join(format_stack(frame)) if frame is not None else ""
