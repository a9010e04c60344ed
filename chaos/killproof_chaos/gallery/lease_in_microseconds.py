"""Broken queue: the length of a lease is counted in another unit than the clock."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="lease-in-microseconds",
    wrong="a lease of half a second ends after half a millisecond, while its worker still trusts"
    " it",
    promise="P4",
    kind="a duration in the wrong unit: a thousand times too short, and right in every test "
    "without load",
    right="LEASE_NS = 500_000_000: the unit is in the name, and the same on both sides",
    engine="sim",
    options=("--scenario", "heartbeat", "--keep-going"),
    also=frozenset({"P3"}),
)


class LeaseInMicroseconds(MinimalQueue):
    """Add microseconds to nanoseconds."""

    LEASE_NS = MinimalQueue.LEASE_NS // 1_000


target: Final = MinimalTarget(FAULT.name, LeaseInMicroseconds, FAULT)
