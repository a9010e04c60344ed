"""What the doctor finds, and what a repair does and refuses."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from killproof import FileRefused, ManualClock, Queue, maintenance
from killproof.maintenance import Check, compact, doctor, repair, wal_reset_affected


@pytest.fixture
def path(place: Path) -> Path:
    path = place / "queue.db"
    with Queue(path) as queue:
        queue.enqueue("k", {"n": 1})
    return path


def found(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_sound_file_has_no_faults(path: Path) -> None:
    checks = doctor(path)

    assert [check for check in checks if check.status == "fail"] == []
    assert {check.name for check in checks} == {
        "file", "sqlite", "clock", "space", "file system", "marker", "side files", "log",
        "durability", "integrity", "sharing", "write lock", "death lock",
    }  # fmt: skip
    assert "power, journal mode wal" in found(checks, "durability").text


def test_the_doctor_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    doctor(path)

    assert path.read_bytes() == before


def test_a_missing_file_is_named_with_the_remedy_and_not_made(place: Path) -> None:
    check = found(doctor(place / "nix.db"), "file")

    assert check.status == "fail"
    assert check.remedy is not None
    assert "killproof enqueue" in check.remedy
    assert not (place / "nix.db").exists()


def test_another_programs_database_is_left_alone(place: Path) -> None:
    path = place / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (n INTEGER)")
    check = found(doctor(path), "contents")

    assert (check.status, check.text) == ("fail", "the file has no killproof tables")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]


def test_a_file_that_is_no_database_is_named(place: Path) -> None:
    path = place / "text.db"
    path.write_text("no database " * 100)

    assert found(doctor(path), "contents").status == "fail"


def test_a_folder_is_no_database(place: Path) -> None:
    assert found(doctor(place), "file").status == "fail"


def test_a_file_marked_failed_is_not_opened(path: Path) -> None:
    Path(f"{path}.failed").write_text("fdatasync failed\n")
    checks = doctor(path)

    assert found(checks, "marker").status == "fail"
    assert "--repair" in (found(checks, "marker").remedy or "")
    assert not {"durability", "write lock"} & {check.name for check in checks}


def test_a_clock_that_was_set_back_is_noticed(path: Path) -> None:
    clock = ManualClock()  # In 2023, before the job was made.

    assert [check.status for check in doctor(path, clock=clock) if check.name == "clock"] == [
        "fail",
        "warn",
    ]


def test_a_log_that_is_not_reset_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "LOG_BYTES_WARN", 0)
    with Queue(path) as queue:
        queue.enqueue("k", None)

        assert found(doctor(path), "log").status == "warn"


def test_a_side_file_that_others_can_not_use_is_noticed(path: Path) -> None:
    path.chmod(0o660)
    for suffix in (".workers", ".turnstile"):
        Path(f"{path}{suffix}").touch()
        Path(f"{path}{suffix}").chmod(0o600)
    check = found(doctor(path), "side files")

    assert (check.status, check.text[:40]) == ("warn", "queue.db.workers, queue.db.turnstile: ow")
    for suffix in (".workers", ".turnstile"):
        Path(f"{path}{suffix}").chmod(0o660)
    assert found(doctor(path), "side files").status == "ok"


def test_a_rollback_journal_beside_the_file_is_noticed(path: Path) -> None:
    Path(f"{path}-journal").touch()
    check = found(doctor(path), "side files")

    assert check.status == "warn"
    assert "queue.db-journal is there" in check.text


def test_a_full_disk_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "FREE_BYTES_WARN", 1 << 80)
    assert found(doctor(path), "space").status == "warn"
    monkeypatch.setattr(maintenance, "FREE_BYTES_FAIL", 1 << 80)

    assert found(doctor(path), "space").status == "fail"


def test_a_held_write_lock_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PROBE_SECONDS", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        assert found(doctor(path), "write lock").status == "fail"
        other.execute("ROLLBACK")


def test_a_damaged_page_is_noticed(path: Path) -> None:
    with open(path, "r+b") as file:  # Nobody is connected.
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)

    assert "fail" in {check.status for check in doctor(path)}


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), True),
        ((3, 53, 0), False),
        ((3, 54, 1), False),
    ],
)
def test_the_fix_of_the_wal_reset_fault_is_known_by_its_exact_ranges(
    version: tuple[int, int, int], affected: bool
) -> None:
    assert wal_reset_affected(version) is affected


# Repair.


def fail(path: Path, *, garbage: bytes = b"") -> None:
    """Leave the file as a process does whose disk failed: a log, a marker, nobody connected."""
    leave = (
        "import os, sys; from killproof import Queue\n"
        "Queue(sys.argv[1]).enqueue('k', {'n': 2}); os._exit(0)"  # Not closed: the log stays.
    )
    subprocess.run([sys.executable, "-c", leave, path], check=True)
    with open(f"{path}-wal", "ab") as log:
        log.write(garbage)
    Path(f"{path}.failed").write_text("fdatasync failed\n")


def test_a_repair_takes_what_the_checksums_vouch_for_and_lifts_the_marker(path: Path) -> None:
    fail(path, garbage=os.urandom(24 + 4096))
    checks = repair(path)

    assert {check.status for check in checks} == {"ok"}
    assert not Path(f"{path}.failed").exists()
    with Queue(path) as queue:
        assert queue.counts()["available"] == 2


def test_a_repair_without_a_marker_does_nothing(path: Path) -> None:
    assert repair(path) == [
        Check(name="marker", status="ok", text="there is no .failed marker: nothing to repair")
    ]


def test_a_repair_beside_a_connected_process_is_refused(path: Path) -> None:
    with Queue(path, durability="power") as queue:
        queue.counts()
        Path(f"{path}.failed").write_text("fdatasync failed\n")
        with pytest.raises(FileRefused, match="open in another process"):
            repair(path)
        assert Path(f"{path}.failed").exists()
        os.unlink(f"{path}.failed")


def test_a_damaged_file_keeps_its_marker(path: Path) -> None:
    fail(path)
    os.unlink(f"{path}-wal")
    with open(path, "r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(FileRefused, match="restore it from a backup"):
        repair(path)

    assert Path(f"{path}.failed").exists()


def test_a_repair_of_a_missing_file_is_refused(place: Path) -> None:
    with pytest.raises(FileRefused, match="does not exist"):
        repair(place / "nix.db")


# Compacting.


@pytest.fixture
def large(place: Path) -> Path:
    """A file of which nearly everything was deleted."""
    path = place / "large.db"
    with Queue(path, durability="process") as queue:
        kept = queue.enqueue("k", "kept")
        queue.enqueue_many([("k", "x" * 20_000)] * 50)
        queue.claim_many(50)
        with queue.transaction() as tx:
            tx.execute("DELETE FROM job WHERE id > ?", (kept,))
    return path


def test_a_compacted_file_is_small_and_has_every_job_and_no_id_again(large: Path) -> None:
    done = compact(large)

    assert done.before_bytes > 1_000_000 > 10 * done.after_bytes
    assert done.after_bytes == large.stat().st_size
    with Queue(large) as queue:
        job = queue.get(1)
        assert job is not None
        assert job.payload == "kept"
        assert queue.enqueue("k", "new") == 52


def test_a_compaction_beside_a_connected_process_is_refused(large: Path) -> None:
    with Queue(large) as queue:
        queue.counts()
        with pytest.raises(FileRefused, match="open in another process"):
            compact(large)
        queue.enqueue("k", "goes on")


def test_a_compaction_without_room_for_it_is_refused(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.statvfs(large.parent)
    little = os.statvfs_result((here.f_bsize, 1_024, *here[2:4], 1_000, *here[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: little)
    before = large.read_bytes()
    with pytest.raises(FileRefused, match="compacting needs"):
        compact(large)

    assert large.read_bytes() == before


def test_a_file_marked_failed_or_missing_is_not_compacted(large: Path, place: Path) -> None:
    Path(f"{large}.failed").touch()
    with pytest.raises(FileRefused, match="doctor --repair first"):
        compact(large)
    with pytest.raises(FileRefused, match="does not exist"):
        compact(place / "none.db")


#: Compacts a file, and dies where it is told to.
COMPACTER = """
import os, signal, sqlite3, sys
from killproof import maintenance
class Dying(sqlite3.Connection):
    def execute(self, sql, *values):
        if sys.argv[2] == "in the middle" and sql == "VACUUM":
            self.steps = 0
            self.set_progress_handler(self.die, 5)
        if sys.argv[2] == "after it" and "wal_checkpoint" in sql:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(sql, *values)
    def die(self):
        self.steps += 1
        if self.steps == 20:
            os.kill(os.getpid(), signal.SIGKILL)
connect = sqlite3.connect
maintenance.sqlite3.connect = lambda *values, **words: connect(*values, factory=Dying, **words)
maintenance.compact(sys.argv[1])
"""


@pytest.mark.parametrize("where", ["in the middle", "after it"])
def test_a_compaction_that_is_killed_loses_nothing(large: Path, where: str) -> None:
    argv = [sys.executable, "-c", COMPACTER, str(large), where]
    assert subprocess.run(argv, check=False).returncode == -signal.SIGKILL

    with Queue(large) as queue:
        job = queue.get(1)
        assert job is not None
        assert job.payload == "kept"
        assert queue.enqueue("k", "new") == 52
        assert queue.database.peek("PRAGMA integrity_check") == [("ok",)]
    assert compact(large).after_bytes < 100_000
    assert [check for check in doctor(large) if check.status == "fail"] == []
