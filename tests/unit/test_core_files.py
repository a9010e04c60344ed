"""Opening: which files are taken, which are refused, what is said, and that nothing is left."""

import ctypes
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from killproof import FileRefused, Host, Queue, StorageFailed
from killproof.core import barrier, database
from killproof.core.database import SCHEMA_VERSION
from killproof.core.host import KernelLocks


def run(path: Path, *statements: str) -> None:
    """Run statements as another program would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def refusal(path: Path | str, **options: object) -> str:
    """Open the file; return the one line that refuses it."""
    with pytest.raises(FileRefused) as caught:
        Queue(path, **options)  # type: ignore[arg-type]  # Wrong levels are tried on purpose.
    assert caught.value.definite
    assert "\n" not in str(caught.value)
    return str(caught.value)


@contextmanager
def without_rights_of_root() -> Iterator[None]:
    """Let this thread be bound by file modes, as all but root are: capabilities are a thread's."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread.
    was = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, was) == 0
    now = type(was)(*was)
    now[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, effective.
    assert libc.capset(header, now) == 0
    try:
        yield
    finally:
        assert libc.capset(header, was) == 0


def test_a_new_file_gets_the_schema_and_keeps_it(place: Path) -> None:
    """Covers S2.5, F7."""
    with Queue(place / "q.db") as queue:
        job_id = queue.enqueue("kind", 1)
        assert queue.durability == "power"
    with Queue(str(place / "q.db")) as queue:
        assert queue.get(job_id) is not None
        assert queue.path == str(place / "q.db")
        assert queue.database.peek("SELECT component, version FROM killproof_schema") == [
            ("core", SCHEMA_VERSION)
        ]


def test_a_symbolic_link_is_followed_to_the_files_own_name(place: Path) -> None:
    """SQLite resolves links: a log or lock beside the link would be another one."""
    (place / "real").mkdir()
    (place / "link.db").symlink_to(place / "real" / "q.db")
    with Queue(place / "link.db") as queue:
        queue.enqueue("kind", 1)
        queue.claim()

        assert queue.path == str(place / "real" / "q.db")
        made = {path.name for path in (place / "real").iterdir()}
        assert {"q.db", "q.db-wal", "q.db-shm", "q.db.turnstile", "q.db.workers"} == made
    assert [path.name for path in place.iterdir() if path.name != "real"] == ["link.db"]


def test_an_applications_own_file_is_shared_with_its_tables(place: Path) -> None:
    """Covers S2.13."""
    path = place / "app.db"
    run(path, "CREATE TABLE orders (id)", "INSERT INTO orders VALUES (7)", "PRAGMA user_version=3")
    with Queue(path) as queue:
        queue.enqueue("kind", 1)

        assert queue.database.peek("SELECT id FROM orders") == [(7,)]
        assert queue.database.peek("PRAGMA user_version") == [(3,)]


@pytest.mark.parametrize("name", ["job", "Job", "worker", "ATTEMPT"])
def test_a_foreign_table_of_our_name_is_refused_and_left_as_it_is(place: Path, name: str) -> None:
    path = place / "app.db"
    run(path, f"CREATE TABLE {name} (id)")
    before = path.read_bytes()

    said = refusal(path)
    assert f"has a table '{name}' that is not killproof's: use another file, or rename" in said
    assert path.read_bytes() == before
    assert not (place / "app.db-wal").exists()


def test_a_newer_file_is_refused_with_both_versions(place: Path) -> None:
    path = place / "q.db"
    Queue(path).close()
    run(path, "UPDATE killproof_schema SET version = 99")

    assert "schema version 99, this killproof knows 1: upgrade killproof" in refusal(path)


@pytest.mark.parametrize("name", ["get", "counts", "claim", "enqueue"])
def test_a_database_that_is_damaged_while_it_is_open_is_refused_by_every_call(
    place: Path, name: str
) -> None:
    path = place / "q.db"
    with Queue(path, durability="process") as queue:
        calls: dict[str, Callable[[], object]] = {
            "get": lambda: queue.get(1),
            "counts": queue.counts,
            "claim": lambda: queue.claim(["no such kind"]),
            "enqueue": lambda: queue.enqueue("k", 1),
        }
        queue.claim()  # An empty poll: the next one looks before it takes the lock.
        run(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        damage = "import sys; f = open(sys.argv[1], 'r+b'); f.seek(4096); f.write(b'\\xff' * 65536)"
        subprocess.run([sys.executable, "-c", damage, path], check=True)
        run(path, "PRAGMA user_version = 7")  # Else the pages would come from the cache.
        with pytest.raises(FileRefused, match="restore it from a backup"):
            calls[name]()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE killproof_setting (a)", "has a table 'killproof_setting' that is not"),
        ("CREATE TABLE mine (a); CREATE INDEX job_key ON mine (a)", "index job_key already exists"),
        ("CREATE TABLE killproof_schema (a)", "no such column: version"),
        (
            "CREATE TABLE killproof_schema (component, version);"
            "INSERT INTO killproof_schema VALUES ('core', 'one')",
            "schema version one",
        ),
        (
            "CREATE TABLE killproof_schema (component, version);"
            "INSERT INTO killproof_schema VALUES ('core', 1)",
            "has no table 'attempt': restore",
        ),
    ],
)
def test_a_file_that_holds_a_part_of_our_names_is_refused_and_left_as_it_is(
    place: Path, statement: str, said: str
) -> None:
    path = place / "q.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)
        before = connection.execute("SELECT * FROM sqlite_schema").fetchall()

        assert said in refusal(path)
        assert connection.execute("SELECT * FROM sqlite_schema").fetchall() == before


@pytest.mark.parametrize("suffix", ["turnstile", "gate"])
def test_a_lock_file_that_can_not_be_opened_is_named_in_the_refusal(
    place: Path, suffix: str
) -> None:
    (place / f"q.db.{suffix}").mkdir()

    assert f"q.db.{suffix}: Is a directory" in refusal(place / "q.db", durability="process")


def test_a_path_of_bytes_is_a_path(place: Path) -> None:
    with Queue(bytes(place / "q.db")) as queue:
        assert queue.path == str(place / "q.db")


def test_a_file_whose_schema_or_level_is_lost_is_refused(place: Path) -> None:
    path = place / "q.db"
    Queue(path).close()
    run(path, "UPDATE killproof_setting SET value = 'strong'")
    assert "has durability 'strong': restore the file from a backup" in refusal(path)
    run(path, "DELETE FROM killproof_setting")
    assert "has durability None" in refusal(path)
    run(path, "DELETE FROM killproof_schema")
    assert "schema version None" in refusal(path)


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(place: Path) -> None:
    path = place / "notes.txt"
    path.write_text("not a database, and long enough to be read as one\n" * 100)
    before = path.read_bytes()

    assert re.search("notes.txt.* name another file", refusal(path))
    assert path.read_bytes() == before
    assert [found.name for found in place.iterdir()] == ["notes.txt"]


def test_a_damaged_database_is_refused_and_says_so(place: Path) -> None:
    path = place / "q.db"
    Queue(path).close()
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * 3996  # The first page, where the schema is.
    path.write_bytes(content)

    assert "restore it from a backup" in refusal(path)


def test_a_missing_folder_is_refused_with_the_remedy(place: Path) -> None:
    assert re.search("no/q.db: .*: check its folder", refusal(place / "no" / "q.db"))
    assert list(place.iterdir()) == []


def test_a_folder_is_no_file(place: Path) -> None:
    assert str(place) in refusal(place)


@pytest.mark.parametrize("path", ["", ":memory:", "file:q.db", "file::memory:?cache=shared"])
def test_what_is_no_path_is_refused(
    place: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)

    assert "is not a path: the queue needs a file on a disk" in refusal(path)
    assert list(place.iterdir()) == []


def test_a_read_only_folder_is_refused_and_nothing_is_left(place: Path) -> None:
    place.chmod(0o500)
    try:
        with without_rights_of_root():
            assert re.search(r"q\.db: .*: check .*rights", refusal(place / "q.db"))
    finally:
        place.chmod(0o700)
    assert list(place.iterdir()) == []


def test_a_read_only_file_is_refused_with_the_remedy(place: Path) -> None:
    path = place / "q.db"
    Queue(path).close()
    path.chmod(0o400)
    place.chmod(0o500)
    try:
        with without_rights_of_root():
            said = refusal(path)
    finally:
        place.chmod(0o700)
    assert "rights" in said


# Durability is the file's.


def test_another_level_than_the_files_is_refused_with_the_remedy(place: Path) -> None:
    Queue(place / "q.db", durability="process").close()

    said = refusal(place / "q.db", durability="power")
    assert "has durability 'process', not 'power'" in said
    assert "leave the argument out" in said
    with Queue(place / "q.db") as queue:
        assert queue.durability == "process"
    with Queue(place / "q.db", durability="process") as queue:
        assert queue.durability == "process"


def test_an_unknown_level_is_refused_and_nothing_is_left(place: Path) -> None:
    with pytest.raises(ValueError, match="durability 'strong' is unknown: use 'power' or"):
        Queue(place / "q.db", durability="strong")  # type: ignore[arg-type]  # On purpose.
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("limit", [-1, float("nan"), 3_601, True, "5"], ids=repr)
def test_a_wrong_busy_limit_is_refused_and_nothing_is_left(place: Path, limit: float) -> None:
    with pytest.raises(ValueError, match="busy_limit"):
        Queue(place / "q.db", busy_limit=limit)
    assert list(place.iterdir()) == []


@pytest.fixture
def ram() -> Iterator[Path]:
    """A path on a file system in memory."""
    path = Path("/dev/shm")
    if barrier.file_system(str(path))[0] not in barrier.RAM_KINDS:
        pytest.skip("no file system in memory at /dev/shm")
    path = path / f"killproof-{id(path)}.db"
    yield path
    for found in path.parent.glob(f"{path.name}*"):
        found.unlink()


def test_a_file_system_in_memory_is_refused_at_level_power_and_nothing_is_left(ram: Path) -> None:
    said = refusal(ram)

    assert "is on tmpfs, where fsync does nothing" in said
    assert "durability='process'" in said
    assert not ram.exists()


def test_a_file_system_in_memory_is_taken_at_level_process(ram: Path) -> None:
    with Queue(ram, durability="process") as queue:
        queue.enqueue("kind", 1)
    with Queue(ram) as queue:
        assert queue.counts()["available"] == 1


def test_a_file_of_level_power_moved_into_memory_is_refused(place: Path, ram: Path) -> None:
    Queue(place / "q.db").close()
    ram.write_bytes((place / "q.db").read_bytes())

    assert "where fsync does nothing" in refusal(ram)


def test_who_vouches_for_the_file_system_is_believed(ram: Path) -> None:
    """A simulator's images lie in memory; the level is judged on what it makes of them."""

    class Vouching(KernelLocks):
        def refusal(self, path: str, durability: str) -> str | None:
            return None

    with Queue(ram, host=Host(lock=Vouching())) as queue:
        queue.enqueue("kind", 1)
        assert queue.durability == "power"


def test_a_refusal_of_the_host_reaches_the_user_and_nothing_is_left(place: Path) -> None:
    class Refusing(KernelLocks):
        def refusal(self, path: str, durability: str) -> str | None:
            return f"{path} is on nfs4 ({durability}): use a local disk"

    said = refusal(place / "q.db", host=Host(lock=Refusing()))
    assert said == f"{place}/q.db is on nfs4 (power): use a local disk"
    assert list(place.iterdir()) == []


MOUNTS = """\
1 0 254:0 / / rw,relatime - ext4 /dev/vda rw
2 1 0:20 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=64k
3 1 0:21 / /mnt/share rw - nfs4 server:/x rw,vers=4.2
4 1 0:22 / /mnt/with\\040space rw - fuse.sshfs host: rw,user_id=0
5 1 0:23 / /containers rw - overlay overlay rw,lowerdir=/a,upperdir=/b,volatile
6 1 0:24 / /mnt/share/local rw - xfs /dev/vdb rw
7 1 0:25 / /twice rw - ext4 /dev/vdc rw
8 1 0:26 / /twice rw - tmpfs tmpfs rw
9 1 0:27 / /host rw - virtiofs host rw
10 1 0:28 / /a\\012b\\011c rw - tmpfs tmpfs rw
12 1 0:30 / /newer rw - overlay none rw,lowerdir=/a,upperdir=/b,uuid=on,fsync=volatile
11 1 0:29 / /line\x0cend\x85s\u2028 rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "power", "process"),
    [
        ("/srv/q.db", None, None),
        ("/dev/shmem/q.db", None, None),
        ("/dev/shm/q.db", "tmpfs, where fsync does nothing", None),
        ("/mnt/share/q.db", "nfs4: the log needs shared memory", "nfs4: the log"),
        ("/mnt/share/local/q.db", None, None),
        ("/mnt/with space/deep/q.db", "fuse.sshfs: the log", "fuse.sshfs: the log"),
        ("/containers/q.db", "overlay, where fsync does nothing", None),
        ("/newer/q.db", "overlay, where fsync does nothing", None),
        ("/twice/q.db", "tmpfs", None),
        ("/host/q.db", "virtiofs: the log", "virtiofs: the log"),
        ("/a\nb\tc/q.db", "tmpfs", None),
        ("/line\x0cend\x85s\u2028/q.db", "tmpfs", None),
    ],
)
def test_the_file_system_under_a_path_decides_what_it_can_keep(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    power: str | None,
    process: str | None,
) -> None:
    table = place / "mountinfo"
    table.write_text(MOUNTS, encoding="utf-8")
    monkeypatch.setattr(barrier, "MOUNTS", table)

    for level, wanted in (("power", power), ("process", process)):
        # As this process sees a name of bytes: not every locale has every character.
        said = barrier.refusal(os.fsdecode(path.encode()), level)
        assert (said is None) == (wanted is None)
        assert wanted is None or wanted in str(said)


def test_where_the_kernel_does_not_tell_its_mounts_nothing_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(barrier, "MOUNTS", place / "absent")

    assert barrier.refusal("/dev/shm/q.db", "power") is None


def test_a_failure_whose_reason_is_no_unicode_is_marked(place: Path) -> None:
    barrier.mark_failed(str(place / "q.db"), "fdatasync of \udcff.db failed")

    assert (place / "q.db.failed").read_text() == "fdatasync of \\udcff.db failed\n"


def test_a_barrier_that_can_not_be_built_leaves_no_descriptor_open(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("q.db", "q.db-wal"):
        (place / name).touch()
    monkeypatch.setattr(barrier, "sync_directory", lambda path: 1 / 0)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ZeroDivisionError):
        barrier.Barrier(str(place / "q.db"))

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_whose_disk_has_failed_is_refused_and_not_touched(place: Path) -> None:
    Queue(place / "q.db").close()
    (place / "q.db.failed").write_text("then\n")
    before = {path.name: path.read_bytes() for path in place.iterdir()}

    with pytest.raises(StorageFailed, match="end all its processes, then run: killproof doctor"):
        Queue(place / "q.db")
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


@pytest.fixture
def second_version(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next version of killproof, as far as its schema goes."""
    script = place / "second.sql"
    script.write_text(
        "ALTER TABLE job ADD COLUMN note TEXT;\nCREATE TABLE later (x TEXT) STRICT;\n"
    )
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, str(script)))
    monkeypatch.setattr(database, "SCHEMA_VERSION", SCHEMA_VERSION + 1)


def version_and_columns(path: Path) -> tuple[int, set[str]]:
    with closing(sqlite3.connect(path)) as reader:
        (version,) = reader.execute("SELECT version FROM killproof_schema").fetchone()
        return version, {row[1] for row in reader.execute("PRAGMA table_info(job)")}


def test_an_older_file_is_taken_to_this_version_with_its_jobs_and_its_level(
    place: Path, request: pytest.FixtureRequest
) -> None:
    path = place / "q.db"
    with Queue(path, durability="process") as queue:
        job_id = queue.enqueue("kind", {"n": 1})
    request.getfixturevalue("second_version")
    with Queue(path) as queue:
        job = queue.get(job_id)
        level = queue.durability

    assert job is not None
    assert (job.payload, level) == ({"n": 1}, "process")
    version, columns = version_and_columns(path)
    assert version == SCHEMA_VERSION + 1
    assert "note" in columns


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    place: Path, request: pytest.FixtureRequest
) -> None:
    path = place / "q.db"
    Queue(path).close()
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("CREATE TABLE later (y)")
    before = version_and_columns(path)
    request.getfixturevalue("second_version")

    with pytest.raises(FileRefused, match="later"):
        Queue(path)
    assert version_and_columns(path) == before
