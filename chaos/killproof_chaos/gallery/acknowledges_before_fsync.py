"""Broken queue: it does sync its log, but after it has answered."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="acknowledges-before-fsync",
    wrong="each commit is synced when the next one begins, behind the caller's back",
    promise="P1",
    kind="write-behind: an asynchronous commit whose answer does not wait for the disk",
    right="the sync ends before COMMIT returns, and so before anybody is told",
    engine="disk",
    options=("--jobs", "40", "--fail-fast"),
)


class AcknowledgesBeforeFsync(MinimalQueue):
    """Let the disk work while the caller goes on."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue; its log is synced by hand."""
        super().__init__(path, sync)
        self.db.execute("PRAGMA synchronous = NORMAL")
        self.log = f"{path}-wal"

    @contextmanager
    def writing(self, operation: str) -> Iterator[Connection]:
        """Sync what was answered before, then write and answer."""
        if os.path.exists(self.log):
            descriptor = os.open(self.log, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.close(descriptor)
        with super().writing(operation) as db:
            yield db


target: Final = MinimalTarget(FAULT.name, AcknowledgesBeforeFsync, FAULT)
