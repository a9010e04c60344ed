"""Broken queue: the automation queue of the first article, with the worker's loop as published.

Its claim is right: BEGIN IMMEDIATE lets no two workers have one job, and SQLite's default keeps
what was acknowledged.  But nothing in the loop takes back what a dead worker held; where that is
run beside it, as the article advises, nobody counts the crashes, and whoever lost a job in this
way says all the same how it ended.
"""

import json
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.article_adapter import ArticleTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue
from killproof_evidence.contract import Contract
from killproof_evidence.target import AuditMapping

FAULT: Final = Fault(
    name="article-automation",
    wrong="the loop claims, handles and marks, and never calls the function that requeues what a "
    "killed worker has left in 'processing'",
    promise="P17",
    kind="the orphaned job, in a queue whose author knew of it: a reaper that nobody runs",
    right="the reaper is a part of the claim, so whoever works also rescues",
    engine="sim",
    control="killproof",
    options=("--scenario", "claim", "--crashes", "1"),
    articles=("F20", "F21", "F24", "F47", "F54"),
    unreached=frozenset(f"extend.{m}" for m in ("begin", "locked", "written", "committed")),
)
SCHEMA: Final = """
PRAGMA journal_mode = wal;
CREATE TABLE IF NOT EXISTS jobs (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    type         TEXT    NOT NULL,
    payload      TEXT    NOT NULL,
    status       TEXT    NOT NULL DEFAULT 'pending',
    attempts     INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL DEFAULT 5,
    run_after    TEXT    NOT NULL DEFAULT (datetime('now')),
    locked_at    TEXT,
    last_error   TEXT,
    created_at   TEXT    NOT NULL DEFAULT (datetime('now')),
    updated_at   TEXT    NOT NULL DEFAULT (datetime('now'))
);
CREATE INDEX IF NOT EXISTS idx_jobs_pick ON jobs (status, run_after, id);
CREATE INDEX IF NOT EXISTS idx_jobs_locked ON jobs (status, locked_at);
"""
CONTRACT: Final = Contract(
    # Not P6: the article says that a repeated effect is the caller's to prevent.
    promises={"P1": "power"}
    | {f"P{number}": True for number in (2, 3, 4, 7, 8, 9, 10, 14, 16, 17, 20)},
    parameters={
        "lease_ms": 15 * 60_000,
        "max_attempts": 5,
        "retry": "article",
        "crash_later": "immediate",
        "busy_ms": 30_000,
        "drain_ms": 5_000,
    },
    edges={
        "start": ("available",),
        "available": ("leased",),
        "leased": ("succeeded", "available", "dead"),
    },
)
AUDIT: Final = AuditMapping(
    table="jobs",
    id="id",
    state="status",
    states={
        "pending": "available",
        "processing": "leased",
        "done": "succeeded",
        "failed": "dead",
    },
    due_ms="CAST(strftime('%s', NEW.run_after) AS INTEGER) * 1000",
    kind="type",
    payload="payload",
)
ROWS: Final = """
    SELECT id, type AS kind, status AS state, payload, last_error AS error, max_attempts,
           CAST(strftime('%s', run_after) AS INTEGER) * 1000 AS due_ms
      FROM jobs ORDER BY id"""


class ArticleAutomation(MinimalQueue):
    """Pick, handle, mark."""

    SCHEMA = SCHEMA
    PUT = """INSERT INTO jobs (type, payload, max_attempts, run_after)
             VALUES (?, ?, ?, datetime('now', ?)) RETURNING id"""
    PICK = """SELECT id, type, payload, attempts FROM jobs
               WHERE status = 'pending' AND run_after <= datetime('now') ORDER BY id LIMIT 1"""
    TAKE = """UPDATE jobs SET status = 'processing', locked_at = datetime('now'),
                              updated_at = datetime('now') WHERE id = ?"""
    DONE = "UPDATE jobs SET status = 'done', updated_at = datetime('now') WHERE id = ?"
    FAILED = """UPDATE jobs
                   SET status = iif(? >= max_attempts, 'failed', 'pending'), attempts = ?,
                       last_error = ?, locked_at = NULL, updated_at = datetime('now'),
                       run_after = datetime('now', '+' || (min(3600, ?) + abs(random()) % 21)
                                                       || ' seconds')
                 WHERE id = ?"""
    REQUEUE = """UPDATE jobs
                    SET status = 'pending', locked_at = NULL, run_after = datetime('now'),
                        last_error = 'requeued after stale processing lock',
                        updated_at = datetime('now')
                  WHERE status = 'processing' AND locked_at < datetime('now', '-15 minutes')"""

    def enqueue(
        self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
        key: str | None = None, max_attempts: int = 5,
    ) -> int:  # fmt: skip
        """Store a job; of priorities and keys the article says nothing."""
        text = json.dumps(payload, ensure_ascii=False)
        with self.writing("enqueue") as db:
            job = (kind, text, max_attempts, f"+{delay_ms / 1_000} seconds")
            return int(db.execute(self.PUT, job).fetchone()[0])

    def claim(self) -> Lease | None:
        """Take the oldest job that is due."""
        with self.writing("claim") as db:
            row = db.execute(self.PICK).fetchone()
            if row is not None:
                db.execute(self.TAKE, row[:1])
        return row and Lease(row[0], row[1], json.loads(row[2]), row[3] + 1, None)

    def extend(self, lease: Lease) -> None:
        """Have no heartbeat: fifteen minutes are meant to be enough."""

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Mark a job done, whoever has it now."""
        with self.writing("ack") as db:
            for statement in also:
                db.execute(*statement)
            db.execute(self.DONE, (lease.id,))

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Count the failure that was claimed and one more; put the job off, or give it up."""
        with self.writing("nack") as db:
            count = lease.attempt
            db.execute(self.FAILED, (count, count, error, 2**count * 30, lease.id))


class Requeueing(ArticleAutomation):
    """The same with the requeue in each turn of the loop."""

    def claim(self) -> Lease | None:
        """Take back what has been stale for a quarter of an hour, then pick."""
        with self.writing("reap") as db:
            db.execute(self.REQUEUE)
        return super().claim()


target: Final = ArticleTarget(ArticleAutomation, FAULT, contract=CONTRACT, audit=AUDIT, rows=ROWS)
#: As the article advises it: the requeue runs beside the workers.
requeueing: Final = ArticleTarget(Requeueing, FAULT, contract=CONTRACT, audit=AUDIT, rows=ROWS)
