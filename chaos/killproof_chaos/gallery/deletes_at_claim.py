"""Broken queue: the claim takes the row out of the file; only the worker's memory holds the job."""

import json
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue, now_ms

FAULT: Final = Fault(
    name="deletes-at-claim",
    wrong="the claim deletes the row, and the worker writes it back when the job has ended",
    promise="P1",
    kind="work held in memory: a crash between taking and finishing loses it",
    right="UPDATE job SET state = 'leased', deadline_ns = ?: the row stays while its job runs",
    engine="crash",
    options=("--operation", "claim", "--no-errors", "--fail-fast"),
    seen=("coleifer/huey#559", "coleifer/huey#571"),
    also=frozenset({"P5", "P7"}),
    unreached=frozenset(f"extend.{m}" for m in ("begin", "locked", "written", "committed")),
)

PUT_BACK: Final = """INSERT INTO job (id, kind, payload, state, priority, due_ms, max_attempts,
                                      attempts, fence)
                     VALUES (?, ?, ?, ?, 5, ?, 5, ?, ?)"""


class DeletesAtClaim(MinimalQueue):
    """Pop the job, run it, write down how it ended."""

    CLAIM = """DELETE FROM job
                WHERE ? > 0 AND id = (SELECT id FROM job WHERE state = 'available'
                                       ORDER BY priority, due_ms, id LIMIT 1)
            RETURNING id, kind, payload, attempts + 1, fence + 1"""

    def extend(self, lease: Lease) -> None:
        """Have nothing to extend: no row says that the job runs."""

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Write the job back as succeeded."""
        self.put_back("ack", lease, "succeeded", *also)

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Write the job back as scheduled or dead."""
        self.put_back("nack", lease, "dead" if permanent or lease.attempt >= 5 else "scheduled")

    def put_back(
        self, name: str, lease: Lease, state: str, *also: tuple[str, tuple[object, ...]]
    ) -> None:
        """Insert what the claim deleted."""
        with self.writing(name) as db:
            for statement in also:
                db.execute(*statement)
            due_ms = now_ms() + self.BACKOFF_MS * 2 ** (lease.attempt - 1)
            text = json.dumps(lease.payload, ensure_ascii=False)
            row = (lease.id, lease.kind, text, state, due_ms, lease.attempt, lease.fence)
            db.execute(PUT_BACK, row)


target: Final = MinimalTarget(FAULT.name, DeletesAtClaim, FAULT)
