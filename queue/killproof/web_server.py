"""The process around the page: how it stops, and how long a client may keep it waiting.

uvicorn bounds neither the time in which a request must come nor that in which its answer must be
taken, and beyond `CONNECTIONS_MAX` it answers everybody "503": so a few hundred connections that
say nothing would shut out everybody else for as long as they please.  Here a connection that is
late is cut off.

This module and `web` are the ones that need the extra; the commands are in `cli_serve`.
"""

import asyncio
import signal
from types import FrameType
from typing import Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from killproof.web import Guard

#: What streams and answers have after SIGTERM before they are cut off.
STOP_SECONDS: Final = 3
#: Connections at once: the watchers and some answers beside them.
CONNECTIONS_MAX: Final = 300
#: Connections beyond it that are told so; more are closed without a word, because a process that
#: has no descriptor left (1,024 by default) can not open the queue either.
CONNECTIONS_OVER_MAX: Final = 100
#: In which a whole request must have come: one is at most some 80 kilobytes.
REQUEST_SECONDS: Final = 10.0
#: In which a client must take some of what waits for it: what one falls behind is kept in memory.
TAKING_SECONDS: Final = 30.0


class Server(uvicorn.Server):
    """A server on a site that lets its streams end when it is told to stop."""

    def __init__(self, site: Guard) -> None:
        """Be ready to stop: from here on a signal is kept in mind, and the exit code is 0."""
        self._feed = site.site.feed
        super().__init__(
            uvicorn.Config(
                site,
                http=Connection,
                loop="asyncio",
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="error",  # What a client does wrong is told to it, and fills no journal.
                access_log=False,  # A token in an address would be in it; and nobody reads it.
                server_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            # uvicorn puts the same handler there while it serves, and raises the signal once more
            # when it has stopped.
            signal.signal(number, self.handle_exit)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Close the feed first: a stream that has no end would hold up the stop."""
        self._feed.close()
        super().handle_exit(sig, frame)


class Connection(H11Protocol):
    """A connection whose other side must not keep it waiting."""

    _request: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX + CONNECTIONS_OVER_MAX:
            transport.abort()
            return
        self._request = self.loop.call_later(REQUEST_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Stop waiting when a request is here whole; wait for the next one once it begins."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            _cancel(self._request)
            self._request = None
        elif self._request is None:
            self._request = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """Wait for the client to take some of what is there for it."""
        super().pause_writing()
        self._taking = self.loop.call_later(TAKING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: it took some."""
        super().resume_writing()
        _cancel(self._taking)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        _cancel(self._request)
        _cancel(self._taking)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
