"""Broken queue: the claim has no index that it could follow, so it looks at every job there is."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import SCHEMA, MinimalQueue

FAULT: Final = Fault(
    name="claim-scans",
    wrong="the index begins with the state and knows nothing of the order: each claim finds all "
    "jobs that wait and sorts them, under the write lock, to take one",
    promise="P20",
    kind="a claim in proportion to the backlog: the longer the line, the slower it moves",
    right="an index of what is due in the order of the claim: (priority, due_ms, id) WHERE state = "
    "'available'",
    engine="sim",
    options=("--scenario", "backlog"),
    articles=("F54", "F55", "F56", "F57"),
)


class ClaimScans(MinimalQueue):
    """Have the index that everybody thinks of first."""

    SCHEMA = SCHEMA.replace("(priority, due_ms, id) WHERE state = 'available'", "(state, due_ms)")


target: Final = MinimalTarget(FAULT.name, ClaimScans, FAULT)
