"""Asyncio under the simulator: virtual time, executors as lives of their own, deaths."""

import asyncio
import contextlib
import sys
from dataclasses import replace
from typing import Any

from killproof_chaos.sim import (
    Actor,
    Budget,
    Dfs,
    Faults,
    Replay,
    Scenario,
    Stage,
    Walk,
    explore,
    facts_of,
    run_one,
)
from killproof_chaos.sim.scenario import claimed
from killproof_chaos.targets import load
from killproof_chaos.workload import Job

DAY = 86_400.0


class AsyncClient:
    """A small asyncio queue client: each call in a thread, as such clients are made."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def claim(self) -> Any:
        return await asyncio.to_thread(self._client.claim)

    async def ack(self, lease: Any) -> None:
        await asyncio.to_thread(self._client.ack, lease)


async def work(me: Actor) -> None:
    """Claim, wait as for a slow service while a task beats, then ack."""
    client = AsyncClient(me.client)
    lease = await me.acall("claim", client.claim, told=claimed)
    if lease is None:
        return
    beats = asyncio.create_task(beat(me))
    await asyncio.sleep(0.1)
    me.play(lease)
    beats.cancel()
    facts = facts_of(lease)
    await me.acall("ack", lambda: client.ack(lease), job=facts.job, fence=facts.fence)


async def beat(me: Actor) -> None:
    while True:
        await asyncio.sleep(0.04)
        me.point()


def scenario(faults: Faults | None = None) -> Scenario:
    return Scenario(
        name="asyncio",
        text="two asyncio workers claim, run and ack two jobs",
        actors={"w1": work, "w2": work},
        jobs=tuple(Job(id=f"job-{number}", kind="report") for number in (1, 2)),
        faults=faults or Faults(),
    )


def test_asyncio_workers_are_judged_as_others_are() -> None:
    outcome = run_one(load("killproof"), scenario())

    assert outcome.verdict is not None
    assert not outcome.verdict.violations
    assert {"P1", "P3", "P4", "P5", "P17"} <= outcome.verdict.passed
    assert {row["state"] for row in outcome.finally_rows} == {"succeeded"}
    assert outcome.text() == run_one(load("killproof"), scenario(), Replay()).text()


def test_a_race_between_threads_of_two_loops_is_found() -> None:
    race = replace(scenario(), jobs=scenario().jobs[:1])
    queue = load("checks-then-claims")

    found = explore(queue, race, Dfs(1), budget=Budget(schedules=500, seconds=None))

    assert found.broken & {"P4", "P6"}
    assert run_one(queue, race, Replay(found.violations[0].token)).is_violation


def test_a_process_with_a_loop_can_die_anywhere_and_the_others_go_on() -> None:
    found = explore(
        load("minimal"),
        scenario(Faults(crashes=1)),
        Walk(seed=2, runs=150),
        budget=Budget(seconds=None),
    )

    assert (found.broken, found.hung, found.schedules) == (set(), 0, 150)
    assert "P17" in found.passed


def test_a_loop_sleeps_in_virtual_time_and_wakes_in_order() -> None:
    told: list[str] = []

    async def sleeper(me: Actor) -> None:
        async def nap(days: float) -> None:
            await asyncio.sleep(days * DAY)
            told.append(f"{me.name} after {days:g}")

        await asyncio.gather(nap(3), nap(1))
        try:
            await asyncio.wait_for(asyncio.Event().wait(), timeout=DAY)
        except TimeoutError:
            told.append(f"{me.name} gave up")

    race = Scenario(name="naps", text="two loops sleep", actors={"a": sleeper, "b": sleeper})
    outcome = run_one(load("minimal"), race)

    assert outcome.stopped == ""
    assert [text[2:] for text in told] == [
        *("after 1", "after 1", "after 3", "after 3", "gave up", "gave up")
    ]


def test_what_an_executor_raises_is_raised_where_it_is_awaited() -> None:
    told: list[str] = []

    def fail() -> None:
        raise LookupError("from a thread")

    async def caller(me: Actor) -> None:
        try:
            await asyncio.to_thread(fail)
        except LookupError as error:
            told.append(str(error))

    race = Scenario(name="raise", text="a thread raises", actors={"a": caller})
    assert run_one(load("minimal"), race).stopped == ""
    assert told == ["from a thread"]


def test_an_exception_that_nobody_awaits_is_a_finding() -> None:
    """A heartbeat that dies of a lock, or a thread, leaves a log line in production."""

    async def beats(me: Actor) -> None:
        async def heartbeat() -> None:
            await asyncio.sleep(0.01)
            raise TimeoutError("the heartbeat met a lock")

        beating = asyncio.create_task(heartbeat())
        await asyncio.sleep(0.1)
        assert beating.done()

    async def delegates(me: Actor) -> None:
        asyncio.get_running_loop().run_in_executor(None, int, "no number")

    async def calls(me: Actor) -> None:
        asyncio.get_running_loop().call_soon(int, "no number")
        await asyncio.sleep(0.1)

    async def tidies(me: Actor) -> None:
        """Await what fails, and cancel what is left."""
        left = asyncio.create_task(asyncio.sleep(DAY))
        failing = asyncio.create_task(asyncio.to_thread(int, "no number"))
        await asyncio.gather(failing, return_exceptions=True)
        assert not left.done()

    found = {}
    for actor in (beats, delegates, calls, tidies):
        race = Scenario(name="unheard", text="nobody awaits it", actors={"a": actor}, heals=False)
        verdict = run_one(load("minimal"), race).verdict
        assert verdict is not None
        found[actor.__name__] = [violation.story for violation in verdict.violations]

    number = "a met ValueError: invalid literal for int() with base 10: 'no number'"
    assert found == {
        "beats": ["a met TimeoutError: the heartbeat met a lock"],
        "delegates": [number],
        "calls": [number],
        "tidies": [],
    }


def test_a_coroutine_that_is_cancelled_or_exits_is_an_error_of_its_actor() -> None:
    async def cancelled(me: Actor) -> None:
        raise asyncio.CancelledError

    async def exits(me: Actor) -> None:
        await asyncio.to_thread(sys.exit, 0)

    for actor, word in ((cancelled, "CancelledError"), (exits, "SystemExit")):
        race = Scenario(name="leave", text="it leaves", actors={"a": actor}, heals=False)
        verdict = run_one(load("minimal"), race).verdict

        assert verdict is not None
        assert [violation.promise for violation in verdict.violations] == ["error"]
        assert f"a met {word}" in verdict.violations[0].story


def test_a_process_can_die_between_the_commit_of_its_thread_and_its_hearing_of_it() -> None:
    async def claim_and_ack(me: Actor) -> None:
        await work(me)

    race = replace(
        scenario(Faults(crashes=1)), actors={"w1": claim_and_ack}, jobs=scenario().jobs[:1]
    )

    def ends(scheduler: Dfs) -> set[str]:
        found = set()
        with Stage(load("minimal"), replace(race, heals=False)) as stage:
            while (outcome := stage.play(scheduler)) is not None:
                if outcome.verdict is not None:
                    rows = stage.database.execute("SELECT state FROM job").fetchall()
                    last = [r["type"] for f, r in stage.runtime.events if f.startswith("history")]
                    found.add(
                        str((rows, last[-1], any(label == "A" for _, label in outcome.choices)))
                    )
        return found

    whole = ends(Dfs(0, prunes=False, reduces=False))

    assert ends(Dfs(0)) == whole
    assert {"([('leased',)], 'invoke', True)", "([('succeeded',)], 'invoke', True)"} <= whole


def test_a_loop_waits_for_the_threads_of_callers_that_were_cancelled() -> None:
    ended: list[str] = []

    async def leave(me: Actor) -> None:
        def thread() -> None:
            me.sleep(2.0)
            ended.append("the thread")

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(thread), timeout=1.0)
        ended.append("its caller")

    race = Scenario(name="leaves", text="one leaves a thread behind", actors={"a": leave})
    outcome = run_one(load("minimal"), race)

    assert (outcome.is_violation, outcome.stopped) == (False, "")
    assert ended == ["its caller", "the thread"]
