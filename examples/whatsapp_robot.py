"""A WhatsApp robot: every message gets one answer, and no faster than the provider allows.

    python whatsapp_robot.py

A local HTTP server stands in for the provider's API.  Providers deliver a message again when they
doubt that it arrived: its id is the job's key.  Answers are limited to a rate that all processes
share, however many messages come in at once.  A contact that has blocked us is a permanent failure:
a dead letter for a person, and no retries.
"""

import json
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from killproof import Queue
from killproof.limits import Limits
from killproof.worker import Context, Handlers, Permanent, Worker

BLOCKED = "+55 11 90000-0003"
INCOMING = [
    {"id": "wamid.1", "de": "+55 11 90000-0001", "texto": "Qual o horário?"},
    {"id": "wamid.2", "de": "+55 11 90000-0002", "texto": "Cadê meu pedido?"},
    {"id": "wamid.1", "de": "+55 11 90000-0001", "texto": "Qual o horário?"},
    {"id": "wamid.3", "de": BLOCKED, "texto": "PARE"},
    {"id": "wamid.4", "de": "+55 11 90000-0004", "texto": "Olá"},
]
ANSWERS = {
    "horário": "Atendemos das 9h às 18h.",
    "pedido": "Seu pedido saiu para entrega.",
}


def provider_of(sent: list[dict[str, str]]) -> type[BaseHTTPRequestHandler]:
    """The provider's API: it takes messages, but for contacts that have blocked us."""

    class Provider(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if message["para"] == BLOCKED:
                self.send_response(403)
            else:
                sent.append(message)
                self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Keep quiet."""

    return Provider


def handlers_for(url: str) -> Handlers:
    """The handlers of the robot; the provider is at this address."""
    handlers = Handlers()

    @handlers("responder", timeout=30.0)
    def responder(context: Context) -> None:
        message = context.payload
        assert isinstance(message, dict)
        text = next(
            (answer for word, answer in ANSWERS.items() if word in message["texto"]),
            "Olá! Em que posso ajudar?",
        )

        def send(key: str) -> None:
            body = json.dumps({"para": message["de"], "texto": text}).encode()
            request = urllib.request.Request(url, data=body, headers={"Idempotency-Key": key})
            try:
                urllib.request.urlopen(request, timeout=10).close()
            except urllib.error.HTTPError as error:
                with error:
                    raise Permanent(f"{message['de']} não aceita mensagens") from error

        context.effect(context.effect_key, send, in_doubt="held")

    return handlers


def main(folder: Path) -> list[str]:
    """Answer what came in; return to whom."""
    sent: list[dict[str, str]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), provider_of(sent))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with Queue(folder / "queue.db") as queue:
        Limits(queue).set("whatsapp", kinds=["responder"], rate=20.0, burst=1)
        for message in INCOMING:
            queue.enqueue("responder", message, key=message["id"])
        worker = Worker(queue, handlers_for(f"http://127.0.0.1:{server.server_port}/"), poll=0.02)

        def watch() -> None:
            while any(map(queue.counts().get, ("available", "leased"))):
                time.sleep(0.02)
            worker.stop()

        threading.Thread(target=watch, daemon=True).start()
        worker.run()
        print(f"respondidas: {len(sent)}; para uma pessoa ver: {queue.counts()['dead']}")
    server.shutdown()
    server.server_close()
    for message in sent:
        print(f"  {message['para']}: {message['texto']}")
    return [message["para"] for message in sent]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
