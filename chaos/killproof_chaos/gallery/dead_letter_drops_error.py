"""Broken queue: the last failure moves a job to the dead letters, and its reason nowhere."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="dead-letter-drops-error",
    wrong="a dead letter does not say what failed",
    promise="P13",
    kind="lost diagnosis: retries keep their error, and the end of the job clears it",
    right="error = ? in the very statement that makes the job dead",
    engine="sim",
    options=("--scenario", "last-attempt", "--keep-going"),
    articles=("F32", "F33"),
)


class DeadLetterDropsError(MinimalQueue):
    """Know that it failed, and not why."""

    NACK = """UPDATE job SET state = iif(? OR attempts >= max_attempts, 'dead', 'scheduled'),
                             due_ms = ?, error = iif(attempts >= max_attempts, NULL, ?),
                             deadline_ns = NULL
               WHERE id = ? AND fence = ? AND state = 'leased'"""


target: Final = MinimalTarget(FAULT.name, DeadLetterDropsError, FAULT, promises={"P13": True})
