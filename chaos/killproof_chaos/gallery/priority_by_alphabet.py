"""Broken queue: priorities are words, and words are sorted by the alphabet."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="priority-by-alphabet",
    wrong="a job of low priority is claimed before one of normal priority",
    promise="P11",
    kind="an order that lives in text: it looks right for two of three words",
    right="priority INTEGER, with a CHECK of its range",
    engine="sim",
    options=("--scenario", "priorities", "--keep-going"),
    articles=("F51",),
)


class PriorityByAlphabet(MinimalQueue):
    """Sort high, low, normal."""

    CLAIM = """UPDATE job SET state = 'leased', deadline_ns = ?,
                              attempts = attempts + 1, fence = fence + 1
                WHERE id = (SELECT id FROM job WHERE state = 'available'
                             ORDER BY CASE WHEN priority < 4 THEN 'high'
                                           WHEN priority < 7 THEN 'normal' ELSE 'low' END,
                                      due_ms, id LIMIT 1)
            RETURNING id, kind, payload, attempts, fence"""


target: Final = MinimalTarget(FAULT.name, PriorityByAlphabet, FAULT)
