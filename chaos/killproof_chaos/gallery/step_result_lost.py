"""Broken killproof: a step's result is not kept, so those who need it are given nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import KillproofTarget

FAULT: Final = Fault(
    name="step-result-lost",
    wrong="what a step has returned lives in its worker, and the next step runs in another one",
    promise="P23",
    kind="no memoised results: a workflow that is resumed has an order of steps, and no data",
    right="the result is written in the transaction of the ack, and read by whoever needs it",
    engine="proc",
    options=("--seconds", "2", "--nemesis", "none", "--workers", "4"),
    seconds=10,
    control="killproof",
    articles=("F67",),
)
FORGET: Final = """
    CREATE TRIGGER forget AFTER UPDATE OF result ON job WHEN NEW.result IS NOT NULL BEGIN
        UPDATE job SET result = NULL WHERE id = NEW.id;
    END"""


class StepResultLost(KillproofTarget):
    """Killproof with one trigger too many."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def prepare(self, place: Path) -> None:
        """Make the queue, and let it forget."""
        super().prepare(place)
        with closing(sqlite3.connect(place / self.database)) as db:
            db.execute(FORGET)


target: Final = StepResultLost()
