"""Broken queue: the time of the next attempt loses its milliseconds, and lies in the past."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="retry-in-whole-seconds",
    wrong="a backoff that is shorter than what is cut off is no backoff at all",
    promise="P9",
    kind="truncation: a moment is cut to seconds, and what was to come is over",
    right="integer milliseconds from end to end; who must round a delay rounds it up",
    engine="sim",
    options=("--scenario", "nack"),
    articles=("F47",),
)


class RetryInWholeSeconds(MinimalQueue):
    """Keep the time of the next attempt in seconds."""

    NACK = """UPDATE job SET state = iif(? OR attempts >= max_attempts, 'dead', 'scheduled'),
                             due_ms = ? / 1000 * 1000, error = ?, deadline_ns = NULL
               WHERE id = ? AND fence = ? AND state = 'leased'"""


target: Final = MinimalTarget(FAULT.name, RetryInWholeSeconds, FAULT)
