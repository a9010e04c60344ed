"""Broken queue: a failure names the job but not the lease, and ends the attempt of another."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="nack-without-fence",
    wrong="the failure of a worker that lost its lease ends the attempt of its living successor",
    promise="P5",
    kind="the zombie writer on the failure path: acks are fenced, and the error handler is "
    "forgotten",
    right="WHERE id = ? AND fence = ? AND state = 'leased' in every outcome, failures included",
    engine="sim",
    options=("--scenario", "nack"),
    seen=("Borderless360/django-logic#236",),
)


class NackWithoutFence(MinimalQueue):
    """Charge a failure to whoever holds the job now."""

    NACK = """UPDATE job SET state = iif(? OR attempts >= max_attempts, 'dead', 'scheduled'),
                             due_ms = ?, error = ?, deadline_ns = NULL
               WHERE id = ? AND ? > 0 AND state = 'leased'"""


target: Final = MinimalTarget(FAULT.name, NackWithoutFence, FAULT)
