"""An API integrator: receive an order, enrich it, call another system, store its answer.

    python api_integrator.py

The other system is a real HTTP server on this machine.  It breaks down once, and then it says 429
with a time to come back.  That answer is for everybody: `RetryLater(shared=True)` closes the
resource in the file, so that none of the other jobs, in whatever process, asks before then.  It is
counted how many calls came in meanwhile, and the answer is none.
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
from killproof.worker import Context, Handlers, RetryLater, Worker

PRICES = {"TEA-EARL-250": 890, "CUP-BLUE": 1290}
BUSY_SECONDS = 0.3


class Crm:
    """The other system: call 2 fails, call 4 is one too many, and it dedupes by the key."""

    def __init__(self) -> None:
        self.calls = 0
        self.calls_while_closed = 0
        self.closed_until = 0.0
        self.orders: dict[str, int] = {}

    def answer(self, key: str, total: int) -> int:
        """Take a call; return the status."""
        self.calls += 1
        if time.monotonic() < self.closed_until:
            self.calls_while_closed += 1
            return 429
        if self.calls == 2:
            return 500
        if self.calls == 4:
            self.closed_until = time.monotonic() + BUSY_SECONDS
            return 429
        self.orders.setdefault(key, total)
        return 200


def server_of(crm: Crm) -> ThreadingHTTPServer:
    """The other system as a server."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = crm.answer(self.headers["Idempotency-Key"], order["total"])
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", str(BUSY_SECONDS))
            self.end_headers()
            self.wfile.write(json.dumps({"crm_id": crm.calls}).encode())

        def log_message(self, *args: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def handlers_for(url: str) -> Handlers:
    """The handlers of this integration; the other system is at this address."""
    handlers = Handlers()

    @handlers("order_to_crm", timeout=30.0)
    def order_to_crm(context: Context) -> None:
        order = context.payload
        assert isinstance(order, dict)
        total = sum(PRICES[sku] for sku in order["skus"])  # Enriched with what we know.
        request = urllib.request.Request(
            url,
            data=json.dumps({**order, "total": total}).encode(),
            headers={"Idempotency-Key": context.effect_key},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 429:
                    raise RetryLater(float(error.headers["Retry-After"]), shared=True) from error
                raise  # Anything else is tried again by the policy of the job.
        with context.completing(answer) as tx:
            tx.execute(
                "INSERT INTO crm_order VALUES (?, ?, ?)", (order["id"], total, answer["crm_id"])
            )

    return handlers


def main(folder: Path) -> tuple[int, int]:
    """Send ten orders; return how many the other system has, and its calls while closed."""
    crm = Crm()
    server = server_of(crm)
    with Queue(folder / "queue.db") as queue:
        Limits(queue).set("crm", kinds=["order_to_crm"], running=2, rate=200.0, burst=10)
        with queue.transaction() as tx:
            tx.execute("CREATE TABLE crm_order (id TEXT PRIMARY KEY, total INT, crm_id INT)")
        for number in range(10):
            order = {"id": f"A-{number}", "skus": ["CUP-BLUE", "TEA-EARL-250"]}
            queue.enqueue("order_to_crm", order, key=f"order:{number}", retry="fixed:0.05")
        worker = Worker(queue, handlers_for(f"http://127.0.0.1:{server.server_port}/"), poll=0.02)

        def watch() -> None:
            while queue.counts()["succeeded"] < 10:
                time.sleep(0.02)
            worker.stop()

        threading.Thread(target=watch, daemon=True).start()
        worker.run()
        with queue.transaction() as tx:
            ((stored,),) = tx.execute("SELECT count(*) FROM crm_order").fetchall()
    server.shutdown()
    server.server_close()
    assert stored == len(crm.orders)
    print(f"{stored} orders stored, {crm.calls} calls, {crm.calls_while_closed} while closed")
    return stored, crm.calls_while_closed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
