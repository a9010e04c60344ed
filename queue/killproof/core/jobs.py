"""The queue: every operation on jobs, each with the SQL that it runs directly above it.

Read `schema.sql` first: it holds the states.  Then this file: an operation is a statement or two
in one transaction of `database.py`.  What makes it right is in the WHERE clauses: an outcome names
the fence of its lease, a claim counts itself, a reap repeats what it believes.

No statement uses RETURNING: inside an IMMEDIATE transaction SELECT and UPDATE see the same rows,
and CPython's statement cache has returned wrong rows with it (cpython issue 118172).
"""

import dataclasses
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from itertools import chain
from types import TracebackType
from typing import Any, Final, LiteralString, NamedTuple, Self, cast

from killproof.core import model, retry, sync
from killproof.core.database import Database, Durability, Transaction, Value
from killproof.core.errors import (
    JobNotFound,
    KillproofError,
    LeaseLost,
    PayloadInvalid,
)
from killproof.core.host import Host, Liveness
from killproof.core.model import Attempt, Failure, Job, Lease
from killproof.core.turnstile import classes_of

#: Rows that one call promotes or reaps at most: the price of a claim has a bound.
SWEEP_ROWS_MAX: Final = 100
#: How often claims look for dead and expired leases: far below the 100 ms that recovery may take.
SWEEP_INTERVAL_NS: Final = 20_000_000
#: Jobs in one batch: about 10 ms under the lock.
BATCH_MAX: Final = 1_000
#: Rows of one INSERT, whose text of some kilobytes SQLite compiles once.
ROWS_AT_ONCE: Final = 100
#: An idle worker that nobody wakes looks so often, in seconds, with jitter: for commits of other
#: programs.  A look costs up to a millisecond of a CPU that has gone to sleep.
IDLE_PAUSE: Final = 0.25
#: While somebody holds a lease it looks more often, for a death wakes nobody, and recovery may take
#: 100 ms in the median, if only one worker is idle.
HOLDERS_PAUSE: Final = 0.1
#: Woken in vain, it lets others be woken for so long, in seconds; doubled up to the pause above.
VAIN_PAUSE_FIRST: Final = 0.001
#: What falls due is noticed by one idle worker after the other within so many seconds.
DUE_JITTER: Final = 0.004
#: A foreign lease is believed dead when it was watched unchanged for its length and this part more.
WATCH_MARGIN: Final = 0.5
#: Leaving is a courtesy: it waits for the lock for so many seconds at most.
LEAVE_SECONDS: Final = 1.0
#: Rows of workers that nobody can prove dead and that hold nothing are kept for a day.
WORKER_KEPT_MS: Final = 86_400_000
#: The largest integer of SQLite: a deadline that every lease has.
NEVER_NS: Final = (1 << 63) - 1
ID_MAX: Final = (1 << 63) - 1
CRASHED: Final = Failure(error_class="Crashed", message="the worker died", traceback=None)
SILENT: Final = Failure(
    error_class="LeaseExpired", message="the worker fell silent", traceback=None
)


class Queue:
    """A queue on one file; one object may be shared by all threads, and survives a fork.

    Each thread keeps a connection of its own; a forked child opens new ones at its first call.
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        *,
        durability: Durability | None = None,
        busy_limit: float = 30.0,
        host: Host | None = None,
    ) -> None:
        """Open the queue; make the file if there is none.

        Args:
            path: the SQLite file; its folder must exist.
            durability: `power` (an acknowledgement survives a power cut) or `process` (it survives
                the death of any process); None takes the file's own, `power` for a new file.
            busy_limit: seconds that any call waits at most for SQLite's lock.
            host: clock, random, connect and lock, for tests and simulators.

        Raises:
            FileRefused: newer, foreign, not a database, unfit file system, another level; definite.
            StorageFailed: the disk failed under this file; definite.
            DatabaseBusy: the lock was not free within the limit; definite.
        """
        if model.to_ms(busy_limit, "busy_limit") > 3_600_000:
            raise ValueError(f"busy_limit {busy_limit!r} must be at most 3600 seconds")
        self.host = host or Host()
        self.database = Database(
            os.fsdecode(path), durability=durability, busy_limit=busy_limit, host=self.host
        )
        self._identity: _Identity | None = None
        self._swept_ns = 0
        self._holders_seen = 0
        self._watched: dict[int, tuple[int, int, int]] = {}
        self._full_last = True

    @property
    def path(self) -> str:
        """The database file, symbolic links resolved."""
        return self.database.path

    @property
    def durability(self) -> Durability:
        """The level of the file: `power` or `process`."""
        return self.database.durability

    @property
    def worker_id(self) -> str | None:
        """The identity of this object's claims, 32 hex digits; None before the first."""
        identity = self._identity
        return identity.id if identity is not None and identity.pid == os.getpid() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; after an error what is held counts as crashed, for it may be the cause.

        Given back as no attempt, a job whose handler ends its worker would come again for ever.
        """
        if isinstance(error, Exception) or (isinstance(error, SystemExit) and error.code):
            self._identity = None  # Its byte is freed with the rest, and tells the others.
        self.close()

    def close(self) -> None:
        """Release the leases still held, free the identity, close every thread's connection."""
        identity, self._identity = self._identity, None
        try:
            if identity and identity.pid == os.getpid() and self.database.liveness is not None:
                self.database.busy_limit = LEAVE_SECONDS
                # Else the freed byte tells the others as well, only as a crash.
                with suppress(KillproofError):
                    self._leave(identity)
        finally:
            self.database.close()

    # Putting in.

    UNLESS_KEY_LIVES: Final = """
            ON CONFLICT (key) WHERE key IS NOT NULL
                AND state IN ('blocked', 'scheduled', 'available', 'leased', 'retryable', 'held')
            DO NOTHING"""

    ENQUEUE: Final = f"""
        INSERT INTO job (kind, state, payload, priority, due_ms, key, max_attempts, lease_ms, retry,
                         created_ms, updated_ms, expires_ms)
        VALUES (:kind, :state, :payload, :priority, :due_ms, :key, :max_attempts, :lease_ms, :retry,
                :now_ms, :now_ms, :expires_ms) {UNLESS_KEY_LIVES}"""  # noqa: S608

    FIND_KEY: Final = """
        SELECT id FROM job
         WHERE key = :key AND key IS NOT NULL
           AND state IN ('blocked', 'scheduled', 'available', 'leased', 'retryable', 'held')"""

    def enqueue(
        self,
        kind: str,
        payload: object,
        *,
        priority: int = 5,
        delay: float = 0,
        run_at: float | datetime | None = None,
        deadline: float | datetime | None = None,
        key: str | None = None,
        max_attempts: int = 5,
        lease: float = 60.0,
        retry: str = "article",
        tx: Transaction | sqlite3.Connection | None = None,
    ) -> int:
        """Put a job in; return its id when it is durable at the file's level.

        Args:
            kind: names the handler.
            payload: anything JSON holds, up to `PAYLOAD_BYTES_MAX` bytes.
            priority: 0 (urgent) to 9.
            delay: seconds from now before which it never runs.
            run_at: the moment before which it never runs (epoch seconds or an aware datetime),
                instead of `delay`; wall clock.
            deadline: the moment from which on it does not start any more (given as `run_at` is):
                a job that neither has ended nor is running by then becomes `expired`.
            key: idempotency key: while a job with this key lives, its id is returned and nothing is
                put in.  It makes repeating the call after `OutcomeUnknown` safe.
            max_attempts: executions in all, crashed ones included.
            lease: seconds that a worker may be silent before others take the job.
            retry: a policy of `retry.parse`.
            tx: join this transaction (of `transaction()`, `completing()`, or a connection of the
                caller's on this file); then the job exists when that commits, and not before.

        Raises:
            ValueError: an argument is wrong; the message shows it; definite.
            PayloadInvalid, PayloadTooLarge: definite.
            NestedTransaction, DatabaseBusy, StorageFull, StorageFailed: definite.
            OutcomeUnknown: indefinite.
        """
        values = new_job(
            self.host.clock.now_ms(), kind, payload, priority=priority, delay=delay, run_at=run_at,
            deadline=deadline, key=key, max_attempts=max_attempts, lease=lease, policy=retry,
        )  # fmt: skip
        if tx is not None:
            return self._enqueue(self.database.joined(tx), values)
        with self.database.write("enqueue") as own:
            return self._enqueue(own, values)

    def enqueue_many(
        self, jobs: Iterable[tuple[str, object]], *, keys: Iterable[str | None] = ()
    ) -> list[int]:
        """Put several (kind, payload) pairs in, all or none; return their ids in order.

        Args:
            jobs: at most `BATCH_MAX`.
            keys: idempotency keys as of `enqueue`, one for each job; none at all if left out.  A
                key that a job of the same batch has before counts as one that lives.

        Raises:
            ValueError: more than `BATCH_MAX` jobs, not as many keys, or as for `enqueue`; definite.
            KillproofError: as for `enqueue`.
        """
        now_ms = self.host.clock.now_ms()
        rows: list[tuple[str | None, ...]] = [
            (model.check_text(kind, "kind", model.KIND_CHARS_MAX), model.encode_payload(payload))
            for kind, payload in jobs
        ]
        model.check_count(len(rows), "number of jobs", 0, BATCH_MAX)
        if isinstance(keys, str):
            raise ValueError(f"keys {keys!r} must be a list of keys: write [{keys!r}]")
        if checked := [_checked_key(key) for key in keys]:
            model.check_count(len(checked), "number of keys", len(rows), len(rows))
            rows = [(*row, key) for row, key in zip(rows, checked, strict=True)]
        if not rows:
            return []
        ids: list[int] = []
        with self.database.write("enqueue") as tx:
            for start in range(0, len(rows), ROWS_AT_ONCE):
                ids += self._enqueue_at_once(tx, now_ms, rows[start : start + ROWS_AT_ONCE])
        return ids

    #: AUTOINCREMENT's own rule: one more than any id that was ever given out.
    LAST_ID: Final = """
        SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'job'), 0),
                   coalesce((SELECT max(id) FROM job), 0))"""

    COUNT_BETWEEN: Final = "SELECT count(*) FROM job WHERE id BETWEEN :first AND :last"

    KEYS_BETWEEN: Final = "SELECT key FROM job WHERE id BETWEEN :first AND :last ORDER BY id"

    def _enqueue_at_once(
        self, tx: Transaction, now_ms: int, rows: Sequence[tuple[str | None, ...]]
    ) -> list[int]:
        """Put some (kind, payload as JSON, key if any) in by one statement, which names their ids.

        All of the rows have a place for a key, or none has.
        """
        (last,) = cast(tuple[int], tx.row(self.LAST_ID))
        kinds, _, *keyed = zip(*rows, strict=True)
        insert = _insert(len(rows), keyed=bool(keyed))
        try:
            tx.change(insert, (last + 1, now_ms, *chain.from_iterable(rows)))
        except (sqlite3.IntegrityError, OverflowError):  # The second: no ids are left.
            # Which of them SQLite refuses, and why, is told row by row.
            usual = [
                new_job(now_ms, cast(str, kind), None)
                | {"payload": text, "key": next(iter(key), None)}
                for kind, text, *key in rows
            ]
            return [self._enqueue(tx, values) for values in usual]
        ids = range(last + 1, last + 1 + len(rows))
        span: dict[str, Value] = {"first": ids[0], "last": ids[-1]}
        assert keyed or tx.row(self.COUNT_BETWEEN, span) == (len(rows),), "each row has its id"
        found = list(ids)
        if keyed and tx.rows(self.KEYS_BETWEEN, span) != [(key,) for key in keyed[0]]:
            # Some keys live already.  Who has none has the id it names.
            found = [
                id_ if key is None else self._living(tx, {"key": key})
                for id_, key in zip(ids, keyed[0], strict=True)
            ]
        new = (kind for kind, id_, named in zip(kinds, found, ids, strict=True) if id_ == named)
        for kind, count in Counter(new).items():
            tx.offer(kind, count)
        return found

    def _enqueue(self, tx: Transaction, values: dict[str, Value]) -> int:
        try:
            new = tx.insert(self.ENQUEUE, values)
        except sqlite3.IntegrityError as error:
            # Our checks are SQLite's, but for one: SQLite allows JSON less depth than Python does.
            raise PayloadInvalid(f"payload refused by SQLite ({error}): flatten it") from error
        if new is None:
            return self._living(tx, values)
        if values["state"] != "blocked":
            # One that waits for its moment, too: who is woken sleeps until then and no longer.
            tx.offer(cast(str, values["kind"]))
        return new

    def _living(self, tx: Transaction, values: dict[str, Value]) -> int:
        """Return the id of the job that an insert has met: one lives with the same key."""
        found = tx.row(self.FIND_KEY, values)
        assert found is not None, "the insert met a live job with this key"
        return cast(int, found[0])

    # Taking out.

    PROMOTE: Final = """
        UPDATE job SET state = 'available', updated_ms = :now_ms
         WHERE id IN (SELECT id FROM job
                       WHERE state IN ('scheduled', 'retryable') AND due_ms <= :now_ms
                       ORDER BY due_ms, id LIMIT :limit)"""

    EXPIRE: Final = """
        UPDATE job SET state = 'expired', finished_ms = :now_ms, updated_ms = :now_ms
         WHERE id IN (SELECT id FROM job
                       WHERE expires_ms <= :now_ms
                         AND state IN ('blocked', 'scheduled', 'available', 'retryable', 'held')
                       ORDER BY expires_ms LIMIT :limit)"""

    UNTHROTTLE: Final = "DELETE FROM throttle WHERE until_ms <= :now_ms"

    FIRST_OF_KINDS: Final = """
        SELECT job.*
          FROM json_each(:kinds) AS wanted
          JOIN job ON job.id = (SELECT id FROM job WHERE state = 'available' AND kind = wanted.value
                                 ORDER BY priority, due_ms, id LIMIT 1)
         WHERE wanted.value NOT IN (SELECT kind FROM throttle)
         ORDER BY priority, due_ms, job.id LIMIT 1"""

    FIRST_OF_ALL: Final = """
        WITH RECURSIVE wanted (value) AS (
            SELECT min(kind) FROM job WHERE state = 'available'
             UNION ALL
            SELECT (SELECT min(kind) FROM job WHERE state = 'available' AND kind > wanted.value)
              FROM wanted WHERE wanted.value IS NOT NULL)
        SELECT job.*
          FROM wanted
          JOIN job ON job.id = (SELECT id FROM job WHERE state = 'available' AND kind = wanted.value
                                 ORDER BY priority, due_ms, id LIMIT 1)
         WHERE wanted.value NOT IN (SELECT kind FROM throttle)
         ORDER BY priority, due_ms, job.id LIMIT 1"""

    CLAIM: Final = """
        UPDATE job
           SET state = 'leased', fence = fence + 1, deliveries = deliveries + 1, owner = :owner,
               lease_deadline_ns = :now_ns + lease_ms * 1000000, claimed_ms = :now_ms,
               updated_ms = :now_ms
         WHERE id = :id AND state = 'available'"""

    def claim(self, kinds: Iterable[str] | None = None) -> Lease | None:
        """Take the first claimable job by (priority, due, id), or return None.

        The claim counts itself: a worker that dies after it has used an attempt.  It also promotes
        what has fallen due and takes back what dead workers held, a bounded number of rows each.

        Args:
            kinds: only jobs of these kinds; None means any.

        Raises:
            NestedTransaction, DatabaseBusy, StorageFull, StorageFailed: definite.
            OutcomeUnknown: a lease may exist that nobody knows of; it is reaped; indefinite.
        """
        leases = self.claim_many(1, kinds)
        return leases[0] if leases else None

    def claim_many(self, limit: int, kinds: Iterable[str] | None = None) -> list[Lease]:
        """Take up to so many jobs in one transaction, in order.

        Raises:
            ValueError: the limit is not an integer from 1 to `BATCH_MAX`; definite.
            KillproofError: as for `claim`.
        """
        model.check_count(limit, "limit", 1, BATCH_MAX)
        wanted = _kinds_json(kinds)
        # An empty poll must not take the write lock; a busy queue must not pay for a look before.
        if not self._full_last and not self._looks_claimable(wanted):
            return []
        while True:
            with self.database.write("claim") as tx:
                taken = self._claim(tx, limit, wanted)
            self._full_last = bool(taken)
            leases = self._readable(taken)
            if leases or not taken:
                return leases

    def ack_and_claim(
        self, lease: Lease, result: object = None, kinds: Iterable[str] | None = None
    ) -> Lease | None:
        """Finish a job and take the next in one transaction: half the commits of a busy worker.

        None: the job is finished, and nothing was claimed, or nothing that can be read.

        Raises:
            LeaseLost: the lease is not current; nothing was claimed either; definite.
            KillproofError: as for `ack` and `claim`.
        """
        text, wanted = model.encode_result(result), _kinds_json(kinds)
        with self.database.write("ack") as tx:
            self._ack(tx, lease, text)
            taken = self._claim(tx, 1, wanted)
        self._full_last = bool(taken)
        # No second claim for one that can not be read: its error would look like one of the ack.
        leases = self._readable(taken)
        return leases[0] if leases else None

    def ack_and_claim_many(
        self,
        leases: Sequence[Lease],
        limit: int,
        kinds: Iterable[str] | None = None,
        *,
        results: Sequence[object] = (),
    ) -> list[Lease]:
        """Finish several jobs and take the next several, all in one transaction.

        It is for workers that keep jobs waiting (prefetch).  So one whose worker has died comes
        alone: it may be the cause, and would take from those that wait with it an attempt each.

        Args:
            leases: as claimed; none is the same as `claim_many`, but for its look before.
            limit: jobs to take at most.
            kinds: only jobs of these kinds; None means any.
            results: one for each lease; left out, none is kept.

        Raises:
            LeaseLost: one of them is not current: none was finished, and nothing claimed; definite.
            ValueError: leases, limit or results are too many, or not as many; definite.
            KillproofError: as for `ack` and `claim`.
        """
        model.check_count(len(leases), "number of leases", 0, BATCH_MAX)
        model.check_count(limit, "limit", 1, BATCH_MAX)
        wanted = _kinds_json(kinds)
        texts = [model.encode_result(result) for result in results or [None] * len(leases)]
        finished = list(zip(leases, texts, strict=True))
        with self.database.write("ack") as tx:
            for lease, text in finished:
                self._ack(tx, lease, text)
            taken = self._claim(tx, limit, wanted, suspects_alone=True)
        self._full_last = bool(taken)
        return self._readable(taken)

    def _claim(
        self, tx: Transaction, limit: int, wanted: str | None, *, suspects_alone: bool = False
    ) -> list["_Taken"]:
        """Take up to so many jobs inside a write; their rows are decoded after the commit."""
        clock = self.host.clock
        now_ms, now_ns = clock.now_ms(), clock.monotonic_ns()
        # Each holder is a claimer as well: together they look once in an interval.
        look = now_ns - self._swept_ns >= SWEEP_INTERVAL_NS * max(1, self._holders_seen)
        owner = self._register(tx, again=look)
        if look:
            self._sweep(tx, SWEEP_ROWS_MAX)
            self._swept_ns = now_ns
        self._promote(tx, now_ms)
        taken: list[_Taken] = []
        statement = self.FIRST_OF_ALL if wanted is None else self.FIRST_OF_KINDS
        for _ in range(limit + SWEEP_ROWS_MAX):  # So many damaged rows are passed over at most.
            if len(taken) == limit or not (row := tx.row(statement, {"kinds": wanted})):
                break
            if suspects_alone and taken and (row[_CRASHES] or taken[-1].row[_CRASHES]):
                break
            if row[_EXPIRES] is not None and cast(int, row[_EXPIRES]) <= now_ms:
                self._move(tx, now_ms, self.EXPIRE, self.FIRST_EXPIRED)  # More than one batch.
                continue
            now_ns = clock.monotonic_ns()
            values = {"id": row[0], "owner": owner, "now_ns": now_ns, "now_ms": now_ms}
            try:
                changed = tx.change(self.CLAIM, values)
            except sqlite3.IntegrityError as error:
                self._set_aside(tx, cast(int, row[0]), error)
                continue
            assert changed <= 1, "inside this transaction nobody else can have taken it"
            if changed:  # Else a limit has refused it, by this claim's clock, and shut its kind.
                taken.append(_Taken(row, owner, now_ms, now_ns))
        return taken

    def _readable(self, taken: list["_Taken"]) -> list[Lease]:
        """Decode what was taken; a job that can not be read goes to the dead letters."""
        leases = []
        for row, owner, now_ms, now_ns in taken:
            claim: dict[str, Value] = {"state": "leased", "owner": owner, "claimed_ms": now_ms}
            try:
                leases.append(_lease_of(_job(row, claim=claim), now_ns))
            except (ValueError, TypeError, RecursionError) as error:
                # One row that somebody damaged must not stop the others.
                lease = _lease_of(_job(_without_payload(row), claim=claim), now_ns)
                # Nor may the trouble of saying so: the other leases are the caller's already.
                with suppress(KillproofError):
                    self.nack(lease, error, permanent=True)
        return leases

    TIME_HAS_COME: Final = """
        SELECT EXISTS (SELECT 1 FROM job
                        WHERE expires_ms <= :now_ms
                          AND state IN ('blocked', 'scheduled', 'available', 'retryable', 'held')),
               EXISTS (SELECT 1 FROM job
                        WHERE state IN ('scheduled', 'retryable') AND due_ms <= :now_ms),
               EXISTS (SELECT 1 FROM throttle WHERE until_ms <= :now_ms)"""

    FIRST_DUE: Final = """
        SELECT id FROM job
         WHERE state IN ('scheduled', 'retryable') AND due_ms <= :now_ms
         ORDER BY due_ms, id LIMIT 1"""

    FIRST_EXPIRED: Final = """
        SELECT id FROM job
         WHERE expires_ms <= :now_ms
           AND state IN ('blocked', 'scheduled', 'available', 'retryable', 'held')
         ORDER BY expires_ms LIMIT 1"""

    def _promote(self, tx: Transaction, now_ms: int) -> None:
        """Do what time alone brings, a bounded number of rows each: jobs expire, or fall due."""
        sync.point("promote.begin")
        found = tx.row(self.TIME_HAS_COME, {"now_ms": now_ms})
        assert found is not None
        is_expired, is_due, is_throttle_over = found
        if is_throttle_over:
            tx.change(self.UNTHROTTLE, {"now_ms": now_ms})
            tx.offer(None)
        if is_expired:  # First: what has expired need not become available.
            self._move(tx, now_ms, self.EXPIRE, self.FIRST_EXPIRED)
        if is_due and (due := self._move(tx, now_ms, self.PROMOTE, self.FIRST_DUE)):
            tx.offer(None, due)
            sync.point("promote.written")

    def _move(self, tx: Transaction, now_ms: int, move: LiteralString, first: LiteralString) -> int:
        """Move a bounded number of rows; return how many, 0 when damaged rows were among them."""
        values: dict[str, Value] = {"now_ms": now_ms, "limit": SWEEP_ROWS_MAX}
        try:
            return tx.change(move, values)
        except sqlite3.IntegrityError:  # A damaged row among them: one by one, then.
            for _ in range(SWEEP_ROWS_MAX):
                try:
                    tx.change(move, values | {"limit": 1})
                except sqlite3.IntegrityError as error:
                    damaged = tx.row(first, values)
                    assert damaged is not None
                    self._set_aside(tx, cast(int, damaged[0]), error)
            return 0

    SET_ASIDE: Final = """
        UPDATE job
           SET state = 'held', owner = NULL, lease_deadline_ns = NULL, finished_ms = NULL,
               result = NULL, updated_ms = :now_ms, expires_ms = NULL,
               max_attempts = max(max_attempts, 1),
               fence = max(fence, 0), deliveries = min(max(deliveries, 0), max(fence, 0)),
               forgiven = min(max(forgiven, 0), max(deliveries, 0), max(fence, 0)),
               error_class = 'RowDamaged', error_message = :message
         WHERE id = :id"""

    def _set_aside(self, tx: Transaction, job_id: int, error: sqlite3.IntegrityError) -> None:
        """Hold a row that breaks the rules of the schema, for a person: it must not stop the rest.

        Only a program that has switched the checks off, or a failing disk, makes such a row.
        """
        now_ms = self.host.clock.now_ms()
        tx.change(self.SET_ASIDE, {"id": job_id, "now_ms": now_ms, "message": str(error)})

    # Working.

    EXTEND: Final = """
        UPDATE job SET lease_deadline_ns = :deadline_ns, updated_ms = :now_ms
         WHERE id = :id AND fence = :fence AND owner = :worker AND state = 'leased'"""

    def extend(self, lease: Lease) -> Lease:
        """Prolong a lease by its full length from now; return it with the new deadline.

        Raises:
            LeaseLost: it is not current; definite.
            KillproofError: as for `ack`.
        """
        self._check_identity()
        clock = self.host.clock
        deadline_ns = clock.monotonic_ns() + lease.job.lease_ms * 1_000_000
        with self.database.write("extend") as tx:
            values = _fenced(lease, now_ms=clock.now_ms(), deadline_ns=deadline_ns)
            if not tx.change(self.EXTEND, values):
                raise LeaseLost(lease.job.id, lease.fence, "extend")
        return dataclasses.replace(lease, deadline_ns=deadline_ns)

    def ack(self, lease: Lease, result: object = None) -> None:
        """Finish a job; its success is durable at the file's level on return.

        Repeating it with the same lease is harmless: after `OutcomeUnknown` just call it again.

        Args:
            lease: as claimed.
            result: kept with the job; what JSON cannot hold is kept as its repr, with a flag.

        Raises:
            LeaseLost: the lease is not current, and this attempt has not succeeded; definite.
            NestedTransaction, DatabaseBusy, StorageFull, StorageFailed: definite.
            OutcomeUnknown: indefinite.
        """
        text = model.encode_result(result)
        with self.database.write("ack") as tx:
            self._ack(tx, lease, text)

    def ack_many(self, leases: Sequence[Lease]) -> None:
        """Finish several jobs, all or none.

        Raises:
            LeaseLost: one of them is not current: none was finished; ack them one by one; definite.
            KillproofError: as for `ack`.
        """
        model.check_count(len(leases), "number of leases", 0, BATCH_MAX)
        with self.database.write("ack") as tx:
            for lease in leases:
                self._ack(tx, lease, None)

    IS_CURRENT: Final = """
        SELECT 1 FROM job
         WHERE id = :id AND fence = :fence AND owner = :worker AND state = 'leased'"""

    def is_current(self, lease: Lease) -> bool:
        """Whether nobody has taken, cancelled or ended the job since; advisory, no lock taken.

        Raises:
            DatabaseBusy, StorageFailed: definite.
        """
        return bool(self.database.peek(self.IS_CURRENT, _fenced(lease)))

    @contextmanager
    def completing(self, lease: Lease, result: object = None) -> Iterator[Transaction]:
        """Run the block's SQL and the ack in one transaction: an exactly-once effect in this file.

        The write lock is held for the length of the block: no network calls, no waiting in it.

        Raises:
            LeaseLost: before the block, if the lease is not current; definite.
            KillproofError: as for `ack`.
        """
        text = model.encode_result(result)
        with self.database.write("complete") as tx:
            if not tx.row(self.IS_CURRENT, _fenced(lease)):
                raise LeaseLost(lease.job.id, lease.fence, "complete")
            yield tx
            self._ack(tx, lease, text)

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a write transaction on the file, for the caller's SQL and `enqueue(..., tx=tx)`.

        It holds the write lock for the length of the block, and is durable when the block is left.

        Raises:
            KillproofError: as for `ack`, but for `LeaseLost`.
        """
        return self.database.write("")

    def nack(
        self,
        lease: Lease,
        error: BaseException | str,
        *,
        delay: float | None = None,
        permanent: bool = False,
    ) -> None:
        """Record a failed attempt: the job waits for its next one, or is dead.

        Args:
            lease: as claimed.
            error: an exception or a text; class, message and traceback are kept for the attempt.
            delay: seconds to wait instead of what the policy says (Retry-After).
            permanent: no further attempt.

        Raises:
            LeaseLost: the lease is not current; definite.
            KillproofError: as for `ack`.
        """
        failure, job = Failure.of(error), lease.job
        wait_ms = self._policy_ms(job) if delay is None else model.to_ms(delay, "delay")
        with self.database.write("nack") as tx:
            if permanent or job.attempt >= job.max_attempts:
                self._end(tx, lease, "nack", "dead", "failed", failure=failure)
            else:
                self._end(tx, lease, "nack", "retryable", "failed", wait_ms, failure)

    def release(self, lease: Lease) -> None:
        """Give a job back untouched, for anybody to claim at once; it was no attempt.

        Raises:
            LeaseLost: the lease is not current; definite.
            KillproofError: as for `ack`.
        """
        with self.database.write("release") as tx:
            self._end(tx, lease, "release", "available", "released")

    def snooze(self, lease: Lease, delay: float) -> None:
        """Give a job back for a later time, in seconds from now; it was no attempt.

        Raises:
            LeaseLost: the lease is not current; definite.
            KillproofError: as for `ack`.
        """
        wait_ms = model.to_ms(delay, "delay")
        with self.database.write("snooze") as tx:
            self._end(tx, lease, "snooze", "scheduled", "snoozed", wait_ms)

    OUTCOME_OF: Final = "SELECT outcome FROM attempt WHERE job_id = :id AND fence = :fence"

    def _ack(self, tx: Transaction, lease: Lease, result: str | None) -> None:
        try:
            self._end(tx, lease, "ack", "succeeded", "succeeded", result=result)
        except LeaseLost:
            if tx.row(self.OUTCOME_OF, _fenced(lease)) != ("succeeded",):
                raise

    END: Final = """
        UPDATE job
           SET state = :state, due_ms = coalesce(:due_ms, due_ms), result = :result,
               forgiven = forgiven + (:outcome IN ('released', 'snoozed', 'held')),
               failures = failures + (:outcome = 'failed'),
               crashes = crashes + (:outcome IN ('crashed', 'expired')),
               owner = NULL, lease_deadline_ns = NULL, updated_ms = :now_ms,
               finished_ms = iif(:state IN ('succeeded', 'dead', 'cancelled'), :now_ms, NULL),
               error_class = iif(:state = 'succeeded', NULL, coalesce(:error_class, error_class)),
               error_message = iif(:state = 'succeeded', NULL, coalesce(:message, error_message))
         WHERE id = :id AND fence = :fence AND owner = :worker AND state = 'leased'
           AND lease_deadline_ns <= :before_ns"""

    # OR REPLACE: somebody who sets a job back by hand, fence and all, must not stop its outcome.
    RECORD: Final = """
        INSERT OR REPLACE INTO attempt
               (job_id, fence, outcome, worker, started_ms, finished_ms,
                error_class, error_message, traceback)
        VALUES (:id, :fence, :outcome, :worker, :started_ms, :now_ms,
                :error_class, :message, :traceback)"""

    def _end(
        self,
        tx: Transaction,
        lease: Lease,
        operation: str,
        state: str,
        outcome: str,
        wait_ms: int | None = None,
        failure: Failure | None = None,
        result: str | None = None,
        before_ns: int = NEVER_NS,
    ) -> None:
        """End a lease: the one way out of `leased`, for success, failure, return and death alike.

        The fence in its WHERE is what stops a worker that was believed dead; the reaper repeats
        what it believes (the owner, and for expiry that the deadline has not moved).

        Raises:
            LeaseLost: the lease is not current; nothing was changed.
        """
        now_ms = self.host.clock.now_ms()
        values: dict[str, Value] = {
            "id": lease.job.id,
            "fence": lease.fence,
            "worker": lease.owner,
            "now_ms": now_ms,
            "before_ns": before_ns,
            "state": state,
            "outcome": outcome,
            "due_ms": None if wait_ms is None else now_ms + wait_ms,
            "result": result,
            "started_ms": lease.claimed_ms,
            "error_class": None if failure is None else failure.error_class,
            "message": None if failure is None else failure.message,
            "traceback": None if failure is None else failure.traceback,
        }
        before = tx.changes
        if not tx.change(self.END, values):
            raise LeaseLost(lease.job.id, lease.fence, operation)
        tx.change(self.RECORD, values)
        if state in ("available", "retryable", "scheduled"):
            tx.offer(lease.job.kind)
        if more := tx.changes - before - 2:
            # Triggers of what stands above the core: the next steps of a run, a limit that opens.
            tx.offer(None, more)

    def _policy_ms(self, job: Job) -> int:
        """Return the policy's delay; a policy that somebody damaged must not lose the job."""
        try:
            return retry.delay_ms(job.retry, job.attempt, self.host.random)
        except ValueError:
            return retry.delay_ms("article", job.attempt, self.host.random)

    # Calling off, and looking.

    CANCEL: Final = """
        UPDATE job SET state = 'cancelled', finished_ms = :now_ms, updated_ms = :now_ms
         WHERE id = :id AND state IN ('blocked', 'scheduled', 'available', 'retryable', 'held')"""

    def cancel(self, job_id: int) -> bool:
        """Call a job off; True if it is cancelled now, False if it had ended otherwise before.

        A handler that is running learns it at its next heartbeat, and its outcome is refused.

        Raises:
            JobNotFound: definite.
            KillproofError: as for `ack`.
        """
        model.check_count(job_id, "id", 1, ID_MAX)
        with self.database.write("cancel") as tx:
            row = tx.row(self.GET, {"id": job_id})
            if row is None:
                raise JobNotFound(f"there is no job {job_id} in {self.path}: see killproof status")
            job = _job(_without_payload(row))
            if job.state in model.TERMINAL:
                return job.state == "cancelled"
            if job.state == "leased":
                self._end(tx, _lease_of(job), "cancel", "cancelled", "cancelled")
            else:
                values: dict[str, Value] = {"id": job_id, "now_ms": self.host.clock.now_ms()}
                changed = tx.change(self.CANCEL, values)
                assert changed == 1
        return True

    GET: Final = "SELECT * FROM job WHERE id = :id"

    ATTEMPTS: Final = """
        SELECT fence, outcome, worker, started_ms, finished_ms, error_class, error_message,
               traceback
          FROM attempt WHERE job_id = :id ORDER BY fence"""

    def get(self, job_id: int) -> Job | None:
        """Return the job with all its ended attempts, or None; what it says is durable.

        Raises:
            DatabaseBusy, NestedTransaction, StorageFailed: definite.
        """
        with self.database.read() as tx:
            row = tx.row(self.GET, {"id": model.check_count(job_id, "id", 1, ID_MAX)})
            attempts = tx.rows(self.ATTEMPTS, {"id": job_id})
        if row is None:
            return None
        try:
            return _job(row, attempts=attempts)
        except (ValueError, TypeError, RecursionError):
            return _job(_without_payload(row), attempts=attempts)

    COUNTS: Final = """
                  SELECT 'blocked', count(*) FROM job WHERE state IN ('blocked', 'held')
                     AND state = 'blocked'
        UNION ALL SELECT 'held', count(*) FROM job WHERE state IN ('blocked', 'held')
                     AND state = 'held'
        UNION ALL SELECT 'available', count(*) FROM job WHERE state = 'available'
        UNION ALL SELECT 'leased', count(*) FROM job WHERE state = 'leased'
        UNION ALL SELECT 'scheduled', count(*) FROM job WHERE state IN ('scheduled', 'retryable')
                     AND state = 'scheduled'
        UNION ALL SELECT 'retryable', count(*) FROM job WHERE state IN ('scheduled', 'retryable')
                     AND state = 'retryable'
        UNION ALL SELECT state, count(*) FROM job
                   WHERE finished_ms IS NOT NULL
                     AND state IN ('succeeded', 'dead', 'cancelled', 'expired')
                   GROUP BY state"""

    def counts(self) -> dict[str, int]:
        """Return the number of jobs in each state, all from one snapshot, durable.

        It counts index entries: cheap against rows, but not free at a million of them.

        Raises:
            DatabaseBusy, NestedTransaction, StorageFailed: definite.
        """
        with self.database.read() as tx:
            found = {cast(str, state): cast(int, count) for state, count in tx.rows(self.COUNTS)}
        return {state: found.get(state, 0) for state in model.STATES}

    # Death and expiry.

    HOLDERS: Final = """
        WITH RECURSIVE holder (id) AS (
            SELECT min(owner) FROM job WHERE state = 'leased'
             UNION ALL
            SELECT (SELECT min(owner) FROM job WHERE state = 'leased' AND owner > holder.id)
              FROM holder WHERE holder.id IS NOT NULL)
        SELECT holder.id, worker.clock, worker.file, worker.byte,
               (SELECT min(lease_deadline_ns) FROM job WHERE state = 'leased' AND owner = holder.id)
          FROM holder LEFT JOIN worker ON worker.id = holder.id
         WHERE holder.id IS NOT NULL"""

    HELD_BY: Final = """
        SELECT id, lease_deadline_ns
          FROM job WHERE state = 'leased' AND owner = :owner AND lease_deadline_ns <= :before_ns
         ORDER BY lease_deadline_ns LIMIT :limit"""

    def reap(self) -> int:
        """Take back the leases of dead workers and those that have run out; return how many.

        Claims do it as well, a bounded number of rows each; this does it until nothing is left.

        Raises:
            KillproofError: as for `claim`; what was taken back before stays so.
        """
        reaped = 0
        while True:
            with self.database.write("reap") as tx:
                found = self._sweep(tx, SWEEP_ROWS_MAX)
            reaped += found
            if found < SWEEP_ROWS_MAX:
                return reaped

    def _sweep(self, tx: Transaction, limit: int) -> int:
        """Reap up to so many leases inside a write."""
        sync.point("reap.begin")
        reaped = 0
        holders = [_Holder(*cast(Any, row)) for row in tx.rows(self.HOLDERS)]
        self._holders_seen = len(holders)
        for holder in holders:
            for job, outcome, before_ns in self._lost(tx, holder, limit - reaped):
                try:
                    self._take_back(tx, job, outcome, before_ns)
                except sqlite3.IntegrityError as error:
                    self._set_aside(tx, job.id, error)
                reaped += 1
        if reaped:
            sync.point("reap.written")
        return reaped

    def _lost(
        self, tx: Transaction, holder: "_Holder", limit: int
    ) -> Iterator[tuple[Job, str, int]]:
        """Yield the jobs whose lease is lost, why, and the deadline that this rests on."""
        now_ns = self.host.clock.monotonic_ns()
        before_ns, outcome = NEVER_NS, ""
        if self._is_dead(holder):
            outcome = "crashed"
        elif holder.clock == self.host.clock.ident():
            if holder.first_deadline_ns is None or holder.first_deadline_ns > now_ns:
                return
            before_ns, outcome = now_ns, "expired"
        held = tx.rows(self.HELD_BY, {"owner": holder.id, "before_ns": before_ns, "limit": limit})
        for job_id, deadline_ns in cast(list[tuple[int, int]], held):
            job = self._read(tx, job_id)
            if outcome:
                yield job, outcome, before_ns
            elif self._watched_out(job, deadline_ns, now_ns):
                yield job, "expired", deadline_ns

    def _read(self, tx: Transaction, job_id: int) -> Job:
        """Return a job that is known to exist, without its payload: it may be damaged, or long."""
        row = tx.row(self.GET, {"id": job_id})
        assert row is not None
        return _job(_without_payload(row))

    def _is_dead(self, holder: "_Holder") -> bool:
        """Whether the kernel proves it: a free byte of the very file that this process tests."""
        liveness = self._liveness()
        return (
            bool(liveness.file)
            and holder.file == liveness.file
            and liveness.is_free(cast(int, holder.byte))
        )

    def _liveness(self) -> Liveness:
        """Return what deaths are seen by; who only waits or reaps holds no byte of it."""
        with self.database.guard:
            if self.database.liveness is None:
                self.database.liveness = self.host.lock.liveness(self.path)
            return self.database.liveness

    def _watched_out(self, job: Job, deadline_ns: int, now_ns: int) -> bool:
        """Whether a lease on an incomparable clock was watched unchanged for long enough."""
        seen = self._watched.get(job.id)
        if seen is None or seen[:2] != (job.fence, deadline_ns):
            if len(self._watched) >= 10 * SWEEP_ROWS_MAX:
                self._watched.clear()
            self._watched[job.id] = (job.fence, deadline_ns, now_ns)
            return False
        return now_ns - seen[2] >= job.lease_ms * 1_000_000 * (1 + WATCH_MARGIN)

    def _take_back(self, tx: Transaction, job: Job, outcome: str, before_ns: int) -> None:
        """End a lost lease; it used up an attempt."""
        failure = CRASHED if outcome == "crashed" else SILENT
        state, wait_ms = "available", None  # The first time the cause is usually the worker ...
        if job.attempt >= job.max_attempts:
            state = "dead"
        elif job.crashes:
            state, wait_ms = "retryable", self._policy_ms(job)  # ... later it is usually the job.
        lease = _lease_of(job)
        self._end(tx, lease, "reap", state, outcome, wait_ms, failure, before_ns=before_ns)
        self._watched.pop(job.id, None)

    # Who we are.

    REGISTER: Final = """
        INSERT OR IGNORE INTO worker (id, clock, file, byte, pid, registered_ms)
        VALUES (:id, :clock, :file, :byte, :pid, :now_ms)"""

    IDLE_WORKERS: Final = """
        SELECT id, clock, file, byte, registered_ms FROM worker
         WHERE NOT EXISTS (SELECT 1 FROM job WHERE state = 'leased' AND owner = worker.id)
         LIMIT 100"""

    UNREGISTER: Final = """
        DELETE FROM worker WHERE id = :id
           AND NOT EXISTS (SELECT 1 FROM job WHERE state = 'leased' AND owner = worker.id)"""

    def _register(self, tx: Transaction, *, again: bool) -> str:
        """Return our identity, registered in this transaction: the byte, the row, then claims.

        The row is offered `again` now and then: a rollback or another program may have taken it.
        Until then our death would be noticed by the lease alone.
        """
        identity = self._identity
        if not again and identity is not None and identity.liveness is self.database.liveness:
            return identity.id
        liveness = self._liveness()
        with self.database.guard:
            identity = self._identity
            new = identity is None or identity.liveness is not liveness
            if new:
                identity = self._identity = _Identity(liveness, self.host.token())
            assert identity is not None
        if new or again:
            values: dict[str, Value] = {
                "id": identity.id,
                "clock": self.host.clock.ident(),
                "file": identity.file,
                "byte": identity.byte,
                "pid": identity.pid,
                "now_ms": self.host.clock.now_ms(),
            }
            tx.change(self.REGISTER, values)
        if new:
            self._forget_the_dead(tx)
        return identity.id

    def _forget_the_dead(self, tx: Transaction) -> None:
        """Delete the rows of workers that are gone and hold nothing."""
        old_ms = self.host.clock.now_ms() - WORKER_KEPT_MS
        for owner, clock, file, byte, registered_ms in tx.rows(self.IDLE_WORKERS):
            holder = _Holder(
                cast(str, owner), cast(str, clock), cast(str, file), cast(int, byte), None
            )
            foreign = file != self._liveness().file
            if self._is_dead(holder) or (foreign and cast(int, registered_ms) < old_ms):
                tx.change(self.UNREGISTER, {"id": holder.id})

    def _check_identity(self) -> None:
        """Take a new identity for new claims if the old one can no longer be seen alive.

        A handler may have closed every descriptor, somebody may have deleted the lock file.  The
        old descriptors are left alone: their numbers may belong to somebody else by now.
        """
        with self.database.guard:
            liveness = self.database.liveness
            if liveness is not None and not liveness.is_sound():
                self.database.liveness = None

    def _leave(self, identity: "_Identity") -> None:
        """Release what we hold, delete our row, free the byte: backwards.

        The row stays while a lease names it: without it the freed byte would prove nothing.
        """
        with self.database.write("release") as tx:
            held = tx.rows(
                self.HELD_BY, {"owner": identity.id, "before_ns": NEVER_NS, "limit": BATCH_MAX}
            )
            for job_id, _ in cast(list[tuple[int, int]], held):
                lease = _lease_of(self._read(tx, job_id))
                # A damaged row stays leased: the freed byte will tell the others.
                with suppress(sqlite3.IntegrityError):
                    self._end(tx, lease, "release", "available", "released")
            tx.change(self.UNREGISTER, {"id": identity.id})
        identity.liveness.release()

    # Waiting.

    ANY_OF_KINDS: Final = """
        SELECT 1 FROM json_each(:kinds) AS wanted
         WHERE EXISTS (SELECT 1 FROM job WHERE state = 'available' AND kind = wanted.value)
           AND wanted.value NOT IN (SELECT kind FROM throttle)
         LIMIT 1"""

    ANY: Final = """
        WITH RECURSIVE wanted (value) AS (
            SELECT min(kind) FROM job WHERE state = 'available'
             UNION ALL
            SELECT (SELECT min(kind) FROM job WHERE state = 'available' AND kind > wanted.value)
              FROM wanted WHERE wanted.value IS NOT NULL)
        SELECT 1 FROM wanted
         WHERE wanted.value IS NOT NULL AND wanted.value NOT IN (SELECT kind FROM throttle)
         LIMIT 1"""

    #: The next moment at which time alone lets something happen.
    NEXT_MOMENT: Final = """
        SELECT min(moment_ms)
          FROM (SELECT min(due_ms) AS moment_ms FROM job WHERE state IN ('scheduled', 'retryable')
                 UNION ALL
                SELECT min(expires_ms) FROM job
                 WHERE expires_ms IS NOT NULL
                   AND state IN ('blocked', 'scheduled', 'available', 'retryable', 'held')
                 UNION ALL
                SELECT min(until_ms) FROM throttle)"""

    def wait(
        self,
        kinds: Iterable[str] | None = None,
        seconds: float = 1.0,
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait until something looks claimable; False after so many seconds without.

        A commit of killproof's that lets a job be claimed wakes one waiter that looks for its kind,
        for each such job.  Besides, every 0.25 s, it looks itself: at a counter in shared memory,
        and, every 0.1 s if there are any, at the locks of those who hold leases; rows are read
        only after somebody has committed.  It takes no write lock.

        Args:
            kinds: only jobs of these kinds; None means any.
            seconds: to wait at most.
            until: asked after each pause, and at once when a signal has come: True ends the wait.

        Raises:
            ValueError: kinds or seconds are wrong; the message shows it; definite.
            DatabaseBusy, StorageFailed: definite.
        """
        wanted, clock = _kinds_json(kinds), self.host.clock
        end_ns = clock.monotonic_ns() + model.to_ms(seconds, "seconds") * 1_000_000
        classes = classes_of(None if wanted is None else json.loads(wanted))
        woken, vain_pause = False, 0.0
        seen: Sequence[Value] | None = None
        holders: list[_Holder] = []
        next_moment_ms: int | None = None
        # Before the look: a commit after it has then moved the count on, and nobody sleeps.
        arrivals, count = self.database.arrivals()
        while True:
            version = self.database.peek("PRAGMA data_version")[0]
            if version != seen:
                seen = version
                if self._is_available(wanted):
                    self._full_last = True  # The claim need not look as well.
                    return True
                next_moment_ms = cast(int | None, self.database.peek(self.NEXT_MOMENT)[0][0])
                holders = self._holders()
            if next_moment_ms is not None and next_moment_ms <= clock.now_ms():
                return True
            if self._any_lost(holders):
                return True
            left = (end_ns - clock.monotonic_ns()) / 1e9
            if left <= 0:
                return False
            chance = self.host.random.random()
            if woken:
                # Others are quicker, or it was another kind of the class: were each such wake-up
                # followed, a busy queue's idle workers would take the CPU from its busy ones.
                woken, vain_pause = False, min(max(vain_pause * 2, VAIN_PAUSE_FIRST), IDLE_PAUSE)
                clock.sleep(min(left, vain_pause * (0.75 + chance / 2)))
                if until():
                    return False
                arrivals, count = self.database.arrivals()
                continue
            pause = (HOLDERS_PAUSE if holders else IDLE_PAUSE) * (0.75 + chance / 2)
            if next_moment_ms is not None:
                due = (next_moment_ms - clock.now_ms()) / 1e3
                # Not all at once: the first to look promotes it for all.
                pause = min(pause, due + chance * DUE_JITTER)
            woken = clock.rest(min(left, pause), partial(arrivals.wait, count, classes))
            if until():
                return False
            if woken:
                arrivals, count = self.database.arrivals()
            else:
                vain_pause = 0.0

    def _looks_claimable(self, wanted: str | None) -> bool:
        """Whether a claim would find something, as far as a look can tell without the lock."""
        moment = self.database.peek(self.NEXT_MOMENT)[0][0]
        return (
            self._is_available(wanted)
            or (moment is not None and cast(int, moment) <= self.host.clock.now_ms())
            or self._any_lost(self._holders())
        )

    def _is_available(self, wanted: str | None) -> bool:
        if wanted is None:
            return bool(self.database.peek(self.ANY))
        return bool(self.database.peek(self.ANY_OF_KINDS, {"kinds": wanted}))

    def _holders(self) -> list["_Holder"]:
        return [_Holder(*cast(Any, row)) for row in self.database.peek(self.HOLDERS)]

    def _any_lost(self, holders: Iterable["_Holder"]) -> bool:
        """Whether a sweep would find something; a foreign clock is for the sweep to watch."""
        clock = self.host.clock
        now_ns = clock.monotonic_ns()
        for holder in holders:
            first_ns = holder.first_deadline_ns
            if holder.clock != clock.ident():
                lost = now_ns - self._swept_ns >= 10 * SWEEP_INTERVAL_NS
            else:
                lost = first_ns is not None and first_ns <= now_ns
            if lost or self._is_dead(holder):
                self._swept_ns = 0  # The next claim must look, however shortly after the last look.
                return True
        return False


class _Identity:
    """One life of this process as a worker; never used twice."""

    def __init__(self, liveness: Liveness, token: str) -> None:
        self.id = token
        self.liveness = liveness
        self.byte = liveness.hold()
        self.file = liveness.file  # '' by now if the lock could not be had.
        self.pid = os.getpid()


class _Holder(NamedTuple):
    """A worker that holds leases, as its row tells; a missing row proves nothing."""

    id: str
    clock: str | None
    file: str | None
    byte: int | None
    first_deadline_ns: int | None


def new_job(
    now_ms: int,
    kind: str,
    payload: object,
    *,
    priority: int = 5,
    delay: float = 0,
    run_at: float | datetime | None = None,
    deadline: float | datetime | None = None,
    key: str | None = None,
    max_attempts: int = 5,
    lease: float = 60.0,
    policy: str = "article",
) -> dict[str, Value]:
    """Check the arguments of an enqueue and return the values of its row; opens nothing.

    Raises:
        ValueError, PayloadInvalid, PayloadTooLarge: as for `Queue.enqueue`; definite.
    """
    if run_at is not None and delay:
        raise ValueError(f"delay {delay!r} and run_at {run_at!r} exclude each other")
    wait_ms = model.to_ms(delay, "delay")
    due_ms = now_ms + wait_ms if run_at is None else max(now_ms, model.moment_ms(run_at))
    expires_ms = None if deadline is None else model.moment_ms(deadline)
    if expires_ms is not None and expires_ms <= due_ms:
        raise ValueError(f"deadline {deadline!r} must be later than the moment the job is due")
    retry.parse(policy)
    return {
        "kind": model.check_text(kind, "kind", model.KIND_CHARS_MAX),
        "state": "scheduled" if due_ms > now_ms else "available",
        "payload": model.encode_payload(payload),
        "priority": model.check_count(priority, "priority", 0, 9),
        "due_ms": due_ms,
        "key": _checked_key(key),
        "max_attempts": model.check_count(max_attempts, "max_attempts", 1, model.ATTEMPTS_MAX),
        "lease_ms": model.to_ms(lease, "lease", lowest_ms=1),
        "retry": policy,
        "now_ms": now_ms,
        "expires_ms": expires_ms,
    }


def _checked_key(key: object) -> str | None:
    return None if key is None else model.check_text(key, "key", model.KEY_CHARS_MAX)


@cache
def _insert(rows: int, *, keyed: bool) -> LiteralString:
    """Return the INSERT of so many rows: ?1 is the first id, ?2 the time, then those of each row.

    Kind, payload, and the key if there are keys.  What it does not name has the default of the
    schema, which is that of `enqueue`.  The text is the same for as many rows, so SQLite compiles
    it once.
    """
    column: LiteralString = ", key" if keyed else ""
    # A parameter without a number has the one after the greatest so far.
    key: LiteralString = ", ?" if keyed else ""
    places: list[LiteralString] = [
        f"(?1 + {n}, ?2, ?2, ?2, 'available', ?, ?{key})" for n in range(rows)
    ]
    return (
        "INSERT INTO job (id, due_ms, created_ms, updated_ms, state, kind, payload"  # noqa: S608
        f"{column}) VALUES {', '.join(places)} {Queue.UNLESS_KEY_LIVES if keyed else ''}"
    )


def _kinds_json(kinds: Iterable[str] | None) -> str | None:
    if kinds is None:
        return None
    if isinstance(kinds, str):
        raise ValueError(f"kinds {kinds!r} must be a list of kinds: write [{kinds!r}]")
    return json.dumps([model.check_text(kind, "kind", model.KIND_CHARS_MAX) for kind in kinds])


def _fenced(lease: Lease, **values: Value) -> dict[str, Value]:
    """Return the values of a statement, with the fencing token that its WHERE names."""
    values["id"] = lease.job.id
    values["fence"] = lease.fence
    values["worker"] = lease.owner
    return values


def _lease_of(job: Job, now_ns: int = 0) -> Lease:
    """Return the lease that a leased job's row stands for."""
    assert job.owner is not None
    return Lease(
        job=job,
        fence=job.fence,
        owner=job.owner,
        claimed_ms=job.claimed_ms or job.created_ms,
        deadline_ns=now_ns + job.lease_ms * 1_000_000,
    )


def _job(
    row: tuple[Value, ...],
    attempts: Iterable[tuple[Value, ...]] = (),
    claim: Mapping[str, Value] | None = None,
) -> Job:
    """Make a job of its row, as it was or as a claim has made it since.

    Raises:
        ValueError, TypeError, RecursionError: the payload or the result is not JSON.
    """
    # Not strict: the file's owner may have added columns of his own, and those come last.
    values: dict[str, Any] = dict(zip(_COLUMNS, row, strict=False))
    for name in _NOT_IN_JOB:
        del values[name]
    if claim is not None:
        values |= claim
        values["fence"] += 1
        values["deliveries"] += 1
    values["payload"] = json.loads(values["payload"])
    if values["result"] is not None:
        values["result"] = json.loads(values["result"])
    if attempts:
        values["attempts"] = tuple(
            Attempt(**cast(Any, dict(zip(_ATTEMPT_FIELDS, attempt, strict=True))))
            for attempt in attempts
        )
    return Job(**values)


def _without_payload(row: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the row with nothing in it that would have to be decoded."""
    return (*row[: len(_COLUMNS) - 2], None, "null")


class _Taken(NamedTuple):
    """A job that a transaction has taken: its row as it was, and the claim."""

    row: tuple[Value, ...]
    owner: str
    now_ms: int
    now_ns: int


#: The columns of `job`, in the order of the schema; a test compares.
_COLUMNS: Final = (
    *("id", "kind", "state", "priority", "due_ms", "expires_ms", "key", "max_attempts", "lease_ms"),
    *("retry", "fence", "deliveries", "forgiven", "failures", "crashes", "owner"),
    *("lease_deadline_ns", "claimed_ms", "created_ms", "updated_ms", "finished_ms", "error_class"),
    *("error_message", "result", "payload"),
)
_EXPIRES: Final = _COLUMNS.index("expires_ms")
_CRASHES: Final = _COLUMNS.index("crashes")
_NOT_IN_JOB: Final = ("lease_deadline_ns", "updated_ms")
_ATTEMPT_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Attempt))
