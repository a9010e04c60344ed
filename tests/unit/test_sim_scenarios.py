"""What a scenario may bring along: things in the file, promises, checks of its own."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace

import pytest

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
    run_one,
)
from killproof_chaos.sim.campaign import Options, chosen
from killproof_chaos.sim.scenarios import CLAIM, SCENARIOS, limits
from killproof_chaos.targets import load
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue


@pytest.mark.parametrize("race", limits.SCENARIOS, ids=lambda race: str(race.name))
def test_a_limit_is_kept_in_every_order_and_seen_to_break_where_nobody_has_set_it(
    race: Scenario,
) -> None:
    race = replace(race, faults=replace(race.faults, crashes=0))
    kept = explore(load("killproof"), race, Dfs(0), budget=Budget(seconds=None))
    unset = explore(
        load("killproof"), replace(race, prepare=None), Dfs(1), budget=Budget(seconds=None)
    )

    assert (kept.exhausted, kept.broken) == (True, set())
    assert "P22" in kept.passed
    assert unset.broken == {"P22"}


def test_a_claim_that_died_unheard_has_its_token_from_when_it_began() -> None:
    """It read its clock, a second passed, it committed and died: by its own clock that was long."""
    race = replace(SCENARIOS["rate"], faults=Faults(crashes=1, passes=1))
    verdict = run_one(load("killproof"), race, Replay("8+,11A")).verdict

    assert verdict is not None
    assert verdict.violations == ()
    assert "P22" in verdict.passed


def test_a_target_without_a_capability_is_not_asked_for_it() -> None:
    names, left_out = chosen(Options(target="minimal"), load("minimal"))

    assert "mutex" not in names
    assert left_out["mutex"] == "limits, transaction"
    assert set(chosen(Options(target="killproof"), load("killproof"))[0]) == set(SCENARIOS)


def test_what_a_scenario_prepares_is_there_again_before_each_schedule() -> None:
    seen: list[int] = []

    def prepare(me: Actor) -> None:
        with me.client.database.write("enqueue") as tx:
            tx.execute("CREATE TABLE mine (x)")
            tx.execute("INSERT INTO mine VALUES (7)")

    def take(me: Actor) -> None:
        with me.client.database.write("claim") as tx:
            seen.append(tx.change("DELETE FROM mine WHERE x = 7"))

    race = Scenario(
        name="mine",
        text="two take one",
        actors={"a": take, "b": take},
        prepare=prepare,
        shares_memory=True,
    )
    with Stage(load("killproof"), race) as stage:
        walk = Walk(seed=1, runs=5)
        while stage.play(walk) is not None:
            assert sorted(seen[-2:]) == [0, 1]

    assert len(seen) == 10


def test_a_check_of_the_file_is_judged_as_a_promise_and_told_in_its_words() -> None:
    def twice(database: sqlite3.Connection) -> Iterator[str]:
        for (job,) in database.execute("SELECT id FROM job WHERE deliveries > 0"):
            yield f"job {job} was delivered"

    broken = run_one(load("killproof"), replace(CLAIM, checks={"P23": twice})).verdict
    kept = run_one(load("killproof"), replace(CLAIM, checks={"P23": lambda _: ()})).verdict

    assert broken is not None
    assert kept is not None
    assert [(v.promise, v.story) for v in broken.violations] == [
        ("P23", "job 1 was delivered"),
        ("P23", "job 2 was delivered"),
    ]
    assert "P23" not in broken.passed
    assert "P23" in kept.passed


@pytest.mark.parametrize("name", ["LEASE_NS", "BACKOFF_MS"])
def test_a_wait_in_the_wrong_unit_is_a_stall_and_no_patience_hides_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = SCENARIOS["nack"] if name == "BACKOFF_MS" else CLAIM
    race = replace(race, faults=Faults(crashes=1))
    honest = explore(load("minimal"), race, Dfs(0), budget=Budget(seconds=None))

    monkeypatch.setattr(MinimalQueue, name, 1_000 * getattr(MinimalQueue, name))
    wrong = explore(load("minimal"), race, Dfs(0), budget=Budget(seconds=None))

    assert (honest.exhausted, honest.broken) == (True, set())
    assert wrong.broken == {"P17"}
    told = wrong.violations[0].verdict
    assert told is not None
    assert "nothing in the contract takes so long" in told.violations[-1].story


@pytest.mark.parametrize(
    ("name", "race", "promise"),
    [
        ("last-in-first-out", "claim", "P11"),
        ("priority-upside-down", "priorities", "P11"),
        ("delay-in-whole-seconds", "promote", "P10"),
        ("lease-never-renewed", "heartbeat", "P4"),
    ],
)
def test_jobs_have_waited_clocks_begin_between_seconds_and_leases_are_outlived(
    name: str, race: str, promise: str
) -> None:
    """Else no order is judged, what is cut off is nothing, and no heartbeat is needed."""
    found = explore(load(name), SCENARIOS[race], Dfs(1), budget=Budget(seconds=None))

    assert promise in found.broken


def test_the_control_keeps_dead_letters_whole_where_it_promises_that() -> None:
    found = explore(
        MinimalTarget("minimal", MinimalQueue, promises={"P13": True}),
        SCENARIOS["last-attempt"],
        Dfs(2),
        budget=Budget(seconds=None),
    )

    assert (found.exhausted, found.broken) == (True, set())
    assert "P13" in found.passed
