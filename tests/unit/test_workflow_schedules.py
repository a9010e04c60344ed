"""Every order in which two workers can go through a run, and what breaks without each guard."""

from dataclasses import replace

import pytest

from killproof import workflow_tables
from killproof_chaos.sim import Actor, Budget, Dfs, Scenario, explore
from killproof_chaos.sim.scenarios import workflow
from killproof_chaos.targets import load

(ENDED,) = (one for one in workflow_tables.CREATE if "TRIGGER workflow_step_ended" in one)


@pytest.mark.parametrize("race", workflow.SCENARIOS, ids=lambda race: str(race.name))
def test_a_run_is_whole_in_every_order(race: Scenario) -> None:
    """The search with crashes has more schedules than a test has time: reports/schedules.md."""
    race = replace(race, faults=replace(race.faults, crashes=0))
    found = explore(load("killproof"), race, Dfs(0), budget=Budget(seconds=None))

    assert (found.exhausted, found.broken) == (True, set())
    assert "P23" in found.passed


@pytest.mark.parametrize(
    ("guard", "instead"),
    [
        ("WHERE needs_job_id = NEW.id AND unmet = 0", "WHERE needs_job_id = NEW.id"),
        ("unmet = max(0, unmet - (", "unmet = max(0, unmet - 2 * ("),
        ("checked_ms = NEW.updated_ms", "finished_ms = finished_ms"),
        ("AND +state IN ('blocked', 'held')", "AND 0"),
    ],
    ids=["all needs", "each need once", "the run follows", "what needs a failed step"],
)
def test_without_a_guard_of_the_trigger_a_schedule_shows_it(guard: str, instead: str) -> None:
    """The second guard, which lets no step go before its needs, is gone as well."""
    assert guard in ENDED

    def start_without(me: Actor) -> None:
        workflow.start_diamond(me)
        with me.client.transaction() as tx:
            tx.change("DROP TRIGGER workflow_step_guard")
            tx.change("DROP TRIGGER workflow_step_ended")
            tx.change(ENDED.replace(guard, instead))

    race = workflow.DIAMOND_FAILED if "held" in guard else workflow.DIAMOND
    race = replace(race, prepare=start_without)
    broken = explore(load("killproof"), race, Dfs(1), budget=Budget(seconds=None)).broken
    assert "P23" in broken, broken
