"""Broken queue: it looks at its own file with open() and close(), which gives up SQLite's locks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from killproof_chaos.gallery import SHORT, Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="drops-file-locks",
    wrong="each transaction opens and closes the -shm file, which drops the locks that its process "
    "has on it: two processes write at once",
    promise="P16",
    kind="POSIX locks belong to the process: any close() of any descriptor of the file drops them",
    right="what is inside the files is asked of SQLite, never of open()",
    engine="proc",
    options=SHORT,
    seconds=10,
    seen=("NousResearch/hermes-agent#71724", "MemPalace/mempalace#2471"),
    also=frozenset({"P1", "P4", "P5", "P6", "P8", "P21"}),
)


class DropsFileLocks(MinimalQueue):
    """Make sure that the file is still a good one."""

    @contextmanager
    def writing(self, operation: str) -> Iterator[Connection]:
        """Run a block as one transaction, after a look at the file."""
        with super().writing(operation) as db:
            database = db.execute("PRAGMA database_list").fetchone()[2]
            Path(f"{database}-shm").read_bytes()
            yield db


target: Final = MinimalTarget(FAULT.name, DropsFileLocks, FAULT)
