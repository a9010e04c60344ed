"""Lists of jobs to page through and to search in, of any length, in bounded reads.

A list is made in steps: each is one short read of at most so many rows in the order of an index,
that says of each row whether it is wanted.  So a search of a million jobs holds nobody back: it
ends when the page is full, or when it has looked at enough, and gives a cursor to go on from.

The order is what the state suggests: what ended, by its end, latest first; what waits for its time,
by that time, next first; what is available, by kind and within it as claims will take it; anything
else by id, latest first.  Without a state all jobs are gone through, latest first.
"""

import base64
import json
from dataclasses import dataclass
from typing import Final, LiteralString, cast

from killproof import listing
from killproof.core import model
from killproof.core.database import Value
from killproof.core.jobs import Queue
from killproof.core.model import Job

#: Jobs on one page at most.
PAGE_JOBS_MAX: Final = 200
#: Rows that one read looks at, and one that searches in payloads: a few milliseconds.
STEP_ROWS: Final = 1_000
STEP_ROWS_SEARCHING: Final = 200
#: Rows that one page looks at in all before it gives up for now.
LOOKED_AT_MAX: Final = 20_000
#: Milliseconds after which it begins no further step.
LOOKING_MS_MAX: Final = 500
SEARCH_CHARS_MAX: Final = 200
CURSOR_CHARS_MAX: Final = 2_000

# Each step: the cursor's columns, then the id, then whether it is wanted.  The states are literals
# and the index is named, because a plan by id would read every row of every other state.

BY_ID: Final = """
    SELECT id, id,
           kind = coalesce(:kind, kind)
           AND (:text IS NULL OR instr(lower(kind), :text) OR instr(lower(coalesce(key, '')), :text)
                OR instr(lower(coalesce(error_class || ' ' || error_message, '')), :text)
                OR instr(lower(payload), :text) OR instr(lower(coalesce(result, '')), :text))
      FROM job WHERE id < :first ORDER BY id DESC LIMIT :rows"""

LEASED: Final = """
    SELECT id, id,
           kind = coalesce(:kind, kind)
           AND (:text IS NULL OR instr(lower(kind), :text) OR instr(lower(coalesce(key, '')), :text)
                OR instr(lower(coalesce(error_class || ' ' || error_message, '')), :text)
                OR instr(lower(payload), :text))
      FROM job INDEXED BY job_leased
     WHERE state = 'leased' AND id < :first ORDER BY id DESC LIMIT :rows"""

PARKED: Final = """
    SELECT id, id,
           kind = coalesce(:kind, kind)
           AND (:text IS NULL OR instr(lower(kind), :text) OR instr(lower(coalesce(key, '')), :text)
                OR instr(lower(coalesce(error_class || ' ' || error_message, '')), :text)
                OR instr(lower(payload), :text))
      FROM job INDEXED BY job_parked
     WHERE state IN ('blocked', 'held') AND state = :state AND id < :first
     ORDER BY id DESC LIMIT :rows"""

WAITING: Final = """
    SELECT due_ms, id, id,
           state = :state AND kind = coalesce(:kind, kind)
           AND (:text IS NULL OR instr(lower(kind), :text) OR instr(lower(coalesce(key, '')), :text)
                OR instr(lower(coalesce(error_class || ' ' || error_message, '')), :text)
                OR instr(lower(payload), :text))
      FROM job INDEXED BY job_waiting
     WHERE state IN ('scheduled', 'retryable') AND (due_ms, id) > (:first, :second)
     ORDER BY due_ms, id LIMIT :rows"""

ENDED: Final = """
    SELECT finished_ms, id, id,
           kind = coalesce(:kind, kind)
           AND (:text IS NULL OR instr(lower(kind), :text) OR instr(lower(coalesce(key, '')), :text)
                OR instr(lower(coalesce(error_class || ' ' || error_message, '')), :text)
                OR instr(lower(payload), :text) OR instr(lower(coalesce(result, '')), :text))
      FROM job INDEXED BY job_finished
     WHERE state = :state AND finished_ms IS NOT NULL AND (finished_ms, id) < (:first, :second)
     ORDER BY finished_ms DESC, id DESC LIMIT :rows"""

AVAILABLE: Final = """
    SELECT kind, priority, due_ms, id, id,
           :text IS NULL OR instr(lower(kind), :text) OR instr(lower(coalesce(key, '')), :text)
                OR instr(lower(coalesce(error_class || ' ' || error_message, '')), :text)
                OR instr(lower(payload), :text)
      FROM job INDEXED BY job_available
     WHERE state = 'available' AND (kind, priority, due_ms, id) > (:first, :second, :third, :fourth)
     ORDER BY kind, priority, due_ms, id LIMIT :rows"""

AVAILABLE_OF_KIND: Final = """
    SELECT kind, priority, due_ms, id, id,
           :text IS NULL OR instr(lower(kind), :text) OR instr(lower(coalesce(key, '')), :text)
                OR instr(lower(coalesce(error_class || ' ' || error_message, '')), :text)
                OR instr(lower(payload), :text)
      FROM job INDEXED BY job_available
     WHERE state = 'available' AND kind = :kind
       AND (priority, due_ms, id) > (:second, :third, :fourth)
     ORDER BY priority, due_ms, id LIMIT :rows"""

LAST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One way through the jobs."""

    statement: LiteralString
    start: tuple[int | str, ...]  #: the cursor before the first row


_BY_ID: Final = Order(statement=BY_ID, start=(LAST,))
_WAITING: Final = Order(statement=WAITING, start=(-1, 0))
_PARKED: Final = Order(statement=PARKED, start=(LAST,))
_ENDED: Final = Order(statement=ENDED, start=(LAST, 0))
ORDERS: Final[dict[str | None, Order]] = {
    None: _BY_ID,
    "available": Order(statement=AVAILABLE, start=("", -1, 0, 0)),
    "leased": Order(statement=LEASED, start=(LAST,)),
    "scheduled": _WAITING,
    "retryable": _WAITING,
    "blocked": _PARKED,
    "held": _PARKED,
    **dict.fromkeys(sorted(model.TERMINAL), _ENDED),
}
_NAMES: Final = ("first", "second", "third", "fourth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list."""

    jobs: list[Job]  #: without payload, result and attempts
    next: str | None  #: where to go on; None: there is no more
    looked_at: int  #: rows; a page that is not full and has a `next` has looked at enough for now


def page(
    queue: Queue,
    *,
    state: str | None = None,
    kind: str | None = None,
    search: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> Page:
    """Return a page of jobs.

    Args:
        queue: where they are.
        state: only in this state; None is any.
        kind: only of this kind; None is any.
        search: only with this text in kind, key, error, payload or result, in either case of
            A to Z; None is any.
        limit: jobs on the page at most.
        before: the `next` of the page before, asked for with the same state; None is the start.

    Raises:
        ValueError: an argument is wrong, or `before` is of another list; definite.
        KillproofError: as for `Queue.counts`.
    """
    model.check_count(limit, "limit", 1, PAGE_JOBS_MAX)
    if state is not None and state not in model.STATES:
        raise ValueError(f"state {state!r} is unknown: use one of {', '.join(model.STATES)}")
    if search is not None:
        model.check_text(search, "search", SEARCH_CHARS_MAX)
    order = ORDERS[state]
    cursor = order.start if before is None else _decoded(before, order)
    statement = order.statement
    if state == "available" and kind is not None:
        statement = AVAILABLE_OF_KIND
    values: dict[str, Value] = {"state": state, "kind": kind, "text": _lower(search)}
    found = _gathered(queue, statement, values, cursor, limit)
    with queue.database.read() as tx:
        jobs = listing.read(tx, found.ids)
    return Page(
        jobs=jobs, next=None if found.is_end else _encoded(found.cursor), looked_at=found.looked_at
    )


@dataclass(slots=True, kw_only=True)
class _Found:
    """What was found so far."""

    ids: list[Value]
    cursor: tuple[int | str, ...]
    looked_at: int = 0
    is_end: bool = False


def _gathered(
    queue: Queue,
    statement: LiteralString,
    values: dict[str, Value],
    cursor: tuple[int | str, ...],
    limit: int,
) -> _Found:
    """Take steps until the page is full, the list is at its end, or it was enough for now."""
    clock = queue.host.clock
    until_ns = clock.monotonic_ns() + LOOKING_MS_MAX * 1_000_000
    largest = STEP_ROWS if values["text"] is None else STEP_ROWS_SEARCHING
    rows = min(largest, 2 * limit)  # The first page of a plain list is one small read.
    found = _Found(ids=[], cursor=cursor)
    while found.looked_at < LOOKED_AT_MAX and clock.monotonic_ns() < until_ns:
        step = queue.database.peek(
            statement, values | dict(zip(_NAMES, found.cursor, strict=False)) | {"rows": rows}
        )
        for number, (*at, job_id, is_wanted) in enumerate(step, 1):
            found.looked_at += 1
            found.cursor = cast(tuple[int | str, ...], tuple(at))
            if is_wanted:
                found.ids.append(job_id)
            found.is_end = number == len(step) < rows
            if len(found.ids) == limit:
                return found
        if len(step) < rows:
            found.is_end = True
            break
        rows = largest
    return found


def _lower(text: str | None) -> str | None:
    """Return the text as SQLite's own `lower` would: of other letters it leaves the case alone."""
    if text is None:
        return None
    return "".join(char.lower() if char.isascii() else char for char in text)


def _encoded(cursor: tuple[int | str, ...]) -> str:
    text = json.dumps(cursor, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decoded(text: str, order: Order) -> tuple[int | str, ...]:
    """Return the cursor that a page gave; whatever else comes is refused, and reaches no SQL.

    Raises:
        ValueError: no page of this order gave it.
    """
    try:
        if len(text) > CURSOR_CHARS_MAX:
            raise ValueError("too long")
        padded = text + "=" * (-len(text) % 4)
        found = json.loads(base64.b64decode(padded.encode(), altchars=b"-_", validate=True))
        fits = isinstance(found, list) and [type(value) for value in found] == [
            type(value) for value in order.start
        ]
        if fits and all(not isinstance(value, int) or abs(value) <= LAST for value in found):
            return tuple(found)
    except (ValueError, RecursionError):
        pass
    raise ValueError(f"before {text[:60]!r} is no `next` of this list: begin without it")
