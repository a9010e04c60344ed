"""A scraping pipeline: fetch, parse, store; each stage is a kind of job with limits of its own.

    python scraping_pipeline.py

A real local site has six pages of products, each with a link to the next.  A stage puts in the job
of the next one in the transaction that ends it, so that a page is never fetched and forgotten, nor
parsed twice.  Two fetches at a time is all that the site has to bear, whoever starts more workers.
"""

import re
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from killproof import Queue
from killproof.limits import Limits
from killproof.worker import Context, Handlers, Worker

PAGES = 6


class Shop(BaseHTTPRequestHandler):
    """A site with pages of three products."""

    def do_GET(self) -> None:
        page = int(self.path.rpartition("=")[2])
        items = "".join(f"<li>product {page}-{item}</li>" for item in range(3))
        link = f'<a href="/products?page={page + 1}">next</a>' if page < PAGES else ""
        body = f"<ul>{items}</ul>{link}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


def handlers_for(queue: Queue, site: str, folder: Path) -> Handlers:
    """The three stages; pages are kept in the folder, and jobs carry their names."""
    handlers = Handlers()

    @handlers("fetch", timeout=30.0)
    def fetch(context: Context) -> None:
        assert isinstance(context.payload, dict)
        path = context.payload["path"]
        with urllib.request.urlopen(site + path, timeout=10) as reply:
            html = reply.read().decode()
        file = folder / f"{path.rpartition('=')[2]}.html"
        file.write_text(html, encoding="utf-8")
        with context.completing() as tx:
            queue.enqueue("parse", {"file": file.name}, key=f"parse:{path}", tx=tx)
            if found := re.search(r'href="([^"]+)"', html):
                queue.enqueue("fetch", {"path": found[1]}, key=f"fetch:{found[1]}", tx=tx)

    @handlers("parse", timeout=30.0)
    def parse(context: Context) -> None:
        assert isinstance(context.payload, dict)
        html = (folder / context.payload["file"]).read_text(encoding="utf-8")
        products = re.findall(r"<li>(.*?)</li>", html)
        with context.completing() as tx:
            queue.enqueue("store", {"products": products}, tx=tx)

    @handlers("store", timeout=30.0)
    def store(context: Context) -> None:
        assert isinstance(context.payload, dict)
        with context.completing() as tx:
            for product in context.payload["products"]:
                tx.execute("INSERT INTO product (name) VALUES (?)", (product,))

    return handlers


def main(folder: Path) -> int:
    """Scrape the site from its first page; return how many products are stored."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with Queue(folder / "queue.db") as queue:
        Limits(queue).set("shop", kinds=["fetch"], running=2)
        with queue.transaction() as tx:
            tx.execute("CREATE TABLE product (name TEXT PRIMARY KEY)")
        queue.enqueue("fetch", {"path": "/products?page=1"})
        site = f"http://127.0.0.1:{server.server_port}"
        worker = Worker(queue, handlers_for(queue, site, folder), poll=0.02)

        def watch() -> None:
            while queue.counts()["succeeded"] < 3 * PAGES:
                time.sleep(0.02)
            worker.stop()

        threading.Thread(target=watch, daemon=True).start()
        worker.run()
        with queue.transaction() as tx:
            ((products,),) = tx.execute("SELECT count(*) FROM product").fetchall()
    server.shutdown()
    server.server_close()
    print(f"{PAGES} pages, {products} products")
    return int(products)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
