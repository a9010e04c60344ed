"""One SQLite file, opened, written and made durable by one protocol.

Every write is the same nine steps, in `Database.write`: not nested; turnstile; BEGIN IMMEDIATE in a
loop of our own; the statements; COMMIT; a checkpoint when it is due; leave the turnstile; barrier;
return.  Why each is there: `turnstile.py`, `barrier.py`, `connection.py`, docs/walkthrough.md.

No code here or above it ever opens the database or its -shm by path: closing such a descriptor
drops all POSIX locks that this process holds on the file, SQLite's among them.
"""

import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, LiteralString, NoReturn, TypeVar

from killproof.core import barrier, sync
from killproof.core import connection as kept
from killproof.core.connection import Handle
from killproof.core.errors import (
    DatabaseBusy,
    FileRefused,
    JobNotFound,
    KillproofError,
    LeaseLost,
    NestedTransaction,
    OutcomeUnknown,
    StorageFailed,
    StorageFull,
)
from killproof.core.host import Barrier, EventCount, Host, Liveness
from killproof.core.turnstile import PATIENCE_SECONDS, classes_of

Value = None | int | float | str | bytes
Values = Mapping[str, Value] | Sequence[Value]
Durability = Literal["power", "process"]
Result = TypeVar("Result")

#: The n-th takes a file from version n - 1 to n; none is ever changed once it was released.
MIGRATIONS: Final = ("schema.sql",)
SCHEMA_VERSION: Final = len(MIGRATIONS)
#: The tables of that version.
TABLES: Final = {"killproof_schema", "killproof_setting", "worker", "job", "attempt", "throttle"}
#: One commit in so many runs a checkpoint, by chance: a count would start anew in each process, and
#: processes that live shorter than the count would never pay their share.  About 1,000 pages of
#: log.
CHECKPOINT_COMMITS: Final = 200
#: Growth of the log that makes a checkpoint due at once: the size SQLite itself aims at.
LOG_GROWTH_BYTES: Final = 4 << 20
#: What a log is cut back to when it starts anew.
LOG_BYTES_KEPT: Final = 64 << 20
#: How long a checkpoint waits for readers while it holds the writer lock, in milliseconds.
CHECKPOINT_WAIT_MS: Final = 20
#: Between two tries for SQLite's lock: half a millisecond to one, at random.
BUSY_PAUSE_SECONDS: Final = 0.0005

logger = logging.getLogger("killproof")

#: What SQLite's primary result codes stand for, and what to do.
_KNOWN: Final[dict[int, tuple[type[KillproofError], str]]] = {
    sqlite3.SQLITE_BUSY: (DatabaseBusy, "nothing was changed; try again"),
    sqlite3.SQLITE_CANTOPEN: (FileRefused, "check its folder, rights, and open files"),
    sqlite3.SQLITE_READONLY: (FileRefused, "check the rights of the file and its folder"),
    sqlite3.SQLITE_NOTADB: (FileRefused, "name another file, this one is no SQLite database"),
    sqlite3.SQLITE_CORRUPT: (FileRefused, "restore it from a backup"),
    sqlite3.SQLITE_FULL: (StorageFull, "nothing was changed; make room, then try again"),
    sqlite3.SQLITE_IOERR: (StorageFull, "nothing was changed; check the disk, then try again"),
}
_FSYNC_FAILED: Final = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
#: (thread, device, inode) of every thread that is inside a write: it must never wait for itself.
_inside: set[tuple[int, int, int]] = set()
_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()
#: path -> reason, for every file whose disk has failed under this process.
_failed: dict[str, str] = {}


class Transaction:
    """A transaction in progress: what `with queue.transaction() as tx` gives."""

    __slots__ = ("_connection", "_cursors", "_is_ours", "has_ended", "kinds", "offers", "path")

    def __init__(self, connection: sqlite3.Connection, path: str, *, is_ours: bool = True) -> None:
        self._connection = connection
        self._is_ours = is_ours
        self._cursors: list[sqlite3.Cursor] = []
        self.path = path
        #: True once its block was left: a statement would then commit itself, and not durably.
        self.has_ended = False
        #: How many idle workers its commit wakes, and of which classes of kinds.
        self.offers = self.kinds = 0

    def offer(self, kind: str | None, count: int = 1) -> None:
        """Have so many idle workers woken at the commit, by our own connections only.

        Args:
            kind: of the jobs that may be claimed then; None is any.
            count: of the jobs.
        """
        self.offers += count
        self.kinds |= classes_of(None if kind is None else (kind,))

    @property
    def changes(self) -> int:
        """Rows changed so far on this connection, those of triggers included."""
        return self._connection.total_changes

    def execute(self, sql: LiteralString, values: Values = ()) -> sqlite3.Cursor:
        """Run one statement of the caller; its cursor ends with the transaction.

        Raises:
            ValueError: its block was left; definite.
            OutcomeUnknown: a statement before it ended the transaction; indefinite.
            sqlite3.Error: as SQLite says; leaving the block with it rolls everything back.
        """
        self.check_open(self.path)
        cursor = self._run(sql, values)
        self._cursors.append(cursor)
        return cursor

    def row(self, sql: LiteralString, values: Values = ()) -> tuple[Value, ...] | None:
        """Return the first row, or None."""
        cursor = self._run(sql, values)
        cursor.row_factory = None  # A connection of the caller may make something else of rows.
        found: tuple[Value, ...] | None = cursor.fetchone()
        return found

    def rows(self, sql: LiteralString, values: Values = ()) -> list[tuple[Value, ...]]:
        """Return all rows."""
        cursor = self._run(sql, values)
        cursor.row_factory = None
        return cursor.fetchall()

    def change(self, sql: LiteralString, values: Values = ()) -> int:
        """Run a writing statement; return the number of rows it changed."""
        return self._run(sql, values).rowcount

    def insert(self, sql: LiteralString, values: Values = ()) -> int | None:
        """Run an INSERT; return the id of the new row, or None if it inserted nothing."""
        # In a Turkish locale Python 3.11 does not see that INSERT writes: rowcount is -1.
        before, cursor = self._connection.total_changes, self._run(sql, values)
        return cursor.lastrowid if self._connection.total_changes > before else None

    def _run(self, sql: LiteralString, values: Values) -> sqlite3.Cursor:
        """Run a statement, unless one before it (COMMIT, OR ROLLBACK) has ended the transaction.

        Each would then be a transaction of its own: the ack without the effect it belongs to.
        """
        if self._is_ours and not self._connection.in_transaction:
            raise OutcomeUnknown(
                f"a statement has ended the transaction on {self.path} before its block: "
                "leave COMMIT, ROLLBACK and OR ROLLBACK out of it"
            )
        return self._connection.execute(sql, values)

    def end(self) -> None:
        """Close the cursors given out: one left open would pin its snapshot and the log with it."""
        self.has_ended = True
        for cursor in self._cursors:
            cursor.close()

    def check_open(self, path: str) -> None:
        """Refuse a transaction that has ended, or is on another file.

        Raises:
            ValueError: definite.
        """
        if self.has_ended or self.path != path:
            why = "whose block has ended" if self.has_ended else f"not on {path!r}"
            raise ValueError(f"tx is a transaction on {self.path!r}, {why}")


class Database:
    """The file, as all threads of this process share it."""

    def __init__(
        self, path: str, *, durability: Durability | None, busy_limit: float, host: Host
    ) -> None:
        """Open the file; make or migrate it if need be.

        Args:
            path: a file; its folder must exist.
            durability: the level asked for; None takes the file's own, `power` for a new one.
            busy_limit: seconds that any call waits at most for SQLite's lock.
            host: clock, random, connect and lock.

        Raises:
            FileRefused: newer, foreign, not a database, on an unfit file system, at another level.
            ValueError: the level is unknown.
            StorageFailed: the disk failed under this file before.
            DatabaseBusy: the lock was not free within the limit.
        """
        if path.startswith(("file:", ":")) or not path:
            raise FileRefused(f"{path!r} is not a path: the queue needs a file on a disk")
        self.path = os.path.realpath(path)
        self.host = host
        self.busy_limit = busy_limit
        self.checkpoint_commits = CHECKPOINT_COMMITS
        #: Writes that went on without the turnstile: more than a few mean a stopped process.
        self.bypasses = 0
        #: What deaths are seen by, and this process's own byte; set by `jobs`.
        self.liveness: Liveness | None = None
        self._log_bytes_told = 2 * LOG_BYTES_KEPT
        self._dead = ""
        self._closed = False
        self.guard = threading.Lock()
        self._local = threading.local()
        self._handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        if durability not in (None, "power", "process"):
            raise ValueError(f"durability {durability!r} is unknown: use 'power' or 'process'")
        # Before anything is opened: a refused path must not be left with an empty file, and the
        # last close after a disk failure would copy frames that nobody has verified.
        level = "process" if os.path.exists(self.path) else durability or "power"
        if refusal := host.lock.refusal(self.path, level):
            raise FileRefused(refusal)
        barrier.check_not_failed(self.path)
        self.durability: Durability = "process"  # Until the file has told: nothing is vouched for.
        try:
            with kept.opening:
                self.durability = self._settle_schema(durability)
                self._handle()
        except BaseException:
            self.close()
            raise
        _databases.add(self)

    def __del__(self) -> None:
        """Leave no descriptor of a queue that was dropped and not closed."""
        if (liveness := getattr(self, "liveness", None)) is not None:
            liveness.close()

    @contextmanager
    def write(self, operation: LiteralString) -> Iterator[Transaction]:
        """Run the block in one IMMEDIATE transaction; return when that is durable.

        Raises:
            NestedTransaction: this thread is inside a transaction on this file; definite.
            DatabaseBusy: the lock was not free within the limit; definite.
            StorageFull: the disk is full or refused a write; definite.
            OutcomeUnknown: COMMIT was sent and something failed after that; indefinite.
            StorageFailed: the disk has failed before; definite.
        """
        while True:
            handle = self._handle()
            with handle.in_use:  # As in `_using`, which as one more generator would cost too much.
                if handle.is_open:
                    try:
                        yield from self._written(handle, operation)
                    except FileRefused:
                        handle.close()
                        raise
                    return

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Run the block on one snapshot; return when all that it showed is durable.

        Another process's commit is visible before its fsync: a fact from here must not be lost
        later.

        Raises:
            NestedTransaction: this thread is inside a transaction on this file; definite.
            DatabaseBusy, StorageFailed: as for `write`.
        """
        with self._using() as handle:
            if handle.connection.in_transaction:
                raise NestedTransaction(
                    f"this thread is in a transaction on {self.path}: read through its tx"
                )
            transaction = Transaction(handle.connection, self.path)
            try:
                self._patiently(lambda: _begin_read(handle.connection))
                yield transaction
            except sqlite3.Error as error:
                self._raise_known(error)
                raise
            finally:
                if not handle.is_inherited:
                    if handle.connection.in_transaction:  # No function of ours: see `write`.
                        handle.connection.execute("ROLLBACK")
                    transaction.end()
            self._check_ours(handle)
            self._wait_for_disk(handle)

    def peek(self, sql: LiteralString, values: Values = ()) -> list[tuple[Value, ...]]:
        """Return rows that are advisory only: not necessarily durable, no write lock taken.

        Raises:
            DatabaseBusy, FileRefused, StorageFailed: definite.
        """
        with self._using() as handle:
            return self._patiently(lambda: handle.connection.execute(sql, values).fetchall())

    def arrivals(self) -> tuple[EventCount, int]:
        """Return what idle workers sleep on, and its count now; to be read before a look."""
        with self._using() as handle:
            return handle.turnstile.arrivals, handle.turnstile.arrivals.read()

    def joined(self, tx: "Transaction | sqlite3.Connection") -> Transaction:
        """Return the transaction to join: ours, or a connection of the caller's on this file.

        With the caller's connection it is the caller's COMMIT, and its durability, that count.

        Raises:
            ValueError: it is on another file, or has ended.
        """
        if isinstance(tx, Transaction):
            tx.check_open(self.path)
            return tx
        joined = Transaction(tx, self.path, is_ours=False)
        (name,) = (row[2] for row in joined.rows("PRAGMA database_list") if row[1] == "main")
        if os.path.realpath(str(name)) != self.path:
            raise ValueError(f"tx is a connection on {name!r}, not on {self.path!r}")
        return joined

    def is_writing(self) -> bool:
        """Whether this thread is inside a write: an asynchronous exception had better wait."""
        return threading.get_ident() in {thread for thread, _, _ in tuple(_inside)}

    def close(self) -> None:
        """Close the connections of all threads; after a disk failure leave them open for ever."""
        self._closed = True
        with kept.opening:
            handles = list(self._handles)
        for handle in handles:
            if self.path in _failed:
                handle.keep()
            else:
                handle.close()
        if self.liveness is not None:
            self.liveness.close()
            self.liveness = None

    def forget(self) -> None:
        """In a forked child: another thread may have held the guard, and we hold no lease."""
        self.guard = threading.Lock()
        self._local = threading.local()
        self._handles = weakref.WeakSet()
        if self.liveness is not None:
            self.liveness.close()
            self.liveness = None

    def fail(self, reason: str) -> None:
        """Stop the queue for good in this process, and tell the others through the marker."""
        logger.critical("%s: %s", self.path, reason)
        _failed[self.path] = reason
        barrier.mark_failed(self.path, reason)
        with kept.opening:  # A handle opened meanwhile would be closed like any other.
            stopped = [database for database in list(_databases) if database.path == self.path]
            for handle in [handle for database in stopped for handle in database._handles]:
                handle.keep()

    # The steps of a write, in order.

    def _written(self, handle: Handle, operation: LiteralString) -> Iterator[Transaction]:
        """Yield the transaction once it has begun; go on when its block is left."""
        mark = (threading.get_ident(), *handle.turnstile.ident)
        connection, hook = handle.connection, sync.hook if operation else None
        if mark in _inside or connection.in_transaction:
            raise NestedTransaction(
                f"this thread is in a transaction on {self.path} already: pass tx= to join it"
            )
        if hook is not None:
            hook(f"{operation}.begin")
        held: bool | None = None  # Untold while entering.
        refused = False
        transaction = Transaction(connection, self.path)
        try:
            _inside.add(mark)
            held = handle.turnstile.enter(min(PATIENCE_SECONDS, self.busy_limit / 2))
            self.bypasses += not held
            try:
                self._patiently(handle.begin)
                if hook is not None:
                    hook(f"{operation}.locked")
                try:
                    yield transaction
                finally:
                    if not handle.is_inherited:
                        transaction.end()
                self._check_ours(handle)
                if hook is not None:
                    hook(f"{operation}.written")
            except sqlite3.Error as error:
                if not handle.is_inherited:
                    _roll_back(connection)
                self._raise_known(error)
                raise
            self._commit(handle, operation, held)
        except (LeaseLost, JobNotFound):
            refused = True
            raise
        finally:
            try:
                # A signal handler may raise at any call, also at the one before COMMIT.  So no
                # function of ours stands between here and the rollback.
                if not handle.is_inherited:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    if held is not False:
                        handle.turnstile.leave()
            finally:
                _inside.discard(mark)
            if refused:
                # A refusal is a fact as well: it may rest on a commit not yet durable.
                self._wait_for_disk(handle)
        try:
            self._settle(handle, operation, transaction)
        except BaseException as error:
            self._raise_unknown(error)

    def _check_ours(self, handle: Handle) -> None:
        """Refuse to end a transaction that a fork has copied: it is the parent's to commit."""
        if handle.is_inherited:
            raise NestedTransaction(
                f"this process was forked in the middle of a transaction on {self.path}: "
                "only the parent can end it"
            )

    def _commit(self, handle: Handle, operation: LiteralString, held: bool) -> None:
        try:
            try:
                handle.connection.execute("COMMIT")
            except BaseException:
                _roll_back(handle.connection)
                raise
            if sync.hook is not None:
                _point(operation, "committed")
            if held and self._checkpoint_due(handle):
                self._checkpoint(handle)
        except BaseException as error:
            self._raise_unknown(error)

    def _raise_unknown(self, error: BaseException) -> NoReturn:
        """Raise what came after the COMMIT: nobody can say that the transaction did not happen."""
        if isinstance(error, OutcomeUnknown):
            raise error
        if isinstance(error, sqlite3.Error) and _primary_code(error) == sqlite3.SQLITE_FULL:
            # The log's last frame, which commits, was not written: nothing can bring it back.
            # An fsync that fails is another code (IOERR), and can.
            self._raise_known(error)
        code = getattr(error, "sqlite_errorcode", 0)
        if code in _FSYNC_FAILED and self.durability == "power":
            # SQLite syncs the first frame of a log that starts anew by itself.  The kernel may
            # have told it alone, and the barrier of the next commit would then say all is well.
            self.fail(f"an fsync inside SQLite failed: {error}")
        raise OutcomeUnknown(
            f"the commit may or may not have happened ({type(error).__name__}: {error}): "
            "look at the job, or repeat the call with the same key"
        ) from error

    def _settle(self, handle: Handle, operation: LiteralString, done: Transaction) -> None:
        if done.offers:
            # Before the barrier: what a worker claims now, its own barrier makes durable as well.
            handle.turnstile.arrivals.advance(done.offers, done.kinds)
        self._wait_for_disk(handle)
        if sync.hook is not None:
            _point(operation, "synced")

    def _wait_for_disk(self, handle: Handle) -> None:
        if self.durability != "power":
            return
        try:
            handle.log.wait()
        except OutcomeUnknown as error:
            self._dead = str(error)
            raise
        except StorageFailed as error:
            cause = error.__cause__
            self.fail(f"fdatasync of the log failed: {cause}" if cause else "the disk failed once")
            raise

    def _checkpoint_due(self, handle: Handle) -> bool:
        size = handle.log.log_bytes()
        # A log that was cut back must not grow to its old size before growth counts again.
        handle.log_bytes = min(handle.log_bytes, size)
        has_grown = size - handle.log_bytes > LOG_GROWTH_BYTES
        return self.host.random.random() * self.checkpoint_commits < 1 or has_grown

    def _checkpoint(self, handle: Handle) -> None:
        """Move the log into the database, under the turnstile and with SQLite's writer lock.

        FULL takes that lock before it reads the log's header; PASSIVE does not, and can then mark
        frames as copied that were not (the WAL-reset race of SQLite 3.7.0 to 3.51.2).
        """
        sync.point("checkpoint.begin")
        connection = handle.connection
        try:
            connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAIT_MS}")
            try:
                busy, log, done = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            finally:
                connection.execute("PRAGMA busy_timeout = 0")
        except sqlite3.Error as error:
            # An fsync of the database that failed once succeeds the next time, without the pages.
            if _primary_code(error) == sqlite3.SQLITE_IOERR:
                self.fail(f"a checkpoint failed: {error}")
                raise
            logger.warning("%s: checkpoint put off: %s", self.path, error)
            return
        handle.log_bytes = handle.log.log_bytes()
        if done > log:
            # Only a process killed inside walRestartHdr leaves this behind; frames are invisible.
            self.fail(f"the index of the log is corrupt: {done} frames copied of {log}")
            raise StorageFailed(barrier.stopped(self.path, _failed[self.path]))
        if busy and handle.log_bytes > self._log_bytes_told:
            # Every page since its snapshot stays in the log until a reader ends: said once, and
            # again whenever the log has doubled.
            self._log_bytes_told = 2 * handle.log_bytes
            logger.warning(
                "%s: the log has grown to %d bytes because somebody keeps reading or locks the "
                "file: killproof doctor names who reads", self.path, handle.log_bytes
            )  # fmt: skip
        sync.point("checkpoint.end")

    # Opening.

    @contextmanager
    def _using(self) -> Iterator[Handle]:
        """Give this thread's handle, opened if need be, and keep it from being closed meanwhile."""
        while True:
            handle = self._handle()
            with handle.in_use:
                if handle.is_open:  # Else a fork closed it in between.
                    try:
                        yield handle
                    except FileRefused:
                        # SQLite opens read-only what it once could not open for writing, and would
                        # refuse every write from then on: the next call opens it anew.
                        handle.close()
                        raise
                    return

    def _handle(self) -> Handle:
        if self.path in _failed:
            raise StorageFailed(barrier.stopped(self.path, _failed[self.path]))
        if self._dead:
            raise StorageFailed(f"this queue object is stopped: {self._dead}")
        if self._closed:
            raise ValueError(f"the queue on {self.path} is closed")
        handle: Handle | None = getattr(self._local, "handle", None)
        if handle is None or not handle.is_open:
            with kept.opening:
                handle = self._local.handle = self._open()
                self._handles.add(handle)
        return handle

    def _open(self) -> Handle:
        barrier.check_not_failed(self.path)
        connection = self._connect()
        try:
            log = self._patiently(lambda: self._switch_to_log(connection))
            try:
                turnstile = self.host.lock.turnstile(self.path, gate=self.durability == "process")
            except BaseException:
                log.close()
                raise
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise FileRefused(
                    f"{error.filename or self.path}: {error.strerror}: "
                    "check the folder, its rights, and the limit of open files"
                ) from error
            self._raise_known(error)
            raise
        return Handle(self.path, connection, turnstile, log)

    def _connect(self) -> sqlite3.Connection:
        if self.path in kept.inherited:
            raise FileRefused(
                f"{self.path}: this process was forked in the middle of a transaction on it: "
                "fork outside of transactions, or start processes by spawn"
            )
        try:
            return self.host.connect(self.path)
        except sqlite3.Error as error:
            self._raise_known(error)
            raise

    def _switch_to_log(self, connection: sqlite3.Connection) -> Barrier:
        """Set the connection up, and open the log while a read transaction pins it.

        The answer of the pragma proves nothing: another program may change the mode right after.
        Only the read transaction pins it, and only then is the log's descriptor the right one.
        """
        connection.execute("PRAGMA journal_mode = wal").fetchall()
        # Outside a transaction, and read back.  NORMAL: the barrier does the fsync, outside the
        # lock.
        connection.execute("PRAGMA synchronous = NORMAL")
        # Errors of the automatic checkpoint are invisible, and it is PASSIVE.
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        connection.execute("PRAGMA foreign_keys = ON")
        # Bytes that are no UTF-8 would else stop every claim that meets them.
        connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}").fetchall()
        if connection.execute("PRAGMA synchronous").fetchone()[0] != 1:
            raise FileRefused(f"{self.path}: SQLite did not accept synchronous=NORMAL")
        _begin_read(connection)
        try:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            if mode != "wal":
                raise FileRefused(
                    f"{self.path} is in journal mode {mode}: end the program that changes it"
                )
            return self.host.lock.barrier(self.path)
        finally:
            _roll_back(connection)

    def _settle_schema(self, asked: Durability | None) -> Durability:
        """Return the file's durability; check, make or migrate its schema first.

        What is pending is decided under the write lock: of 16 processes that start at once on no
        file, one makes the schema and 15 find it.
        """
        connection = self._connect()
        try:
            version, found = self._patiently(lambda: self._schema_of(connection))
            level = found or asked or "power"
            if asked not in (None, level):
                raise FileRefused(
                    f"{self.path} has durability {level!r}, not {asked!r}: it is the file's; "
                    "leave the argument out, or move the jobs to a new file"
                )
            if refusal := self.host.lock.refusal(self.path, level):
                raise FileRefused(refusal)
            if version < SCHEMA_VERSION:
                self._patiently(lambda: self._migrate(connection, level))
                return self._patiently(lambda: self._schema_of(connection))[1] or level
            return level
        except BaseException as error:
            self._raise_known(error)
            if isinstance(error, sqlite3.Error) and _primary_code(error) == sqlite3.SQLITE_ERROR:
                raise FileRefused(
                    f"{self.path}: {error}: what it holds is not killproof's, use another file"
                ) from error
            raise
        finally:
            connection.close()

    def _schema_of(self, connection: sqlite3.Connection) -> tuple[int, Durability | None]:
        """Return the file's version and level; (0, None) without the schema."""
        names = connection.execute("SELECT name FROM sqlite_schema").fetchall()
        found = {name.lower(): name for (name,) in names}
        if "killproof_schema" not in found:
            if taken := found.keys() & TABLES:
                raise FileRefused(
                    f"{self.path} has a table {found[min(taken)]!r} that is not killproof's: "
                    "use another file, or rename that table"
                )
            return 0, None
        (version,) = connection.execute(
            "SELECT max(version) FROM killproof_schema WHERE component = 'core'"
        ).fetchone()
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise FileRefused(
                f"{self.path} has schema version {version}, this killproof knows {SCHEMA_VERSION}: "
                "upgrade killproof"
            )
        if missing := TABLES - found.keys():
            raise FileRefused(
                f"{self.path} has no table {min(missing)!r}: restore the file from a backup"
            )
        (level,) = connection.execute(
            "SELECT max(value) FROM killproof_setting WHERE name = 'durability'"
        ).fetchone()
        if level not in ("power", "process"):
            raise FileRefused(
                f"{self.path} has durability {level!r}: restore the file from a backup"
            )
        return version, "power" if level == "power" else "process"

    def _migrate(self, connection: sqlite3.Connection, level: Durability) -> None:
        """Take the file to this version, all steps or none; there is no way back."""
        connection.execute("PRAGMA journal_mode = wal").fetchall()
        # A schema that a power cut could take back would be made anew under living workers.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            version, _ = self._schema_of(connection)  # Again: somebody may have been faster.
            for name in MIGRATIONS[version:]:
                for statement in _statements(name):
                    connection.execute(statement)
            connection.execute(
                "INSERT OR REPLACE INTO killproof_schema VALUES ('core', ?)", (SCHEMA_VERSION,)
            )
            connection.execute(
                "INSERT OR IGNORE INTO killproof_setting VALUES ('durability', ?)", (level,)
            )
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise

    # Waiting and errors.

    def _patiently(self, attempt: Callable[[], Result]) -> Result:
        """Repeat what meets SQLite's lock until the limit; a loop of our own, so that it is fair.

        Raises:
            DatabaseBusy: the limit passed; definite.
        """
        first_ns = -1
        while True:
            try:
                return attempt()
            except sqlite3.Error as error:
                if _primary_code(error) != sqlite3.SQLITE_BUSY:
                    self._raise_known(error)
                    raise
                now_ns = self.host.clock.monotonic_ns()
                if first_ns < 0:
                    first_ns = now_ns
                if now_ns - first_ns >= self.busy_limit * 1e9:  # A worker told to stop lowers it.
                    raise DatabaseBusy(
                        f"{self.path} was locked by another program for {self.busy_limit:g} s: "
                        "find who holds it, or try again"
                    ) from error
            self.host.clock.sleep(BUSY_PAUSE_SECONDS * (1 + self.host.random.random()))

    def _raise_known(self, error: BaseException) -> None:
        """Raise the error of ours that an error of SQLite's stands for; return if there is none."""
        if isinstance(error, sqlite3.Error) and (known := _KNOWN.get(_primary_code(error))):
            kind, remedy = known
            raise kind(f"{self.path}: {error}: {remedy}") from error


def _point(operation: LiteralString, moment: LiteralString) -> None:
    if sync.hook is not None and operation:
        sync.hook(f"{operation}.{moment}")


def _begin_read(connection: sqlite3.Connection) -> None:
    """Begin a transaction that has read: only then does it hold its snapshot."""
    connection.execute("BEGIN")
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        _roll_back(connection)
        raise


def _roll_back(connection: sqlite3.Connection) -> None:
    """Roll back if there is something to: after an I/O error SQLite has done it already."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _statements(name: str) -> Iterator[str]:
    """Yield the statements of a file beside this; `executescript` would commit what is open."""
    statement = ""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as script:
        for line in script:
            statement += line
            if sqlite3.complete_statement(statement):
                yield statement
                statement = ""


def _primary_code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _forget_in_child() -> None:
    _inside.clear()
    for database in list(_databases):
        database.forget()


os.register_at_fork(after_in_child=_forget_in_child)
