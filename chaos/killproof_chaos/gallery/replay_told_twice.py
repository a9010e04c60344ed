"""Broken killproof: two people replay one dead letter, and both are told that they did."""

from pathlib import Path
from typing import Final

from killproof import Host
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.hosted import HostedQueue
from killproof_chaos.targets.killproof_adapter import LEASE_SECONDS, RETRY, KillproofTarget

FAULT: Final = Fault(
    name="replay-told-twice",
    wrong="whether a job is dead is asked before the transaction that moves it, and the answer "
    "rests on that",
    promise="P13",
    kind="the double replay: two operators, or one with a double click, and each counts the job "
    "as his",
    right="UPDATE ... WHERE state = 'dead', and the answer is the number of rows that it changed",
    engine="sim",
    options=("--scenario", "replay"),
    seen=("NikolayS/PgQue#287",),
    control="killproof",
)


class Trusting(HostedQueue):
    """A queue that looks before it writes, and not after."""

    def replay(self, id: int) -> bool:  # noqa: A002 - the seam's name
        """Look whether the job is dead; move it, and say that it was moved."""
        job = self.get(id)
        if job is None or job.state != "dead":
            return False
        super().replay(id)
        return True


class ReplayToldTwice(KillproofTarget):
    """Killproof with a replay that does not look at what it did."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> Trusting:
        """Open the queue on an injected host."""
        return Trusting(place / self.database, host, lease=LEASE_SECONDS, retry=RETRY)


target: Final = ReplayToldTwice()
