"""Shrinking, stories and tokens: on the naive queues, whose faults are known."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from killproof_chaos.sim import (
    Budget,
    CheckUnknown,
    Dfs,
    Exploration,
    Faults,
    Outcome,
    Pct,
    check,
    explore,
    run_one,
)
from killproof_chaos.sim.replaying import retell
from killproof_chaos.sim.scenario import Actor, Limited, Scenario
from killproof_chaos.sim.scenarios import SCENARIOS
from killproof_chaos.sim.schedulers import is_fault
from killproof_chaos.sim.shrink import Shrunk, _leaves_work, main_of, shrink
from killproof_chaos.sim.tokens import Cut, Token, TokenInvalid
from killproof_chaos.targets import load

NAIVE = {
    "checks-then-claims": "claim",
    "reads-then-writes": "unique-key",
    "ack-without-fence": "stale-ack",
    "checks-then-inserts": "unique-key",
}
FOUND_MAX = 1_000
STEPS_MAX = 8


@cache
def shrunk(target: str) -> Shrunk:
    """The fault of a naive queue, from the smallest bound that shows it."""
    queue, scenario = load(target), SCENARIOS[NAIVE[target]]
    for bound in range(3):
        budget = Budget(seconds=None, schedules=FOUND_MAX)
        found = explore(queue, scenario, Dfs(bound), budget=budget)
        if found.violations:
            return shrink(queue, scenario, found.violations[0])
    raise AssertionError(f"{target} is clean in {found.schedules} schedules of bound {bound}")


@pytest.mark.parametrize("target", NAIVE)
def test_a_naive_queue_is_found_and_told_in_a_few_steps(target: str) -> None:
    story = shrunk(target).story

    assert 1 <= len(story.steps) <= STEPS_MAX, story.text()
    assert [step.number for step in story.steps] == list(range(1, len(story.steps) + 1))
    assert shrunk(target).promise in {violation.promise for violation in story.violations}


def test_the_story_says_who_did_what_what_the_database_said_and_which_promise_broke() -> None:
    assert shrunk("ack-without-fence").story.text() == (
        "ack-without-fence, a worker is stopped past its lease and acks a job that another has "
        "taken over, schedule 9+,10b\n"
        "  1. w1 claims: gets job 1 (token 1, attempt 1)\n"
        "     = job 1: available -> leased (token 1)\n"
        "  2. w1 runs job 1: makes its effect\n"
        "  3. w1 begins to ack job 1 with token 1: nothing done yet\n"
        "  4. 0.55 s pass; the lease of w1 on job 1 has run out\n"
        "  5. w2 claims: gets job 1 (token 2, attempt 2)\n"
        "     = job 1: leased -> available\n"
        "     = job 1: available -> leased (token 2)\n"
        "  6. w1 goes on to ack job 1 with token 1: accepted\n"
        "     = job 1: leased -> succeeded\n"
        " => broken: A worker that lost its lease changes nothing, and is told (P5)\n"
        "    w1 was told ok for the ack of job 1 under token 1, but that lease ended as available\n"
        " => broken: Nothing counts as done that was not done (P3)\n"
        "    job 1 became succeeded under token 2, and nobody had acked that\n"
    )


def test_the_details_of_a_story_are_its_statements_with_their_answers() -> None:
    story = shrunk("ack-without-fence").story

    assert "BEGIN IMMEDIATE" in story.text(verbose=True)
    assert any(line.endswith("-> 1") for line in story.steps[-1].details)


def test_actors_jobs_and_faults_that_a_fault_does_not_need_are_left_out() -> None:
    least = shrunk("ack-without-fence").scenario

    assert list(least.actors) == ["w1", "w2"]
    assert least.faults == Faults(passes=1)
    assert [job.id for job in shrunk("checks-then-claims").scenario.jobs] == ["job-1"]
    assert list(shrunk("checks-then-inserts").scenario.actors) == ["p1", "p2"]


def test_no_actor_is_made_to_end_between_its_handler_and_its_outcome() -> None:
    """Whoever goes home there makes the next one do it again, on the best of queues."""

    def worker(me: Actor) -> None:
        me.work()

    def ends_after(calls: int) -> Outcome:
        actor = Limited(function=worker, calls=calls)
        scenario = replace(SCENARIOS["claim"], actors={"w1": actor})
        return run_one(load("minimal"), scenario)

    assert [_leaves_work(ends_after(calls)) for calls in (1, 2, 3)] == [False, True, False]


def test_a_schedule_that_was_found_at_random_is_shrunk_to_the_least_deviations() -> None:
    queue = load("ack-without-fence")
    found = explore(
        queue, SCENARIOS["stale-ack"], Pct(4, seed=5), budget=Budget(seconds=None, schedules=500)
    )

    least = shrink(queue, SCENARIOS["stale-ack"], found.violations[0])

    assert len(least.story.steps) <= STEPS_MAX
    assert sum(is_fault(label) for _, label in least.outcome.choices) == 1
    assert least.promise == main_of(found.violations[0])


class _Cancels:
    """A queue whose cancel fails in one way, or in another."""

    def __init__(self) -> None:
        self._queue: Any = load("killproof")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def open(self, place: Any, host: Any) -> Any:
        client = self._queue.open(place, host)

        def cancel(_job: object) -> None:
            raise ValueError("the real error")

        client.cancel = cancel
        return client


def test_an_error_is_shrunk_to_a_story_of_the_same_error_not_of_another() -> None:
    """Without the job that the operator looks up, his look-up would fail instead."""

    def looks_up(me: Actor) -> None:
        me.cancel(me.ids["job-1"])

    scenario = replace(
        SCENARIOS["cancel-against-claim"], actors={"operator": looks_up, "w1": works}
    )
    found = explore(_Cancels(), scenario, Dfs(0))

    least = shrink(_Cancels(), scenario, found.violations[0])

    assert "operator met ValueError: the real error" in least.story.text()
    assert "KeyError" not in least.story.text()
    assert [job.id for job in least.scenario.jobs] == ["job-1"]


def test_an_operator_of_the_harness_does_nothing_to_a_job_that_was_left_out() -> None:
    for name in ("cancel-against-claim", "replay"):
        assert not run_one(load("killproof"), replace(SCENARIOS[name], jobs=())).is_violation


def test_shrinking_the_same_schedule_twice_gives_the_same_token() -> None:
    queue, scenario = load("checks-then-claims"), SCENARIOS["claim"]
    found = explore(queue, scenario, Dfs(1), budget=Budget(seconds=None, schedules=FOUND_MAX))

    first, second = (shrink(queue, scenario, found.violations[0]) for _ in range(2))

    assert first.token == second.token
    assert first.story == second.story


@pytest.mark.parametrize("target", NAIVE)
def test_a_token_tells_the_same_story_again(target: str) -> None:
    told = retell(shrunk(target).token)

    assert told.is_same
    assert told.story.steps == shrunk(target).story.steps
    assert {v.story for v in told.story.violations} == {
        v.story for v in shrunk(target).story.violations
    }


def test_a_token_whose_target_has_changed_is_said_to_tell_another_story() -> None:
    token = Token.of_text(shrunk("ack-without-fence").token)

    told = retell(replace(token, target="minimal").text())

    assert not told.is_same
    assert not told.story.violations


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ks1-", "no whole schedule"),
        ("ks1-abc", "no whole schedule"),
        ("ks1-%%%", "no whole schedule"),
        ("kp1-abc", "no whole schedule"),
    ],
)
def test_a_word_that_is_no_token_is_refused_with_what_to_do(text: str, says: str) -> None:
    with pytest.raises(TokenInvalid, match=says):
        Token.of_text(text)


def test_a_token_of_a_scenario_that_has_gone_is_refused() -> None:
    token = Token.of_text(shrunk("ack-without-fence").token)
    other = replace(token, cut=replace(token.cut, actors=("w1", "nobody")))

    with pytest.raises(TokenInvalid, match="no 'nobody' any more"):
        retell(other.text())
    with pytest.raises(TokenInvalid, match="'gone' of the token"):
        retell(replace(token, scenario="gone").text())


def test_a_cut_of_everything_is_the_scenario_itself() -> None:
    for scenario in SCENARIOS.values():
        assert Cut.of(scenario).apply(scenario) == scenario


def test_two_workers_that_do_the_same_thing_to_their_own_memory_are_checked_together() -> None:
    sent: list[int] = []

    def worker(me: Actor) -> None:
        if lease := me.claim():
            with me.handling(lease):
                sent.append(lease.job.id)
            me.ack(lease)

    def nothing_twice() -> None:
        assert len(sent) == len(set(sent)), f"sent twice: {sent}"

    def run(passes: int) -> int:
        both = [worker, worker]
        return check(
            both, bound=1, passes=passes, before=sent.clear, always=nothing_twice
        ).schedules

    assert run(passes=0) > 1
    with pytest.raises(AssertionError, match=r"(?s)0\.55 s pass.*sent twice: \[1, 1\].*replay="):
        run(passes=1)


def test_a_crash_between_two_changes_of_a_handler_s_own_memory_is_played() -> None:
    """And `always` is asked whoever has died: the last actor, here, and in another case waits."""
    bank = {"debit": 0, "credit": 0}

    def empty() -> None:
        bank.update(debit=0, credit=0)

    def transfers(me: Actor) -> None:
        if lease := me.claim():
            with me.handling(lease):
                me.point()
                bank["debit"] += 1
                me.point()
                bank["credit"] += 1
                me.point()
            me.ack(lease)

    def waits(me: Actor) -> None:
        bank["debit"] += 1
        me.wait_for("never")

    def nothing_is_half_done() -> None:
        assert bank["debit"] == bank["credit"], f"half a transfer: {bank}"

    with pytest.raises(AssertionError, match="always met AssertionError: half a transfer"):
        check([transfers], crashes=1, bound=0, before=empty, always=nothing_is_half_done)
    with pytest.raises(AssertionError, match="always met AssertionError: half a transfer"):
        check([waits], bound=0, before=empty, always=nothing_is_half_done)
    assert check([transfers], bound=0, before=empty, always=nothing_is_half_done).exhausted


def works(me: Actor) -> None:
    me.work()


def test_a_check_that_shows_nothing_is_no_success() -> None:
    def waits(me: Actor) -> None:
        me.wait_for("never")

    with pytest.raises(CheckUnknown, match="no schedule was played to its end"):
        check([works], seconds=0)
    with pytest.raises(CheckUnknown, match="in 1 of 1 schedules an actor waits for ever"):
        check([waits], partial=True)
    with pytest.raises(CheckUnknown, match="no actor did what a promise is about"):
        check([lambda me: me.point()], jobs=(), bound=0)


def test_a_check_that_ends_early_is_no_success_unless_that_is_enough() -> None:
    def run(*, partial: bool) -> Exploration:
        jobs = ("job-1", "job-2", "job-3", "job-4")
        return check([works] * 4, jobs=jobs, bound=3, seconds=0.01, partial=partial)

    with pytest.raises(CheckUnknown, match=r"were played, and not all of them: .* partial=True"):
        run(partial=False)
    found = run(partial=True)

    assert not found.exhausted
    assert found.schedules > 0


def test_a_crash_between_two_steps_in_a_handler_s_memory_is_played() -> None:
    """The queue sees nothing of the two, so a search of its states alone would leave it out."""
    account = {"debit": 0, "credit": 0}

    def transfer(me: Actor) -> None:
        if lease := me.claim():
            with me.handling(lease):
                me.point()
                account["debit"] += 1
                me.point()
                account["credit"] += 1
                me.point()
            me.ack(lease)

    def look(me: Actor) -> None:
        me.sleep(1)
        assert account["debit"] == account["credit"], "half a transfer"

    def clear() -> None:
        account.update(debit=0, credit=0)

    with pytest.raises(AssertionError, match="half a transfer"):
        check([transfer, look], bound=0, crashes=1, before=clear)


def test_one_schedule_of_a_check_is_played_again_by_its_name() -> None:
    def worker(me: Actor) -> None:
        if lease := me.claim():
            with me.handling(lease):
                pass
            me.ack(lease)

    assert check([worker], replay="-").schedules == 1
    with pytest.raises(AssertionError, match="that nobody expected"):
        check([worker, lambda me: me.ack(None)], replay="-")
    with pytest.raises(ValueError, match="at least one actor"):
        check([])
    with pytest.raises(CheckUnknown, match=r"'900b' can not be followed any more, only '-' of it"):
        check([worker, worker], replay="900b")


def test_a_coroutine_is_checked_as_a_function_is() -> None:
    ended: list[str] = []

    async def worker(me: Actor) -> None:
        if lease := me.claim():
            with me.handling(lease):
                pass
            me.ack(lease)
        ended.append(me.name)

    def both_ended() -> None:
        assert sorted(ended) == ["worker1", "worker2"]

    found = check([worker, worker], bound=0, before=ended.clear, always=both_ended)

    assert found.exhausted
    assert found.schedules >= 2


def test_a_crash_is_told_and_no_actor_of_ones_own_is_left_out() -> None:
    """The check asks for a worker that no crash can take, which no queue can promise."""
    done: list[str] = []

    def worker(me: Actor) -> None:
        me.work()
        done.append(me.name)

    def look(me: Actor) -> None:
        me.sleep(1)
        assert done, "the worker never came back"

    with pytest.raises(AssertionError, match=r"(?s)worker dies.*the worker never came back"):
        check([worker, look], bound=0, crashes=1, before=done.clear)


def test_a_scenario_without_jobs_has_a_story_too() -> None:
    scenario = Scenario(name="none", text="nobody is there", actors={"w1": lambda me: me.claim()})

    found = explore(load("killproof"), scenario, Dfs(0))

    assert found.exhausted
    assert not found.broken
