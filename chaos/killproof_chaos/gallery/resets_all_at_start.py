"""Broken queue: a worker that starts sets every running job back, also those of the living."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="resets-all-at-start",
    wrong="the first claim of each worker makes all leased jobs available, whoever holds them",
    promise="P4",
    kind="recovery at start-up that takes every running job for orphaned: right for one worker "
    "only",
    right="a lease is taken back when it has run out, by its deadline, and never because "
    "somebody starts",
    engine="sim",
    options=("--scenario", "stale-extend"),
    seen=("akira/exq#321",),
)


class ResetsAllAtStart(MinimalQueue):
    """Believe to be alone when it begins to work."""

    RESET = "UPDATE job SET state = 'available', deadline_ns = NULL WHERE state = 'leased'"
    has_reset = False

    def claim(self) -> Lease | None:
        """Tidy up once, then claim as ever."""
        if not self.has_reset:
            with self.writing("claim") as db:
                db.execute(self.RESET)
            self.has_reset = True
        return super().claim()


target: Final = MinimalTarget(FAULT.name, ResetsAllAtStart, FAULT)
