"""Broken queue: the idempotency key is taken first; a crash before the effect loses the effect."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="reserves-before-effect",
    wrong="a key that was reserved counts as applied, so a job that died in between has no effect",
    promise="P3",
    kind="the reservation taken for the effect: at-most-once under the name of idempotency",
    right="reserved is not applied: key and effect in one transaction, or the key stays in doubt",
    engine="crash",
    options=("--operation", "completing", "--no-errors", "--fail-fast"),
    articles=("F39",),
    also=frozenset({"P6"}),
)


class ReservesBeforeEffect(MinimalQueue):
    """Do nothing twice, and some things not at all."""

    KEYS = "CREATE TABLE IF NOT EXISTS applied (job INTEGER PRIMARY KEY) STRICT"
    RESERVE = "INSERT OR IGNORE INTO applied VALUES (?)"

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue, and the table of the keys."""
        super().__init__(path, sync)
        self.db.execute(self.KEYS)

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Reserve the key, write the effect unless it was reserved before, and ack."""
        with self.writing("ack") as db:
            is_new = db.execute(self.RESERVE, (lease.id,)).rowcount == 1
        super().ack(lease, *(also if is_new else ()))


target: Final = MinimalTarget(FAULT.name, ReservesBeforeEffect, FAULT)
