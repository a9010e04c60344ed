"""Broken killproof: a backup's name is the date, so the second of a day replaces the first."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import BACKUPS, KillproofClient, KillproofTarget

FAULT: Final = Fault(
    name="names-backups-by-day",
    wrong="a backup is written under a name that an earlier one may have, and nobody looks",
    promise="P24",
    kind="the overwritten backup: a timestamp for a name, coarser than the backups are frequent",
    right="a name that is free, taken with O_EXCL, and the copy renamed to it when it is whole",
    engine="proc",
    options=("--seconds", "5.5", "--nemesis", "none", "--workers", "2"),
    seconds=10,
    seen=("bitcoin-wallet/bitcoin-wallet#214", "bitflicker64/Termstory#416"),
    articles=("F45",),
    control="killproof",
)


class Daily(KillproofClient):
    """A client that makes one backup a day, however often it is asked."""

    def backup(self) -> str:
        """Copy the file under today's date."""
        self._backups.mkdir(exist_ok=True)
        copy = self._backups / time.strftime("%Y-%m-%d.db", time.gmtime())
        copy.unlink(missing_ok=True)
        with closing(sqlite3.connect(self._queue.path)) as db:
            db.execute("VACUUM INTO ?", (str(copy),))
        return f"{BACKUPS}/{copy.name}"


class NamesBackupsByDay(KillproofTarget):
    """Killproof, backed up by a script of one line."""

    name = FAULT.name
    broken = True
    fault = FAULT
    #: Large payloads lie beside the file: a copy without them would be another fault.
    capabilities = frozenset({"backup"})

    def client(self, place: Path) -> KillproofClient:
        """Open the queue for a producer that names its backups."""
        return Daily(self.opened(place), place / BACKUPS)


target: Final = NamesBackupsByDay()
