"""A webhook receiver: it stores first and answers then, and the same event twice is one job.

    python webhook_receiver.py

The server is real, on this machine, and so are the senders.  Its answers are its promise: 202 when
the event is on the disk, 400 for what can never be a job, and 503 with Retry-After when the file is
busy, so that the sender comes back.  It answers before any work is done; a worker does that later,
also when this server is down.
"""

import json
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from killproof import DatabaseBusy, Queue

BYTES_MAX = 1 << 20


def receiver_of(queue: Queue) -> type[BaseHTTPRequestHandler]:
    """The request handler of this queue; each of its threads has a connection of its own."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, answer = self.answer()
            body = json.dumps(answer).encode()
            self.send_response(status)
            if status == 503:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def answer(self) -> tuple[int, dict[str, object]]:
            size = int(self.headers.get("Content-Length", 0))
            if size > BYTES_MAX:
                return 413, {"error": f"{size} bytes are over {BYTES_MAX}"}
            try:
                event = json.loads(self.rfile.read(size))
                # A lone surrogate, a NaN, a missing id: told to the sender, not to a worker.
                job_id = queue.enqueue("webhook", event, key=event["event_id"])
            except (ValueError, KeyError, TypeError) as error:
                return 400, {"error": f"{type(error).__name__}: {error}"}
            except DatabaseBusy as error:
                return 503, {"error": str(error)}
            return 202, {"job": job_id}

        def log_message(self, *args: object) -> None:
            """Keep quiet."""

    return Receiver


def post(url: str, body: bytes) -> tuple[int, dict[str, object]]:
    """Send an event; return the status and the answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def main(folder: Path) -> list[int]:
    """Send an event three times, then what is none; return the statuses."""
    with Queue(folder / "queue.db", busy_limit=5.0) as queue:
        server = ThreadingHTTPServer(("127.0.0.1", 0), receiver_of(queue))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        event = b'{"event_id": "evt_1", "type": "payment.succeeded", "name": "Jo\\u00e3o"}'
        bodies = [event, event, event, b"{", b'{"event_id": "evt_2", "text": "\\ud800"}', b"[1]"]
        answers = [post(url, body) for body in bodies]
        for status, answer in answers:
            print(status, answer)
        print(f"jobs: {sum(queue.counts().values())}")
        server.shutdown()
        server.server_close()
    return [status for status, _ in answers]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
