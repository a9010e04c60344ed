"""Broken queue: a child goes on with the connection that its parent has opened, and closes."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="forks-with-an-open-connection",
    wrong="a child writes through its parent's connection, and has none of its locks: the parent "
    "takes itself for the last one as it closes, and removes the -wal that the child writes to",
    promise="P1",
    kind="a connection carried over fork: SQLite's locks belong to the process that took them",
    right="self.db.close() before the fork: afterwards each process opens a connection of its own",
    engine="crash",
    options=("--operation", "enqueue", "--no-errors", "--fail-fast"),
    seen=("rails/solid_queue#324", "tox-dev/filelock#635"),
)


class ForksWithAnOpenConnection(MinimalQueue):
    """Have each job put in by a child, as a server that forks for each request does."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue."""
        super().__init__(path, sync)
        self.path = path

    def enqueue(self, *values: Any, **options: Any) -> int:
        """Store a job in a child, to which this process leaves the connection."""
        closed, close = os.pipe()
        answer, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.read(closed, 1)  # The parent has closed its side of it.
                os.write(tell, str(super().enqueue(*values, **options)).encode())
            finally:
                os._exit(0)  # The rest of this process is its parent's.
        self.db.close()
        os.write(close, b".")
        os.close(tell)
        told = os.read(answer, 20)
        os.waitpid(child, 0)
        for end in (closed, close, answer):
            os.close(end)
        self.open(self.path)
        if not told:
            raise sqlite3.OperationalError("the child has not answered")
        return int(told)

    def open(self, path: Path) -> None:
        """Open the connection of this process."""
        self.db = sqlite3.connect(path, timeout=30, isolation_level=None)


target: Final = MinimalTarget(FAULT.name, ForksWithAnOpenConnection, FAULT)
