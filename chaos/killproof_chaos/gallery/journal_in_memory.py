"""Broken queue: its journal is in memory; a kill in a commit leaves half of that in the file."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import SCHEMA, MinimalQueue

FAULT: Final = Fault(
    name="journal-in-memory",
    wrong="a commit writes pages into the file, and what would undo them dies with the process",
    promise="P16",
    kind="journal_mode=MEMORY or OFF: atomic commit traded for speed, and the file corrupted",
    right="PRAGMA journal_mode = wal: a commit is in the file whole, or not at all",
    engine="crash",
    options=("--operation", "ack", "--no-errors", "--fail-fast"),
    seen=("DeusData/codebase-memory-mcp#67", "tphakala/birdnet-go#429"),
    also=frozenset({"P6", "P7", "P14"}),
)


class JournalInMemory(MinimalQueue):
    """Spare the disk."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open or create the queue, with the journal where it is fast."""
        self.sync, self.db = sync, sqlite3.connect(path, timeout=30, isolation_level=None)
        self.db.executescript(SCHEMA.replace("journal_mode = wal", "journal_mode = memory"))


target: Final = MinimalTarget(FAULT.name, JournalInMemory, FAULT)
