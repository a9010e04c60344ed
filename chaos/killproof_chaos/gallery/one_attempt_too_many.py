"""Broken queue: max_attempts is taken for the number of retries."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="one-attempt-too-many",
    wrong="a job that may run once runs twice: the failed attempt is compared with > where it "
    "needs >=",
    promise="P8",
    kind="off by one: attempts in all against retries after the first",
    right="attempts >= max_attempts: executions in all, and the words say so",
    engine="sim",
    options=("--scenario", "last-attempt", "--keep-going"),
    seen=("django-q2/django-q2#298",),
    articles=("F34",),
)


class OneAttemptTooMany(MinimalQueue):
    """Run, and then retry as often as it may run."""

    NACK = """UPDATE job SET state = iif(? OR attempts > max_attempts, 'dead', 'scheduled'),
                             due_ms = ?, error = ?, deadline_ns = NULL
               WHERE id = ? AND fence = ? AND state = 'leased'"""


target: Final = MinimalTarget(FAULT.name, OneAttemptTooMany, FAULT)
