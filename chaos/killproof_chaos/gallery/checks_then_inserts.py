"""Broken queue: whether a key is taken is asked before the transaction, and nothing else tells."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import SCHEMA, MinimalQueue, now_ms

FAULT: Final = Fault(
    name="checks-then-inserts",
    wrong="two producers look for the key, both find nothing, and both insert it",
    promise="P12",
    kind="check-then-insert: uniqueness by a SELECT where it needs an index",
    right="key TEXT UNIQUE, and the question inside the transaction that inserts",
    engine="sim",
    options=("--scenario", "unique-key"),
    seen=("open-mercato/cezar#72", "c15t/c15t#861"),
)


class ChecksThenInserts(MinimalQueue):
    """Trust what was true a moment ago."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Make the table without its unique index, then open the queue."""
        with closing(sqlite3.connect(path)) as db:
            db.executescript(SCHEMA.replace("UNIQUE", ""))
        super().__init__(path, sync)

    def enqueue(
        self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
        key: str | None = None, max_attempts: int = 5,
    ) -> int:  # fmt: skip
        """Look for the key; insert the job."""
        row = self.db.execute("SELECT id FROM job WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return int(row[0])
        state = "scheduled" if delay_ms > 0 else "available"
        text, due_ms = json.dumps(payload), now_ms() + delay_ms
        with self.writing("enqueue") as db:
            job = (kind, text, state, priority, due_ms, key, max_attempts)
            return int(db.execute(self.INSERT, job).fetchone()[0])


target: Final = MinimalTarget(FAULT.name, ChecksThenInserts, FAULT)
