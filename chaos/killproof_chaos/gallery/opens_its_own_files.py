"""Broken queue: it looks at its own files beside SQLite, and so drops SQLite's locks."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="opens-its-own-files",
    wrong="POSIX locks belong to the process: closing any descriptor of a file drops them all, and "
    "whoever measures the file by opening it writes from then on without the lock he believes in",
    promise="P16",
    kind="close() drops every lock of the process on that file: two writers, a malformed database",
    right="os.stat(path).st_size: nothing is opened, so nothing is closed",
    engine="proc",
    options=("--seconds", "2.5", "--nemesis", "none", "--workers", "6"),
    seconds=10,
    seen=("NousResearch/hermes-agent#71724", "MemPalace/mempalace#2471"),
    # A file that is not whole keeps no promise that is kept in it.
    also=frozenset(f"P{n}" for n in (*range(1, 9), *range(10, 15), 17, 20, 21) if n != 13),
)


class OpensItsOwnFiles(MinimalQueue):
    """Know how large the queue is, at each write."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue; remember where it lies."""
        super().__init__(path, sync)
        self.files, self.bytes = [path, Path(f"{path}-wal"), Path(f"{path}-shm")], 0

    @contextmanager
    def writing(self, operation: str) -> Iterator[Connection]:
        """Run a block as one transaction, and measure the files in it."""
        with super().writing(operation) as db:
            self.bytes = 0
            for file in self.files:
                with suppress(FileNotFoundError), open(file, "rb") as opened:
                    self.bytes += opened.seek(0, os.SEEK_END)
            yield db


target: Final = MinimalTarget(FAULT.name, OpensItsOwnFiles, FAULT)
