"""Broken killproof: the backup is a copy of the database file, without its write-ahead log."""

import shutil
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import BACKUPS, KillproofClient, KillproofTarget

FAULT: Final = Fault(
    name="copies-without-log",
    wrong="a backup with cp lacks what is only in the log, and is torn by a checkpoint meanwhile",
    promise="P24",
    kind="cp of a live database: it opens, it looks whole, and the last jobs are not in it",
    right="one read snapshot, copied through SQLite and read back",
    engine="proc",
    options=("--seconds", "4.5", "--nemesis", "none", "--workers", "4"),
    seconds=10,
    seen=("senigami/audiobook-studio#246", "gem/oq-engine#11752"),
    articles=("F45",),
    control="killproof",
)


class Copier(KillproofClient):
    """A client that copies files."""

    def backup(self) -> str:
        """Copy the file as it lies there."""
        self._backups.mkdir(exist_ok=True)
        number = len(list(self._backups.iterdir()))
        copy = self._backups / f"copy-{number}.db"
        shutil.copyfile(self._queue.path, copy)
        return f"{BACKUPS}/{copy.name}"


class CopiesWithoutLog(KillproofTarget):
    """Killproof, backed up by hand."""

    name = FAULT.name
    broken = True
    fault = FAULT
    #: Large payloads lie beside the file: a copy without them would be another fault.
    capabilities = frozenset({"backup"})

    def client(self, place: Path) -> KillproofClient:
        """Open the queue for a producer that copies files."""
        return Copier(self.opened(place), place / BACKUPS)


target: Final = CopiesWithoutLog()
