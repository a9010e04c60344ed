"""What a broken queue brings along beside its fault is no fault: with one line mended it is clean.

Where a queue differs from the control by its fault alone, the control itself is the proof.
"""

from collections.abc import Callable
from pathlib import Path

from killproof_chaos.gallery import rows_without_parent
from killproof_chaos.gallery.buffers_in_memory import BuffersInMemory
from killproof_chaos.gallery.finishes_unknown_kinds import FinishesUnknownKinds
from killproof_chaos.gallery.keeps_reservation import KeepsReservation
from killproof_chaos.gallery.rows_without_parent import RowsWithoutParent
from killproof_chaos.sim.explore import Budget, explore
from killproof_chaos.sim.scenarios import CLAIM, SCENARIOS
from killproof_chaos.sim.schedulers import Dfs
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, LeaseLost, MinimalQueue


class ChecksItsKeys(RowsWithoutParent):
    def __init__(self, path: Path, sync: Callable[[str], None] = lambda _point: None) -> None:
        super().__init__(path, sync)
        self.db.execute("PRAGMA foreign_keys = ON")


class KnowsWhatWasApplied(KeepsReservation):
    KEYS = "CREATE TABLE IF NOT EXISTS begun (job INTEGER PRIMARY KEY, state TEXT NOT NULL) STRICT"
    RESERVE = """INSERT INTO begun VALUES (?, 'reserved')
                 ON CONFLICT (job) DO UPDATE SET state = 'reserved' WHERE state <> 'applied'"""
    APPLIED = "UPDATE begun SET state = 'applied' WHERE job = ?"

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        super().ack(lease, (self.APPLIED, (lease.id,)), *also)


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


def test_with_keys_that_tell_reserved_from_applied_each_attempt_is_made_and_nobody_fails() -> None:
    mended = MinimalTarget("mended", KnowsWhatWasApplied)

    found = explore(mended, SCENARIOS["nack"], Dfs(1), budget=Budget(seconds=None))

    assert found.broken == set()
    assert found.exhausted


def test_who_lost_a_job_that_it_does_not_know_goes_on_to_the_next(place: Path) -> None:
    class Late(FinishesUnknownKinds):
        def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
            del also
            raise LeaseLost(f"job {lease.id} is somebody else's by now")

    queue = Late(place / "queue.db")
    queue.enqueue("report", {})
    known = queue.enqueue("webhook", {})

    lease = queue.claim()

    queue.db.close()
    assert lease is not None
    assert lease.id == known


def test_a_buffer_of_jobs_that_wait_to_be_written_hides_no_key_from_another_producer(
    place: Path,
) -> None:
    one, other = BuffersInMemory(place / "queue.db"), BuffersInMemory(place / "queue.db")

    first = one.enqueue("report", {}, key="once")
    again = other.enqueue("report", {}, key="once")

    one.db.close()
    other.db.close()
    assert first == again
