"""The second article's script: four automations, one dispatcher, three slots.

    python article_tasks.py

Its four tasks with their payloads and priorities, and an urgent one that goes before all of them.
They run at the same time and wait for each other's resources: the scraper's site is a real HTTP
server on this machine, which fails once; the backup copies a live database as SQLite copies it, and
never beside a migration; the report and the stock are files.  Numbers are the article's: three
slots, three attempts; its retries have no delay, which is a storm, so these have a short one.
"""

import asyncio
import sqlite3
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from killproof import Queue
from killproof.articles import SLOTS
from killproof.dispatcher import Dispatcher
from killproof.limits import Limits
from killproof.worker import Context, Handlers

PRODUCTS = ("chá", "xícara", "bule")


def shop_of() -> type[BaseHTTPRequestHandler]:
    """A site of three products, which is down at the first look."""
    is_down = [True]

    class Shop(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if is_down else 200)
            self.end_headers()
            self.wfile.write(b"" if is_down else "\n".join(PRODUCTS).encode())
            is_down.clear()

        def log_message(self, *args: object) -> None:
            """Keep quiet."""

    return Shop


def backup_of(source: Path, folder: Path) -> Path:
    """Copy a database that may be in use; `cp` would miss what is in its log."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime())
    partial = folder / f".{source.stem}.partial"
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(partial)) as copy:
        live.backup(copy)
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    done = folder / f"{source.stem}_{stamp}.db"
    if done.exists():  # Of the same second.
        done = folder / f"{source.stem}_{stamp}_{time.monotonic_ns()}.db"
    partial.rename(done)
    return done


def handlers_for(folder: Path) -> Handlers:
    """The article's workers; databases and files are in this folder."""
    handlers = Handlers()

    def payload_of(context: Context) -> Mapping[str, str | int]:
        assert isinstance(context.payload, dict)
        return context.payload

    @handlers("scraping_produtos", timeout=60.0)
    async def scraping_produtos(context: Context) -> dict[str, object]:
        payload = payload_of(context)
        url, timeout = str(payload["url"]), float(payload.get("timeout", 30))

        def get() -> list[str]:
            try:
                with urllib.request.urlopen(url, timeout=timeout) as reply:
                    return str(reply.read(), "utf-8").splitlines()
            except urllib.error.HTTPError as error:
                with error:  # 4xx and 5xx: tried again, with the policy's delay.
                    raise

        products = await asyncio.to_thread(get)
        return {"products_scraped": len(products), "source": url}

    @handlers("sincronizar_estoque", timeout=60.0)
    async def sincronizar_estoque(context: Context) -> dict[str, object]:
        wanted = payload_of(context)["sku_list"]
        await asyncio.sleep(0.05)  # The network: the others go on meanwhile.
        return {"skus": len(PRODUCTS) if wanted == "todos" else 0}

    @handlers("backup_diario", timeout=600.0)
    def backup_diario(context: Context) -> dict[str, object]:  # Plain: it gets a thread.
        payload = payload_of(context)
        source = folder / f"{payload.get('db', 'main')}.db"
        done = backup_of(source, Path(str(payload.get("dest", "/backup/"))))
        return {"backup_file": str(done), "size_mb": round(done.stat().st_size / 1e6, 2)}

    @handlers("enviar_relatorio", timeout=60.0)
    async def enviar_relatorio(context: Context) -> dict[str, object]:
        email = str(payload_of(context)["email"])
        (folder / f"{email}.txt").write_text("relatório", encoding="utf-8")
        return {"sent_to": email}

    return handlers


def urgent_enqueue(queue: Queue, name: str, payload: dict[str, object]) -> int:
    """Put a task in before every other, and say so."""
    job_id = queue.enqueue(name, payload, priority=0)
    print(f"🚨 tarefa urgente {job_id}: {name}")
    return job_id


async def run(queue: Queue, handlers: Handlers, jobs: int) -> None:
    """Dispatch until so many tasks have succeeded; a real one runs until SIGTERM."""
    dispatcher = Dispatcher(queue, handlers, slots=SLOTS, poll=0.02)
    running = asyncio.create_task(dispatcher.run(signals=False))
    while (await asyncio.to_thread(queue.counts))["succeeded"] < jobs:
        await asyncio.sleep(0.02)
    dispatcher.stop()
    await running


def main(folder: Path) -> dict[str, object]:
    """Run the article's day; return each task's result, in the order in which they began."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), shop_of())
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with closing(sqlite3.connect(folder / "main.db")) as database:
        database.execute("CREATE TABLE produto (nome TEXT)")
        database.commit()
    url = f"http://127.0.0.1:{server.server_port}/"
    tasks: list[tuple[str, dict[str, object], int]] = [
        ("enviar_relatorio", {"email": "chefe@example.org"}, 5),
        ("backup_diario", {"db": "main", "dest": str(folder / "backup")}, 3),
        ("sincronizar_estoque", {"sku_list": "todos"}, 2),
        ("scraping_produtos", {"url": url, "timeout": 30}, 1),
    ]
    with Queue(folder / "task_queue.db") as queue:
        Limits(queue).set("banco main", kinds=["backup_diario", "migracao"], running=1)
        ids = [
            queue.enqueue(name, payload, priority=priority, max_attempts=3, retry="fixed:0.05")
            for name, payload, priority in tasks
        ]
        ids.append(urgent_enqueue(queue, "enviar_relatorio", {"email": "cliente@example.org"}))
        asyncio.run(run(queue, handlers_for(folder), len(ids)))
        done = [job for job_id in ids if (job := queue.get(job_id)) is not None]
    server.shutdown()
    server.server_close()
    done.sort(key=lambda job: (job.priority, job.id))
    for job in done:
        print(f"{job.kind}, attempt {job.attempt}: {job.result}")
    return {f"{job.priority} {job.kind}": job.result for job in done}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
