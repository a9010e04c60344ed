"""Broken queue: it opens a connection for each operation, and forgets to close it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="leaks-descriptors",
    wrong="with sqlite3.connect(...) ends a transaction and closes nothing: each operation leaves "
    "a connection with its open files to the garbage collector, which comes when it comes",
    promise="P20",
    kind="a descriptor leak: fine in every test, 'unable to open database file' after a day",
    right="one connection for each process, kept; or contextlib.closing around it",
    engine="proc",
    options=("--seconds", "3.5", "--nemesis", "none", "--workers", "2"),
    seconds=10,
    seen=("splunk/token-meter#56", "NousResearch/hermes-agent#28802"),
    articles=("F58", "F59"),
)


class LeaksDescriptors(MinimalQueue):
    """Connect anew for each operation."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue."""
        super().__init__(path, sync)
        self.path = path

    @contextmanager
    def writing(self, operation: str) -> Iterator[Connection]:
        """Run a block as a transaction of a connection of its own."""
        self.db = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        with super().writing(operation) as db:
            yield db


target: Final = MinimalTarget(FAULT.name, LeaksDescriptors, FAULT)
