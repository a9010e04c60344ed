"""The barrier: when it is waited for, on which descriptor, and what its failure does.

The doubles stand at the host's seams: they record what the core asks of the kernel, and pass it on.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from killproof import (
    FileRefused,
    Host,
    KillproofError,
    LeaseLost,
    ManualClock,
    OutcomeUnknown,
    Queue,
    StorageFailed,
    StorageFull,
)
from killproof.core import barrier, host, sync
from killproof.core import turnstile as turnstiles
from killproof.core.host import KernelLocks

Events = list[str]

FULL = "PRAGMA wal_checkpoint(FULL)"


class Watched:
    """A barrier that notes each wait, and passes it on."""

    def __init__(self, path: str, events: Events) -> None:
        self.real = barrier.Barrier(path)
        self.events = events

    def log_bytes(self) -> int:
        return self.real.log_bytes()

    def wait(self) -> None:
        self.events.append("wait")
        self.real.wait()

    def close(self) -> None:
        self.real.close()


class Place(turnstiles.Turnstile):
    """A place at the turnstile that notes who enters and leaves; or lets nobody in."""

    def __init__(self, path: str, gate: bool, events: Events, passable: bool) -> None:
        super().__init__(path, gate=gate)
        self.events = events
        self.passable = passable

    def enter(self, seconds: float) -> bool:
        if not self.passable:
            return False
        self.events.append("enter")
        return super().enter(seconds)

    def leave(self) -> None:
        self.events.append("leave")
        super().leave()


class Locks(KernelLocks):
    """The kernel's locks, observed."""

    def __init__(self, *, passable: bool = True) -> None:
        self.events: Events = []
        self.passable = passable

    def turnstile(self, path: str, *, gate: bool) -> Place:
        return Place(path, gate, self.events, self.passable)

    def barrier(self, path: str) -> Watched:
        return Watched(path, self.events)


class Connection(sqlite3.Connection):
    """A connection that notes its checkpoints, and answers what it is told to."""

    events: Events
    answers: dict[str, tuple[int, int, int]]
    deaf_to: str = "\0"

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if self.deaf_to in sql:
            return super().execute("SELECT 1")
        if "checkpoint(" in sql:
            self.events.append(f"{sql} in_transaction={self.in_transaction}")
            if sql in self.answers:
                return super().execute("SELECT ?, ?, ?", self.answers[sql])
        if sql == "COMMIT":
            self.events.append("COMMIT")
        return super().execute(sql, *values)


def observed(
    locks: Locks, answers: dict[str, tuple[int, int, int]] | None = None, deaf_to: str = "\0"
) -> Host:
    """Return a host whose locks and connections note what happens, in one list."""

    def connect(path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, factory=Connection
        )
        connection.events, connection.answers = locks.events, answers or {}
        connection.deaf_to = deaf_to
        return connection

    return Host(clock=ManualClock(), connect=connect, lock=locks)


@pytest.fixture
def locks() -> Locks:
    return Locks()


@pytest.fixture
def queue(place: Path, locks: Locks) -> Iterator[Queue]:
    with Queue(place / "q.db", host=observed(locks)) as queue:
        queue.database.checkpoint_commits = 1 << 60  # By chance never.
        yield queue


@contextmanager
def hooked(events: Events) -> Iterator[None]:
    """Note the sync points beside the waits."""
    sync.hook = events.append
    try:
        yield
    finally:
        sync.hook = None


# R-A4: when.


def started(queue: Queue) -> Any:
    queue.enqueue("kind", 1, key="k")
    lease = queue.claim()
    assert lease is not None
    return lease


WRITES: dict[str, Callable[[Queue, Any], object]] = {
    "enqueue": lambda queue, lease: queue.enqueue("kind", 2),
    "enqueue that finds its key": lambda queue, lease: queue.enqueue("kind", 2, key="k"),
    "enqueue_many": lambda queue, lease: queue.enqueue_many([("kind", 2)]),
    "claim": lambda queue, lease: queue.claim(),
    "ack": lambda queue, lease: queue.ack(lease),
    "ack repeated": lambda queue, lease: queue.ack_many([lease, lease]),
    "ack_and_claim": lambda queue, lease: queue.ack_and_claim(lease),
    "nack": lambda queue, lease: queue.nack(lease, "no"),
    "release": lambda queue, lease: queue.release(lease),
    "snooze": lambda queue, lease: queue.snooze(lease, 1),
    "extend": lambda queue, lease: queue.extend(lease),
    "cancel": lambda queue, lease: queue.cancel(lease.job.id),
    "cancel repeated": lambda queue, lease: [queue.cancel(lease.job.id) for _ in range(2)],
    "reap with nothing to do": lambda queue, lease: queue.reap(),
}


@pytest.mark.parametrize("name", WRITES)
def test_no_call_returns_before_what_it_committed_is_durable(
    queue: Queue, locks: Locks, name: str
) -> None:
    """Covers S2.4."""
    lease = started(queue)
    del locks.events[:]
    WRITES[name](queue, lease)

    told = [event for event in locks.events if event in ("COMMIT", "leave", "wait")]
    assert told[:3] == ["COMMIT", "leave", "wait"]
    assert told == told[:3] * (len(told) // 3)


def test_a_block_of_the_callers_is_durable_when_it_has_been_left(
    queue: Queue, locks: Locks
) -> None:
    lease = started(queue)
    del locks.events[:]
    with queue.transaction() as tx:
        tx.execute("CREATE TABLE effect (n)")
    with queue.completing(lease) as tx:
        tx.execute("INSERT INTO effect VALUES (1)")

    assert locks.events == ["enter", "COMMIT", "leave", "wait"] * 2


@pytest.mark.parametrize("name", ["get", "get nothing", "counts"])
def test_no_read_states_a_fact_before_it_is_durable(queue: Queue, locks: Locks, name: str) -> None:
    """Another process's commit is visible before its fsync; at a power cut it would be gone."""
    lease = started(queue)
    del locks.events[:]
    if name == "counts":
        assert queue.counts()["leased"] == 1
    else:
        queue.get(lease.job.id if name == "get" else 999)

    assert locks.events == ["wait"]


@pytest.mark.parametrize("name", ["ack", "nack", "extend", "release", "completing"])
def test_no_refusal_states_a_fact_before_it_is_durable(
    queue: Queue, locks: Locks, name: str
) -> None:
    """That a lease is lost rests on somebody's commit, which may not be on the disk yet."""
    lease = started(queue)
    queue.release(lease)
    del locks.events[:]
    calls: dict[str, Callable[[], object]] = {
        "ack": lambda: queue.ack(lease),
        "nack": lambda: queue.nack(lease, "no"),
        "extend": lambda: queue.extend(lease),
        "release": lambda: queue.release(lease),
        "completing": lambda: queue.completing(lease).__enter__(),
    }
    with pytest.raises(LeaseLost):
        calls[name]()

    assert locks.events == ["enter", "leave", "wait"]


def test_the_barrier_stands_between_the_commit_and_the_synced_point(
    queue: Queue, locks: Locks
) -> None:
    del locks.events[:]
    with hooked(locks.events):
        queue.enqueue("kind", 1)

    assert locks.events == [
        "enqueue.begin",
        "enter",
        "enqueue.locked",
        "enqueue.written",
        "COMMIT",
        "enqueue.committed",
        "leave",
        "wait",
        "enqueue.synced",
    ]


def test_level_process_waits_for_no_disk(place: Path, locks: Locks) -> None:
    with Queue(place / "p.db", durability="process", host=observed(locks)) as queue:
        queue.ack(started(queue))
        queue.counts()

    assert "wait" not in locks.events


def test_joining_the_callers_connection_takes_neither_turnstile_nor_barrier(
    queue: Queue, locks: Locks
) -> None:
    """Turnstile before SQLite's lock, never after: the other order is a deadlock."""
    with closing(sqlite3.connect(queue.path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        del locks.events[:]
        queue.enqueue("kind", 1, tx=connection)
        connection.commit()

    assert locks.events == []


# R-A1, R-A3: on which descriptor.


def test_the_log_is_opened_while_a_read_pins_it(place: Path) -> None:
    """The answer of the pragma pins nothing: another program may leave the mode right after it."""
    tried = []

    class Flipping(KernelLocks):
        def barrier(self, path: str) -> host.Barrier:
            with closing(sqlite3.connect(path, timeout=0)) as other:
                try:
                    tried.append(other.execute("PRAGMA journal_mode = delete").fetchone()[0])
                except sqlite3.OperationalError as error:
                    tried.append(str(error))
            return super().barrier(path)

    with Queue(place / "q.db", host=Host(lock=Flipping())) as queue:
        queue.enqueue("kind", 1)

    assert tried == ["database is locked"]


def test_a_file_that_left_the_mode_before_the_read_is_refused(place: Path) -> None:
    class Leaving(Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *values)
            if sql == "PRAGMA synchronous":
                cursor_of_mode = super().execute("PRAGMA journal_mode = delete")
                assert cursor_of_mode.fetchone()[0] == "delete"
            return cursor

    def connect(path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, factory=Leaving)
        connection.events, connection.answers = [], {}
        return connection

    with pytest.raises(FileRefused, match="journal mode delete"):
        Queue(place / "q.db", host=Host(connect=connect))


def test_the_log_is_never_made_by_the_barrier(place: Path) -> None:
    """An empty log beside a database in another mode would be taken for its own."""
    with closing(sqlite3.connect(place / "q.db")) as connection:
        connection.execute("CREATE TABLE t (x)")

    with pytest.raises(FileNotFoundError):
        barrier.Barrier(str(place / "q.db"))
    assert [path.name for path in place.iterdir()] == ["q.db"]


def test_the_logs_descriptor_does_not_reach_other_programs(queue: Queue) -> None:
    handles = list(queue.database._handles)
    log = handles[0].log
    assert isinstance(log, Watched)

    assert not os.get_inheritable(log.real._descriptor)


def test_the_logs_name_is_made_durable_when_it_is_opened(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first writer may have run at synchronous=OFF, and then nobody has synced the folder."""
    synced = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            synced.append(status.st_ino)
        real(descriptor)

    Queue(place / "q.db").close()
    monkeypatch.setattr(os, "fsync", fsync)
    with Queue(place / "q.db"):
        assert synced == [place.stat().st_ino]


def test_the_connection_is_set_up_for_the_barrier_and_reads_it_back(queue: Queue) -> None:
    """Covers S0.39, F18."""
    assert queue.database.peek("PRAGMA synchronous") == [(1,)]
    assert queue.database.peek("PRAGMA wal_autocheckpoint") == [(0,)]
    assert queue.database.peek("PRAGMA journal_mode") == [("wal",)]
    assert queue.database.peek("PRAGMA foreign_keys") == [(1,)]
    assert queue.database.peek("PRAGMA busy_timeout") == [(0,)]


def test_a_connection_that_ignores_synchronous_is_refused(place: Path, locks: Locks) -> None:
    with pytest.raises(FileRefused, match="did not accept synchronous=NORMAL"):
        Queue(place / "q.db", host=observed(locks, deaf_to="synchronous = NORMAL"))


# R-A2: the log must still be there.


def test_a_log_deleted_under_the_connection_is_an_unknown_outcome_and_the_end(
    queue: Queue,
) -> None:
    """The sync of a deleted log succeeds; others never see the commit."""
    queue.enqueue("kind", 1)
    os.unlink(f"{queue.path}-wal")

    with pytest.raises(OutcomeUnknown, match="was deleted or replaced") as caught:
        queue.enqueue("kind", 2)
    assert not caught.value.definite
    for call in (queue.counts, queue.claim, lambda: queue.enqueue("kind", 3)):
        with pytest.raises(StorageFailed, match="this queue object is stopped"):
            call()
    assert not Path(f"{queue.path}.failed").exists()  # The disk is well.


def test_a_log_deleted_under_the_connection_is_found_by_reads_as_well(queue: Queue) -> None:
    os.unlink(f"{queue.path}-wal")

    with pytest.raises(OutcomeUnknown):
        queue.counts()


def test_a_descriptor_closed_by_a_handler_is_an_unknown_outcome(queue: Queue) -> None:
    log = next(iter(queue.database._handles)).log
    assert isinstance(log, Watched)
    os.close(log.real._descriptor)

    with pytest.raises(OutcomeUnknown, match="descriptor is out of reach"):
        queue.enqueue("kind", 1)


def test_a_descriptor_taken_over_by_another_file_is_an_unknown_outcome(
    queue: Queue, place: Path
) -> None:
    log = next(iter(queue.database._handles)).log
    assert isinstance(log, Watched)
    other = os.open(place / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, log.real._descriptor)
    os.close(other)

    with pytest.raises(OutcomeUnknown, match="deleted or replaced"):
        queue.enqueue("kind", 1)


# R-A5: a failing disk.


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every fdatasync fail as a disk does; the list counts them."""
    calls = []

    def fdatasync(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return calls


def test_a_failed_sync_is_never_retried_and_stops_everybody(
    queue: Queue, failing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports it once; the next sync says OK, and what it vouched for is gone."""
    with Queue(queue.path) as other:
        with pytest.raises(OutcomeUnknown, match="may or may not have happened") as caught:
            queue.enqueue("kind", 1)
        assert not caught.value.definite
        monkeypatch.undo()  # The disk is well again, and says nothing of what it lost.
        for of_process in (queue, other):
            for call in (of_process.counts, of_process.claim, partial(of_process.get, 1)):
                with pytest.raises(StorageFailed):
                    call()
        with pytest.raises(StorageFailed, match="killproof doctor --repair --db"):
            Queue(queue.path)

    assert len(failing) == 1
    assert "fdatasync" in Path(f"{queue.path}.failed").read_text()


def test_a_read_that_meets_the_failing_disk_stops_the_queue_too(
    queue: Queue, failing: list[int]
) -> None:
    with pytest.raises(StorageFailed, match="fdatasync of"):
        queue.counts()

    assert Path(f"{queue.path}.failed").exists()


def test_after_a_failed_sync_the_connection_is_never_closed(
    queue: Queue, failing: list[int]
) -> None:
    """The last close would copy frames into the database that nobody has verified."""
    with suppress(OutcomeUnknown):
        queue.enqueue("kind", 1)
    log = Path(f"{queue.path}-wal").stat()
    queue.close()

    assert Path(f"{queue.path}-wal").stat() == log


def test_the_marker_of_another_process_stops_this_one_at_its_next_acknowledgement(
    queue: Queue,
) -> None:
    Path(f"{queue.path}.failed").touch()

    with pytest.raises(OutcomeUnknown):
        queue.enqueue("kind", 1)
    with pytest.raises(StorageFailed):
        queue.counts()


class Breaking(sqlite3.Connection):
    """A connection one of whose statements fails with a code of SQLite's, once."""

    failing: tuple[str, int] | None = None

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if self.failing is not None and self.failing[0] == sql:
            error = sqlite3.OperationalError("refused")
            error.sqlite_errorcode = self.failing[1]
            type(self).failing = None
            raise error
        return super().execute(sql, *values)


@pytest.fixture
def breaking(place: Path) -> Iterator[Queue]:
    def connect(path: str) -> sqlite3.Connection:
        return sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, factory=Breaking
        )

    with Queue(place / "q.db", host=Host(connect=connect)) as queue:
        yield queue
    Breaking.failing = None


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_ERROR])
def test_an_error_of_the_commit_is_an_unknown_outcome_never_a_failure(
    breaking: Queue, code: int
) -> None:
    """A transaction whose sync failed can be there again after a kill."""
    Breaking.failing = ("COMMIT", code)
    with pytest.raises(OutcomeUnknown, match="repeat the call with the same key") as caught:
        breaking.enqueue("kind", 1)

    assert not caught.value.definite
    breaking.enqueue("kind", 2)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC])
def test_a_sync_that_fails_inside_the_commit_stops_the_queue(breaking: Queue, code: int) -> None:
    """R-A5: the kernel tells an error once, here to SQLite and perhaps never to the barrier."""
    Breaking.failing = ("COMMIT", code)
    with pytest.raises(OutcomeUnknown, match="repeat the call with the same key") as caught:
        breaking.enqueue("kind", 1)

    assert not caught.value.definite
    assert os.path.exists(f"{breaking.path}.failed")
    with pytest.raises(StorageFailed, match=r"is stopped .*killproof doctor --repair"):
        breaking.enqueue("kind", 2)


def test_a_disk_that_is_full_at_the_commit_is_told_so_and_nothing_is_changed(
    breaking: Queue,
) -> None:
    Breaking.failing = ("COMMIT", sqlite3.SQLITE_FULL)
    with pytest.raises(StorageFull, match="make room") as caught:
        breaking.enqueue("kind", 1)

    assert caught.value.definite
    assert breaking.counts()["available"] == 0


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED])
def test_a_checkpoint_that_is_refused_is_put_off_and_the_commit_stands(
    breaking: Queue, code: int
) -> None:
    breaking.database.checkpoint_commits = 1
    Breaking.failing = (FULL, code)
    breaking.enqueue("kind", 1)

    assert breaking.counts()["available"] == 1


@pytest.mark.parametrize("point", ["enqueue.committed", "enqueue.synced"])
def test_an_interrupt_after_the_commit_is_an_unknown_outcome(queue: Queue, point: str) -> None:
    def hook(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    sync.hook = hook
    try:
        with pytest.raises(OutcomeUnknown, match="KeyboardInterrupt"):
            queue.enqueue("kind", 1)
    finally:
        sync.hook = None
    assert queue.counts()["available"] == 1


@pytest.mark.parametrize("point", ["enqueue.begin", "enqueue.locked", "enqueue.written"])
def test_an_interrupt_before_the_commit_rolls_back_and_frees_the_locks(
    queue: Queue, point: str
) -> None:
    def hook(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    sync.hook = hook
    try:
        with pytest.raises(KeyboardInterrupt):
            queue.enqueue("kind", 1)
    finally:
        sync.hook = None
    with Queue(queue.path) as other:
        other.enqueue("kind", 2)
    assert queue.counts()["available"] == 1
    assert not queue.database.is_writing()


# R-B4, R-D2, R-D3: checkpoints.


def checkpoints(locks: Locks) -> list[str]:
    return [event for event in locks.events if "checkpoint(" in event]


def test_a_checkpoint_is_full_under_the_turnstile_and_outside_of_transactions(
    queue: Queue, locks: Locks
) -> None:
    """PASSIVE reads the log's header without the writer's lock, and then marks frames as copied."""
    queue.database.checkpoint_commits = 1
    del locks.events[:]
    queue.enqueue("kind", 1)

    assert locks.events == ["enter", "COMMIT", f"{FULL} in_transaction=False", "leave", "wait"]


def test_one_commit_in_so_many_checkpoints_by_chance(queue: Queue, locks: Locks) -> None:
    queue.database.checkpoint_commits = 20
    for _ in range(400):
        queue.enqueue("kind", 1)

    assert 5 <= len(checkpoints(locks)) <= 45


def test_a_log_that_grows_is_checkpointed_without_chance(queue: Queue, locks: Locks) -> None:
    """Covers F60."""
    for _ in range(12):
        queue.enqueue("kind", "x" * 1_000_000)

    assert checkpoints(locks)
    assert Path(f"{queue.path}-wal").stat().st_size < 10_000_000


def test_nothing_checkpoints_while_bypassing_the_turnstile(place: Path) -> None:
    locks = Locks(passable=False)
    with Queue(place / "q.db", host=observed(locks)) as queue:
        queue.database.checkpoint_commits = 1
        size = os.stat(queue.path).st_size
        for _ in range(12):  # 3,000 pages: SQLite's own automatic checkpoint would have come.
            queue.enqueue("kind", "x" * 1_000_000)

        assert queue.database.bypasses == 12
        assert checkpoints(locks) == []
        assert os.stat(queue.path).st_size == size


def test_more_copied_than_logged_is_corruption_and_stops_everything(place: Path) -> None:
    """Only a process killed inside walRestartHdr leaves it behind; frames are invisible then."""
    locks = Locks()
    with Queue(place / "q.db", host=observed(locks, {FULL: (0, 40, 52)})) as queue:
        queue.database.checkpoint_commits = 1
        with pytest.raises(OutcomeUnknown, match="52 frames copied of 40"):
            queue.enqueue("kind", 1)

        assert locks.events[-1] == "leave"  # Or everybody else would wait for us.
        assert not queue.database.is_writing()
        with pytest.raises(StorageFailed, match=r"is stopped .*killproof doctor --repair"):
            queue.counts()
        assert "52 frames copied of 40" in Path(f"{queue.path}.failed").read_text()


@pytest.mark.parametrize("answer", [(0, 40, 40), (0, 40, 0), (1, 40, 12), (0, 0, 0), (0, -1, -1)])
def test_no_other_answer_of_a_checkpoint_stops_anything(
    place: Path, answer: tuple[int, int, int]
) -> None:
    locks = Locks()
    with Queue(place / "q.db", host=observed(locks, {FULL: answer})) as queue:
        queue.database.checkpoint_commits = 1
        queue.enqueue("kind", 1)

        assert queue.counts()["available"] == 1


def test_a_checkpoint_that_meets_a_reader_is_put_off(queue: Queue, locks: Locks) -> None:
    queue.enqueue("kind", 1)
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM job").fetchall()
        queue.database.checkpoint_commits = 1
        queue.enqueue("kind", 2)
        queue.enqueue("kind", 3)

    assert len(checkpoints(locks)) == 2
    assert queue.counts()["available"] == 3


def test_a_checkpoint_whose_sync_failed_stops_the_queue(breaking: Queue) -> None:
    """The sync of the database that failed succeeds the next time, without the pages."""
    breaking.database.checkpoint_commits = 1
    Breaking.failing = (FULL, sqlite3.SQLITE_IOERR_FSYNC)
    with pytest.raises(OutcomeUnknown):
        breaking.enqueue("kind", 1)

    with pytest.raises(StorageFailed):
        breaking.counts()


# Busy and full.


def test_a_lock_that_is_not_freed_in_time_is_busy_and_nothing_is_changed(place: Path) -> None:
    """Covers F19."""
    with (
        Queue(place / "q.db", busy_limit=2, host=Host(clock=ManualClock())) as queue,
        closing(sqlite3.connect(queue.path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        before_ns = queue.host.clock.monotonic_ns()
        with pytest.raises(KillproofError, match="locked by another program for 2 s") as caught:
            queue.enqueue("kind", 1)

        assert caught.value.definite
        assert 2.0 <= (queue.host.clock.monotonic_ns() - before_ns) / 1e9 < 2.1
        other.execute("ROLLBACK")
        queue.enqueue("kind", 2)
        assert queue.counts()["available"] == 1


def test_a_full_database_is_told_so_and_nothing_is_changed(queue: Queue) -> None:
    queue.database.peek("PRAGMA max_page_count = 1")  # Never below what there is.

    with pytest.raises(StorageFull, match="make room, then try again") as caught:
        queue.enqueue("kind", "x" * 100_000)
    assert caught.value.definite
    assert queue.counts()["available"] == 0
    queue.enqueue("kind", 1)


def test_the_default_connection_neither_begins_nor_waits_by_itself(place: Path) -> None:
    with closing(host.connect(str(place / "q.db"))) as connection:
        assert connection.isolation_level is None
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (0,)
