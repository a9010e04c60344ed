"""Broken killproof: a cancel looks whether the job waits, and writes a moment later."""

from pathlib import Path
from typing import Final

from killproof import Host
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.hosted import HostedQueue
from killproof_chaos.targets.killproof_adapter import LEASE_SECONDS, RETRY, KillproofTarget

FAULT: Final = Fault(
    name="cancel-checks-first",
    wrong="a job that is claimed and done between the look and the write goes from succeeded to "
    "cancelled",
    promise="P7",
    kind="check-then-act on the operator's side: the race of a cancel with the claim",
    right="the look and the write in one transaction, and the state in its WHERE",
    engine="sim",
    options=("--scenario", "cancel-against-claim"),
    seen=("Comfy-Org/ComfyUI#14493",),
    control="killproof",
)
OVERWRITE: Final = """
    UPDATE job SET state = 'cancelled', owner = NULL, lease_deadline_ns = NULL, result = NULL,
                   finished_ms = :now_ms, updated_ms = :now_ms
     WHERE id = :id"""


class Hasty(HostedQueue):
    """A queue that writes what it has decided before."""

    def cancel(self, job_id: int) -> bool:
        """Look at the job; then call it off, whatever has become of it."""
        job = self.get(job_id)
        if job is None or job.state != "available":
            return super().cancel(job_id)
        with self.transaction() as tx:
            tx.execute(OVERWRITE, {"id": job_id, "now_ms": self.host.clock.now_ms()})
        return True


class CancelChecksFirst(KillproofTarget):
    """Killproof with a cancel in two steps."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> Hasty:
        """Open the queue on an injected host."""
        return Hasty(place / self.database, host, lease=LEASE_SECONDS, retry=RETRY)


target: Final = CancelChecksFirst()
