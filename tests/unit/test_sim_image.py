"""The file of a simulation is the same at the beginning of every schedule, whatever was done."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from killproof_chaos import memory
from killproof_chaos.sim import Actor, Pct, Replay, Scenario, Stage, Walk
from killproof_chaos.sim.image import Image
from killproof_chaos.sim.scenarios import CLAIM, COMPLETING, SCENARIOS, STALE_ACK
from killproof_chaos.targets import load

Run = Callable[[sqlite3.Connection], Any]


@pytest.fixture
def place() -> Iterator[Path]:
    with memory.lent("test") as folder:
        yield folder


def opened(path: Path) -> sqlite3.Connection:
    found = sqlite3.connect(path, isolation_level=None)
    found.execute("PRAGMA journal_mode = WAL").fetchall()
    return found


def text_of(database: sqlite3.Connection) -> list[str]:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return [*database.iterdump(), f"version {version}"]


def sql(*statements: str) -> Run:
    def run(database: sqlite3.Connection) -> None:
        for statement in statements:
            database.execute(statement).fetchall()

    return run


CHANGES: dict[str, Run] = {
    "rows": sql("INSERT INTO a VALUES (2)", "DELETE FROM a WHERE x = 1"),
    "many pages": sql(
        "WITH RECURSIVE n(i) AS (SELECT 3 UNION ALL SELECT i + 1 FROM n WHERE i < 9000) "
        "INSERT INTO a SELECT i FROM n"
    ),
    "a table": sql("CREATE TABLE b (y)", "INSERT INTO b VALUES (1)"),
    "no table": sql("DROP TABLE a"),
    "a trigger": sql("CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM a; END"),
    "a setting of the file": sql("PRAGMA user_version = 7"),
    "statistics": sql("ANALYZE"),
    "a checkpoint": sql("INSERT INTO a VALUES (2)", "PRAGMA wal_checkpoint(PASSIVE)"),
    "a log begun anew": sql("INSERT INTO a VALUES (2)", "PRAGMA wal_checkpoint(TRUNCATE)"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_was_committed_is_taken_back_and_no_connection_remembers_it(
    name: str, place: Path
) -> None:
    path, change = place / "file.db", CHANGES[name]
    with closing(opened(path)) as own, closing(opened(path)) as one, closing(opened(path)) as two:
        sql("CREATE TABLE a (x INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1)")(own)
        with closing(Image(own, path)) as image:
            first = [text_of(each) for each in (own, one, two)]
            pages = own.serialize()
            for writer, reader in ((one, two), (two, one)) * 2:
                change(writer)
                assert text_of(reader) == text_of(writer)
                image.put_back()

                assert [text_of(each) for each in (own, one, two)] == first
                assert image.forgets_log
                # A checkpoint writes to the file, and what takes that back counts as a change.
                assert own.serialize() == pages or name in ("a checkpoint", "a log begun anew")


def test_what_two_schedules_write_to_one_place_is_never_taken_for_the_other(place: Path) -> None:
    path = place / "file.db"
    with closing(opened(path)) as own, closing(opened(path)) as one, closing(opened(path)) as two:
        sql("CREATE TABLE a (x)")(own)
        with closing(Image(own, path)) as image:
            for number in range(300):
                writer, reader = (one, two) if number % 3 else (two, one)
                writer.execute("INSERT INTO a VALUES (?)", (number,))

                assert reader.execute("SELECT x FROM a").fetchall() == [(number,)]
                image.put_back()


def test_a_file_without_a_log_is_put_back_as_well(place: Path) -> None:
    path = place / "file.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as own:
        sql("CREATE TABLE a (x)", "INSERT INTO a VALUES (1)")(own)
        with closing(Image(own, path)) as image:
            first = text_of(own)
            sql("INSERT INTO a VALUES (2)", "CREATE TABLE b (y)")(own)
            image.put_back()

            assert not image.forgets_log
            assert text_of(own) == first


@pytest.mark.parametrize("name", ["killproof", "minimal"])
@pytest.mark.parametrize("race", [CLAIM, STALE_ACK, COMPLETING], ids=lambda race: str(race.name))
def test_each_schedule_begins_with_the_same_bytes(name: str, race: Scenario) -> None:
    if not race.needs <= {"enqueue", "claim", "ack"} and name == "minimal":
        race = SCENARIOS["unique-key"]
    with Stage(load(name), race) as stage:
        first, schedulers = stage.database.serialize(), (Walk(seed=3, runs=12), Pct(3, runs=12))
        for scheduler in schedulers:
            while stage.play(scheduler) is not None:
                stage._put_back()
                assert stage.database.serialize() == first


def test_a_table_that_a_schedule_makes_is_new_in_the_next() -> None:
    found: list[object] = []

    def make(me: Actor) -> None:
        database = me.client.database
        # Each time on other pages, and with the same number of the schema.
        names = ("extra", "other") if len(found) % 2 else ("other", "extra")
        with database.write("enqueue") as tx:
            for name in names:
                tx.execute(f"CREATE TABLE {name} (x)")
        with database.write("enqueue") as tx:
            tx.execute("INSERT INTO extra VALUES (?)", (len(found),))

    def look(me: Actor) -> None:
        found.append([row for (row,) in me.client.database.peek("SELECT x FROM extra")])

    race = Scenario(
        name="makes", text="one makes a table", actors={"a": make, "b": look}, shares_memory=True
    )
    with Stage(load("killproof"), race) as stage:
        for _ in range(4):
            outcome = stage.play(Replay())
            assert outcome is not None
            assert not outcome.is_violation

    assert found == [[0], [1], [2], [3]]


def test_a_query_that_an_actor_keeps_open_ends_with_its_schedule() -> None:
    kept: list[Any] = []
    found: list[object] = []

    def keep(me: Actor) -> None:
        connection = me.client.database._handle().connection
        if not kept:
            kept.append(connection.execute("SELECT id FROM job"))
            kept[0].fetchone()
        else:
            me.sleep(1)
            found.append(connection.execute("SELECT state FROM job WHERE id = 1").fetchone())

    def other(me: Actor) -> None:
        me.work()

    race = Scenario(
        name="keeps",
        text="one keeps a query while another works",
        actors={"a": keep, "b": other},
        jobs=CLAIM.jobs,
        shares_memory=True,
    )
    with Stage(load("killproof"), race) as stage:
        for _ in range(3):
            stage.play(Replay())

    assert found == [("succeeded",), ("succeeded",)]
