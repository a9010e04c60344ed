"""Killproof with its barrier taken away from one operation: `$KILLPROOF_UNSYNCED` names it.

A target for `killproof chaos disk --target tests/process/unsynced.py`. Every process of a run loads
it, so each of them answers before the disk has what it answers.
"""

import os
from typing import Any

from killproof.core.database import Database
from killproof_chaos.targets.killproof_adapter import KillproofTarget

OPERATION = os.environ["KILLPROOF_UNSYNCED"]
wait_for_disk = Database._wait_for_disk


def _settle(self: Database, handle: Any, operation: Any, _done: Any) -> None:
    """Return at once from the operation's barrier."""
    if operation != OPERATION:
        wait_for_disk(self, handle)


def _read(self: Database, handle: Any) -> None:
    """Return at once from the barrier of reads and refusals."""
    if OPERATION != "read":
        wait_for_disk(self, handle)


Database._settle = _settle  # type: ignore[assignment,method-assign]
Database._wait_for_disk = _read  # type: ignore[method-assign]

target = KillproofTarget()
