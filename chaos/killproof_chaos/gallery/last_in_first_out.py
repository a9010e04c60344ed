"""Broken queue: the newest job goes first, and the oldest waits for as long as others come."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="last-in-first-out",
    wrong="of two jobs of one priority the later is claimed before the earlier",
    promise="P11",
    kind="a stack where a queue was meant: the wrong end of the list, or DESC in the wrong place",
    right="ORDER BY priority, due_ms, id",
    engine="sim",
    options=("--scenario", "claim", "--keep-going"),
    seen=("inlife/nexrender#492", "tobymao/saq#72"),
)


class LastInFirstOut(MinimalQueue):
    """Take what lies on top."""

    CLAIM = """UPDATE job SET state = 'leased', deadline_ns = ?,
                              attempts = attempts + 1, fence = fence + 1
                WHERE id = (SELECT id FROM job WHERE state = 'available'
                             ORDER BY priority, due_ms DESC, id DESC LIMIT 1)
            RETURNING id, kind, payload, attempts, fence"""


target: Final = MinimalTarget(FAULT.name, LastInFirstOut, FAULT)
