"""Broken killproof: whoever calls a job off is told that it is done, also when it was too late."""

from pathlib import Path
from typing import Final

from killproof import Host
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.hosted import HostedQueue
from killproof_chaos.targets.killproof_adapter import LEASE_SECONDS, RETRY, KillproofTarget

FAULT: Final = Fault(
    name="cancel-told-anyway",
    wrong="the cancel of a job that runs or has ended changes no row, and answers that it is "
    "cancelled",
    promise="P15",
    kind="a cancel that is honoured while the job waits, and confirmed whenever it is asked for",
    right="if job.state is leased, its lease ends as cancelled; else the answer is whether it is",
    engine="sim",
    options=("--scenario", "cancel-against-claim"),
    seen=("artokun/comfyui-mcp#1632", "activepieces/activepieces#14372"),
    control="killproof",
)


class Polite(HostedQueue):
    """A queue that says yes."""

    def cancel(self, job_id: int) -> bool:
        """Call a job off if it waits; say that it is called off if it does not."""
        with self.transaction() as tx:
            tx.execute(self.CANCEL, {"id": job_id, "now_ms": self.host.clock.now_ms()})
        return True


class CancelToldAnyway(KillproofTarget):
    """Killproof with a cancel that does not look at what it did."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> Polite:
        """Open the queue on an injected host."""
        return Polite(place / self.database, host, lease=LEASE_SECONDS, retry=RETRY)


target: Final = CancelToldAnyway()
