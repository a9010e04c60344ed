"""Broken queue: lost jobs are taken back when a worker starts, and at no other time."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="reaps-at-start-only",
    wrong="while the other workers live on, nobody rescues what one of them has left behind",
    promise="P17",
    kind="recovery tied to a restart: the process that could rescue is the one that never ends",
    right="whoever claims takes back what ran out, each time",
    engine="sim",
    options=("--scenario", "claim", "--crashes", "1"),
    seen=("msei99/pbgui#287",),
    articles=("F24",),
)


class ReapsAtStartOnly(MinimalQueue):
    """Tidy up once, on arrival."""

    AT_START, REAP = MinimalQueue.REAP, "UPDATE job SET error = error WHERE FALSE AND fence = ?"

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Open the queue and take back what has run out by now."""
        super().__init__(path, sync)
        with self.writing("reap") as db:
            db.execute(self.AT_START, (time.monotonic_ns(),))


target: Final = MinimalTarget(FAULT.name, ReapsAtStartOnly, FAULT)
