"""The simulator on whole queues: what it finds, what it cuts, and that it repeats itself."""

import os
import subprocess
import sys
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

import pytest

from killproof_chaos.gallery import adapter
from killproof_chaos.sim import (
    Actor,
    Budget,
    Dfs,
    Faults,
    Outcome,
    Pct,
    Replay,
    Scenario,
    Stage,
    Walk,
    explore,
    explore_stage,
    run_one,
)
from killproof_chaos.sim.runtime import Scheduler
from killproof_chaos.sim.scenarios import CLAIM, COMPLETING, STALE_ACK, UNIQUE_KEY
from killproof_chaos.targets import load
from killproof_chaos.workload import Job
from killproof_evidence.judge import judge

ROOT = Path(__file__).resolve().parents[2]
#: Which race shows which broken queue, and within how many schedules of the search.
RACES = [
    ("checks-then-claims", CLAIM, {"P4", "P6"}),
    ("reads-then-writes", UNIQUE_KEY, {"P16"}),
    ("checks-then-inserts", UNIQUE_KEY, {"P12"}),
    ("ack-without-fence", STALE_ACK, {"P5"}),
]
SCHEDULES_MAX = 1_500


@pytest.mark.parametrize(("name", "race", "promises"), RACES, ids=[name for name, _, _ in RACES])
def test_a_broken_queue_is_found_and_its_token_shows_it_again(
    name: str, race: Scenario, promises: AbstractSet[str]
) -> None:
    found = explore(load(name), race, Dfs(2), budget=Budget(schedules=SCHEDULES_MAX))

    assert found.violating == 1
    assert found.broken & promises
    (outcome,) = found.violations
    again = run_one(load(name), race, Replay(outcome.token))
    assert again.is_violation
    assert again.text() == outcome.text()


def test_each_queue_that_only_a_schedule_breaks_has_its_race_here() -> None:
    intended = {fault.name for fault, _ in adapter.QUEUES if fault.engine == "sim"}

    assert intended <= {name for name, _, _ in RACES}


def test_the_control_and_killproof_are_clean_in_the_same_races() -> None:
    for name in ("minimal", "killproof"):
        for race in (CLAIM, UNIQUE_KEY):
            found = explore(load(name), race, Dfs(2), budget=Budget(seconds=None))

            assert (found.exhausted, found.level, found.broken) == (True, 2, set()), found
            assert found.hung == 0
            assert {"P1", "P2", "P7", "P14", "P16", "P17"} <= found.passed


def evidence_of(stage: Stage, scheduler: Scheduler) -> tuple[set[int], set[str], int]:
    """Return the different pieces of evidence, the violations in words, and the runs played."""
    evidence, violations, runs = set(), set(), 0
    while (outcome := stage.play(scheduler)) is not None:
        runs += 1
        if outcome.verdict is not None:
            evidence.add(outcome.evidence)
            violations.add(str(sorted(str(v) for v in outcome.verdict.violations)))
    return evidence, violations, runs


ONE_CRASH = replace(
    COMPLETING, faults=Faults(crashes=1), actors=dict(list(COMPLETING.actors.items())[:2])
)


@pytest.mark.parametrize(
    ("name", "race", "bound"),
    [
        ("killproof", CLAIM, 2),
        ("minimal", UNIQUE_KEY, 1),
        ("checks-then-claims", CLAIM, 1),
        ("reads-then-writes", UNIQUE_KEY, 1),
        ("killproof", ONE_CRASH, 0),
        ("ack-without-fence", replace(STALE_ACK, heals=False), 0),
    ],
    ids=lambda value: value.name if isinstance(value, Scenario) else str(value),
)
def test_what_is_cut_or_left_out_shows_nothing_that_the_full_search_does_not(
    name: str, race: Scenario, bound: int
) -> None:
    """Equal states once, and no choice without a difference: the same evidence, far fewer runs."""
    with Stage(load(name), race) as stage:
        whole = evidence_of(stage, Dfs(bound, prunes=False, reduces=False))
        pruned = evidence_of(stage, Dfs(bound, reduces=False))
        reduced = evidence_of(stage, Dfs(bound, prunes=False))
        both = evidence_of(stage, Dfs(bound))

    assert pruned[:2] == reduced[:2] == both[:2] == whole[:2]
    assert both[2] <= pruned[2] <= whole[2]
    assert both[2] < whole[2] or name == "reads-then-writes"


SCHEDULERS: list[Scheduler] = [Replay(), Pct(3, seed=4, runs=1), Walk(seed=4, runs=1)]


@pytest.mark.parametrize("name", ["killproof", "minimal"])
@pytest.mark.parametrize("race", [CLAIM, STALE_ACK, COMPLETING], ids=lambda race: str(race.name))
def test_a_schedule_gives_the_same_trace_on_a_new_stage_and_on_a_used_one(
    name: str, race: Scenario
) -> None:
    if name == "minimal" and race is COMPLETING:
        race = replace(race, jobs=tuple(replace(job, sink="log") for job in race.jobs))
    with Stage(load(name), race) as stage:
        explore_stage(stage, Walk(seed=9, runs=20), budget=Budget(violations=None))
        used: list[Outcome | None] = [
            stage.play(Pct(3, seed=seed, runs=1), keeps_trace=True) for seed in range(3)
        ]

    for seed, outcome in enumerate(used):
        assert outcome is not None
        fresh = run_one(load(name), race, Pct(3, seed=seed, runs=1))
        assert fresh.text() == outcome.text()
        assert fresh.finally_rows == outcome.finally_rows
        assert [record for _, record in fresh.events] == [record for _, record in outcome.events]


PRINT = """
from killproof_chaos.sim import Budget, Dfs, Pct, explore, run_one
from killproof_chaos.sim.scenarios import COMPLETING, STALE_ACK
from killproof_chaos.targets import load
for seed in range(3):
    print(run_one(load("killproof"), COMPLETING, Pct(3, seed=seed, runs=1)).text())
found = explore(load("ack-without-fence"), STALE_ACK, Dfs(1), budget=Budget(schedules=700))
print(found.schedules, found.pruned, found.distinct, found.states, found.violations[0].token)
"""


def test_no_order_of_hashes_no_process_and_no_clock_shows_in_a_run() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", PRINT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for seed in ("1", "12345")
    ]

    assert runs[0] == runs[1]
    assert len(runs[0].splitlines()) > 60


def test_a_store_that_a_schedule_left_behind_is_judged_alike(place: Path) -> None:
    with Stage(load("ack-without-fence"), STALE_ACK) as stage:
        found = explore_stage(stage, Dfs(2), budget=Budget(schedules=SCHEDULES_MAX))
        (outcome,) = found.violations
        store = stage.write_store(place / "store", outcome)

    verdict = judge(store)
    assert verdict.verdict == "violated"
    broken = {n for n, p in verdict.record["properties"].items() if p["verdict"] == "violated"}
    assert broken == found.broken
    assert verdict.record["properties"]["P5"]["witnesses"][0]["lines"]


def test_a_stalled_queue_is_healed_before_it_is_judged() -> None:
    """Nobody takes the job in the race itself; a year of backoff costs nothing."""

    def fail(me: Actor) -> None:
        me.work()

    race = Scenario(
        name="backoff",
        text="a job fails three times",
        actors={"w1": fail},
        jobs=(Job(id="job-1", kind="report", script=("raise", "raise", "raise", "ok")),),
    )
    outcome = run_one(load("killproof"), race)

    assert outcome.verdict is not None
    assert not outcome.verdict.violations
    assert {"P9", "P17"} <= outcome.verdict.passed
    assert outcome.finally_rows[0]["state"] == "succeeded"


@pytest.mark.parametrize("name", ["killproof", "minimal"])
def test_sync_points_are_points_where_a_scenario_asks_for_them(name: str) -> None:
    plain = run_one(load(name), CLAIM)
    stepped = run_one(load(name), replace(CLAIM, syncs=True))

    assert stepped.steps >= plain.steps + 12
    assert stepped.finally_rows == plain.finally_rows
    assert run_one(load(name), CLAIM).text() == plain.text(), "the hook is given back"


def test_a_target_without_a_host_seam_is_refused_in_one_line() -> None:
    class Bare:
        name, audit = "bare", None

    with pytest.raises(ValueError, match="'bare' has no open"):
        Stage(Bare(), CLAIM)
