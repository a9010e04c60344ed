"""Broken killproof: a handler says when to come again, and is asked again at once."""

from pathlib import Path
from typing import Final

from killproof import Host, Lease
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.hosted import HostedQueue
from killproof_chaos.targets.killproof_adapter import LEASE_SECONDS, RETRY, KillproofTarget

FAULT: Final = Fault(
    name="retry-after-ignored",
    wrong="the delay that a handler asks for, as after 429 with Retry-After, is accepted and "
    "dropped",
    promise="P9",
    kind="a retry that does not listen: the limiter of the other side is asked again within "
    "milliseconds",
    right="due_ms = now + what was asked for, in place of what the policy says",
    engine="sim",
    options=("--scenario", "snooze"),
    articles=("F35",),
    control="killproof",
)


class Impatient(HostedQueue):
    """A queue that knows no delay but its own."""

    def snooze(self, lease: Lease, delay: float) -> None:
        """Put the job off, and forget for how long."""
        super().snooze(lease, 0)


class RetryAfterIgnored(KillproofTarget):
    """Killproof that does not heed Retry-After."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> Impatient:
        """Open the queue on an injected host."""
        return Impatient(place / self.database, host, lease=LEASE_SECONDS, retry=RETRY)


target: Final = RetryAfterIgnored()
