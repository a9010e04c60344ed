"""Broken killproof: the last step of a run is done, and the run goes on for ever."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof import Host, Queue
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import KillproofTarget

FAULT: Final = Fault(
    name="run-never-ends",
    wrong="the state of a run is a column that somebody has to set, and nobody does",
    promise="P23",
    kind="derived state that is not derived: all steps done, and the order still pending",
    right="the trigger workflow_run_checked, in the transaction that ends the last step",
    engine="sim",
    options=("--scenario", "diamond"),
    seen=("coral-erm/coral#569", "argoproj/argo-workflows#6254"),
    control="killproof",
    articles=("F64", "F66"),
)


class RunNeverEnds(KillproofTarget):
    """Killproof without one trigger."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> Queue:
        """Open the queue, and take the trigger away where there is one."""
        with closing(sqlite3.connect(place / self.database)) as db:
            db.execute("DROP TRIGGER IF EXISTS workflow_run_checked")
        return super().open(place, host)


target: Final = RunNeverEnds()
