"""What clean-up took too early or all at once, and a restore over a live file.

The clock moves by hand. Each control takes one guard out of a statement, a bound or a look.
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from itertools import pairwise
from pathlib import Path

import pytest

from killproof import FileRefused, Host, ManualClock, Queue, backup, retention
from killproof.core.model import TERMINAL

DAY = 86_400.0
KEPT = dict.fromkeys(TERMINAL, 7 * DAY)


def opened(place: Path, clock: ManualClock) -> Queue:
    return Queue(place / "q.db", durability="process", host=Host(clock=clock))


def fails(check: Callable[[Path], None], place: Path) -> bool:
    """Whether the check finds the fault."""
    try:
        check(place)
    except AssertionError:
        return True
    return False


# B8: clean-up that counts from the creation.


def check_kept_from_the_end(place: Path) -> None:
    clock = ManualClock()
    with opened(place, clock) as queue:
        far = queue.enqueue("far ahead", 1, delay=10 * DAY)
        long = queue.enqueue("long", 2, lease=30 * DAY)
        held = queue.claim(["long"])
        assert held is not None
        clock.advance(8 * DAY)
        queue.ack(held)
        retention.prune(queue, KEPT)
        kept = [queue.get(far), queue.get(long)]
        clock.advance(8 * DAY)
        late = queue.claim(["far ahead"])
        retention.prune(queue, KEPT)

        assert None not in kept
        assert late is not None
        assert queue.get(long) is None, "eight days after its end it may go"


def test_a_job_is_kept_for_its_time_from_its_end(place: Path) -> None:
    """B8: clean-up took a job far ahead before it was due, and a long one the moment it ended."""
    check_kept_from_the_end(place)


def test_a_retention_that_counts_from_the_creation_is_seen(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B8, control."""
    for name in ("FIRST", "DELETE"):
        right = getattr(retention, name)
        early = right.replace("finished_ms < :before_ms", "created_ms < :before_ms")
        assert early != right
        monkeypatch.setattr(retention, name, early)

    assert fails(check_kept_from_the_end, place)


# B128: clean-up that takes too much at once.


def check_others_get_their_turn(place: Path) -> None:
    clock = ManualClock()
    with opened(place, clock) as queue, opened(place, clock) as other:
        for _ in range(3):
            queue.enqueue_many([("kind", None)] * 1_000)
        with queue.transaction() as tx:
            tx.change(
                "UPDATE job SET state = 'cancelled', finished_ms = :now", {"now": clock.now_ms()}
            )
        clock.advance(8 * DAY)
        steps = [0]

        def step(deleted: int) -> None:
            other.enqueue("in between", deleted)
            steps.append(deleted)

        retention.prune(queue, KEPT, progress=step)

        assert queue.counts()["cancelled"] == 0
        assert max(b - a for a, b in pairwise(steps)) <= 1_000, "so many in one hold of the lock"


def test_a_prune_of_many_jobs_lets_everybody_else_in_between(place: Path) -> None:
    """B128: clearing finished jobs held the file for minutes."""
    check_others_get_their_turn(place)


def test_a_prune_in_one_go_is_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B128, control."""
    monkeypatch.setattr(retention, "PRUNE_BATCH", 1_000_000)

    assert fails(check_others_get_their_turn, place)


# B82: a restore over the live file.


def check_the_live_file_is_safe(place: Path) -> None:
    clock = ManualClock()
    with opened(place, clock) as queue:
        queue.enqueue("old", 1)
        saved = backup.backup(queue, place).path
        new = queue.enqueue("new", 2)
        with pytest.raises(FileRefused, match="is open in another process"):
            backup.restore(saved, place / "q.db", force=True)
        assert queue.get(new) is not None
        queue.enqueue("newer", 3)
    restored = backup.restore(saved, place / "q.db", force=True)
    with closing(sqlite3.connect(place / "q.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("SELECT kind FROM job").fetchall() == [("old",)]
    assert restored.replaced is not None, "what was there is kept under another name"


def test_a_restore_waits_for_nobody_and_never_mixes_two_histories(place: Path) -> None:
    """B82: a backup was copied over the live file, beside the old log."""
    check_the_live_file_is_safe(place)


def test_a_restore_that_does_not_look_who_is_there_is_seen(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B82, control."""
    monkeypatch.setattr(backup, "_nobody_else", lambda _: nullcontext())

    with pytest.raises(pytest.fail.Exception):
        check_the_live_file_is_safe(place)


def test_a_backup_that_is_copied_over_the_file_beside_its_log_is_seen_to_mix(place: Path) -> None:
    """B82, control: the log of the lost history is played into the restored file."""
    clock = ManualClock()
    with opened(place, clock) as queue:
        queue.enqueue("old", 1)
        saved = backup.backup(queue, place).path
        queue.enqueue("new", 2)
        for part in ("-wal", "-shm"):
            shutil.copy(f"{queue.path}{part}", place / f"kept{part}")
    shutil.copy(saved, place / "kept")
    with closing(sqlite3.connect(place / "kept")) as db:
        rows = db.execute("SELECT kind FROM job ORDER BY id").fetchall()

    assert rows != [("old",)]
