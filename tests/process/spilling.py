"""Killproof with every payload in a file; `$KILLPROOF_UNSYNCED=payloads` takes their syncs away.

A target for `killproof chaos disk --target tests/process/spilling.py`, which then cuts the power
between the calls that write those files. Jobs are read as the target's snapshot gives them, so that
a payload counts only if its file proves it.
"""

import os
import sys
from pathlib import Path
from typing import Any

from killproof.payload_files import Folder
from killproof.payloads import Payloads
from killproof_chaos.targets.killproof_adapter import (
    BACKUPS,
    LEASE_SECONDS,
    RETRY,
    KillproofClient,
    KillproofTarget,
)

IS_SYNCED = os.environ.get("KILLPROOF_UNSYNCED") != "payloads"


class SpillingClient(KillproofClient):
    """A producer whose payloads all go into files."""

    def enqueue(self, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Put a job in."""
        large = Payloads(self._queue, threshold=0)
        large.folder = Folder(self._queue.path, durable=IS_SYNCED)
        return large.enqueue(kind, payload, lease=LEASE_SECONDS, retry=RETRY, **options)


class SpillingTarget(KillproofTarget):
    """Its workers are killproof's own."""

    name = "spilling"
    audit = None

    def client(self, place: Path) -> SpillingClient:
        """Open the queue for a producer."""
        return SpillingClient(self.opened(place), place / BACKUPS)

    def worker_argv(self, place: Path) -> list[str]:
        """Return the command line of a worker."""
        return [sys.executable, "-m", "killproof_chaos.targets.worker", "killproof", str(place)]


target = SpillingTarget()
