"""The commands `killproof schedules ...`: jobs that come again."""

import json
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final, cast

import typer

from killproof.cli_terminal import (
    DB_DEFAULT,
    AsJson,
    Db,
    Level,
    existing,
    print_json,
    seconds_of,
    shown,
)
from killproof.core.clock import SystemClock
from killproof.core.database import Durability
from killproof.core.jobs import Queue
from killproof.schedule import Fired, Missed, Schedule, Schedules
from killproof.schedule_times import TimesUnavailable
from killproof.wording import count_of, moment, span

app = typer.Typer()
group = typer.Typer(no_args_is_help=True, help="Jobs that come again: by interval or cron.")
app.add_typer(group, name="schedules")

#: A moment by the clock of a zone.
LOCAL: Final = "%a %d %b %H:%M:%S %Z"

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the schedule.")]


@group.command("list")
def list_all(db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """List them: when each comes next, in its zone and in UTC, what it last did, what it missed."""
    with existing(db) as queue:
        found = Schedules(queue).list()
    if as_json:
        print_json([_facts(one) for one in found])
        return
    if not found:
        print("no schedules; next: killproof schedules add NAME KIND JSON --every 1h")
        return
    for one in found:
        print(f"{shown(one.name)}: {_times(one)}, puts in {shown(one.definition.kind)}")
        print(f"  next  {'paused' if one.paused else _next(one)}")
        if one.last_slot_ms is not None:
            print(f"  last  {_utc(one.last_slot_ms)}, job {one.last_job_id}")
        print(
            f"  {one.fired:,} fired, {one.missed:,} missed, "
            f"{one.overlapped:,} passed over while the job before was not done"
        )
    _say_what_is_odd(found)


def _facts(one: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON shows it, its moments also as text."""
    return asdict(one) | {"next": _utc(one.next_ms), "last_slot": _utc(one.last_slot_ms)}


def _utc(ms: int | None) -> str:
    return "" if ms is None else moment(ms)


def _times(one: Schedule) -> str:
    if one.definition.cron is not None:
        return f"{shown(one.definition.cron)} in {one.definition.zone}"
    return f"every {span(one.definition.every_ms or 0)}"


def _next(one: Schedule) -> str:
    """Return the next slot by the clock of its zone (an interval has this machine's), and UTC."""
    if one.next_ms is None:
        return "never"
    utc = _utc(one.next_ms)
    try:
        zone = one.zone if one.definition.cron is not None else None
    except (ValueError, TimesUnavailable) as error:
        return f"{utc} ({error})"
    local = datetime.fromtimestamp(one.next_ms / 1_000, UTC).astimezone(zone)
    return f"{utc}, {local:{LOCAL}}"


def _say_what_is_odd(found: Iterable[Schedule]) -> None:
    """Say on stderr what a person may have to do something about."""
    now_ms = SystemClock().now_ms()
    for one in found:
        if one.paused or one.next_ms is None:
            continue
        if now_ms - one.next_ms > 60_000:
            print(
                f"killproof: {shown(one.name)} is due for {span(now_ms - one.next_ms)} and nobody "
                "fires it: killproof work MODULE, or killproof schedules run",
                file=sys.stderr,
            )
        elif one.last_slot_ms is not None and one.last_slot_ms > now_ms + 1_000:
            print(
                f"killproof: {shown(one.name)} has fired in what is the future now: the clock was "
                "set back. It waits; to begin anew remove it and add it again",
                file=sys.stderr,
            )


@group.command()
def add(
    name: Name,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Names the handler.")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Of each job.")] = "null",
    db: Db = DB_DEFAULT,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of elapsed time: 90s, 15min, 12h, 1d.")
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="'0 3 * * *' or @daily, by the clock of --zone."),
    ] = None,
    zone: Annotated[str, typer.Option(help="Such as Europe/Lisbon.")] = "UTC",
    missed: Annotated[
        str, typer.Option(help="What becomes of slots without anybody there: one, skip or all.")
    ] = "one",
    no_overlap: Annotated[
        bool, typer.Option("--no-overlap", help="Pass over while the job before is not done.")
    ] = False,
    priority: Annotated[int, typer.Option(help="0 (urgent) to 9.")] = 5,
    max_attempts: Annotated[int, typer.Option(help="Executions in all.")] = 5,
    lease: Annotated[float, typer.Option(help="Seconds a silent worker keeps a job.")] = 60.0,
    retry: Annotated[
        str, typer.Option(help="article, exponential:BASE, fixed:SECONDS or immediate.")
    ] = "article",
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="A job not started by then expires.")
    ] = None,
    durability: Level = None,
    as_json: AsJson = False,
) -> None:
    """Make a schedule, or change the one of this name; the file is made if there is none."""
    if (every is None) == (cron is None):
        raise ValueError("say when: --every 15min or --cron '0 3 * * *', one of them")
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"payload {shown(payload)!r} is not JSON: {error}") from error
    options: dict[str, Any] = {
        "missed": cast(Missed, missed),
        "overlap": not no_overlap,
        "priority": priority,
        "max_attempts": max_attempts,
        "lease": lease,
        "retry": retry,
        "deadline": None if deadline is None else seconds_of(deadline, "--deadline"),
    }
    with Queue(db, durability=cast(Durability | None, durability)) as queue:
        schedules = Schedules(queue)
        if every is not None:
            made = schedules.every(name, seconds_of(every, "--every"), kind, value, **options)
        else:
            made = schedules.cron(name, cron or "", kind, value, zone=zone, **options)
    if as_json:
        print_json(_facts(made))
    else:
        print(f"{shown(name)}: next {_utc(made.next_ms)}{', paused' if made.paused else ''}")


@group.command()
def remove(name: Name, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Forget a schedule; the jobs that it has put in stay."""
    with existing(db) as queue:
        _demand(Schedules(queue).remove(name), f"there is no schedule {shown(name)!r}")
    _tell(as_json, name, "removed")


@group.command()
def pause(name: Name, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Let a schedule put in no more jobs until it is resumed."""
    with existing(db) as queue:
        changed = Schedules(queue).pause(name)
    _demand(changed, f"{shown(name)!r} is paused already, or there is no such schedule")
    _tell(as_json, name, "paused")


@group.command()
def resume(name: Name, db: Db = DB_DEFAULT, as_json: AsJson = False) -> None:
    """Let a schedule go on with its next slot; those that passed meanwhile are left out."""
    with existing(db) as queue:
        schedules = Schedules(queue)
        _demand(schedules.resume(name), f"{shown(name)!r} is not paused, or not there")
        found = schedules.get(name)
    _tell(as_json, name, f"goes on, next {_utc(found.next_ms if found else None)}")


def _demand(changed: bool, why: str) -> None:
    if not changed:
        raise ValueError(f"{why}: see killproof schedules list")


def _tell(as_json: bool, name: str, what: str) -> None:
    if as_json:
        print_json({"name": name, "done": what})
    else:
        print(f"{shown(name)}: {what}")


@group.command("next")
def print_next(
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", help="Slots to show.")] = 5,
    db: Db = DB_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show the next slots of a schedule, in its zone and in UTC."""
    with existing(db) as queue:
        slots = Schedules(queue).next(name, count)
    if as_json:
        print_json([{"local": slot.isoformat(), "utc": _utc(_ms(slot))} for slot in slots])
        return
    for slot in slots:
        print(f"{_utc(_ms(slot))}   {slot:{LOCAL}}")


def _ms(slot: datetime) -> int:
    return round(slot.timestamp() * 1_000)


@group.command()
def run(
    db: Db = DB_DEFAULT,
    is_once: Annotated[
        bool, typer.Option("--once", help="Fire what is due and leave: for a system's cron.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fire the schedules of a file on a host without workers, until SIGTERM.

    Workers do it by themselves; both may run, each slot has one job.
    """
    from killproof.schedule_firing import Firing

    with existing(db) as queue, _stopped_by_signals() as stop:
        firing = Firing(queue)
        while True:
            looked, seconds = firing.look()
            fired = looked or Fired(ids=(), next_ms=None)
            if as_json and (fired.ids or is_once):
                print(json.dumps({"fired": fired.ids, "troubles": fired.troubles}), flush=True)
            elif fired.ids or is_once:
                print(f"put in {count_of(len(fired.ids), 'job')}", flush=True)
            if is_once:
                for name, why in fired.troubles:
                    raise ValueError(f"schedule {shown(name)!r} can not be fired here: {why}")
                return
            if stop.wait(seconds):
                return


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Give an event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    former = {
        signum: signal.signal(signum, lambda *_: stop.set())
        for signum in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for signum, handler in former.items():
            signal.signal(signum, handler)
