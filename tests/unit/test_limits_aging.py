"""Aging: a kind that asks for it is not starved, and the order stays what is promised."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from killproof import FileRefused, ManualClock, Queue, limits_aging
from killproof.limits_aging import age, ages

Sql = Callable[..., list[tuple[Any, ...]]]


def work(queue: Queue, clock: ManualClock, seconds: float, *, step: float = 10.0) -> list[str]:
    """Work for so long on one job at a time while urgent ones come in; return what was done."""
    done = []
    for _ in range(round(seconds / step)):
        queue.enqueue("urgent", None, priority=0)
        clock.advance(step)
        lease = queue.claim()
        assert lease is not None
        done.append(lease.job.kind)
        queue.ack(lease)
    return done


def test_a_stream_of_urgent_jobs_starves_a_kind_that_does_not_age(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("report", None, priority=9)
    assert "report" not in work(queue, clock, 2_000)


@pytest.mark.parametrize("priority", [1, 5, 9])
def test_a_kind_that_ages_is_before_all_that_comes_later(
    queue: Queue, clock: ManualClock, priority: int
) -> None:
    """Covers S1.8, S1.26. F52."""
    age(queue, "report", 900)
    assert ages(queue) == {"report": 900.0}
    queue.enqueue("report", None, priority=priority)

    assert "report" not in work(queue, clock, 890)
    assert "report" in work(queue, clock, 40)


def test_priority_falls_by_a_level_in_each_ninth_of_the_time_and_never_rises(
    queue: Queue, clock: ManualClock
) -> None:
    age(queue, "report", 900)
    jobs = {priority: queue.enqueue("report", None, priority=priority) for priority in range(2, 10)}
    other = queue.enqueue("other", None, priority=9)
    seen = []
    work(queue, clock, 30)  # A look may be late by a ninetieth of the time, and the next end.
    for _ in range(8):
        work(queue, clock, 100)
        found = [queue.get(job_id) for job_id in jobs.values()]
        seen.append([job.priority for job in found if job is not None])

    assert seen[0] == [2, 3, 4, 5, 6, 7, 8, 8]
    assert seen[4] == [2, 3, 4, 4, 4, 4, 4, 4]
    assert seen[7] == [1] * 8
    untouched = queue.get(other)
    assert untouched is not None
    assert untouched.priority == 9


def test_only_what_waits_to_be_claimed_ages_and_by_its_due_time(
    queue: Queue, clock: ManualClock
) -> None:
    age(queue, "report", 90)
    later = queue.enqueue("report", None, priority=9, delay=1_000)
    running = queue.enqueue("report", None, priority=9)
    lease = queue.claim()
    assert lease is not None
    assert lease.job.id == running

    for _ in range(12):
        work(queue, clock, 10)
        queue.extend(lease)
    for job_id in (later, running):
        job = queue.get(job_id)
        assert job is not None
        assert job.priority == 9


def test_a_look_moves_a_bounded_number_and_the_longest_waiting_first(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    age(queue, "report", 90)
    old = queue.enqueue_many([("report", None)] * 60)
    clock.advance(60)
    queue.enqueue_many([("report", None)] * 60)
    clock.advance(60)
    work(queue, clock, 0.01, step=0.01)

    moved = sql("SELECT count(*) FROM job WHERE kind = 'report' AND priority < 5")
    assert moved == [(100,)]
    range_of = "SELECT min(priority), max(priority) FROM job WHERE id <= ?"
    assert sql(range_of, old[-1]) == [(0, 0)]
    work(queue, clock, 0.5, step=0.5)
    assert sql("SELECT count(*) FROM job WHERE kind = 'report' AND priority < 5") == [(100,)]
    work(queue, clock, 1, step=1)
    assert sql("SELECT count(*) FROM job WHERE kind = 'report' AND priority < 5") == [(120,)]


def test_a_step_back_of_the_wall_clock_does_not_stop_it(queue: Queue, clock: ManualClock) -> None:
    age(queue, "report", 90)
    work(queue, clock, 20)
    clock.step_wall(-7_200)
    job_id = queue.enqueue("report", None, priority=9)
    work(queue, clock, 20)
    job = queue.get(job_id)
    assert job is not None
    assert job.priority < 9


def test_aging_that_has_ended_moves_nothing(queue: Queue, clock: ManualClock) -> None:
    age(queue, "report", None)
    age(queue, "report", 90)
    age(queue, "report", None)
    assert ages(queue) == {}
    queue.enqueue("report", None, priority=9)
    assert "report" not in work(queue, clock, 200)


def test_what_can_not_age_is_refused_with_its_value(
    queue: Queue, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"seconds 0.5 must be a number of seconds, at least 1 "):
        age(queue, "report", 0.5)
    monkeypatch.setattr(limits_aging, "KINDS_MAX", 1)
    age(queue, "report", 90)
    age(queue, "report", 80)
    with pytest.raises(ValueError, match="1 kinds age already"):
        age(queue, "other", 90)
    sql("UPDATE killproof_schema SET version = 2 WHERE component = 'aging'")
    with pytest.raises(FileRefused, match="its aging has version 2"):
        ages(queue)


def test_a_table_of_the_applications_own_is_refused(queue: Queue, sql: Sql) -> None:
    sql("CREATE TABLE limit_aging (mine)")
    with pytest.raises(FileRefused, match="'limit_aging' that is not killproof's: rename it"):
        age(queue, "report", 90)


#: What it guards: the text, what stands there instead, and the test that must fail then.
GUARDS: dict[str, tuple[str, str, Callable[..., None]]] = {
    "a look is not repeated at once": (
        "+ full_ms / 90 + 1",
        "",
        test_a_look_moves_a_bounded_number_and_the_longest_waiting_first,
    ),
    "a look that a step of the clock has moved away is made": (
        "next_ms NOT BETWEEN NEW.updated_ms + 1 AND NEW.updated_ms + full_ms",
        "next_ms <= NEW.updated_ms",
        test_a_step_back_of_the_wall_clock_does_not_stop_it,
    ),
    "a job that has not waited long enough is left alone": (
        "+ 8) / 9",
        "+ 8) / 99",
        test_priority_falls_by_a_level_in_each_ninth_of_the_time_and_never_rises,
    ),
    "only its own kind": (
        "waiting.kind = limit_aging.kind",
        "waiting.kind >= ''",
        test_priority_falls_by_a_level_in_each_ninth_of_the_time_and_never_rises,
    ),
    "a bounded number": (
        "LIMIT 100",
        "",
        test_a_look_moves_a_bounded_number_and_the_longest_waiting_first,
    ),
    "nothing is more urgent than 0": (
        "9 - min(9, ",
        "9 - min(99, ",
        test_a_look_moves_a_bounded_number_and_the_longest_waiting_first,
    ),
    "what waits to be due does not age": (
        "waiting.state = 'available'",
        "waiting.state <> 'available'",
        test_a_look_moves_a_bounded_number_and_the_longest_waiting_first,
    ),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_each_guard_of_the_trigger_is_missed_by_a_test(
    queue: Queue, clock: ManualClock, sql: Sql, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, instead, test = GUARDS[guard]
    assert text in limits_aging.ON_END
    monkeypatch.setattr(limits_aging, "ON_END", limits_aging.ON_END.replace(text, instead))
    known = {"queue": queue, "clock": clock, "sql": sql}
    names = test.__code__.co_varnames[: test.__code__.co_argcount]
    with pytest.raises((AssertionError, sqlite3.IntegrityError)):
        test(**{name: known[name] for name in names})
