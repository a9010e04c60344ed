"""What the simulator makes of SQLite's locks, commits and deaths, on actors of a few statements."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

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
    runs = play(place, [writer("a"), writer("b")], Dfs(1, prunes=False), Faults(crashes=1))

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
