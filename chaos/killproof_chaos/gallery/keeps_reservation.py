"""Broken queue: the key of an attempt that failed stays taken, so the retry does nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="keeps-reservation",
    wrong="an attempt reserves its job's key and fails; the retry finds the key and says 'done'",
    promise="P3",
    kind="the reservation that outlives its attempt: in flight, or failed, is taken for applied",
    right="the key has states, tied to the fence: reserved, applied, rejected",
    engine="sim",
    options=("--scenario", "nack"),
    seen=("useautumn/autumn#1851", "LerianStudio/midaz#709"),
    articles=("F40",),
)


class KeepsReservation(MinimalQueue):
    """Begin no job twice."""

    KEYS = "CREATE TABLE IF NOT EXISTS begun (job INTEGER PRIMARY KEY) STRICT"
    RESERVE = "INSERT OR IGNORE INTO begun VALUES (?)"

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue, and the table of the keys."""
        super().__init__(path, sync)
        self.db.execute(self.KEYS)

    def claim(self) -> Lease | None:
        """Lease the first job that is due and was not begun before; the others are done."""
        while (lease := super().claim()) is not None:
            with self.writing("claim") as db:
                is_new = db.execute(self.RESERVE, (lease.id,)).rowcount == 1
                if not is_new:
                    db.execute(self.ACK, (lease.id, lease.fence))
            if is_new:
                break
        return lease


target: Final = MinimalTarget(FAULT.name, KeepsReservation, FAULT)
