"""Broken killproof: a backup reads one table after another, each as it is at its moment."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import BACKUPS, KillproofClient, KillproofTarget

FAULT: Final = Fault(
    name="dumps-table-by-table",
    wrong="the jobs in a backup are of one moment, and the tables that speak of them of later ones",
    promise="P24",
    kind="the torn backup: several reads where one snapshot is needed",
    right="all tables through one read transaction, or SQLite's own copy of the pages",
    engine="proc",
    options=("--seconds", "5.5", "--nemesis", "none", "--workers", "4"),
    seconds=10,
    seen=("evolution-cms/evolution#2353", "ifsnop/mysqldump-php#267"),
    articles=("F45",),
    control="killproof",
)
TABLES: Final = """
    SELECT name, sql FROM sqlite_schema
     WHERE type = 'table' AND sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"""


class Dumper(KillproofClient):
    """A client that writes table after table into a new file."""

    def backup(self) -> str:
        """Copy every row of every table."""
        self._backups.mkdir(exist_ok=True)
        copy = self._backups / f"dump-{len(list(self._backups.iterdir()))}.db"
        with (
            closing(sqlite3.connect(self._queue.path, isolation_level=None)) as db,
            closing(sqlite3.connect(copy)) as made,
        ):
            for name, sql in db.execute(TABLES).fetchall():
                made.execute(sql)
                rows = db.execute(f"SELECT * FROM {name}").fetchall()  # noqa: S608 - own names
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    made.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)  # noqa: S608
                made.commit()
        return f"{BACKUPS}/{copy.name}"


class DumpsTableByTable(KillproofTarget):
    """Killproof, backed up by a loop over its tables."""

    name = FAULT.name
    broken = True
    fault = FAULT
    #: Large payloads lie beside the file: a copy without them would be another fault.
    capabilities = frozenset({"backup"})

    def client(self, place: Path) -> KillproofClient:
        """Open the queue for a producer that dumps it."""
        return Dumper(self.opened(place), place / BACKUPS)


target: Final = DumpsTableByTable()
