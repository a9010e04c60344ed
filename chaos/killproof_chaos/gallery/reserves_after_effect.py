"""Broken queue: the idempotency key is written after the effect; a crash in between repeats it."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="reserves-after-effect",
    wrong="the effect is committed before the key that shall prevent the next one",
    promise="P6",
    kind="the dual write of effect and key: idempotency that misses the one crash it is for",
    right="the effect, its key and the ack in one transaction",
    engine="crash",
    options=("--operation", "completing", "--no-errors", "--fail-fast"),
    seen=("ikyriak/IdempotentAPI#57",),
    articles=("F41",),
)


class ReservesAfterEffect(MinimalQueue):
    """Remember what was done, if one lives to do so."""

    KEYS = "CREATE TABLE IF NOT EXISTS applied (job INTEGER PRIMARY KEY) STRICT"
    IS_APPLIED = "SELECT count(*) FROM applied WHERE job = ?"
    APPLIED = "INSERT INTO applied VALUES (?)"

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue, and the table of the keys."""
        super().__init__(path, sync)
        self.db.execute(self.KEYS)

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Write the effect unless its key is there, then the key and the ack."""
        if not self.db.execute(self.IS_APPLIED, (lease.id,)).fetchone()[0]:
            with self.writing("ack") as db:
                for statement in also:
                    db.execute(*statement)
            also = ((self.APPLIED, (lease.id,)),)
        super().ack(lease, *also)


target: Final = MinimalTarget(FAULT.name, ReservesAfterEffect, FAULT)
