r"""Limits that hold over all processes: how many run, how often they start, who waits until when.

    limits = Limits(queue)
    limits.set("shop", kinds=["scrape", "sync_stock"], running=2, rate=5.0, burst=10)
    limits.set("main database", kinds=["backup", "migrate"], running=1)        # a mutex
    limits.breaker("shop", failures=5, window=60, pause=30)
    limits.close("shop", 60, "HTTP 429")                        # nobody asks before then

A limit is of a *resource*: what jobs compete for.  Kinds of job use resources, a kind may use
several, and a job starts when all of them let it.  The four rules:

- **running**: at most so many of its jobs are leased at any commit.  Whatever ends a lease frees
  the slot: success, failure, release, cancel, and the reaper after a kill.
- **rate**: a token bucket.  In any stretch of time no more than `burst + rate * seconds` start.
- **closed**: somebody was told to come back later (HTTP's Retry-After), and tells all others.
- **breaker**: after `failures` within `window` seconds nothing starts for `pause` seconds; then one
  job over all processes tries, and its end decides.

**Where the rules live.**  In the file: `limits.sql` holds them as triggers on `job`, which write
rows into the core's `throttle` in the very transaction that begins or ends a lease.  The claim has
known that table since the core's first version, so a process that started before the limit was
set, or knows nothing of limits, keeps it too; and as lease and slot are one commit, a crash at any
moment leaves both or neither.  No process has to be alive for a limit to hold, or to open again.

**Clocks.**  Tokens and closings are counted on the monotonic clock of the claims, which no step of
the wall clock moves.  Rows of `throttle` end by the wall clock, for that is what the core looks at;
so a trigger has the last word at each claim, by the claim's own monotonic reading, and refuses it.
A step forward therefore lets nobody in.  A step backward would keep a row too long: `mend` moves
it, and each worker calls that once a second.  Where two claims have no clock in common (a reboot,
time namespaces) the wall clock decides, and a step of it refills the bucket once at most.  The
pause and the window of a breaker are wall clock throughout: a step forward lets one try early.

What this is not: no fairness between resources, and no limit that counts anything but jobs.
Read `limits.sql` next.
"""

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypedDict, cast

from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.errors import FileRefused
from killproof.core.jobs import Queue
from killproof.limits_reading import (
    ALL_GATES,
    GATES_OF,
    KINDS_OF,
    NEVER_MS,
    SCHEMA_VERSION,
    VERSION,
    Limit,
    Now,
    has_tables,
    left_ms,
    missing_of,
    moved,
    read,
)

NAME_CHARS_MAX: Final = 100
WHY_CHARS_MAX: Final = 500
RUNNING_MAX: Final = 1_000_000
BURST_MAX: Final = 1_000_000
#: More starts in a second than any file commits are no limit.
RATE_MAX: Final = 1_000_000.0
#: A bucket that takes longer to fill is a mistake in units; and its nanoseconds must fit 63 bits.
FILL_SECONDS_MAX: Final = 100 * 365 * 86_400.0
FAILURES_MAX: Final = 1_000
#: Kinds of one resource: under a mutex each claim and each end writes as many rows, about 6 ms.
KINDS_MAX: Final = 1_000
#: How often a worker looks for rows that a step of the clock has moved.
MEND_INTERVAL_NS: Final = 1_000_000_000
#: Room that is left for a number in the name of a resource that is made for a kind.
NUMBER_CHARS: Final = 8


class Limits:
    """The limits of a queue's file; nothing is kept in the object but the time of a look."""

    def __init__(self, queue: Queue) -> None:
        """Wrap a queue; tables and triggers are made when the first limit is set."""
        self._queue = queue
        self._mend_at_ns = 0

    # Setting.

    ADD: Final = "INSERT INTO limit_resource (name) VALUES (:name) ON CONFLICT (name) DO NOTHING"

    JOIN_KIND: Final = """
        INSERT INTO limit_kind (kind, resource) VALUES (:kind, :name)
            ON CONFLICT (kind, resource) DO NOTHING"""

    LEAVE_KIND: Final = "DELETE FROM limit_kind WHERE kind = :kind AND resource = :name"

    # Counted anew: what runs counts, also what began before there was a limit.
    COUNT: Final = """
        UPDATE limit_resource
           SET running = (SELECT count(*) FROM job
                           WHERE state = 'leased'
                             AND kind IN (SELECT kind FROM limit_kind WHERE resource = :name))
         WHERE name = :name"""

    SET_RUNNING: Final = """
        UPDATE limit_resource SET running_max = :running WHERE name = :name"""

    SET_RATE: Final = """
        INSERT INTO limit_bucket (resource, rate, interval_ns, burst, missing_ns, at_ns, clock,
                                  at_ms)
        VALUES (:name, :rate, :interval_ns, :burst, :missing_ns, :now_ns, :clock, :now_ms)
            ON CONFLICT (resource) DO UPDATE
           SET rate = excluded.rate, interval_ns = excluded.interval_ns, burst = excluded.burst,
               missing_ns = excluded.missing_ns, at_ns = excluded.at_ns, clock = excluded.clock,
               at_ms = excluded.at_ms"""

    BUCKET: Final = """
        SELECT interval_ns, missing_ns, at_ns, clock, at_ms FROM limit_bucket
         WHERE resource = :name"""

    DROP_RATE: Final = "DELETE FROM limit_bucket WHERE resource = :name"

    DROP_GATE: Final = "DELETE FROM limit_gate WHERE resource = :name AND rule = :rule"

    def set(
        self,
        name: str,
        *,
        kinds: Iterable[str] | None = None,
        running: int | None = None,
        rate: float | None = None,
        burst: int | None = None,
    ) -> Limit:
        """Say how many jobs may use a resource at a time, and how often one may start.

        One transaction.  From its commit on it holds for every process of the file.  What is left
        out is not limited; what runs already goes on, and nothing starts until fewer run than may.
        Saying again what holds writes nothing, so a program may say it at each start.

        Args:
            name: of the resource.
            kinds: the kinds of job that use it; None keeps them, and for a new one is `[name]`.
            running: jobs that may be leased at the same time; 1 is a mutex.
            rate: starts per second; kept in whole nanoseconds between two, rounded up.
            burst: starts at once after a rest; None is one second's worth, at least 1.  An idle
                worker looks every 50 ms: with a burst below `rate / 20` some tokens may go unused.

        Raises:
            ValueError: an argument is wrong; the message shows it; definite.
            FileRefused: the application has a table of such a name; definite.
            KillproofError: as for `Queue.cancel`.
        """
        model.check_text(name, "name", NAME_CHARS_MAX)
        wanted = None if kinds is None else _checked_kinds(kinds)
        if running is not None:
            model.check_count(running, "running", 1, RUNNING_MAX)
        bucket = _bucket(rate, burst)
        asked = (running, rate, None if bucket is None else bucket["burst"])
        now = self.get(name)
        if now is not None and asked == (now.running_max, now.rate, now.burst):
            wanted = None if wanted is not None and set(wanted) == set(now.kinds) else wanted
            if wanted is None:
                return now
        with self._queue.transaction() as tx:
            _ensure_tables(tx)
            self._set_kinds(tx, name, wanted)
            tx.change(self.SET_RUNNING, {"name": name, "running": running})
            if bucket is None:
                tx.change(self.DROP_RATE, {"name": name})
                tx.change(self.DROP_GATE, {"name": name, "rule": "rate"})
            else:
                self._set_rate(tx, name, **bucket)
            return self._read(tx, name)

    def _set_rate(
        self, tx: Transaction, name: str, *, rate: float, interval_ns: int, burst: int
    ) -> None:
        """Set a rate; what is missing of the tokens by now stays missing, at any rate.

        So no change fills the bucket, and none takes what time has filled.
        """
        now = Now.of(self._queue)
        missing_ns = 0
        if (row := tx.row(self.BUCKET, {"name": name})) is not None:
            former_ns, *bucket = cast(tuple[int, int, int, str, int], row)
            missing_ns = missing_of(*cast(tuple[int, int, str, int], tuple(bucket)), now=now)
            missing_ns = min(-(-missing_ns * interval_ns // former_ns), burst * interval_ns)
        values: dict[str, Value] = {"name": name, "rate": rate, "interval_ns": interval_ns}
        values |= {"burst": burst, "missing_ns": missing_ns}
        values |= {"now_ns": now.ns, "clock": now.clock, "now_ms": now.ms}
        tx.change(self.SET_RATE, values)

    def _set_kinds(self, tx: Transaction, name: str, wanted: tuple[str, ...] | None) -> None:
        """Make the resource if there is none; these kinds use it, and no others."""
        tx.change(self.ADD, {"name": name})
        now = {cast(str, kind) for (kind,) in tx.rows(KINDS_OF, {"name": name})}
        wanted = wanted or tuple(now) or (name,)
        for kind in now - set(wanted):
            tx.change(self.LEAVE_KIND, {"name": name, "kind": kind})
        for kind in wanted:
            tx.change(self.JOIN_KIND, {"name": name, "kind": kind})
        tx.change(self.COUNT, {"name": name})
        self._lose_probes(tx)

    # A probe whose kind no longer uses the resource (or was edited) will decide nothing when it
    # ends: the breaker would be half-open for ever.
    LOST_PROBES: Final = """
        SELECT resource FROM limit_breaker
         WHERE state = 'half-open'
           AND NOT EXISTS (SELECT 1 FROM job JOIN limit_kind USING (kind)
                            WHERE job.id = probe_id AND job.fence = probe_fence
                              AND job.state = 'leased'
                              AND limit_kind.resource = limit_breaker.resource)"""

    LOSE_PROBE: Final = """
        UPDATE limit_breaker
           SET state = 'open', until_ms = 0, probe_id = NULL, probe_fence = NULL
         WHERE resource = :name"""

    def _lose_probes(self, tx: Transaction) -> int:
        """Let another try where the one that tries can not decide; return in how many resources."""
        names = tx.rows(self.LOST_PROBES)
        for (name,) in names:
            tx.change(self.LOSE_PROBE, {"name": name})
        return len(names)

    def _read(self, tx: Transaction, name: str) -> Limit:
        return next(limit for limit in read(self._queue, tx) if limit.name == name)

    SET_BREAKER: Final = """
        INSERT INTO limit_breaker (resource, failures_max, window_ms, pause_ms)
        VALUES (:name, :failures, :window_ms, :pause_ms)
            ON CONFLICT (resource) DO UPDATE
           SET failures_max = excluded.failures_max, window_ms = excluded.window_ms,
               pause_ms = excluded.pause_ms"""

    DROP_BREAKER: Final = "DELETE FROM limit_breaker WHERE resource = :name"

    DROP_FAILURES: Final = "DELETE FROM limit_failure WHERE resource = :name"

    def breaker(
        self,
        name: str,
        *,
        failures: int | None = 5,
        window: float = 60.0,
        pause: float = 30.0,
        kinds: Iterable[str] | None = None,
    ) -> Limit:
        """Let a resource rest when many of its jobs fail: its circuit breaker.

        Counted are failed attempts, those of a timeout too.  A crash speaks against the worker and
        `Permanent` against the job: neither counts.  One transaction.

        Args:
            name: of the resource; it is made if there is none.
            failures: so many within the window open the breaker; None takes the breaker away.
            window: seconds.
            pause: seconds during which nothing starts; then one job over all processes tries, and
                its success closes the breaker, its failure opens it for another pause.
            kinds: as for `set`.

        Raises:
            ValueError, FileRefused, KillproofError: as for `set`.
        """
        model.check_text(name, "name", NAME_CHARS_MAX)
        wanted = None if kinds is None else _checked_kinds(kinds)
        if failures is not None:
            model.check_count(failures, "failures", 1, FAILURES_MAX)
        values: dict[str, Value] = {
            "name": name,
            "failures": failures,
            "window_ms": model.to_ms(window, "window", lowest_ms=1),
            "pause_ms": model.to_ms(pause, "pause", lowest_ms=1),
        }
        with self._queue.transaction() as tx:
            _ensure_tables(tx)
            self._set_kinds(tx, name, wanted)
            if failures is None:
                tx.change(self.DROP_FAILURES, values)
                tx.change(self.DROP_BREAKER, values)
                tx.change(self.DROP_GATE, {"name": name, "rule": "breaker"})
            else:
                tx.change(self.SET_BREAKER, values)
            return self._read(tx, name)

    DROP_GATES: Final = "DELETE FROM limit_gate WHERE resource = :name"

    DROP_KINDS: Final = "DELETE FROM limit_kind WHERE resource = :name"

    DROP: Final = "DELETE FROM limit_resource WHERE name = :name"

    def remove(self, name: str) -> bool:
        """Forget a resource and all its rules, in one transaction; False if there is none.

        Raises:
            KillproofError: as for `Queue.cancel`.
        """
        with self._queue.transaction() as tx:
            if not has_tables(tx):
                return False
            values: dict[str, Value] = {"name": name}
            tx.change(self.DROP_GATES, values)  # First, while it is known whom they shut out.
            tx.change(self.DROP_KINDS, values)
            tx.change(self.DROP_RATE, values)
            tx.change(self.DROP_FAILURES, values)
            tx.change(self.DROP_BREAKER, values)
            return tx.change(self.DROP, values) == 1

    # Closing and opening.

    FIND: Final = "SELECT 1 FROM limit_resource WHERE name = :name"

    RESOURCES_OF: Final = "SELECT resource FROM limit_kind WHERE kind = :kind ORDER BY resource"

    CLOSE: Final = """
        INSERT INTO limit_gate (resource, rule, until_ms, since_ms, length_ms, end_ns, clock, why,
                                closed_by)
        VALUES (:name, 'closed', :until_ms, :now_ms, :length_ms, :end_ns, :clock, :why, :by)
            ON CONFLICT (resource, rule) DO UPDATE
           SET until_ms = excluded.until_ms, since_ms = excluded.since_ms,
               length_ms = excluded.length_ms, end_ns = excluded.end_ns, clock = excluded.clock,
               why = excluded.why, closed_by = excluded.closed_by"""

    def close(self, name: str, seconds: float | None, reason: str) -> None:
        """Let nothing of the resource start for so long; what runs goes on.

        One transaction, and known to all processes from its commit on.  Of two who close it, the
        later end holds.

        Args:
            name: of the resource.
            seconds: from now; None is until somebody opens it.
            reason: for people: `killproof explain` shows it.

        Raises:
            ValueError: there is no such resource, or an argument is wrong; definite.
            KillproofError: as for `Queue.cancel`.
        """
        length_ms = None if seconds is None else model.to_ms(seconds, "seconds")
        with self._queue.transaction() as tx:
            self._demand(tx, name)
            self._close(tx, name, length_ms, reason)

    def close_kind(self, kind: str, seconds: float, reason: str) -> tuple[str, ...]:
        """Close every resource that a kind of job uses; return their names.

        A worker calls it when a handler raises `RetryLater(..., shared=True)`.  A kind that uses
        none gets one of its own, with no other rule: what one job was told holds for the others
        also where nobody has thought of limits.

        Raises:
            ValueError: the kind or the seconds are wrong; definite.
            FileRefused, KillproofError: as for `set`.
        """
        model.check_text(kind, "kind", model.KIND_CHARS_MAX)
        length_ms = model.to_ms(seconds, "seconds")
        with self._queue.transaction() as tx:
            _ensure_tables(tx)
            found = tx.rows(self.RESOURCES_OF, {"kind": kind})
            names = tuple(cast(str, name) for (name,) in found)
            if not names:
                names = (self._free_name(tx, kind),)
                self._set_kinds(tx, names[0], (kind,))
            for name in names:
                self._close(tx, name, length_ms, reason)
        return names

    def _demand(self, tx: Transaction, name: str) -> None:
        if not has_tables(tx) or tx.row(self.FIND, {"name": name}) is None:
            raise ValueError(f"there is no limit {name!r}: see killproof limits")

    def _free_name(self, tx: Transaction, kind: str) -> str:
        """Return a name that no resource has, as close to the kind's as can be."""
        stem = name = kind[: NAME_CHARS_MAX - NUMBER_CHARS]
        number = 1
        while tx.row(self.FIND, {"name": name}) is not None:
            number += 1
            name = f"{stem} {number}"
        return name

    def _close(self, tx: Transaction, name: str, length_ms: int | None, reason: str) -> None:
        """Close a resource unless it is closed for longer."""
        now = Now.of(self._queue)
        for gate in tx.rows(GATES_OF, {"name": name}):
            longest_ms = NEVER_MS if length_ms is None else length_ms
            if gate[1] == "closed" and left_ms(gate, now) >= longest_ms:
                return
        values: dict[str, Value] = {"name": name, "until_ms": NEVER_MS, "now_ms": now.ms}
        values |= {"length_ms": None, "end_ns": None, "clock": None}
        if length_ms is not None:
            # A millisecond more: the wall clock was rounded down.
            values |= {"until_ms": now.ms + length_ms + 1, "length_ms": length_ms + 1}
            values |= {"end_ns": now.ns + length_ms * 1_000_000, "clock": now.clock}
        values["why"] = model.storable(str(reason))[:WHY_CHARS_MAX]
        values["by"] = f"process {os.getpid()}"
        tx.change(self.CLOSE, values)

    CLOSE_BREAKER: Final = """
        UPDATE limit_breaker SET state = 'closed', probe_id = NULL, probe_fence = NULL
         WHERE resource = :name AND state <> 'closed'"""

    def open(self, name: str) -> bool:
        """Open a resource that was closed, by somebody or by its breaker; False if it was not.

        Slots and tokens stay what they are.

        Raises:
            ValueError: there is no such resource; definite.
            KillproofError: as for `Queue.cancel`.
        """
        with self._queue.transaction() as tx:
            self._demand(tx, name)
            opened = tx.change(self.DROP_GATE, {"name": name, "rule": "closed"})
            return opened + tx.change(self.CLOSE_BREAKER, {"name": name}) > 0

    # Looking.

    def get(self, name: str) -> Limit | None:
        """Return a limit as it stands, or None.

        Raises:
            KillproofError: as for `Queue.counts`.
        """
        return next((limit for limit in self.list() if limit.name == name), None)

    def list(self) -> tuple[Limit, ...]:
        """Return all limits as they stand, by name, from one snapshot.

        Raises:
            KillproofError: as for `Queue.counts`.
        """
        with self._queue.database.read() as tx:
            return tuple(read(self._queue, tx))

    # After a step of the clock.

    MOVE_GATE: Final = """
        UPDATE limit_gate SET until_ms = :until_ms WHERE resource = :name AND rule = :rule"""

    # Somebody may have edited the kind of a running job, or put a row in as leased.  The jobs that
    # run are read once, not once for each resource: every worker looks every second.
    MISCOUNTED: Final = """
        SELECT name
          FROM limit_resource
          LEFT JOIN (SELECT resource, count(*) AS leased
                       FROM job JOIN limit_kind USING (kind)
                      WHERE state = 'leased' GROUP BY resource) AS held
            ON held.resource = name
         WHERE running <> coalesce(leased, 0)"""

    def mend(self, *, at_once: bool = False) -> int:
        """Put right what a step of the wall clock, or somebody's hand, has put wrong.

        A worker calls it as often as it likes: it looks once a second, without the write lock, and
        writes only if something is wrong.

        Args:
            at_once: look now, however short ago the last look was.

        Returns:
            How many rows were put right.

        Raises:
            KillproofError: as for `Queue.cancel`.
        """
        now_ns = self._queue.host.clock.monotonic_ns()
        if now_ns < self._mend_at_ns and not at_once:
            return 0
        self._mend_at_ns = now_ns + MEND_INTERVAL_NS
        database = self._queue.database
        if not database.peek(VERSION):
            return 0
        gates = moved(database.peek(ALL_GATES), Now.of(self._queue))
        wrong = (self.MISCOUNTED, self.LOST_PROBES)
        if next(gates, None) is None and not any(database.peek(look) for look in wrong):
            return 0
        with self._queue.transaction() as tx:
            found = list(moved(tx.rows(ALL_GATES), Now.of(self._queue)))
            for name, rule, until_ms in found:
                tx.change(self.MOVE_GATE, {"name": name, "rule": rule, "until_ms": until_ms})
            names = tx.rows(self.MISCOUNTED)
            for (miscounted,) in names:
                tx.change(self.COUNT, {"name": miscounted})
            lost = self._lose_probes(tx)
        return len(found) + len(names) + lost


def _checked_kinds(kinds: Iterable[str]) -> tuple[str, ...]:
    if isinstance(kinds, str):
        raise ValueError(f"kinds {kinds!r} must be a list of kinds: write [{kinds!r}]")
    found = tuple(model.check_text(kind, "kind", model.KIND_CHARS_MAX) for kind in kinds)
    if not found:
        raise ValueError("kinds [] names no kind: name one, or leave the argument out")
    if len(found) > KINDS_MAX:
        raise ValueError(
            f"kinds names {len(found)} kinds, over the limit of {KINDS_MAX}: each gate that shuts "
            "writes a row for each of them"
        )
    return found


class _Bucket(TypedDict):
    rate: float
    interval_ns: int
    burst: int


def _bucket(rate: float | None, burst: int | None) -> _Bucket | None:
    """Return the values of a bucket, or None without a rate."""
    if rate is None:
        if burst is not None:
            raise ValueError(f"burst {burst!r} needs a rate")
        return None
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate <= RATE_MAX:
        raise ValueError(
            f"rate {rate!r} must be starts per second, over 0 and at most {RATE_MAX:g}"
        )
    burst = max(1, math.ceil(rate)) if burst is None else burst
    model.check_count(burst, "burst", 1, BURST_MAX)
    if burst / rate > FILL_SECONDS_MAX:
        raise ValueError(f"rate {rate!r} with burst {burst} takes over 100 years to fill")
    return {"rate": float(rate), "interval_ns": math.ceil(1e9 / rate), "burst": burst}


TABLES: Final = (
    *("limit_resource", "limit_kind", "limit_bucket", "limit_breaker", "limit_failure"),
    "limit_gate",
)

#: A trigger ends at the END that begins a line, what else is made at the first semicolon that ends
#: one.
STATEMENTS: Final = re.compile(r"^CREATE (?:TRIGGER.+?^END|.+?);$", re.DOTALL | re.MULTILINE)

FIND_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE lower(name) = :name"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('limits', :version)"


def _ensure_tables(tx: Transaction) -> None:
    """Make tables and triggers at their first use in a file.

    Raises:
        FileRefused: the application has a table of such a name, or they are of a newer version.
    """
    if has_tables(tx):
        return
    for name in TABLES:
        if tx.row(FIND_TABLE, {"name": name}) is not None:
            raise FileRefused(
                f"{tx.path} has a table {name!r} that is not killproof's: "
                "rename it, or use another file"
            )
    for statement in STATEMENTS.findall(script()):
        tx.change(statement)
    tx.change(SET_VERSION, {"version": SCHEMA_VERSION})


def script() -> str:
    """Return the tables and triggers, where the rules are."""
    return Path(__file__).with_name("limits.sql").read_text(encoding="utf-8")
