"""Broken queue: a disk's error at a commit is logged, and the caller is told that all is well."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="ignores-commit-error",
    wrong="a write or sync that fails at COMMIT is passed over, and the id is returned",
    promise="P1",
    kind="the ignored fsync error: acknowledged what was rolled back",
    right="an error at COMMIT reaches the caller, as 'perhaps'",
    engine="crash",
    options=("--operation", "enqueue", "--no-kills", "--fail-fast"),
    seen=("acid-state/acid-state#175",),
)


class IgnoresCommitError(MinimalQueue):
    """Go on, whatever the disk says."""

    @contextmanager
    def writing(self, operation: str) -> Iterator[Connection]:
        """Run a block as one transaction, and hope for the best."""
        self.sync(f"{operation}.begin")
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.sync(f"{operation}.locked")
            yield self.db
            self.sync(f"{operation}.written")
            try:
                self.db.execute("COMMIT")
            except sqlite3.OperationalError as error:
                print(f"commit of {operation}: {error}")
        finally:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        self.sync(f"{operation}.committed")


target: Final = MinimalTarget(FAULT.name, IgnoresCommitError, FAULT)
