"""An alert robot: seventeen readings over the limit are one incident, and one message.

    python alert_robot.py

A real HTTP server on this machine stands in for the chat's API; its first answer is 503.  Each
incident is one job, because of its key; the message is one effect, with the same key for the other
side; and a message that nobody can have received is sent again, with a delay.
"""

import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from killproof import Queue
from killproof.effects import Rejected
from killproof.worker import Context, Handlers, Worker

LIMIT_CELSIUS = 70


def chat_of(messages: dict[str, str]) -> type[BaseHTTPRequestHandler]:
    """The other side: 503 at first, then it takes messages, and dedupes them by their key."""
    is_down = [True]

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if is_down:
                is_down.clear()
                self.send_response(503)
            else:
                messages.setdefault(self.headers["Idempotency-Key"], text)
                self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Keep quiet."""

    return Chat


def handlers_for(url: str) -> Handlers:
    """The handlers of this robot; the chat is at this address."""
    handlers = Handlers()

    @handlers("alert", timeout=20.0)
    def alert(context: Context) -> None:
        assert isinstance(context.payload, dict)
        text = "{host}: {celsius} °C".format(**context.payload)

        def post(key: str) -> None:
            request = urllib.request.Request(
                url, data=text.encode(), headers={"Idempotency-Key": key}
            )
            try:
                urllib.request.urlopen(request, timeout=10).close()
            except urllib.error.HTTPError as error:
                with error:  # It answered, and did not take it.
                    raise Rejected(f"HTTP {error.code}") from error

        # A time-out says nothing about the other side, which dedupes by the key: again, then.
        context.effect(context.effect_key, post, in_doubt="again")

    return handlers


def main(folder: Path) -> dict[str, str]:
    """Watch a machine get too hot; return the messages that were received."""
    messages: dict[str, str] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), chat_of(messages))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with Queue(folder / "queue.db") as queue:
        for minute in range(17):
            celsius = LIMIT_CELSIUS + minute
            queue.enqueue(
                "alert",
                {"host": "db-1", "celsius": celsius},
                priority=0,
                key="alert:db-1:2026-11-30",  # One for each machine and day.
                retry="fixed:0.05",
            )
        worker = Worker(queue, handlers_for(f"http://127.0.0.1:{server.server_port}/"), poll=0.02)

        def watch() -> None:
            while any(map(queue.counts().get, ("available", "retryable", "leased"))):
                time.sleep(0.02)
            worker.stop()

        threading.Thread(target=watch, daemon=True).start()
        worker.run()
        print(f"17 readings, {sum(queue.counts().values())} job, messages: {messages}")
    server.shutdown()
    server.server_close()
    return messages


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
