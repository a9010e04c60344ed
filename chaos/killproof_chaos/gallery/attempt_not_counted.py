"""Broken queue: an attempt is counted when it fails, so one that kills its worker never counts."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="attempt-not-counted",
    wrong="the failure counts the attempt, not the claim: a job that kills its worker runs forever",
    promise="P8",
    kind="the poison job: crashed attempts are not counted",
    right="SET state = 'leased', attempts = attempts + 1: the claim itself counts",
    engine="sim",
    options=("--scenario", "last-attempt", "--keep-going"),
    seen=("laravel/framework#59329", "vectorize-io/hindsight#2675"),
    articles=("F20",),
)


class AttemptNotCounted(MinimalQueue):
    """Count the failures that somebody lived to report."""

    CLAIM = """UPDATE job SET state = 'leased', deadline_ns = ?, fence = fence + 1
                WHERE id = (SELECT id FROM job WHERE state = 'available'
                             ORDER BY priority, due_ms, id LIMIT 1)
            RETURNING id, kind, payload, attempts + 1, fence"""
    NACK = """UPDATE job SET state = iif(? OR attempts + 1 >= max_attempts, 'dead', 'scheduled'),
                             due_ms = ?, error = ?, deadline_ns = NULL, attempts = attempts + 1
               WHERE id = ? AND fence = ? AND state = 'leased'"""


target: Final = MinimalTarget(FAULT.name, AttemptNotCounted, FAULT)
