"""Broken queue: a dashboard's read transaction stays open, so the log can never begin anew."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="log-never-restarts",
    wrong="one connection keeps the snapshot that its first query has opened: checkpoints stop "
    "before what it still may read, and the log grows with every job",
    promise="P20",
    kind="checkpoint starvation: a long read transaction holds the write-ahead log open",
    right="a read ends as soon as its rows are read: no BEGIN around what only looks",
    engine="proc",
    options=("--seconds", "3", "--nemesis", "none", "--workers", "2"),
    seconds=10,
    seen=("superseriousbusiness/gotosocial#2808", "openrundev/openrun#104"),
    articles=("F60",),
)


class LogNeverRestarts(MinimalQueue):
    """Look once, and never look away."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue, and a second connection for the figures of a dashboard."""
        super().__init__(path, sync)
        self.dashboard = sqlite3.connect(path, timeout=30, isolation_level=None)
        self.dashboard.execute("BEGIN")
        self.dashboard.execute("SELECT state, count(*) FROM job GROUP BY state").fetchall()


target: Final = MinimalTarget(
    FAULT.name, LogNeverRestarts, FAULT, parameters={"wal_bytes": 6 * 1024 * 1024}
)
