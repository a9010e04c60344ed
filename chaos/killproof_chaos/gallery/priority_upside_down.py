"""Broken queue: producers mean small numbers by urgent, and the claim means large ones."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="priority-upside-down",
    wrong="the least urgent job is claimed first",
    promise="P11",
    kind="an inverted sign: whether 0 or 9 is urgent is nowhere checked",
    right="ORDER BY priority: 0 is the most urgent, in the schema, the docs and the claim",
    engine="sim",
    options=("--scenario", "priorities", "--keep-going"),
    seen=("vsivsi/meteor-job-collection#4", "collectiveidea/delayed_job#101"),
)


class PriorityUpsideDown(MinimalQueue):
    """Take the largest number for the most urgent."""

    CLAIM = """UPDATE job SET state = 'leased', deadline_ns = ?,
                              attempts = attempts + 1, fence = fence + 1
                WHERE id = (SELECT id FROM job WHERE state = 'available'
                             ORDER BY priority DESC, due_ms, id LIMIT 1)
            RETURNING id, kind, payload, attempts, fence"""


target: Final = MinimalTarget(FAULT.name, PriorityUpsideDown, FAULT)
