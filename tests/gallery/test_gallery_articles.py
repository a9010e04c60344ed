"""The queues of the source articles: what was measured of them is found, what they do right is not.

Each promises what its article claims. Played under every schedule up to a bound, so what is not
found here does not happen in these races.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from killproof_chaos.gallery import article_automation, article_dispatcher, article_workflow
from killproof_chaos.sim.explore import Budget, Exploration, explore
from killproof_chaos.sim.scenario import Actor, Scenario
from killproof_chaos.sim.scenarios import CLAIM, SCENARIOS
from killproof_chaos.sim.scenarios.core import job, work_once
from killproof_chaos.sim.schedulers import Dfs

KEPT = {"P1", "P2", "P3", "P4", "P7", "P14", "P16", "P17"}


def played(target: Any, race: Scenario, *, bound: int = 1, crashes: int = 0) -> Exploration:
    """Play every schedule up to the bound, however many of them break something."""
    faults = replace(race.faults, crashes=race.faults.crashes or crashes)
    found = explore(
        target,
        replace(race, faults=faults),
        Dfs(bound),
        budget=Budget(seconds=None, violations=None),
    )
    assert found.exhausted
    return found


def test_the_automation_queue_claims_right_and_its_requeue_loses_nothing() -> None:
    """Measured: no job doubled by 4 processes, none lost under kills, the file whole.

    Covers S0.36, S0.37, S0.48.
    """
    found = played(article_automation.requeueing, CLAIM, crashes=1)

    assert found.broken == set()
    assert found.passed >= KEPT


def test_the_loop_of_the_automation_queue_rescues_nobody() -> None:
    """Faults: F24.  Covers S0.52."""
    found = played(article_automation.target, CLAIM, crashes=1)

    assert found.broken == {"P17"}


@pytest.mark.parametrize(
    ("race", "broken"), [("stale-ack", {"P7"}), ("last-attempt", {"P8"})], ids=["F21", "F20"]
)
def test_where_the_automation_queue_requeues_nobody_counts_crashes_nor_asks_who_has_the_job(
    race: str, broken: set[str]
) -> None:
    # A second longer than the quarter of an hour: the article's times are cut to seconds.
    found = played(article_automation.requeueing, replace(SCENARIOS[race], jump=901.0), bound=2)

    assert found.broken == broken


def test_the_automation_queue_sorts_its_backlog_to_pick_one() -> None:
    """Faults: F54.  Covers S0.28, S0.30."""
    found = played(article_automation.target, SCENARIOS["backlog"])

    assert found.broken == {"P20"}


def test_two_dispatchers_run_one_task_and_lose_none() -> None:
    """Faults: F8.  Measured beside it: what was acknowledged is there, no task is invented."""
    found = played(article_dispatcher.target, CLAIM, bound=2)

    assert found.broken == {"P4", "P7"}
    assert found.passed >= {"P1", "P2", "P3", "P14", "P16", "P17"}


def test_a_task_of_a_dead_dispatcher_runs_for_ever() -> None:
    """Faults: F25.  Covers S1.48."""
    alone = replace(CLAIM, actors={"w1": work_once})
    found = played(article_dispatcher.target, alone, crashes=1)

    assert found.broken == {"P17"}


def test_the_workflow_queue_is_refused_its_lock_and_doubles_no_task() -> None:
    """Faults: F9.  Measured beside it: no task ran twice in any run."""
    found = played(article_workflow.target, CLAIM, bound=2)

    assert found.broken - {"error"} == {"P16"}
    assert found.passed >= KEPT - {"P16"}


def test_a_task_of_a_dead_worker_is_in_progress_for_ever() -> None:
    """Faults: F26."""
    alone = replace(CLAIM, actors={"w1": work_once})
    found = played(article_workflow.target, alone, crashes=1)

    assert found.broken == {"P17"}


def test_an_order_is_processed_in_the_transaction_that_completes_its_last_task() -> None:
    """Measured: right in all 12 runs.  Covers S2.29."""

    def start(me: Actor) -> None:
        vars(me.client)["_queue"].start("order", [job(1).payload(), job(2).payload()])

    def follows(database: sqlite3.Connection) -> Iterator[str]:
        rows = database.execute(STATES).fetchall()
        if rows != [("PROCESSED", 2)]:
            yield f"the order and the number of its completed tasks: {rows}"

    race = Scenario(
        name="order",
        text="two workers complete the two tasks of an order",
        actors={"w1": work_once, "w2": work_once},
        prepare=start,
        promises=frozenset({"P17"}),
        checks={"P23": follows},
    )
    found = played(article_workflow.target, race, bound=2)

    assert "P23" in found.passed
    assert "P23" not in found.broken


STATES = """
    SELECT status, (SELECT count(*) FROM order_tasks AS task
                     WHERE task.order_id = orders.order_id AND task.status = 'COMPLETED')
      FROM orders"""
