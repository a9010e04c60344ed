"""Broken queue: the claim commits the lease, and a second transaction counts the attempt."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="counts-after-the-claim",
    wrong="a worker that dies between the claim and its count has had an attempt that nobody knows "
    "of, and so may the next one",
    promise="P8",
    kind="the torn claim: state and counter change in two transactions",
    right="SET state = 'leased', attempts = attempts + 1: one statement changes both",
    engine="sim",
    options=("--scenario", "claim", "--keep-going"),
)


class CountsAfterTheClaim(MinimalQueue):
    """Take the job; then write down that it was taken."""

    CLAIM = """UPDATE job SET state = 'leased', deadline_ns = ?, fence = fence + 1
                WHERE id = (SELECT id FROM job WHERE state = 'available'
                             ORDER BY priority, due_ms, id LIMIT 1)
            RETURNING id, kind, payload, attempts + 1, fence"""
    COUNT = "UPDATE job SET attempts = attempts + 1 WHERE id = ? AND fence = ?"

    def claim(self) -> Lease | None:
        """Lease the first job that is due, and count its attempt."""
        lease = super().claim()
        if lease is not None:
            with self.writing("claim") as db:
                db.execute(self.COUNT, (lease.id, lease.fence))
        return lease


target: Final = MinimalTarget(FAULT.name, CountsAfterTheClaim, FAULT)
