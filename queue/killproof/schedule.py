r"""Jobs that come again: every so many seconds, or at the times of a cron expression.

    schedules = Schedules(queue)
    schedules.every("heartbeat", 60, "ping")
    schedules.cron("nightly", "0 3 * * *", "report", {"to": "ada"}, zone="Europe/Lisbon")

A schedule is a row of the file, made by whoever deploys the program and kept for ever.  Every
worker looks when its next slot is (`schedule_firing`), and whoever comes first *fires*:

    slot comes --> [ read the row again; put the job in; move `next_ms` to the next slot ] --> ...
                     one transaction, whose WHERE names the slot that it believes in

**One job for each slot.**  The slot moves in the transaction that puts its job in.  A process that
dies before its commit has changed nothing, and the next one fires; one that comes late finds the
slot moved, and does nothing.  As a second line the job's key names schedule and slot.

**The slot only moves on.**  It is computed from the slot, not from the time of firing: a timer that
wakes early fires nothing twice, one that wakes late shifts nothing.  A wall clock that is set back
finds the next slot in the future, as it was.

**Missed slots** (nobody was there, the machine slept) are one code path with all others: whoever
comes next finds that several have come.  `one` puts one job in, for the latest of them; `skip`
none, unless the latest is younger than two minutes; `all` one for each, the latest hundred at most.

**Overlap.**  With `overlap=False` a slot is passed over while the job of the slot before has not
ended.

What is computed (the parser is not ours, and may be slow) is computed before the transaction.  Read
`schedule_times` next: which moments are slots.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, Literal, LiteralString, cast

from killproof.core import model
from killproof.core.clock import Clock
from killproof.core.database import Transaction, Value
from killproof.core.errors import FileRefused
from killproof.core.jobs import Queue, new_job
from killproof.core.model import Job
from killproof.schedule_times import (
    CATCH_UP_MAX,
    INTERVAL_SECONDS_MAX,
    Cron,
    Due,
    Interval,
    TimesUnavailable,
    Timetable,
    zone_of,
)

Missed = Literal["one", "skip", "all"]
Slots = list[datetime]

SCHEMA_VERSION: Final = 1
NAME_CHARS_MAX: Final = 200
#: A slot is missed when it comes to be fired later than this: `killproof schedules run --once` from
#: a system's cron comes once a minute.
LATE_MS: Final = 120_000
#: Schedules that one transaction fires at most, and with `all` the jobs that it puts in.
FIRED_MAX: Final = 100
#: Rounds of one call.  Each moves the slots of a hundred schedules past now, or finds one that can
#: not be fired; more schedules than that have the next call, a second later.
ROUNDS_MAX: Final = 100
#: Slots that `next` shows at most.
SHOWN_MAX: Final = 1_000
#: Before a slot in a job's key.
KEY_PREFIX: Final = "schedule:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a schedule does, as its author wrote it; two equal ones are the same schedule."""

    kind: str
    payload: object
    every_ms: int | None = None
    cron: str | None = None
    zone: str = "UTC"
    missed: Missed = "one"
    overlap: bool = True
    priority: int = 5
    max_attempts: int = 5
    lease: float = 60.0  #: seconds, as for `enqueue`
    retry: str = "article"
    deadline: float | None = None  #: seconds after it was put in, until which the job must start

    def text(self) -> str:
        """Return it as the file holds it."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values, ensure_ascii=False, sort_keys=True)

    @classmethod
    def of(cls, text: str) -> "Definition":
        """Return what the file holds.

        Raises:
            ValueError: somebody has damaged it.
        """
        try:
            found = cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"its definition is damaged: {error}") from error
        found._check()
        return found

    def _check(self) -> None:
        """Raise a ValueError for what no author could have written; the rest is checked by use."""
        every_ms, deadline = self.every_ms, self.deadline
        if self.cron is None and (not isinstance(every_ms, int) or every_ms < 1):
            raise ValueError(f"its definition is damaged: every_ms {every_ms!r} is no interval")
        if deadline is not None and not isinstance(deadline, int | float):
            raise ValueError(f"its definition is damaged: deadline {deadline!r} is no number")

    def timetable(self, anchor_ms: int) -> Timetable:
        """Return its slots.

        Raises:
            ValueError, TimesUnavailable: as for `Cron`.
        """
        if self.cron is not None:
            return Cron(self.cron, self.zone)
        assert self.every_ms is not None
        return Interval(every_ms=self.every_ms, anchor_ms=anchor_ms)

    def row(self, now_ms: int, slot_key: str | None = None) -> dict[str, Value]:
        """Return the values of a job of it, checked.

        Raises:
            ValueError: as for `Queue.enqueue`.
        """
        return new_job(
            now_ms,
            self.kind,
            self.payload,
            priority=self.priority,
            deadline=None if self.deadline is None else now_ms / 1_000 + self.deadline,
            key=slot_key,
            max_attempts=self.max_attempts,
            lease=self.lease,
            policy=self.retry,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as the file has it; it does not follow later changes."""

    name: str
    definition: Definition
    anchor_ms: int  #: an interval counts from it
    next_ms: int | None  #: the slot that fires next; None if none ever comes
    paused: bool
    last_slot_ms: int | None  #: the latest slot that a job was put in for
    last_job_id: int | None
    fired: int  #: jobs that were put in
    missed: int  #: slots that passed without a job: nobody was there, and the policy left them out
    overlapped: int  #: slots that were passed over because the job before had not ended

    @property
    def zone(self) -> tzinfo:
        """The zone whose clock it goes by.

        Raises:
            ValueError, TimesUnavailable: as for `zone_of`.
        """
        return zone_of(self.definition.zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What a look at the schedules did."""

    ids: tuple[int, ...]  #: the jobs that were put in
    next_ms: int | None  #: when the next slot comes, of those that can fire here
    troubles: tuple[tuple[str, str], ...] = ()  #: (schedule, why it can not be fired here)


class Schedules:
    """The schedules of one file."""

    def __init__(self, queue: Queue) -> None:
        """Prepare; the table is made by the first schedule in the file."""
        self._queue = queue

    @property
    def _clock(self) -> Clock:
        return self._queue.host.clock

    def every(
        self,
        name: str,
        seconds: float,
        kind: str,
        payload: object = None,
        *,
        first: float | datetime | None = None,
        missed: Missed = "one",
        overlap: bool = True,
        **options: Any,
    ) -> Schedule:
        """Put a job in every so many seconds of elapsed time.

        A schedule of this name with the same definition is left as it is, so that a program may say
        it at each start; with another definition it is replaced and its next slot computed anew.
        One that is paused stays paused.

        Args:
            name: of the schedule, in this file.
            seconds: between two slots, a year at most.
            kind: of the jobs.
            payload: of the jobs.
            first: the first slot (epoch seconds or an aware datetime); None is one interval from
                now.  It counts when the schedule is made or replaced, and is no part of the
                definition.
            missed: what becomes of slots that passed while nobody was there: `one`, `skip`, `all`.
            overlap: False passes a slot over while the job of the one before has not ended.
            options: `priority`, `max_attempts`, `lease` and `retry` as for `enqueue`; `deadline` is
                seconds from the moment a job is put in.

        Raises:
            ValueError: an argument is wrong; the message shows it; definite.
            FileRefused: the application has a table `job_schedule`; definite.
            KillproofError: as for `Queue.cancel`.
        """
        every_ms = model.to_ms(seconds, "seconds", lowest_ms=1)
        if every_ms > INTERVAL_SECONDS_MAX * 1_000:
            raise ValueError(f"seconds {seconds!r} must be a year at most: use a cron expression")
        definition = _definition(
            options, kind=kind, payload=payload, every_ms=every_ms, missed=missed, overlap=overlap
        )
        first_ms = None if first is None else model.moment_ms(first)
        return self._put(name, definition, first_ms)

    def cron(
        self,
        name: str,
        expression: str,
        kind: str,
        payload: object = None,
        *,
        zone: str = "UTC",
        missed: Missed = "one",
        overlap: bool = True,
        **options: Any,
    ) -> Schedule:
        """Put a job in at the times of a cron expression; otherwise as `every`.

        Args:
            name: of the schedule, in this file.
            expression: five fields as in crontab(5), or a word such as `@daily`.
            kind: of the jobs.
            payload: of the jobs.
            zone: whose clock it goes by, such as Europe/Lisbon.
            missed: as for `every`.
            overlap: as for `every`.
            options: as for `every`.

        Raises:
            ValueError: an argument is wrong, or no such time comes; definite.
            TimesUnavailable: the parser or the time zones are not installed here; definite.
            KillproofError: as for `every`.
        """
        definition = _definition(
            options, kind=kind, payload=payload, cron=expression, zone=zone, missed=missed,
            overlap=overlap,
        )  # fmt: skip
        if Cron(expression, zone).after(self._clock.now_ms()) is None:
            raise ValueError(f"cron expression {expression!r} names no time that ever comes")
        return self._put(name, definition, None)

    PUT: Final = """
        INSERT INTO job_schedule (name, definition, anchor_ms, next_ms, created_ms, updated_ms)
        VALUES (:name, :definition, :anchor_ms, :next_ms, :now_ms, :now_ms)
            ON CONFLICT (name) DO UPDATE
           SET definition = :definition, anchor_ms = :anchor_ms, next_ms = :next_ms,
               updated_ms = :now_ms"""

    def _put(self, name: str, definition: Definition, first_ms: int | None) -> Schedule:
        model.check_text(name, "name", NAME_CHARS_MAX)
        now_ms = self._clock.now_ms()
        definition.row(now_ms, key_of(name, now_ms))  # Refused now, not at three in the night.
        anchor_ms = now_ms + (definition.every_ms or 0) if first_ms is None else first_ms
        values: dict[str, Value] = {
            "name": name,
            "definition": definition.text(),
            "anchor_ms": anchor_ms,
            "now_ms": now_ms,
        }
        while True:
            former = self.get(name)
            last_slot_ms = None if former is None else former.last_slot_ms
            # A first slot in the past is no debt: the interval counts from it, and begins now.
            after_ms = _after_ms(now_ms, former)
            values["next_ms"] = definition.timetable(anchor_ms).after(after_ms)
            with self._queue.transaction() as tx:
                _ensure_table(tx)
                found = tx.row(READ_ONE, {"name": name})
                if found is not None and found[1] == values["definition"]:
                    return _schedule(found)
                # Else a slot has fired since `former` was read, and `next_ms` may be that slot.
                if found is None or found[5] == last_slot_ms:
                    tx.change(self.PUT, values)
                    found = tx.row(READ_ONE, {"name": name})
                    assert found is not None
                    return _schedule(found)

    PAUSE: Final = """
        UPDATE job_schedule SET paused = 1, updated_ms = :now_ms
         WHERE name = :name AND paused = 0"""

    def pause(self, name: str) -> bool:
        """Let a schedule fire no more until it is resumed; False if it was paused, or is not there.

        Raises:
            KillproofError: as for `Queue.cancel`.
        """
        return self._change(self.PAUSE, {"name": name})

    RESUME: Final = """
        UPDATE job_schedule SET paused = 0, next_ms = :next_ms, updated_ms = :now_ms
         WHERE name = :name AND paused = 1 AND definition = :definition"""

    def resume(self, name: str) -> bool:
        """Let a schedule fire again, from its next slot on; False if it was not paused.

        The slots that passed meanwhile are nobody's debt: whoever paused it did not want them.

        Raises:
            ValueError, TimesUnavailable: its slots can not be told here; definite.
            KillproofError: as for `Queue.cancel`.
        """
        found = self.get(name)
        if found is None or not found.paused:
            return False
        timetable = found.definition.timetable(found.anchor_ms)
        after_ms = _after_ms(self._clock.now_ms(), found)
        values: dict[str, Value] = {
            "name": name,
            "definition": found.definition.text(),
            "next_ms": timetable.after(after_ms),
        }
        return self._change(self.RESUME, values)

    REMOVE: Final = "DELETE FROM job_schedule WHERE name = :name"

    def remove(self, name: str) -> bool:
        """Forget a schedule; False if it is not there.  Jobs that it has put in stay.

        Raises:
            KillproofError: as for `Queue.cancel`.
        """
        return self._change(self.REMOVE, {"name": name})

    def _change(self, statement: LiteralString, values: dict[str, Value]) -> bool:
        if not self._queue.database.peek(VERSION):
            return False
        with self._queue.transaction() as tx:
            changed = tx.change(statement, values | {"now_ms": self._clock.now_ms()})
        return changed == 1

    def list(self) -> Sequence[Schedule]:
        """Return all schedules by name.

        Raises:
            ValueError: a definition was damaged; definite.
            KillproofError: as for `Queue.counts`.
        """
        with self._queue.database.read() as tx:
            if tx.row(VERSION) is None:
                return []
            return [_schedule(row) for row in tx.rows(READ_ALL)]

    def get(self, name: str) -> Schedule | None:
        """Return a schedule, or None; errors as for `list`."""
        with self._queue.database.read() as tx:
            row = None if tx.row(VERSION) is None else tx.row(READ_ONE, {"name": name})
        return None if row is None else _schedule(row)

    def next(self, name: str, count: int = 5) -> Sequence[datetime]:
        """Return its next slots in its own zone (that of an interval is UTC), paused or not.

        Raises:
            ValueError: there is no such schedule, or the count is not from 1 to `SHOWN_MAX`.
            TimesUnavailable: its slots can not be told here; definite.
            KillproofError: as for `list`.
        """
        model.check_count(count, "count", 1, SHOWN_MAX)
        found = self.get(name)
        if found is None:
            raise ValueError(f"there is no schedule {name!r}: see killproof schedules list")
        timetable, slot = found.definition.timetable(found.anchor_ms), found.next_ms
        slots: Slots = []
        while slot is not None and len(slots) < count:
            slots.append(datetime.fromtimestamp(slot / 1_000, UTC).astimezone(found.zone))
            slot = timetable.after(slot)
        return slots

    def fire(self, now: float | datetime | None = None) -> Sequence[int]:
        """Put in what is due; return the ids of the jobs.  Workers do it by themselves.

        Args:
            now: the moment to fire for (epoch seconds or an aware datetime); None is now.

        Raises:
            ValueError, TimesUnavailable: a schedule can not be fired here; the others were.
            KillproofError: as for `Queue.enqueue`.
        """
        fired = fire_due(self._queue, None if now is None else model.moment_ms(now))
        if fired.troubles:
            name, why = fired.troubles[0]
            raise ValueError(f"schedule {name!r} can not be fired: {why}")
        return [*fired.ids]


def _definition(options: dict[str, Any], **values: Any) -> Definition:
    if unknown := set(options) - {"priority", "max_attempts", "lease", "retry", "deadline"}:
        raise ValueError(f"option {min(unknown)!r} of a schedule is unknown")
    if values["missed"] not in ("one", "skip", "all"):
        raise ValueError(f"missed {values['missed']!r} must be one, skip or all")
    if (deadline := options.get("deadline")) is not None:
        model.to_ms(deadline, "deadline", lowest_ms=1)
    # As the file gives it back: a tuple and a list are one definition.
    values["payload"] = json.loads(model.encode_payload(values["payload"]))
    return Definition(**values, **options)


def _after_ms(now_ms: int, former: Schedule | None) -> int:
    """Return the moment after which a slot is computed anew.

    Not before the latest slot that has fired: the clock may have been set back meanwhile.
    """
    return now_ms if former is None else max(now_ms, former.last_slot_ms or 0)


def key_of(name: str, slot_ms: int) -> str:
    """Return the idempotency key of a slot's job.

    >>> key_of("nightly", 1_774_746_000_000)
    'schedule:nightly:2026-03-29T01:00:00.000Z'
    """
    moment = datetime.fromtimestamp(slot_ms / 1_000, UTC)
    return f"{KEY_PREFIX}{name}:{moment:%Y-%m-%dT%H:%M:%S}.{slot_ms % 1_000:03}Z"


def slot_of(job: Job) -> datetime | None:
    """Return the slot that a job was put in for, in UTC; None if no schedule did it.

    A handler reports on the day of its slot with it, however late it runs.
    """
    if job.key is None or not job.key.startswith(KEY_PREFIX):
        return None
    try:
        return datetime.fromisoformat(job.key[-24:])
    except ValueError:
        return None


# Firing.

FIRST: Final = "SELECT min(next_ms) FROM job_schedule WHERE paused = 0 AND next_ms IS NOT NULL"

# The names that are troubled are few; the index gives the due ones in order.

DUE: Final = """
    SELECT name, definition, anchor_ms, next_ms FROM job_schedule
     WHERE paused = 0 AND next_ms IS NOT NULL AND next_ms <= :now_ms
       AND name NOT IN (SELECT value FROM json_each(:troubled))
     ORDER BY next_ms LIMIT :limit"""

NEXT: Final = """
    SELECT min(next_ms) FROM job_schedule
     WHERE paused = 0 AND next_ms IS NOT NULL
       AND name NOT IN (SELECT value FROM json_each(:troubled))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a firing will do, computed before its transaction."""

    name: str
    text: str  #: the definition that it was computed from
    seen_ms: int  #: the slot that it believes to be next
    definition: Definition
    due: Due
    slots: tuple[int, ...]  #: for which jobs are put in


class _Trouble(Exception):
    """A schedule that can not be fired, inside the transaction that it rolls back."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


def fire_due(queue: Queue, now_ms: int | None = None) -> Fired:
    """Put in the jobs of all slots that have come, each once over all processes.

    When nothing is due it costs two reads without a lock.  A schedule that can not be fired here
    (its parser is not installed, somebody has damaged it) stops no other, and stays due.

    Args:
        queue: where the schedules are.
        now_ms: the moment, in milliseconds; None is now.

    Raises:
        KillproofError: as for `Queue.enqueue`.
    """
    if not queue.database.peek(VERSION):
        return Fired(ids=(), next_ms=None)
    now_ms = queue.host.clock.now_ms() if now_ms is None else now_ms
    ((first_ms,),) = queue.database.peek(FIRST)
    ids: list[int] = []
    troubles: dict[str, str] = {}
    for _ in range(ROUNDS_MAX):
        if first_ms is None or cast(int, first_ms) > now_ms:
            break
        plans = list(_plans(queue, now_ms, troubles))
        if plans:
            try:
                with queue.transaction() as tx:
                    put_in = [number for plan in plans for number in _carry_out(queue, tx, plan)]
            except _Trouble as trouble:
                troubles[trouble.name] = str(trouble)
            else:
                ids += put_in
        ((first_ms,),) = queue.database.peek(NEXT, {"troubled": json.dumps([*troubles])})
    return Fired(
        ids=tuple(ids),
        next_ms=cast(int | None, first_ms),
        troubles=tuple(sorted(troubles.items())),
    )


def _plans(queue: Queue, now_ms: int, troubles: dict[str, str]) -> Iterable[_Plan]:
    """Say what to do about each schedule that is due; note those for which that can not be said."""
    values: dict[str, Value] = {
        "now_ms": now_ms,
        "limit": FIRED_MAX,
        "troubled": json.dumps([*troubles]),
    }
    left = CATCH_UP_MAX
    for name, text, anchor_ms, seen_ms in cast(
        list[tuple[str, str, int, int]], queue.database.peek(DUE, values)
    ):
        try:
            definition = Definition.of(text)
            due = definition.timetable(anchor_ms).due(seen_ms, now_ms)
        except (ValueError, TimesUnavailable) as error:
            troubles[name] = str(error)
            continue
        slots = _wanted(definition.missed, due, now_ms)
        yield _Plan(
            name=name, text=text, seen_ms=seen_ms, definition=definition, due=due, slots=slots
        )
        left -= len(slots)
        if left <= 0:  # The rest is for the next round: a transaction has a bound.
            return


def _wanted(missed: Missed, due: Due, now_ms: int) -> tuple[int, ...]:
    """Return the slots of those that have come for which a job is put in."""
    if missed == "all":
        return due.latest
    latest = due.latest[-1]
    return () if missed == "skip" and now_ms - latest > LATE_MS else (latest,)


SEEN: Final = """
    SELECT last_job_id FROM job_schedule
     WHERE name = :name AND definition = :text AND next_ms = :seen_ms AND paused = 0"""

LIVES: Final = """
    SELECT 1 FROM job
     WHERE id = :id
       AND state IN ('blocked', 'scheduled', 'available', 'leased', 'retryable', 'held')"""

MOVE_ON: Final = """
    UPDATE job_schedule
       SET next_ms = :next_ms, last_slot_ms = coalesce(:last_slot_ms, last_slot_ms),
           last_job_id = coalesce(:last_job_id, last_job_id), fired = fired + :fired,
           missed = missed + :missed, overlapped = overlapped + :overlapped, updated_ms = :now_ms
     WHERE name = :name"""


def _carry_out(queue: Queue, tx: Transaction, plan: _Plan) -> list[int]:
    """Put the jobs of a plan in and move its slot, unless somebody was faster.

    Raises:
        _Trouble: a job of it is refused.
    """
    seen = tx.row(SEEN, {"name": plan.name, "text": plan.text, "seen_ms": plan.seen_ms})
    if seen is None:
        return []
    slots, overlapped = plan.slots, 0
    if slots and not plan.definition.overlap:
        # Two slots that have come at once would overlap as well.
        slots = () if tx.row(LIVES, {"id": seen[0]}) is not None else slots[-1:]
        overlapped = len(plan.slots) - len(slots)
    now_ms = queue.host.clock.now_ms()
    try:
        rows = [plan.definition.row(now_ms, key_of(plan.name, slot)) for slot in slots]
        ids = [queue._enqueue(tx, row) for row in rows]
    except ValueError as error:
        raise _Trouble(plan.name, str(error)) from error
    values: dict[str, Value] = {
        "name": plan.name,
        "next_ms": plan.due.next_ms,
        "last_slot_ms": slots[-1] if slots else None,
        "last_job_id": ids[-1] if ids else None,
        "fired": len(ids),
        "missed": plan.due.count - len(plan.slots),
        "overlapped": overlapped,
        "now_ms": now_ms,
    }
    changed = tx.change(MOVE_ON, values)
    assert changed == 1, "the row was read in this transaction"
    return ids


# The table.

READ_ALL: Final = """
    SELECT name, definition, anchor_ms, next_ms, paused, last_slot_ms, last_job_id, fired, missed,
           overlapped
      FROM job_schedule ORDER BY name"""

READ_ONE: Final = """
    SELECT name, definition, anchor_ms, next_ms, paused, last_slot_ms, last_job_id, fired, missed,
           overlapped
      FROM job_schedule WHERE name = :name"""


def _schedule(row: tuple[Value, ...]) -> Schedule:
    name, text, anchor_ms, next_ms, paused, *rest = cast(Any, row)
    last_slot_ms, last_job_id, fired, missed, overlapped = rest
    return Schedule(
        name=name,
        definition=Definition.of(text),
        anchor_ms=anchor_ms,
        next_ms=next_ms,
        paused=bool(paused),
        last_slot_ms=last_slot_ms,
        last_job_id=last_job_id,
        fired=fired,
        missed=missed,
        overlapped=overlapped,
    )


VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'schedule'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('schedule', :version)"

FIND_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE lower(name) = 'job_schedule'"

CREATE: Final = """
    CREATE TABLE job_schedule (
        name         TEXT    NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
        definition   TEXT    NOT NULL CHECK (json_valid(definition)),  -- times, kind, payload, ...
        anchor_ms    INTEGER NOT NULL,  -- an interval counts from it
        next_ms      INTEGER,           -- the slot that fires next; it only moves on
        paused       INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
        last_slot_ms INTEGER,           -- the latest slot that has a job
        last_job_id  INTEGER,           -- no foreign key: the job may be pruned
        fired        INTEGER NOT NULL DEFAULT 0,  -- jobs that were put in
        missed       INTEGER NOT NULL DEFAULT 0,  -- slots without one, by the policy
        overlapped   INTEGER NOT NULL DEFAULT 0,  -- slots without one, the job before still alive
        created_ms   INTEGER NOT NULL,
        updated_ms   INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID"""

# Serves every look of every worker: what comes next.

CREATE_INDEX: Final = """
    CREATE INDEX job_schedule_next ON job_schedule (next_ms)
     WHERE paused = 0 AND next_ms IS NOT NULL"""


def _ensure_table(tx: Transaction) -> None:
    """Make the table at the first schedule of a file.

    Raises:
        FileRefused: the application has a table of this name, or it is of a newer version.
    """
    version = tx.row(VERSION)
    if version == (SCHEMA_VERSION,):
        return
    if version is not None or tx.row(FIND_TABLE) is not None:
        raise FileRefused(
            f"{tx.path} has a table 'job_schedule' that is not this killproof's: "
            "rename it, or upgrade killproof"
        )
    tx.change(CREATE)
    tx.change(CREATE_INDEX)
    tx.change(SET_VERSION, {"version": SCHEMA_VERSION})
