"""What a broken queue brings along beside its fault is no fault: with one line mended it is clean.

Where a queue differs from the control by its fault alone, the control itself is the proof.
"""

from collections.abc import Callable
from pathlib import Path

from killproof_chaos.gallery import rows_without_parent
from killproof_chaos.gallery.rows_without_parent import RowsWithoutParent
from killproof_chaos.sim.explore import Budget, explore
from killproof_chaos.sim.scenarios import CLAIM, SCENARIOS
from killproof_chaos.sim.schedulers import Dfs
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue


class ChecksItsKeys(RowsWithoutParent):
    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        super().__init__(path, sync)
        self.db.execute("PRAGMA foreign_keys = ON")


def test_a_log_that_goes_with_its_job_leaves_no_row_without_one() -> None:
    mended = MinimalTarget("mended", ChecksItsKeys, edges=rows_without_parent.EDGES)

    found = explore(mended, CLAIM, Dfs(1), budget=Budget(seconds=None))

    assert found.broken == set()
    assert "P16" in found.passed


def test_a_job_that_keeps_failing_lets_all_others_have_their_turn_in_the_control() -> None:
    control = MinimalTarget("control", MinimalQueue, promises={"P19": True})

    found = explore(control, SCENARIOS["poison"], Dfs(1), budget=Budget(seconds=None))

    assert found.broken == set()
    assert found.exhausted
