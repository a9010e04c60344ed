"""Broken queue: leases end by the wall clock, so whoever sets it forward ends all of them."""

import json
import time
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue, change, now_ms

FAULT: Final = Fault(
    name="lease-on-wall-clock",
    wrong="the deadline of a lease is a time of day, so a step of the clock ends a living lease",
    promise="P4",
    kind="NTP, a person or a resumed virtual machine sets the clock, and every job runs twice",
    right="now_ns = time.monotonic_ns(): the wall clock may step; leases must not",
    engine="sim",
    options=("--scenario", "wall-clock"),
    also=frozenset({"P6"}),
    seen=("agentruntimecontrolprotocol/swift-sdk#80",),
)


class LeaseOnWallClock(MinimalQueue):
    """Ask for the time of day where elapsed time was meant."""

    def claim(self) -> Lease | None:
        """Lease the first job that is due, until a time of day."""
        with self.writing("claim") as db:
            now_ns = time.time_ns()
            db.execute(self.REAP, (now_ns,))
            db.execute(self.PROMOTE, (now_ms(),))
            row = db.execute(self.CLAIM, (now_ns + self.LEASE_NS,)).fetchone()
        return row and Lease(row[0], row[1], json.loads(row[2]), row[3], row[4])

    def extend(self, lease: Lease) -> None:
        """Prolong the lease to a later time of day; raises LeaseLost."""
        with self.writing("extend") as db:
            change(db, self.EXTEND, lease, time.time_ns() + self.LEASE_NS)


target: Final = MinimalTarget(FAULT.name, LeaseOnWallClock, FAULT)
