"""Jobs that come again: slots that are lost, fired twice, or computed in circles.

A firing is planned without a lock and carried out in one transaction; each control takes one part
of that away. Slots are minutes and days of a clock that moves by hand.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import zoneinfo
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from killproof import DatabaseBusy, Host, ManualClock, Queue, schedule, schedule_times
from killproof.core.clock import SystemClock
from killproof.core.database import Transaction
from killproof.schedule import Schedules, key_of
from killproof.schedule_times import Cron, Due, Interval

SECONDS_MAX = 120.0
MINUTE_MS = 60_000
Clocked = tuple[Queue, ManualClock, Schedules]


@pytest.fixture
def clocked(place: Path) -> Any:
    clock = ManualClock()
    with Queue(place / "q.db", durability="process", host=Host(clock=clock)) as queue:
        yield queue, clock, Schedules(queue)


def work_off(queue: Queue) -> int:
    """Run what waits, so that no key of a slot protects it any more; return how many."""
    number = 0
    while (lease := queue.claim()) is not None:
        queue.ack(lease)
        number += 1
    return number


# B7: a daily job skips a day after a restart.

#: Fires what is due tomorrow, and is killed where it is told to be.
FIRER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_schedules as scenario
scenario.fire_and_die(*sys.argv[2:])
"""


def fire_and_die(path: str, moment: str, word: str, carry_out: str) -> None:
    """Fire in this process, and kill it before the statement that begins with the word."""
    is_armed = False

    class Dying(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if is_armed and " ".join(sql.split()).startswith(word):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().execute(sql, *values)

    def connect(path: str) -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=0, isolation_level=None, factory=Dying)

    with Queue(path, host=Host(connect=connect)) as queue:
        queue.counts()
        schedule._carry_out = globals()[carry_out]
        is_armed = True
        Schedules(queue).fire(float(moment))


as_it_is = schedule._carry_out


def advances_first(queue: Queue, tx: Transaction, plan: Any) -> list[int]:
    """Move the slot on, and put the job in afterwards, in a second transaction."""
    tx.change("UPDATE job_schedule SET next_ms = ?", (plan.due.next_ms,))
    tx._connection.execute("COMMIT")
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def check_a_slot_survives_its_scheduler(place: Path, word: str, carry_out: str) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        made = Schedules(queue).every("daily", 86_400, "report")
        assert made.next_ms is not None
        tomorrow = made.next_ms / 1_000
        here = str(Path(__file__).parent)
        argv = [sys.executable, "-c", FIRER, here, queue.path, repr(tomorrow), word, carry_out]
        done = subprocess.run(argv, timeout=SECONDS_MAX, check=False)
        assert done.returncode == -signal.SIGKILL

        Schedules(queue).fire(tomorrow)
        assert [key for (key,) in queue.database.peek("SELECT key FROM job")] == [
            key_of("daily", made.next_ms)
        ]


@pytest.mark.parametrize("word", ["INSERT INTO job", "UPDATE job_schedule", "COMMIT"])
def test_a_slot_has_its_job_once_wherever_its_scheduler_is_killed(place: Path, word: str) -> None:
    """B7: the next due time was advanced before the job was there."""
    check_a_slot_survives_its_scheduler(place, word, "as_it_is")


def test_a_slot_that_moves_before_its_job_is_seen_to_skip_a_day(place: Path) -> None:
    """B7, control."""
    with pytest.raises(AssertionError, match="daily"):
        check_a_slot_survives_its_scheduler(place, "never", "advances_first")


# B64: two cron jobs at midnight collide.


class Waiting(SystemClock):
    """Tells when somebody begins to wait."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.has_begun.set()
        super().sleep(seconds)


def check_schedules_of_one_second_wait_for_each_other(place: Path, busy_limit: float) -> None:
    clock, told = Waiting(), list[object]()
    with Queue(place / "q.db", durability="process") as queue:
        for name in ("backup", "report"):
            Schedules(queue).cron(name, "0 0 * * *", name)
        midnight = Schedules(queue).next("backup", 1)[0]
    other = closing(sqlite3.connect(place / "q.db", isolation_level=None))
    host = Host(clock=clock)
    with other as connection, Queue(place / "q.db", busy_limit=busy_limit, host=host) as queue:
        queue.counts()

        def fire() -> None:
            try:
                told.append(len(Schedules(queue).fire(midnight)))
            except DatabaseBusy as error:
                told.append(error)
            clock.has_begun.set()

        connection.execute("BEGIN IMMEDIATE")  # As a job of that second does, or a backup.
        thread = threading.Thread(target=fire)
        thread.start()
        assert clock.has_begun.wait(SECONDS_MAX)
        connection.execute("ROLLBACK")
        thread.join(SECONDS_MAX)
    assert told == [2]


def test_schedules_of_one_second_meet_no_lock_error(place: Path) -> None:
    """B64: two jobs at midnight collided; a firing puts jobs in, all at once, and is patient."""
    check_schedules_of_one_second_wait_for_each_other(place, 10.0)


def test_a_scheduler_without_patience_is_seen_to_meet_it(place: Path) -> None:
    """B64, control."""
    with pytest.raises(AssertionError, match="DatabaseBusy"):
        check_schedules_of_one_second_wait_for_each_other(place, 0.0)


# B91: a timer that wakes early fires a slot twice.

#: A moment so shortly before a slot is taken for it, as timers do.
EARLY_MS = 2


def check_an_early_timer_fires_each_slot_once(clocked: Clocked) -> None:
    queue, clock, schedules = clocked
    schedules.every("ping", 60, "ping", first=clock.now_ms() / 1_000 + 60)
    clock.advance(60 - EARLY_MS / 1_000)
    for _ in range(5):
        fired = 0
        for _ in range(2 * EARLY_MS):
            schedules.fire((clock.now_ms() + EARLY_MS) / 1_000)
            fired += work_off(queue)
            clock.advance(0.001)
        assert fired == 1
        clock.advance(60 - 2 * EARLY_MS / 1_000)


def test_a_timer_that_wakes_early_fires_each_slot_once(clocked: Clocked) -> None:
    """B91: the next time was computed from now, and was the same slot again."""
    check_an_early_timer_fires_each_slot_once(clocked)


def test_a_next_slot_that_is_computed_from_now_is_seen_to_fire_twice(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B91, control."""

    def due(self: Interval, first_ms: int, now_ms: int) -> Due:
        return Due(latest=(first_ms,), count=1, next_ms=self.after(now_ms - EARLY_MS))

    monkeypatch.setattr(Interval, "due", due)
    with pytest.raises(AssertionError, match="== 1"):
        check_an_early_timer_fires_each_slot_once(clocked)


# B92: each scheduler fires every job.


def check_eight_schedulers_fire_each_slot_once(place: Path) -> None:
    clock, slots = ManualClock(), 8
    with ExitStack() as stack:
        schedulers = [
            stack.enter_context(Queue(place / "q.db", durability="process", host=Host(clock=clock)))
            for _ in range(8)
        ]
        Schedules(schedulers[0]).every("ping", 60, "ping")
        ran = 0
        for _ in range(slots):
            clock.advance(60)
            # All look, and then all write: nobody is late enough to see what the first has done.
            plans = [
                (queue, list(schedule._plans(queue, clock.now_ms(), {}))) for queue in schedulers
            ]
            for queue, mine in plans:
                with queue.transaction() as tx:
                    for plan in mine:
                        schedule._carry_out(queue, tx, plan)
                ran += work_off(queue)
        assert ran == slots


def test_eight_schedulers_that_look_at_once_fire_each_slot_once(place: Path) -> None:
    """B92: each instance of a scheduler fired every job."""
    check_eight_schedulers_fire_each_slot_once(place)


def test_schedulers_that_do_not_name_their_slot_are_seen_to_fire_it_each(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B92, control."""
    guard = " AND next_ms = :seen_ms"
    assert guard in schedule.SEEN
    monkeypatch.setattr(schedule, "SEEN", schedule.SEEN.replace(guard, " AND :seen_ms > 0"))
    with pytest.raises(AssertionError, match="64 == 8"):
        check_eight_schedulers_fire_each_slot_once(place)


# B94: catch-up works after a restart and not after a suspend, or the other way round.


def check_sleep_and_restart_are_one_path(place: Path) -> None:
    for how in ("suspended", "restarted"):
        clock, path = ManualClock(), place / f"{how}.db"
        with Queue(path, durability="process", host=Host(clock=clock)) as queue:
            schedules = Schedules(queue)
            made = schedules.every("ping", 60, "ping")
            assert made.next_ms is not None
            clock.advance(60)
            schedules.fire()
            if how == "suspended":
                clock.step_wall(600.5)  # The monotonic clock stands still while a machine sleeps.
                schedules.fire()
        if how == "restarted":
            clock.advance(600.5)
        with Queue(path, host=Host(clock=clock)) as queue:
            Schedules(queue).fire()
            keys = [str(key) for (key,) in queue.database.peek("SELECT key FROM job ORDER BY id")]
        slots = [made.next_ms, made.next_ms + 10 * MINUTE_MS]
        assert keys == [key_of("ping", slot) for slot in slots], how


def test_slots_of_a_sleep_are_made_up_for_as_after_a_restart(place: Path) -> None:
    """B94: no catch-up after a suspend, or two runs back to back; the policy here is one run.

    `tests/process/test_schedule.py` stops a real worker across its slots.
    """
    check_sleep_and_restart_are_one_path(place)


@pytest.mark.parametrize("wanted", ["none", "all"])
def test_a_catch_up_of_its_own_is_seen(
    place: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    """B94, control: slots that came in a sleep are forgotten, or fired back to back."""

    def of(missed: str, due: Due, now_ms: int) -> tuple[int, ...]:
        is_late = due.latest[-1] < now_ms
        return due.latest if wanted == "all" or not is_late else ()

    monkeypatch.setattr(schedule, "_wanted", of)
    with pytest.raises(AssertionError, match="suspended"):
        check_sleep_and_restart_are_one_path(place)


# B95: an endless loop at the change of the clocks.

EXPRESSIONS = ("30 2 * * *", "0 0 * * *", "*/30 * * * *", "15 */3 * * *", "59 23 31 12 *")


class Naive(Cron):
    """Adds on the wall and takes the first of two equal times."""

    def after(self, moment_ms: int) -> int | None:
        moment = datetime.fromtimestamp(moment_ms / 1_000, UTC).astimezone(self._zone)
        found = next(self._matching(moment.replace(tzinfo=None)))
        return round(found.replace(tzinfo=self._zone).timestamp()) * 1_000


def changes(zone: str, year: int) -> list[datetime]:
    """Return the changes of a zone's clock in a year, and its middle, in case there is none."""
    moment, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    found = [datetime(year, 7, 1, tzinfo=UTC)]
    while (change := schedule_times._change(moment, end, zoneinfo.ZoneInfo(zone))) is not None:
        found.append(change)
        moment = change
    return found


def check_the_next_slot_is_later(made: type[Cron], expression: str, zone: str, year: int) -> None:
    cron = made(expression, zone)
    for change in changes(zone, year):
        for minutes in (-1_500, -61, -20, 0, 10, 35, 90):
            moment_ms = round((change + timedelta(minutes=minutes)).timestamp()) * 1_000
            for _ in range(3):  # And on from there: a loop would come back.
                slot = cron.after(moment_ms)
                assert slot is not None
                assert slot > moment_ms, f"{expression} in {zone}: {change} {minutes}"
                moment_ms = slot


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(sorted(zoneinfo.available_timezones())),
    st.integers(2000, 2039),
)
def test_the_next_slot_is_later_in_every_zone_and_at_every_change(
    expression: str, zone: str, year: int
) -> None:
    """B95: a next time that was not later, at a time that is shown twice or not at all."""
    check_the_next_slot_is_later(Cron, expression, zone, year)


def test_a_time_that_is_added_on_the_wall_is_seen_to_go_back() -> None:
    """B95, control."""
    with pytest.raises(AssertionError, match="in Europe/Lisbon"):
        check_the_next_slot_is_later(Naive, "*/30 * * * *", "Europe/Lisbon", 2026)
