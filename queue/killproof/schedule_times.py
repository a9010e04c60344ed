"""When the slots of a schedule are: pure functions of a definition and a moment, no file, no clock.

A *slot* is a moment at which a schedule puts a job in, in milliseconds since the epoch.

**An interval** counts from its anchor in elapsed time: every 86,400 seconds is not "every day at
three", because two days a year have 23 or 25 hours.

**A cron expression** names local times of a zone.  `cronsim` reads it and finds the days and times
that match, as Debian's cron does; which moment such a local time is, `zoneinfo` knows.  What lies
between the two is here, with the rules of Debian's cron:

- *A fixed time* (neither minutes nor hours begin with a star) happens once on each of its days.
  If the clocks skip it, it happens at the moment of the change; if they show it twice, the first
  time counts.  Several times in one skipped stretch happen together, once.
- *A repetition* (minutes or hours begin with a star) happens whenever the clock on the wall shows
  a matching time: not at all in a stretch that is skipped, again in one that is shown twice.  So
  every half hour stays every half hour.

`cronsim` has time zones too.  They are not used: its repetitions lose a slot where clocks change by
half an hour (`0 */3 * * *` on Lord Howe Island, 4 October 2026), because it steps in whole hours.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from killproof.core import model
from killproof.core.errors import KillproofError

if TYPE_CHECKING:
    from cronsim import CronSim

#: Slots that one firing makes jobs of at most, however long nobody has fired: never a storm.
CATCH_UP_MAX: Final = 100
#: Slots that are counted one by one; beyond it only the latest are looked for.
COUNTED_MAX: Final = 1_000
#: How far back the latest slots are looked for, one after the other: 2 h, 2 days, 2 months, 6
#: years.  So the search has a bound, whether slots are minutes or years apart.
WINDOWS_MS: Final = tuple(hours * 3_600_000 for hours in (2, 48, 1_440, 52_560))
#: Beyond an interval of a year somebody means a date.
INTERVAL_SECONDS_MAX: Final = 366 * 86_400.0
EXPRESSION_CHARS_MAX: Final = 200
#: A fixed time names at most 1,440 minutes of a day, and no change is longer than a day.
REPEATS_MAX: Final = 1_500
#: Changes of the clock between two slots: two a year (four where a fast interrupts them), and
#: `cronsim` looks ahead for fifty years.
CHANGES_MAX: Final = 400
DAY: Final = timedelta(days=1)
SECOND: Final = timedelta(seconds=1)

#: The words that crontab(5) has for common expressions.
NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class TimesUnavailable(KillproofError):
    """The parser or the time zones are not installed here: definite; install what it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The slots that have come."""

    latest: tuple[int, ...]  #: in order; the last `CATCH_UP_MAX` of them
    count: int  #: how many in all; at least so many, after a very long time without firing
    next_ms: int | None  #: the first that has not come; None if none ever will


class Timetable(Protocol):
    """The slots of one definition."""

    def after(self, moment_ms: int) -> int | None:
        """Return the first slot later than the moment; None if there is none in fifty years."""

    def due(self, first_ms: int, now_ms: int) -> Due:
        """Return the slots from the given one, which has come, until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A slot at the anchor and every so many milliseconds after it."""

    every_ms: int
    anchor_ms: int

    def after(self, moment_ms: int) -> int:
        """Return the first slot later than the moment."""
        if moment_ms < self.anchor_ms:
            return self.anchor_ms
        return moment_ms - (moment_ms - self.anchor_ms) % self.every_ms + self.every_ms

    def due(self, first_ms: int, now_ms: int) -> Due:
        """Return the slots from the given one until now, by arithmetic."""
        count = (now_ms - first_ms) // self.every_ms + 1
        last_ms = first_ms + (count - 1) * self.every_ms
        ages = range(min(count, CATCH_UP_MAX) - 1, -1, -1)
        latest = tuple(last_ms - age * self.every_ms for age in ages)
        return Due(latest=latest, count=count, next_ms=last_ms + self.every_ms)


class Cron:
    """The slots of a cron expression in a time zone."""

    def __init__(self, expression: str, zone: str) -> None:
        """Read the expression.

        Args:
            expression: five fields as in crontab(5), or one of its words such as `@daily`.
            zone: a name of the time zone database.

        Raises:
            ValueError: one of them is wrong; the message shows it; definite.
            TimesUnavailable: the parser or the time zone database is not installed; definite.
        """
        model.check_text(expression, "cron expression", EXPRESSION_CHARS_MAX)
        self._zone = zone_of(zone)
        self._text = NICKNAMES.get(expression.strip().lower(), expression)
        fields = self._text.split()
        if len(fields) != 5:
            raise ValueError(
                f"cron expression {expression!r} must have five fields (minute, hour, day, month, "
                "weekday), or be a word such as @daily"
            )
        self._is_fixed = not fields[0].startswith("*") and not fields[1].startswith("*")
        self._parser = _parser()
        try:
            self._matching(datetime(2000, 1, 1))
        except Exception as error:  # Its own class, and now and then what Python's calendar says.
            raise ValueError(f"cron expression {expression!r} is wrong: {error}") from error

    def after(self, moment_ms: int) -> int | None:
        """Return the first slot later than the moment, which it always is; None if none comes."""
        moment = datetime.fromtimestamp(moment_ms // 1_000, UTC)
        try:
            found = self._fixed(moment) if self._is_fixed else self._repeated(moment)
        except OverflowError:  # Beyond the year 9999.
            return None
        return None if found is None else round(found.timestamp()) * 1_000

    def due(self, first_ms: int, now_ms: int) -> Due:
        """Return the slots from the given one until now, a bounded number of steps."""
        latest, count = deque([first_ms], CATCH_UP_MAX), 1
        for slot in self._slots(first_ms):
            if slot is None or slot > now_ms:
                return Due(latest=tuple(latest), count=count, next_ms=slot)
            if count == COUNTED_MAX:
                break
            latest.append(slot)
            count += 1
        found: list[int] = []
        for window_ms in WINDOWS_MS:
            found = self._between(max(latest[-1], now_ms - window_ms), now_ms)
            if len(found) >= CATCH_UP_MAX:
                break
        latest.extend(found)
        return Due(latest=tuple(latest), count=count + len(found), next_ms=self.after(now_ms))

    def _slots(self, moment_ms: int) -> Iterator[int | None]:
        """Yield the slots after a moment, and None when there is no other."""
        slot: int | None = moment_ms
        while slot is not None:
            slot = self.after(slot)
            yield slot

    def _between(self, start_ms: int, end_ms: int) -> list[int]:
        found = []
        for slot in self._slots(start_ms):
            if slot is None or slot > end_ms:
                break
            found.append(slot)
        return found

    def _matching(self, local: datetime) -> "CronSim":
        """Return the local times that match, later than the one given, as a calendar has them."""
        return self._parser(self._text, local)

    def _fixed(self, moment: datetime) -> datetime | None:
        # Whatever is not later on the wall is not later in time: the first of two equal times is
        # the one that counts.  In the second of them some times on the wall have been.
        local = moment.astimezone(self._zone).replace(tzinfo=None, fold=0)
        for found in islice(self._matching(local), REPEATS_MAX):
            instant = _instant(found, self._zone)
            if instant > moment:
                return instant
        return None

    def _repeated(self, moment: datetime) -> datetime | None:
        """Follow the clock on the wall from one change to the next."""
        start, offset = moment, _offset(moment, self._zone)
        local = moment.replace(tzinfo=None) + offset
        for _ in range(CHANGES_MAX):
            found = next(self._matching(local), None)
            if found is None:
                return None
            instant = (found - offset).replace(tzinfo=UTC)
            change = _change(start, instant, self._zone)
            if change is None:
                return instant
            # The wall shows another time from here on, and that time itself may match.
            start, offset = change, _offset(change, self._zone)
            local = change.replace(tzinfo=None) + offset - SECOND
        return None


def _instant(local: datetime, zone: tzinfo) -> datetime:
    """Return the moment of a time on the wall: the first of two, the change if it is skipped."""
    instant = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == local:
        return instant
    # The two readings of a time that is skipped lie before and after the change.
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    change = _change(before, instant, zone)
    assert change is not None, "a time that the wall skips has a change beside it"
    return change


def _change(start: datetime, end: datetime, zone: tzinfo) -> datetime | None:
    """Return the first moment after start, up to end, with another offset from UTC, if any.

    It looks once a day: nowhere do clocks change and change back within one.
    """
    offset = _offset(start, zone)
    while start < end:
        probe = min(start + DAY, end)
        if _offset(probe, zone) != offset:
            low, high = start, probe
            while high - low > SECOND:
                middle = low + timedelta(seconds=(high - low) // SECOND // 2)
                low, high = (low, middle) if _offset(middle, zone) != offset else (middle, high)
            return high
        start = probe
    return None


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def zone_of(name: str) -> tzinfo:
    """Return the time zone of this name.

    Raises:
        ValueError: there is none; definite.
        TimesUnavailable: this machine has no time zone database; definite.
    """
    model.check_text(name, "zone", model.KIND_CHARS_MAX)
    if name == "UTC":
        return UTC  # It needs no database.
    import zoneinfo  # Some milliseconds at the start of every worker, for those who need it alone.

    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        if not zoneinfo.available_timezones():
            raise TimesUnavailable(
                f"zone {name!r}: there is no time zone database here: "
                "apt-get install tzdata, or pip install tzdata"
            ) from error
        raise ValueError(
            f"zone {name!r} is unknown: use a name such as Europe/Lisbon or UTC"
        ) from error


def _parser() -> "Callable[[str, datetime], CronSim]":
    """Import the parser, which whoever has no cron schedule need not have."""
    try:
        from cronsim import CronSim
    except ImportError as error:
        raise TimesUnavailable(
            "a cron schedule needs its parser: pip install 'killproof[cron]'"
        ) from error
    return CronSim
