"""Broken queue: an attempt counts when it begins, and once more when it fails."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="attempts-counted-twice",
    wrong="a failed attempt uses up two, so a job dies after half of the attempts that it was "
    "promised",
    promise="P13",
    kind="the counter that two code paths raise: retries are lost, and the dead letter says "
    "otherwise",
    right="the claim counts, and nothing else does",
    engine="sim",
    options=("--scenario", "last-attempt", "--keep-going"),
    seen=("apache/helix#424",),
)


class AttemptsCountedTwice(MinimalQueue):
    """Count in two places."""

    NACK = """UPDATE job SET state = iif(? OR attempts + 1 >= max_attempts, 'dead', 'scheduled'),
                             due_ms = ?, error = ?, deadline_ns = NULL, attempts = attempts + 1
               WHERE id = ? AND fence = ? AND state = 'leased'"""


target: Final = MinimalTarget(FAULT.name, AttemptsCountedTwice, FAULT, promises={"P13": True})
