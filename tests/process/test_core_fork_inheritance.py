"""What a forked child may rest on: SQLite's table of locks is inherited, the locks are not."""

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from killproof import FileRefused, Queue
from killproof.core import connection

# Since 3.12 Python warns of any fork beside threads; these tests are about just that.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def in_child(work: Callable[[], object]) -> int:
    """Fork, run the work in the child, and return its exit status: 0 when it did not raise."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def job_count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as reader:
        found: int = reader.execute("SELECT count(*) FROM job").fetchone()[0]
        return found


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_job_acknowledged_in_a_forked_child_survives_the_parents_close(
    place: Path, durability: str
) -> None:
    """Goal: the child's connection is protected by locks of its own.

    Method: the parent opens, forks, and closes as the last one that the kernel would know of if
    the child had inherited its connection.  Then the child enqueues.
    """
    path = place / "queue.db"
    queue = Queue(path, durability=durability)  # type: ignore[arg-type]
    queue.enqueue("first", None)
    ready, go = os.pipe(), os.pipe()

    def work() -> None:
        queue.enqueue("before the close", None)
        os.write(ready[1], b".")
        os.read(go[0], 1)
        queue.enqueue("after the close", None)

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    os.read(ready[0], 1)
    queue.close()
    os.write(go[1], b".")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for end in (*ready, *go):
        os.close(end)

    assert status == 0
    assert job_count(path) == 3


def test_a_child_forked_inside_a_transaction_refuses_the_file(place: Path) -> None:
    path = place / "queue.db"
    with Queue(path) as queue:

        def work() -> None:
            with pytest.raises(FileRefused, match="forked in the middle of a transaction"):
                queue.enqueue("child", None)

        with queue.transaction() as tx:
            tx.execute("CREATE TABLE mine (x)")
            status = in_child(work)

        assert status == 0
        assert queue.enqueue("parent", None) == 1


def test_a_fork_waits_for_the_call_of_another_thread(place: Path) -> None:
    """The control: with no patience the child inherits the connection, and refuses."""
    path = place / "queue.db"
    with Queue(path) as queue:
        inside, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with queue.transaction():
                inside.set()
                leave.wait(60)

        def refused() -> None:
            with pytest.raises(FileRefused):
                queue.enqueue("child", None)

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait(60)
        patience = connection.FORK_SECONDS
        try:
            connection.FORK_SECONDS = 0.01
            without = in_child(refused)
            connection.FORK_SECONDS = 60.0
            threading.Timer(0.05, leave.set).start()
            with_patience = in_child(lambda: queue.enqueue("child", None))
        finally:
            connection.FORK_SECONDS = patience
            leave.set()
            thread.join()

        assert (without, with_patience) == (0, 0)
