"""Broken killproof: what begins to run is not counted against its limit."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import KillproofTarget

FAULT: Final = Fault(
    name="limit-not-counted",
    wrong="a claim takes a slot of its limit and writes nothing down: the limit is never reached",
    promise="P22",
    kind="a counter that one path forgets to raise: checked everywhere, and always far from full",
    right="the trigger limit_lease_begins, in the transaction of the claim",
    engine="proc",
    options=("--seconds", "2", "--nemesis", "none", "--workers", "4"),
    seconds=10,
    control="killproof",
)


class LimitNotCounted(KillproofTarget):
    """Killproof without one trigger."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def prepare(self, place: Path) -> None:
        """Make the queue with its limits, and take the counting away."""
        super().prepare(place)
        with closing(sqlite3.connect(place / self.database)) as db:
            db.execute("DROP TRIGGER IF EXISTS limit_lease_begins")


target: Final = LimitNotCounted()
