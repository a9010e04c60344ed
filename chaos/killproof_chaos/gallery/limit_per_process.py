"""Broken killproof: each process keeps the limit for itself, so there are as many as processes."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from killproof import Host
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.hosted import HostedQueue
from killproof_chaos.targets.killproof_adapter import LEASE_SECONDS, RETRY, KillproofTarget

FAULT: Final = Fault(
    name="limit-per-process",
    wrong="a semaphore in each worker's memory lets through as many as it may, and so do the "
    "semaphores of all the others",
    promise="P22",
    kind="a limit that is not global: it holds in the test with one process",
    right="the place is taken in the file, in the transaction of the claim",
    engine="sim",
    options=("--scenario", "mutex"),
    control="killproof",
    articles=("F13",),
)


class OwnSemaphore(HostedQueue):
    """A process that counts its own jobs."""

    running = 0

    def claim(self, kinds: Iterable[str] | None = None) -> Any:
        """Take a job unless one of our own runs."""
        if self.running:
            return None
        lease = super().claim(kinds)
        self.running += lease is not None
        return lease

    def ack(self, lease: Any, result: object = None) -> None:
        """Finish a job, and make room for the next."""
        super().ack(lease, result)
        self.running -= 1

    def nack(self, lease: Any, error: Any, **options: Any) -> None:
        """Give a job up, and make room for the next."""
        super().nack(lease, error, **options)
        self.running -= 1


class LimitPerProcess(KillproofTarget):
    """Killproof with a limit in memory in place of the one in the file."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> OwnSemaphore:
        """Open the queue, and take its own counting away where there is any."""
        with closing(sqlite3.connect(place / self.database)) as db:
            db.execute("DROP TRIGGER IF EXISTS limit_lease_begins")
        return OwnSemaphore(place / self.database, host, lease=LEASE_SECONDS, retry=RETRY)


target: Final = LimitPerProcess()
