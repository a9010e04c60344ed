"""Broken queue: a job's key is stored, and nobody looks whether another job has it."""

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
    name="key-not-unique",
    wrong="the same event delivered three times makes three jobs that carry one key",
    promise="P12",
    kind="no idempotent enqueue: a webhook that is sent again is worked on again",
    right="key TEXT UNIQUE, and an enqueue returns the job that has the key",
    engine="sim",
    options=("--scenario", "unique-key"),
    seen=("zenml-io/zenml#5215",),
    articles=("F44",),
)


class KeyNotUnique(MinimalQueue):
    """Write the key down for whoever reads the table."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Make the table without its unique index, then open the queue."""
        with closing(sqlite3.connect(path)) as db:
            db.executescript(SCHEMA.replace("UNIQUE", ""))
        super().__init__(path, sync)

    def enqueue(
        self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
        key: str | None = None, max_attempts: int = 5,
    ) -> int:  # fmt: skip
        """Store a job and return its id."""
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        state = "scheduled" if delay_ms > 0 else "available"
        job = (kind, text, state, priority, now_ms() + delay_ms, key, max_attempts)
        with self.writing("enqueue") as db:
            return int(db.execute(self.INSERT, job).fetchone()[0])


target: Final = MinimalTarget(FAULT.name, KeyNotUnique, FAULT)
