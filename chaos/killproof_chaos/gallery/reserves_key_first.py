"""Broken queue: the key has a transaction before that of its job; a crash leaves it taken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue, now_ms

FAULT: Final = Fault(
    name="reserves-key-first",
    wrong="a producer that dies between key and job has taken the key: each later enqueue is told "
    "that its job exists",
    promise="P1",
    kind="the idempotency key reserved and lost: the retry is answered, and nothing is done",
    right="the key is a column of the job, or a row in the same transaction",
    engine="crash",
    options=("--operation", "enqueue", "--no-errors", "--fail-fast"),
    seen=("artefactual/archivematica#2352",),
)


class ReservesKeyFirst(MinimalQueue):
    """Make sure of the key, then put the job in."""

    KEYS = """CREATE TABLE IF NOT EXISTS job_key
              (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE) STRICT"""
    RESERVE = "INSERT OR IGNORE INTO job_key (key) VALUES (?) RETURNING id"
    HAS_KEY = "SELECT id FROM job_key WHERE key = ?"
    PUT = """INSERT INTO job (id, kind, payload, state, priority, due_ms, key, max_attempts)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue, and the table of the keys."""
        super().__init__(path, sync)
        self.db.execute(self.KEYS)

    def enqueue(
        self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
        key: str | None = None, max_attempts: int = 5,
    ) -> int:  # fmt: skip
        """Reserve the key, store the job under its number, and return that."""
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        state = "scheduled" if delay_ms > 0 else "available"
        job = (kind, text, state, priority, now_ms() + delay_ms, key, max_attempts)
        with self.writing("enqueue") as db:
            row = db.execute(self.RESERVE, (key,)).fetchone()
            if row is None:
                return int(db.execute(self.HAS_KEY, (key,)).fetchone()[0])
        with self.writing("enqueue") as db:
            db.execute(self.PUT, (row[0], *job))
        return int(row[0])


target: Final = MinimalTarget(FAULT.name, ReservesKeyFirst, FAULT)
