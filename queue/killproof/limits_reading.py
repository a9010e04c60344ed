"""Limits as one look at the file shows them: for `Limits`, `explain`, metrics and people.

The rules are in `limits.sql` and are kept by `limits.py`; nothing here writes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, cast

from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.errors import FileRefused
from killproof.core.jobs import Queue

SCHEMA_VERSION: Final = 1
#: Of a row that stays until something opens it: the last second that a calendar shows.
NEVER_MS: Final = round(model.MOMENT_SECONDS_MAX) * 1_000
#: A row this far off its true end was moved by a step of the wall clock, not by slewing it.
STEP_MS: Final = 100
#: What the reasons in `throttle` begin with; `limit NAME: RULE` is the whole.
REASON: Final = "limit "

RuleName = Literal["running", "rate", "closed", "breaker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A rule that lets nothing start now."""

    rule: RuleName
    until_ms: int | None  #: wall clock; None: until a slot is free, a probe ends, or it is opened
    why: str  #: of `closed`: what was said; else empty
    closed_by: str  #: of `closed`: which process, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """A circuit breaker as it stands."""

    failures: int  #: that open it, within the window
    window: float  #: seconds
    pause: float  #: seconds
    state: str  #: closed; open: nothing starts; half-open: one job tries
    seen: int  #: failures within the window, counted while it is closed
    probe: int | None  #: half-open: the job that tries


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A resource and its rules."""

    name: str
    kinds: tuple[str, ...]
    running: int  #: jobs of its kinds that are leased
    running_max: int | None  #: None: any number
    rate: float | None  #: starts per second; None: any number
    burst: int | None  #: starts at once after a rest
    tokens: int | None  #: starts that the rate allows now
    breaker: Breaker | None
    gates: tuple[Gate, ...]  #: the rules that are shut now


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """One moment on both clocks."""

    ms: int
    ns: int
    clock: str  #: names the monotonic one

    @classmethod
    def of(cls, queue: Queue) -> "Now":
        """Read the clocks of the queue's host."""
        clock = queue.host.clock
        return cls(ms=clock.now_ms(), ns=clock.monotonic_ns(), clock=clock.ident())


VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'limits'"


def has_tables(tx: Transaction) -> bool:
    """Whether limits were ever used in this file.

    Raises:
        FileRefused: they are of a newer version; definite.
    """
    version = tx.row(VERSION)
    if version is not None and version != (SCHEMA_VERSION,):
        raise FileRefused(
            f"{tx.path}: its limits have version {version[0]!r}, "
            f"this killproof knows {SCHEMA_VERSION}: upgrade killproof"
        )
    return version is not None


RESOURCES: Final = """
    SELECT name, running, running_max, rate, interval_ns, burst, missing_ns, at_ns, clock, at_ms
      FROM limit_resource LEFT JOIN limit_bucket ON resource = name
     ORDER BY name"""


def read(queue: Queue, tx: Transaction) -> list[Limit]:
    """Return all limits as a transaction sees them, by name."""
    if not has_tables(tx):
        return []
    now = Now.of(queue)
    return [_limit(tx, row, now) for row in tx.rows(RESOURCES)]


KINDS_OF: Final = "SELECT kind FROM limit_kind WHERE resource = :name ORDER BY kind"

GATES_OF: Final = """
    SELECT resource, rule, until_ms, length_ms, end_ns, clock, why, closed_by
      FROM limit_gate WHERE resource = :name ORDER BY rule"""

BREAKER_OF: Final = """
    SELECT failures_max, window_ms, pause_ms, state, probe_id,
           (SELECT count(*) FROM limit_failure
             WHERE limit_failure.resource = :name
               AND at_ms BETWEEN :now_ms - window_ms AND :now_ms)
      FROM limit_breaker WHERE resource = :name"""


def _limit(tx: Transaction, row: tuple[Value, ...], now: Now) -> Limit:
    name, running, running_max, rate, interval_ns, burst, *bucket = row
    values: dict[str, Value] = {"name": name, "now_ms": now.ms}
    tokens = None
    if burst is not None:
        missing_ns = missing_of(*cast(tuple[int, int, str, int], tuple(bucket)), now=now)
        tokens = max(0, cast(int, burst) - -(-missing_ns // cast(int, interval_ns)))
    gates = (
        Gate(
            rule=cast(RuleName, rule),
            until_ms=None if until_ms == NEVER_MS else cast(int, until_ms),
            why=cast(str, why),
            closed_by=cast(str, closed_by),
        )
        for _, rule, until_ms, _, _, _, why, closed_by in tx.rows(GATES_OF, values)
        if cast(int, until_ms) > now.ms
    )
    return Limit(
        name=cast(str, name),
        kinds=tuple(cast(str, kind) for (kind,) in tx.rows(KINDS_OF, values)),
        running=cast(int, running),
        running_max=cast(int | None, running_max),
        rate=cast(float | None, rate),
        burst=cast(int | None, burst),
        tokens=tokens,
        breaker=_breaker(tx.row(BREAKER_OF, values)),
        gates=tuple(gates),
    )


def _breaker(row: tuple[Value, ...] | None) -> Breaker | None:
    if row is None:
        return None
    failures, window_ms, pause_ms, state, probe, seen = row
    return Breaker(
        failures=cast(int, failures),
        window=cast(int, window_ms) / 1_000,
        pause=cast(int, pause_ms) / 1_000,
        state=cast(str, state),
        seen=cast(int, seen),
        probe=cast(int | None, probe),
    )


def missing_of(missing_ns: int, at_ns: int, clock: str, at_ms: int, *, now: Now) -> int:
    """Return what is missing in a bucket by now, as `limits.sql` would count it."""
    passed_ns = now.ns - at_ns if clock == now.clock else (now.ms - at_ms) * 1_000_000
    return max(0, missing_ns - max(0, passed_ns))


# Gates and the two clocks.

ALL_GATES: Final = """
    SELECT resource, rule, until_ms, length_ms, end_ns, clock, why, closed_by
      FROM limit_gate ORDER BY resource, rule"""


def left_ms(gate: tuple[Value, ...], now: Now) -> int:
    """Return for how long a gate has still to be shut: by its monotonic clock where that is ours.

    Where it is not, no gate is shut for longer than it was meant to be in all: the wall clock may
    have been stepped back since.
    """
    _, _, until_ms, length_ms, end_ns, clock, _, _ = gate
    if until_ms == NEVER_MS:
        return NEVER_MS
    if end_ns is not None and clock == now.clock:
        return -(-(cast(int, end_ns) - now.ns) // 1_000_000)
    left = cast(int, until_ms) - now.ms
    return left if length_ms is None else min(left, cast(int, length_ms))


def moved(gates: Iterable[tuple[Value, ...]], now: Now) -> Iterator[tuple[str, str, int]]:
    """Yield (resource, rule, true end) of the gates whose row ends at another moment than that."""
    for gate in gates:
        name, rule, until_ms, *_ = gate
        true, shown = left_ms(gate, now), cast(int, until_ms) - now.ms
        # One that has ended by both clocks is history.
        if until_ms != NEVER_MS and abs(shown - true) > STEP_MS and max(shown, true) > 0:
            yield cast(str, name), cast(str, rule), now.ms + max(0, true)


# For `explain`.

HOLDERS: Final = """
    SELECT job.id, worker.pid
      FROM job LEFT JOIN worker ON worker.id = job.owner
     WHERE job.state = 'leased' AND job.kind IN (SELECT kind FROM limit_kind WHERE resource = :name)
     ORDER BY job.claimed_ms, job.id LIMIT :limit"""


def holders(tx: Transaction, name: str, limit: int) -> list[tuple[int, int | None]]:
    """Return (job, process) of those that hold a resource's slots, the longest first."""
    found = tx.rows(HOLDERS, {"name": name, "limit": limit})
    return cast("list[tuple[int, int | None]]", found)
