"""Races of the calls that every queue has, and of those that some have."""

from functools import partial
from typing import Any, Final

from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Actor, Function, Scenario, claimed, facts_of
from killproof_chaos.workload import Job


def job(number: int, **options: object) -> Job:
    """Return `job-1`, `job-2` and so on, all of one kind."""
    return Job(id=f"job-{number}", kind="report", **options)  # type: ignore[arg-type]


def work_once(me: Actor) -> None:
    """Be a worker for one job."""
    me.work()


def work_twice(me: Actor) -> None:
    """Be a worker for two jobs."""
    me.work()
    me.work()


def _extend_then_ack(me: Actor) -> None:
    lease = me.claim()
    if lease is None:
        return
    if me.extend(lease):
        me.play(lease)
        me.ack(lease)


def _extend_once(me: Actor) -> None:
    if lease := me.claim():
        me.point()  # Its handler works: who is stopped here has not called yet.
        me.extend(lease)


def _claim_once(me: Actor) -> None:
    me.claim()


def _extend_in_time(me: Actor) -> None:
    """Hold a job for longer than a lease, with a heartbeat in the middle of the first one."""
    if lease := me.claim():
        me.sleep(0.6 * me.lease)
        me.extend(lease)
        me.sleep(0.6 * me.lease)


def _claim_after_a_lease(me: Actor) -> None:
    me.sleep(1.1 * me.lease)
    me.claim()


def _enqueue_keyed(number: int) -> Function:
    def enqueue(me: Actor) -> None:
        me.enqueue(job(number, key="only-once"))

    return enqueue


def reap(me: Actor) -> None:
    """Look once for what is lost."""
    me.reap()


CLAIM: Final = Scenario(
    name="claim",
    text="two workers claim, run and ack two jobs",
    actors={"w1": work_once, "w2": work_once},
    jobs=(job(1), job(2)),
)
STALE_ACK: Final = Scenario(
    name="stale-ack",
    text="a worker is stopped past its lease and acks a job that another has taken over",
    actors={"w1": work_once, "w2": work_once},
    jobs=(job(1),),
    faults=Faults(passes=1),
)
UNIQUE_KEY: Final = Scenario(
    name="unique-key",
    text="two producers enqueue one key while a worker runs what it finds",
    actors={"p1": _enqueue_keyed(1), "p2": _enqueue_keyed(2), "w1": work_once},
)
EXTEND: Final = Scenario(
    name="extend-against-reap",
    text="a holder extends its lease while time passes and a reaper looks",
    actors={"w1": _extend_then_ack, "reaper": reap},
    jobs=(job(1),),
    faults=Faults(passes=1),
)
STALE_EXTEND: Final = Scenario(
    name="stale-extend",
    text="a worker is stopped past its lease and extends it when another has taken the job over",
    actors={"w1": _extend_once, "w2": _claim_once},
    jobs=(job(1),),
    faults=Faults(passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "extend"}),
)
HEARTBEAT: Final = Scenario(
    name="heartbeat",
    text="a holder extends its lease in time and works on, while another looks when the first ends",
    actors={"w1": _extend_in_time, "w2": _claim_after_a_lease},
    jobs=(job(1),),
    needs=frozenset({"enqueue", "claim", "ack", "extend"}),
)
PRIORITIES: Final = Scenario(
    name="priorities",
    text="two workers claim jobs of different urgency, the least urgent one put in first",
    actors={"w1": work_once, "w2": work_once},
    jobs=(job(1, priority=9), job(2, priority=5), job(3, priority=0)),
)
COMPLETING: Final = Scenario(
    name="completing",
    text="an effect in the file shares the transaction of its ack, while its worker may die",
    actors={"w1": work_once, "w2": work_twice},
    jobs=(job(1, sink="table"),),
    faults=Faults(crashes=1, passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "completing"}),
)


def _work_in_batch(me: Actor) -> None:
    """Claim two jobs at once, and finish them at once: a batch is one transaction."""
    leases: list[Any] = []
    since = me.moment()
    with me.during("claim") as completion:
        leases = me.client.claim_many(2)
        if leases:
            completion |= claimed(leases[0])
    for lease in leases[1:]:
        me.call("claim", partial(_same, lease), told=claimed, since=since)
    for lease in leases:
        me.play(lease)
    for lease in leases:
        me.ack(lease)


def _same(lease: Any) -> Any:
    return lease


def _cancel(me: Actor) -> None:
    if "job-1" in me.ids:  # A shrinker may have left it out, which is no error of the queue.
        me.cancel(me.ids["job-1"])


def _replay(me: Actor) -> None:
    if "job-1" in me.ids:
        me.replay(me.ids["job-1"])


def _release(me: Actor) -> None:
    if lease := me.claim():
        me.release(lease)


def _snooze(me: Actor) -> None:
    if lease := me.claim():
        facts = facts_of(lease)
        me.call(
            "snooze",
            lambda: me.client.snooze(lease, SNOOZE_SECONDS),
            job=facts.job,
            fence=facts.fence,
            value={"delay_ms": round(SNOOZE_SECONDS * 1_000)},
            refused=False,
        )


def _ack_and_claim(me: Actor) -> None:
    """Finish one job and take the next in one transaction."""
    if (lease := me.claim()) is None:
        return
    me.play(lease)
    facts, following = facts_of(lease), None
    since = me.moment()  # The next lease runs from here on, for both are one transaction.
    with me.during("ack", job=facts.job, fence=facts.fence):
        following = me.client.ack_and_claim(lease)
    if following is not None:
        me.call("claim", lambda: following, told=claimed, since=since)
        me.play(following)
        me.ack(following)


def _work_in_two_slots(me: Actor) -> None:
    """Hold two leases in one process, prolong the first, and end both in order."""
    first, second = me.claim(), me.claim()
    if first is not None:
        me.extend(first)
    for lease in (first, second):
        if lease is not None:
            me.play(lease)
            me.ack(lease)


#: At least as long as a step of the virtual clock, so that it can be cut short by nothing else.
SNOOZE_SECONDS: Final = 0.1
ONE_FAILURE: Final = job(1, script=("raise", "ok"))
LAST_ATTEMPT: Final = job(1, script=("raise", "ok"), max_attempts=1)

CLAIM_MANY: Final = Scenario(
    name="claim-many",
    text="two workers claim batches of three jobs",
    actors={"w1": _work_in_batch, "w2": _work_in_batch},
    jobs=(job(1), job(2), job(3)),
    needs=frozenset({"enqueue", "claim", "ack", "claim_many"}),
)
ACK_AND_CLAIM: Final = Scenario(
    name="ack-and-claim",
    text="a worker finishes a job and takes the next at once, while time passes and another looks",
    actors={"w1": _ack_and_claim, "w2": work_once},
    jobs=(job(1), job(2)),
    faults=Faults(passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "ack_and_claim"}),
)
NACK: Final = Scenario(
    name="nack",
    text="a handler fails while time passes, and another worker takes the retry",
    actors={"w1": work_once, "w2": work_twice},
    jobs=(ONE_FAILURE,),
    faults=Faults(passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "nack"}),
)
LAST: Final = Scenario(
    name="last-attempt",
    text="the last attempt fails, or dies, while a reaper looks",
    actors={"w1": work_once, "reaper": reap},
    jobs=(LAST_ATTEMPT,),
    faults=Faults(crashes=1, passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "nack", "reap"}),
)
RELEASE: Final = Scenario(
    name="release",
    text="a worker gives a job back while time passes and a reaper looks",
    actors={"w1": _release, "reaper": reap},
    jobs=(job(1),),
    faults=Faults(passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "release", "reap"}),
)
SNOOZE: Final = Scenario(
    name="snooze",
    text="a worker puts a job off while time passes and another worker looks",
    actors={"w1": _snooze, "w2": work_once},
    jobs=(job(1),),
    faults=Faults(passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "snooze"}),
)
CANCEL: Final = Scenario(
    name="cancel-against-claim",
    text="somebody calls a job off while two workers reach for it",
    actors={"operator": _cancel, "w1": work_once, "w2": work_once},
    jobs=(job(1), job(2)),
    needs=frozenset({"enqueue", "claim", "ack", "cancel"}),
)
PROMOTE: Final = Scenario(
    name="promote",
    text="a delayed job falls due while two workers look",
    actors={"w1": work_once, "w2": work_once},
    jobs=(job(1, delay_ms=1_000), job(2)),
    faults=Faults(passes=1),
    jump=1.0,
)
WALL_CLOCK: Final = Scenario(
    name="wall-clock",
    text="the wall clock steps by an hour while two workers look for a delayed job",
    actors={"w1": work_once, "w2": work_once},
    jobs=(job(1, delay_ms=1_000), job(2)),
    faults=Faults(wall_steps=1),
)
REPLAY: Final = Scenario(
    name="replay",
    text="two people replay a job that may be dead by now, while a worker runs it",
    actors={"w1": work_once, "operator1": _replay, "operator2": _replay},
    jobs=(LAST_ATTEMPT,),
    needs=frozenset({"enqueue", "claim", "ack", "nack", "replay"}),
)
REAP: Final = Scenario(
    name="reap-against-reap",
    text="two reapers find the same dead worker's job",
    actors={"w1": work_once, "reaper1": reap, "reaper2": reap},
    jobs=(job(1),),
    faults=Faults(crashes=1, passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "reap"}),
)

TWO_SLOTS: Final = Scenario(
    name="two-slots",
    text="a worker with two slots is stopped past a lease, while another worker looks",
    actors={"w1": _work_in_two_slots, "w2": work_once},
    jobs=(job(1), job(2)),
    faults=Faults(passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "extend"}),
)

POISON: Final = Scenario(
    name="poison",
    text="a job that fails each time stands before another, and two workers look",
    actors={"w1": work_once, "w2": work_once},
    # The third is left when the two workers have had their turn: by it one sees who does not wait.
    jobs=(job(1, script=("raise",)), job(2), job(3)),
    # Time is virtual: a due job waits at most for the lease of one that was held when all ended.
    parameters={"starve_ms": 1_000},
    needs=frozenset({"enqueue", "claim", "ack", "nack"}),
)


def _live_two_lives(me: Actor) -> None:
    """Put two jobs in; end one well, after an extension, and the other badly."""
    me.enqueue(job(1))
    me.enqueue(job(2, key="only-once"))
    if lease := me.claim():
        me.extend(lease)
        me.play(lease)
        me.ack(lease)
    if lease := me.claim():
        me.nack(lease)


BACKLOG: Final = Scenario(
    name="backlog",
    text="what a job asks in its life, SQLite would answer without a walk through all others",
    actors={"w1": _live_two_lives},
    promises=frozenset({"P20"}),
    plans=True,
    needs=frozenset({"enqueue", "claim", "ack", "nack", "extend"}),
)

SCENARIOS: Final = (
    *(CLAIM, CLAIM_MANY, ACK_AND_CLAIM, STALE_ACK, NACK, LAST, RELEASE, SNOOZE, EXTEND),
    *(
        STALE_EXTEND,
        HEARTBEAT,
        PRIORITIES,
        COMPLETING,
        UNIQUE_KEY,
        CANCEL,
        PROMOTE,
        WALL_CLOCK,
        REPLAY,
        REAP,
        TWO_SLOTS,
    ),
    *(POISON, BACKLOG),
)
