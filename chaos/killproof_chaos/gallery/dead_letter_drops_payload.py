"""Broken queue: what has failed for good is emptied, to save space."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="dead-letter-drops-payload",
    wrong="a dead letter has no payload any more, so nobody can repair and replay it",
    promise="P13",
    kind="the empty dead letter: the only copy of the work is thrown away with its last attempt",
    right="a dead job is the same row in another state",
    engine="sim",
    options=("--scenario", "last-attempt", "--keep-going"),
)


class DeadLetterDropsPayload(MinimalQueue):
    """Keep the name of a dead job, and not what it was to do."""

    NACK = """UPDATE job SET state = iif(? OR attempts >= max_attempts, 'dead', 'scheduled'),
                             due_ms = ?, error = ?, deadline_ns = NULL,
                             payload = iif(attempts >= max_attempts, '{}', payload)
               WHERE id = ? AND fence = ? AND state = 'leased'"""


target: Final = MinimalTarget(FAULT.name, DeadLetterDropsPayload, FAULT, promises={"P13": True})
