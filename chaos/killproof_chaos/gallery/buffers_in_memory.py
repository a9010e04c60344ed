"""Broken queue: accepted jobs are kept in memory, and written when there are enough."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue, now_ms

FAULT: Final = Fault(
    name="buffers-in-memory",
    wrong="a job is acknowledged when it is in a list of its producer's process",
    promise="P1",
    kind="the write buffer: batches for speed, acknowledged before they are written",
    right="the answer comes after COMMIT; who wants batches asks for one",
    engine="disk",
    options=("--jobs", "40", "--fail-fast"),
)


class BuffersInMemory(MinimalQueue):
    """Write four jobs at once."""

    SIZE = 4
    PUT = """INSERT INTO job (id, kind, payload, state, priority, due_ms, max_attempts)
             VALUES (?, ?, ?, ?, ?, ?, ?)"""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue, with nothing to write yet."""
        super().__init__(path, sync)
        self.waiting: list[tuple[object, ...]] = []

    def enqueue(
        self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
        key: str | None = None, max_attempts: int = 5,
    ) -> int:  # fmt: skip
        """Remember a job under a number of its own, and write when there are enough.

        One with a key is written at once: whether the key is taken, only the table knows.
        """
        if key is not None:
            return super().enqueue(kind, payload, priority, delay_ms, key, max_attempts)
        number = random.getrandbits(48)
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        state = "scheduled" if delay_ms > 0 else "available"
        self.waiting.append(
            (number, kind, text, state, priority, now_ms() + delay_ms, max_attempts)
        )
        if len(self.waiting) >= self.SIZE:
            with self.writing("enqueue") as db:
                db.executemany(self.PUT, self.waiting)
            self.waiting.clear()
        return number


target: Final = MinimalTarget(FAULT.name, BuffersInMemory, FAULT)
