"""Broken queue: a retry deletes the job and puts it in again, in two transactions."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import CONTRACT, MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue, now_ms
from killproof_evidence.contract import DELETED

FAULT: Final = Fault(
    name="retries-by-delete-and-insert",
    wrong="a failed job is deleted, and inserted again with its delay in the next transaction",
    promise="P1",
    kind="lost between two steps: removed from one set before it is added to the other",
    right="UPDATE job SET state = 'scheduled', due_ms = ?: one statement, or one transaction",
    engine="crash",
    options=("--operation", "nack", "--no-errors", "--fail-fast"),
    seen=("coleifer/huey#225",),
    also=frozenset({"P14"}),
)
#: That a row goes and comes again is this queue's way, and in one transaction no harm.
EDGES: Final = {"leased": (*CONTRACT.edges["leased"], DELETED)}


class RetriesByDeleteAndInsert(MinimalQueue):
    """Take the job out, then put it back for later."""

    DELETE = """DELETE FROM job WHERE id = ? AND fence = ? AND state = 'leased'
                                  AND attempts < max_attempts
             RETURNING id, kind, payload, priority, key, max_attempts, attempts, fence"""
    AGAIN = """INSERT INTO job (id, kind, payload, priority, key, max_attempts, attempts, fence,
                                state, due_ms, error)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'scheduled', ?, ?)"""

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Put the job in again as it was, or end it; raises LeaseLost."""
        job = None
        if not permanent:
            with self.writing("nack") as db:
                job = db.execute(self.DELETE, (lease.id, lease.fence)).fetchone()
        if job is None:
            super().nack(lease, error, permanent)
            return
        due_ms = now_ms() + self.BACKOFF_MS * 2 ** (lease.attempt - 1)
        with self.writing("nack") as db:
            db.execute(self.AGAIN, (*job, due_ms, error))


target: Final = MinimalTarget(FAULT.name, RetriesByDeleteAndInsert, FAULT, edges=EDGES)
