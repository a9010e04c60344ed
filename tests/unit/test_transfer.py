"""The way out and back in: nothing is lost, nothing comes twice."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from killproof import FileRefused, Host, Job, Lease, ManualClock, Queue, operations, transfer
from killproof.transfer import Imported, export_jobs, import_jobs

Sql = Callable[..., list[tuple[object, ...]]]


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def job_of(queue: Queue, job_id: int) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job


def exported(queue: Queue) -> list[str]:
    out = io.StringIO()
    export_jobs(queue, out)
    return out.getvalue().splitlines(keepends=True)


@pytest.fixture
def full(queue: Queue, clock: ManualClock) -> Queue:
    """A queue with a job in most states, with attempts, a key, a deadline, and a deep payload."""
    queue.enqueue("k", {"é": [1, {"n": None}]}, key="done:1")
    queue.ack(claimed(queue), {"said": "ü"})
    queue.enqueue("k", 2, max_attempts=1)
    queue.nack(claimed(queue), ValueError("no\nsuch"))
    queue.enqueue("k", 3)
    queue.nack(claimed(queue), "later", delay=60)
    queue.enqueue("k", 4, key="order:4", deadline=clock.now_ms() / 1_000 + 600, priority=2)
    operations.hold(queue, 4)
    queue.cancel(queue.enqueue("k", 5))
    queue.enqueue("k", 6, delay=5, retry="fixed:3", lease=7)
    return queue


@pytest.fixture
def other(place: Path, clock: ManualClock) -> Iterator[Queue]:
    with Queue(place / "other.db", durability="process", host=Host(clock=clock)) as other:
        yield other


def test_a_round_trip_loses_nothing(full: Queue, other: Queue) -> None:
    """Covers S0.82, S2.16: every field of every job, and every attempt with its traceback."""
    lines = exported(full)
    done = import_jobs(other, lines)

    assert done == Imported(added=6, known=0, refused=())
    for job_id in range(1, 7):
        assert job_of(other, job_id) == job_of(full, job_id)
    assert exported(other)[1:] == lines[1:]
    assert json.loads(lines[-1]) == {"killproof_export_end": 6}


def test_each_line_is_json_that_another_program_reads(full: Queue) -> None:
    head, *jobs, _ = [json.loads(line) for line in exported(full)]

    assert head["killproof_export"] == 1
    assert [job["state"] for job in jobs] == [
        "succeeded", "dead", "retryable", "held", "cancelled", "scheduled"
    ]  # fmt: skip
    assert jobs[1]["attempts"][0]["error_message"] == "no\nsuch"


def test_an_import_that_is_repeated_adds_nothing(full: Queue, other: Queue, sql: Sql) -> None:
    """Also when the jobs have moved on meanwhile, here as there: they are known by where from."""
    import_jobs(other, exported(full))
    operations.unhold(other, 4)
    other.ack(claimed(other))
    operations.unhold(full, 4)

    assert import_jobs(other, exported(full)) == Imported(added=0, known=6, refused=())
    assert sum(other.counts().values()) == 6


def test_an_import_that_was_cut_off_goes_on_where_it_was(
    full: Queue, other: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BATCH_JOBS", 2)
    lines = exported(full)
    broken = [*lines[:4], "{", *lines[4:]]
    with pytest.raises(ValueError, match="line 5 is not JSON"):
        import_jobs(other, broken)
    assert sum(other.counts().values()) == 2  # The batch of the bad line is out as a whole.

    assert import_jobs(other, lines) == Imported(added=4, known=2, refused=())


def test_an_export_that_was_cut_off_between_two_lines_is_told(full: Queue, other: Queue) -> None:
    lines = exported(full)
    with pytest.raises(ValueError, match="cut off after 4 jobs, 4 of which came in now"):
        import_jobs(other, lines[:5])
    assert import_jobs(other, lines) == Imported(added=2, known=4, refused=())


def test_jobs_of_two_files_with_the_same_ids_do_not_take_each_others_place(
    full: Queue, other: Queue, place: Path, clock: ManualClock
) -> None:
    """Goal: id, kind and time are equal in two shards that start together; both come in."""
    host = Host(clock=clock)
    with Queue(place / "a.db", host=host) as one, Queue(place / "b.db", host=host) as two:
        one.enqueue("k", "one")
        two.enqueue("k", "two")
        import_jobs(other, exported(one))
        import_jobs(other, exported(two))

    assert other.counts()["available"] == 2


def test_a_job_whose_key_lives_in_the_target_is_left_out_and_told(
    full: Queue, other: Queue
) -> None:
    mine = other.enqueue("k", "mine", key="order:4")
    done = import_jobs(other, exported(full))

    assert done.added == 5
    assert done.refused == ((5, f"its key 'order:4' belongs to job {mine}, which has not ended"),)


def test_what_was_running_is_available_and_that_was_no_attempt(queue: Queue, other: Queue) -> None:
    queue.enqueue("k", 1, max_attempts=1)
    claimed(queue)
    import_jobs(other, exported(queue))
    job = job_of(other, 1)

    assert (job.state, job.attempt, job.deliveries) == ("available", 0, 1)
    assert [(a.outcome, a.error_class) for a in job.attempts] == [("released", "Exported")]


def test_an_export_reads_page_by_page(full: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: bounded memory.  Method: a page of two jobs, and one that is over the size at once.

    Covers F60.
    """
    whole = exported(full)
    monkeypatch.setattr(transfer, "BATCH_JOBS", 2)
    assert exported(full) == whole
    monkeypatch.setattr(transfer, "BATCH_CHARS", 1)
    assert exported(full) == whole

    with full.database.read() as tx:
        assert [job_id for job_id, _ in transfer._batch(tx, 0)] == [1]


def test_a_damaged_row_does_not_close_the_way_out(queue: Queue, sql: Sql) -> None:
    """F68: what another program has put in with SQL; half of a surrogate pair is JSON to SQLite."""
    for number in (1, 2, 3):
        queue.enqueue("k", number)
    half = '{"x": "\\ud800"}'
    sql("UPDATE job SET payload = ? WHERE id = 3", half)
    sql("PRAGMA ignore_check_constraints = ON")
    sql("UPDATE job SET payload = '{bad' WHERE id = 1")

    lines = [json.loads(line.encode()) for line in exported(queue)[1:-1]]
    found = [line["payload"] for line in lines]
    assert found == [{"killproof_repr": "{bad"}, 2, {"killproof_repr": half}]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "line 1 is not JSON"),
        ("[1]", "line 1 does not say that this is an export"),
        ('{"killproof_export": 2, "source": "x"}', "export of format 1"),
        ('{"killproof_export": 1, "source": ""}', "source"),
    ],
)
def test_what_is_no_export_is_refused_by_its_first_line(queue: Queue, line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        import_jobs(queue, [line])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "done"}, "state 'done' is unknown"),
        ({"kind": ""}, "kind '' must be"),
        ({"retry": "often"}, "retry policy 'often'"),
        ({"fence": -1}, "fence -1 must be"),
        ({"surplus": 1}, "surplus"),
        ({"attempts": [{}]}, "no exported job"),
        ({"deliveries": 9}, "is refused"),
        ({"priority": "high"}, "is refused"),
    ],
)
def test_a_line_that_is_no_job_is_named_and_nothing_of_its_batch_stays(
    full: Queue, other: Queue, changes: dict[str, object], said: str
) -> None:
    head, first, second, *_ = exported(full)
    with pytest.raises(ValueError, match=said):
        import_jobs(other, [head, first, json.dumps(json.loads(second) | changes)])

    assert sum(other.counts().values()) == 0


def test_a_table_of_the_application_with_that_name_is_left_alone(full: Queue, other: Queue) -> None:
    with other.transaction() as tx:
        tx.execute("CREATE TABLE imported_job (mine INTEGER)")
    with pytest.raises(FileRefused, match="imported_job"):
        import_jobs(other, exported(full))
