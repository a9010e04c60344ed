"""Races of limits: the place that a job takes is taken in the transaction of its claim."""

import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Actor, Scenario
from killproof_chaos.sim.scenarios.core import job, work_once, work_twice


def _one_at_once(me: Actor) -> None:
    from killproof.limits import Limits

    Limits(me.client).set("report", running=1)


#: What is judged by it: `report` is the kind of every job here.
ONE: Final = {"limits": {"report": {"running": 1}}}

MUTEX: Final = Scenario(
    name="mutex",
    text="two workers reach for jobs of a kind of which one may run at once",
    actors={"w1": work_once, "w2": work_once},
    jobs=(job(1), job(2)),
    prepare=_one_at_once,
    promised={"P22": True},
    parameters=ONE,
    needs=frozenset({"enqueue", "claim", "ack", "limits", "transaction"}),
)
MUTEX_LOST: Final = Scenario(
    name="mutex-lost",
    text="the one that runs dies or is stopped past its lease, and another takes its place",
    actors={"w1": work_once, "w2": work_once},
    jobs=(job(1), job(2)),
    faults=Faults(crashes=1, passes=1),
    prepare=_one_at_once,
    promised={"P22": True},
    parameters=ONE,
    needs=frozenset({"enqueue", "claim", "ack", "limits", "transaction"}),
)


def _a_token_a_second(me: Actor) -> None:
    from killproof.limits import Limits

    Limits(me.client).set("report", rate=1, burst=1)


RATE: Final = Scenario(
    name="rate",
    text="two workers share a token a second, while a second passes",
    actors={"w1": work_once, "w2": work_once},
    jobs=(job(1), job(2)),
    faults=Faults(passes=1),
    jump=1.0,
    prepare=_a_token_a_second,
    promised={"P22": True},
    parameters={"limits": {"report": {"rate": 1.0, "burst": 1}}},
    needs=frozenset({"enqueue", "claim", "ack", "limits", "transaction"}),
)
RATE_STEPPED: Final = Scenario(
    name="rate-stepped",
    text="the wall clock steps under a token a second: nobody starts too early for it",
    actors={"w1": work_twice, "w2": work_once},
    jobs=(job(1), job(2), job(3)),
    faults=Faults(wall_steps=1),
    prepare=_a_token_a_second,
    promised={"P22": True},
    parameters={"limits": {"report": {"rate": 1.0, "burst": 1}}},
    needs=frozenset({"enqueue", "claim", "ack", "limits", "transaction"}),
)

#: For as long as a pass of time is.
PAUSE_SECONDS: Final = 5.0


def _open_the_breaker(me: Actor) -> None:
    from killproof.limits import Limits

    Limits(me.client).breaker("report", failures=1, pause=PAUSE_SECONDS)
    lease: Any = me.claim()
    me.nack(lease)


def _one_tries(database: sqlite3.Connection) -> Iterator[str]:
    """Of jobs that find the breaker open, no two may run at once: each worker takes one."""
    running: set[int] = set()
    changes = "SELECT job, new FROM killproof_audit WHERE old IS NOT NULL ORDER BY seq"
    for found, state in database.execute(changes):
        if state != "leased":
            running.discard(found)
        else:
            running.add(found)
            if len(running) > 1:
                yield f"job {found} ran beside the one that tries whether it works again"


BREAKER: Final = Scenario(
    name="breaker",
    text="two workers find a breaker open; after its pause one tries, and may die of it",
    actors={"w1": work_once, "w2": work_once},
    jobs=(job(1), job(2)),
    faults=Faults(crashes=1, passes=1),
    jump=PAUSE_SECONDS,
    prepare=_open_the_breaker,
    checks={"P22": _one_tries},
    needs=frozenset({"enqueue", "claim", "ack", "nack", "limits", "transaction"}),
)
SCENARIOS: Final = (MUTEX, MUTEX_LOST, RATE, RATE_STEPPED, BREAKER)
