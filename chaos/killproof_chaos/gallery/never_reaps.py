"""Broken queue: nobody takes back what a dead worker held."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="never-reaps",
    wrong="a lease has a deadline, and nobody looks at it: a job whose worker died is leased for "
    "ever",
    promise="P17",
    kind="the orphaned job: stuck in 'running' after a crash, until somebody edits the table",
    right="each claim first takes back what ran out: db.execute(self.REAP, (now_ns,))",
    engine="sim",
    options=("--scenario", "claim", "--crashes", "1"),
    seen=("rails/solid_queue#159", "Extra-Chill/data-machine#3478"),
    articles=("F24", "F25", "F26"),
)


class NeverReaps(MinimalQueue):
    """Trust every worker to come back."""

    REAP = "UPDATE job SET error = error WHERE FALSE AND deadline_ns <= ?"


target: Final = MinimalTarget(FAULT.name, NeverReaps, FAULT)
