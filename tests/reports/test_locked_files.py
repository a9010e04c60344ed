"""'database is locked': where it came from, and that it does not reach a caller.

A clock that notes each pause, and a connection that notes or spoils each statement, make every
race the same each time.
"""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from killproof import DatabaseBusy, Host, KillproofError, Lease, ManualClock, Queue
from killproof.core import database
from killproof.core.database import Database

SECONDS_MAX = 120.0


class Connection(sqlite3.Connection):
    """Notes each statement; answers one of them with a lock error; changes others on their way."""

    statements: list[str]
    busy_at: int
    change: tuple[str, str]

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self.statements.append(sql)
        if len(self.statements) == self.busy_at and sql != "ROLLBACK":  # That one takes no lock.
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return super().execute(sql.replace(*self.change), *values)


def watched(statements: list[str], change: tuple[str, str] = ("\0", "")) -> Host:
    def connect(path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, factory=Connection
        )
        connection.statements, connection.change = statements, change
        connection.busy_at = -1
        return connection

    return Host(clock=ManualClock(), connect=connect)


def connection_of(queue: Queue) -> Connection:
    connection = queue.database._handle().connection
    assert isinstance(connection, Connection)
    return connection


def everything(queue: Queue) -> None:
    """Call each operation that writes, and each that reads."""
    for number in range(6):
        queue.enqueue("kind", number, key=str(number))
    leases = [queue.claim() for _ in range(6)]
    first, second, third, fourth, fifth, sixth = (lease for lease in leases if lease)
    queue.extend(first)
    queue.ack(first)
    queue.nack(second, "no")
    queue.release(third)
    queue.snooze(fourth, 1)
    queue.cancel(fifth.job.id)
    with queue.completing(sixth) as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS mine (n)")
    queue.reap()
    queue.get(1)
    queue.counts()
    queue.wait(None, 0)


# B58: a deferred transaction in a helper that everybody uses.


def check_no_transaction_is_upgraded(place: Path, change: tuple[str, str]) -> None:
    statements: list[str] = []
    host = watched(statements, change)
    with Queue(place / "q.db", durability="process", host=host) as queue:
        assert connection_of(queue).isolation_level is None, "Python begins by itself"
        everything(queue)
    begun = ""
    for sql in (sql.replace(*change).split() for sql in statements):
        if sql[0] == "BEGIN":
            begun = " ".join(sql)
        if sql[0] in ("INSERT", "UPDATE", "DELETE", "CREATE"):
            assert begun == "BEGIN IMMEDIATE", f"{begun}: {' '.join(sql)}"
        if sql[0] in ("COMMIT", "ROLLBACK"):
            begun = ""


def test_every_transaction_that_writes_takes_the_write_lock_at_its_beginning(place: Path) -> None:
    """B58: eight projects with a deferred begin in a helper."""
    check_no_transaction_is_upgraded(place, ("\0", ""))


def test_a_transaction_that_begins_deferred_is_seen(place: Path) -> None:
    """B58, control."""
    with pytest.raises(AssertionError, match="BEGIN: "):
        check_no_transaction_is_upgraded(place, ("BEGIN IMMEDIATE", "BEGIN"))


# B61: a lock error on the very first pragma.


class Releasing(ManualClock):
    """Lets the other program go after some pauses of whoever waits for it."""

    def __init__(self, other: sqlite3.Connection) -> None:
        super().__init__()
        self.other = other
        self.pauses = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.pauses += 1
        if self.pauses == 5 and self.other.in_transaction:
            self.other.execute("ROLLBACK")


def check_opening_waits(place: Path) -> None:
    with closing(sqlite3.connect(place / "q.db", isolation_level=None)) as other:
        other.execute("CREATE TABLE of_the_application (n)")
        other.execute("BEGIN EXCLUSIVE")  # No log yet: nobody may even read.
        clock = Releasing(other)
        with Queue(place / "q.db", durability="process", host=Host(clock=clock)) as queue:
            assert queue.enqueue("kind", 1) == 1
        assert clock.pauses >= 5


def once(self: Database, attempt: Callable[[], object]) -> object:
    """Take the first answer."""
    return attempt()


def test_opening_waits_while_another_program_has_the_file_for_itself(place: Path) -> None:
    """B61: the busy timeout was set after the journal mode."""
    check_opening_waits(place)


def test_an_open_that_does_not_wait_is_seen_to_meet_the_lock(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B61, control."""
    monkeypatch.setattr(Database, "_patiently", once)
    with pytest.raises(DatabaseBusy):
        check_opening_waits(place)


# B62: a lock error in a statement outside of the retry loop.


def one_of_each(queue: Queue) -> str:
    """Put in, take, finish; as a worker does that tries again what it may."""

    def patiently(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KillproofError:
            return call()

    job_id = patiently(lambda: queue.enqueue("kind", 1, key="once"))
    patiently(lambda: queue.wait(None, 0))
    lease: Lease | None = patiently(queue.claim)
    if lease is None:  # The claim has happened, and nobody knows of it: its lease must run out.
        queue.host.clock.sleep(61)
        lease = queue.claim()
    assert lease is not None
    taken = lease
    patiently(lambda: queue.ack(taken))
    job = patiently(lambda: queue.get(job_id))
    return f"{job.id} {job.state} {job.failures} of {len(patiently(queue.counts))}"


def check_a_lock_error_anywhere_changes_no_outcome(place: Path) -> None:
    statements: list[str] = []
    outcomes = set()
    number = 0
    while True:
        path = place / f"{number}.db"
        with Queue(path, durability="process", host=watched(statements)) as queue:
            connection = connection_of(queue)
            statements.clear()
            connection.busy_at = number
            outcomes.add(one_of_each(queue))
            if number > len(statements):
                break
        number += 1
    assert number > 20, "no statement was spoiled"
    assert outcomes == {"1 succeeded 0 of 10"}


def test_a_lock_error_at_any_statement_changes_no_outcome(place: Path) -> None:
    """B62: a lock error in a look beforehand ended the workflow as failed."""
    check_a_lock_error_anywhere_changes_no_outcome(place)


def test_a_statement_whose_lock_error_nobody_translates_is_seen_to_end_the_job(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B62, control; this was killproof's own fault."""
    monkeypatch.delitem(database._KNOWN, sqlite3.SQLITE_BUSY)
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        check_a_lock_error_anywhere_changes_no_outcome(place)


# B59, B65: storms of lock errors under many writers.

#: Writes now and then, and holds the lock for a moment each time, as a busy disk does.
WRITER = """
import sys, time
from killproof import Queue
from killproof.core.database import Database
exec(sys.argv[2])
queue = Queue(sys.argv[1])
queue.counts()
queue.database.busy_limit = float(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for number in range(12):
    with queue.transaction() as tx:
        tx.execute("SELECT count(*) FROM job")
        time.sleep(0.001)
        queue.enqueue("kind", number, tx=tx)
    lease = queue.claim()
    if lease is not None:
        queue.ack(lease)
"""


@contextmanager
def processes(count: int, word: str, *argv: str) -> "Iterator[list[subprocess.Popen[str]]]":
    """Start so many, and wait until each has said the word; leave none behind."""
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            command = [sys.executable, "-c", *argv]
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{word}\n"
        yield started


def release(started: "list[subprocess.Popen[str]]") -> str:
    """Let all of them go on at once; return what they have to complain about."""
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return "".join(process.communicate(timeout=SECONDS_MAX)[1] for process in started)


def check_no_lock_error_reaches_anybody(place: Path, busy_limit: float) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        argv = (WRITER, queue.path, "", str(busy_limit))
        with processes(4, "ready", *argv) as writers:
            errors = release(writers)
        assert not errors, errors[-400:]
        assert queue.counts()["succeeded"] + queue.counts()["available"] == 4 * 12


def test_four_processes_that_write_all_the_time_meet_no_lock_error(place: Path) -> None:
    """B59, B65: heartbeats failed, and so did the enqueue in a web request."""
    check_no_lock_error_reaches_anybody(place, 30)


def test_writers_without_patience_are_seen_to_meet_it(place: Path) -> None:
    """B59, B65, control."""
    with pytest.raises(AssertionError, match="was locked by another program for 0 s"):
        check_no_lock_error_reaches_anybody(place, 0)


# B67: processes that start at once crash each other's migration.

#: Decides what is pending, waits until the others have decided too, and goes on.
STARTER = """
import sys
from killproof import Queue
from killproof.core.database import Database
migrate = Database._migrate
def when_all_have_decided(self, connection, level):
    print("decided", flush=True)
    sys.stdin.readline()
    exec(sys.argv[2])
    migrate(self, connection, level)
Database._migrate = when_all_have_decided
with Queue(sys.argv[1], durability="process") as queue:
    queue.enqueue("kind", 1)
"""
#: The control: what was decided before the lock is what counts.
DECIDED = "self._schema_of = lambda connection: (0, None)"


@contextmanager
def no_file(path: Path) -> Any:
    yield


@contextmanager
def file_of_an_application(path: Path) -> Any:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE of_the_application (n)")
        connection.commit()
    yield


def check_all_come_up(place: Path, before: Callable[[Path], Any], guard: str) -> None:
    path = place / "q.db"
    with before(path), processes(3, "decided", STARTER, str(path), guard) as starters:
        errors = release(starters)
    assert not errors, errors[-400:]
    with Queue(path) as queue:
        assert queue.counts()["available"] == 3
        assert queue.database.peek("SELECT version FROM killproof_schema") == [(1,)]


@pytest.mark.parametrize("before", [no_file, file_of_an_application])
def test_processes_that_start_at_once_all_come_up_on_one_schema(
    place: Path, before: Callable[[Path], Any]
) -> None:
    """B67: duplicate column, table exists, locked: decided before the write lock was held."""
    check_all_come_up(place, before, "")


def test_a_migration_that_was_decided_before_the_lock_is_seen_to_crash(place: Path) -> None:
    """B67, control."""
    with pytest.raises(AssertionError, match="already exists"):
        check_all_come_up(place, no_file, DECIDED)
