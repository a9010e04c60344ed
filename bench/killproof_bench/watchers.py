"""Many clients that watch a page: `python -m killproof_bench.watchers PORT NUMBER`.

One process without a database: it opens streams of events, says it is ready when each has had its
first event, counts what comes until its standard input ends, and prints one line of JSON. Browsers
would also draw; what is measured is the server's side.
"""

import dataclasses
import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass

CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What all clients together saw."""

    events: int
    fewest: int  #: Events of the client that had the fewest.
    size: int  #: Bytes.
    seconds: float


@dataclass(slots=True)
class Stream:
    """One client."""

    rest: bytes = b""
    events: int = 0
    size: int = 0  #: Bytes.

    def take(self, part: bytes) -> None:
        """Count the events whose end has come."""
        self.size += len(part)
        text = self.rest + part
        self.events += text.count(b"event: live\n")
        self.rest = text[-len(b"event: live\n") + 1 :]


def main(port: int, number: int) -> None:
    """Watch until standard input ends."""
    with selectors.DefaultSelector() as waiting:
        streams = [_open(waiting, port) for _ in range(number)]
        deadline = time.monotonic() + CONNECT_SECONDS
        while not all(stream.events for stream in streams):
            if time.monotonic() > deadline:
                raise SystemExit("not every client has had an event")
            _read(waiting)
        print("ready", flush=True)
        for stream in streams:
            stream.events = stream.size = 0
        begin = time.monotonic()
        waiting.register(sys.stdin, selectors.EVENT_READ, None)
        while _read(waiting):
            pass
        spent = time.monotonic() - begin
    watched = Watched(
        events=sum(stream.events for stream in streams),
        fewest=min(stream.events for stream in streams),
        size=sum(stream.size for stream in streams),
        seconds=spent,
    )
    print(json.dumps(dataclasses.asdict(watched)))


def _open(waiting: selectors.BaseSelector, port: int) -> Stream:
    connection = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_SECONDS)
    connection.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    connection.setblocking(False)
    stream = Stream()
    waiting.register(connection, selectors.EVENT_READ, stream)
    return stream


def _read(waiting: selectors.BaseSelector) -> bool:
    """Take what has come; False when standard input has ended."""
    for key, _ in waiting.select(1.0):
        if key.data is None:
            return False
        assert isinstance(key.fileobj, socket.socket)
        part = key.fileobj.recv(1 << 16)
        if not part:
            raise SystemExit("the server has closed a stream")
        key.data.take(part)
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
