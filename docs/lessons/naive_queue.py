"""The naive queue of lesson 1: whoever reads a job first takes it, or so it seems."""

import json
import time
from pathlib import Path

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue


class NaiveQueue(MinimalQueue):
    """`minimal`, but the claim looks first and takes later."""

    LOOK = """SELECT id, kind, payload, attempts + 1, fence + 1 FROM job
               WHERE state = 'available' ORDER BY priority, due_ms, id LIMIT 1"""
    TAKE = """UPDATE job SET state = 'leased', deadline_ns = ?,
                             attempts = attempts + 1, fence = fence + 1 WHERE id = ?"""

    def claim(self) -> Lease | None:
        """Find the first available job, then mark it as taken."""
        with self.writing("claim") as db:
            db.execute(self.REAP, (time.monotonic_ns(),))
            db.execute(self.PROMOTE, (time.time_ns() // 1_000_000,))
        row = self.db.execute(self.LOOK).fetchone()
        if row is None:
            return None
        time.sleep(0.002)  # Logging, parsing, a call to somewhere: the gap is never empty.
        self.db.execute(self.TAKE, (time.monotonic_ns() + self.LEASE_NS, row[0]))
        return Lease(row[0], row[1], json.loads(row[2]), row[3], row[4])


target = MinimalTarget(
    str(Path(__file__).resolve()),
    NaiveQueue,
    Fault(
        name="naive",
        wrong="the claim looks in one transaction and takes in another",
        promise="P4",
        kind="check, then act: two workers see the same job",
        right="one transaction that holds the write lock before it looks",
        engine="proc",
    ),
)
