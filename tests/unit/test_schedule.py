"""Schedules: which moments are slots, and one job for each of them."""

import json
import sqlite3
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from killproof import FileRefused, Host, ManualClock, Queue, schedule, schedule_times
from killproof.core.database import Transaction
from killproof.schedule import Schedules, fire_due, key_of, slot_of
from killproof.schedule_firing import LOOK_SECONDS_MAX, Firing
from killproof.schedule_times import CATCH_UP_MAX, Cron, Interval, TimesUnavailable

Run = Callable[..., tuple[int, str, str]]
Sql = Callable[..., list[tuple[Any, ...]]]


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


def slots(expression: str, zone: str, after: str, count: int) -> list[str]:
    """Return the slots after a moment, each as the clock of the zone shows it."""
    cron, moment, found = Cron(expression, zone), ms(after), []
    for _ in range(count):
        slot = cron.after(moment)
        assert slot is not None
        assert slot > moment
        moment = slot
        local = datetime.fromtimestamp(slot / 1_000, UTC).astimezone(zoneinfo.ZoneInfo(zone))
        found.append(f"{local:%m-%d %H:%M %z}")
    return found


# Which moments are slots.


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        # Skipped: from 01:00 to 02:00.  The day is not lost.
        (
            *("Europe/Lisbon", "30 1 * * *", "2026-03-28T12:00:00Z"),
            ["03-29 02:00 +0100", "03-30 01:30 +0100"],
        ),
        # Doubled: from 02:00 back to 01:00.  The first counts.
        (
            *("Europe/Lisbon", "30 1 * * *", "2026-10-24T12:00:00Z"),
            ["10-25 01:30 +0100", "10-26 01:30 +0000"],
        ),
        # Half an hour: from 02:00 to 02:30, and from 02:00 back to 01:30.
        (
            *("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00:00Z"),
            ["10-04 02:30 +1100", "10-05 02:15 +1100"],
        ),
        (
            *("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00:00Z"),
            ["04-05 01:45 +1100", "04-06 01:45 +1030"],
        ),
        # Midnight itself is skipped.
        (
            *("America/Santiago", "0 0 * * *", "2022-09-10T12:00:00Z"),
            ["09-11 01:00 -0300", "09-12 00:00 -0300"],
        ),
        # A change of half an hour that was no daylight saving; a whole day that was skipped.
        (
            *("Asia/Pyongyang", "45 23 * * *", "2018-05-04T12:00:00Z"),
            ["05-05 00:00 +0900", "05-05 23:45 +0900"],
        ),
        (
            *("Pacific/Apia", "0 12 * * *", "2011-12-29T12:00:00Z"),
            ["12-29 12:00 -1000", "12-31 00:00 +1400", "12-31 12:00 +1400"],
        ),
        # Several times in one skipped stretch are one.
        (
            *("America/New_York", "0,30 2 * * *", "2026-03-08T01:00:00-05:00"),
            ["03-08 03:00 -0400", "03-09 02:00 -0400"],
        ),
        (
            *("Asia/Kathmandu", "@daily", "2026-03-08T01:00:00Z"),
            ["03-09 00:00 +0545", "03-10 00:00 +0545"],
        ),
    ],
)
def test_a_fixed_time_comes_once_on_each_of_its_days(
    zone: str, expression: str, after: str, expected: list[str]
) -> None:
    """Covers S1.54."""
    assert slots(expression, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        (
            *("Europe/Lisbon", "*/30 * * * *", "2026-03-29T00:10:00Z"),
            ["03-29 00:30 +0000", "03-29 02:00 +0100", "03-29 02:30 +0100"],
        ),
        (
            *("Europe/Lisbon", "0 * * * *", "2026-10-24T23:30:00Z"),
            ["10-25 01:00 +0100", "10-25 01:00 +0000", "10-25 02:00 +0000"],
        ),
        # The slot that a parser which steps in whole hours loses.
        (
            *("Australia/Lord_Howe", "0 */3 * * *", "2026-10-03T12:00:00Z"),
            ["10-04 00:00 +1030", "10-04 03:00 +1100", "10-04 06:00 +1100"],
        ),
        (
            *("Australia/Lord_Howe", "45 */1 * * *", "2026-04-04T13:50:00Z"),
            ["04-05 01:45 +1100", "04-05 01:45 +1030", "04-05 02:45 +1030"],
        ),
    ],
)
def test_a_repetition_follows_the_clock_on_the_wall(
    zone: str, expression: str, after: str, expected: list[str]
) -> None:
    assert slots(expression, zone, after, len(expected)) == expected


ZONES = ("America/St_Johns", "Australia/Lord_Howe", "America/Santiago", "Antarctica/Troll")


@pytest.mark.parametrize("zone", ZONES)
def test_the_next_slot_is_later_whatever_the_clocks_do(zone: str) -> None:
    """B95: from moments around every change from 2000 to 2040 the next slot is strictly later.

    Half an hour of elapsed time lies between two slots of each half hour, but where clocks change.
    """
    daily, halves = Cron("30 2 * * *", zone), Cron("*/30 * * * *", zone)
    moment, end = datetime(2000, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
    while change := schedule_times._change(moment, end, zoneinfo.ZoneInfo(zone)):
        moment = change
        for minutes in (-61, -1, 0, 29, 90):
            at_ms = round((change + timedelta(minutes=minutes)).timestamp() * 1_000)
            day, half = daily.after(at_ms), halves.after(at_ms)

            assert day is not None
            assert half is not None
            assert at_ms < day <= at_ms + 50 * 3_600_000
            assert at_ms < half <= at_ms + 30 * 60_000


@pytest.mark.parametrize("zone", ZONES)
def test_a_daily_slot_comes_on_every_day_of_a_year_and_once(zone: str) -> None:
    cron, moment = Cron("30 2 * * *", zone), ms("2026-01-01T00:00:00Z")
    days = []
    while moment < ms("2027-01-03T00:00:00Z"):
        slot = cron.after(moment)
        assert slot is not None
        moment = slot
        local = datetime.fromtimestamp(slot / 1_000, UTC).astimezone(zoneinfo.ZoneInfo(zone))
        days.append(local.date())

    assert {later - day for day, later in pairwise(days)} == {timedelta(days=1)}


def test_an_interval_counts_elapsed_time_from_its_anchor() -> None:
    interval = Interval(every_ms=1_000, anchor_ms=5_500)

    assert [interval.after(moment) for moment in (0, 5_499, 5_500, 6_499, 6_500)] == [
        *(5_500, 5_500, 6_500, 6_500, 7_500)
    ]
    due = interval.due(5_500, 8_499)
    assert (due.latest, due.count, due.next_ms) == ((5_500, 6_500, 7_500), 3, 8_500)


@pytest.mark.parametrize(
    ("timetable", "latest_ms"),
    [
        (Interval(every_ms=60_000, anchor_ms=0), 60_000),
        (Cron("* * * * *", "UTC"), 60_000),
        (Cron("0 3 * * *", "Europe/Lisbon"), 86_400_000),
    ],
)
def test_a_sleep_of_years_is_looked_through_in_a_bounded_number_of_steps(
    timetable: Interval | Cron, latest_ms: int
) -> None:
    first_ms, now_ms = ms("2016-01-01T03:00:00Z"), ms("2026-01-01T12:00:30Z")
    due = timetable.due(first_ms, now_ms)

    assert len(due.latest) == CATCH_UP_MAX
    assert now_ms - due.latest[-1] <= latest_ms
    assert list(due.latest) == sorted(set(due.latest))
    assert due.count >= 1_000
    assert due.next_ms is not None
    assert now_ms < due.next_ms <= now_ms + latest_ms


@pytest.mark.parametrize(
    ("expression", "zone", "words"),
    [
        ("0 3 * *", "UTC", "must have five fields"),
        ("0 0 3 * * *", "UTC", "must have five fields"),
        ("61 3 * * *", "UTC", "cron expression '61 3 * * *' is wrong: Bad minute"),
        ("0 3 31 2 *", "UTC", "is wrong: Bad day"),
        ("0 3 * * *", "Europe", "zone 'Europe' is unknown: use a name such as Europe/Lisbon"),
        ("0 3 * * *", "../UTC", "zone '../UTC' is unknown"),
        ("", "UTC", "must be text of 1 to 200 characters"),
    ],
)
def test_a_wrong_expression_or_zone_is_named(expression: str, zone: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as refused:
        Cron(expression, zone)

    assert words in str(refused.value)


def test_without_its_parser_cron_says_what_to_install_and_intervals_work(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    Schedules(queue).every("ping", 60, "ping")

    with pytest.raises(TimesUnavailable, match=r"pip install 'killproof\[cron\]'"):
        Schedules(queue).cron("nightly", "0 3 * * *", "report")


def test_without_time_zones_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath([])
    zoneinfo.ZoneInfo.clear_cache()
    try:
        with pytest.raises(TimesUnavailable, match="there is no time zone database here: apt-get"):
            Cron("0 3 * * *", "Europe/Lisbon")
        assert Cron("0 3 * * *", "UTC").after(0) == 3 * 3_600_000
    finally:
        zoneinfo.reset_tzpath()
        zoneinfo.ZoneInfo.clear_cache()


# One job for each slot.


@pytest.fixture
def schedules(queue: Queue) -> Schedules:
    return Schedules(queue)


def keys(queue: Queue) -> list[str]:
    return [str(key) for (key,) in queue.database.peek("SELECT key FROM job ORDER BY id")]


def test_a_slot_puts_its_job_in_and_moves_on(
    queue: Queue, clock: ManualClock, schedules: Schedules
) -> None:
    """Covers S1.54."""
    made = schedules.every("ping", 60, "ping", {"to": "x"}, priority=2, max_attempts=1)
    assert made.next_ms == clock.now_ms() + 60_000
    assert schedules.fire() == []
    clock.advance(60)
    (job_id,) = schedules.fire()

    job = queue.get(job_id)
    assert job is not None
    assert (job.kind, job.payload, job.priority, job.max_attempts) == ("ping", {"to": "x"}, 2, 1)
    assert slot_of(job) == datetime.fromtimestamp(clock.now_ms() / 1_000, UTC)
    found = schedules.get("ping")
    assert found is not None
    assert (found.fired, found.missed, found.last_job_id) == (1, 0, job_id)
    assert found.next_ms == clock.now_ms() + 60_000
    assert schedules.fire() == []


def test_a_timer_that_wakes_early_fires_nothing_twice(
    queue: Queue, clock: ManualClock, schedules: Schedules
) -> None:
    """B91: the next slot follows from the slot, not from the moment of firing."""
    schedules.every("ping", 60, "ping", first=clock.now_ms() / 1_000 + 60)
    clock.advance(59.999)
    assert schedules.fire() == []
    clock.advance(0.001)
    assert len(schedules.fire()) == 1
    clock.advance(0.4)
    assert schedules.fire() == []
    found = schedules.get("ping")
    assert found is not None
    assert found.next_ms == clock.now_ms() - 400 + 60_000


def test_a_clock_that_is_set_back_fires_no_slot_again(
    queue: Queue, clock: ManualClock, schedules: Schedules
) -> None:
    schedules.every("ping", 60, "ping")
    clock.advance(60)
    assert len(schedules.fire()) == 1
    clock.step_wall(-3_600)
    assert schedules.fire() == []
    # Not by way of a change of the definition, nor of a pause.
    schedules.every("ping", 90, "ping")
    schedules.pause("ping")
    schedules.resume("ping")
    clock.advance(3_590)
    assert schedules.fire() == []
    assert len(keys(queue)) == 1


def test_who_comes_late_with_a_plan_does_nothing(
    queue: Queue, clock: ManualClock, schedules: Schedules
) -> None:
    """B92: the plan names the slot that it believes in, and the transaction looks again."""
    schedules.every("ping", 60, "ping", missed="all")
    clock.advance(180)
    (plan,) = schedule._plans(queue, clock.now_ms(), {})
    assert len(schedules.fire()) == 3

    with queue.transaction() as tx:
        assert schedule._carry_out(queue, tx, plan) == []
    assert len(keys(queue)) == len(set(keys(queue))) == 3


def test_the_key_of_a_slot_is_a_second_line_of_defence(
    queue: Queue, clock: ManualClock, schedules: Schedules, sql: Sql
) -> None:
    schedules.every("ping", 60, "ping")
    clock.advance(60)
    schedules.fire()
    sql("UPDATE job_schedule SET next_ms = ?", clock.now_ms())
    schedules.fire()

    assert keys(queue) == [key_of("ping", clock.now_ms())]


class Overtaken(Queue):
    """A process that stands still before its next transaction, while a slot comes and fires."""

    clock: ManualClock | None = None

    def transaction(self) -> AbstractContextManager[Transaction]:
        if self.clock is not None:
            clock, self.clock = self.clock, None
            clock.advance(60)
            assert len(fire_due(self).ids) == 1
        return super().transaction()


def test_a_slot_that_fires_while_its_schedule_is_replaced_is_not_fired_again(
    place: Path, clock: ManualClock
) -> None:
    """The job of the first firing has ended by then, so that its key does not help."""
    with Overtaken(place / "q.db", durability="process", host=Host(clock=clock)) as queue:
        schedules = Schedules(queue)
        schedules.every("ping", 60, "ping", first=clock.now_ms() / 1_000 + 60)
        first = clock.now_ms() / 1_000 + 60
        queue.clock = clock
        schedules.every("ping", 60, "pong", first=first)
        lease = queue.claim()
        assert lease is not None
        queue.ack(lease)

        assert schedules.fire() == []
        assert len(keys(queue)) == 1
        clock.advance(60)
        assert len(schedules.fire()) == 1


@pytest.mark.parametrize(
    ("missed", "late", "fired", "left_out"),
    [
        ("one", 10 * 3_600, 1, 599),
        ("skip", 10 * 3_600 + 30, 1, 599),
        ("skip", 10 * 3_600 + 150, 0, 1),
        ("all", 10 * 3_600, CATCH_UP_MAX, 500),
        ("all", 180, 3, 0),
    ],
)
def test_missed_slots_go_by_the_policy_and_are_never_a_storm(
    queue: Queue,
    clock: ManualClock,
    schedules: Schedules,
    missed: Any,
    late: int,
    fired: int,
    left_out: int,
) -> None:
    """B94: whoever comes late, for whatever reason, takes this one path."""
    length = 36_000 if late == 36_150 else 60  # Of an hour a slot is old; of a minute never.
    schedules.every("ping", length, "ping", missed=missed)
    clock.advance(late)

    assert len(schedules.fire()) == fired
    found = schedules.get("ping")
    assert found is not None
    assert (found.fired, found.missed) == (fired, left_out)
    assert found.next_ms is not None
    assert clock.now_ms() < found.next_ms <= clock.now_ms() + length * 1_000
    assert schedules.fire() == []


def test_without_overlap_a_slot_is_passed_over_while_the_job_before_lives(
    queue: Queue, clock: ManualClock, schedules: Schedules
) -> None:
    schedules.every("ping", 60, "ping", missed="all", overlap=False)
    clock.advance(180)
    assert len(schedules.fire()) == 1
    clock.advance(60)
    assert schedules.fire() == []
    lease = queue.claim()
    clock.advance(60)
    assert schedules.fire() == []
    assert lease is not None
    queue.ack(lease)
    clock.advance(60)

    assert len(schedules.fire()) == 1
    found = schedules.get("ping")
    assert found is not None
    assert (found.fired, found.missed, found.overlapped) == (2, 0, 4)


def test_a_program_may_say_its_schedules_at_every_start(
    queue: Queue, clock: ManualClock, schedules: Schedules
) -> None:
    """Covers S1.54: the same definition changes nothing, another one replaces it."""
    made = schedules.cron("nightly", "0 3 * * *", "report", ("a", 1), zone="Europe/Lisbon")
    clock.advance(60)
    assert schedules.cron("nightly", "0 3 * * *", "report", ["a", 1], zone="Europe/Lisbon") == made
    schedules.pause("nightly")
    changed = schedules.cron("nightly", "0 4 * * *", "report", zone="Europe/Lisbon")

    assert changed.paused
    assert changed.next_ms is not None
    assert made.next_ms is not None
    assert changed.next_ms == made.next_ms + 3_600_000
    assert [one.name for one in schedules.list()] == ["nightly"]


def test_a_pause_leaves_no_debt(queue: Queue, clock: ManualClock, schedules: Schedules) -> None:
    schedules.every("ping", 60, "ping", missed="all")
    assert schedules.pause("ping")
    assert not schedules.pause("ping")
    clock.advance(600)
    assert schedules.fire() == []
    assert schedules.resume("ping")
    assert not schedules.resume("ping")
    assert schedules.fire() == []
    clock.advance(60)
    assert len(schedules.fire()) == 1
    assert schedules.remove("ping")
    assert not schedules.remove("ping")
    assert schedules.list() == []


def test_one_schedule_that_can_not_fire_stops_no_other(
    queue: Queue, clock: ManualClock, schedules: Schedules, sql: Sql
) -> None:
    damages = {
        "interval": '{"kind": "ping", "payload": 1, "every_ms": 0}',
        "neither": '{"kind": "ping", "payload": 1}',
        "text": '{"kind": "ping", "payload": 1, "every_ms": 60000, "deadline": "soon"}',
    }
    for name in ("damaged", "healthy", "refused", "unknown", *damages):
        schedules.every(name, 60, "ping")
    for name, damage in damages.items():
        sql("UPDATE job_schedule SET definition = ? WHERE name = ?", damage, name)
    text = '{"kind": "ping", "payload": 1, "every_ms": 60000'
    sql("UPDATE job_schedule SET definition = ? WHERE name = 'unknown'", text + ', "x": 1}')
    sql("UPDATE job_schedule SET definition = ? WHERE name = 'damaged'", '{"kind": "x"}')
    wrong = text + ', "retry": "never"}'
    sql("UPDATE job_schedule SET definition = ? WHERE name = 'refused'", wrong)
    clock.advance(60)
    fired = fire_due(queue)

    assert len(fired.ids) == 1
    assert [name for name, _ in fired.troubles] == sorted(
        ["damaged", "refused", "unknown", *damages]
    )
    assert fired.next_ms == clock.now_ms() + 60_000
    with pytest.raises(ValueError, match="schedule 'damaged' can not be fired"):
        schedules.fire()


def test_a_look_that_finds_nothing_due_asks_for_no_lock(
    queue: Queue, clock: ManualClock, schedules: Schedules
) -> None:
    assert fire_due(queue) == schedule.Fired(ids=(), next_ms=None)
    schedules.every("ping", 60, "ping")
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        assert fire_due(queue).next_ms == clock.now_ms() + 60_000
        other.execute("ROLLBACK")


def test_an_idle_worker_sleeps_until_the_next_slot(
    queue: Queue, clock: ManualClock, schedules: Schedules, caplog: pytest.LogCaptureFixture
) -> None:
    firing = Firing(queue)
    assert firing.look() == (None, LOOK_SECONDS_MAX)
    schedules.every("ping", 60, "ping")
    clock.advance(59.5)
    assert 0.5 <= firing.look()[1] < 0.6
    clock.advance(0.5)
    fired, seconds = firing.look()
    assert fired is not None
    assert len(fired.ids) == 1
    assert seconds >= LOOK_SECONDS_MAX


def test_a_trouble_is_told_once_and_not_every_second(
    queue: Queue,
    clock: ManualClock,
    schedules: Schedules,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedules.every("ping", 60, "ping")
    sql("UPDATE job_schedule SET definition = '{}'")
    clock.advance(60)
    firing = Firing(queue)
    firing.look()
    firing.look()

    (record,) = caplog.records
    assert record.getMessage().startswith("schedule 'ping' can not be fired here: its definition")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"seconds": 0}, "seconds 0 must be"),
        ({"seconds": 400 * 86_400}, "must be a year at most"),
        ({"missed": "some"}, "missed 'some' must be one, skip or all"),
        ({"priority": 10}, "priority 10 must be"),
        ({"retry": "never"}, "never"),
        ({"lifetime": 3}, "option 'lifetime' of a schedule is unknown"),
        ({"deadline": 0}, "deadline 0 must be"),
        ({"payload": {1, 2}}, "is not JSON"),
        ({"name": ""}, "name '' must be text"),
        ({"kind": ""}, "kind '' must be text"),
    ],
)
def test_what_could_not_fire_is_refused_when_it_is_said(
    schedules: Schedules, arguments: dict[str, Any], words: str
) -> None:
    said: dict[str, Any] = {"name": "ping", "seconds": 60, "kind": "ping"} | arguments

    with pytest.raises(ValueError, match=r"\S") as refused:
        schedules.every(**said)
    assert words in str(refused.value)
    assert schedules.list() == []


def test_a_job_of_a_slot_has_its_deadline_from_when_it_was_put_in(
    queue: Queue, clock: ManualClock, schedules: Schedules
) -> None:
    schedules.every("ping", 60, "ping", deadline=30)
    clock.advance(3_600)
    (job_id,) = schedules.fire()

    job = queue.get(job_id)
    assert job is not None
    assert job.expires_ms == clock.now_ms() + 30_000


def test_a_table_of_the_applications_own_is_refused(queue: Queue, sql: Sql) -> None:
    sql("CREATE TABLE job_schedule (id INTEGER)")

    with pytest.raises(FileRefused, match="rename it"):
        Schedules(queue).every("ping", 60, "ping")


def test_no_statement_of_a_look_scans(queue: Queue, schedules: Schedules, sql: Sql) -> None:
    schedules.every("ping", 60, "ping")
    for statement in (schedule.FIRST, schedule.DUE, schedule.SEEN, schedule.LIVES):
        named = ("now_ms", "limit", "troubled", "name", "text", "seen_ms", "id")
        with closing(sqlite3.connect(queue.path)) as connection:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", dict.fromkeys(named))
            plan = [row[3] for row in rows]
        assert not [step for step in plan if step.startswith("SCAN") and "json_each" not in step]


# The commands.


@pytest.fixture
def noon(place: Path) -> Iterator[Queue]:
    """A file of level `process` in the folder of `run`, with a schedule due since an hour."""
    clock = ManualClock(now_ms=ms("2026-01-01T12:00:00Z"))
    with Queue(place / "queue.db", durability="process", host=Host(clock=clock)) as queue:
        yield queue


def test_the_commands_make_show_pause_fire_and_remove(run: Run, noon: Queue) -> None:
    """Covers S1.54."""
    code, out, _ = run(
        *("schedules", "add", "nightly", "report", '{"to": "ada"}'),
        *("--cron", "30 1 * * *", "--zone", "Europe/Lisbon", "--missed", "all", "--no-overlap"),
    )
    assert (code, out.startswith("nightly: next ")) == (0, True)
    assert run("schedules", "add", "ping", "ping", "--every", "1h")[0] == 0
    Schedules(noon).every("old", 60, "ping", missed="skip")

    _, out, err = run("schedules", "list")
    assert "nightly: 30 1 * * * in Europe/Lisbon, puts in report\n  next  20" in out
    assert "ping: every 1 h, puts in ping" in out
    assert "old is due for " in err
    assert "and nobody fires it: killproof work MODULE, or killproof schedules run" in err
    (_, old, ping) = json.loads(run("schedules", "list", "--json")[1])
    assert (old["next"], ping["definition"]["every_ms"]) == ("2026-01-01 12:01:00Z", 3_600_000)
    assert run("schedules", "run", "--once", "--json")[1] == '{"fired": [1], "troubles": []}\n'
    assert json.loads(run("schedules", "next", "old", "-n", "2", "--json")[1])[0]["utc"]

    assert run("schedules", "pause", "ping")[1] == "ping: paused\n"
    assert "next  paused" in run("schedules", "list")[1]
    assert run("schedules", "pause", "ping")[0] == 64
    assert run("schedules", "resume", "ping")[1].startswith("ping: goes on, next ")
    assert run("schedules", "remove", "ping")[1] == "ping: removed\n"
    assert run("schedules", "remove", "ping")[0] == 64


def test_the_next_slots_are_shown_in_utc_and_in_the_zone(run: Run, noon: Queue) -> None:
    run(*("schedules", "add", "nightly", "report", "--cron", "0 3 * * *", "--zone", "Asia/Kolkata"))
    code, out, _ = run("schedules", "next", "nightly", "-n", "2")

    assert code == 0
    assert [line[11:21] for line in out.splitlines()] == ["21:30:00Z "] * 2
    assert all(line.endswith(" 03:00:00 IST") for line in out.splitlines())


def test_a_clock_that_was_set_back_is_told(run: Run, noon: Queue) -> None:
    Schedules(noon).every("ping", 60, "ping")
    with closing(sqlite3.connect(noon.path)) as connection, connection:
        connection.execute(
            "UPDATE job_schedule SET next_ms = :far + 60000, last_slot_ms = :far",
            {"far": ms("2100-01-01T00:00:00Z")},
        )

    assert (
        "the clock was set back. It waits; to begin anew remove it" in run("schedules", "list")[2]
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "a", "k"], "say when: --every 15min or --cron '0 3 * * *', one of them"),
        (["add", "a", "k", "--every", "5 minutes"], "write 90s, 15min"),
        (["add", "a", "k", "{", "--every", "1h"], "is not JSON"),
        (["add", "a", "k", "--cron", "0 3 * *"], "must have five fields"),
        (["next", "a"], "there is no schedule 'a': see killproof schedules list"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_64(
    run: Run, noon: Queue, arguments: list[str], words: str
) -> None:
    code, out, err = run("schedules", *arguments)

    assert (code, out, err.count("\n")) == (64, "", 1)
    assert words in err
