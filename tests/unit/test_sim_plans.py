"""Which statements walk through all jobs, as SQLite itself would go about them."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from killproof_chaos.sim.explore import Budget, explore
from killproof_chaos.sim.plans import scans
from killproof_chaos.sim.scenarios import SCENARIOS
from killproof_chaos.sim.schedulers import Dfs
from killproof_chaos.targets import load
from killproof_evidence.judge import PROPERTIES

SCHEMA = """
    CREATE TABLE job (id INTEGER PRIMARY KEY, state TEXT, due INTEGER, kind TEXT);
    CREATE TABLE wanted (kind TEXT);
    CREATE INDEX job_due ON job (due) WHERE state = 'available';
    CREATE INDEX job_kind ON job (kind, due);"""


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        yield db


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM job WHERE state = 'available' ORDER BY due LIMIT 1",
        "UPDATE job SET state = ? WHERE id = ?",
        "SELECT count(*) FROM wanted",
        # Few are sorted: one job for each kind that is wanted.
        "SELECT job.* FROM wanted JOIN job ON job.id = (SELECT id FROM job"
        " WHERE kind = wanted.kind ORDER BY due LIMIT 1) ORDER BY job.due LIMIT 1",
        "COMMIT",
    ],
)
def test_what_an_index_answers_walks_through_nothing(
    database: sqlite3.Connection, sql: str
) -> None:
    values = (1,) * sql.count("?")

    assert list(scans(database, "job", {("claim", sql): values})) == []


@pytest.mark.parametrize(
    ("sql", "how"),
    [
        ("SELECT id FROM job WHERE state = ? LIMIT 1", "claim walks through all jobs"),
        ("SELECT id FROM job WHERE kind = ? ORDER BY state", "claim sorts all jobs that it finds"),
        ("SELECT id FROM job ORDER BY state", "claim walks through all jobs"),
        ("SELECT j.id FROM job AS j WHERE j.state = ?", "claim walks through all jobs"),
        ('SELECT id FROM "job" j ORDER BY j.kind, j.state', "claim walks through all jobs"),
        ("SELECT count(*) FROM job WHERE state = 'available'", "claim walks through all jobs"),
    ],
)
def test_what_grows_with_the_jobs_is_told_with_its_statement(
    database: sqlite3.Connection, sql: str, how: str
) -> None:
    values = ("x",) * sql.count("?")

    assert list(scans(database, "job", {("claim", sql): values})) == [f"{how}: {sql}"]


def test_what_is_asked_outside_of_a_jobs_life_may_look_at_all(database: sqlite3.Connection) -> None:
    sql = "SELECT state, count(*) FROM job GROUP BY state ORDER BY 2"

    assert list(scans(database, "job", {("", sql): ()})) == []


def test_many_rows_at_once_are_gone_about_as_the_first(database: sqlite3.Connection) -> None:
    sql = "UPDATE job SET state = 'x' WHERE state = ?"

    (walk,) = scans(database, "job", {("ack", sql): [(1,), (2,)]})

    assert walk == f"ack walks through all jobs: {sql}"


def test_what_was_met_outside_of_a_jobs_life_first_is_looked_at_in_it(
    database: sqlite3.Connection,
) -> None:
    sql = "SELECT id FROM job WHERE state = 'x'"

    (walk,) = scans(database, "job", {("", sql): (), ("claim", sql): ()})

    assert walk == f"claim walks through all jobs: {sql}"


@pytest.mark.parametrize(
    ("name", "broken"), [("killproof", set()), ("minimal", set()), ("claim-scans", {"P20"})]
)
def test_the_life_of_a_job_is_judged_by_the_plans_of_its_statements(
    name: str, broken: set[str]
) -> None:
    found = explore(load(name), SCENARIOS["backlog"], Dfs(0), budget=Budget(seconds=None))

    assert found.broken == broken
    assert ("P20" in found.passed) is not bool(broken)


def test_a_promise_that_a_scenario_judges_names_this_engine() -> None:
    judged = {number for scenario in SCENARIOS.values() for number in scenario.checks}
    judged |= {"P20" for scenario in SCENARIOS.values() if scenario.plans}
    named = {of.number for of in PROPERTIES if "sim" in (*of.engines, *of.told_by)}

    assert {"P20", "P23"} <= judged <= named
