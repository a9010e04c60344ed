"""Connections that stop before each statement: the real `sqlite3`, with the scheduler in between.

Every actor has a real connection to a real file in WAL mode. SQLite itself decides what a statement
sees and whether it meets a lock; only the waiting is ours. A lock met before a transaction has read
anything is waited for, as SQLite's busy handler would: the actor can not run until another one has
ended a transaction. Inside a transaction that has read SQLite does not wait, and so neither do we:
the error is the caller's, as in production.
"""

import marshal
import sqlite3
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from killproof_chaos.sim.runtime import Crashed, Life, Runtime

if TYPE_CHECKING:
    from types import TracebackType

READ, WRITE, BEGIN, BEGIN_WRITE, COMMIT, ROLLBACK, PRAGMA, OTHER = range(8)

_WORDS: Final = {
    "SELECT": READ,
    "WITH": READ,
    "EXPLAIN": READ,
    "INSERT": WRITE,
    "UPDATE": WRITE,
    "DELETE": WRITE,
    "REPLACE": WRITE,
    "COMMIT": COMMIT,
    "END": COMMIT,
    "ROLLBACK": ROLLBACK,
    "PRAGMA": PRAGMA,
}
_kinds: dict[str, int] = {}
#: Days from the Julian epoch to 1970.
_JULIAN_1970: Final = 2_440_587.5
_DAY_MS: Final = 86_400_000
#: A parameter of this name holds a fact of the machine, and no run may depend on it.
_HIDDEN: Final = "pid"


class Cursor(sqlite3.Cursor):
    """A cursor whose statements are points, and whose rows are noted as seen."""

    connection: "Connection"
    #: It shows a counter of the connection, which goes on over runs.
    shows_version = False

    def execute(self, sql: str, parameters: Any = (), /) -> "Cursor":
        """Execute, when it is our turn."""
        self.connection.take_step(self, sqlite3.Cursor.execute, sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> "Cursor":
        """Execute many as one step."""
        self.connection.take_step(self, sqlite3.Cursor.executemany, sql, list(parameters))
        return self

    def executescript(self, sql: str, /) -> "Cursor":
        """Execute a script as one step."""

        def run(cursor: sqlite3.Cursor, script: str, _: Any) -> None:
            sqlite3.Cursor.executescript(cursor, script)

        self.connection.take_step(self, run, sql, ())
        return self

    def fetchone(self) -> Any:
        """Fetch a row; the rest may be left unread, which keeps the snapshot."""
        row = super().fetchone()
        return self.connection.saw(self, row, is_all=row is None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Fetch some rows."""
        rows = super().fetchmany(self.arraysize if size is None else size)
        self.connection.saw(self, rows, is_all=not rows)
        return rows

    def fetchall(self) -> list[Any]:
        """Fetch all rows."""
        rows = super().fetchall()
        found: list[Any] = self.connection.saw(self, rows, is_all=True)
        return found

    def __next__(self) -> Any:
        return self.connection.saw(self, super().__next__(), is_all=False)


class Connection(sqlite3.Connection):
    """A connection of one process of the simulation."""

    runtime: Runtime
    root: Life

    def attach(self, runtime: Runtime, root: Life) -> None:
        """Belong to a process; from here on statements are points unless the runtime is quiet."""
        self.runtime, self.root = runtime, root
        self.has_snapshot = False
        self.written = 0
        self.version_base: int | None = None
        root.held.append(self)
        self.create_function("julianday", 1, self._julianday)
        for count in range(3):
            self.create_function("unixepoch", count, self._unixepoch)

    def cursor(self, factory: Any = Cursor) -> Any:
        """Return a cursor that stops; a factory of the caller's is not for the simulator."""
        return super().cursor(factory if issubclass(factory, Cursor) else Cursor)

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        """Execute through a cursor of ours."""
        found: Cursor = self.cursor().execute(sql, parameters)
        return found

    def executemany(self, sql: str, parameters: Any, /) -> Cursor:
        """Execute through a cursor of ours."""
        found: Cursor = self.cursor().executemany(sql, parameters)
        return found

    def executescript(self, sql: str, /) -> Cursor:
        """Execute through a cursor of ours."""
        found: Cursor = self.cursor().executescript(sql)
        return found

    def commit(self) -> None:
        """Commit, which is a statement like any other."""
        if self.in_transaction:
            self.cursor().execute("COMMIT")

    def rollback(self) -> None:
        """Roll back, which is a statement like any other."""
        if self.in_transaction:
            self.cursor().execute("ROLLBACK")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> Any:
        """Commit or roll back; the original does it below our `commit`."""
        if kind is None:
            self.commit()
        else:
            self.rollback()
        return False

    def close(self) -> None:
        """Close for good."""
        if self in self.root.held:
            self.root.held.remove(self)
        self._ended(0)
        super().close()

    def drop(self) -> None:
        """Roll back below the scheduler: the process is gone, or the run has ended."""
        if self.in_transaction:
            super().rollback()
        self.has_snapshot, self.written, self.version_base = False, 0, None

    def take_step(
        self, cursor: Cursor, run: Callable[[Any, str, Any], object], sql: str, values: Any
    ) -> None:
        """Wait for our turn and run one statement.

        Raises:
            Crashed: this process died while it waited, or right after a commit.
            sqlite3.Error: as SQLite says.
        """
        runtime = self.runtime
        if runtime.quiet:
            run(cursor, sql, values)
            return
        if self.root.is_dead:
            # Whoever calls: clean-up code of the dead may run when its objects are collected.
            raise Crashed
        kind = _kind(sql)
        runtime.point(wants_lock=kind == BEGIN_WRITE)
        if runtime.keeps_trace:
            runtime.note("statement", sql, _shown(values))
        was_inside, changes = self.in_transaction, self.total_changes
        self._run_patiently(cursor, run, sql, values)
        cursor.shows_version = kind == PRAGMA and "data_version" in sql
        wrote = self.total_changes != changes or kind == OTHER
        runtime.observe(cursor.rowcount, cursor.lastrowid)
        if runtime.keeps_trace:
            runtime.trace[-1].answer = cursor.rowcount if kind == WRITE else None
        if wrote:
            self.written = hash((self.written, sql, _frozen(values)))
        if self.in_transaction:
            if not self.has_snapshot and (was_inside or kind != BEGIN):
                self.has_snapshot = True
                runtime.observe(runtime.commits)
            if kind in (WRITE, BEGIN_WRITE) or wrote:
                runtime.writer = self
            if kind == BEGIN_WRITE:
                runtime.life().inside = 0
        elif was_inside or wrote:
            written = 0 if kind == ROLLBACK else self.written
            self._ended(written)
            if written:
                # The database has done it, and the caller has not heard yet: a place to die.
                runtime.point()

    def saw(self, cursor: Cursor, rows: Any, *, is_all: bool) -> Any:
        """Note what the current actor was shown, and return it."""
        runtime = self.runtime
        if runtime.quiet:
            return rows
        if cursor.shows_version and rows:
            rows = self._relative(rows)
        if not is_all and not self.in_transaction:
            runtime.observe(runtime.commits)  # What it has not read yet is of this moment.
        runtime.observe(_frozen(rows))
        if runtime.keeps_trace and runtime.trace:
            event = runtime.trace[-1]
            if event.what == "statement" and rows is not None:
                event.answer = rows
        return rows

    def _run_patiently(
        self, cursor: Cursor, run: Callable[[Any, str, Any], object], sql: str, values: Any
    ) -> None:
        runtime = self.runtime
        while True:
            was_inside = self.in_transaction
            start = perf_counter_ns()
            try:
                run(cursor, sql, values)
            except sqlite3.Error as error:
                runtime.sqlite_ns += perf_counter_ns() - start
                code = getattr(error, "sqlite_errorcode", None) or 0
                is_busy = code & 0xFF == sqlite3.SQLITE_BUSY
                runtime.death_mark += is_busy  # It felt that the holder of the lock still lives.
                if is_busy and not self.has_snapshot:
                    if runtime.block():
                        continue
                elif was_inside and not self.in_transaction:
                    self._ended(0)
                runtime.observe(str(error))
                if runtime.keeps_trace:
                    runtime.note("error", f"{type(error).__name__}: {error}")
                raise
            runtime.sqlite_ns += perf_counter_ns() - start
            return

    def _ended(self, written: int) -> None:
        """Take note that a transaction has ended, with or without a change."""
        runtime = self.runtime
        self.has_snapshot, self.written = False, 0
        if runtime.writer is self:
            runtime.writer = None
        if runtime.current is not None:
            runtime.current.inside = None
        if written:
            runtime.commits = hash((runtime.commits, written))
            runtime.life().deeds += 1
        runtime.transaction_ended()

    def _relative(self, rows: Any) -> Any:
        """Count versions from the first that this run has seen."""
        is_list = isinstance(rows, list)
        (version,) = rows[0] if is_list else rows
        if self.version_base is None:
            self.version_base = version
        row = (version - self.version_base,)
        return [row] if is_list else row

    def _now_ms(self, when: str) -> float:
        if when == "now":
            self.runtime.clock_mark += 1
            return self.runtime.wall_ms
        return datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp() * 1_000

    def _julianday(self, when: str) -> float:
        return self._now_ms(when) / _DAY_MS + _JULIAN_1970

    def _unixepoch(self, when: str = "now", _modifier: str = "") -> float:
        return self._now_ms(when) // 1_000


def _kind(sql: str) -> int:
    kind = _kinds.get(sql)
    if kind is None:
        words = sql.upper().replace(";", " ").split(None, 2)
        first = words[0] if words else ""
        if first == "BEGIN":
            is_write = len(words) > 1 and words[1] in ("IMMEDIATE", "EXCLUSIVE")
            kind = BEGIN_WRITE if is_write else BEGIN
        elif first == "ROLLBACK" and "TO" in words:
            kind = WRITE
        elif first in ("SAVEPOINT", "RELEASE"):
            kind = BEGIN
        else:
            kind = _WORDS.get(first, OTHER)
        _kinds[sql] = kind
    return kind


def _frozen(values: Any) -> object:
    """Return something hashable that is equal for equal values only."""
    try:
        return marshal.dumps(values, 2)
    except ValueError:
        return repr([tuple(row) for row in values] if isinstance(values, list) else tuple(values))


def _shown(values: Any) -> object:
    """Return values for the trace, without the facts of this machine."""
    if isinstance(values, dict):
        return {name: value for name, value in values.items() if name != _HIDDEN}
    return values
