"""Races of limits: the place that a job takes is taken in the transaction of its claim."""

from typing import Final

from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Actor, Scenario
from killproof_chaos.sim.scenarios.core import job, work_once


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
    needs=frozenset({"enqueue", "claim", "ack", "limits"}),
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
    needs=frozenset({"enqueue", "claim", "ack", "limits"}),
)
SCENARIOS: Final = (MUTEX, MUTEX_LOST)
