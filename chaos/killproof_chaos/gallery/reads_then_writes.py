"""Broken queue: its transactions are deferred, so one that has read may not be let to write."""

from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="reads-then-writes",
    wrong="BEGIN takes no lock; a transaction that reads first meets 'database is locked' at once "
    "when another has committed in between, whatever the timeout",
    promise="P16",
    kind="SQLITE_BUSY_SNAPSHOT: a read transaction that wants to become a write transaction",
    right="BEGIN IMMEDIATE: every transaction holds the write lock from its beginning",
    engine="sim",
    options=("--scenario", "unique-key"),
    seen=("ovumcy/ovumcy-web#155", "duckdb/ducklake#1420"),
    articles=("F9",),
)


class ReadsThenWrites(MinimalQueue):
    """Begin as most drivers do."""

    @contextmanager
    def writing(self, operation: str) -> Iterator[Connection]:
        """Run a block as one transaction that takes the lock when it needs it."""
        self.sync(f"{operation}.begin")
        self.db.execute("BEGIN")
        try:
            self.sync(f"{operation}.locked")
            yield self.db
            self.sync(f"{operation}.written")
            self.db.execute("COMMIT")
        finally:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        self.sync(f"{operation}.committed")


target: Final = MinimalTarget(FAULT.name, ReadsThenWrites, FAULT)
