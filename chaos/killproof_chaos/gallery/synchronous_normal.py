"""Broken queue: commits return before the log is on the disk; only a power cut tells."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="synchronous-normal",
    wrong="the log is synced at a checkpoint only, so the latest acknowledgements are in RAM",
    promise="P1",
    kind="the fast default: durability traded for speed, and the promise left as it was",
    right="PRAGMA synchronous = FULL: what is acknowledged survives a power cut",
    engine="disk",
    options=("--jobs", "40", "--fail-fast"),
    seen=("ohdearquant/khive#1408", "WordPress/sqlite-database-integration#483"),
)


class SynchronousNormal(MinimalQueue):
    """Trust the setting that most articles recommend for the write-ahead log."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue, then lower its guard."""
        super().__init__(path, sync)
        self.db.execute("PRAGMA synchronous = NORMAL")


target: Final = MinimalTarget(FAULT.name, SynchronousNormal, FAULT)
