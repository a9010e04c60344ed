"""Broken queue: whether an outcome changed a row is never asked, so no loss is heard of."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="ignores-row-count",
    wrong="the fenced UPDATE of a stale ack changes no row, and its worker is told that all is "
    "well",
    promise="P5",
    kind="the unchecked compare-and-set: a fence that refuses, and a caller who never hears it",
    right="rowcount != 1 raises LeaseLost",
    engine="sim",
    options=("--scenario", "stale-ack"),
    seen=("cbtw-apac/qdrant-loader#297",),
    articles=("F38",),
    also=frozenset({"P6"}),
)


class IgnoresRowCount(MinimalQueue):
    """Take a statement without an error for a success."""

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Mark the job succeeded, if it is still ours; say nothing if it is not."""
        with self.writing("ack") as db:
            for statement in also:
                db.execute(*statement)
            db.execute(self.ACK, (lease.id, lease.fence))


target: Final = MinimalTarget(FAULT.name, IgnoresRowCount, FAULT)
