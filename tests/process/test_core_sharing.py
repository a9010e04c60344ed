"""One file among many: threads on one queue, processes that start at once, forks."""

import os
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from killproof import KillproofError, Lease, OutcomeUnknown, Queue, StorageFailed

# Since 3.12 Python warns of any fork beside threads; some tests are about just that.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

SECONDS_MAX = 120.0


def run(code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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


# Threads.


@pytest.mark.parametrize("level", ["process", "power"])
def test_threads_on_one_queue_lose_no_job_and_do_none_twice(place: Path, level: str) -> None:
    jobs = 300
    done: Counter[object] = Counter()
    errors: list[BaseException] = []
    with Queue(place / "q.db", durability=level) as queue:  # type: ignore[arg-type]  # One of two.

        def produce(first: int) -> None:
            for number in range(first, jobs, 2):
                queue.enqueue("kind", number)

        def work() -> None:
            lease: Lease | None = None
            while sum(done.values()) < jobs:
                lease = queue.ack_and_claim(lease) if lease else queue.claim()
                if lease is None:
                    queue.wait(None, 0.01)
                else:
                    done[lease.job.payload] += 1

        def noting(target: Callable[..., None], *values: int) -> None:
            try:
                target(*values)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=noting, args=(produce, first)) for first in (0, 1)]
        threads += [threading.Thread(target=noting, args=(work,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)

    assert errors == []
    assert done == Counter(range(jobs))


def test_threads_that_race_for_one_key_make_one_job(place: Path) -> None:
    ids: list[list[int]] = []
    together = threading.Barrier(6)
    with Queue(place / "q.db", durability="process") as queue:

        def work() -> None:
            together.wait(SECONDS_MAX)
            ids.append([queue.enqueue("kind", 1, key=f"k{number}") for number in range(30)])

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)

        assert ids == [ids[0]] * 6
        assert queue.counts()["available"] == 30


def test_threads_share_one_identity_and_each_has_a_connection_of_its_own(place: Path) -> None:
    """Covers F58."""
    owners, connections = set(), set()
    barrier = threading.Barrier(4)
    with Queue(place / "q.db", durability="process") as queue:
        queue.enqueue_many([("kind", i) for i in range(4)])

        def work() -> None:
            lease = queue.claim()
            assert lease is not None
            owners.add(lease.owner)
            connections.add(id(queue.database._handle().connection))
            barrier.wait(SECONDS_MAX)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)

        assert (len(owners), len(connections)) == (1, 4)


def test_a_thread_that_ends_leaves_no_descriptor_behind(place: Path) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        queue.claim()
        before = len(os.listdir("/proc/self/fd"))
        for number in range(10):
            thread = threading.Thread(target=queue.enqueue, args=("kind", number))
            thread.start()
            thread.join(SECONDS_MAX)

        assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_queue_that_is_dropped_and_not_closed_leaves_no_descriptor_behind(place: Path) -> None:
    Queue(place / "q.db").close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        queue = Queue(place / "q.db")
        queue.enqueue("kind", 1)
        assert queue.claim() is not None
        del queue

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_queue_leaves_no_descriptor_and_no_thread_behind(place: Path) -> None:
    """Covers F59."""

    def use() -> None:
        with Queue(place / "q.db") as queue:
            queue.enqueue("kind", 1)
            lease = queue.claim()
            assert lease is not None
            queue.ack(lease)

    use()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(20):
        use()

    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_a_closed_queue_leaves_no_log_behind(place: Path) -> None:
    with Queue(place / "q.db") as queue:
        queue.enqueue("kind", 1)

    assert not (place / "q.db-wal").exists()


# Processes.

STARTER = """
import sys
from killproof import Queue
sys.stdin.readline()
with Queue(sys.argv[1], durability="process") as queue:
    print(queue.enqueue("kind", sys.argv[2], key="once"), queue.enqueue("kind", sys.argv[2]))
"""


def test_sixteen_processes_that_start_at_once_on_no_file_make_one_queue(place: Path) -> None:
    path = str(place / "q.db")
    processes = [run(STARTER, path, str(number)) for number in range(16)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = []
    for process in processes:
        out, error = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0, error
        said.append(out.split())

    assert len({keyed for keyed, _ in said}) == 1  # One of them put it in, and 15 found it.
    with Queue(path) as queue:
        assert queue.counts()["available"] == 17


DRAINER = """
import sys
from killproof import Queue
with Queue(sys.argv[1]) as queue:
    lease = queue.claim()
    while lease is not None:
        print(lease.job.payload)
        lease = queue.ack_and_claim(lease)
"""


def test_processes_that_drain_one_queue_do_each_job_once(place: Path) -> None:
    """Covers S0.17, S0.37, S2.3, S2.28, F6, F8, F10, F9."""
    jobs = 400
    with Queue(place / "q.db", durability="process") as queue:
        queue.enqueue_many([("kind", i) for i in range(jobs)])
        processes = [run(DRAINER, queue.path) for _ in range(4)]
        done: Counter[int] = Counter()
        for process in processes:
            out, error = process.communicate(timeout=SECONDS_MAX)
            assert process.returncode == 0, error
            done.update(int(line) for line in out.split())

        assert done == Counter(range(jobs))
        assert queue.counts()["succeeded"] == jobs


#: Every operation, in an interpreter that skips assert statements.
OPTIMISED = """
import sys
from killproof import Queue
assert False, "not skipped"
with Queue(sys.argv[1]) as queue:
    a, b, c, d = queue.enqueue_many([("kind", i) for i in range(4)])
    first, second, third = queue.claim_many(3)
    queue.ack(queue.extend(first))
    queue.nack(second, "no")
    queue.release(third)
    queue.snooze(queue.claim(), 60)
    queue.cancel(d)
    print([queue.get(i).state for i in (a, b, c, d)])
"""


def test_no_operation_hides_in_an_assert(place: Path) -> None:
    argv = [sys.executable, "-O", "-c", OPTIMISED, str(place / "q.db")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS_MAX)

    assert done.stdout.strip() == "['succeeded', 'retryable', 'scheduled', 'cancelled']", (
        done.stderr
    )


# Forks.


def test_a_forked_child_works_with_the_same_queue_under_an_identity_of_its_own(
    place: Path,
) -> None:
    with Queue(place / "q.db") as queue:
        queue.enqueue_many([("kind", 1), ("kind", 2)])
        mine = queue.claim()
        assert mine is not None

        def work() -> None:
            assert queue.worker_id is None
            lease = queue.claim()
            assert lease is not None
            assert lease.owner != mine.owner
            queue.ack(lease)
            queue.enqueue("kind", 3)
            queue.close()

        assert in_child(work) == 0
        queue.ack(mine)
        counts = queue.counts()
        assert (counts["succeeded"], counts["available"], counts["leased"]) == (2, 1, 0)


def test_a_forked_child_that_ends_gives_none_of_its_parents_leases_back(place: Path) -> None:
    with Queue(place / "q.db") as queue:
        queue.enqueue("kind", 1)
        lease = queue.claim()
        assert lease is not None

        assert in_child(queue.close) == 0
        assert in_child(lambda: None) == 0
        with Queue(queue.path) as peer:
            assert peer.reap() == 0
        queue.ack(lease)


@pytest.mark.parametrize("how", ["leaves the block", "raises", "reads"])
def test_a_child_forked_inside_a_transaction_neither_ends_nor_unlocks_it(
    place: Path, how: str
) -> None:
    """Its COMMIT would write the parent's log without holding a lock."""
    with Queue(place / "q.db", durability="process") as queue:
        pid = -1

        def child_part() -> None:
            """Run in both processes, and fork inside the block."""
            nonlocal pid
            with queue.transaction() as tx:
                queue.enqueue("kind", 1, tx=tx)
                pid = os.fork()
                if pid == 0 and how == "raises":
                    raise ZeroDivisionError
                if pid == 0 and how == "reads":
                    queue.counts()
                if pid:
                    _, status = os.waitpid(pid, 0)
                    assert os.waitstatus_to_exitcode(status) == 7
                    with closing(sqlite3.connect(queue.path, timeout=0)) as other:
                        with pytest.raises(sqlite3.OperationalError, match="locked"):
                            other.execute("BEGIN IMMEDIATE")
                        assert other.execute("SELECT count(*) FROM job").fetchone() == (0,)

        try:
            child_part()
        except (KillproofError, ZeroDivisionError):
            os._exit(7 if pid == 0 else 1)
        except BaseException:
            if pid == 0:
                os._exit(1)
            raise
        if pid == 0:
            os._exit(0)  # It believed that it had committed.

        assert queue.counts()["available"] == 1
        queue.enqueue("kind", 2)
        assert queue.database.bypasses == 0


def test_a_fork_while_the_parent_holds_the_turnstile_does_not_let_others_in(place: Path) -> None:
    """Unlocking in the child would release the lock of the parent."""
    with (
        Queue(place / "q.db", durability="process") as queue,
        Queue(place / "q.db") as _,
        queue.transaction(),
    ):
        assert in_child(lambda: None) == 0
        probe = "import fcntl, sys\nfile = open(sys.argv[1])\nfcntl.flock(file, 6)"
        process = run(probe, f"{queue.path}.turnstile")
        _, error = process.communicate(timeout=SECONDS_MAX)

        assert "BlockingIOError" in error


# A disk that failed, and an index of the log that a kill has torn.

FAILING = """
import errno, os, sys
from killproof import OutcomeUnknown, Queue
queue = Queue(sys.argv[1])
queue.enqueue("kind", "safe")
def fdatasync(descriptor):
    raise OSError(errno.EIO, "Input/output error")
os.fdatasync = fdatasync
try:
    queue.enqueue("kind", "doubtful")
except OutcomeUnknown:
    print("unknown", flush=True)
"""


def test_a_process_whose_disk_failed_ends_without_closing_its_connection(place: Path) -> None:
    """The last close would copy frames into the database that nobody has verified."""
    path = place / "q.db"
    Queue(path).close()
    database = path.stat()
    process = run(FAILING, str(path))
    out, error = process.communicate(timeout=SECONDS_MAX)

    assert (out.split(), process.returncode) == (["unknown"], 0), error
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (
        database.st_size,
        database.st_mtime_ns,
    )
    assert (place / "q.db-wal").stat().st_size > 0
    with pytest.raises(StorageFailed, match="doctor --repair"):
        Queue(path)
    assert (place / "q.db-wal").stat().st_size > 0


#: Writes, without SQLite, a count of copied frames that is beyond the log.
TEAR = """
import struct, sys
with open(sys.argv[1], "r+b") as index:
    index.seek(96)  # The checkpoint's part of the index: nBackfill.
    index.write(struct.pack("=I", 100_000))
"""


def test_more_frames_copied_than_logged_in_the_real_index_stops_everybody(place: Path) -> None:
    assert struct.calcsize("=I") == 4
    with Queue(place / "q.db") as queue, Queue(place / "q.db") as other:
        queue.enqueue("kind", 1)
        process = run(TEAR, f"{queue.path}-shm")
        _, error = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0, error
        queue.database.checkpoint_commits = 1
        with pytest.raises(OutcomeUnknown, match="index of the log is corrupt: 100000 frames"):
            queue.enqueue("kind", 2)

        for stopped in (queue, other):
            with pytest.raises(StorageFailed):
                stopped.counts()
        assert (place / "q.db.failed").exists()


# Termination of a process in the middle of things.


@pytest.mark.parametrize("point", ["begin", "locked", "written", "committed", "synced"])
def test_killed_at_any_point_of_an_enqueue_the_job_is_there_or_not_and_the_file_is_whole(
    place: Path, point: str
) -> None:
    code = f"""
import os, signal, sys
from killproof import Queue
from killproof.core import sync
def hook(name):
    if name == "enqueue.{point}":
        os.kill(os.getpid(), signal.SIGKILL)
queue = Queue(sys.argv[1])
sync.hook = hook
queue.enqueue("kind", 1, key="k")
"""
    path = place / "q.db"
    with Queue(path) as queue:
        process = run(code, str(path))
        process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == -signal.SIGKILL

        wanted = 1 if point in ("committed", "synced") else 0
        assert queue.counts()["available"] == wanted
        queue.enqueue("kind", 1, key="k")
        assert queue.counts()["available"] == 1
        assert queue.database.bypasses == 0
        assert queue.database.peek("PRAGMA integrity_check") == [("ok",)]


#: operation -> (how the worker does it, the job's state and outcomes if it was committed)
LAST_WORDS = {
    "claim": ("queue.claim()", "available", ["crashed"]),
    "ack": ("queue.ack(queue.claim())", "succeeded", ["succeeded"]),
    "nack": ("queue.nack(queue.claim(), 'no')", "retryable", ["failed"]),
    "release": ("queue.release(queue.claim())", "available", ["released"]),
    "cancel": ("queue.claim(); queue.cancel(1)", "cancelled", ["cancelled"]),
}


@pytest.mark.parametrize("point", ["locked", "written", "committed"])
@pytest.mark.parametrize("operation", LAST_WORDS)
def test_killed_inside_an_operation_it_has_happened_whole_or_not_at_all(
    place: Path, operation: str, point: str
) -> None:
    """Covers S2.2, S2.32."""
    words, state, outcomes = LAST_WORDS[operation]
    code = f"""
import os, signal, sys
from killproof import Queue
from killproof.core import sync
def hook(name):
    if name == "{operation}.{point}":
        os.kill(os.getpid(), signal.SIGKILL)
queue = Queue(sys.argv[1])
sync.hook = hook
{words}
"""
    with Queue(place / "q.db", durability="process") as queue:
        queue.enqueue("kind", 1, lease=86_400)
        process = run(code, queue.path)
        process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == -signal.SIGKILL
        queue.reap()

        job = queue.get(1)
        assert job is not None
        found = (job.state, [attempt.outcome for attempt in job.attempts])
        undone = ("available", [] if operation == "claim" else ["crashed"])
        assert found == ((state, outcomes) if point == "committed" else undone)
        assert queue.database.peek("PRAGMA integrity_check") == [("ok",)]


#: Enqueues until no file may grow any more; then the limit is lifted and it goes on.
FULL_DISK = """
import resource, signal, sys
from killproof import KillproofError, Queue
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
acknowledged, errors = [], []
with Queue(sys.argv[1]) as queue:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    for number in range(4):
        try:
            acknowledged.append(queue.enqueue("kind", "x" * 900_000, key=str(number)))
        except KillproofError as error:
            errors.append(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    acknowledged.append(queue.enqueue("kind", 1, key="after"))
print(acknowledged, sorted(set(errors)))
"""


def test_writes_that_the_disk_refuses_are_errors_of_ours_and_the_queue_goes_on(
    place: Path,
) -> None:
    process = run(FULL_DISK, str(place / "q.db"))
    out, error = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, error
    acknowledged, _, errors = out.partition("] ")

    assert errors.strip() in ("['OutcomeUnknown']", "['StorageFull']")
    with Queue(place / "q.db") as queue:
        assert all(queue.get(int(i)) for i in acknowledged.strip("[").split(","))
        assert queue.database.peek("PRAGMA integrity_check") == [("ok",)]
