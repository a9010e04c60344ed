"""Broken queue: it waits for no lock, so every call that meets another one fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="fails-fast",
    wrong="the busy timeout is zero: 'database is locked' reaches whoever calls while another "
    "writes, and kills the worker that did not expect it",
    promise="P16",
    kind="SQLITE_BUSY unhandled: one writer at a time, and nobody who waits for his turn",
    right="timeout=30: SQLite asks again for as long before it gives up",
    engine="sim",
    options=("--scenario", "claim"),
    seen=("os-autoinst/openQA#4931",),
    articles=("F15", "F16", "F19"),
)


class FailsFast(MinimalQueue):
    """Take the first no for an answer."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue, then lose all patience."""
        super().__init__(path, sync)
        self.db.execute("PRAGMA busy_timeout = 0")


target: Final = MinimalTarget(FAULT.name, FailsFast, FAULT)
