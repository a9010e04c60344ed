"""Broken queue: strictly first in, first out; a retry that is not due yet holds up the line."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="waits-for-the-head",
    wrong="a job that failed stays at the head of the line while it waits for its retry, and "
    "whoever came after it waits too",
    promise="P19",
    kind="starvation by order: the line is served from its head, whether or not the head is due",
    right="WHERE state = 'available': who waits for a retry is not in the line",
    engine="sim",
    options=("--scenario", "poison"),
    seen=("Signet-AI/signetai#303", "cofin/litestar-queues#105"),
)


class WaitsForTheHead(MinimalQueue):
    """Let nobody pass a job that is not finished."""

    BACKOFF_MS = 1_200  # A retry may be further off than the others may be kept waiting.
    CLAIM = MinimalQueue.CLAIM.replace(
        "WHERE state = 'available'",
        """WHERE state = 'available'
              AND NOT EXISTS (SELECT 1 FROM job AS ahead
                               WHERE ahead.state = 'scheduled' AND ahead.id < job.id)""",
    )


target: Final = MinimalTarget(FAULT.name, WaitsForTheHead, FAULT, promises={"P19": True})
