"""Broken killproof: a step that failed for good counts as done for those that need it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof import Host, Queue
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import KillproofTarget

FAULT: Final = Fault(
    name="failed-step-goes-on",
    wrong="a step is let go when what it needs has ended, and nobody asks how it ended",
    promise="P23",
    kind="failure that does not propagate: the card is charged for the order that was not checked",
    right="what needs a failed step is cancelled in the transaction in which that fails",
    engine="sim",
    options=("--scenario", "diamond-failed"),
    seen=("lanl/BEE#688",),
    control="killproof",
    articles=("F64", "F65"),
)
#: Killproof's own trigger: where it asks for a success, any end will do.
ENDED: Final = """
    SELECT replace(sql, 'NEW.state = ''succeeded''', 'NEW.state IN (''succeeded'', ''dead'')')
      FROM sqlite_schema WHERE name = 'workflow_step_ended'"""


class FailedStepGoesOn(KillproofTarget):
    """Killproof with one trigger that asks for less."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> Queue:
        """Open the queue, and weaken its trigger where there is one."""
        with closing(sqlite3.connect(place / self.database)) as db:
            for (trigger,) in db.execute(ENDED).fetchall():
                db.execute("DROP TRIGGER workflow_step_ended")
                db.execute(trigger)
        return super().open(place, host)


target: Final = FailedStepGoesOn()
