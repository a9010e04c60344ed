"""Broken queue: what falls due is written with REPLACE, which makes another row of the same id."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="replaces-the-row",
    wrong="INSERT OR REPLACE deletes the row that waits without a word and inserts one that is "
    "due: for whoever counts what comes and goes, there is one job more",
    promise="P14",
    kind="the upsert that is no update: triggers, foreign keys and counters see a birth, no move",
    right="UPDATE job SET state = 'available' WHERE state = 'scheduled' AND due_ms <= ?",
    engine="sim",
    options=("--scenario", "promote"),
    seen=("cashubtc/cdk#620", "simonw/sqlite-chronicle#7"),
)


class ReplacesTheRow(MinimalQueue):
    """Write the whole row anew where one column changes."""

    PROMOTE = """INSERT OR REPLACE INTO job
                 SELECT id, kind, payload, 'available', priority, due_ms, key, max_attempts,
                        attempts, fence, NULL, error
                   FROM job WHERE state = 'scheduled' AND due_ms <= ?"""


target: Final = MinimalTarget(FAULT.name, ReplacesTheRow, FAULT)
