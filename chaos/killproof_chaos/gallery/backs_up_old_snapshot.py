"""Broken killproof: its backups are read through a transaction that has been open for long."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof import Queue
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import BACKUPS, KillproofClient, KillproofTarget

FAULT: Final = Fault(
    name="backs-up-old-snapshot",
    wrong="the connection that copies the file still reads what was there when it was opened",
    promise="P24",
    kind="the stale snapshot: a read transaction that nobody has ended shows the past",
    right="each backup begins a read of its own, and ends it",
    engine="proc",
    options=("--seconds", "4.5", "--nemesis", "none", "--workers", "2"),
    seconds=10,
    control="killproof",
)


class Snapshot(KillproofClient):
    """A client that has looked at the file once."""

    def __init__(self, queue: Queue, backups: Path) -> None:
        """Open a connection for backups, and see what there is."""
        super().__init__(queue, backups)
        self._old = sqlite3.connect(queue.path, isolation_level=None)
        self._old.execute("BEGIN")
        self._old.execute("SELECT count(*) FROM job").fetchone()

    def backup(self) -> str:
        """Copy what the connection sees."""
        self._backups.mkdir(exist_ok=True)
        copy = self._backups / f"copy-{len(list(self._backups.iterdir()))}.db"
        with closing(sqlite3.connect(copy)) as made:
            self._old.backup(made)
        return f"{BACKUPS}/{copy.name}"

    def close(self) -> None:
        """Close both connections."""
        self._old.close()
        super().close()


class BacksUpOldSnapshot(KillproofTarget):
    """Killproof, backed up from a connection that is kept."""

    name = FAULT.name
    broken = True
    fault = FAULT
    #: Large payloads lie beside the file: a copy without them would be another fault.
    capabilities = frozenset({"backup"})

    def client(self, place: Path) -> KillproofClient:
        """Open the queue for a producer that keeps a snapshot."""
        return Snapshot(self.opened(place), place / BACKUPS)


target: Final = BacksUpOldSnapshot()
