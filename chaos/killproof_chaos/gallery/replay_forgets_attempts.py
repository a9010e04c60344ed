"""Broken killproof: a replay begins with a clean slate, and throws away how the job died."""

from pathlib import Path
from typing import Final

from killproof import Host
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.hosted import HostedQueue
from killproof_chaos.targets.killproof_adapter import LEASE_SECONDS, RETRY, KillproofTarget

FAULT: Final = Fault(
    name="replay-forgets-attempts",
    wrong="the attempts of a dead job are deleted when it is replayed, so the next dead letter "
    "tells half",
    promise="P13",
    kind="lost diagnosis: the evidence is removed by the very act that shall find out whether it"
    " is mended",
    right="a replay forgives the old attempts and keeps their rows",
    engine="sim",
    options=("--scenario", "replay", "--keep-going"),
    articles=("F33",),
    control="killproof",
)


class Forgetful(HostedQueue):
    """A queue that tidies up what is replayed."""

    def replay(self, id: int) -> bool:  # noqa: A002 - the seam's name
        """Move a dead job, and forget the attempts that it had."""
        moved = super().replay(id)
        if moved:
            with self.transaction() as tx:
                tx.execute("DELETE FROM attempt WHERE job_id = :id", {"id": id})
        return moved


class ReplayForgetsAttempts(KillproofTarget):
    """Killproof whose replays cost the history."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> Forgetful:
        """Open the queue on an injected host."""
        return Forgetful(place / self.database, host, lease=LEASE_SECONDS, retry=RETRY)


target: Final = ReplayForgetsAttempts()
