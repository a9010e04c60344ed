"""Write-ahead logs of gigabytes: readers that pin a snapshot, and checkpoints that never come.

The limits are a hundredth of the real ones, so that a scenario of megabytes shows the same.
Each control takes away the limit, the checkpoint or the look that the scenario is about.
"""

import logging
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from killproof import Queue, maintenance
from killproof.core import database
from killproof.core.connection import Handle
from killproof.core.database import Database
from killproof.maintenance import Check, doctor

SECONDS_MAX = 120.0
KEPT_BYTES = 640 << 10
GROWTH_BYTES = 40 << 10
#: What one enqueue below adds to the log, about: its payload, and some pages around it.
JOB_BYTES = 40_000
#: The log has passed every limit after so many.
MANY = 50
#: Half way between what is kept and what was reached.
BOUND_BYTES = KEPT_BYTES + 8 * GROWTH_BYTES

READER = """
import sqlite3, sys
reader = sqlite3.connect(sys.argv[1], isolation_level=None)
reader.execute("BEGIN")
reader.execute("SELECT count(*) FROM job").fetchall()
print("reads", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def queue(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """A long-lived process with its connection, which no test closes before its end."""
    monkeypatch.setattr(database, "LOG_BYTES_KEPT", KEPT_BYTES)
    monkeypatch.setattr(database, "LOG_GROWTH_BYTES", GROWTH_BYTES)
    monkeypatch.setattr(database, "CHECKPOINT_WAIT_MS", 0)
    with Queue(place / "q.db", durability="process") as queue:
        queue.database.checkpoint_commits = 1 << 60  # By chance never: growth alone decides.
        queue.enqueue("kind", 1)
        yield queue


@contextmanager
def somebody_reads(queue: Queue) -> Iterator[int]:
    """Let another program read in one transaction; yield its process id."""
    argv = [sys.executable, "-c", READER, queue.path]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert select.select([reader.stdout], [], [], SECONDS_MAX)[0]
        assert reader.stdout.readline() == b"reads\n"
        yield reader.pid
        reader.communicate(timeout=SECONDS_MAX)


def write(queue: Queue, jobs: int) -> int:
    """Put jobs in; return the largest size that the log had after one of them."""
    payload = "x" * JOB_BYTES
    largest = 0
    for _ in range(jobs):
        queue.enqueue("kind", payload)
        largest = max(largest, log_bytes(queue))
    return largest


def log_bytes(queue: Queue) -> int:
    return os.stat(f"{queue.path}-wal").st_size


def found(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


# B68, B70: a reader that is always there.


def check_the_reader_is_named(queue: Queue) -> None:
    with somebody_reads(queue) as pid:
        write(queue, 3)
        text = found(doctor(queue.path), "log").text

    assert f"read without a pause by pid {pid} (python" in text
    assert "of them in the database already" in text
    assert "read without a pause" not in found(doctor(queue.path), "log").text


def test_the_doctor_says_how_much_of_the_log_is_left_to_copy_and_who_reads(queue: Queue) -> None:
    """B70: the log passed the automatic checkpoint and the size limit; both are schedules."""
    check_the_reader_is_named(queue)


def test_a_doctor_that_looks_at_no_locks_is_seen_to_name_nobody(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B70, control."""
    monkeypatch.setattr(maintenance, "READ_MARKS", range(0))
    with pytest.raises(AssertionError, match="read without a pause"):
        check_the_reader_is_named(queue)


def test_the_contract_calls_no_schedule_a_bound_and_its_numbers_are_those_of_the_code() -> None:
    """B70: the docs say so."""
    page = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text("utf-8")
    (rule,) = (part for part in page.split("\n\n") if "The log has no hard bound" in part)

    for number in (
        f"one commit in {database.CHECKPOINT_COMMITS}",
        f"{database.LOG_GROWTH_BYTES >> 20} MiB of growth",
        f"{database.LOG_BYTES_KEPT >> 20} MiB when",
        f"warns at {2 * database.LOG_BYTES_KEPT >> 20} MiB",
    ):
        assert number in rule


def test_a_worker_that_reads_now_and_then_is_not_taken_for_the_one_that_pins_the_log(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B70: several looks; with a single one the doctor would name whoever is just at work."""
    looks = iter([{(1, 123), (2, 124)}, {(2, 124), (3, 124)}, {(2, 124)}, {(2, 124), (1, 123)}])
    monkeypatch.setattr(maintenance, "_read_locks", lambda place: next(looks))
    monkeypatch.setattr(maintenance, "LOOK_SECONDS", 0)

    assert [reader.split(" (")[0] for reader in maintenance._readers(queue.path)] == ["pid 2"]


def check_growth_is_said(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    with somebody_reads(queue), caplog.at_level(logging.WARNING, "killproof"):
        reached = write(queue, MANY)
    said = [record for record in caplog.records if "somebody keeps reading" in record.message]

    assert reached > 2 * KEPT_BYTES
    assert said, "nothing was said"
    assert len(said) <= 2, "said at each checkpoint that could not finish"  # Once a doubling.
    assert "killproof doctor names who reads" in said[0].message


def test_a_log_that_a_reader_pins_is_said_with_the_way_to_find_the_reader(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """B68: logs of 1.7 and 5.4 GB, because there was always a reader with an old snapshot."""
    check_growth_is_said(queue, caplog)


@pytest.mark.parametrize(("told", "words"), [(1 << 60, "nothing"), (-1, "each")])
def test_a_queue_that_says_nothing_or_says_it_each_time_is_seen(
    queue: Queue, caplog: pytest.LogCaptureFixture, told: int, words: str
) -> None:
    """B68, control."""

    class Forgetful(Database):
        """Believes whatever it was told at first."""

        def __setattr__(self, name: str, value: object) -> None:
            if name != "_log_bytes_told":
                super().__setattr__(name, value)

    queue.database._log_bytes_told = told
    queue.database.__class__ = Forgetful
    with pytest.raises(AssertionError, match=words):
        check_growth_is_said(queue, caplog)


# B71: the log stays at its high-water mark until a restart.


def check_the_log_shrinks_and_stays_small(queue: Queue) -> None:
    with somebody_reads(queue):
        reached = write(queue, MANY)
    assert reached > 2 * BOUND_BYTES, "the scenario did not come about"
    write(queue, 3)

    assert log_bytes(queue) <= BOUND_BYTES, "it is as large as before"
    assert write(queue, MANY) <= BOUND_BYTES, "it grew again"


def test_once_the_reader_is_gone_the_log_shrinks_without_a_restart_and_stays_small(
    queue: Queue,
) -> None:
    """B71: only the last close shrank it, and a later checkpoint came at the old size again."""
    check_the_log_shrinks_and_stays_small(queue)


def test_a_log_without_a_size_limit_is_seen_to_stay_large(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B71, control."""
    monkeypatch.setattr(database, "LOG_BYTES_KEPT", -1)
    with Queue(queue.path) as endless:
        endless.database.checkpoint_commits = 1 << 60
        queue.database.close()  # Its connection would cut the log back.
        with pytest.raises(AssertionError, match="as large"):
            check_the_log_shrinks_and_stays_small(endless)


def test_growth_that_is_counted_from_the_old_size_is_seen_to_reach_it_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B71, control for its second half; this was killproof's own fault."""

    def counts_from_the_old_size(self: Database, handle: Handle) -> bool:
        return handle.log.log_bytes() - handle.log_bytes > GROWTH_BYTES

    monkeypatch.setattr(Database, "_checkpoint_due", counts_from_the_old_size)
    with pytest.raises(AssertionError, match="grew again"):
        check_the_log_shrinks_and_stays_small(queue)


# B73: no idle moment for a checkpoint.


def check_bounded_under_constant_load(queue: Queue) -> None:
    with Queue(queue.path) as other:  # Two writers in turn: neither finds the queue idle.
        other.database.checkpoint_commits = 1 << 60
        largest = max(write(writer, 2) for _ in range(MANY) for writer in (queue, other))

    assert largest <= BOUND_BYTES, "it grew"


def test_writers_without_a_pause_keep_the_log_bounded(queue: Queue) -> None:
    """B73: growth under constant load, because the checkpoint waited for an idle moment."""
    check_bounded_under_constant_load(queue)


def test_without_checkpoints_under_load_the_log_is_seen_to_grow(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B73, control."""
    monkeypatch.setattr(Database, "_checkpoint_due", lambda *_: False)
    with pytest.raises(AssertionError, match="it grew"):
        check_bounded_under_constant_load(queue)
