"""The scenarios that come with the harness: each is one race that a queue can lose."""

from typing import Final

from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Actor, Function, Scenario
from killproof_chaos.workload import Job


def _job(number: int, **options: object) -> Job:
    return Job(id=f"job-{number}", kind="report", **options)  # type: ignore[arg-type]


def _work_once(me: Actor) -> None:
    me.work()


def _work_twice(me: Actor) -> None:
    me.work()
    me.work()


def _extend_then_ack(me: Actor) -> None:
    lease = me.claim()
    if lease is None:
        return
    if me.extend(lease):
        me.play(lease)
        me.ack(lease)


def _enqueue_keyed(number: int) -> Function:
    def enqueue(me: Actor) -> None:
        me.enqueue(_job(number, key="only-once"))

    return enqueue


def _reap(me: Actor) -> None:
    me.reap()


CLAIM: Final = Scenario(
    name="claim",
    text="two workers claim, run and ack two jobs",
    actors={"w1": _work_once, "w2": _work_once},
    jobs=(_job(1), _job(2)),
)
STALE_ACK: Final = Scenario(
    name="stale-ack",
    text="a worker is stopped past its lease and acks a job that another has taken over",
    actors={"w1": _work_once, "w2": _work_twice, "reaper": _reap},
    jobs=(_job(1),),
    faults=Faults(passes=1),
)
UNIQUE_KEY: Final = Scenario(
    name="unique-key",
    text="two producers enqueue one key while a worker runs what it finds",
    actors={"p1": _enqueue_keyed(1), "p2": _enqueue_keyed(2), "w1": _work_once},
)
EXTEND: Final = Scenario(
    name="extend-against-reap",
    text="a holder extends its lease while time passes and a reaper looks",
    actors={"w1": _extend_then_ack, "reaper": _reap, "w2": _work_once},
    jobs=(_job(1),),
    faults=Faults(passes=1),
)
COMPLETING: Final = Scenario(
    name="completing",
    text="an effect in the file shares the transaction of its ack, while its worker may die",
    actors={"w1": _work_once, "w2": _work_twice},
    jobs=(_job(1, sink="table"),),
    faults=Faults(crashes=1, passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "completing"}),
)

SCENARIOS: Final = {
    scenario.name: scenario for scenario in (CLAIM, STALE_ACK, UNIQUE_KEY, EXTEND, COMPLETING)
}
