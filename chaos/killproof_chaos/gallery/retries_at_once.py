"""Broken queue: a failed job is offered again at once."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="retries-at-once",
    wrong="the next attempt begins in the moment in which the last one failed",
    promise="P9",
    kind="the retry storm: no backoff, and whoever answers 429 is asked again within milliseconds",
    right="due_ms = now + BACKOFF_MS * 2 ** (attempt - 1)",
    engine="sim",
    options=("--scenario", "nack"),
    seen=("apache/storm#4337",),
    articles=("F35",),
)


class RetriesAtOnce(MinimalQueue):
    """Wait for nothing."""

    BACKOFF_MS = 0


target: Final = MinimalTarget(FAULT.name, RetriesAtOnce, FAULT)
