"""A call that the shim fails fails for the program as the kernel's would, and nothing else does."""

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.shim.calls import Action, File, Kind
from killproof_chaos.shim.control import FOREVER, Control, Rule
from killproof_chaos.shim.environment import preload_environment
from killproof_chaos.shim.log import End, read_log

try:
    build()
except ShimUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)

DEADLINE_SECONDS = 120.0


@pytest.fixture
def watched(place: Path) -> Iterator[Control]:
    """A control over `place/db`; processes arm themselves."""
    (place / "db").mkdir()
    with Control.create(
        place / "control", watch=place / "db", log=place / "log", armed=False
    ) as control:
        yield control


def run(control: Control, code: str) -> str:
    """Run Python code under the shim; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(control.path.parent / "db")],
        env=os.environ | preload_environment(control),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def failing(kind: Kind, file: File, error: int, *, first: int = 1, times: int = 1) -> Rule:
    return Rule(
        action=Action.FAIL, value=error, kinds=frozenset({kind}), files=frozenset({file}),
        first=first, times=times,
    )  # fmt: skip


CALLS = """
import fcntl, os, sys
from killproof_chaos.shim.notes import Shim
os.chdir(sys.argv[1])
open("there-wal", "x").close(); os.mkdir("full"); open("full/x", "x").close()
file = os.open("q.db-wal", os.O_RDWR | os.O_CREAT)
calls = {
    "open": lambda: os.open("new-wal", os.O_RDWR | os.O_CREAT),
    "write": lambda: os.write(file, b"abc"),
    "fsync": lambda: os.fsync(file),
    "fdatasync": lambda: os.fdatasync(file),
    "truncate": lambda: os.ftruncate(file, 99),
    "allocate": lambda: os.posix_fallocate(file, 0, 99),
    "rename": lambda: os.rename("there-wal", "new-wal"),
    "unlink": lambda: os.unlink("there-wal"),
    "mkdir": lambda: os.mkdir("new-wal"),
    "link": lambda: os.link("there-wal", "new-wal"),
    "lock": lambda: fcntl.flock(file, fcntl.LOCK_EX),
    "posix lock": lambda: fcntl.lockf(file, fcntl.LOCK_EX),
    "close": lambda: os.close(file),
}
Shim().arm()
try:
    print(calls[%r]())
except OSError as error:
    print(error.errno, os.path.exists("new-wal"), os.path.exists("there-wal"),
          os.path.getsize("q.db-wal"))
"""


@pytest.mark.parametrize(
    ("call", "kind", "error"),
    [
        ("open", Kind.OPEN, errno.EMFILE),
        ("write", Kind.WRITE, errno.ENOSPC),
        ("fsync", Kind.FSYNC, errno.EIO),
        ("fdatasync", Kind.FDATASYNC, errno.EIO),
        ("truncate", Kind.TRUNCATE, errno.EIO),
        ("allocate", Kind.ALLOCATE, errno.ENOSPC),
        ("rename", Kind.RENAME, errno.EIO),
        ("unlink", Kind.UNLINK, errno.EACCES),
        ("mkdir", Kind.MKDIR, errno.ENOSPC),
        ("link", Kind.LINK, errno.EPERM),
        ("lock", Kind.LOCK, errno.ENOLCK),
        ("posix lock", Kind.LOCK, errno.ENOLCK),
        ("close", Kind.CLOSE, errno.EIO),
    ],
)
def test_a_failed_call_tells_its_errno_and_changes_nothing(
    watched: Control, call: str, kind: Kind, error: int
) -> None:
    file = File.DIRECTORY if kind == Kind.MKDIR else File.WAL
    watched.set_rule(failing(kind, file, error))

    assert run(watched, CALLS % call) == f"{error} False True 0"
    assert watched.hits() == 1


def test_a_descriptor_is_closed_whatever_close_says(watched: Control) -> None:
    """As the kernel does: a program that closed it again would close another thread's file."""
    watched.set_rule(failing(Kind.CLOSE, File.WAL, errno.EIO))
    closes_twice = CALLS.replace("print(error.errno,", "print(error.errno); os.close(file); print(")

    with pytest.raises(AssertionError, match="Bad file descriptor"):
        run(watched, closes_twice % "close")


FAMILY = """
import os, sys
os.chdir(sys.argv[1])
def write(name):
    file = os.open(name, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(file, b"abc")
    except OSError as error:
        print(name, error.errno, flush=True)
write("parent-wal")
for name in ("first-wal", "second-wal"):
    if (child := os.fork()) == 0:
        write(name)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_rule_for_a_slot_is_for_the_process_that_will_have_it(watched: Control) -> None:
    """A process of a target in any language has no pid before it begins, and begins in order."""
    watched.set_start_armed(True)
    rule = failing(Kind.WRITE, File.WAL, errno.EIO)
    watched.set_rule(replace(rule, slot=2))

    assert run(watched, FAMILY) == f"second-wal {errno.EIO}"


def test_a_failure_is_recorded_as_the_shim_s(watched: Control) -> None:
    watched.set_rule(failing(Kind.FDATASYNC, File.WAL, errno.EIO))
    run(watched, CALLS % "fdatasync")

    ends = [record for record in read_log(watched.path.parent / "log") if isinstance(record, End)]
    assert [(end.kind, end.error, end.injected) for end in ends if end.number == 1] == [
        (Kind.FDATASYNC, errno.EIO, True)
    ]
    assert not any(end.injected for end in ends if end.number == 0)


@pytest.mark.parametrize(
    ("value", "written"), [(2, "2 b'ab'"), (0, "3 b'abc'"), (99, "5 b'abcde'")]
)
def test_a_short_write_writes_so_many_bytes_and_says_so(
    watched: Control, value: int, written: str
) -> None:
    watched.set_rule(Rule(action=Action.SHORT, value=value, kinds=frozenset({Kind.WRITE})))
    code = """
import os, sys
from killproof_chaos.shim.notes import Shim
file = os.open(sys.argv[1] + "/q.db-wal", os.O_RDWR | os.O_CREAT)
Shim().arm()
print(os.writev(file, [b"abcd", b"e"]), os.pread(file, 9, 0))
"""
    assert run(watched, code) == written


@pytest.mark.parametrize(("times", "told"), [(1, "3 5 3 3"), (2, "3 5 5 3"), (FOREVER, "3 5 5 5")])
def test_a_rule_fires_from_its_call_on_as_often_as_it_says(
    watched: Control, times: int, told: str
) -> None:
    watched.set_rule(failing(Kind.WRITE, File.WAL, errno.EIO, first=2, times=times))
    code = """
import os, sys
from killproof_chaos.shim.notes import Shim
file = os.open(sys.argv[1] + "/q.db-wal", os.O_RDWR | os.O_CREAT)
def write():
    try:
        return os.write(file, b"abc")
    except OSError as error:
        return error.errno
Shim().arm()
print(write(), write(), write(), write())
"""
    assert run(watched, code) == told


def test_two_processes_share_the_times_of_a_rule(watched: Control) -> None:
    watched.set_rule(failing(Kind.WRITE, File.WAL, errno.EIO, times=1))
    code = """
import os, sys
from killproof_chaos.shim.notes import Shim
file = os.open(sys.argv[1] + "/q.db-wal", os.O_RDWR | os.O_CREAT)
Shim().arm()
try:
    print(os.write(file, b"abc"))
except OSError as error:
    print("failed")
"""
    assert [run(watched, code), run(watched, code)] == ["failed", "3"]


#: Enqueues once to make the log, arms, enqueues, disarms, enqueues; never closes SQLite.
ENQUEUES = """
import os, sys
from killproof import KillproofError, Queue
from killproof_chaos.shim.notes import Shim
queue = Queue(sys.argv[1] + "/queue.db")
queue.database.checkpoint_commits = 10**9
queue.enqueue("before", {})
def enqueue(kind):
    try:
        return f"job {queue.enqueue(kind, {'text': 'x' * int(%d)})}"
    except KillproofError as error:
        return f"{type(error).__name__} {'definite' if error.definite else 'indefinite'}"
Shim().arm()
print(enqueue("faulty"), end="; ")
Shim().disarm()
print(enqueue("after"), flush=True)
os._exit(0)
"""


def kinds_in(control: Control) -> list[str]:
    """Return the kinds of the jobs that a later opener finds."""
    with closing(sqlite3.connect(control.path.parent / "db" / "queue.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [row[0] for row in connection.execute("SELECT kind FROM job ORDER BY id")]


def test_a_failed_barrier_is_an_unknown_outcome_and_stops_the_queue(watched: Control) -> None:
    watched.set_rule(failing(Kind.FDATASYNC, File.WAL, errno.EIO))

    told = run(watched, ENQUEUES % 1)

    assert told == "OutcomeUnknown indefinite; StorageFailed definite"
    assert (watched.path.parent / "db" / "queue.db.failed").exists()
    assert kinds_in(watched) == ["before", "faulty"]


def test_no_room_in_the_log_rolls_back_and_says_so(watched: Control) -> None:
    watched.set_rule(failing(Kind.WRITE, File.WAL, errno.ENOSPC))
    code = """
import os, sqlite3, sys
from killproof_chaos.shim.notes import Shim
connection = sqlite3.connect(sys.argv[1] + "/queue.db", isolation_level=None)
connection.execute("PRAGMA journal_mode = wal")
connection.execute("CREATE TABLE job(id INTEGER PRIMARY KEY, kind)")
Shim().arm()
try:
    connection.execute("INSERT INTO job(kind) VALUES ('faulty')")
except sqlite3.OperationalError as error:
    print(error.sqlite_errorname, connection.in_transaction, end=" ")
print(connection.execute("INSERT INTO job(kind) VALUES ('after')").rowcount, flush=True)
os._exit(0)
"""
    assert run(watched, code) == "SQLITE_FULL False 1"
    assert kinds_in(watched) == ["after"]


def test_no_room_before_the_commit_is_definite(watched: Control) -> None:
    """A batch beyond SQLite's page cache is written to the log before COMMIT is sent."""
    watched.set_rule(failing(Kind.WRITE, File.WAL, errno.ENOSPC))
    batch = ENQUEUES.replace("queue.enqueue(kind,", "queue.enqueue_many([(kind,").replace(
        "})}", "})] * 100)}"
    )

    assert run(watched, batch % 60_000).startswith("StorageFull definite; job [2, 3,")
    assert kinds_in(watched) == ["before", *["after"] * 100]


@pytest.mark.parametrize(
    ("error", "told"),
    [(errno.ENOSPC, "StorageFull definite"), (errno.EIO, "OutcomeUnknown indefinite")],
)
def test_a_commit_that_could_not_write_to_the_log_did_not_happen(
    watched: Control, error: int, told: str
) -> None:
    watched.set_rule(failing(Kind.WRITE, File.WAL, error))

    assert run(watched, ENQUEUES % 1) == f"{told}; job 2"
    assert kinds_in(watched) == ["before", "after"]


@pytest.mark.parametrize(
    "rule",
    [
        failing(Kind.WRITE, File.WAL, errno.EINTR, times=3),
        failing(Kind.LOCK, File.SHM, errno.EAGAIN, times=3),
        failing(Kind.LOCK, File.TURNSTILE, errno.EINTR),
        failing(Kind.LOCK, File.TURNSTILE, errno.EAGAIN),
        Rule(action=Action.SHORT, value=7, kinds=frozenset({Kind.WRITE})),
    ],
    ids=[
        "interrupted write",
        "lock taken",
        "interrupted turnstile",
        "turnstile taken",
        "short write",
    ],
)
def test_what_a_kernel_may_do_on_a_good_day_goes_unnoticed(watched: Control, rule: Rule) -> None:
    watched.set_rule(rule)

    assert run(watched, ENQUEUES % 9000) == "job 2; job 3"
    assert watched.hits() > 0
    assert kinds_in(watched) == ["before", "faulty", "after"]


def test_clearing_the_rules_heals_a_running_process(watched: Control) -> None:
    watched.set_start_armed(True)
    watched.set_rule(failing(Kind.WRITE, File.WAL, errno.ENOSPC, times=FOREVER))
    code = """
import os, sys
file = os.open(sys.argv[1] + "/q.db-wal", os.O_RDWR | os.O_CREAT)
told = set()
while True:
    try:
        os.write(file, b"abc")
    except OSError as error:
        if not told:
            print(error.errno, flush=True)
        told.add(error.errno)
    else:
        break
print(told)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(watched.path.parent / "db")],
        env=os.environ | preload_environment(watched),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{errno.ENOSPC}\n"
        watched.clear_rules()
        assert process.stdout.readline() == f"{{{errno.ENOSPC}}}\n"
        assert process.wait(DEADLINE_SECONDS) == 0


def test_a_rule_set_anew_counts_anew_in_a_running_process(watched: Control) -> None:
    watched.set_start_armed(True)
    watched.set_rule(failing(Kind.WRITE, File.WAL, errno.EIO, first=3))
    code = """
import os, sys
file = os.open(sys.argv[1] + "/q.db-wal", os.O_RDWR | os.O_CREAT)
while input() == "write":
    try:
        os.write(file, b"a")
    except OSError as error:
        print(error.errno, flush=True)
    else:
        print("written", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(watched.path.parent / "db")],
        env=os.environ | preload_environment(watched),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = []
        for number in range(5):
            if number == 2:
                watched.set_rule(failing(Kind.WRITE, File.WAL, errno.EIO, first=3))
            process.stdin.write("write\n")
            told.append(process.stdout.readline())
        process.stdin.write("end\n")

    assert told == [*["written\n"] * 4, f"{errno.EIO}\n"]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the sqlite3 program is not installed")
def test_a_program_in_another_language_is_failed_too(watched: Control) -> None:
    watched.set_start_armed(True)
    watched.set_rule(failing(Kind.WRITE, File.JOURNAL, errno.ENOSPC, times=FOREVER))

    done = subprocess.run(
        ["sqlite3", str(watched.path.parent / "db" / "queue.db"), "CREATE TABLE job(id)"],
        env=os.environ | preload_environment(watched),
        capture_output=True,
        text=True,
        check=False,
    )

    assert "database or disk is full" in done.stderr


def test_a_file_that_failed_to_open_once_is_written_to_again_at_the_next_call(
    watched: Control,
) -> None:
    """Seen under `--nemesis io`: SQLite falls back to read-only, and the heartbeat kept that."""
    watched.set_rule(failing(Kind.OPEN, File.DATABASE, errno.EIO))
    code = """
import sys, threading
from killproof import KillproofError, Queue
from killproof_chaos.shim.notes import Shim
queue = Queue(sys.argv[1] + "/queue.db")
lease = queue.enqueue("job", {}) and queue.claim()
def renew():
    for _ in range(3):
        try:
            queue.extend(lease)
        except KillproofError as error:
            print(type(error).__name__, end=" ")
        else:
            print("extended", end=" ")
Shim().arm()
thread = threading.Thread(target=renew)  # It opens a connection of its own.
thread.start()
thread.join()
"""
    assert run(watched, code) == "FileRefused extended extended"
    assert watched.hits() == 1
