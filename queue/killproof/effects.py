r"""The effect ledger: what is known of each effect outside of the file.

An effect in the file itself needs none of this: `with context.completing() as tx:` writes it and
the job's success in one transaction.  An effect elsewhere (a payment, an e-mail) can not be part
of a transaction, and a crash between the call and its record leaves a question that nobody here
can answer. The ledger makes the question visible instead of guessing: each effect has a row,
`(scope, key)`.

    (none) --reserve--> reserved --call returned--> applied (stays)
                          |   \--call raised `Rejected`--> rejected --reserve--> reserved
                          |   \--call raised anything else--> unknown
                          \--its lease died: in doubt

Reserving is a commit of its own, before the call; recording the result is another, after it; **no
transaction is open during the call**, so that one slow remote never stops the other workers.
Both are fenced: a lease that is no longer current can neither reserve nor record.

*In doubt* is a row that is `unknown`, or `reserved` by a lease that is over.  What to do about it
only the author of the handler knows, hence there is no default:

- `again`: call again with the same key; right when the remote side dedupes by it.
- `check`: ask the remote side; `check(key)` says True for applied, False for not applied, None when
  it can not tell.
- `skip`: leave it; right when a missing effect does less harm than a second one.
- `held`: a person looks; the job is `held` meanwhile.

A row reserved by *another* job's living lease is in flight: this job is snoozed meanwhile.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, cast

from killproof.core import model, sync
from killproof.core.clock import Clock
from killproof.core.database import Transaction, Value
from killproof.core.errors import (
    DatabaseBusy,
    FileRefused,
    KillproofError,
    LeaseLost,
    StorageFailed,
    StorageFull,
)
from killproof.core.jobs import Queue
from killproof.core.model import Job, Lease
from killproof.handlers import Hold, Permanent, RetryLater, Snooze

InDoubt = Literal["again", "check", "skip", "held"]
#: Asks the remote side about a key: True applied, False not, None can not tell.
Check = Callable[[str], bool | Awaitable[bool | None] | None]

SCHEMA_VERSION: Final = 1
SCOPE_CHARS_MAX: Final = 200
#: How long a job is put back whose effect another job is applying right now.
IN_FLIGHT_SECONDS: Final = 5.0
#: Between tries to record what has happened, while the file is busy or full.
PAUSE_SECONDS: Final = 0.1
#: A row that changes under us more often than this in one call is a fault, not a race.
ROUNDS_MAX: Final = 10


class Rejected(Exception):
    """The remote side certainly did not apply the effect: it may be tried again.

    A handler's own words (`RetryLater`, `Snooze`, `Permanent`) out of the call mean the same.
    Anything else it raises leaves the effect in doubt: a timeout says nothing about the other side.
    """


#: What a call may raise to say that it had no effect.
DEFINITE = (Rejected, RetryLater, Snooze, Permanent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One effect as its handler describes it."""

    scope: str  #: keys of different scopes never meet
    key: str  #: names the effect within its scope, equal on every attempt
    function: Callable[[str], object]  #: applies it; gets the key for the remote side
    in_doubt: InDoubt
    check: Check | None = None

    def __post_init__(self) -> None:
        model.check_text(self.scope, "scope", SCOPE_CHARS_MAX)
        model.check_text(self.key, "key", model.KEY_CHARS_MAX)
        if self.in_doubt not in ("again", "check", "skip", "held"):
            raise ValueError(f"in_doubt {self.in_doubt!r} must be again, check, skip or held")
        if (self.in_doubt == "check") != (self.check is not None):
            raise ValueError("in_doubt='check' and check=function need each other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of the ledger."""

    state: str  #: reserved applied rejected unknown
    job_id: int
    fence: int
    result: str | None  #: JSON


def key_of(job: Job) -> str:
    """Return the name of a job's effect: its own key, or one that no other job has.

    The time of its creation tells it from the job with the same id in another file.
    """
    return job.key if job.key is not None else f"{job.kind}:{job.id}:{job.created_ms}"


@dataclass(frozen=True, slots=True)
class _Step:
    """One call that may block."""

    call: Callable[[], Any]
    theirs: object = None  #: the handler's own function behind it; None: it is the ledger's


Steps = Generator[_Step, Any, object]
#: Runs a function where it may block, and returns what it returns.
OffLoop = Callable[[Callable[[], Any]], Awaitable[Any]]


class Ledger:
    """The ledger as one lease may use it."""

    def __init__(
        self,
        queue: Queue,
        lease: Lease,
        *,
        clock: Clock,
        lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare; the table is made by the first use in the file.

        Args:
            queue: the ledger is in its file.
            lease: every change is made under it.
            clock: for times and pauses.
            lost: says whether the lease must be taken for lost.
        """
        self._queue = queue
        self._lease = lease
        self._clock = clock
        self._lost = lost

    def apply(self, effect: Effect) -> object:
        """Apply the effect, unless it has been applied; return its result as JSON holds it.

        The first call and every later one return the same value.  Two commits, none held open over
        the call.  None is returned for an effect that was skipped, or that `check` found applied.

        Raises:
            LeaseLost: the lease is no longer current; definite for the ledger.  After the call the
                effect has happened all the same, and its row is in doubt.
            Snooze: another job is applying this effect now; definite.
            Hold: the effect is in doubt and a person has to look; definite.
            FileRefused: see `_ensure_table`; definite.
            Rejected: from the function; and whatever else it raises.
            KillproofError: as for `Queue.ack`.
        """
        steps = self._steps(effect)
        try:
            step = next(steps)
            while True:
                try:
                    answer = step.call()
                    if inspect.iscoroutine(answer):
                        answer.close()  # Nothing of it was run; taken as it is, it would be a yes.
                        raise TypeError(f"{step.theirs!r} is a coroutine: await context.aeffect")
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return cast(object, end.value)

    async def apply_async(self, effect: Effect, off_loop: OffLoop) -> object:
        """Do as `apply` does, from a coroutine; the function and `check` may be `async def`.

        Args:
            effect: as for `apply`.
            off_loop: runs what blocks in a thread, to its end.
        """
        steps = self._steps(effect)
        try:
            step = next(steps)
            while True:
                try:
                    is_coroutine = inspect.iscoroutinefunction(step.theirs)
                    answer = step.call() if is_coroutine else await off_loop(step.call)
                    if inspect.isawaitable(answer):
                        answer = await answer
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return cast(object, end.value)

    def _steps(self, effect: Effect) -> Steps:
        """Yield each call that may block, and take its answer: who drives it decides where it runs.

        So what the ledger decides stands here once, for threads and for event loops.
        """
        for _ in range(ROUNDS_MAX):
            entry = yield _Step(partial(self._reserve, effect))
            if entry is None:
                return (yield from self._call(effect))
            if entry.state == "applied":
                return None if entry.result is None else json.loads(entry.result)
            if effect.in_doubt == "skip":
                return None
            verdict = None
            if effect.check is not None:
                verdict = yield _Step(partial(effect.check, effect.key), theirs=effect.check)
            if verdict is None:
                raise Hold(
                    f"effect {effect.scope}/{effect.key} is in doubt: job {entry.job_id} "
                    f"(fence {entry.fence}) left it {entry.state}; look at the other side"
                )
            state = "applied" if verdict else "rejected"
            yield _Step(partial(self._resolve, effect, entry, state))
        raise RuntimeError(
            f"effect {effect.scope}/{effect.key} changed {ROUNDS_MAX} times in a call"
        )

    RESERVE: Final = """
        INSERT INTO effect (scope, key, state, job_id, fence, calls, reserved_ms)
        VALUES (:scope, :key, 'reserved', :job_id, :fence, 1, :now_ms)
            ON CONFLICT (scope, key) DO UPDATE
           SET state = 'reserved', job_id = :job_id, fence = :fence, calls = calls + 1,
               reserved_ms = :now_ms, settled_ms = NULL, error = NULL"""

    def _reserve(self, effect: Effect) -> Entry | None:
        """Reserve the effect for this lease and return None, or return the row that forbids it."""
        with self._transaction() as tx:
            entry = _read(tx, effect)
            if entry is not None and entry.state == "applied":
                return entry
            if entry is not None and entry.state != "rejected":
                holder = (entry.job_id, entry.fence)
                if holder != self._mine() and _is_current(tx, *holder):
                    raise Snooze(
                        IN_FLIGHT_SECONDS,
                        f"job {entry.job_id} is applying effect {effect.scope}/{effect.key}",
                    )
                if effect.in_doubt != "again":
                    return entry
            tx.change(self.RESERVE, self._values(effect))
            return None

    def _call(self, effect: Effect) -> Steps:
        """Call the function, with no transaction open, and record what came of it."""
        try:
            result = yield _Step(partial(effect.function, effect.key), theirs=effect.function)
        except BaseException as error:
            state = "rejected" if isinstance(error, DEFINITE) else "unknown"
            text = model.Failure.of(error).message
            try:
                yield _Step(partial(self._record, effect, state, error=text))
            except StorageFailed:
                raise
            except KillproofError:
                pass  # Still reserved: in doubt for the next attempt, which is the truth.
            raise
        sync.point("handler.effect")
        encoded = model.encode_result(result)
        while True:
            try:
                yield _Step(partial(self._record, effect, "applied", result=encoded))
            except (DatabaseBusy, StorageFull):
                # It has happened: failing the attempt now would repeat it.
                if self._lost():
                    raise
                yield _Step(partial(self._clock.sleep, PAUSE_SECONDS))
            else:
                return None if encoded is None else json.loads(encoded)

    RECORD: Final = """
        UPDATE effect
           SET state = :state, result = :result, error = :error, settled_ms = :now_ms
         WHERE scope = :scope AND key = :key AND state = 'reserved'
           AND job_id = :job_id AND fence = :fence"""

    def _record(
        self, effect: Effect, state: str, *, result: str | None = None, error: str | None = None
    ) -> None:
        with self._transaction() as tx:
            told: dict[str, Value] = {"state": state, "result": result, "error": error}
            changed = tx.change(self.RECORD, self._values(effect) | told)
            assert changed == 1  # Reserved by this lease, which the transaction found current.

    RESOLVE: Final = """
        UPDATE effect
           SET state = :state, settled_ms = :now_ms
         WHERE scope = :scope AND key = :key AND state = :seen_state
           AND job_id = :seen_job_id AND fence = :seen_fence"""

    def _resolve(self, effect: Effect, seen: Entry, state: str) -> None:
        """Write down what `check` found, if the row is still the one it was asked about."""
        told: dict[str, Value] = {
            "state": state,
            "seen_state": seen.state,
            "seen_job_id": seen.job_id,
            "seen_fence": seen.fence,
        }
        with self._transaction() as tx:
            tx.change(self.RESOLVE, self._values(effect) | told)

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Open a transaction in which this lease is current and the table exists."""
        with self._queue.transaction() as tx:
            if not _is_current(tx, *self._mine()):
                raise LeaseLost(*self._mine(), "effect")
            _ensure_table(tx)
            yield tx

    def _mine(self) -> tuple[int, int]:
        return self._lease.job.id, self._lease.fence

    def _values(self, effect: Effect) -> dict[str, Value]:
        return {
            "scope": effect.scope,
            "key": effect.key,
            "job_id": self._lease.job.id,
            "fence": self._lease.fence,
            "now_ms": self._clock.now_ms(),
        }


READ: Final = "SELECT state, job_id, fence, result FROM effect WHERE scope = :scope AND key = :key"


def _read(tx: Transaction, effect: Effect) -> Entry | None:
    row = tx.row(READ, {"scope": effect.scope, "key": effect.key})
    if row is None:
        return None
    state, job_id, fence, result = row
    assert isinstance(state, str)
    assert isinstance(job_id, int)
    assert isinstance(fence, int)
    assert result is None or isinstance(result, str)
    return Entry(state=state, job_id=job_id, fence=fence, result=result)


IS_CURRENT: Final = "SELECT 1 FROM job WHERE id = :id AND fence = :fence AND state = 'leased'"


def _is_current(tx: Transaction, job_id: int, fence: int) -> bool:
    """Say whether the lease is the job's, as the file knows it."""
    return tx.row(IS_CURRENT, {"id": job_id, "fence": fence}) is not None


VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'effects'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('effects', :version)"

FIND_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE lower(name) = 'effect'"

CREATE: Final = """
    CREATE TABLE effect (
        scope       TEXT    NOT NULL CHECK (length(scope) BETWEEN 1 AND 200),
        key         TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 500),
        state       TEXT    NOT NULL
                    CHECK (state IN ('reserved', 'applied', 'rejected', 'unknown')),
        job_id      INTEGER NOT NULL,  -- no foreign key: the record outlives the job's row
        fence       INTEGER NOT NULL,
        calls       INTEGER NOT NULL CHECK (calls >= 1),  -- how often the function was called
        reserved_ms INTEGER NOT NULL,
        settled_ms  INTEGER,
        result      TEXT    CHECK (result IS NULL OR json_valid(result)),
        error       TEXT,
        PRIMARY KEY (scope, key),
        CHECK ((state = 'reserved') = (settled_ms IS NULL)),
        CHECK (result IS NULL OR state = 'applied')
    ) STRICT, WITHOUT ROWID"""


def _ensure_table(tx: Transaction) -> None:
    """Make the ledger's table at its first use in a file.

    Raises:
        FileRefused: the application has a table of this name, or the ledger is of a newer version.
    """
    version = tx.row(VERSION)
    if version == (SCHEMA_VERSION,):
        return
    if version is not None:
        raise FileRefused(
            f"{tx.path}: the effect ledger has version {version[0]!r}, "
            f"this killproof knows {SCHEMA_VERSION}: upgrade killproof"
        )
    if tx.row(FIND_TABLE) is not None:
        raise FileRefused(
            f"{tx.path} has a table 'effect' that is not killproof's: "
            "rename it, or use another file"
        )
    tx.change(CREATE)
    tx.change(SET_VERSION, {"version": SCHEMA_VERSION})
