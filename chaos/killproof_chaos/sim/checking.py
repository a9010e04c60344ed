"""For people who test their own code on top of a queue: my handler, my two workers, all schedules.

    from killproof_chaos.sim import check

    def worker(me):
        if lease := me.claim():
            outbox.append(lease.job.id)
            me.point()  # where your code would wait for a network
            me.ack(lease)

    check([worker, worker], passes=1, before=outbox.clear, always=nothing_was_sent_twice)

Every schedule up to the bound is played: at each SQL statement another worker may go on, and with
`crashes` or `passes` one may die or be stopped past its lease. What breaks a promise, raises in a
worker or makes `always` raise is shrunk and told as a story, in an AssertionError.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from killproof_chaos import targets
from killproof_chaos.sim.explore import Budget, Exploration, explore
from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Actor, Function, Scenario
from killproof_chaos.sim.schedulers import Dfs, Replay
from killproof_chaos.sim.shrink import shrink
from killproof_chaos.sim.stage import Stage
from killproof_chaos.sim.story import perform
from killproof_chaos.workload import Job

KIND: Final = "job"
SCHEDULES_MAX: Final = 100_000
SECONDS: Final = 60.0


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
        always: called when the last actor of a schedule has ended; it raises where what your code
            promises is not so.
        target: a queue, or the name of one.
        seconds: at most; what was not played by then is told by `exhausted`.
        replay: a schedule from a story, such as `7b,19A`: only this one is played.

    Raises:
        AssertionError: a promise broke; the message is the story of the smallest schedule.
        ValueError: nobody acts, or the target can not be simulated.
    """
    if not actors:
        raise ValueError("check needs at least one actor: give a function of an Actor")
    scenario = Scenario(
        name="check",
        text=f"all schedules up to bound {bound}",
        actors=_named(actors, before, always),
        jobs=tuple(job if isinstance(job, Job) else Job(id=job, kind=KIND) for job in jobs),
        faults=Faults(crashes=crashes, passes=passes),
    )
    queue = targets.load(target) if isinstance(target, str) else target
    if replay is not None:
        return _again(queue, scenario, replay)
    # What handlers share in memory is no part of a state, so no two states count as equal.
    scheduler = Dfs(bound, prunes=False)
    budget = Budget(seconds=seconds, schedules=SCHEDULES_MAX)
    found = explore(queue, scenario, scheduler, budget=budget)
    if found.violations:
        story = shrink(queue, scenario, found.violations[0], is_own_code=True).story
        raise AssertionError(f"\n{story.text()}again: check(..., replay={story.schedule!r})")
    return found


def _again(queue: Any, scenario: Scenario, schedule: str) -> Exploration:
    found = Exploration(target=queue.name, scenario=scenario.name, schedules=1)
    with Stage(queue, scenario) as stage:
        performed = perform(stage, Replay(schedule))
    assert performed is not None, "one schedule can be replayed"
    if performed[1].violations:
        raise AssertionError(f"\n{performed[1].text(verbose=True)}")
    return found


class _Hooks:
    """Calls what the user wants to happen around each schedule, from within its actors."""

    def __init__(
        self,
        count: int,
        before: Callable[[], None] | None,
        always: Callable[[], None] | None,
    ) -> None:
        self._count, self._before, self._always = count, before, always
        self._run: object = None
        self._left = 0

    def around(self, function: Function) -> Function:
        """Return an actor that does the same, and tells when it begins and ends."""

        def act(me: Actor) -> Any:
            if self._run is not me.run:
                self._run, self._left = me.run, self._count
                if self._before is not None:
                    self._before()
            with self._ending():
                done = function(me)
                if not asyncio.iscoroutine(done):
                    return None
                self._left += 1  # It ends later, once more.
            return self._awaited(done)

        return act

    async def _awaited(self, done: Awaitable[Any]) -> None:
        with self._ending():
            await done

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._left -= 1
        # Not after an error: that is the finding, and another would hide it.
        if self._left == 0 and self._always is not None:
            self._always()


def _named(
    actors: Sequence[Function],
    before: Callable[[], None] | None,
    always: Callable[[], None] | None,
) -> dict[str, Function]:
    """Return the actors by name, each with the hooks around it."""
    hooks = _Hooks(len(actors), before, always)
    names = [getattr(function, "__name__", "actor") for function in actors]
    found = {}
    for at, (name, function) in enumerate(zip(names, actors, strict=True)):
        number = names[: at + 1].count(name)
        found[name if names.count(name) == 1 else f"{name}{number}"] = hooks.around(function)
    return found
