"""Races of a schedule: the slot moves in the transaction that puts its job in."""

import sqlite3
from collections.abc import Iterator
from typing import Final

from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Actor, Scenario
from killproof_chaos.sim.scenarios.core import work_once

NAME: Final = "tick"
EVERY_MS: Final = 3_600_000
PREFIX: Final = f"schedule:{NAME}:"
SLOT: Final = "SELECT anchor_ms FROM job_schedule"


def _due_at_once(me: Actor) -> None:
    from killproof.schedule import Schedules, key_of

    slot_ms = me.client.host.clock.now_ms() + 1
    payload = {"id": key_of(NAME, slot_ms), "script": ["ok"], "sink": "log", "body": ""}
    Schedules(me.client).every(
        NAME, EVERY_MS / 1_000, "report", payload, first=slot_ms / 1_000, missed="all"
    )


def _fire(me: Actor) -> None:
    """Do what the thread of every worker does, a millisecond after the slot was made."""
    from killproof.schedule import fire_due

    ((slot_ms,),) = me.client.database.peek(SLOT)
    fire_due(me.client, slot_ms)


def _fire_then_work(me: Actor) -> None:
    _fire(me)
    work_once(me)


def _slot_and_jobs(database: sqlite3.Connection) -> Iterator[str]:
    """Say when the slot has moved on without its job, or the job is there and the slot is not."""
    (jobs,) = database.execute(
        "SELECT count(*) FROM job WHERE key LIKE ? || '%'", (PREFIX,)
    ).fetchone()
    for fired, moved in database.execute(
        "SELECT fired, next_ms > anchor_ms FROM job_schedule WHERE name = ?", (NAME,)
    ):
        if not jobs == fired == moved:
            yield f"the slot has moved {moved} times, fired {fired} times, and has {jobs} jobs"


FIRE: Final = Scenario(
    name="schedule",
    text="two workers fire one slot, either may die of it, and its job is run",
    actors={"w1": _fire_then_work, "w2": _fire},
    prepare=_due_at_once,
    faults=Faults(crashes=1),
    checks={"P12": _slot_and_jobs},
    parameters={"schedules": {NAME: {"every_ms": EVERY_MS, "prefix": PREFIX}}},
    needs=frozenset({"enqueue", "claim", "ack", "schedule"}),
)
SCENARIOS: Final = (FIRE,)
