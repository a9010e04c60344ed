"""Engine `sim`: a queue's own code, statement by statement, under every schedule that matters.

Workers, producers and reapers are greenlets of one thread, each with a real connection to a real
WAL file in memory. Before each SQL statement a scheduler decides who goes on, who crashes, whether
time passes. The same choices give the same run, byte for byte, on any machine.

    from killproof_chaos.sim import Budget, Dfs, Pct, Replay, explore, run_one
    from killproof_chaos.sim.scenarios import SCENARIOS
    from killproof_chaos.targets import load

    found = explore(load("killproof"), SCENARIOS["claim"], Dfs(2), budget=Budget(seconds=10))
    found.exhausted, found.level, found.schedules, found.pruned, found.broken
    for outcome in found.violations:         # one for each set of broken promises, with traces
        outcome.token                        # "7b,19A,31+": what differs from the default schedule
        outcome.verdict.violations           # promise, job, story
        outcome.text()                       # the trace as lines
    run_one(load("killproof"), SCENARIOS["claim"], Replay("7b,19A"))     # the same run again

Where to look:

    scenario.py    Scenario (actors, jobs, faults, promises); Actor, what their functions are given
    scenarios/     SCENARIOS, the races that come with the harness, a module for each capability
    schedulers.py  Dfs(bound, prunes=), Pct(depth, seed=, runs=), Walk(seed=, runs=), Replay(token)
    explore.py     run_one, explore, Budget, Exploration
    stage.py       Stage (set up once, `play` many), Outcome; image.py puts the file back
    shrink.py      shrink(target, scenario, outcome): the smallest schedule; story.py tells it
    tokens.py      one schedule in one word; replaying.py plays it again, anywhere
    checking.py    check([worker, worker], ...): a few lines for people who test their own code
    campaign.py    many scenarios, smallest bounds first, in several processes; result.py
    judging.py     Verdict, Violation, judge, write_store: the checkers of all engines, from memory
    runtime.py     Runtime, Life, Faults, Event: points, choices, virtual time, crashes
    connection.py  the connections that stop; host.py  the virtual machine that a target is given

A choice is (step, label): at that step, instead of the default, `b` the second actor goes on, `B`
its process crashes, `+` time passes, `^` and `_` the wall clock steps an hour forward or back, `-b`
its wake-up is lost. The default lets an actor run until it can not, and then the first that can.
A choice that is not possible at its step is passed over by `Replay`, so a shrinker may just drop
choices, actors, jobs and budgets (`dataclasses.replace(scenario, ...)`), play, and look whether the
promise still breaks; for many tries keep one `Stage` for each scenario.

A scenario's actor is a function (or coroutine function) of an `Actor`:

    def work(me):
        if lease := me.claim():              # recorded for the judge; None: nothing to do
            me.play(lease)                   # the handler: plays the word of the job's script
            if not me.ack(lease):            # False: refused, the lease is lost
                ...
    me.enqueue(job)  me.extend(lease)  me.nack(lease)  me.release(lease)  me.complete(lease)
    me.cancel(id)  me.replay(id)  me.reap()  me.work()  me.sleep(seconds)  me.point()  me.client
    me.call("ack", lambda: me.client.ack_many([...]), job=..., fence=...)      # anything else

What a target gives (see `killproof_evidence.target`): `open(place, host)`, its client on
`host.connect`, `host.clock`, `host.random`, `host.lock`, `host.token`, `host.sync`; an `audit`
mapping; a `snapshot`; optionally `memory(client)`, the objects whose attributes are put back
between schedules instead of opening the client anew, which is what makes a schedule cost less than
a millisecond. A refusal is an error that is a `Definite` or has a true `definite`.

Equal states are explored once, and choices without a difference are left out. Both hold for actors
that share nothing but the file: a scenario whose functions share variables (of a closure, a module)
says `shares_memory=True` and is searched whole, as `check` does, and as is what starts a thread.
Its `before` puts such variables back, and its `always` says what must be so in the end.

What is not shown: races inside one SQL statement or inside SQLite, the kernel's locks and fsync
(engines `proc`, `crash`, `disk`), and anything beyond the bound that an exploration reached.
"""

from killproof_chaos.sim.checking import CheckUnknown, check
from killproof_chaos.sim.explore import Budget, Exploration, explore, explore_stage, run_one
from killproof_chaos.sim.judging import Verdict, Violation
from killproof_chaos.sim.runtime import Event, Faults, Unrepeatable
from killproof_chaos.sim.scenario import Actor, Scenario, facts_of
from killproof_chaos.sim.schedulers import (
    Choices,
    Dfs,
    Pct,
    Replay,
    Walk,
    choices_of,
    is_fault,
    token_of,
)
from killproof_chaos.sim.stage import Outcome, Stage

__all__ = [
    "Actor",
    "Budget",
    "CheckUnknown",
    "Choices",
    "Dfs",
    "Event",
    "Exploration",
    "Faults",
    "Outcome",
    "Pct",
    "Replay",
    "Scenario",
    "Stage",
    "Unrepeatable",
    "Verdict",
    "Violation",
    "Walk",
    "check",
    "choices_of",
    "explore",
    "explore_stage",
    "facts_of",
    "is_fault",
    "run_one",
    "token_of",
]
