"""The kinds of fault that the reports have in common, each as a property over drawn cases.

A report is one case of its kind; its test and control stand in another file. Here hypothesis draws
the cases. A sweep that acts on a snapshot is drawn in `tests/stateful/test_sim_machine.py`, where a
schedule may switch between any two statements.
"""

import inspect
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from killproof import DatabaseBusy, FileRefused, Host, Job, Lease, LeaseLost, ManualClock, Queue
from killproof.core import barrier, database, model, retry
from killproof.maintenance import doctor

# Since 3.12 Python warns of any fork beside threads, and pytest-xdist has one.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

#: Without a search for the smallest case: a control would pay for it.
drawn = settings(
    deadline=None, max_examples=6, derandomize=True, database=None, phases=[Phase.generate]
)


@contextmanager
def fresh(place: Path) -> Iterator[tuple[Queue, ManualClock, Path]]:
    """An empty queue for one example."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        path = Path(folder) / "q.db"
        with Queue(path, durability="process", host=Host(clock=clock)) as queue:
            yield queue, clock, path


@contextmanager
def damaging(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of somebody who keeps to no rule."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        yield connection


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


# A failure path that itself fails.


class Unspeakable(Exception):
    """Raises whatever it is asked."""

    def __init__(self, words: type[BaseException]) -> None:
        self.words = words

    def __str__(self) -> str:
        raise self.words("no text")

    __repr__ = __str__


def test_a_failure_is_recorded_whatever_its_policy_and_its_error(place: Path) -> None:
    """B53 and B118 are cases."""

    @drawn
    @given(st.text(max_size=40), st.sampled_from([ValueError, RecursionError, MemoryError]))
    def each(policy: str, words: type[BaseException]) -> None:
        with fresh(place) as (queue, clock, path):
            job_id = queue.enqueue("kind", 1, max_attempts=2)
            with damaging(path) as connection:
                connection.execute("UPDATE job SET retry = ?", (policy.replace("\0", ""),))
            queue.nack(claimed(queue), Unspeakable(words))
            clock.advance(10 * 86_400)
            queue.nack(claimed(queue), Unspeakable(words))
            job = queue.get(job_id)
            assert isinstance(job, Job)
            assert (job.state, job.error_class) == ("dead", "Unspeakable")

    each()


# Arithmetic at the limits.

NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, -1, 1e308])
)


def test_a_number_is_refused_or_kept_and_whatever_is_kept_can_run(place: Path) -> None:
    """B50 and B53 are cases."""

    @settings(drawn, max_examples=40)
    @given(st.sampled_from(["delay", "lease", "deadline", "max_attempts", "priority"]), NUMBERS)
    def each(name: str, number: float) -> None:
        queue, clock, options = shared, clocks, {name: number}
        if name == "deadline" and isinstance(number, float) and math.isfinite(number):
            options = {name: clock.now_ms() / 1_000 + abs(number) + 1}
        try:
            job_id = queue.enqueue("kind", 1, **options)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            assert queue.counts()["available"] == queue.counts()["scheduled"] == 0
            return
        job = queue.get(job_id)
        assert job is not None
        if job.state == "available":
            lease = claimed(queue)
            queue.snooze(queue.extend(lease), 0)
            queue.ack(claimed(queue))
        else:
            queue.cancel(job_id)

    with fresh(place) as (shared, clocks, _):
        each()


# Identity that is used again.


def test_no_id_comes_twice_whatever_is_deleted_in_between(place: Path) -> None:
    """B4, B5, B28 and B124 are cases."""

    @drawn
    @given(st.lists(st.sampled_from(["newest", "all", "vacuum", "reopen", "import"]), max_size=5))
    def each(steps: list[str]) -> None:
        with fresh(place) as (queue, _, path):
            seen: list[int] = []
            late: list[Lease] = []
            for step in ["", *steps]:
                with damaging(path) as connection:
                    if step == "newest":
                        connection.execute("DELETE FROM job WHERE id = (SELECT max(id) FROM job)")
                    elif step in ("all", "vacuum"):
                        connection.execute("DELETE FROM job")
                    if step == "vacuum":
                        connection.execute("VACUUM")
                if step == "reopen":
                    queue.close()
                    queue = Queue(path)
                seen += queue.enqueue_many([("kind", step)] * 3)
                late.append(claimed(queue))
            waiting = queue.counts()["available"]
            for lease in late:
                with suppress(LeaseLost):
                    queue.ack(lease)
            assert len(seen) == len(set(seen))
            assert queue.counts()["available"] == waiting
            queue.close()

    each()


# A page of rows that can not be rescued.


def test_what_can_not_be_rescued_stands_in_nobodys_way(place: Path) -> None:
    """B40 is a case: rows that the sweep passes over, and finds first again each time."""

    @settings(drawn, max_examples=3)
    @given(st.sampled_from(["crashes = -9", "payload = '{'", "retry = ''"]))
    def each(damage: str) -> None:
        with fresh(place) as (queue, clock, path):
            rows = [("kind", number) for number in range(120)]  # More than a sweep looks at.
            queue.enqueue_many(rows)
            for _ in range(2):
                queue.claim_many(60)
            job_id = queue.enqueue("well", 1)
            claimed(queue)
            with damaging(path) as connection:
                connection.execute(f"UPDATE job SET {damage} WHERE kind = 'kind'")  # noqa: S608
            clock.advance(3_600)
            queue.reap()
            job = queue.get(job_id)
            assert job is not None
            assert job.state in ("available", "retryable")

    each()


# A reader that pins the log.

KEPT_BYTES = 256 << 10


def test_the_log_is_small_again_whoever_has_read_and_in_whatever_order(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B68, B71 and B73 are cases."""
    monkeypatch.setattr(database, "LOG_BYTES_KEPT", KEPT_BYTES)
    monkeypatch.setattr(database, "LOG_GROWTH_BYTES", KEPT_BYTES // 8)
    monkeypatch.setattr(database, "CHECKPOINT_WAIT_MS", 0)

    @settings(drawn, max_examples=5)
    @given(st.lists(st.sampled_from(["one reads", "two reads", "one ends", "two ends"])))
    def each(steps: list[str]) -> None:
        with fresh(place) as (queue, _, path):
            readers = {name: sqlite3.connect(path, isolation_level=None) for name in ("one", "two")}
            for step in steps:
                name, _, what = step.partition(" ")
                if what == "reads" and not readers[name].in_transaction:
                    readers[name].execute("BEGIN")
                    readers[name].execute("SELECT count(*) FROM job").fetchall()
                elif what == "ends" and readers[name].in_transaction:
                    readers[name].execute("COMMIT")
                for _ in range(8):
                    queue.enqueue("kind", "x" * 30_000)
            for reader in readers.values():
                reader.close()
            for _ in range(8):
                queue.enqueue("kind", "x" * 30_000)
            assert os.stat(f"{path}-wal").st_size <= 2 * KEPT_BYTES

    each()


# Two SQLite libraries.

#: Does what it is told with the other library, and says what came of it.
OTHER = """
import sys
import apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("CREATE TABLE IF NOT EXISTS mine (n)")
print("ready", flush=True)
for line in sys.stdin:
    connection.execute(line)
    print("done", flush=True)
"""


def test_a_program_with_another_library_and_the_queue_shut_each_other_out_in_any_order(
    place: Path,
) -> None:
    """B77 is a case, in processes of their own."""
    path = place / "q.db"
    with (
        Queue(path, durability="process", busy_limit=0.002) as queue,
        subprocess.Popen(
            [sys.executable, "-c", OTHER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        expected = {"jobs": 0, "rows": 0}

        @settings(drawn, max_examples=10)
        @given(st.lists(st.sampled_from(["COMMIT", "ROLLBACK", "ours"]), min_size=1, max_size=6))
        def each(steps: list[str]) -> None:
            assert other.stdin is not None
            assert other.stdout is not None
            for step in steps:
                if step == "ours":
                    queue.enqueue("kind", 1)
                    expected["jobs"] += 1
                    continue
                for line in ("BEGIN IMMEDIATE", "INSERT INTO mine VALUES (1)", step):
                    if line == step:
                        with pytest.raises(DatabaseBusy):
                            queue.enqueue("kind", "while it holds the lock")
                    other.stdin.write(f"{line}\n")
                    other.stdin.flush()
                    assert other.stdout.readline() == "done\n"
                expected["rows"] += step == "COMMIT"
            assert queue.database.peek("SELECT count(*) FROM mine") == [(expected["rows"],)]
            assert queue.counts()["available"] == expected["jobs"]

        each()
        other.communicate(timeout=20)
        assert other.returncode == 0
        assert queue.database.peek("PRAGMA integrity_check") == [("ok",)]


# Fork.


def in_child(work: object) -> int:
    """Fork, call it in the child, and return the child's exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        with suppress(BaseException):
            work()  # type: ignore[operator]
            status = 0
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_children_and_parents_lose_nothing_of_each_other_in_any_order(place: Path) -> None:
    """No report is a case alone; see `tests/process/test_core_fork_inheritance.py`."""

    @drawn
    @given(st.lists(st.sampled_from(["parent", "child", "grandchild", "close", "inside"])))
    def each(steps: list[str]) -> None:
        with fresh(place) as (queue, _, path):
            jobs = 0

            def enqueue() -> None:
                queue.enqueue("kind", None)

            for step in steps:
                if step == "close":
                    queue.close()
                    queue = Queue(path)
                elif step == "inside":
                    with queue.transaction() as tx:
                        queue.enqueue("kind", None, tx=tx)
                        assert in_child(enqueue) == 1, "it must refuse the file"
                    jobs += 1
                elif step == "parent":
                    enqueue()
                    jobs += 1
                else:
                    deep = step == "grandchild"
                    work = (lambda: in_child(enqueue) and os._exit(1)) if deep else enqueue
                    assert in_child(work) == 0
                    jobs += 1
            assert queue.counts()["available"] == jobs
            with damaging(path) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            queue.close()

    each()


# Descriptors.


def test_no_descriptor_is_left_whatever_is_opened_refused_and_closed(place: Path) -> None:
    """B76 and the limits of open files are cases."""

    @drawn
    @given(st.lists(st.sampled_from(["open", "work", "close", "refused", "missing", "doctor"])))
    def each(steps: list[str]) -> None:
        foreign = place / "foreign.db"
        foreign.write_bytes(b"no database, and long enough to be one" * 100)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            before = len(os.listdir("/proc/self/fd"))
            path, queues = Path(folder) / "q.db", list[Queue]()
            for step in steps:
                if step == "open":
                    queues.append(Queue(path, durability="process"))
                elif step == "close" and queues:
                    queues.pop(0).close()
                elif step == "work" and queues:
                    queues[-1].enqueue("kind", 1)
                    queues[-1].ack(claimed(queues[-1]))
                elif step == "doctor":
                    doctor(path)
                elif step in ("refused", "missing"):
                    where = foreign if step == "refused" else Path(folder) / "no" / "q.db"
                    with pytest.raises(FileRefused):
                        Queue(where)
            for queue in queues:
                queue.close()
            assert len(os.listdir("/proc/self/fd")) == before

    each()


# Control: each property is seen to fail when its guard is gone.


Breaks = Callable[[pytest.MonkeyPatch], None]


def without_a_net(patch: pytest.MonkeyPatch) -> None:
    """Believe what an error says of itself, and what a policy does."""

    def as_it_says(self: Queue, job: Job) -> int:
        return retry.delay_ms(job.retry, job.attempt, self.host.random)

    patch.setattr(Queue, "_policy_ms", as_it_says)


def without_bounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model, "to_ms", lambda seconds, name, **_: round(seconds * 1_000))


def reusing(patch: pytest.MonkeyPatch) -> None:
    statements = database._statements

    def plain(name: str) -> Iterator[str]:
        return (text.replace(" AUTOINCREMENT", "") for text in statements(name))

    patch.setattr(database, "_statements", plain)
    # A batch names its ids: it must not ask the table that only AUTOINCREMENT makes.
    patch.setattr(Queue, "LAST_ID", "SELECT coalesce(max(id), 0) FROM job")


def giving_up(patch: pytest.MonkeyPatch) -> None:
    def raises(self: Queue, tx: object, job_id: int, error: Exception) -> None:
        raise error

    patch.setattr(Queue, "_set_aside", raises)


def without_checkpoints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(database.Database, "_checkpoint_due", lambda *_: False)


def leaking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(barrier.Barrier, "close", lambda self: None)


CONTROLS: list[tuple[Callable[..., None], Breaks, type[Exception], str]] = [
    (test_a_failure_is_recorded_whatever_its_policy_and_its_error, without_a_net, ValueError, "."),
    (
        test_a_number_is_refused_or_kept_and_whatever_is_kept_can_run,
        without_bounds,
        Exception,
        "CHECK|OverflowError|too large|cannot convert|datatype",
    ),
    (test_no_id_comes_twice_whatever_is_deleted_in_between, reusing, AssertionError, "."),
    (
        test_what_can_not_be_rescued_stands_in_nobodys_way,
        giving_up,
        sqlite3.IntegrityError,
        "CHECK",
    ),
    (
        test_the_log_is_small_again_whoever_has_read_and_in_whatever_order,
        without_checkpoints,
        AssertionError,
        ".",
    ),
    (
        test_no_descriptor_is_left_whatever_is_opened_refused_and_closed,
        leaking,
        AssertionError,
        ".",
    ),
]


@pytest.mark.parametrize(("check", "breaks", "kind", "words"), CONTROLS)
def test_a_property_whose_guard_is_gone_is_seen_to_fail(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[..., None],
    breaks: Breaks,
    kind: type[Exception],
    words: str,
) -> None:
    """Control."""
    breaks(monkeypatch)
    asked = inspect.signature(check).parameters
    given = {"place": place, "monkeypatch": monkeypatch}
    with pytest.raises(kind, match=words):
        check(**{name: given[name] for name in asked})
