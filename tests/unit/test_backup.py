"""A backup holds what was there and nothing else; a restore begins another history."""

import errno
import os
import runpy
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from killproof import FileRefused, Host, Lease, LeaseLost, ManualClock, Queue, backup, presence
from killproof.backup import BackupDamaged, Restored, restore
from killproof.backup import backup as back_up
from killproof.heartbeat import Tenure
from killproof.worker import Context

Sql = Callable[..., list[tuple[object, ...]]]


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def read(path: str | Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


@pytest.fixture
def folder(place: Path) -> Path:
    folder = place / "backups"
    folder.mkdir()
    return folder


# Backups.


def test_a_backup_holds_what_only_the_log_held(queue: Queue, folder: Path) -> None:
    """Covers S0.75, S1.42, F45: `cp` of a live file holds none of these rows, and looks well."""
    ids = queue.enqueue_many([("k", number) for number in range(100)])
    assert os.stat(f"{queue.path}-wal").st_size > 0
    done = back_up(queue, folder)

    assert (done.jobs, done.counts) == (100, {"available": 100})
    assert read(done.path, "SELECT id FROM job ORDER BY id") == [(job_id,) for job_id in ids]
    assert read(done.path, "PRAGMA integrity_check") == [("ok",)]
    assert done.bytes == os.stat(done.path).st_size


def test_a_leftover_that_can_not_be_removed_is_named_and_undoes_nothing(
    queue: Queue,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine `crash` met the driver's own error here: EIO at the unlink of the copy's log."""
    unlink = Path.unlink

    def failing(path: Path, missing_ok: bool = False) -> None:
        if path.name.endswith("-wal"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        unlink(path, missing_ok=missing_ok)

    queue.enqueue("k", 1)
    monkeypatch.setattr(Path, "unlink", failing)
    done = back_up(queue, folder)

    assert done.jobs == 1
    assert "is left over (Input/output error): remove it" in caplog.text


def test_the_example_makes_a_backup_as_a_job(queue: Queue, place: Path, clock: ManualClock) -> None:
    """Covers S1.42, S1.43: the folder is made, the result says where and how large."""
    example = Path(__file__).parents[2] / "examples/daily_backup.py"
    handlers = runpy.run_path(str(example))["handlers"]
    payload = {"folder": str(place / "new" / "folder"), "db": queue.path}
    job_id = queue.enqueue("backup", payload)
    lease = claimed(queue)
    context = Context(queue, Tenure(lease, now_ns=clock.monotonic_ns()), clock)
    result = handlers["backup"].function(context)

    assert set(result) == {"backup_file", "size_mb"}
    assert result["size_mb"] == round(os.stat(result["backup_file"]).st_size / 1e6, 2)
    assert read(result["backup_file"], "SELECT id FROM job") == [(job_id,)]


def test_a_backup_is_one_file_in_no_journal_and_as_private_as_the_original(
    queue: Queue, folder: Path
) -> None:
    os.chmod(queue.path, 0o600)
    path = Path(back_up(queue, folder).path)

    assert os.listdir(folder) == [path.name]
    assert read(path, "PRAGMA journal_mode") == [("delete",)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_backups_of_one_millisecond_have_names_of_their_own(queue: Queue, folder: Path) -> None:
    """Covers F45."""
    paths = [Path(back_up(queue, folder).path).name for _ in range(3)]

    assert paths == [
        "queue-20231114T221320.000Z.db",
        "queue-20231114T221320.000Z-2.db",
        "queue-20231114T221320.000Z-3.db",
    ]


def test_a_file_that_is_there_is_never_replaced(queue: Queue, folder: Path) -> None:
    taken = folder / "queue-20231114T221320.000Z.db"
    taken.write_text("mine")
    done = back_up(queue, folder)

    assert taken.read_text() == "mine"
    assert done.path != str(taken)


def test_nothing_is_replaced_on_a_file_system_without_hard_links_either(
    queue: Queue, folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: object, target: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    queue.enqueue("k", 1)
    first, second = back_up(queue, folder), back_up(queue, folder)
    path = queue.path
    queue.close()
    done = restore(first.path, path, force=True)

    assert first.path != second.path
    assert sorted(os.listdir(folder)) == sorted(Path(one.path).name for one in (first, second))
    assert read(str(done.replaced), "SELECT count(*) FROM job") == [(1,)]
    assert read(second.path, "SELECT count(*) FROM job") == [(1,)]


def test_in_a_backup_nobody_works_and_no_attempt_was_lost(
    queue: Queue, folder: Path, sql: Sql
) -> None:
    job_id = queue.enqueue("k", 1, max_attempts=1)
    lease = claimed(queue)
    presence.announce(queue, ["k"])
    path = back_up(queue, folder).path

    assert read(path, "SELECT id, state, owner, fence, deliveries, forgiven FROM job") == [
        (job_id, "available", None, 1, 1, 1)
    ]
    assert read(path, "SELECT fence, outcome, error_class FROM attempt") == [
        (1, "released", "BackedUp")
    ]
    assert read(path, "SELECT count(*) FROM worker") == [(0,)]
    assert read(path, "SELECT count(*) FROM worker_kind") == [(0,)]
    queue.ack(lease)  # In the file itself nothing has changed for the one who works there.


def test_the_applications_own_tables_are_copied_as_they_are(queue: Queue, folder: Path) -> None:
    """Also one with the name of a table that killproof would like to have."""
    with queue.transaction() as tx:
        tx.execute("CREATE TABLE worker_kind (mine INTEGER)")
        tx.execute("INSERT INTO worker_kind VALUES (7)")

    assert read(back_up(queue, folder).path, "SELECT * FROM worker_kind") == [(7,)]


def test_a_backup_is_written_down_in_the_file(
    queue: Queue, folder: Path, sql: Sql, clock: ManualClock
) -> None:
    path = back_up(queue, folder).path

    assert sql("SELECT value FROM killproof_setting WHERE name = 'last_backup'") == [
        (f"{clock.now_ms()} {path}",)
    ]


def test_a_backup_of_many_pages_tells_how_far_it_is(
    queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "STEP_PAGES", 10)
    queue.enqueue_many([("k", "x" * 2_000) for _ in range(100)])
    steps: list[tuple[int, int]] = []
    back_up(queue, folder, progress=lambda done, total: steps.append((done, total)))

    assert len(steps) > 3
    assert steps[-1][0] == steps[-1][1] > 200_000


def test_a_commit_during_a_backup_neither_starts_it_anew_nor_gets_into_it(
    queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one snapshot, under load too.  Method: a commit after each step of ten pages."""
    monkeypatch.setattr(backup, "STEP_PAGES", 10)
    queue.enqueue_many([("k", "x" * 2_000) for _ in range(100)])
    steps: list[int] = []

    def enqueue(done: int, total: int) -> None:
        steps.append(done)
        assert len(steps) < 100, "it starts anew with each commit"
        with Queue(queue.path) as other:
            other.enqueue("k", "y" * 2_000)

    done = back_up(queue, folder, progress=enqueue)

    assert done.jobs == 100
    assert steps == sorted(set(steps))
    assert queue.counts()["available"] == 100 + len(steps)


@pytest.mark.parametrize(
    ("index", "page", "said"),
    [
        ("job_available", bytes.fromhex("0a0000000010000000"), "has {'available': 2}, not {}"),
        ("job_key", b"\xff" * 100, "integrity_check|malformed"),
    ],
)
def test_a_damaged_file_gives_no_backup(
    queue: Queue, folder: Path, sql: Sql, index: str, page: bytes, said: str
) -> None:
    """Goal: what was copied has been read.  Method: an index that is empty, or no index at all."""
    queue.enqueue("k", 1)
    queue.enqueue("k", 1)
    ((number,),) = sql("SELECT rootpage FROM sqlite_schema WHERE name = ?", index)
    queue.close()
    sql("PRAGMA wal_checkpoint(TRUNCATE)")
    assert isinstance(number, int)
    damage = (
        "import sys; file = open(sys.argv[1], 'r+b'); file.seek((int(sys.argv[2]) - 1) * 4096);"
        "file.write(bytes.fromhex(sys.argv[3])); file.close()"
    )  # In another process: here the fixture has the file open.
    command = [sys.executable, "-c", damage, queue.path, str(number), page.hex()]
    subprocess.run(command, check=True)
    with Queue(queue.path) as damaged, pytest.raises(BackupDamaged, match=said):
        back_up(damaged, folder)

    assert os.listdir(folder) == []


def test_a_folder_that_is_not_there_is_named(queue: Queue, folder: Path) -> None:
    with pytest.raises(FileRefused, match=r"nowhere: No such file or directory: name another"):
        back_up(queue, folder / "nowhere")


# Restores.


@pytest.fixture
def saved(queue: Queue, folder: Path) -> str:
    """A backup of a queue with one job done, one running and one with a key."""
    queue.enqueue("k", "done")
    queue.ack(claimed(queue), "yes")
    queue.enqueue("k", "running")
    claimed(queue)
    queue.enqueue("k", "keyed", key="order:7", delay=60)
    return back_up(queue, folder).path


def test_a_restored_file_is_a_queue_with_the_jobs_of_the_backup(
    saved: str, place: Path, clock: ManualClock
) -> None:
    """Covers S2.16."""
    done = restore(saved, place / "new.db", clock=clock)

    assert done == Restored(
        path=str(place / "new.db"),
        jobs=3,
        counts={"available": 1, "scheduled": 1, "succeeded": 1},
        replaced=None,
    )
    with Queue(done.path, host=Host(clock=clock)) as queue:
        assert claimed(queue).job.payload == "running"
        assert (queue.get(1) or pytest.fail("gone")).result == "yes"
        assert queue.durability == "process"


def test_numbers_of_the_lost_history_are_not_given_out_again(
    queue: Queue, saved: str, place: Path, clock: ManualClock
) -> None:
    """Goal: an id or a fence that somebody wrote down after the backup is never another job's."""
    later = queue.enqueue("k", "after the backup")
    with Queue(restore(saved, place / "new.db", clock=clock).path, host=Host(clock=clock)) as new:
        assert new.get(later) is None
        assert new.enqueue("k", 1) > later + 1_000
        assert claimed(new).fence > 1_000


def test_a_worker_of_the_lost_history_has_no_say_in_the_new_one(
    queue: Queue, place: Path, folder: Path, clock: ManualClock
) -> None:
    queue.enqueue("k", 1)
    lease = claimed(queue)
    path = restore(back_up(queue, folder).path, place / "new.db", clock=clock).path
    with Queue(path, host=Host(clock=clock)) as new:
        with pytest.raises(LeaseLost):
            new.ack(lease)
        claimed(new)
        with pytest.raises(LeaseLost):
            new.ack(lease)


def test_a_key_lives_again_with_its_job(saved: str, place: Path, clock: ManualClock) -> None:
    with Queue(restore(saved, place / "new.db", clock=clock).path) as new:
        assert new.enqueue("k", "again", key="order:7") == 3


def test_a_restore_onto_a_file_is_refused_and_changes_nothing(queue: Queue, saved: str) -> None:
    before = queue.enqueue("k", "after the backup")
    with pytest.raises(FileRefused, match="exists: name a file that does not"):
        restore(saved, queue.path)

    assert queue.get(before) is not None


def test_even_a_forced_restore_is_refused_while_somebody_has_the_file_open(
    queue: Queue, saved: str
) -> None:
    before = queue.enqueue("k", "after the backup")
    with pytest.raises(FileRefused, match="open in another process: end all of them"):
        restore(saved, queue.path, force=True)

    assert queue.get(before) is not None
    assert not [name for name in os.listdir(Path(queue.path).parent) if "partial" in name]


def test_a_forced_restore_keeps_what_was_there(queue: Queue, saved: str) -> None:
    last = queue.enqueue("k", "after the backup")
    path = queue.path
    queue.close()
    done = restore(saved, path, force=True)

    assert done.replaced is not None
    assert read(done.replaced, "SELECT max(id) FROM job") == [(last,)]
    with Queue(path) as new:
        assert new.get(last) is None
        assert new.enqueue("k", 1) > last


def test_a_file_that_is_no_database_any_more_can_be_replaced(queue: Queue, saved: str) -> None:
    path = queue.path
    queue.close()
    Path(path).write_text("a disk has written this\n" * 1_000)
    Path(f"{path}.failed").write_text("fdatasync failed\n")
    done = restore(saved, path, force=True)

    assert Path(str(done.replaced)).read_text().startswith("a disk has written this")
    with Queue(path) as new:
        assert new.counts()["succeeded"] == 1


def test_a_log_without_its_database_is_in_the_way(saved: str, place: Path) -> None:
    """SQLite would take it for the new file's own."""
    (place / "new.db-wal").write_bytes(b"frames")
    with pytest.raises(FileRefused, match=r"new\.db-wal exists"):
        restore(saved, place / "new.db")
    done = restore(saved, place / "new.db", force=True)

    assert Path(f"{done.replaced}-wal").read_bytes() == b"frames"
    assert not (place / "new.db-wal").exists()


@pytest.mark.parametrize("content", [b"no database " * 100, b""])
def test_what_is_no_backup_is_refused_and_nothing_is_made(place: Path, content: bytes) -> None:
    (place / "text").write_bytes(content)
    with pytest.raises((BackupDamaged, FileRefused), match="text"):
        restore(place / "text", place / "new.db")

    assert os.listdir(place) == ["text"]


def test_a_damaged_backup_is_refused(saved: str, place: Path) -> None:
    with open(saved, "r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(BackupDamaged, match=r"use another backup|integrity_check"):
        restore(saved, place / "new.db")

    assert not (place / "new.db").exists()


def test_a_backup_of_a_newer_killproof_is_refused(saved: str, place: Path) -> None:
    with closing(sqlite3.connect(saved)) as connection:
        connection.execute("UPDATE killproof_schema SET version = 99 WHERE component = 'core'")
        connection.commit()
    with pytest.raises(FileRefused, match="schema version 99"):
        restore(saved, place / "new.db")


def test_a_level_that_the_new_place_can_not_keep_is_refused(
    saved: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(saved)) as connection:
        connection.execute("UPDATE killproof_setting SET value = 'power' WHERE name = 'durability'")
        connection.commit()
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 0 0:1 / / rw - tmpfs tmpfs rw\n")
    monkeypatch.setattr("killproof.core.barrier.MOUNTS", mounts)
    with pytest.raises(FileRefused, match="where fsync does nothing"):
        restore(saved, place / "new.db")

    assert not (place / "new.db").exists()


def test_a_backup_can_not_be_restored_onto_itself(saved: str) -> None:
    with pytest.raises(FileRefused, match="the backup itself"):
        restore(saved, saved, force=True)
