"""Broken queue: the effect has a transaction of its own; a crash before the ack makes it twice."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="effect-and-ack-apart",
    wrong="the effect is committed before the ack begins, so a crash in between repeats it",
    promise="P6",
    kind="the dual write: two commits where exactly-once needs one",
    right="the caller's statements and the ack in one transaction: with self.writing('ack')",
    engine="crash",
    options=("--operation", "completing", "--no-errors", "--fail-fast"),
)


class EffectAndAckApart(MinimalQueue):
    """Commit the caller's statements, then ack."""

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Write the effect, then mark the job succeeded; raises LeaseLost."""
        for statement in also:
            with self.writing("ack") as db:
                db.execute(*statement)
        super().ack(lease)


target: Final = MinimalTarget(FAULT.name, EffectAndAckApart, FAULT)
