"""What a person does to jobs: replay, reprioritise, hold, unhold.

They stand above the core and use its transactions.  Each is one guarded UPDATE: the WHERE names
the states it may leave, so that two people who do the same at once do it once.  None of them
touches a running job, except `hold_leased`, which is the worker's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, LiteralString, cast

from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.errors import JobNotFound
from killproof.core.jobs import Queue
from killproof.core.model import Failure, Lease

#: Jobs that one call of `replay` moves at most; a larger number deserves a look before each round.
REPLAY_JOBS_MAX: Final = 10_000
#: Jobs that are moved under one hold of the write lock: about 10 ms.
REPLAY_BATCH: Final = 500
#: The states that a replay leaves.
ENDED: Final = ("dead", "cancelled", "expired")
#: Kinds that `waiting_kinds` looks at.
KINDS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay did."""

    moved: tuple[int, ...]  #: ids of the jobs that are available again
    refused: tuple[tuple[int, str], ...]  #: (id, reason) of those asked for by id and not moved


SELECT_ENDED: Final = """
    SELECT finished_ms, id FROM job
     WHERE state = :state AND finished_ms IS NOT NULL
       AND (finished_ms, id) > (:after_ms, :after_id)
       AND kind = coalesce(:kind, kind)
     ORDER BY finished_ms, id LIMIT :limit"""


def replay(
    queue: Queue,
    ids: Iterable[int] | None = None,
    *,
    state: str | None = None,
    kind: str | None = None,
    limit: int = REPLAY_JOBS_MAX,
) -> Replayed:
    """Give ended jobs all their attempts again; each is moved exactly once, however many ask.

    The attempts they had stay with them.  A job whose key a newer, living job has is refused: two
    live jobs must not share a key.

    Args:
        queue: the queue.
        ids: these jobs; None means all that `state` and `kind` leave.
        state: `dead`, `cancelled` or `expired`; None is any of them.
        kind: only jobs of this kind.
        limit: jobs that are moved at most.

    Raises:
        ValueError: an argument is wrong; definite.
        KillproofError: as for `Queue.cancel`; what was moved before stays moved.
    """
    model.check_count(limit, "limit", 1, REPLAY_JOBS_MAX)
    if state is not None and state not in ENDED:
        raise ValueError(f"state {state!r} can not be replayed: use dead, cancelled or expired")
    wanted = None if ids is None else [_checked(job_id) for job_id in ids]
    moved: list[int] = []
    refused: list[tuple[int, str]] = []
    if wanted is not None:
        wanted = wanted[:limit]
        for first in range(0, len(wanted), REPLAY_BATCH):
            with queue.transaction() as tx:
                for job_id in wanted[first : first + REPLAY_BATCH]:
                    reason = _replay(queue, tx, job_id)
                    if reason is None:
                        moved.append(job_id)
                    else:
                        refused.append((job_id, reason))
        return Replayed(moved=tuple(moved), refused=tuple(refused))
    for one in ENDED if state is None else (state,):
        moved += _replay_all(queue, one, kind, limit - len(moved))
    return Replayed(moved=tuple(moved), refused=tuple(refused))


def _replay_all(queue: Queue, state: str, kind: str | None, limit: int) -> list[int]:
    """Move the jobs of a state, the oldest first, a batch to a transaction."""
    moved: list[int] = []
    after: tuple[Value, ...] = (-1, 0)
    while len(moved) < limit:
        size = min(REPLAY_BATCH, limit - len(moved))
        with queue.transaction() as tx:
            values = {
                "state": state,
                "kind": kind,
                "after_ms": after[0],
                "after_id": after[1],
                "limit": size,
            }
            found = tx.rows(SELECT_ENDED, values)
            ids = [cast(int, row[1]) for row in found]
            batch = [job_id for job_id in ids if _replay(queue, tx, job_id) is None]
        moved += batch
        if len(found) < size:
            break
        after = found[-1]
    return moved


REPLAY: Final = """
    UPDATE job
       SET state = 'available', forgiven = deliveries, due_ms = :now_ms, finished_ms = NULL,
           expires_ms = NULL, updated_ms = :now_ms
     WHERE id = :id AND state IN ('dead', 'cancelled', 'expired')
       AND NOT EXISTS (SELECT 1 FROM job AS other
                        WHERE other.key = job.key AND other.key IS NOT NULL
                          AND other.state IN ('blocked', 'scheduled', 'available', 'leased',
                                              'retryable', 'held'))"""

STATE_AND_KEY: Final = "SELECT state, key FROM job WHERE id = :id"


def _replay(queue: Queue, tx: Transaction, job_id: int) -> str | None:
    """Move one job; return None, or why it was not moved."""
    if tx.change(REPLAY, {"id": job_id, "now_ms": queue.host.clock.now_ms()}):
        tx.offer(None)
        return None
    row = tx.row(STATE_AND_KEY, {"id": job_id})
    if row is None:
        return "there is no such job"
    if row[0] in ENDED and row[1] is None:  # A trigger of the workflows has passed it over.
        return "it waits for other steps of its run, or was undone: see killproof explain"
    if row[0] in ENDED:
        return f"another job with the key {row[1]!r} is alive: wait for its end, or cancel it"
    return f"its state is {row[0]!r}: only dead, cancelled and expired jobs are replayed"


REPRIORITISE: Final = """
    UPDATE job SET priority = :priority, updated_ms = :now_ms
     WHERE id = :id
       AND state IN ('blocked', 'scheduled', 'available', 'leased', 'retryable', 'held')"""


def reprioritise(queue: Queue, job_id: int, priority: int) -> bool:
    """Change the priority of a job that has not ended; False if it has.

    A running job is not interrupted: the new priority counts if it comes back.

    Raises:
        ValueError: priority is not an integer from 0 (urgent) to 9; definite.
        JobNotFound: definite.
        KillproofError: as for `Queue.cancel`.
    """
    model.check_count(priority, "priority", 0, 9)
    return _move(queue, REPRIORITISE, job_id, priority=priority)


HOLD: Final = """
    UPDATE job SET state = 'held', updated_ms = :now_ms
     WHERE id = :id AND state IN ('blocked', 'scheduled', 'retryable', 'available')"""


def hold(queue: Queue, job_id: int) -> bool:
    """Put a waiting job aside until a person decides; False if it is running, held or has ended.

    Raises:
        JobNotFound: definite.
        KillproofError: as for `Queue.cancel`.
    """
    return _move(queue, HOLD, job_id)


UNHOLD: Final = """
    UPDATE job SET state = 'available', due_ms = min(due_ms, :now_ms), updated_ms = :now_ms
     WHERE id = :id AND state = 'held'"""


def unhold(queue: Queue, job_id: int) -> bool:
    """Let a held job run now, whatever its due time was; False if it is not held.

    Raises:
        JobNotFound: definite.
        KillproofError: as for `Queue.cancel`.
    """
    return _move(queue, UNHOLD, job_id)


def _move(queue: Queue, statement: LiteralString, job_id: int, **values: int) -> bool:
    _checked(job_id)
    with queue.transaction() as tx:
        now_ms = queue.host.clock.now_ms()
        changed = tx.change(statement, {"id": job_id, "now_ms": now_ms, **values})
        tx.offer(None, changed)
        if not changed and tx.row(STATE_AND_KEY, {"id": job_id}) is None:
            raise JobNotFound(f"there is no job {job_id} in {queue.path}: see killproof status")
    return changed == 1


def _checked(job_id: int) -> int:
    return model.check_count(job_id, "id", 1, (1 << 63) - 1)


def hold_leased(queue: Queue, lease: Lease, error: BaseException | str) -> None:
    """Put the job of a lease aside until a person decides; it was no attempt.

    It is no attempt because the question is open: a job held on its last attempt must be able to
    run once it is answered.

    Raises:
        LeaseLost: the lease is not current; definite.
        KillproofError: as for `Queue.ack`.
    """
    failure = Failure.of(error)  # It calls the error's own code: not under the lock.
    with queue.transaction() as tx:
        queue._end(tx, lease, "hold", "held", "held", failure=failure)


WAITING_KINDS: Final = """
    WITH RECURSIVE waiting (kind) AS (
        SELECT min(kind) FROM job WHERE state = 'available'
         UNION ALL
        SELECT (SELECT min(kind) FROM job WHERE state = 'available' AND kind > waiting.kind)
          FROM waiting WHERE waiting.kind IS NOT NULL LIMIT :limit)
    SELECT kind FROM waiting WHERE kind IS NOT NULL"""


def waiting_kinds(queue: Queue) -> set[str]:
    """Return the kinds of which a job is available; advisory, no lock taken, a step per kind."""
    return {str(kind) for (kind,) in queue.database.peek(WAITING_KINDS, {"limit": KINDS_MAX})}
