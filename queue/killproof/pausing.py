"""Pause a kind: no job of it starts until somebody resumes it, or the pause ends by itself.

What is running goes on.  A pause is one row of the core's table `throttle`, whose reason is
`paused`; a claim leaves out every kind that has a row there, whoever wrote it, and workers that
wait notice within a fraction of a second when the row goes.  It is a fact of the file: it survives
restarts, and a backup holds it.
"""

from dataclasses import dataclass
from typing import Final, cast

from killproof.core import model
from killproof.core.jobs import Queue

#: The reason that marks a row as ours.
PAUSED: Final = "paused"
#: Until somebody resumes: the last millisecond that a calendar shows.
FOR_EVER_MS: Final = int(model.MOMENT_SECONDS_MAX) * 1_000
#: Rows that are listed.
CLOSED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A kind of which nothing starts for now."""

    kind: str
    reason: str  #: `paused` by a person; anything else is that of a limit
    until_ms: int | None  #: None: until somebody resumes it


PAUSE: Final = "INSERT OR REPLACE INTO throttle VALUES (:kind, :reason, :until_ms)"


def pause(queue: Queue, kind: str, seconds: float | None = None) -> Closed:
    """Let no job of a kind start from now on; a pause that is there already is replaced.

    Args:
        queue: the queue.
        kind: of the jobs; there need not be any.
        seconds: how long; None is until `resume`.

    Raises:
        ValueError: an argument is wrong; definite.
        KillproofError: as for `Queue.cancel`.
    """
    model.check_text(kind, "kind", model.KIND_CHARS_MAX)
    until_ms = FOR_EVER_MS
    if seconds is not None:
        until_ms = queue.host.clock.now_ms() + model.to_ms(seconds, "pause", lowest_ms=1)
    with queue.transaction() as tx:
        tx.change(PAUSE, {"kind": kind, "reason": PAUSED, "until_ms": until_ms})
    return _closed(kind, PAUSED, until_ms)


#: Idle workers that a resumed kind wakes at most; nobody has counted the jobs that wait.
RESUME_WAKES: Final = 64

RESUME: Final = "DELETE FROM throttle WHERE kind = :kind AND reason = :reason"


def resume(queue: Queue, kind: str) -> bool:
    """End the pause of a kind; False if it is not paused.  Limits that close it stay.

    Raises:
        ValueError: the kind is no text; definite.
        KillproofError: as for `Queue.cancel`.
    """
    model.check_text(kind, "kind", model.KIND_CHARS_MAX)
    with queue.transaction() as tx:
        tx.offer(kind, RESUME_WAKES)
        return tx.change(RESUME, {"kind": kind, "reason": PAUSED}) == 1


CLOSED: Final = """
    SELECT kind, reason, until_ms FROM throttle
     WHERE until_ms > :now_ms ORDER BY kind, reason LIMIT :limit"""


def closed(queue: Queue) -> list[Closed]:
    """Return the kinds of which nothing starts now, whatever the reason; advisory.

    Raises:
        KillproofError: as for `Queue.counts`.
    """
    values = {"now_ms": queue.host.clock.now_ms(), "limit": CLOSED_MAX}
    found = cast(list[tuple[str, str, int]], queue.database.peek(CLOSED, values))
    return [_closed(*row) for row in found]


def _closed(kind: str, reason: str, until_ms: int) -> Closed:
    return Closed(kind=kind, reason=reason, until_ms=None if until_ms >= FOR_EVER_MS else until_ms)
