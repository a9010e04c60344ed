"""Broken queue: it starts by clearing away the log that a killed process has left behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="deletes-log-at-start",
    wrong="the -wal file is taken for a left-over, and it holds what was acknowledged last",
    promise="P1",
    kind="the hot journal deleted: a clean-up that removes a part of the database",
    right="the log is SQLite's: who opens the file after a crash recovers what is in it",
    engine="crash",
    options=("--operation", "enqueue", "--no-kills", "--fail-fast"),
    seen=("arthurprs/canopydb#18",),
)


class DeletesLogAtStart(MinimalQueue):
    """Begin with a clean folder."""

    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        """Clean up, then open the queue."""
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        super().__init__(path, sync)


target: Final = MinimalTarget(FAULT.name, DeletesLogAtStart, FAULT)
