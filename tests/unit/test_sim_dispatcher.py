"""The dispatcher under the simulator: its own code, in the orders that a scheduler draws."""

import pytest

from killproof import Queue
from killproof_chaos.sim import Budget, Scenario, Walk, explore
from killproof_chaos.sim.scenarios import dispatcher
from killproof_chaos.targets import load


@pytest.mark.parametrize("race", dispatcher.SCENARIOS, ids=lambda race: str(race.name))
def test_no_order_of_a_dispatcher_and_a_worker_breaks_a_promise(race: Scenario) -> None:
    """Covers S1.8, S1.13."""
    found = explore(load("killproof"), race, Walk(seed=3, runs=30), budget=Budget(seconds=None))

    assert found.broken == set()
    assert found.schedules == 30
    assert {"P3", "P4", "P5", "P11", "P17"} <= found.passed


def test_a_dispatcher_on_a_queue_without_fences_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped past its leases, it would tell the outcome of a job that another has taken over."""
    unfenced = Queue.END.replace("AND fence = :fence AND owner = :worker", "")
    assert unfenced != Queue.END
    monkeypatch.setattr(Queue, "END", unfenced)
    found = explore(
        load("killproof"),
        dispatcher.DISPATCHER_LOST,
        Walk(seed=3, runs=2_000),
        budget=Budget(seconds=None),
    )

    assert "P5" in found.broken
