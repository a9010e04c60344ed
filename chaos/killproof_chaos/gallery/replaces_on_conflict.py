"""Broken queue: a second enqueue under one key replaces the first job, which may be running."""

import json
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue, now_ms

FAULT: Final = Fault(
    name="replaces-on-conflict",
    wrong="INSERT OR REPLACE deletes the job that has the key, without a word to anybody",
    promise="P1",
    kind="the upsert that is a delete: an accepted job disappears under a duplicate of its key",
    right="SELECT id FROM job WHERE key = ? first: who has the key keeps it",
    engine="sim",
    options=("--scenario", "unique-key"),
    seen=("cashubtc/cdk#620",),
    also=frozenset({"P12", "P14"}),
)


class ReplacesOnConflict(MinimalQueue):
    """Let the latest enqueue win."""

    REPLACE = MinimalQueue.INSERT.replace("INSERT INTO", "INSERT OR REPLACE INTO")

    def enqueue(
        self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
        key: str | None = None, max_attempts: int = 5,
    ) -> int:  # fmt: skip
        """Store a job in place of the one that has its key, and return its id."""
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        state = "scheduled" if delay_ms > 0 else "available"
        job = (kind, text, state, priority, now_ms() + delay_ms, key, max_attempts)
        with self.writing("enqueue") as db:
            return int(db.execute(self.REPLACE, job).fetchone()[0])


target: Final = MinimalTarget(FAULT.name, ReplacesOnConflict, FAULT)
