"""Broken queue: a retry deletes the job and puts it in again, in two transactions."""

import json
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, LeaseLost, MinimalQueue, now_ms

FAULT: Final = Fault(
    name="retries-by-delete-and-insert",
    wrong="a failed job is deleted, and inserted again with its delay in the next transaction",
    promise="P1",
    kind="lost between two steps: removed from one set before it is added to the other",
    right="UPDATE job SET state = 'scheduled', due_ms = ?: one statement, and the row stays",
    engine="crash",
    options=("--operation", "nack", "--no-errors", "--fail-fast"),
    seen=("coleifer/huey#225",),
    also=frozenset({"P7", "P14"}),
)


class RetriesByDeleteAndInsert(MinimalQueue):
    """Take the job out, then put it back for later."""

    DELETE = "DELETE FROM job WHERE id = ? AND fence = ? AND state = 'leased'"
    AGAIN = """INSERT INTO job (id, kind, payload, state, priority, due_ms, max_attempts, attempts,
                                fence, error) VALUES (?, ?, ?, 'scheduled', 5, ?, 5, ?, ?, ?)"""

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Put the job in again, or end it; raises LeaseLost."""
        if permanent or lease.attempt >= 5:
            super().nack(lease, error, permanent)
            return
        due_ms = now_ms() + self.BACKOFF_MS * 2 ** (lease.attempt - 1)
        job = (lease.id, lease.kind, json.dumps(lease.payload, ensure_ascii=False), due_ms)
        with self.writing("nack") as db:
            if db.execute(self.DELETE, (lease.id, lease.fence)).rowcount != 1:
                raise LeaseLost(f"job {lease.id} is not leased under fence {lease.fence}")
        with self.writing("nack") as db:
            db.execute(self.AGAIN, (*job, lease.attempt, lease.fence, error))


target: Final = MinimalTarget(FAULT.name, RetriesByDeleteAndInsert, FAULT)
