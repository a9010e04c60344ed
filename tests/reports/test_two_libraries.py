"""Two SQLite libraries on one file: the standard library's, and the copy that apsw brings.

In processes of their own they are two programs like any others. In one process neither sees the
locks of the other, and nobody can keep the second from opening the file: so it is said.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from killproof import DatabaseBusy, Queue, checklist, libraries

SECONDS_MAX = 120.0

#: Opens the file with the other library, takes the write lock, and puts a row in when told so.
OTHER = """
import sys
import apsw
connection = apsw.Connection(sys.argv[1])
connection.set_busy_timeout(20_000)
connection.execute("CREATE TABLE IF NOT EXISTS mine (n)")
connection.execute("BEGIN IMMEDIATE")
print("holds", flush=True)
sys.stdin.readline()
connection.execute("INSERT INTO mine VALUES (1)")
connection.execute("COMMIT")
connection.close()
"""

#: Both libraries in one process: the second takes the lock that the first holds.
BOTH = """
import sys
import apsw
from killproof import Queue
with Queue(sys.argv[1]) as queue:
    other = apsw.Connection(sys.argv[1])
    with queue.transaction() as tx:
        tx.execute("INSERT INTO killproof_setting VALUES ('mine', '1')")
        try:
            other.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            print("locked out")
        else:
            print("both hold the write lock")
            other.execute("ROLLBACK")
"""

#: A worker whose handler's module has loaded the other library, or has not.
WORKER = """
import importlib, sys
importlib.import_module(sys.argv[2])
from killproof import Queue
from killproof.handlers import Handlers
from killproof.worker import Worker
handlers = Handlers()

@handlers("kind")
def work(context):
    print("works", flush=True)
    sys.stdin.readline()

import logging
logging.basicConfig(stream=sys.stderr, format="%(name)s: %(message)s")
worker = Worker(Queue(sys.argv[1]), handlers)
worker.run()
"""


def run(code: str, *arguments: str) -> str:
    argv = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_two_libraries_in_processes_of_their_own_see_each_others_locks_and_rows(
    place: Path,
) -> None:
    """B77: rows of one kind in another table's page, where both were in one process."""
    with Queue(place / "q.db", durability="process", busy_limit=0.05) as queue:
        for number in range(3):
            queue.enqueue("kind", number)
            with subprocess.Popen(
                [sys.executable, "-c", OTHER, queue.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as other:
                assert other.stdout is not None
                assert other.stdout.readline() == b"holds\n"
                with pytest.raises(DatabaseBusy):
                    queue.enqueue("kind", "too early")
                other.communicate(b"go\n", timeout=SECONDS_MAX)
            assert other.returncode == 0
            assert queue.claim() is not None
        assert queue.database.peek("SELECT count(*) FROM mine") == [(3,)]
        assert queue.counts()["leased"] == 3
        assert queue.database.peek("PRAGMA integrity_check") == [("ok",)]


def test_two_libraries_in_one_process_are_seen_to_hold_one_lock_both(place: Path) -> None:
    """B77, control: what the rule is for. The second opens the file without asking anybody."""
    Queue(place / "q.db", durability="process").close()
    assert run(BOTH, str(place / "q.db")) == "both hold the write lock"


def told_of_a_worker(place: Path, module: str) -> tuple[list[str], str]:
    """Start a worker that has loaded a module; return what doctor and its log say of it."""
    with Queue(place / f"{module}.db", durability="process") as queue:
        queue.enqueue("kind", 1)
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, queue.path, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "works\n"
            found = [check.text for check in checklist.checks(queue) if check.name == "libraries"]
            worker.terminate()
            _, logged = worker.communicate("go\n", timeout=SECONDS_MAX)
    return found, logged


def check_a_second_library_is_told(place: Path) -> None:
    found, logged = told_of_a_worker(place, "apsw")
    assert "killproof.libraries: 2 SQLite libraries in one process" in logged
    assert [("apsw" in text, "process" in text) for text in found] == [(True, True)]


def test_a_worker_with_two_libraries_says_so_once_and_the_doctor_does(place: Path) -> None:
    """B77."""
    check_a_second_library_is_told(place)
    assert told_of_a_worker(place, "json") == ([], "")


def test_a_doctor_that_does_not_look_is_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B77, control."""
    monkeypatch.setattr(libraries, "loaded", lambda pid: ())
    with pytest.raises(AssertionError, match="True"):
        check_a_second_library_is_told(place)
