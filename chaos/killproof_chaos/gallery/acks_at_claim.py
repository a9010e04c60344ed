"""Broken queue: a job is marked succeeded as it is handed out; what its worker does is unseen."""

import json
import time
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue, now_ms

FAULT: Final = Fault(
    name="acks-at-claim",
    wrong="the claim marks the job succeeded, so whatever happens to its worker, it counts as done",
    promise="P3",
    kind="at-most-once: the early acknowledgement, which is the default of many a queue",
    right="the claim leases; the ack, after the handler, marks the job succeeded",
    engine="crash",
    options=("--operation", "claim", "--no-errors", "--fail-fast"),
    seen=("mozilla/treeherder#4748",),
    also=frozenset({"P5", "P6"}),
    unreached=frozenset(
        f"{operation}.{moment}"
        for operation in ("extend", "nack")
        for moment in ("begin", "locked", "written", "committed")
    ),
)


class AcksAtClaim(MinimalQueue):
    """Trust that what is handed out gets done."""

    DONE = "UPDATE job SET state = 'succeeded', deadline_ns = NULL WHERE id = ?"

    def claim(self) -> Lease | None:
        """Hand out the first job that is due, and be done with it."""
        with self.writing("claim") as db:
            now_ns = time.monotonic_ns()
            db.execute(self.REAP, (now_ns,))
            db.execute(self.PROMOTE, (now_ms(),))
            row = db.execute(self.CLAIM, (now_ns + self.LEASE_NS,)).fetchone()
            if row is not None:
                db.execute(self.DONE, (row[0],))
        return row and Lease(row[0], row[1], json.loads(row[2]), row[3], row[4])

    def extend(self, lease: Lease) -> None:
        """Have nothing to extend."""

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Write the caller's statements; the job has succeeded long since."""
        with self.writing("ack") as db:
            for statement in also:
                db.execute(*statement)

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Have nobody to tell."""


target: Final = MinimalTarget(FAULT.name, AcksAtClaim, FAULT)
