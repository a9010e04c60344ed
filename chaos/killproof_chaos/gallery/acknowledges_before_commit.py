"""Broken queue: an enqueue answers while its transaction is open; the next call commits it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue, now_ms

FAULT: Final = Fault(
    name="acknowledges-before-commit",
    wrong="the caller has the job's id, and the transaction that holds the job is still open",
    promise="P1",
    kind="acknowledged before COMMIT: an implicit transaction that nobody has ended yet",
    right="the id is returned after COMMIT has returned",
    engine="disk",
    options=("--jobs", "40", "--fail-fast"),
    unreached=frozenset(f"enqueue.{m}" for m in ("begin", "locked", "written", "committed")),
)


class AcknowledgesBeforeCommit(MinimalQueue):
    """Commit when there is something else to do."""

    @contextmanager
    def writing(self, operation: str) -> Iterator[Connection]:
        """End what is open, then run a block as a transaction of its own."""
        if self.db.in_transaction:
            self.db.execute("COMMIT")
        with super().writing(operation) as db:
            yield db

    def enqueue(
        self, kind: str, payload: object, priority: int = 5, delay_ms: int = 0,
        key: str | None = None, max_attempts: int = 5,
    ) -> int:  # fmt: skip
        """Store a job, return its id, and commit some time later."""
        if self.db.in_transaction:
            self.db.execute("COMMIT")
        state = "scheduled" if delay_ms > 0 else "available"
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        job = (kind, text, state, priority, now_ms() + delay_ms, key, max_attempts)
        self.db.execute("BEGIN IMMEDIATE")
        row = self.db.execute("SELECT id FROM job WHERE key = ?", (key,)).fetchone()
        return int((row or self.db.execute(self.INSERT, job).fetchone())[0])


target: Final = MinimalTarget(FAULT.name, AcknowledgesBeforeCommit, FAULT)
