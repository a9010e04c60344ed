"""Broken killproof: each process has a bucket of tokens, so the rate grows with the workers."""

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
    name="rate-per-process",
    wrong="every worker waits a second between two of its own calls, and three workers make three "
    "calls a second",
    promise="P22",
    kind="a rate limiter in memory: the other side sees the sum, and bans the address",
    right="one bucket for each resource, in the file, drawn from in the transaction of the claim",
    engine="sim",
    options=("--scenario", "rate"),
    seen=("laurentS/slowapi#226", "grisuno/estorides#38"),
    control="killproof",
    articles=("F35",),
)
NS: Final = 1_000_000_000


class OwnBucket(HostedQueue):
    """A process with a token a second."""

    next_ns = 0

    def claim(self, kinds: Iterable[str] | None = None) -> Any:
        """Take a job unless our own last one was less than a second ago."""
        now_ns = self.database.host.clock.monotonic_ns()
        if now_ns < self.next_ns:
            return None
        lease = super().claim(kinds)
        if lease is not None:
            self.next_ns = now_ns + NS
        return lease


class RatePerProcess(KillproofTarget):
    """Killproof with a bucket in memory in place of the one in the file."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> OwnBucket:
        """Open the queue, and take its own bucket away where there is one."""
        with closing(sqlite3.connect(place / self.database)) as db:
            db.execute("DROP TRIGGER IF EXISTS limit_lease_begins")
        return OwnBucket(place / self.database, host, lease=LEASE_SECONDS, retry=RETRY)


target: Final = RatePerProcess()
