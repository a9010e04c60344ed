"""The runtime of the simulator on actors without a database: choices, time, faults, schedulers."""

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import combinations, pairwise
from math import comb

import pytest

from killproof_chaos.sim.runtime import ENDED, ENDS, START_NS, WALL_MS, Faults, Runtime, Scheduler
from killproof_chaos.sim.schedulers import (
    Choices,
    Dfs,
    Pct,
    Replay,
    Walk,
    choices_of,
    token_of,
)

Log = list[str]
Actors = Callable[[Runtime, Log], list[Callable[[], None]]]


def steppers(steps: int) -> Actors:
    """Return two actors that take so many steps each, with a point before each."""

    def make(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def actor(name: str) -> Callable[[], None]:
            def run() -> None:
                for _ in range(steps):
                    runtime.point()
                    log.append(name)

            return run

        return [actor("a"), actor("b")]

    return make


def play(
    runtime: Runtime, actors: Actors, scheduler: Scheduler
) -> Iterator[tuple[str, Choices, str]]:
    """Yield (steps in order, choices, how it stopped) of every run of the scheduler."""
    while scheduler.begin(runtime):
        log: Log = []
        runtime.reset()
        runtime.run(actors(runtime, log), scheduler)
        yield "".join(log), tuple(runtime.choices), runtime.stopped


def new_runtime(faults: Faults | None = None, actors: int = 2) -> Runtime:
    return Runtime(["one", "two", "three"][:actors], jump_ns=10**9, faults=faults or Faults())


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_search_without_bound_plays_every_interleaving_once(steps: int) -> None:
    """An actor with n points has n + 1 parts, and each order of the parts is one schedule."""
    runs = list(play(new_runtime(), steppers(steps), Dfs(99, prunes=False, reduces=False)))

    assert len(runs) == comb(2 * (steps + 1), steps + 1)
    assert len({choices for _, choices, _ in runs}) == len(runs)
    assert {log for log, _, _ in runs} == orders(steps)


@pytest.mark.parametrize(("bound", "count"), [(0, 2), (1, 8), (2, 26)])
def test_a_bound_allows_so_many_preemptions_and_no_more(bound: int, count: int) -> None:
    """Three points: four parts each; the count is that of the orders by a search of all 70."""
    runs = list(play(new_runtime(), steppers(3), Dfs(bound, prunes=False, reduces=False)))

    assert count == sum(preemptions(order) <= bound for order in orders(4))
    assert len(runs) == count


def orders(steps: int) -> set[str]:
    """Return every order of so many steps of `a` and as many of `b`."""
    places = range(2 * steps)
    return {
        "".join("a" if place in chosen else "b" for place in places)
        for chosen in map(set, combinations(places, steps))
    }


def preemptions(order: str) -> int:
    """Count the switches away from an actor that has parts left."""
    return sum(
        here != there and here in order[position + 1 :]
        for position, (here, there) in enumerate(pairwise(order))
    )


def test_schedules_with_fewer_deviations_come_first() -> None:
    runs = list(play(new_runtime(), steppers(3), Dfs(2, prunes=False, reduces=False)))

    # Which actor is the first costs nothing.
    sizes = [len(choices) - (choices[:1] == ((1, "b"),)) for _, choices, _ in runs]
    assert sizes == sorted(sizes)
    assert [log for log, _, _ in runs[:2]] == ["aaabbb", "bbbaaa"]


def test_equal_states_are_explored_once() -> None:
    """What an actor here does depends on nothing it is told, so the states of many orders merge.

    That no ending is lost where it does depend is shown by `test_sim_connection.py` and
    `test_sim_search.py`.
    """
    whole = list(play(new_runtime(), steppers(2), Dfs(99, prunes=False)))
    dfs = Dfs(99)
    pruned = list(play(new_runtime(), steppers(2), dfs))

    assert sum(stopped == "cut" for _, _, stopped in pruned) > 0
    assert len(pruned) < len(whole)
    assert dfs.states > 0


def test_a_replay_plays_what_was_chosen_and_passes_over_what_can_not_be() -> None:
    runs = list(play(new_runtime(), steppers(3), Walk(seed=3, runs=20)))
    for log, choices, _ in runs:
        ((again, same, _),) = play(new_runtime(), steppers(3), Replay(choices))
        assert (again, same) == (log, choices)

    ((log, choices, _),) = play(new_runtime(), steppers(2), Replay("2c,3b,99a"))
    assert (log, choices) == ("abba", ((3, "b"),))


def test_a_token_is_the_choices_and_says_what_is_wrong_with_it() -> None:
    choices = ((1, "b"), (7, "A"), (9, "+"), (11, "-c"), (12, "^"), (13, "_"), (15, "z30"))

    assert token_of(choices) == "1b,7A,9+,11-c,12^,13_,15z30"
    assert choices_of(token_of(choices)) == choices
    assert choices_of(token_of(())) == ()
    with pytest.raises(ValueError, match="'x9' is no choice such as 7b, 19A or"):
        choices_of("1b,x9")


def test_time_stands_still_while_somebody_can_run_and_then_jumps() -> None:
    seen: list[tuple[str, float]] = []

    def actors(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def sleeper(name: str, seconds: float) -> Callable[[], None]:
            def run() -> None:
                runtime.point()
                seen.append((name, 0.0))
                assert runtime.now_ns == START_NS
                runtime.sleep(seconds)
                seen.append((name, (runtime.now_ns - START_NS) / 1e9))

            return run

        return [sleeper("year", 31_536_000), sleeper("minute", 60)]

    runtime = new_runtime()
    ((_, _, stopped),) = play(runtime, actors, Replay())

    assert stopped == ""
    assert seen == [("year", 0.0), ("minute", 0.0), ("minute", 60.0), ("year", 31_536_000.0)]
    assert runtime.wall_ms == WALL_MS + 31_536_000_000


def test_time_passes_though_actors_could_run_only_where_the_budget_says_so() -> None:
    reached = {
        (token, runtime_ns)
        for token, runtime_ns in _clocks(Faults(passes=1, wall_steps=1), Dfs(0, prunes=False))
    }

    assert ("+", 10**9) in reached
    assert any("^" in token and "+" in token for token, _ in reached)
    assert all(token.count("+") <= 1 for token, _ in reached)
    assert {ns for token, ns in reached if "+" not in token} == {0}
    assert {token for token, _ in _clocks(Faults(), Dfs(0))} == {"", "b"}


def _clocks(faults: Faults, scheduler: Scheduler) -> Iterator[tuple[str, int]]:
    runtime = new_runtime(faults)
    for _, choices, _ in play(runtime, steppers(1), scheduler):
        yield "".join(label for _, label in choices), runtime.now_ns - START_NS


def test_a_crashed_actor_does_nothing_more_whatever_its_clean_up_code_tries() -> None:
    """Its `finally` comes to a point and catches everything: no step may come of it."""

    def actors(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def stubborn() -> None:
            try:
                runtime.point()
                log.append("a")
            finally:
                runtime.point()
                log.append("f")

        def other() -> None:
            runtime.point()
            log.append("b")

        return [stubborn, other]

    found = {
        log: choices
        for log, choices, _ in play(
            new_runtime(Faults(crashes=1)), actors, Dfs(2, prunes=False, reduces=False)
        )
    }

    crashed = [log for log, choices in found.items() if any(label == "A" for _, label in choices)]
    assert set(crashed) == {"b", "ab", "ba"}
    assert not any("f" in log for log in crashed)
    assert "afb" in found


def test_the_dead_tell_nobody_anything_and_start_nothing() -> None:
    """Clean-up code of a crashed process wakes its peers, and hands work to a thread."""

    def actors(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def untidy(*last_words: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                try:
                    runtime.point()
                    runtime.point()
                finally:
                    for word in last_words:
                        with suppress(BaseException):
                            word()

            return run

        def waiter() -> None:
            log.append("woken" if runtime.wait(10**9, signal="ready") else "late")

        def thread() -> None:
            log.append("thread")

        def other() -> None:
            for _ in range(3):
                runtime.point()

        waiting = runtime.roots[0]
        return [
            waiter,
            untidy(
                lambda: runtime.notify("ready"),
                lambda: runtime.wake(waiting),
                lambda: runtime.spawn(thread),
            ),
            other,
        ]

    runtime = new_runtime(Faults(crashes=1), 3)
    runs = list(play(runtime, actors, Dfs(1, prunes=False, reduces=False)))

    crashed = [log for log, choices, _ in runs if any(label == "B" for _, label in choices)]
    assert set(crashed) == {"late"}
    assert any("woken" in log and "thread" in log for log, _, _ in runs)


@pytest.mark.parametrize("error", [SystemExit(0), asyncio.CancelledError(), StopIteration()])
def test_whatever_an_actor_lets_pass_ends_its_process_and_never_ours(error: BaseException) -> None:
    def actors(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def leaver() -> None:
            runtime.point()
            raise error

        def other() -> None:
            runtime.point()
            log.append("b")

        return [leaver, other]

    runtime = new_runtime()
    ((log, _, stopped),) = play(runtime, actors, Replay())

    assert (log, stopped) == ("b", "")
    assert [text.partition(":")[0] for _, text in runtime.errors] == [type(error).__name__]


def test_a_crash_of_a_process_can_follow_each_deed_of_its_threads() -> None:
    """What a thread has put on record or told others is a deed of the process that may die."""

    def actors(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def parent() -> None:
            def thread() -> None:
                for number in range(2):
                    runtime.point()
                    runtime.record("effects/1.jsonl", {"what": "effect", "number": number}, ENDS)
                    log.append(str(number))

            runtime.spawn(thread)
            runtime.sleep(1)

        return [parent]

    def ends(scheduler: Dfs) -> set[str]:
        return {log for log, _, _ in play(new_runtime(Faults(crashes=1), 1), actors, scheduler)}

    assert ends(Dfs(0)) == ends(Dfs(0, prunes=False, reduces=False)) == {"", "0", "01"}


def test_what_threads_tell_each_other_in_memory_is_searched_whole() -> None:
    """A lost update between two threads of a process, and between actors that say they share."""

    def update(runtime: Runtime, log: Log) -> Callable[[], None]:
        def run() -> None:
            count = len(log)
            runtime.point()
            log[:] = ["x"] * (count + 1)
            runtime.point()

        return run

    def threads(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def parent() -> None:
            for _ in range(2):
                runtime.spawn(update(runtime, log))

        return [parent]

    def peers(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        return [update(runtime, log), update(runtime, log)]

    shared = Runtime(["one", "two"], jump_ns=10**9, faults=Faults(), shares_memory=True)
    for runtime, actors in ((new_runtime(actors=1), threads), (shared, peers)):
        whole = [log for log, _, _ in play(runtime, actors, Dfs(2, prunes=False, reduces=False))]
        searched = [log for log, _, _ in play(runtime, actors, Dfs(2))]

        assert sorted(searched) == sorted(whole)
        assert set(whole) == {"x", "xx"}


def test_a_switch_after_a_fault_in_a_transaction_is_another_than_one_before_it() -> None:
    """The writer sees that its peer lives; the peer dies; a third looks before the writer is done.

    The look is to come after the death and before the end of the transaction.
    """

    def actors(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def is_alive() -> str:
            found = "d" if runtime.roots[1].state == ENDED else "a"
            runtime.death_mark += 1
            runtime.observe(found)
            return found

        def writer() -> None:
            runtime.point()
            runtime.life().inside = 0
            for _ in range(2):
                runtime.point()
            found = is_alive()
            runtime.point()
            runtime.point()
            runtime.life().inside = None
            log.append(f"writer {found},")

        def peer() -> None:
            runtime.wait(10**9)

        def third() -> None:
            log.append(f"third {is_alive()},")

        return [writer, peer, third]

    def ends(scheduler: Dfs) -> set[str]:
        runtime = new_runtime(Faults(crashes=1), 3)
        return {log for log, _, _ in play(runtime, actors, scheduler)}

    whole = ends(Dfs(2, prunes=False, reduces=False))

    assert "third d,writer a," in whole
    assert ends(Dfs(2, prunes=False)) == whole


def test_more_actors_than_letters_are_refused() -> None:
    with pytest.raises(ValueError, match="26 actors: a scenario has 25 at most"):
        Runtime([str(number) for number in range(26)], jump_ns=1, faults=Faults())


def test_a_lost_wake_up_leaves_a_sleeper_that_has_no_time_limit_for_ever() -> None:
    def actors(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def waiter() -> None:
            log.append("woken" if runtime.wait(None, signal="ready") else "late")

        def caller() -> None:
            runtime.point()
            runtime.notify("ready")

        return [waiter, caller]

    ends = {(log, stopped) for log, _, stopped in play(new_runtime(), actors, Dfs(0))}
    lossy = {
        (log, stopped) for log, _, stopped in play(new_runtime(Faults(lost=1)), actors, Dfs(0))
    }

    # Whoever calls before anybody waits is not heard: the race that a lost wake-up is, too.
    assert ends == {("woken", ""), ("", "hung")}
    assert {choices for _, choices, _ in play(new_runtime(Faults(lost=1)), actors, Dfs(0))} > {()}
    assert ("", "hung") in lossy


def test_an_exception_that_nobody_expects_ends_its_process_alone() -> None:
    def actors(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def wrong() -> None:
            runtime.point()
            raise KeyError("surprise")

        def right() -> None:
            runtime.point()
            log.append("done")

        return [wrong, right]

    runtime = new_runtime()
    ((log, _, _),) = play(runtime, actors, Replay())

    assert log == "done"
    assert runtime.errors == [("one", "KeyError: 'surprise'")]


def test_a_run_that_never_ends_is_stopped() -> None:
    def actors(runtime: Runtime, log: Log) -> list[Callable[[], None]]:
        def loop() -> None:
            while True:
                runtime.point()

        return [loop, loop]

    ((_, _, stopped),) = play(new_runtime(), actors, Replay())

    assert stopped == "steps"


def test_a_walk_takes_every_option_equally_often() -> None:
    runs = list(play(new_runtime(), steppers(1), Walk(seed=1, runs=4_000)))

    first = Counter(choices[:1] == ((1, "b"),) for _, choices, _ in runs)
    assert abs(first[True] - 2_000) < 150, first


def test_pct_finds_an_order_of_two_events_as_often_as_its_bound_promises() -> None:
    """Depth 2: `b` right in the middle of `aaa`, in at least 1 / (n * k) of the runs.

    k is 20 here though a run has 8 steps: the scheduler draws the moments of at least so many.
    """
    runtime = new_runtime()
    runs = list(play(runtime, steppers(3), Pct(2, seed=5, runs=2_000)))

    hits = sum(log == "aabbba" for log, _, _ in runs)
    assert hits / len(runs) >= 1 / (2 * 20)
    assert {log for log, _, _ in runs} == {
        *("aaabbb", "abbbaa", "aabbba", "bbbaaa", "baaabb", "bbaaab")
    }, "one change of priority: at most one actor is cut in two"


def test_random_schedules_are_the_same_for_the_same_seed_alone() -> None:
    def logs(seed: int, scheduler: type[Pct] | type[Walk]) -> list[Choices]:
        made = scheduler(seed=seed, runs=50)
        return [choices for _, choices, _ in play(new_runtime(), steppers(3), made)]

    for scheduler in (Pct, Walk):
        assert logs(7, scheduler) == logs(7, scheduler)
        assert logs(7, scheduler) != logs(8, scheduler)


def test_what_an_actor_keeps_in_a_context_variable_ends_with_its_run() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    seen: list[int] = []

    def keep() -> None:
        seen.append(variable.get())
        variable.set(7)

    runtime = new_runtime(actors=1)
    for _ in range(3):
        runtime.reset()
        runtime.run([keep], Replay())

    assert seen == [0, 0, 0]
    assert variable.get() == 0
