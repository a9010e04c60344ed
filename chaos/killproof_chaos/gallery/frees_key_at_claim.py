"""Broken queue: a key is free again as soon as its job runs, and a second job runs beside it."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="frees-key-at-claim",
    wrong="the key is looked for among the jobs that wait: one that runs has lost it",
    promise="P12",
    kind="uniqueness until the start, where uniqueness until the end was meant",
    right="the key stays with its job until that has ended",
    engine="sim",
    options=("--scenario", "unique-key"),
    seen=("zoolutions/sidekiq-unique-jobs#711",),
)


class FreesKeyAtClaim(MinimalQueue):
    """Think of a job that runs as of one that is done."""

    CLAIM = """UPDATE job SET state = 'leased', deadline_ns = ?, key = NULL,
                              attempts = attempts + 1, fence = fence + 1
                WHERE id = (SELECT id FROM job WHERE state = 'available'
                             ORDER BY priority, due_ms, id LIMIT 1)
            RETURNING id, kind, payload, attempts, fence"""


target: Final = MinimalTarget(FAULT.name, FreesKeyAtClaim, FAULT)
