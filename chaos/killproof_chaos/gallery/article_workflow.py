"""Broken queue: the workflows of the third article: orders, their tasks, and deferred transactions.

The last task of an order and the order itself end in one transaction, which is right.  But the
claim reads before it may write, and is refused at once; a task whose worker has died is in progress
for ever; and the order in which tasks run is that of their rows, whatever became of the first.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Any, Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.article_adapter import ArticleTarget
from killproof_chaos.targets.minimal_adapter import MinimalClient
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue
from killproof_evidence.contract import Contract
from killproof_evidence.target import AuditMapping, Definite, RunMapping

FAULT: Final = Fault(
    name="article-workflow",
    wrong="BEGIN, SELECT, UPDATE: SQLite has no row to lock for the article's FOR UPDATE, and "
    "gives the write lock to nobody whose snapshot is old, however long he would wait",
    promise="P16",
    kind="SQLITE_BUSY_SNAPSHOT: isolation taken for a lock",
    right="BEGIN IMMEDIATE, a reaper, and a step that is blocked until what it needs has succeeded",
    engine="sim",
    control="killproof",
    options=("--scenario", "claim"),
    articles=("F9", "F26", "F63", "F64", "F67"),
    unreached=frozenset(f"extend.{m}" for m in ("begin", "locked", "written", "committed")),
)
SCHEMA: Final = """
PRAGMA journal_mode = wal;
CREATE TABLE IF NOT EXISTS orders (
    order_id    TEXT PRIMARY KEY,
    customer_id TEXT NOT NULL,
    order_date  TEXT DEFAULT CURRENT_TIMESTAMP,
    status      TEXT NOT NULL DEFAULT 'PENDING',
    created_at  TEXT DEFAULT CURRENT_TIMESTAMP,
    updated_at  TEXT DEFAULT CURRENT_TIMESTAMP
);
CREATE TABLE IF NOT EXISTS order_tasks (
    task_id    INTEGER PRIMARY KEY AUTOINCREMENT,
    order_id   TEXT NOT NULL REFERENCES orders (order_id),
    task_name  TEXT NOT NULL,
    status     TEXT NOT NULL DEFAULT 'PENDING',
    retries    INTEGER DEFAULT 0,
    created_at TEXT DEFAULT CURRENT_TIMESTAMP,
    updated_at TEXT DEFAULT CURRENT_TIMESTAMP
);
CREATE INDEX IF NOT EXISTS idx_order_tasks_status ON order_tasks (status);
CREATE INDEX IF NOT EXISTS idx_order_tasks_order_id ON order_tasks (order_id);
CREATE TRIGGER IF NOT EXISTS orders_updated AFTER UPDATE ON orders BEGIN
    UPDATE orders SET updated_at = CURRENT_TIMESTAMP WHERE order_id = NEW.order_id;
END;
CREATE TRIGGER IF NOT EXISTS order_tasks_updated AFTER UPDATE ON order_tasks BEGIN
    UPDATE order_tasks SET updated_at = CURRENT_TIMESTAMP WHERE task_id = NEW.task_id;
END;
"""
CONTRACT: Final = Contract(
    promises={"P1": "power"} | {f"P{number}": True for number in (2, 3, 4, 7, 14, 16, 17, 23)},
    parameters={
        "lease_ms": 60_000,
        "max_attempts": 4,
        "retry": "immediate",
        "busy_ms": 5_000,
        "drain_ms": 5_000,
    },
    edges={
        "start": ("available",),
        "available": ("leased",),
        "leased": ("succeeded", "available", "dead"),
    },
)
AUDIT: Final = AuditMapping(
    table="order_tasks",
    id="task_id",
    state="status",
    states={
        "PENDING": "available",
        "IN_PROGRESS": "leased",
        "COMPLETED": "succeeded",
        "FAILED": "dead",
    },
    payload="task_name",
)
RUNS: Final = RunMapping(
    table="orders",
    id="order_id",
    state="status",
    name="order_id",
    states={"PENDING": "running", "PROCESSED": "succeeded"},
)
ROWS: Final = """
    SELECT task_id AS id, 'step' AS kind, status AS state, task_name AS payload
      FROM order_tasks ORDER BY task_id"""


class ArticleWorkflow(MinimalQueue):
    """Take the oldest task; when an order has none left, it is processed."""

    SCHEMA = SCHEMA
    ORDER = "INSERT INTO orders (order_id, customer_id) VALUES (?, 'harness')"
    TASK = "INSERT INTO order_tasks (order_id, task_name) VALUES (?, ?) RETURNING task_id"
    NEXT = """SELECT task_id, task_name, retries FROM order_tasks WHERE status = 'PENDING'
               ORDER BY created_at LIMIT 1"""
    TAKE = "UPDATE order_tasks SET status = 'IN_PROGRESS' WHERE task_id = ?"
    DONE = "UPDATE order_tasks SET status = 'COMPLETED' WHERE task_id = ?"
    LAST = """UPDATE orders SET status = 'PROCESSED'
               WHERE order_id = (SELECT order_id FROM order_tasks WHERE task_id = ?)
                 AND NOT EXISTS (SELECT 1 FROM order_tasks AS other
                                  WHERE other.order_id = orders.order_id
                                    AND other.status <> 'COMPLETED')"""
    FAILED = """UPDATE order_tasks
                   SET status = iif(retries < 3, 'PENDING', 'FAILED'), retries = retries + 1
                 WHERE task_id = ?"""

    @contextmanager
    def writing(self, operation: str) -> Iterator[Connection]:
        """Run a block as one transaction, as BEGIN has it where nothing is said."""
        self.sync(f"{operation}.begin")
        self.db.execute("BEGIN")
        try:
            yield self.db
            self.db.execute("COMMIT")
        finally:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        self.sync(f"{operation}.committed")

    def start(self, order: str, tasks: Sequence[object]) -> list[int]:
        """Store an order with its tasks; the article keeps no data of a task but its name."""
        with self.writing("enqueue") as db:
            db.execute(self.ORDER, (order,))
            texts = [json.dumps(task, ensure_ascii=False) for task in tasks]
            return [int(db.execute(self.TASK, (order, text)).fetchone()[0]) for text in texts]

    def enqueue(
        self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
        key: str | None = None, max_attempts: int = 5,
    ) -> int:  # fmt: skip
        """Store an order of one task."""
        assert isinstance(payload, dict)
        return self.start(str(payload["id"]), [payload])[0]

    def claim(self) -> Lease | None:
        """Find the oldest task and put it in progress; the work comes after the commit."""
        with self.writing("claim") as db:
            row = db.execute(self.NEXT).fetchone()
            if row is not None:
                db.execute(self.TAKE, row[:1])
        return row and Lease(row[0], "step", json.loads(row[1]), row[2] + 1, None)

    def extend(self, lease: Lease) -> None:
        """Have nothing to extend."""

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Complete a task, and with the last one its order."""
        with self.writing("ack") as db:
            for statement in also:
                db.execute(*statement)
            db.execute(self.DONE, (lease.id,))
            db.execute(self.LAST, (lease.id,))

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Count a retry, or give the task up; of its order nothing is said."""
        with self.writing("nack") as db:
            db.execute(self.FAILED, (lease.id,))


class OrderClient(MinimalClient):
    """A producer that starts whole orders."""

    def enqueue(self, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Refuse: there is no task without its order."""
        raise Definite(f"{payload['id']}: start an order with all its tasks")

    def start(self, run: str, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Start an order; what a step needs the article leaves to the order of the rows."""
        queue = self._queue
        assert isinstance(queue, ArticleWorkflow)
        ids = queue.start(run, [step["payload"] for step in steps])
        names = [str(step["id"]) for step in steps]
        return {"run": run, "jobs": dict(zip(names, ids, strict=True))}


target: Final = ArticleTarget(
    ArticleWorkflow,
    FAULT,
    contract=CONTRACT,
    audit=AUDIT,
    rows=ROWS,
    capabilities={"workflow"},
    runs=RUNS,
    client=OrderClient,
)
