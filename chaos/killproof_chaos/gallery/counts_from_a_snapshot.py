"""Broken queue: the attempts are read in one statement and written back, plus one, in another."""

import json
import time
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue, now_ms

FAULT: Final = Fault(
    name="counts-from-a-snapshot",
    wrong="whoever read the attempts before another's attempt writes back a number that does not "
    "hold it",
    promise="P8",
    kind="the lost update: read, add in the program, write back what is out of date",
    right="SET attempts = attempts + 1: the database adds, in the transaction of the claim",
    engine="sim",
    options=("--scenario", "nack"),
    seen=("agentjido/jizoku#69",),
    articles=("F22",),
)


class CountsFromASnapshot(MinimalQueue):
    """Add in Python; the claim itself is as safe as it was."""

    FIRST = """SELECT id, attempts FROM job WHERE state IN ('available', 'scheduled')
                ORDER BY priority, due_ms, id LIMIT 1"""
    CLAIM = """UPDATE job SET state = 'leased', deadline_ns = ?, attempts = ?, fence = fence + 1
                WHERE id = ? AND state = 'available'
            RETURNING id, kind, payload, attempts, fence"""

    def claim(self) -> Lease | None:
        """Look who is first, then lease that job if it is to be had."""
        with self.writing("claim") as db:
            now_ns = time.monotonic_ns()
            db.execute(self.REAP, (now_ns,))
            db.execute(self.PROMOTE, (now_ms(),))
        first = self.db.execute(self.FIRST).fetchone()
        if first is None:
            return None
        with self.writing("claim") as db:
            now_ns = time.monotonic_ns()
            db.execute(self.PROMOTE, (now_ms(),))
            values = (now_ns + self.LEASE_NS, first[1] + 1, first[0])
            row = db.execute(self.CLAIM, values).fetchone()
        return row and Lease(row[0], row[1], json.loads(row[2]), row[3], row[4])


target: Final = MinimalTarget(FAULT.name, CountsFromASnapshot, FAULT)
