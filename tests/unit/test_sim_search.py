"""The simulator on whole queues: what it finds, what it cuts, and that it repeats itself."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

import pytest

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
    Unrepeatable,
    Walk,
    explore,
    explore_stage,
    run_one,
)
from killproof_chaos.sim.runtime import Scheduler
from killproof_chaos.sim.scenarios import (
    CLAIM,
    COMPLETING,
    SCENARIOS,
    STALE_ACK,
    UNIQUE_KEY,
    core,
)
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
    found = explore(load(name), race, Dfs(2), budget=Budget(seconds=None, schedules=SCHEDULES_MAX))

    assert found.violating == 1
    assert found.broken & promises
    (outcome,) = found.violations
    again = run_one(load(name), race, Replay(outcome.token))
    assert again.is_violation
    assert again.text() == outcome.text()


def test_the_control_and_killproof_are_clean_in_the_same_races() -> None:
    for name in ("minimal", "killproof"):
        for race in (CLAIM, UNIQUE_KEY):
            found = explore(load(name), race, Dfs(2), budget=Budget(seconds=None))

            assert (found.exhausted, found.level, found.broken) == (True, 2, set()), found
            assert found.hung == 0
            assert {"P1", "P2", "P7", "P14", "P16", "P17"} <= found.passed


def shown_to_a_judge(stage: Stage) -> str:
    """Return all that a checker can read of the schedule that was played last.

    It is made of the records themselves and of nothing that the search compares. The number of a
    record in `t` is left out, and so is the order of what began in a row or ended in a row, for no
    checker asks for either.
    """
    groups: list[tuple[str, list[str]]] = []
    for at, (file, record) in enumerate(stage.runtime.events):
        times = {name: record[name] - at for name in ("t", "t_end") if name in record}
        word = record.get("type") or record.get("what") or record["fault"]
        moment = "begins" if word in ("invoke", "start") else "ends"
        if word in ("pass", "clock", "heal"):
            moment = f"alone {at}"
        if not groups or groups[-1][0] != moment:
            groups.append((moment, []))
        groups[-1][1].append(json.dumps([file, record | times], sort_keys=True))
    order = [sorted(lines) for _, lines in groups]
    records = stage._records()
    ends = [records[name] for name in ("audit.jsonl", "snapshot.jsonl", "effects/table.jsonl")]
    return json.dumps([order, ends, stage.runtime.errors], sort_keys=True)


def endings(stage: Stage, scheduler: Scheduler) -> tuple[dict[int, set[str]], int]:
    """Return what a judge is shown, by the key under which its verdict is kept; and the runs."""
    shown: dict[int, set[str]] = defaultdict(set)
    runs = 0
    while (outcome := stage.play(scheduler)) is not None:
        runs += 1
        if outcome.verdict is not None:
            shown[outcome.evidence].add(shown_to_a_judge(stage))
    return shown, runs


def one_fault_each() -> Iterator[tuple[str, Scenario, int]]:
    """Yield scenarios of the harness without preemptions, one kind of fault at a time.

    All of the queue's own calls, and of the capabilities the first in which somebody dies.
    """
    for race in (*core.SCENARIOS, SCENARIOS["mutex-lost"], SCENARIOS["diamond-lost"]):
        kinds = [name for name in ("crashes", "passes", "wall_steps") if getattr(race.faults, name)]
        for kind in kinds:
            yield "killproof", replace(race, faults=Faults(**{kind: 1})), 0


ONE_JOB = replace(CLAIM, jobs=CLAIM.jobs[:1], faults=Faults(passes=1))
SEARCHES = [
    *one_fault_each(),
    ("killproof", CLAIM, 1),
    ("checks-then-claims", ONE_JOB, 1),
    ("minimal", UNIQUE_KEY, 1),
    ("reads-then-writes", UNIQUE_KEY, 1),
    ("ack-without-fence", STALE_ACK, 0),
]


@pytest.mark.parametrize(
    ("name", "race", "bound"),
    SEARCHES,
    ids=lambda value: value.name if isinstance(value, Scenario) else str(value),
)
def test_what_is_cut_or_left_out_shows_a_judge_nothing_that_the_whole_search_does_not(
    name: str, race: Scenario, bound: int
) -> None:
    """Goal: no verdict is lost, neither by the search nor by keeping verdicts.

    Method: the whole tree is played. Schedules with one key show a judge the same, so one verdict
    does for them; and what is shown anywhere in the tree is shown in the part that is searched.
    """
    with Stage(load(name), replace(race, heals=False), remembers=False) as stage:
        whole, runs = endings(stage, Dfs(bound, prunes=False, reduces=False))
        cut, fewer = endings(stage, Dfs(bound))

    assert [key for key, shown in whole.items() if len(shown) > 1] == []
    assert set().union(*cut.values()) == set().union(*whole.values())
    assert fewer <= runs


@pytest.mark.parametrize("name", [name for name, _, _ in RACES])
def test_schedules_at_random_that_share_a_verdict_show_a_judge_the_same(name: str) -> None:
    race = replace(STALE_ACK, faults=Faults(crashes=1, passes=1, wall_steps=1), jobs=CLAIM.jobs)
    with Stage(load(name), race, remembers=False) as stage:
        # It asserts as well that schedules which end alike are healed alike.
        shown, runs = endings(stage, Walk(seed=11, runs=120))

    assert [key for key, found in shown.items() if len(found) > 1] == []
    assert 10 < len(shown) < runs


SCHEDULERS: list[Scheduler] = [Replay(), Pct(3, seed=4, runs=1), Walk(seed=4, runs=1)]


@pytest.mark.parametrize("name", ["killproof", "minimal"])
@pytest.mark.parametrize("race", [CLAIM, STALE_ACK, COMPLETING], ids=lambda race: str(race.name))
def test_a_schedule_gives_the_same_trace_on_a_new_stage_and_on_a_used_one(
    name: str, race: Scenario
) -> None:
    if name == "minimal" and race is COMPLETING:
        race = replace(race, jobs=tuple(replace(job, sink="log") for job in race.jobs))
    with Stage(load(name), race) as stage:
        explore_stage(stage, Walk(seed=9, runs=20), budget=Budget(seconds=None, violations=None))
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
budget = Budget(seconds=None, schedules=700)
found = explore(load("ack-without-fence"), STALE_ACK, Dfs(1), budget=budget)
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
        found = explore_stage(stage, Dfs(2), budget=Budget(seconds=None, schedules=SCHEDULES_MAX))
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


def test_a_target_that_does_not_repeat_itself_is_no_violation_and_no_pass() -> None:
    taken: list[int] = []

    def unsteady(me: Actor) -> None:
        taken.append(1)
        for _ in range(len(taken) % 3):
            me.point()
        me.claim()

    race = Scenario(
        name="unsteady", text="one changes its mind", actors={"a": unsteady, "b": unsteady}
    )

    with pytest.raises(Unrepeatable):
        explore(load("minimal"), race, Dfs(2, prunes=False, reduces=False))


def test_an_assertion_that_fails_in_a_target_is_its_error_and_not_the_explorer_s() -> None:
    def doubts(me: Actor) -> None:
        assert me.claim() is not None, "there was work"

    race = Scenario(
        name="doubts",
        text="two take one job",
        actors={"a": doubts, "b": doubts},
        jobs=CLAIM.jobs[:1],
    )

    assert explore(load("minimal"), race, Dfs(0)).broken == {"error"}


def test_a_stage_keeps_its_clock_when_another_of_the_same_queue_is_closed() -> None:
    with Stage(load("minimal"), STALE_ACK) as stage:
        alone = stage.play(Replay("9+"), keeps_trace=True)
        with Stage(load("minimal"), STALE_ACK) as other:
            other.play(Replay("9+"))
        again = stage.play(Replay("9+"), keeps_trace=True)

    assert alone is not None
    assert again is not None
    assert again.text() == alone.text()
