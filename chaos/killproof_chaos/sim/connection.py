"""Connections that stop before each statement: the real `sqlite3`, with the scheduler in between.

Every actor has a real connection to a real file in WAL mode. SQLite itself decides what a statement
sees and whether it meets a lock; only the waiting is ours. Where SQLite would call its busy handler
the actor can not run until another one has ended a transaction; how long a target has asked to wait
makes no difference, for no time passes meanwhile. Where SQLite does not wait, because it was given
no time, or a transaction or a query that still has rows to give has read something, neither do we:
the error is the caller's, as in production.

What SQL asks of the machine it asks of the simulated one: its functions of time read the virtual
clock, in UTC, and those of chance a source that is the same in every run.

Two things differ from SQLite, and neither hides a death or a switch. A script, and `executemany`
where each row commits by itself, are many steps. A statement with RETURNING is run to its end at
once, for SQLite commits it only with the last row that is fetched: what is not shown is the lock
that a caller keeps who leaves such rows unread.
"""

import gc
import marshal
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import cached_property, partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from killproof_chaos.sim.dice import Dice
from killproof_chaos.sim.runtime import Crashed, Event, Life, Runtime

if TYPE_CHECKING:
    from types import TracebackType

READ, WRITE, BEGIN, BEGIN_WRITE, COMMIT, ROLLBACK, SAVEPOINT, PRAGMA, OTHER = range(9)

_WORDS: Final = {
    "SELECT": READ,
    "VALUES": READ,
    "WITH": READ,
    "EXPLAIN": READ,
    "INSERT": WRITE,
    "UPDATE": WRITE,
    "DELETE": WRITE,
    "REPLACE": WRITE,
    "COMMIT": COMMIT,
    "END": COMMIT,
    "ROLLBACK": ROLLBACK,
    "SAVEPOINT": SAVEPOINT,
    "RELEASE": SAVEPOINT,
    "PRAGMA": PRAGMA,
}
#: What may stand before the first word of a statement.
_BEFORE: Final = re.compile(r"(?:[\s;]|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
#: A WITH that changes something; what only looks like it costs nothing.
_CHANGES: Final = re.compile(r"\b(INSERT|REPLACE)\s+(OR|INTO)\b|\bUPDATE\s|\bDELETE\s+FROM\b")
#: A PRAGMA that says how long to wait, not one that asks.
_SETS_TIMEOUT: Final = re.compile(r"busy_timeout\s*[=(]", re.IGNORECASE)
#: From the Julian epoch to 1970, in ms.
_JULIAN_1970_MS: Final = 210_866_760_000_000
_DAY_MS: Final = 86_400_000
_EPOCH: Final = datetime(1970, 1, 1)
#: SQL's functions of time; all take a time, which may be `now`, and modifiers.
_TIMES: Final = ("date", "time", "datetime", "unixepoch", "strftime", "timediff")
#: What SQLite has for no arguments at all, and what it stands for.
_CURRENT: Final = {
    "current_date": "date",
    "current_time": "time",
    "current_timestamp": "datetime",
}
#: Modifiers that ask for the zone of the machine. The simulated one lives in UTC.
_ZONES: Final = frozenset({"localtime", "utc"})
#: What one statement has changed, past the property that adds up several; it is asked at each.
_ROWCOUNT: Final = sqlite3.Cursor.rowcount.__get__
#: A parameter of this name holds a fact of the machine, and no run may depend on it.
_HIDDEN: Final = "pid"


class Cursor(sqlite3.Cursor):
    """A cursor whose statements are points, and whose rows are noted as seen."""

    connection: "Connection"
    #: It shows a counter of the connection, which goes on over runs.
    shows_version = False
    #: The statement may have rows left, and so may keep its snapshot.
    is_unread = False
    #: Rows that were fetched when the statement ran, the last first; None: SQLite has them.
    kept: list[Any] | None = None
    #: Rows that several statements in one have changed; None: it was one.
    total: int | None = None
    #: The line of the trace, which waits for its answer.
    event: Event | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> "Cursor":
        """Execute, when it is our turn."""
        self.total = None
        self.connection.take_step(self, sqlite3.Cursor.execute, sql, parameters)
        return self

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> "Cursor":
        """Execute many: as one step in a transaction, else one by one, as each is committed."""
        self.total = None
        connection, rows = self.connection, list(parameters)
        if not connection.commits_each or connection.runtime.quiet:
            connection.take_step(self, sqlite3.Cursor.executemany, sql, rows)
            return self
        total = 0
        for row in rows:
            connection.take_step(self, sqlite3.Cursor.executemany, sql, [row])
            total += super().rowcount
        self.total = total
        return self

    def executescript(self, sql: str, /) -> "Cursor":
        """Execute the statements of a script one by one, after a commit, as the driver does."""
        connection = self.connection
        if connection.runtime.quiet:
            super().executescript(sql)
            return self
        connection.commit()
        level = connection.isolation_level
        if level is not None:
            connection.isolation_level = None  # Else the driver begins transactions by itself.
        try:
            for statement in _statements(sql):
                connection.take_step(self, _run_to_its_end, statement, ())
        finally:
            if level is not None:
                connection.isolation_level = level
        return self

    @property
    def rowcount(self) -> int:
        """How many rows the last call has changed."""
        return super().rowcount if self.total is None else self.total

    def fetchone(self) -> Any:
        """Fetch a row; the rest may be left unread, which keeps the snapshot."""
        kept = self.kept
        row = super().fetchone() if kept is None else kept.pop() if kept else None
        return self.connection.saw(self, row, is_all=row is None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Fetch some rows."""
        size = self.arraysize if size is None else size
        rows = super().fetchmany(size) if self.kept is None else self._take(size)
        found: list[Any] = self.connection.saw(self, rows, is_all=not rows)
        return found

    def fetchall(self) -> list[Any]:
        """Fetch all rows."""
        rows = super().fetchall() if self.kept is None else self._take(len(self.kept))
        found: list[Any] = self.connection.saw(self, rows, is_all=True)
        return found

    def close(self) -> None:
        """End the statement."""
        if self.is_unread:
            self.connection.forget(self)
        super().close()

    def __next__(self) -> Any:
        if self.kept is None:
            return self.connection.saw(self, super().__next__(), is_all=False)
        if not self.kept:
            raise StopIteration
        return self.connection.saw(self, self.kept.pop(), is_all=False)

    def __del__(self) -> None:
        # Whoever lets go of a cursor ends its statement.
        if self.is_unread:
            self.connection.forget(self)

    def _take(self, count: int) -> list[Any]:
        kept = self.kept or []
        return [kept.pop() for _ in range(min(count, len(kept)))]


class Connection(sqlite3.Connection):
    """A connection of one process of the simulation."""

    runtime: Runtime
    root: Life

    def attach(self, runtime: Runtime, root: Life) -> None:
        """Belong to a process; from here on statements are points unless the runtime is quiet."""
        self.runtime, self.root = runtime, root
        self.has_snapshot = False
        #: Whether SQLite would wait for a lock at all, now and when a run begins.
        self.is_patient = self.begins_patient = True
        #: A hash of what the open transaction has changed.
        self.written = 0
        #: A hash of what the machine has told the statement that runs: the time, or chance.
        self.told = 0
        self.version_base: int | None = None
        self._dice = Dice((root.index << 16) + len(root.held))
        root.held.append(self)
        self._simulate_functions()

    def cursor(self, factory: Any = Cursor) -> Any:
        """Return a cursor that stops; a factory of the caller's is not for the simulator."""
        return super().cursor(factory if issubclass(factory, Cursor) else Cursor)

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        """Execute through a cursor of ours."""
        cursor = sqlite3.Connection.cursor(self, Cursor)
        self.take_step(cursor, sqlite3.Cursor.execute, sql, parameters)
        return cursor

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
        if "_calendar" in self.__dict__:
            self._calendar.close()
        super().close()

    def blobopen(self, *_: Any, **__: Any) -> Any:
        """Refuse: its reads and writes are no statements.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("blobopen is not simulated: read and write the column with SQL")

    def drop(self) -> None:
        """Roll back below the scheduler: the process is gone, or the run has ended."""
        if self.root.unread:
            self._end_queries()
        if self.in_transaction:
            super().rollback()
        self.has_snapshot, self.written, self.version_base = False, 0, None
        self.told, self.is_patient = 0, self.begins_patient
        self._dice.again()

    def look(self) -> None:
        """Learn the schema anew, below the scheduler."""
        sqlite3.Connection.cursor(self).execute("SELECT count(*) FROM sqlite_schema").fetchall()

    def _end_queries(self) -> None:
        """End the queries of cursors that somebody has kept: each would keep its snapshot."""
        for cursor in gc.get_referrers(self):
            if isinstance(cursor, Cursor) and cursor.is_unread:
                cursor.close()

    @property
    def commits_each(self) -> bool:
        """Whether a statement that changes something would commit by itself."""
        return self.isolation_level is None and not self.in_transaction

    def take_step(
        self, cursor: Cursor, run: Callable[[Any, str, Any], object], sql: str, values: Any
    ) -> None:
        """Wait for our turn and run one statement.

        Raises:
            Crashed: this process died while it waited, or right after a commit.
            sqlite3.Error: as SQLite says.
        """
        runtime = self.runtime
        kind = _kinds[sql]
        if cursor.kept is not None:
            cursor.kept = None
        if runtime.quiet:
            run(cursor, sql, values)
            if kind == PRAGMA:
                self._keep_patience(sql)
                self.begins_patient = self.is_patient
            return
        if self.root.is_dead:
            # Whoever calls: clean-up code of the dead may run when its objects are collected.
            raise Crashed
        waits = kind == BEGIN_WRITE and self.is_patient
        waits = waits and not (self.root.unread and self._has_read())
        runtime.point(wants_lock=waits)
        life = runtime.life()
        self._note(cursor, life, sql, values)
        was_inside, changes = self.in_transaction, self.total_changes
        start = perf_counter_ns()
        try:
            run(cursor, sql, values)
        except sqlite3.Error as error:
            runtime.sqlite_ns += perf_counter_ns() - start
            self._run_again(error, cursor, run, sql, values, (was_inside, changes))
        else:
            runtime.sqlite_ns += perf_counter_ns() - start
        told, self.told = self.told, 0
        life.seen = hash((life.seen, _ROWCOUNT(cursor), cursor.lastrowid, told))
        if cursor.description is not None:
            cursor.shows_version = kind == PRAGMA and "data_version" in sql
            self._opened(cursor, kind)
        if kind == WRITE and cursor.event is not None:
            cursor.event.answer = cursor.rowcount
        if wrote := self.total_changes != changes or kind == OTHER:
            self.written = hash((self.written, sql, _frozen(values), told))
            if kind == OTHER:
                runtime.changed_schema = True
        elif kind == SAVEPOINT and self.written:
            # It may take back a part of what was written, which SQLite does not count as a change.
            self.written = hash((self.written, sql))
        elif kind == PRAGMA:
            self._keep_patience(sql)
        if self.in_transaction:
            if not self.has_snapshot and kind not in (BEGIN, SAVEPOINT):
                self.has_snapshot = True
                life.seen = hash((life.seen, runtime.commits))
            if wrote or kind == WRITE:
                runtime.writer = self
            elif kind == BEGIN_WRITE:
                runtime.writer = self
                life.inside = 0
        elif was_inside or wrote:
            written = 0 if kind == ROLLBACK else self.written
            self._ended(written)
            if written:
                # The database has done it, and the caller has not heard yet: a place to die.
                runtime.point()

    def _note(self, cursor: Cursor, life: Life, sql: str, values: Any) -> None:
        """Keep what is asked, for the trace and for those who ask how SQLite would go about it."""
        runtime = self.runtime
        if runtime.asked is not None:
            runtime.asked.setdefault((life.operation, sql), values)
        if runtime.keeps_trace:
            runtime.note("statement", sql, _shown(values))
            cursor.event = runtime.trace[-1]
        elif cursor.event is not None:
            cursor.event = None  # A cursor may outlive a run, whose trace is done.

    def saw(self, cursor: Cursor, rows: Any, *, is_all: bool) -> Any:
        """Note what the current actor was shown, and return it."""
        runtime = self.runtime
        if runtime.quiet:
            return rows
        if cursor.shows_version and rows:
            rows = self._relative(rows)
        if is_all and cursor.is_unread:
            self.forget(cursor)
        life = runtime.current
        if cursor.kept is None and life is not None:  # Else it was noted when it was fetched.
            life.seen = hash((life.seen, _frozen(rows)))
        if cursor.event is not None and rows is not None:
            cursor.event.answer = rows
        return rows

    def forget(self, cursor: Cursor) -> None:
        """Take note that a statement has no rows left that anybody could read."""
        cursor.is_unread = False
        self.root.unread.pop(id(cursor), None)

    def _opened(self, cursor: Cursor, kind: int) -> None:
        """Take note of a statement that gives rows; one that may write gives them now."""
        if kind in (READ, PRAGMA):
            cursor.is_unread = True
            self.root.unread[id(cursor)] = self.runtime.commits
            return
        cursor.kept = sqlite3.Cursor.fetchall(cursor)
        life = self.runtime.life()
        life.seen = hash((life.seen, _frozen(cursor.kept)))
        cursor.kept.reverse()

    def _run_again(
        self,
        error: sqlite3.Error,
        cursor: Cursor,
        run: Callable[[Any, str, Any], object],
        sql: str,
        values: Any,
        before: tuple[bool, int],
    ) -> None:
        """Wait where SQLite would wait, and run a statement again until it gets through.

        Args:
            error: what it met at first.
            cursor: its own.
            run: runs it.
            sql: its text.
            values: its parameters.
            before: whether a transaction was open, and how many changes the connection had made.

        Raises:
            sqlite3.Error: as SQLite said, the first time or at last.
        """
        runtime = self.runtime
        was_inside, changes = before
        while self._may_wait(error) and runtime.block():
            changes = self.total_changes
            start = perf_counter_ns()
            try:
                run(cursor, sql, values)
            except sqlite3.Error as another:
                error = another
            else:
                return
            finally:
                runtime.sqlite_ns += perf_counter_ns() - start
        told, self.told = self.told, 0
        if is_partial := self.total_changes != changes:
            # What `OR FAIL` had changed before it failed stays.
            self.written = hash((self.written, sql, _frozen(values), told))
        if not self.in_transaction and (was_inside or is_partial):
            self._ended(0 if was_inside else self.written)
        runtime.observe(str(error), told)
        if runtime.keeps_trace:
            runtime.note("error", f"{type(error).__name__}: {error}")
        raise error

    def _may_wait(self, error: sqlite3.Error) -> bool:
        """Say whether SQLite would have waited for what it met."""
        code = getattr(error, "sqlite_errorcode", None) or 0
        is_busy = code & 0xFF == sqlite3.SQLITE_BUSY
        self.runtime.death_mark += is_busy  # It felt that the holder of the lock still lives.
        return is_busy and self.is_patient and not self._has_read()

    def _has_read(self) -> bool:
        """Say whether this connection has a snapshot: SQLite then meets a lock without waiting.

        SQLite alone knows: a query may have given its last row or not. It refuses a checkpoint to a
        connection that reads; to any other a passive one does nothing that anybody could see.
        """
        cursor = sqlite3.Connection.cursor(self)
        try:
            cursor.execute("PRAGMA main.wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.OperationalError as error:
            return error.sqlite_errorcode == sqlite3.SQLITE_LOCKED
        return False

    def _keep_patience(self, sql: str) -> None:
        """Undo a wait that the target asks of SQLite: a real one would stop everybody."""
        if "busy_timeout" in sql.lower():
            cursor = sqlite3.Connection.cursor(self)
            (asked,) = cursor.execute("PRAGMA busy_timeout").fetchone()
            cursor.execute("PRAGMA busy_timeout = 0").fetchall()
            self.is_patient = asked > 0 or (self.is_patient and _SETS_TIMEOUT.search(sql) is None)

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
            runtime.life().root.deeds += 1
        runtime.transaction_ended()

    def _relative(self, rows: Any) -> Any:
        """Count versions from the first that this run has seen."""
        is_list = isinstance(rows, list)
        (version,) = rows[0] if is_list else rows
        if self.version_base is None:
            self.version_base = version
        row = (version - self.version_base,)
        return [row] if is_list else row

    def _simulate_functions(self) -> None:
        """Put what SQL asks of the machine in place of SQLite's own."""
        self.create_function("julianday", -1, self._julianday)
        for name in _TIMES:
            if name != "timediff" or sqlite3.sqlite_version_info >= (3, 43):
                self.create_function(name, -1, partial(self._time, name))
        for name, asked in _CURRENT.items():
            self.create_function(name, 0, partial(self._time, asked))
        self.create_function("random", 0, self._random)
        self.create_function("randomblob", 1, self._randomblob)

    def _now_ms(self) -> int:
        runtime = self.runtime
        runtime.clock_mark += 1
        self.told = hash((self.told, runtime.wall_ms))
        return runtime.wall_ms

    def _julianday(self, *values: Any) -> Any:
        if values == ("now",):  # The audit asks at every change of a job.
            return (self._now_ms() + _JULIAN_1970_MS) / _DAY_MS
        return self._time("julianday", *values)

    def _time(self, name: str, *values: Any) -> Any:
        """Return what SQLite's function says, of the virtual clock where it is asked for `now`."""
        first = 1 if name == "strftime" else 0
        asked = [*values, "now"] if len(values) == first else list(values)
        for at in range(first, len(asked)):
            if isinstance(asked[at], str) and asked[at].lower() == "now":
                now = _EPOCH + timedelta(milliseconds=self._now_ms())
                asked[at] = now.isoformat(" ", "milliseconds")
        asked = [v for v in asked if not (isinstance(v, str) and v.lower() in _ZONES)]
        marks = ", ".join("?" * len(asked))
        (answer,) = self._calendar.execute(f"SELECT {name}({marks})", asked).fetchone()
        return answer

    @cached_property
    def _calendar(self) -> sqlite3.Connection:
        """A database of nothing, whose functions are SQLite's own."""
        return sqlite3.connect(":memory:", check_same_thread=False)

    def _random(self) -> int:
        drawn = self._dice.getrandbits(64) - (1 << 63)
        self.told = hash((self.told, drawn))
        return drawn

    def _randomblob(self, count: int) -> bytes:
        drawn = self._dice.randbytes(max(1, count))
        self.told = hash((self.told, drawn))
        return drawn


def _kind(text: str) -> int:
    sql = _BEFORE.sub("", text, count=1).upper()
    words = sql.replace(";", " ").replace("(", " ").split(None, 2)
    first = words[0] if words else ""
    if first == "BEGIN":
        is_write = len(words) > 1 and words[1] in ("IMMEDIATE", "EXCLUSIVE")
        return BEGIN_WRITE if is_write else BEGIN
    if first == "ROLLBACK" and "TO" in sql.split():
        return SAVEPOINT
    if first == "WITH" and _CHANGES.search(sql):
        return WRITE
    return _WORDS.get(first, OTHER)


class _Kinds(dict[str, int]):
    """The kinds of the statements that were met."""

    def __missing__(self, sql: str) -> int:
        kind = self[sql] = _kind(sql)
        return kind


_kinds: Final = _Kinds()


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script, without what is only blank."""
    text = ""
    for piece in script.split(";"):
        text += piece + ";"
        if sqlite3.complete_statement(text):
            if _BEFORE.sub("", text, count=1):
                yield text
            text = ""
    text = text.removesuffix(";")
    if _BEFORE.sub("", text, count=1):
        yield text  # The last needs no semicolon; what is wrong with it, SQLite says.


def _run_to_its_end(cursor: sqlite3.Cursor, sql: str, values: Any) -> None:
    """Run one statement of a script, whose rows nobody sees."""
    sqlite3.Cursor.execute(cursor, sql, values)
    sqlite3.Cursor.fetchall(cursor)


def _frozen(values: Any) -> object:
    """Return something hashable that is equal for equal values only.

    Raises:
        TypeError: a value does not say what it is.
    """
    try:
        return marshal.dumps(values, 2)
    except ValueError:
        return _plain(values)


def _plain(value: Any) -> object:
    if isinstance(value, dict):
        return tuple((_plain(key), _plain(each)) for key, each in value.items())
    if isinstance(value, (list, tuple, sqlite3.Row)):
        return tuple(_plain(each) for each in value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    kind = type(value)
    if kind.__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
        raise TypeError(f"a {kind.__name__} as an SQL value has no repr that tells it from others")
    return kind.__qualname__, repr(value)


def _shown(values: Any) -> object:
    """Return values for the trace, without the facts of this machine."""
    if isinstance(values, dict):
        return {name: value for name, value in values.items() if name != _HIDDEN}
    return values
