"""Broken killproof: a step does not wait for the steps that it needs."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import KillproofTarget

FAULT: Final = Fault(
    name="step-starts-early",
    wrong="the steps of a run are available as soon as the run is started",
    promise="P23",
    kind="a graph that is checked where it is made, and not where its jobs are given out",
    right="a step is blocked until the transaction in which the last of its needs succeeds",
    engine="proc",
    options=("--seconds", "2", "--nemesis", "none", "--workers", "4"),
    seconds=10,
    control="killproof",
    articles=("F63",),
)
EARLY: Final = """
    CREATE TRIGGER early AFTER INSERT ON job WHEN NEW.state = 'blocked' BEGIN
        UPDATE job SET state = 'available' WHERE id = NEW.id;
    END"""


class StepStartsEarly(KillproofTarget):
    """Killproof with one trigger too many."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def prepare(self, place: Path) -> None:
        """Make the queue, and let nothing wait in it."""
        super().prepare(place)
        with closing(sqlite3.connect(place / self.database)) as db:
            db.execute(EARLY)


target: Final = StepStartsEarly()
