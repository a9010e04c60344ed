"""One look at the queue for everybody who watches.

However many pages are open, one task asks SQLite whether anything was committed (`data_version`,
microseconds) and reads only when it was; what it read is encoded once and given to all.  It is
not busy reading for more than a tenth of the time: a read that takes long is followed by a pause
that is ten times as long.  With nobody there it does not look at all, and who comes first is shown
the queue as it is then.

A watcher holds no queue of news: it is woken, and takes the latest.  One that is slow to read skips
what came between, and holds up nobody.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from killproof.core.errors import KillproofError
from killproof.web_reading import Reader

#: Between two looks at the version, in seconds.
LOOK_SECONDS: Final = 0.5
#: What changes without a commit (a worker that was killed, an age) is read again after so long.
REFRESH_SECONDS: Final = 10.0
#: Curves, kinds and workers are read again at most so often.
HISTORY_SECONDS: Final = 5.0
#: A pause is at least so many times as long as the read before it, up to so many seconds.
REST_FACTOR: Final = 10.0
REST_SECONDS_MAX: Final = 10.0
#: Between two signs of life on a stream: proxies cut silent ones after 30 to 60 seconds.
ALIVE_SECONDS: Final = 15.0
#: Streams at once; each holds a descriptor.
WATCHERS_MAX: Final = 200

Result = TypeVar("Result")

logger = logging.getLogger("killproof")


class Feed:
    """The latest view of the queue, and the task that keeps it so."""

    def __init__(self, reader: Reader, thread: ThreadPoolExecutor) -> None:
        """Take over a reader and the one thread that may use it."""
        self._reader = reader
        self._thread = thread
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()  # Somebody came when nobody was there, or it closes.
        self._closing = asyncio.Event()
        self._event = b""
        self._number = 0
        self._history: dict[str, object] = {}
        self._trouble = ""
        self.watchers = 0
        #: So far: looks at the version, and reads of the queue.  A test counts them.
        self.looks = self.reads = 0
        self.is_closed = False

    async def call(self, work: Callable[[], Result]) -> Result:
        """Run a read on the reader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """End all streams after what they are sending; may be called again."""
        self.is_closed = True
        for event in (self._arrived, self._closing, self._changed):
            event.set()

    async def events(self, is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield server-sent events until the feed closes or the watcher is allowed no more."""
        # What was told when nobody was there to see it is not news.
        seen = 0 if self.watchers else self._number
        if not self.watchers:
            self._arrived.set()
        self.watchers += 1
        try:
            yield b"retry: 2000\n\n"
            while not self.is_closed and is_allowed():
                if self._number > seen:
                    seen = self._number
                    yield self._event
                    continue
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    yield b": alive\n\n"
            if self.is_closed:
                yield b"event: bye\ndata: {}\n\n"
        finally:
            self.watchers -= 1

    async def run(self) -> None:
        """Look and tell until the feed closes."""
        loop = asyncio.get_running_loop()
        version: object = None
        read_at = history_at = -REFRESH_SECONDS
        while not self.is_closed:
            if not self.watchers:
                await self._arrived.wait()
            if self._arrived.is_set() and not self.is_closed:
                self._arrived.clear()
                version, self._trouble = None, ""  # Who comes first is told how it is now.
            begun = loop.time()
            try:
                latest = await self.call(self._reader.version)
                self.looks += 1
                if latest != version or begun - read_at >= REFRESH_SECONDS:
                    if begun - history_at >= HISTORY_SECONDS:
                        self._history = await self.call(self._reader.history)
                        history_at = loop.time()
                    live = await self.call(self._reader.live)
                    self.reads += 1
                    self._tell({"trouble": None} | self._history | live)
                    version, read_at = latest, begun
                elif history_at < read_at and begun - history_at >= HISTORY_SECONDS:
                    version = None  # The last change is not in the curves yet.
            except KillproofError as error:
                version = None
                self._tell_trouble(str(error))
            except Exception as error:  # Else the page would stand still and look well.
                version = None
                logger.exception("the page can not be read")
                self._tell_trouble(f"internal error: {type(error).__name__}: {error}")
            spent = loop.time() - begun
            await _wait(self._closing, LOOK_SECONDS)
            await _wait(self._arrived, min(REST_FACTOR * spent, REST_SECONDS_MAX) - LOOK_SECONDS)

    def _tell_trouble(self, text: str) -> None:
        """Say once what is wrong; the numbers on the page stay as they were last seen."""
        if text != self._trouble:
            self._tell({"trouble": text})
            self._trouble = text

    def _tell(self, view: dict[str, object]) -> None:
        self._trouble = ""
        self._number += 1
        data = json.dumps(view, separators=(",", ":"))  # Escaped: no line break can end the event.
        self._event = f"id: {self._number}\nevent: live\ndata: {data}\n\n".encode()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or so long."""
    if seconds > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
