"""What the simulator makes of SQLite's locks, commits and deaths, on actors of a few statements."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from killproof_chaos.sim.connection import Connection, _frozen
from killproof_chaos.sim.host import SimHost
from killproof_chaos.sim.runtime import START_NS, WALL_MS, Faults, Runtime, Scheduler
from killproof_chaos.sim.schedulers import Dfs, Replay

Script = Callable[[sqlite3.Connection, list[str]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one schedule ended."""

    rows: list[str]  #: of the table, as another connection reads them
    told: list[str]  #: what the actors came to know
    labels: str  #: of the choices
    errors: list[tuple[str, str]] = field(default_factory=list)
    elapsed_ns: int = 0


class Bench:
    """A file with one table, and one connection for each actor."""

    def __init__(self, path: Path, scripts: list[Script], faults: Faults | None = None) -> None:
        self._scripts = scripts
        self.runtime = Runtime(
            [f"actor{n}" for n, _ in enumerate(scripts)],
            jump_ns=10**9,
            faults=faults or Faults(),
        )
        self._own = sqlite3.connect(path, isolation_level=None)
        self._own.execute("PRAGMA journal_mode = wal").fetchall()
        self._own.execute("CREATE TABLE IF NOT EXISTS note (text TEXT NOT NULL)")
        self._hosts = [SimHost(self.runtime, root, {}, syncs=False) for root in self.runtime.roots]
        self._connections = [host.connect(path) for host in self._hosts]
        for connection in [*self._connections, self._own]:
            connection.execute("PRAGMA synchronous = off")  # No power is cut here.

    def play(self, scheduler: Scheduler) -> Iterator[Run]:
        runtime = self.runtime
        while scheduler.begin(runtime):
            told: list[str] = []
            runtime.quiet = True
            self._own.execute("DELETE FROM note")
            runtime.reset()
            runtime.run([self._body(n, told) for n in range(len(self._scripts))], scheduler)
            runtime.quiet = True
            for root in runtime.roots:
                for held in root.held:
                    held.drop()
            rows = [text for (text,) in self._own.execute("SELECT text FROM note ORDER BY rowid")]
            labels = "".join(label for _, label in runtime.choices)
            yield Run(
                rows=rows,
                told=told,
                labels=labels,
                errors=list(runtime.errors),
                elapsed_ns=runtime.now_ns - START_NS,
            )

    def close(self) -> None:
        for connection in [*self._connections, self._own]:
            connection.close()

    def _body(self, n: int, told: list[str]) -> Callable[[], None]:
        return lambda: self._scripts[n](self._connections[n], told)


def play(
    path: Path, scripts: list[Script], scheduler: Scheduler, faults: Faults | None = None
) -> list[Run]:
    with closing(Bench(path / "bench.db", scripts, faults)) as bench:
        return list(bench.play(scheduler))


def writer(name: str, begin: str = "BEGIN IMMEDIATE") -> Script:
    """Write a row in a transaction, then say so."""

    def script(db: sqlite3.Connection, told: list[str]) -> None:
        db.execute(begin)
        db.execute("INSERT INTO note VALUES (?)", (name,))
        db.execute("COMMIT")
        told.append(name)

    return script


def counter(db: sqlite3.Connection, told: list[str]) -> None:
    """Read in a deferred transaction, then write what was read."""
    db.execute("BEGIN")
    (count,) = db.execute("SELECT count(*) FROM note").fetchone()
    db.execute("INSERT INTO note VALUES (?)", (f"saw {count}",))
    db.execute("COMMIT")
    told.append(f"saw {count}")


def test_a_lock_met_before_anything_was_read_is_waited_for_and_no_caller_hears_of_it(
    place: Path,
) -> None:
    for begin in ("BEGIN IMMEDIATE", "BEGIN"):
        runs = play(place, [writer("a", begin), writer("b", begin)], Dfs(3, prunes=False))

        assert {tuple(sorted(run.rows)) for run in runs} == {("a", "b")}
        assert {tuple(run.rows) for run in runs} == {("a", "b"), ("b", "a")}
        assert not any(run.errors for run in runs)


def test_a_lock_met_inside_a_transaction_that_has_read_reaches_the_caller(place: Path) -> None:
    runs = play(place, [counter, counter], Dfs(2, prunes=False))

    failed = [run for run in runs if run.errors]
    assert 0 < len(failed) < len(runs)
    assert {text for run in failed for _, text in run.errors} == {
        "OperationalError: database is locked"
    }
    assert all(run.rows == ["saw 0"] for run in failed)
    assert all(run.rows == ["saw 0", "saw 1"] for run in runs if not run.errors)


def test_a_lock_that_nobody_gives_back_is_an_error_after_a_virtual_wait(place: Path) -> None:
    def keeper(db: sqlite3.Connection, told: list[str]) -> None:
        db.execute("BEGIN IMMEDIATE")

    runs = play(place, [keeper, writer("b")], Replay())

    assert runs[0].errors == [("actor1", "OperationalError: database is locked")]
    assert runs[0].elapsed_ns >= 10**9


def test_a_crash_takes_back_what_was_not_committed_and_nothing_else(place: Path) -> None:
    """The clean-up code of the dead commits, as code with a `finally` may: it must not."""

    def untidy(db: sqlite3.Connection, told: list[str]) -> None:
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute("INSERT INTO note VALUES ('first')")
            db.execute("INSERT INTO note VALUES ('second')")
        finally:
            db.execute("COMMIT")
        told.append("first, second")

    runs = play(place, [untidy], Dfs(0, prunes=False, reduces=False), Faults(crashes=1))

    ends = {(tuple(run.rows), tuple(run.told)) for run in runs}
    assert ends == {
        ((), ()),  # It died before its commit.
        (("first", "second"), ()),  # It died before it heard of its commit.
        (("first", "second"), ("first, second",)),
    }
    # Before each of four statements, after the commit, and not at all.
    assert len(runs) == 6


def test_a_crash_frees_the_lock_for_those_who_wait(place: Path) -> None:
    for begin in ("BEGIN IMMEDIATE", "BEGIN"):  # It asks for the lock, or has met it.
        scripts = [writer("a"), writer("b", begin)]
        runs = play(place, scripts, Dfs(1, prunes=False), Faults(crashes=1))

        died_inside = [run for run in runs if "A" in run.labels and run.rows == ["b"]]
        assert died_inside
        assert not any(run.errors for run in runs)


def test_a_wait_for_a_lock_shows_nothing_of_the_attempt(place: Path) -> None:
    """A driver that begins by itself leaves its transaction open when it meets the lock."""

    def legacy(db: sqlite3.Connection, told: list[str]) -> None:
        db.isolation_level = "DEFERRED"
        with db:
            db.execute("INSERT INTO note VALUES ('legacy')")
        told.append("legacy")
        db.isolation_level = None

    runs = play(place, [writer("a"), legacy], Dfs(3, prunes=False))

    assert {tuple(sorted(run.rows)) for run in runs} == {("a", "legacy")}
    assert not any(run.errors for run in runs)


def test_readers_see_a_snapshot_and_never_what_is_uncommitted(place: Path) -> None:
    def reader(db: sqlite3.Connection, told: list[str]) -> None:
        db.execute("BEGIN")
        counts = [db.execute("SELECT count(*) FROM note").fetchone()[0] for _ in range(2)]
        db.execute("COMMIT")
        told.append(str(counts))

    runs = play(place, [writer("a"), reader], Dfs(3, prunes=False, reduces=False))

    assert {text for run in runs for text in run.told if text != "a"} == {"[0, 0]", "[1, 1]"}


def test_sql_asks_the_virtual_clock_for_the_time(place: Path) -> None:
    def asker(db: sqlite3.Connection, told: list[str]) -> None:
        told.append(str(db.execute("SELECT unixepoch(), unixepoch('now')").fetchone()))
        (days,) = db.execute("SELECT julianday('now')").fetchone()
        told.append(str(round((days - 2440587.5) * 86_400_000)))

    (run,) = play(place, [asker], Replay())

    assert run.told == [str((WALL_MS // 1_000, WALL_MS // 1_000)), str(WALL_MS)]


def test_a_look_at_the_version_counter_is_the_same_in_every_run(place: Path) -> None:
    """`PRAGMA data_version` goes on over runs; what it shows must not."""

    def looker(db: sqlite3.Connection, told: list[str]) -> None:
        for _ in range(2):
            told.append(str(db.execute("PRAGMA data_version").fetchone()))

    with closing(Bench(place / "bench.db", [looker, writer("b")])) as bench:
        first, second = (next(iter(bench.play(Replay("3b,8a")))).told for _ in range(2))

    assert first == second == ["(0,)", "b", "(1,)"]


def test_choices_left_out_inside_a_transaction_lose_no_ending(place: Path) -> None:
    faults = Faults(crashes=1)

    def endings(scheduler: Dfs) -> tuple[int, set[str]]:
        runs = play(place, [writer("a"), counter], scheduler, faults)
        return len(runs), {str((run.rows, sorted(run.told), run.errors)) for run in runs}

    count, whole = endings(Dfs(1, prunes=False, reduces=False))
    fewer, same = endings(Dfs(1, prunes=False))

    assert same == whole
    assert fewer < count


def stamp(db: sqlite3.Connection, told: list[str]) -> None:
    db.execute("INSERT INTO note VALUES (CAST(unixepoch('now') AS TEXT))")


def oldest(db: sqlite3.Connection, told: list[str]) -> None:
    told.append(str(db.execute("SELECT min(text) FROM note").fetchone()))
    db.execute("SELECT 1").fetchall()


def returning(name: str) -> Script:
    """Write a row in a statement that commits by itself and tells its number."""

    def script(db: sqlite3.Connection, told: list[str]) -> None:
        row = db.execute("INSERT INTO note VALUES (?) RETURNING rowid", (name,)).fetchone()
        told.append(f"{name} is {row}")

    return script


class Word(StrEnum):
    """Values that marshal refuses; sqlite3 takes them for the strings that they are."""

    ONE = "one"
    TWO = "two"


def worded(word: Word) -> Script:
    def script(db: sqlite3.Connection, told: list[str]) -> None:
        db.execute("INSERT INTO note VALUES (:text)", {"text": word})

    return script


def everything(db: sqlite3.Connection, told: list[str]) -> None:
    told.append(str(db.execute("SELECT text FROM note ORDER BY rowid").fetchall()))


def at_once(name: str) -> Script:
    """Write a row in a statement that commits by itself."""

    def script(db: sqlite3.Connection, told: list[str]) -> None:
        db.execute("INSERT INTO note VALUES (?)", (name,))

    return script


def count(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM note").fetchone()[0])


def runtime_of(db: sqlite3.Connection) -> Runtime:
    assert isinstance(db, Connection)
    return db.runtime


def late_reader(db: sqlite3.Connection, told: list[str]) -> None:
    """Begin a query, wait for others, and read what it shows: what was there when it began."""
    cursor = db.execute("SELECT count(*) FROM note UNION ALL SELECT max(rowid) FROM note")
    woken = runtime_of(db).wait(10**9, signal="new")
    told.append(f"late {cursor.fetchall()}, {woken}")


def late_transaction(db: sqlite3.Connection, told: list[str]) -> None:
    """Read nothing in a transaction, wait for others, and read: what was there at the first."""
    db.execute("BEGIN")
    db.execute("SELECT text FROM note WHERE text IS NULL").fetchall()
    woken = runtime_of(db).wait(10**9, signal="new")
    told.append(f"late {count(db)}, {woken}")
    db.execute("COMMIT")


def sleeper(db: sqlite3.Connection, told: list[str]) -> None:
    start = count(db)
    woken = runtime_of(db).wait(10**9, signal="new")
    told.append(f"from {start} to {count(db)}, {woken}")


def hasty(db: sqlite3.Connection, told: list[str]) -> None:
    """Tell others of a row before it is committed."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO note VALUES ('first')")
    db.execute("INSERT INTO note VALUES ('second')")
    runtime_of(db).notify("new")
    db.execute("INSERT INTO note VALUES ('third')")
    db.execute("COMMIT")


def notified(db: sqlite3.Connection, told: list[str]) -> None:
    if runtime_of(db).wait(10**9, signal="new"):
        told.append(f"woken, {count(db)}")


def caller(db: sqlite3.Connection, told: list[str]) -> None:
    runtime_of(db).notify("new")
    db.execute("SELECT 1").fetchall()


def doubter(db: sqlite3.Connection, told: list[str]) -> None:
    """Write a row, and take it back where time has passed: the table is not what decides."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO note VALUES ('first')")
    db.execute("SAVEPOINT second")
    db.execute("INSERT INTO note VALUES ('second')")
    if db.execute("SELECT unixepoch()").fetchone() > (WALL_MS // 1_000,):
        db.execute("ROLLBACK TO second")
    db.execute("COMMIT")


def half(db: sqlite3.Connection, told: list[str]) -> None:
    """Fail in the middle of a statement whose first rows stay."""
    with suppress(sqlite3.IntegrityError):
        db.execute("INSERT OR FAIL INTO note SELECT 'half' UNION ALL SELECT NULL")


def chance(db: sqlite3.Connection, told: list[str]) -> None:
    db.execute("INSERT INTO note VALUES (hex(randomblob(2)) || random())")


def napper(seconds: int) -> Script:
    def script(db: sqlite3.Connection, told: list[str]) -> None:
        runtime_of(db).sleep(seconds)
        (until,) = db.execute("SELECT unixepoch()").fetchone()
        told.append(f"{seconds} s, until {until}: {count(db)}")

    return script


def watch(db: sqlite3.Connection, told: list[str]) -> None:
    """Ask for the time twice."""
    for _ in range(2):
        told.append(str(db.execute("SELECT unixepoch()").fetchone()))


#: What a search could lose, as actors; their faults; and the preemptions that show it.
LOSSES: dict[str, tuple[list[Script], Faults, int]] = {
    "the time that a statement was told": ([stamp, oldest], Faults(passes=1), 2),
    "the time that a wall clock shows": ([stamp, watch], Faults(wall_steps=1), 1),
    "the death after RETURNING": ([returning("a")], Faults(crashes=1), 0),
    "who was first to write": ([returning("a"), returning("b"), everything], Faults(), 2),
    "values of a kind of their own": (
        *([worded(Word.ONE), worded(Word.TWO), everything], Faults(), 3),
    ),
    "the moment of an unread query": ([late_reader, at_once("a"), caller], Faults(), 0),
    "the moment of a snapshot": ([late_transaction, at_once("a"), caller], Faults(), 0),
    "a word inside a transaction": ([notified, hasty], Faults(), 2),
    "what was taken back": ([doubter, everything], Faults(passes=1), 1),
    "what a failed statement left": ([half, everything, stamp], Faults(crashes=1), 1),
    "chance": ([chance, everything, stamp], Faults(), 2),
    "who sleeps how long": ([napper(1), napper(2), stamp], Faults(passes=1, crashes=1), 1),
    "who was woken": ([sleeper, caller, at_once("a")], Faults(wall_steps=1), 0),
    "a lock that is waited for": ([writer("a"), writer("b", "BEGIN"), oldest], Faults(), 2),
    "a snapshot": ([counter, counter, everything], Faults(crashes=1), 1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_cut_or_left_out_loses_no_ending_and_equal_commits_are_equal_rows(
    place: Path, name: str
) -> None:
    """Goal: each part of a state, of a choice left out, and of a verdict's key is needed.

    Method: a race of a few statements for each, played whole and as it is searched.
    """
    scripts, faults, bound = LOSSES[name]
    rows: dict[int, set[str]] = {}

    def ends(scheduler: Dfs) -> set[str]:
        found = set()
        with closing(Bench(place / "bench.db", scripts, faults)) as bench:
            for run in bench.play(scheduler):
                if bench.runtime.stopped != "cut":
                    rows.setdefault(bench.runtime.commits, set()).add(str(run.rows))
                    # The order of the list is the test's own; what one actor was told is not.
                    told = sorted(run.told)
                    found.add(str((run.rows, told, run.errors, run.elapsed_ns)))
        return found

    whole = ends(Dfs(bound, prunes=False, reduces=False))

    assert ends(Dfs(bound)) == whole
    assert len(whole) > 1
    assert [found for found in rows.values() if len(found) > 1] == []


def test_a_lock_met_while_a_query_has_rows_left_reaches_the_caller(place: Path) -> None:
    """SQLite calls no busy handler for a connection that has a snapshot, in a transaction or not.

    Where the query has given its last row it does, whoever still holds the cursor.
    """

    def loop(query: str, change: str) -> Script:
        def script(db: sqlite3.Connection, told: list[str]) -> None:
            cursor = db.execute(query)
            cursor.fetchone()
            db.execute(change)
            db.commit()
            told.append("changed")
            cursor.close()

        return script

    table = "SELECT name FROM sqlite_schema, (SELECT 1 UNION SELECT 2)"
    for change in ("INSERT INTO note VALUES ('a')", "BEGIN IMMEDIATE"):
        open_, read = (
            play(place, [loop(query, change), writer("b")], Dfs(2))
            for query in (table, f"{table} LIMIT 1")
        )

        assert {text for run in open_ for _, text in run.errors} == {
            "OperationalError: database is locked"
        }
        assert {text for run in open_ for text in run.told} >= {"changed"}
        assert not any(run.elapsed_ns for run in open_)
        assert not any(run.errors for run in read if "B" not in run.labels)


def test_a_script_and_many_rows_are_steps_of_their_own_where_each_commits(place: Path) -> None:
    def script(db: sqlite3.Connection, told: list[str]) -> None:
        db.executescript("INSERT INTO note VALUES ('1;'); -- two;\nINSERT INTO note VALUES ('2')")

    def many(db: sqlite3.Connection, told: list[str]) -> None:
        told.append(str(db.executemany("INSERT INTO note VALUES (?)", ["1", "2"]).rowcount))

    def together(db: sqlite3.Connection, told: list[str]) -> None:
        db.execute("BEGIN")
        told.append(str(db.executemany("INSERT INTO note VALUES (?)", ["1", "2"]).rowcount))
        db.execute("COMMIT")

    def rows(actor: Script) -> set[tuple[str, ...]]:
        runs = play(place, [actor], Dfs(0, prunes=False), Faults(crashes=1))
        assert {text for run in runs for text in run.told} <= {"2"}
        return {tuple(run.rows) for run in runs}

    assert rows(script) == {(), ("1;",), ("1;", "2")}
    assert rows(many) == {(), ("1",), ("1", "2")}
    assert rows(together) == {(), ("1", "2")}


def test_sqlite_itself_never_waits_whatever_the_target_asks_for(place: Path) -> None:
    def patient(db: sqlite3.Connection, told: list[str]) -> None:
        db.execute("PRAGMA busy_timeout = 60000").fetchall()
        told.append(str(db.execute("PRAGMA busy_timeout").fetchone()))

    (run,) = play(place, [patient], Replay())

    assert run.told == ["(0,)"]


@pytest.mark.parametrize("patience", ["", "PRAGMA busy_timeout = 0", "PRAGMA busy_timeout(9)"])
def test_who_gives_sqlite_no_time_to_wait_meets_the_lock_of_another(
    place: Path, patience: str
) -> None:
    def write(db: sqlite3.Connection, told: list[str]) -> None:
        db.execute(patience).fetchall()
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO note VALUES ('one')")
        db.execute("COMMIT")

    runs = play(place, [write, write], Dfs(1))

    refused = [run for run in runs if run.errors]
    assert {text for run in refused for _, text in run.errors} <= {
        "OperationalError: database is locked"
    }
    assert bool(refused) == patience.endswith("= 0")
    assert any(run.rows == ["one", "one"] for run in runs), "who comes later meets nobody"


def test_each_run_begins_with_the_patience_of_the_set_up(place: Path) -> None:
    """Else the trace of a schedule would hang on those that were played before it."""

    def write(db: sqlite3.Connection, told: list[str]) -> None:
        assert isinstance(db, Connection)
        told.append(str(db.is_patient))
        db.execute("PRAGMA busy_timeout = 0").fetchall()

    runs = play(place, [write, write], Dfs(1))

    assert {text for run in runs for text in run.told} == {"True"}


def test_a_connection_that_was_opened_without_patience_waits_once_it_is_given_some() -> None:
    runtime = Runtime(["actor0"], jump_ns=10**9, faults=Faults())
    runtime.quiet = True
    host = SimHost(runtime, runtime.roots[0], {}, syncs=False)

    with closing(host.connect(":memory:", timeout=0)) as db:
        assert isinstance(db, Connection)
        assert not db.is_patient
        db.execute("PRAGMA busy_timeout").fetchall()
        assert not db.is_patient, "who asks sets nothing"
        db.execute("PRAGMA busy_timeout = 100").fetchall()
        assert db.is_patient
        db.execute("PRAGMA busy_timeout").fetchall()
        assert db.is_patient


def test_sql_knows_no_clock_and_no_chance_but_the_simulated_ones(place: Path) -> None:
    answers = {
        "datetime('now')": "2023-11-14 22:13:20",
        "datetime()": "2023-11-14 22:13:20",
        "datetime('NOW', '+1 day', 'localtime')": "2023-11-15 22:13:20",
        "date('now')": "2023-11-14",
        "time('now')": "22:13:20",
        "CURRENT_TIMESTAMP": "2023-11-14 22:13:20",
        "CURRENT_DATE": "2023-11-14",
        "CURRENT_TIME": "22:13:20",
        "strftime('%s', 'now')": str(WALL_MS // 1_000),
        "strftime('%Y')": "2023",
        "unixepoch('now', '+1 hour')": WALL_MS // 1_000 + 3_600,
        "unixepoch('2023-01-01', '+1 day')": 1_672_617_600,
        "unixepoch(NULL)": None,
        "round((julianday() - 2440587.5) * 86400000)": float(WALL_MS),
        "julianday('now', '+1 day') - julianday('now')": 1.0,
    }

    def asker(db: sqlite3.Connection, told: list[str]) -> None:
        told.append(repr([db.execute(f"SELECT {asked}").fetchone()[0] for asked in answers]))
        told.append(repr(db.execute("SELECT random(), hex(randomblob(8))").fetchone()))

    with closing(Bench(place / "bench.db", [asker, asker])) as bench:
        first, again = (next(iter(bench.play(Replay()))).told for _ in range(2))

    assert first[0] == repr(list(answers.values()))
    assert first == again
    assert first[1] != first[3], "each connection has chances of its own"


def test_a_value_that_does_not_say_what_it_is_is_refused() -> None:
    class Blank:
        pass

    with pytest.raises(TypeError, match="a Blank as an SQL value has no repr"):
        _frozen([Blank()])
    assert _frozen({"id": 1, "s": Word.ONE}) != _frozen({"id": 1, "s": Word.TWO})
    assert _frozen([(1, Word.ONE)]) == _frozen([(1, Word.ONE)])


def test_a_blob_that_is_opened_past_the_statements_is_refused(place: Path) -> None:
    def opener(db: sqlite3.Connection, told: list[str]) -> None:
        db.blobopen("note", "text", 1)

    (run,) = play(place, [opener], Replay())

    assert [text.partition(":")[0] for _, text in run.errors] == ["NotImplementedError"]
