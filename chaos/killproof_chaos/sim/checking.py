"""For people who test their own code on top of a queue: my handler, my two workers, all schedules.

    from killproof_chaos.sim import check

    def worker(me):
        if lease := me.claim():
            outbox.append(lease.job.id)
            me.point()  # where your code would wait for a network
            me.ack(lease)

    check([worker, worker], passes=1, before=outbox.clear, always=nothing_was_sent_twice)

Every schedule up to the bound is played: at each SQL statement, and wherever an actor calls
`point`, `sleep` or `wait_for`, another may go on, and with `crashes` or `passes` one may die or be
stopped past its lease. What breaks a promise, raises in a worker or makes `always` raise is shrunk
and told as a story, in an AssertionError. What is not shown is no success: a check that ends before
every schedule was played, in which somebody waits for ever, or that has nothing to judge, raises
`CheckUnknown`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from killproof_chaos import targets
from killproof_chaos.sim.explore import Budget, Exploration, explore
from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Function, Scenario
from killproof_chaos.sim.schedulers import Dfs, Replay, choices_of
from killproof_chaos.sim.shrink import shrink
from killproof_chaos.sim.stage import Stage
from killproof_chaos.sim.story import perform
from killproof_chaos.workload import Job

KIND: Final = "job"
#: What every schedule shows, also of actors that do nothing: no error, and a sound file.
IDLE: Final = frozenset({"P16"})
SECONDS: Final = 60.0


class CheckUnknown(Exception):
    """No promise broke, and yet nothing is shown; the message says why, and the remedy."""


def check(
    actors: Sequence[Function],
    *,
    jobs: Sequence[Job | str] = ("job-1",),
    bound: int = 2,
    crashes: int = 0,
    passes: int = 0,
    before: Callable[[], None] | None = None,
    always: Callable[[], None] | None = None,
    target: Any = "killproof",
    seconds: float = SECONDS,
    replay: str | None = None,
    partial: bool = False,
) -> Exploration:
    """Play every schedule of some actors up to a bound; return what was explored.

    Args:
        actors: functions, or coroutine functions, of a `killproof_chaos.sim.Actor`; the name of
            each is that of its function, with a number where it stands there twice.
        jobs: in the queue when they begin: a `Job`, or the `id` of one.
        bound: switches in a schedule away from an actor that could have gone on.
        crashes: processes that may die in a schedule.
        passes: times that the clock may pass the length of a lease while somebody could run.
        before: called before each schedule, to put back what your handlers keep in memory.
        always: called when a schedule has ended, also where an actor died or waits for ever; it
            raises where what your code promises is not so.
        target: a queue, or the name of one.
        seconds: at most.
        replay: a schedule from a story, such as `7b,19A`: only this one is played.
        partial: it is enough to have played some of the schedules; `exhausted` and `level` of what
            is returned tell how many those were.

    Raises:
        AssertionError: a promise broke; the message is the story of the smallest schedule.
        CheckUnknown: none broke, but not all schedules were played (and `partial` does not allow
            it), or an actor waits for ever, or there was nothing to judge, or the schedule to
            replay can not be followed any more.
        Unrepeatable: the same schedule gave another run: an actor reads a clock or draws a number
            that is not the simulator's, or `before` puts back too little.
        ValueError: nobody acts, or the target can not be simulated.
    """
    if not actors:
        raise ValueError("check needs at least one actor: give a function of an Actor")
    scenario = Scenario(
        name="check",
        text=f"all schedules up to bound {bound}",
        actors=_named(actors),
        jobs=tuple(job if isinstance(job, Job) else Job(id=job, kind=KIND) for job in jobs),
        faults=Faults(crashes=crashes, passes=passes),
        shares_memory=True,
        before=before,
        always=always,
    )
    queue = targets.load(target) if isinstance(target, str) else target
    if replay is not None:
        return _again(queue, scenario, replay)
    # What handlers keep in memory is no part of a state, and what they do to it is no deed: the
    # scenario `shares_memory`, so nothing counts as equal and no choice is left out.
    scheduler = Dfs(bound)
    found = explore(queue, scenario, scheduler, budget=Budget(seconds=seconds))
    if found.violations:
        story = shrink(queue, scenario, found.violations[0]).story
        raise AssertionError(f"\n{story.text()}again: check(..., replay={story.schedule!r})")
    lack = _lack(found, partial=partial, asks=always is not None)
    if lack:
        raise CheckUnknown(lack)
    return found


def _lack(found: Exploration, *, partial: bool, asks: bool) -> str:
    """Return why an exploration without a violation shows nothing; empty: it does.

    Args:
        found: what was explored.
        partial: whether it is enough to have played some of the schedules.
        asks: whether something else than the queue's promises was judged.
    """
    if not found.schedules:
        return "no schedule was played to its end: give more seconds"
    if found.hung:
        return (
            f"in {found.hung:,} of {found.schedules:,} schedules an actor waits for ever: let "
            "another notify it, or give wait_for a time"
        )
    if not (found.exhausted or partial):
        return (
            f"only {found.schedules:,} schedules were played, and not all of them: give more "
            "seconds, a smaller bound or fewer actors, or allow it with partial=True"
        )
    if not (asks or found.passed - IDLE):
        return (
            "no actor did what a promise is about, and no `always` was given: let them claim or "
            "enqueue jobs"
        )
    return ""


def _again(queue: Any, scenario: Scenario, schedule: str) -> Exploration:
    found = Exploration(target=queue.name, scenario=scenario.name, schedules=1)
    with Stage(queue, scenario) as stage:
        performed = perform(stage, Replay(schedule))
    assert performed is not None, "one schedule can be replayed"
    outcome, story = performed
    if story.violations:
        raise AssertionError(f"\n{story.text(verbose=True)}")
    if outcome.choices != choices_of(schedule):
        raise CheckUnknown(
            f"schedule {schedule!r} can not be followed any more, only {outcome.token!r} of it: "
            "the actors or the queue have changed; check all schedules anew"
        )
    found.hung = int(outcome.stopped in ("hung", "steps"))
    found.passed |= outcome.verdict.passed if outcome.verdict is not None else frozenset()
    lack = _lack(found, partial=True, asks=scenario.always is not None)
    if lack:
        raise CheckUnknown(lack)
    return found


def _named(actors: Sequence[Function]) -> dict[str, Function]:
    """Return the actors by name."""
    names = [getattr(function, "__name__", "actor") for function in actors]
    found = {}
    for at, (name, function) in enumerate(zip(names, actors, strict=True)):
        number = names[: at + 1].count(name)
        found[name if names.count(name) == 1 else f"{name}{number}"] = function
    return found
