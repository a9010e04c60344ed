"""Broken queue: the reaper makes a list of lost jobs, and rescues them by id a moment later."""

import time
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="rescues-by-id",
    wrong="a job that is acked between the look of the reaper and its write goes from succeeded "
    "to available",
    promise="P7",
    kind="the rescuer that works on a snapshot: check-then-act in the background",
    right="UPDATE job ... WHERE state = 'leased' AND deadline_ns <= ?: the write repeats what it"
    " believes",
    engine="sim",
    options=("--scenario", "stale-ack"),
    seen=("riverqueue/river#1302", "riverqueue/river#1373"),
    also=frozenset({"P6"}),
)


class RescuesById(MinimalQueue):
    """Act on what was true when the list was made."""

    LOST = "SELECT id FROM job WHERE state = 'leased' AND deadline_ns <= ?"
    RESCUE = """UPDATE job SET state = iif(attempts < max_attempts, 'available', 'dead'),
                               deadline_ns = NULL, error = 'the lease ran out'
                 WHERE id = ?"""

    def claim(self) -> Lease | None:
        """Look for what ran out; rescue it, and claim as ever."""
        lost = self.db.execute(self.LOST, (time.monotonic_ns(),)).fetchall()
        with self.writing("claim") as db:
            for found in lost:
                db.execute(self.RESCUE, found)
        return super().claim()


target: Final = MinimalTarget(FAULT.name, RescuesById, FAULT)
