"""Broken queue: the dispatcher of the second article: select the next task, then mark it.

Repaired where it does not run as published.  What it acknowledges is durable, and a task runs with
the result that its row tells; but two dispatchers find the same task, and one that was killed
leaves its tasks 'running' for ever, which is the very story that the article begins with.
"""

import json
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.article_adapter import ArticleTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue
from killproof_chaos.workload import CLUMP, KINDS
from killproof_evidence.contract import Contract
from killproof_evidence.target import AuditMapping

FAULT: Final = Fault(
    name="article-dispatcher",
    wrong="the next task is selected in one statement and marked in another, whatever has happened "
    "to it in between; and nobody looks after one whose dispatcher has died",
    promise="P4",
    kind="select-then-update: a claim without a condition, in a queue meant for colliding scripts",
    right="UPDATE ... WHERE id = (SELECT ...) AND status = 'pending', in one transaction",
    engine="sim",
    control="killproof",
    options=("--scenario", "claim", "--keep-going"),
    articles=("F8", "F13", "F25", "F35", "F50"),
    unreached=frozenset(f"extend.{m}" for m in ("begin", "locked", "written", "committed")),
    also=frozenset({"P7"}),
)
SCHEMA: Final = """
PRAGMA journal_mode = wal;
CREATE TABLE IF NOT EXISTS tasks (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT NOT NULL,
    priority    INTEGER DEFAULT 5,
    payload     TEXT DEFAULT '{}',
    status      TEXT DEFAULT 'pending',
    retries     INTEGER DEFAULT 0,
    max_retries INTEGER DEFAULT 3,
    created_at  TEXT DEFAULT CURRENT_TIMESTAMP,
    started_at  TEXT,
    finished_at TEXT,
    error       TEXT,
    result      TEXT
);
CREATE INDEX IF NOT EXISTS idx_status_priority ON tasks (status, priority);
"""
CONTRACT: Final = Contract(
    promises={"P1": "power"}
    | {f"P{number}": True for number in (2, 3, 4, 7, 8, 11, 14, 16, 17, 22)},
    # A lease has no end here: what is running is running.
    parameters={
        "lease_ms": 60_000,
        "max_attempts": 3,
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
    table="tasks",
    id="id",
    state="status",
    states={
        "pending": "available",
        "running": "leased",
        "done": "succeeded",
        "failed": "dead",
    },
    priority="priority",
    kind="name",
    payload="payload",
)
ROWS: Final = """
    SELECT id, name AS kind, status AS state, payload, error, priority, max_retries AS max_attempts
      FROM tasks ORDER BY id"""


class ArticleDispatcher(MinimalQueue):
    """Find a task, then start it."""

    SCHEMA = SCHEMA
    PUT = """INSERT INTO tasks (name, payload, priority, max_retries) VALUES (?, ?, ?, ?)
             RETURNING id"""
    NEXT = """SELECT id, name, payload, retries FROM tasks WHERE status = 'pending'
               ORDER BY priority ASC, created_at ASC LIMIT 1"""
    START = "UPDATE tasks SET status = 'running', started_at = CURRENT_TIMESTAMP WHERE id = ?"
    DONE = """UPDATE tasks SET status = 'done', finished_at = CURRENT_TIMESTAMP, result = '{}'
               WHERE id = ?"""
    RETRY = """UPDATE tasks
                  SET status = iif(? < max_retries, 'pending', 'failed'), retries = ?, error = ?
                WHERE id = ?"""

    def enqueue(
        self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
        key: str | None = None, max_attempts: int = 5,
    ) -> int:  # fmt: skip
        """Store a task; the article has neither delays nor keys."""
        with self.writing("enqueue") as db:
            task = (kind, json.dumps(payload, ensure_ascii=False), priority, max_attempts)
            return int(db.execute(self.PUT, task).fetchone()[0])

    def claim(self) -> Lease | None:
        """Select the most urgent task, then mark it as running."""
        row = self.db.execute(self.NEXT).fetchone()
        if row is None:
            return None
        with self.writing("claim") as db:
            db.execute(self.START, row[:1])
        return Lease(row[0], row[1], json.loads(row[2]), row[3] + 1, None)

    def extend(self, lease: Lease) -> None:
        """Have nothing to extend."""

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Mark a task as done."""
        with self.writing("ack") as db:
            for statement in also:
                db.execute(*statement)
            db.execute(self.DONE, (lease.id,))

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Put a task back at once, or give it up after its retries."""
        with self.writing("nack") as db:
            db.execute(self.RETRY, (lease.attempt, lease.attempt, error, lease.id))


#: The one number of the article, which each dispatcher keeps for itself.
LIMITS: Final = {"all": {"kinds": [*KINDS, CLUMP], "running": 3}}

target: Final = ArticleTarget(
    ArticleDispatcher,
    FAULT,
    contract=CONTRACT,
    audit=AUDIT,
    rows=ROWS,
    capabilities={"limits"},
    mix_parameters={"limits": {"limits": LIMITS}},
)
