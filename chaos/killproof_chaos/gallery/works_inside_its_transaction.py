"""Broken queue: the transaction of the claim stays open until the job has ended."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue, now_ms

FAULT: Final = Fault(
    name="works-inside-its-transaction",
    wrong="the handler runs while the claim is not committed: everybody else waits for the lock, "
    "and a crash rolls the claim back with the attempt that it has counted",
    promise="P8",
    kind="a write transaction held across the handler, in place of a lease",
    right="COMMIT before the handler starts: the lease holds the job, and nobody holds the lock",
    engine="crash",
    options=("--operation", "ack", "--no-errors", "--fail-fast"),
    seen=("dstackai/dstack#825",),
    articles=("F42",),
    also=frozenset({"P6"}),
    unreached=frozenset({"claim.committed"})
    | frozenset(f"extend.{moment}" for moment in ("begin", "locked", "written", "committed")),
)


class WorksInsideItsTransaction(MinimalQueue):
    """Let the lock hold the job."""

    @contextmanager
    def writing(self, operation: str) -> Iterator[Connection]:
        """Run a block in the transaction that the claim has left open, or in one of its own."""
        self.sync(f"{operation}.begin")
        if not self.db.in_transaction:
            self.db.execute("BEGIN IMMEDIATE")
        try:
            self.sync(f"{operation}.locked")
            yield self.db
            self.sync(f"{operation}.written")
            self.db.execute("COMMIT")
        finally:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        self.sync(f"{operation}.committed")

    def claim(self) -> Lease | None:
        """Lease the first job that is due, and leave the commit to whatever ends the job."""
        self.sync("claim.begin")
        self.db.execute("BEGIN IMMEDIATE")
        self.sync("claim.locked")
        now_ns = time.monotonic_ns()
        self.db.execute(self.REAP, (now_ns,))
        self.db.execute(self.PROMOTE, (now_ms(),))
        row = self.db.execute(self.CLAIM, (now_ns + self.LEASE_NS,)).fetchone()
        self.sync("claim.written")
        if row is None:
            self.db.execute("COMMIT")
        return row and Lease(row[0], row[1], json.loads(row[2]), row[3], row[4])

    def extend(self, lease: Lease) -> None:
        """Have nothing to prolong: nobody can take the job while the lock is held."""


target: Final = MinimalTarget(FAULT.name, WorksInsideItsTransaction, FAULT)
