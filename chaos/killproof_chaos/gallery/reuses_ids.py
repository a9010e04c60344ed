"""Broken queue: a job that is done is deleted, and the next job gets its number and its token."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import CONTRACT, MinimalTarget
from killproof_chaos.targets.minimal_queue import SCHEMA, MinimalQueue
from killproof_evidence.contract import DELETED

FAULT: Final = Fault(
    name="reuses-ids",
    wrong="the number of a deleted job is given out again, and its first token with it: who still "
    "holds the old lease can end the new job",
    promise="P5",
    kind="identity reused: a stale reference is valid for another thing",
    right="id INTEGER PRIMARY KEY AUTOINCREMENT: a number is given once",
    engine="sim",
    options=("--scenario", "unique-key", "--keep-going"),
    seen=("dotnet/efcore#2432", "yesodweb/persistent#1598"),
    also=frozenset({"P2", "P4"}),
)
#: That it deletes what is done is this queue's way, and with numbers of their own no harm.
ENDS: Final = {"leased": (*CONTRACT.edges["leased"], DELETED)}


class ReusesIds(MinimalQueue):
    """Keep what is to do, and nothing else."""

    ACK = "DELETE FROM job WHERE id = ? AND fence = ? AND state = 'leased'"

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Make the table with SQLite's own numbers, then open the queue."""
        with closing(sqlite3.connect(path)) as db:
            db.executescript(SCHEMA.replace("AUTOINCREMENT", ""))
        super().__init__(path, sync)


target: Final = MinimalTarget(FAULT.name, ReusesIds, FAULT, edges=ENDS)
