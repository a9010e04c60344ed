"""Broken queue: what has failed for good is promoted like what waits for its retry."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="wakes-the-dead",
    wrong="the promotion takes every job that is not running and not done, dead letters included",
    promise="P8",
    kind="a state that is described by what it is not: a new state falls through the gap",
    right="WHERE state = 'scheduled': a transition names the state that it starts from",
    engine="sim",
    options=("--scenario", "last-attempt"),
    also=frozenset({"P7"}),
)


class WakesTheDead(MinimalQueue):
    """Promote whatever has a due time in the past."""

    PROMOTE = """UPDATE job SET state = 'available'
                  WHERE state NOT IN ('leased', 'succeeded') AND due_ms <= ?"""


target: Final = MinimalTarget(FAULT.name, WakesTheDead, FAULT)
