"""An importer: row 38 is broken, and rows 39 to 120 are not held hostage.

    python importer.py

Each row of a CSV file is a job.  The rows that are read and the jobs for them are one transaction,
with a table of the importer's own: a kill in the middle of the file imports nothing twice.  A row
and the success of its job are one transaction too, so each row is in the table exactly once.  The
broken row becomes a dead letter, with its error, and can be replayed when it is mended.
"""

import csv
import io
import sys
import tempfile
import threading
import time
from pathlib import Path

from killproof import Queue
from killproof.worker import Context, Handlers, Permanent, Worker

ROWS = 120
BROKEN = 38
FILE = "sku,price\n" + "".join(
    f"SKU-{number},{'gratis' if number == BROKEN else number * 10}\n"
    for number in range(1, ROWS + 1)
)

handlers = Handlers()


@handlers("import_row", timeout=30.0)
def import_row(context: Context) -> None:
    """Write one row; the file's error is not one that goes away by itself."""
    assert isinstance(context.payload, dict)
    sku, price = context.payload["sku"], context.payload["price"]
    if not price.isdecimal():
        raise Permanent(f"price {price!r} of {sku} is no number")
    with context.completing() as tx:
        tx.execute("INSERT INTO product (sku, price) VALUES (?, ?)", (sku, int(price)))


def read_file(queue: Queue, name: str, text: str) -> int:
    """Put a job in for each row, once for each file; return how many."""
    with queue.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS product (sku TEXT PRIMARY KEY, price INTEGER)")
        tx.execute("CREATE TABLE IF NOT EXISTS import_file (name TEXT PRIMARY KEY)")
        if not tx.execute("INSERT OR IGNORE INTO import_file VALUES (?)", (name,)).rowcount:
            return 0
        rows = list(csv.DictReader(io.StringIO(text)))
        for row in rows:
            queue.enqueue("import_row", row, tx=tx)
    return len(rows)


def main(folder: Path) -> tuple[int, int]:
    """Import a file twice; return how many rows are in the table, and how many are dead."""
    with Queue(folder / "queue.db") as queue:
        added = [read_file(queue, "prices.csv", FILE) for _ in range(2)]
        worker = Worker(queue, handlers, poll=0.02)

        def watch() -> None:
            while any(map(queue.counts().get, ("available", "retryable", "leased"))):
                time.sleep(0.02)
            worker.stop()

        threading.Thread(target=watch, daemon=True).start()
        worker.run()
        with queue.transaction() as tx:
            ((products,),) = tx.execute("SELECT count(*) FROM product").fetchall()
        dead = queue.counts()["dead"]
        broken = queue.get(BROKEN)
        assert broken is not None
        print(f"read {added[0]} rows, then {added[1]}; {products} products, {dead} dead letter:")
        print(f"job {broken.id}: {broken.error_message}")
    return products, dead


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as place:
        main(Path(place))
