"""Broken queue: the claim looks for a job first and takes it in a second transaction."""

import json
import time
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue, now_ms

FAULT: Final = Fault(
    name="checks-then-claims",
    wrong="between the SELECT that finds a job and the UPDATE that takes it, another takes it too",
    promise="P4",
    kind="check-then-act: two statements where the decision needs one",
    right="UPDATE job ... WHERE id = (SELECT id ... LIMIT 1), one statement under the write lock",
    engine="sim",
    options=("--scenario", "claim", "--keep-going"),
    also=frozenset({"P6", "P7"}),
    seen=("codeigniter4/queue#86", "silverstripe/silverstripe-queuedjobs#26"),
    articles=("F8", "F10"),
)


class ChecksThenClaims(MinimalQueue):
    """Believe for the length of a transaction that the job is still there."""

    FIRST = "SELECT id FROM job WHERE state = 'available' ORDER BY priority, due_ms, id LIMIT 1"
    TAKE = """UPDATE job SET state = 'leased', deadline_ns = ?,
                             attempts = attempts + 1, fence = fence + 1
               WHERE id = ? RETURNING id, kind, payload, attempts, fence"""

    def claim(self) -> Lease | None:
        """Find a job; take it."""
        now_ns = time.monotonic_ns()
        with self.writing("claim") as db:
            db.execute(self.REAP, (now_ns,))
            db.execute(self.PROMOTE, (now_ms(),))
            found = db.execute(self.FIRST).fetchone()
        if found is None:
            return None
        with self.writing("claim") as db:
            row = db.execute(self.TAKE, (now_ns + self.LEASE_NS, found[0])).fetchone()
        return Lease(row[0], row[1], json.loads(row[2]), row[3], row[4])


target: Final = MinimalTarget(FAULT.name, ChecksThenClaims, FAULT)
