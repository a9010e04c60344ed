"""Broken queue: a job of a kind that its worker has no handler for is marked succeeded."""

from contextlib import suppress
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, LeaseLost, MinimalQueue

FAULT: Final = Fault(
    name="finishes-unknown-kinds",
    wrong="a worker that was deployed without a job's handler takes the job and says it is done",
    promise="P3",
    kind="the black hole: an unknown kind is consumed instead of left for who knows it",
    right="AND kind IN (...) leaves the job to a worker that has the handler; where there is none, "
    "nack(lease, 'no handler', permanent=True) says so",
    engine="sim",
    options=("--scenario", "claim"),
    seen=("JSONbored/loopover#5836",),
    articles=("F30",),
)


class FinishesUnknownKinds(MinimalQueue):
    """Take what comes, and be done with what one does not know."""

    #: What this deployment has handlers for; the harness enqueues reports as well.
    KNOWN = frozenset({"webhook"})

    def claim(self) -> Lease | None:
        """Lease the first job that is due, unless nobody here knows it."""
        lease = super().claim()
        while lease is not None and lease.kind not in self.KNOWN:
            with suppress(LeaseLost):  # Then it is not for this worker to end.
                self.ack(lease)
            lease = super().claim()
        return lease


target: Final = MinimalTarget(FAULT.name, FinishesUnknownKinds, FAULT)
