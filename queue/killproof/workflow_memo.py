"""Steps as plain functions inside one handler: what is done is read on a retry, not run.

    @handlers("report")
    def report(context):
        step = memo(context)
        page = step("fetch", fetch, context.payload["url"])
        rows = step("parse", parse, page)
        return step("store", store, rows)

Each result is stored, fenced by the lease, before the next step runs.  After a kill the next
attempt calls the same functions in the same order, and those that are stored return at once: the
handler goes on with the first that is not.

**What it does not promise.**  A step that crashed between its effect and its record runs again:
nothing outside of the file can be written in one transaction with it.  Where that does harm, give
the effect to the ledger (`context.effect`, inside of the step), or, for an effect in this file, run
it in the transaction of its record: `step.inside("book", book, order)` calls `book(tx, order)`.

**Changed code.**  A name that is asked for in another place than it was stored at, or with other
arguments, means that the stored results belong to other code.  Going on could mix two orders of
work, so the job is held (`WorkflowChanged`), and a person decides: put the old code back, or
`forget` what is stored and begin anew.  What a function does inside is its own: a repaired body is
welcome on a retry.

**Places** are counted when steps are asked for, not when they end: a step whose failure the handler
has caught leaves its place empty and runs again on a retry, and coroutines that run side by side
have the same places every time.  A step inside of a step would have one only as long as the outer
one is not stored, so it is refused.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, Final, LiteralString, ParamSpec, TypeVar, cast

from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.errors import (
    DatabaseBusy,
    LeaseLost,
    NestedTransaction,
    PayloadInvalid,
    StorageFull,
)
from killproof.core.jobs import Queue
from killproof.handlers import Hold
from killproof.workflow_tables import has_version, refuse_taken

if TYPE_CHECKING:
    from killproof.worker import Context

P = ParamSpec("P")
Result = TypeVar("Result")
Text = str | None

SCHEMA_VERSION: Final = 1
STEPS_MAX: Final = 10_000
NAME_CHARS_MAX: Final = 200
NOTE_CHARS_MAX: Final = 500
#: Between tries to record what has happened, while the file is busy or full, in seconds.
PAUSE_SECONDS: Final = 0.1
#: Progress is written at most so often: a loop may tell it at every turn.
PROGRESS_MS: Final = 500


#: The step whose function runs, in this thread or task.
_RUNNING: Final = ContextVar("_RUNNING", default="")


class WorkflowChanged(Hold):
    """The code asks for other steps than it did before: the job is held for a person."""


def memo(context: "Context") -> "Memo":
    """Return the memory of this job's steps; it reads what earlier attempts have stored.

    Raises:
        KillproofError: as for `Queue.get`.
    """
    return Memo(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One step that was done."""

    name: str
    arguments: str | None  #: a digest of them; None: they are not JSON, and are not compared
    result: str | None  #: JSON


class Memo:
    """The steps of one execution of a handler; not for several threads at once."""

    READ: Final = """
        SELECT place, name, arguments, result FROM workflow_memo
         WHERE job_id = :id ORDER BY place"""

    def __init__(self, context: "Context") -> None:
        """Read what was stored; one short read, no lock."""
        self._context = context
        self._queue = context._queue
        self._asked: set[str] = set()
        self._stored: dict[int, Stored] = {}
        if self._queue.database.peek(VERSION):
            rows = self._queue.database.peek(self.READ, {"id": context.job.id})
            for place, name, arguments, result in cast(list[tuple[int, str, Text, Text]], rows):
                self._stored[place] = Stored(name=name, arguments=arguments, result=result)

    @property
    def done(self) -> tuple[str, ...]:
        """The names of the steps that are stored, in their order."""
        return tuple(self._stored[place].name for place in sorted(self._stored))

    def __call__(
        self, name: str, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        """Return the stored result of a step, or run it and store its result first.

        The first call and every later one return the same value, as JSON holds it: a tuple comes
        back as a list.  No transaction is open while the function runs.

        Args:
            name: unique in the handler; in a loop put the item into it.
            function: runs if nothing is stored; what it raises passes through, and stores nothing.
            *args: its arguments; those that JSON holds are compared on a retry.
            **kwargs: likewise.

        Raises:
            WorkflowChanged: other steps are stored; the job is held; definite.
            PayloadInvalid: the result is not JSON; definite, and the function has run.
            LeaseLost: the lease is no longer current: nothing was stored; definite.
            ValueError: the name is no text, or was used before in this execution, or it is asked
                for inside of another step; definite.
            KillproofError: as for `Queue.ack`.
        """
        digest = _digest(args, kwargs)
        place, stored = self._find(name, digest)
        if stored is not None:
            return cast(Result, _decoded(stored.result))
        with _running(name):
            result = function(*args, **kwargs)
        return cast(Result, self._keep(place, name, digest, result))

    async def awaited(
        self,
        name: str,
        function: Callable[P, Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Do the same for an `async def` function; the file is waited for in a thread."""
        digest = _digest(args, kwargs)
        place, stored = self._find(name, digest)
        if stored is not None:
            return cast(Result, _decoded(stored.result))
        with _running(name):
            result = await function(*args, **kwargs)
        keep = self._context._off_loop(lambda: self._keep(place, name, digest, result))
        return cast(Result, await keep)

    def inside(
        self,
        name: str,
        function: Callable[Concatenate[Transaction, P], Result],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Run a step whose effect is in this file, in one transaction with its record.

        The function gets the transaction first; it holds the write lock, so it must be short.

        Raises:
            KillproofError: as for a call; nothing of the step has happened then, unless the error
                is `OutcomeUnknown`.
        """
        digest = _digest(args, kwargs)
        place, stored = self._find(name, digest)
        if stored is not None:
            return cast(Result, _decoded(stored.result))
        with self._queue.transaction() as tx, _running(name):
            _demand_current(self._queue, self._context, tx)
            text = _encoded(name, function(tx, *args, **kwargs))
            step = Stored(name=name, arguments=digest, result=text)
            self._insert(tx, place, step)
        self._stored[place] = step
        return cast(Result, _decoded(text))

    def progress(self, done: float, total: float | None = None, note: str = "") -> bool:
        """Store how far the job is; see `report_progress`."""
        return report_progress(self._context, done, total, note)

    def _find(self, name: str, digest: str | None) -> tuple[int, Stored | None]:
        """Return the place of the step that is asked for now, and what is stored for it.

        None if it is to be run.
        """
        model.check_text(name, "step name", NAME_CHARS_MAX)
        if outer := _RUNNING.get():
            raise ValueError(
                f"step {name!r} is asked for inside of step {outer!r}: call its function there, "
                "or make two steps of it, one after the other"
            )
        if name in self._asked:
            raise ValueError(f"step {name!r} was asked for before: give each step its own name")
        place = len(self._asked)
        self._asked.add(name)
        if place >= STEPS_MAX:
            raise ValueError(f"step {name!r} is over the limit of {STEPS_MAX:,} steps in a handler")
        stored, job_id = self._stored.get(place), self._context.job.id
        if stored is None:
            for other, step in list(self._stored.items()):  # A thread may be storing one.
                if step.name == name:
                    raise WorkflowChanged(
                        f"step {place + 1} of job {job_id} is {name!r} now, which was step "
                        f"{other + 1} when it was stored: put the code back, or: "
                        f"killproof workflow forget {job_id}"
                    )
            return place, None
        if stored.name != name:
            raise WorkflowChanged(
                f"step {place + 1} of job {job_id} is {name!r} now and was {stored.name!r} when it "
                f"was stored: put the code back, or: killproof workflow forget {job_id}"
            )
        if stored.arguments != digest and None not in (stored.arguments, digest):
            raise WorkflowChanged(
                f"step {name!r} of job {job_id} is asked for with other arguments than when it was "
                f"stored: put the code back, or: killproof workflow forget {job_id}"
            )
        return place, stored

    def _keep(self, place: int, name: str, digest: str | None, result: object) -> object:
        """Store a result; a busy file is waited for, because the step has happened."""
        text = _encoded(name, result)
        step = Stored(name=name, arguments=digest, result=text)
        while True:
            try:
                with self._queue.transaction() as tx:
                    _demand_current(self._queue, self._context, tx)
                    self._insert(tx, place, step)
            except (DatabaseBusy, StorageFull):
                # Failing the attempt now would repeat the step.
                if self._context.lost:
                    raise
                self._queue.host.clock.sleep(PAUSE_SECONDS)
            else:
                self._stored[place] = step
                return _decoded(text)

    INSERT: Final = """
        INSERT INTO workflow_memo (job_id, place, name, arguments, result, fence, stored_ms)
        VALUES (:id, :place, :name, :arguments, :result, :fence, :now_ms)"""

    def _insert(self, tx: Transaction, place: int, step: Stored) -> None:
        ensure(tx)
        values: dict[str, Value] = {
            "id": self._context.job.id,
            "place": place,
            "name": step.name,
            "arguments": step.arguments,
            "result": step.result,
            "fence": self._context.lease.fence,
            "now_ms": self._queue.host.clock.now_ms(),
        }
        tx.change(self.INSERT, values)


@contextmanager
def _running(name: str) -> Iterator[None]:
    token = _RUNNING.set(name)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def _digest(args: tuple[object, ...], kwargs: dict[str, object]) -> str | None:
    """Return a digest of the arguments; None if JSON does not hold them all."""
    try:
        text = json.dumps([args, kwargs], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _encoded(name: str, result: object) -> str | None:
    """Encode a result; a step whose result is lost could not be resumed, so it is refused."""
    try:
        return None if result is None else model.encode_payload(result)
    except PayloadInvalid as error:
        raise PayloadInvalid(f"the result of step {name!r} can not be stored: {error}") from error


def _decoded(text: str | None) -> object:
    return None if text is None else json.loads(text)


def _demand_current(queue: Queue, context: "Context", tx: Transaction) -> None:
    lease = context.lease
    values: dict[str, Value] = {"id": lease.job.id, "fence": lease.fence, "worker": lease.owner}
    if tx.row(queue.IS_CURRENT, values) is None:
        raise LeaseLost(lease.job.id, lease.fence, "memo")


FORGET: Final = "DELETE FROM workflow_memo WHERE job_id = :id"


def forget(queue: Queue, job_id: int) -> int:
    """Forget the stored steps of a job, so that its next attempt begins anew; return how many.

    Raises:
        ValueError: the job is running, and would go on with what it has read; definite.
        KillproofError: as for `Queue.cancel`.
    """
    model.check_count(job_id, "id", 1, (1 << 63) - 1)
    with queue.transaction() as tx:
        if tx.row(IS_LEASED, {"id": job_id}) is not None:
            raise ValueError(f"job {job_id} is running: cancel or hold it first")
        return tx.change(FORGET, {"id": job_id}) if exists(tx) else 0


IS_LEASED: Final = "SELECT 1 FROM job WHERE id = :id AND state = 'leased'"


# Progress.

TELL: Final = """
    INSERT INTO workflow_progress (job_id, fence, done, total, note, told_ms)
    VALUES (:id, :fence, :done, :total, :note, :now_ms)
        ON CONFLICT (job_id) DO UPDATE
       SET fence = :fence, done = :done, total = :total, note = :note, told_ms = :now_ms"""

TOLD: Final = "SELECT fence, told_ms FROM workflow_progress WHERE job_id = :id"


def report_progress(context: "Context", done: float, total: float | None, note: str) -> bool:
    """Store how far a job is, for people; True if it was written.

    It is written twice a second at most, and always when `done` has reached `total`; a file that is
    busy or full is no reason to fail the job.  It stays when the job ends or fails.

    Args:
        context: of the handler.
        done: so much ...
        total: ... of so much; None: nobody knows.
        note: what is being done, one short line.

    Raises:
        LeaseLost: the lease is no longer current; definite.
        ValueError: the numbers are no numbers, or the note is too long; definite.
    """
    for number, name in ((done, "done"), (total, "total")):
        if number is not None and not 0 <= number <= 1e15:
            raise ValueError(f"{name} {number!r} must be a number of at least 0")
    if note:
        model.check_text(note, "note", NOTE_CHARS_MAX)
    queue, lease = context._queue, context.lease
    values: dict[str, Value] = {
        "id": lease.job.id,
        "fence": lease.fence,
        "done": float(done),
        "total": None if total is None else float(total),
        "note": note,
        "now_ms": queue.host.clock.now_ms(),
    }
    is_last = total is not None and done >= total
    if not is_last and queue.database.peek(VERSION):
        told = queue.database.peek(TOLD, values)
        if told and told[0][0] == lease.fence:
            since_ms = cast(int, values["now_ms"]) - cast(int, told[0][1])
            if 0 <= since_ms < PROGRESS_MS:
                return False
    try:
        with queue.transaction() as tx:
            _demand_current(queue, context, tx)
            ensure(tx)
            tx.change(TELL, values)
    except (DatabaseBusy, StorageFull, NestedTransaction):
        return False
    return True


# The tables.

VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'workflow_memo'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('workflow_memo', :version)"

FIND_TABLES: Final = """
    SELECT name FROM sqlite_schema WHERE lower(name) IN ('workflow_memo', 'workflow_progress')"""

CREATE: Final[tuple[LiteralString, ...]] = (
    """CREATE TABLE workflow_memo (
        job_id    INTEGER NOT NULL REFERENCES job (id) ON DELETE CASCADE,
        place     INTEGER NOT NULL,        -- the n-th step that the handler asked for, from 0
        name      TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
        arguments TEXT,                    -- a digest; NULL: not JSON, not compared
        result    TEXT CHECK (result IS NULL OR json_valid(result)),
        fence     INTEGER NOT NULL,        -- of the lease that ran it
        stored_ms INTEGER NOT NULL,
        PRIMARY KEY (job_id, place),
        UNIQUE (job_id, name)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE workflow_progress (
        job_id  INTEGER PRIMARY KEY REFERENCES job (id) ON DELETE CASCADE,
        fence   INTEGER NOT NULL,
        done    REAL    NOT NULL,
        total   REAL,
        note    TEXT    NOT NULL,
        told_ms INTEGER NOT NULL
    ) STRICT""",
)


def exists(tx: Transaction) -> bool:
    """Say whether the tables are there.

    Raises:
        FileRefused: they are those of a newer killproof; definite.
    """
    return has_version(tx, tx.row(VERSION), SCHEMA_VERSION, "stored steps have")


def ensure(tx: Transaction) -> None:
    """Make the tables at the first use in a file.

    Raises:
        FileRefused: the application has a table of such a name, or they are newer; definite.
    """
    if not exists(tx):
        refuse_taken(tx, tx.row(FIND_TABLES))
        for statement in CREATE:
            tx.change(statement)
        tx.change(SET_VERSION, {"version": SCHEMA_VERSION})
