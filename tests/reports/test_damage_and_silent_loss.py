"""Files that were damaged, and commits that were lost without an error.

What other programs did to their files is done here to a real one: descriptors closed by path,
file systems that keep no promise, transactions left behind by an exception.
"""

import mmap
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from killproof import (
    FileRefused,
    Host,
    OutcomeUnknown,
    Queue,
    StorageFailed,
    coherence,
    maintenance,
)
from killproof.core import barrier, database, sync
from killproof.core.host import KernelLocks
from killproof.maintenance import Check, doctor
from killproof_chaos.summary import figures
from killproof_evidence import environment, evidence

SECONDS_MAX = 120.0


def found(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def python(code: str, *arguments: str) -> str:
    """Run code in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)  # No finding: not for a control.
    return done.stdout.strip()


# B74: SQLite's WAL-reset fault.

VERSIONS = [(3, minor, patch) for minor in range(7, 60) for patch in range(9)]
#: Source: the release notes of 3.44.6, 3.50.7, 3.51.3 and 3.53.0, where it was corrected.
CORRECTED = {
    *((3, 44, patch) for patch in range(6, 9)),
    *((3, 50, patch) for patch in range(7, 9)),
    *((3, 51, patch) for patch in range(3, 9)),
    *((3, minor, patch) for minor in range(53, 60) for patch in range(9)),
}
Rule = Callable[[tuple[int, int, int]], bool]


def check_the_ranges(affected: Rule) -> None:
    assert {version for version in VERSIONS if not affected(version)} == CORRECTED


@pytest.mark.parametrize(
    "affected",
    [
        maintenance.wal_reset_affected,
        lambda version: environment.wal_reset_affected(".".join(map(str, version))),
    ],
    ids=["queue", "harness"],
)
def test_the_versions_of_sqlite_with_the_wal_reset_fault_are_known_exactly(affected: Rule) -> None:
    """B74: lost pages under concurrent writes and checkpoints; ported back to three branches."""
    check_the_ranges(affected)


@pytest.mark.parametrize("first", [(3, 51, 3), (3, 53, 0), (3, 44, 6)])
def test_a_plain_comparison_is_seen_to_be_wrong(first: tuple[int, int, int]) -> None:
    """B74, control."""
    with pytest.raises(AssertionError):
        check_the_ranges(lambda version: version < first)


@pytest.mark.parametrize(("version", "named"), [((3, 52, 0), True), ((3, 53, 1), False)])
def test_an_affected_version_is_named_by_the_doctor_and_in_each_verdict(
    place: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], named: bool
) -> None:
    """B74: 3.52.0 has it again, and was withdrawn."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    monkeypatch.setattr(sqlite3, "sqlite_version", ".".join(map(str, version)))
    check = maintenance._sqlite()
    (line,) = figures({"environment": environment.environment(place)})

    assert (check.status == "warn") == named
    assert ("WAL-reset" in check.text) == ("WAL-reset" in line) == named
    assert sqlite3.sqlite_version in check.text
    assert sqlite3.sqlite_version in line


class Traced(sqlite3.Connection):
    """A connection that notes its checkpoints, its own automatic ones among them."""

    modes: "set[str]"
    ignored = "\0"  #: what the control does not let through

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if self.ignored in sql:
            return super().execute("SELECT 1")
        if "wal_checkpoint" in sql:
            self.modes.add(sql)
        cursor = super().execute(sql, *values)
        if sql == "COMMIT":
            (automatic,) = super().execute("PRAGMA wal_autocheckpoint").fetchone()
            self.modes.add(f"automatic at {automatic} pages")
        return cursor


def check_no_checkpoint_is_passive(place: Path, ignored: str = "\0") -> None:
    modes: set[str] = set()

    def connect(path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, factory=Traced
        )
        connection.modes, connection.ignored = modes, ignored
        return connection

    with Queue(place / "q.db", durability="process", host=Host(connect=connect)) as queue:
        modes.clear()  # The file's maker, alone with it, is gone.
        queue.database.checkpoint_commits = 1
        queue.enqueue("kind", 1)
        lease = queue.claim()
        assert lease is not None
        queue.extend(lease)
        queue.ack(lease)
        queue.reap()

    assert modes == {"PRAGMA wal_checkpoint(FULL)", "automatic at 0 pages"}


def test_no_connection_of_ours_checkpoints_without_the_writers_lock(place: Path) -> None:
    """B74: the fault needs a checkpoint beside a writer; PASSIVE and automatic ones allow that."""
    check_no_checkpoint_is_passive(place)


def test_a_connection_with_automatic_checkpoints_is_seen(place: Path) -> None:
    """B74, control."""
    with pytest.raises(AssertionError, match="automatic at 1000 pages"):
        check_no_checkpoint_is_passive(place, ignored="wal_autocheckpoint = 0")


# B76: any close of any descriptor of the file drops all locks of the process.

#: Whether another process gets the write lock while the first has it.
INTRUDER = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
try:
    other.execute("BEGIN IMMEDIATE")
    print("in")
except sqlite3.OperationalError as error:
    print(error)
"""


def everything_of_ours(path: str) -> None:
    """Do all that killproof does with the file beside its kept connection."""
    with Queue(path) as second:  # Opened and closed in the process that holds the lock.
        second.counts()
        second.database.peek("SELECT count(*) FROM job")
    with suppress(FileRefused):
        Queue(path, durability="power")
    assert found(doctor(path), "log").status == "ok"
    maintenance.repair(path)
    barrier.file_system(path)
    environment.environment(Path(path).parent)


def a_look_at(suffix: str) -> Callable[[str], None]:
    """Look at the file as a header sniff or a watcher does."""

    def look(path: str) -> None:
        Path(f"{path}{suffix}").read_bytes()

    return look


def check_others_stay_locked_out(place: Path, meanwhile: Callable[[str], None]) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        queue.enqueue("kind", 1)
        with queue.transaction() as tx:
            tx.execute("CREATE TABLE mine (n)")
            meanwhile(queue.path)
            assert python(INTRUDER, queue.path) == "database is locked"


def test_nothing_that_killproof_does_with_a_file_drops_the_locks_on_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B76: a file watcher, a header sniff, a snapshot, a chmod, a look at /proc/self/fd."""
    monkeypatch.setattr(maintenance, "PROBE_SECONDS", 0.01)
    check_others_stay_locked_out(place, everything_of_ours)


def test_a_look_into_the_file_is_seen_to_let_a_second_writer_in(place: Path) -> None:
    """B76, control."""
    with pytest.raises(AssertionError, match="in"):
        check_others_stay_locked_out(place, a_look_at("-shm"))


#: A handler reads the database's head; another program comes and goes; then a job is put in.
SNIFFED = """
import subprocess, sys
from killproof import Host, OutcomeUnknown, Queue
from killproof.core import barrier
exec(sys.argv[2])
path = sys.argv[1]
queue = Queue(path)
queue.database.checkpoint_commits = 1 << 60
queue.enqueue("kind", 1)
open(path, "rb").close()
comes_and_goes = (
    "import sqlite3, sys; other = sqlite3.connect(sys.argv[1]);"
    "other.execute('SELECT count(*) FROM job').fetchall(); other.close()"
)
subprocess.run([sys.executable, "-c", comes_and_goes, path], check=True)
try:
    print("acknowledged", queue.enqueue("kind", 2), flush=True)
except OutcomeUnknown as error:
    print("unknown", "deleted or replaced" in str(error), flush=True)
import os; os._exit(0)
"""


def check_nothing_acknowledged_is_lost(place: Path, guard: str) -> None:
    path = str(place / "q.db")
    answer, value = python(SNIFFED, path, guard).split()
    with Queue(path) as queue:
        job = queue.get(int(value)) if answer == "acknowledged" else None

    assert (answer, value) == ("unknown", "True") or job is not None


def test_a_log_that_was_deleted_under_us_is_never_acknowledged_into(place: Path) -> None:
    """B76: after a look into the file the next program to leave deletes the log under us."""
    check_nothing_acknowledged_is_lost(place, "")


def test_a_sync_that_does_not_look_which_log_it_syncs_is_seen_to_lose_the_job(place: Path) -> None:
    """B76, control: SQLite reports no error."""
    with pytest.raises(AssertionError, match="acknowledged"):
        check_nothing_acknowledged_is_lost(place, "barrier.Barrier._identity = lambda self: ''")


# The other half of B82: the file is replaced while it is open.


def removed(path: Path) -> None:
    path.unlink()


def renamed(path: Path) -> None:
    path.rename(path.with_name("old.db"))


def restored(path: Path) -> None:
    """Put a backup in its place, as restores do that think of no open handles."""
    backup = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(backup)) as copy:
        live.backup(copy)
    backup.rename(path)


class LooksAtTheLogAlone(barrier.Barrier):
    """Knows its log by name, as killproof did, and not the database that it belongs to."""

    def _identity(self) -> tuple[str, int]:
        return os.readlink(f"/proc/self/fd/{self._descriptor}"), 0


class Unaware(KernelLocks):
    def barrier(self, path: str) -> LooksAtTheLogAlone:
        return LooksAtTheLogAlone(path)


def check_nothing_is_acknowledged_into_another_file(
    place: Path, happens: Callable[[Path], None], lock: KernelLocks
) -> None:
    path = place / "q.db"
    with Queue(path, host=Host(lock=lock)) as queue:
        queue.enqueue("kind", 1)
        happens(path)
        with pytest.raises(OutcomeUnknown, match="open the queue anew"):
            queue.enqueue("kind", 2)
        with pytest.raises(StorageFailed, match="this queue object is stopped"):
            queue.enqueue("kind", 3)
    assert not Path(f"{path}.failed").exists()  # It is no fault of the disk.


@pytest.mark.parametrize("happens", [removed, renamed, restored])
def test_a_database_that_is_replaced_under_us_is_never_acknowledged_into(
    place: Path, happens: Callable[[Path], None]
) -> None:
    """The file was restored while it was open: the other half of a restore over a live file."""
    check_nothing_is_acknowledged_into_another_file(place, happens, KernelLocks())


@pytest.mark.parametrize("happens", [removed, renamed, restored])
def test_a_barrier_that_knows_its_log_alone_is_seen_to_acknowledge_what_is_lost(
    place: Path, happens: Callable[[Path], None]
) -> None:
    """Control; this was killproof's own fault."""
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_nothing_is_acknowledged_into_another_file(place, happens, Unaware())


# B79: corruption whose cause nobody isolated.

CAUSES = ("WAL-reset", "descriptor", "two SQLite", "network", "power cut", "because", "caused by")


def check_no_cause_is_named(path: Path) -> None:
    said = [check.text for check in doctor(path) if check.status == "fail"]
    said += evidence._problems(path)
    with Queue(path) as queue, pytest.raises(FileRefused) as caught:
        queue.enqueue("kind", 2)
    said.append(str(caught.value))

    assert len(said) >= 3
    assert [cause for cause in CAUSES for text in said if cause in text] == []


@pytest.fixture
def damaged(place: Path) -> Path:
    path = place / "q.db"
    with Queue(path, durability="process") as queue:
        queue.enqueue("kind", 1)
        ((page,),) = queue.database.peek("SELECT rootpage FROM sqlite_schema WHERE name = 'job'")
    assert isinstance(page, int)
    with path.open("r+b") as file:  # Nobody is connected.
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    return path


def test_damage_is_told_without_a_cause_that_nobody_has_isolated(damaged: Path) -> None:
    """B79: a thread of three candidates for one corruption, and no evidence for any. Rule C14."""
    check_no_cause_is_named(damaged)


def test_a_doctor_that_guesses_is_seen(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B79, control."""

    def guesses(*_: object) -> list[Check]:
        return [Check(name="integrity", status="fail", text="damaged by the WAL-reset fault")]

    monkeypatch.setattr(maintenance, "_contents", guesses)
    with pytest.raises(AssertionError, match="WAL-reset"):
        check_no_cause_is_named(damaged)


# B80: file systems whose shared memory, or whose sync, does nothing.


class Believing(KernelLocks):
    """The kernel's locks, without the question where the file lies."""

    def refusal(self, path: str, durability: str) -> str | None:
        return None


@contextmanager
def mounted(point: Path, kind: str, options: str) -> Iterator[Path]:
    """Mount a real file system; the test is left out where that is not allowed."""
    point.mkdir()
    argv = ["mount", "-t", kind, "-o", options, "none", str(point)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip(f"mounting {kind} is not allowed here")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


@contextmanager
def in_memory(place: Path) -> Iterator[Path]:
    with mounted(place / "ram", "tmpfs", "size=2m") as point:
        yield point


@contextmanager
def volatile(place: Path) -> Iterator[Path]:
    """An overlay as containers may use it: it leaves out every sync."""
    for name in ("lower", "upper", "work"):
        (place / name).mkdir()
    options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work,volatile"
    with mounted(place / "merged", "overlay", options) as point:
        yield point


def check_refused_at_level_power(point: Path, lock: KernelLocks) -> None:
    try:
        Queue(point / "q.db", host=Host(lock=lock)).close()
    except FileRefused as error:
        said = str(error)
    else:
        said = "accepted"
    assert "where fsync does nothing: use a disk" in said
    assert list(point.iterdir()) == []


@pytest.mark.parametrize("mount", [in_memory, volatile])
def test_a_file_system_that_leaves_out_every_sync_is_refused_and_nothing_is_left(
    place: Path, mount: Callable[[Path], Any]
) -> None:
    """B80, with real mounts; at level `process` both are good enough."""
    with mount(place) as point:
        check_refused_at_level_power(point, KernelLocks())
        with Queue(point / "q.db", durability="process") as queue:
            assert queue.enqueue("kind", 1) == 1


def test_without_the_question_where_it_lies_a_file_in_memory_is_seen_to_be_taken(
    place: Path,
) -> None:
    """B80, control."""
    with in_memory(place) as point, pytest.raises(AssertionError, match="accepted"):
        check_refused_at_level_power(point, Believing())


KINDS = ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "fuse", "fuse.sshfs"]


def check_refused_at_every_level(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str, lock: KernelLocks
) -> None:
    """The kernel's table is a file; none of these can be mounted in a test."""
    shared = place / "shared home"
    shared.mkdir()
    point = str(shared).replace(" ", "\\040")
    table = place / "mountinfo"
    table.write_text(f"1 0 254:0 / / rw - ext4 /dev/x rw\n2 1 0:9 / {point} rw - {kind} x rw\n")
    monkeypatch.setattr(barrier, "MOUNTS", table)
    for level in ("power", "process"):
        with pytest.raises(FileRefused, match=f"is on {kind}: the log needs shared memory"):
            Queue(shared / "q.db", durability=level, host=Host(lock=lock)).close()
    assert list(shared.iterdir()) == []
    assert found(doctor(shared / "q.db"), "file system").status == "fail"


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_or_fuse_file_system_is_refused_at_every_level(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """B80: malformed within a minute on virtiofs, on NFS homes, on Docker's bind mounts."""
    check_refused_at_every_level(place, monkeypatch, kind, KernelLocks())


def test_a_network_file_system_that_nobody_asks_about_is_seen_to_be_taken(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B80, control."""
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_refused_at_every_level(place, monkeypatch, "nfs4", Believing())


# B80, its other half: a file system whose name says nothing.


def check_sharing_is_well(place: Path) -> None:
    Queue(place / "q.db", durability="process").close()
    found = {check.name: check for check in doctor(place / "q.db")}
    assert found["sharing"].status == "ok", found["sharing"].text
    assert {path.name for path in place.iterdir() if "probe" in path.name} == set()


def test_the_doctor_tries_whether_two_processes_share_memory_and_locks(place: Path) -> None:
    """B80: malformed within a minute where the memory of the log is not one memory."""
    check_sharing_is_well(place)


@pytest.mark.parametrize("missing", ["memory", "locks"])
def test_a_place_where_they_do_not_is_seen(
    place: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """B80, control: a map that is private, and a lock that nobody takes."""
    if missing == "memory":

        def private(descriptor: int) -> mmap.mmap:
            os.truncate(descriptor, mmap.PAGESIZE)
            return mmap.mmap(descriptor, mmap.PAGESIZE, access=mmap.ACCESS_COPY)

        monkeypatch.setattr(coherence, "_shared", private)
    else:
        monkeypatch.setattr("killproof.coherence.fcntl.lockf", lambda *_: None)
    with pytest.raises(AssertionError, match=missing):
        check_sharing_is_well(place)


# B83: a failed write leaves the write lock held by an idle connection.


class Oops(BaseException):
    """What a handler, a signal or a cancellation raises: no Exception."""


class KeepsTransactions(sqlite3.Connection):
    """Does not roll back while it is told so."""

    keeps = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        ignored = self.keeps and sql == "ROLLBACK"
        return super().execute("SELECT 1" if ignored else sql, *values)


def keeps_transactions(path: str) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, factory=KeepsTransactions
    )


def transaction(queue: Queue) -> None:
    with queue.transaction() as tx:
        tx.execute("CREATE TABLE mine (n)")
        raise Oops


def read(queue: Queue) -> None:
    with queue.database.read() as tx:
        tx.rows("SELECT * FROM job")
        raise Oops


def completing(queue: Queue) -> None:
    lease = queue.claim()
    assert lease is not None
    with queue.completing(lease) as tx:
        tx.execute("CREATE TABLE mine (n)")
        raise Oops


def bad_sql(queue: Queue) -> None:
    with suppress(sqlite3.OperationalError), queue.transaction() as tx:
        tx.execute("INSERT INTO nowhere VALUES (1)")
    raise Oops


def at_point(name: str) -> Callable[[Queue], None]:
    """Return an enqueue that is interrupted at this moment of its write."""

    def enqueue(queue: Queue) -> None:
        def interrupt(reached: str) -> None:
            if reached == f"enqueue.{name}":
                raise Oops

        sync.hook = interrupt
        try:
            queue.enqueue("kind", 2)
        finally:
            sync.hook = None

    return enqueue


INTERRUPTED = [transaction, read, completing, bad_sql, at_point("locked"), at_point("written")]
NAMES = ["transaction", "read", "completing", "bad SQL", "locked", "written"]


def check_nothing_stays_locked(
    place: Path, interrupted: Callable[[Queue], None], keeps: bool = False
) -> None:
    queue = Queue(place / "q.db", durability="process", host=Host(connect=keeps_transactions))
    queue.enqueue("kind", 1)
    handle = queue.database._handle()
    assert isinstance(handle.connection, KeepsTransactions)
    handle.connection.keeps = keeps
    with pytest.raises(Oops):
        interrupted(queue)
    handle.connection.keeps = False
    left_open = handle.connection.in_transaction
    turn = queue.host.lock.turnstile(queue.path, gate=True)
    is_free = turn.enter(0)
    turn.close()
    with closing(sqlite3.connect(queue.path, isolation_level=None, timeout=0)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
            locked = False
            other.execute("ROLLBACK")
        except sqlite3.OperationalError:
            locked = True
    queue.close()

    assert not left_open, "the transaction goes on"
    assert (locked, is_free) == (False, True)


@pytest.mark.parametrize("interrupted", INTERRUPTED, ids=NAMES)
def test_whatever_is_raised_in_a_transaction_leaves_no_lock_behind(
    place: Path, interrupted: Callable[[Queue], None]
) -> None:
    """B83: an idle connection kept the write lock after a failed write."""
    check_nothing_stays_locked(place, interrupted)


@pytest.mark.parametrize("interrupted", INTERRUPTED, ids=NAMES)
def test_a_connection_that_does_not_roll_back_is_seen_to_keep_its_transaction(
    place: Path, interrupted: Callable[[Queue], None]
) -> None:
    """B83, control."""
    with pytest.raises(AssertionError, match="goes on"):
        check_nothing_stays_locked(place, interrupted, keeps=True)


# B35, its other half: the rollback that hides the real error.


def rolls_back_twice(connection: sqlite3.Connection) -> None:
    connection.execute("ROLLBACK")


def check_the_real_error_is_told(place: Path) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        queue.enqueue("kind", 1)
        with queue.transaction() as tx:
            (pages,) = tx.execute("PRAGMA page_count").fetchone()
            tx.execute("PRAGMA max_page_count = 1").fetchall()  # As low as it goes.
        assert pages > 1
        with pytest.raises(Exception, match=r".") as caught:
            queue.enqueue("kind", "x" * 100_000)
        with queue.transaction() as tx:
            tx.execute("PRAGMA max_page_count = 1000000").fetchall()
        assert queue.enqueue("kind", 2)

    assert type(caught.value).__name__ == "StorageFull", caught.value
    assert "database or disk is full: nothing was changed; make room" in str(caught.value)


def test_an_error_that_has_rolled_back_already_is_the_one_that_is_told(place: Path) -> None:
    """B35: SQLite rolls back by itself when the disk is full, and a second ROLLBACK raised."""
    check_the_real_error_is_told(place)


def test_a_rollback_without_a_look_is_seen_to_hide_the_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B35, control."""
    monkeypatch.setattr(database, "_roll_back", rolls_back_twice)
    with pytest.raises(Exception, match="cannot rollback"):
        check_the_real_error_is_told(place)
