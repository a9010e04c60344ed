"""Broken queue: a failure that comes late takes a job out of its final state."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="late-failure-revives",
    wrong="the failure of a worker that lost its lease makes a job that has succeeded wait for a"
    " retry",
    promise="P7",
    kind="a terminal state that does not absorb: a late event moves a finished job backwards",
    right="AND fence = ? AND state = 'leased' in every outcome: what has ended is left by a replay"
    " alone",
    engine="sim",
    options=("--scenario", "nack"),
    seen=("oxpull/django-ox#16",),
    articles=("F21",),
    also=frozenset({"P6", "P9"}),
)


class LateFailureRevives(MinimalQueue):
    """Believe whoever speaks last."""

    NACK = """UPDATE job SET state = iif(? OR attempts >= max_attempts, 'dead', 'scheduled'),
                             due_ms = ?, error = ?, deadline_ns = NULL
               WHERE id = ? AND ? > 0"""


target: Final = MinimalTarget(FAULT.name, LateFailureRevives, FAULT)
