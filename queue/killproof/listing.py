"""Lists of jobs, latest first, without their payloads.

A list is one short read: it never holds the log back, and it reads index entries of the state that
is asked for, not the whole table.  What is latest depends on the state: the end of a job that has
ended, else its enqueue.
"""

import json
from dataclasses import asdict, fields
from typing import Any, Final, LiteralString

from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.jobs import Queue
from killproof.core.model import Job
from killproof.wording import count_of, error_line, span

#: Jobs in one list at most: a list is looked at by a person.
JOBS_MAX: Final = 10_000

ALL: Final = "SELECT id FROM job WHERE kind = coalesce(:kind, kind) ORDER BY id DESC LIMIT :limit"

ENDED: Final = """
    SELECT id FROM job
     WHERE state = :state AND finished_ms IS NOT NULL AND kind = coalesce(:kind, kind)
     ORDER BY finished_ms DESC, id DESC LIMIT :limit"""

# Each names its states as literals: only then is the partial index of those states used.

AVAILABLE: Final = """
    SELECT id FROM job WHERE state = 'available' AND kind = coalesce(:kind, kind)
     ORDER BY id DESC LIMIT :limit"""

LEASED: Final = """
    SELECT id FROM job WHERE state = 'leased' AND kind = coalesce(:kind, kind)
     ORDER BY id DESC LIMIT :limit"""

WAITING: Final = """
    SELECT id FROM job
     WHERE state IN ('scheduled', 'retryable') AND state = :state AND kind = coalesce(:kind, kind)
     ORDER BY id DESC LIMIT :limit"""

PARKED: Final = """
    SELECT id FROM job
     WHERE state IN ('blocked', 'held') AND state = :state AND kind = coalesce(:kind, kind)
     ORDER BY id DESC LIMIT :limit"""

IDS_OF: Final[dict[str | None, LiteralString]] = {
    None: ALL,
    "available": AVAILABLE,
    "leased": LEASED,
    "scheduled": WAITING,
    "retryable": WAITING,
    "blocked": PARKED,
    "held": PARKED,
}

#: The columns of `READ`, which are the fields of a job but for what has to be decoded.
_FIELDS: Final = tuple(
    field.name for field in fields(Job) if field.name not in ("payload", "result", "attempts")
)

READ: Final = """
    SELECT job.id, kind, state, priority, due_ms, job.key, max_attempts, lease_ms, retry, fence,
           deliveries, forgiven, failures, crashes, owner, claimed_ms, created_ms, finished_ms,
           error_class, error_message, expires_ms
      FROM json_each(:ids) AS wanted JOIN job ON job.id = wanted.value
     ORDER BY wanted.key"""


def jobs(
    queue: Queue, *, state: str | None = None, kind: str | None = None, limit: int = 20
) -> list[Job]:
    """Return jobs, latest first; their `payload`, `result` and `attempts` are left out.

    Args:
        queue: where they are.
        state: only in this state; None is any.
        kind: only of this kind; None is any.
        limit: jobs at most.

    Raises:
        ValueError: the state is unknown, or the limit is not from 1 to `JOBS_MAX`; definite.
        KillproofError: as for `Queue.counts`.
    """
    model.check_count(limit, "limit", 1, JOBS_MAX)
    if state is not None and state not in model.STATES:
        raise ValueError(f"state {state!r} is unknown: use one of {', '.join(model.STATES)}")
    statement = IDS_OF.get(state, ENDED)
    with queue.database.read() as tx:
        found = tx.rows(statement, {"state": state, "kind": kind, "limit": limit})
        return read(tx, [job_id for (job_id,) in found])


def read(tx: Transaction, ids: list[Value]) -> list[Job]:
    """Return the jobs with these ids, in this order, without what has to be decoded."""
    return of_rows(tx.rows(READ, {"ids": json.dumps(ids)}))


def of_rows(rows: list[tuple[Value, ...]]) -> list[Job]:
    """Return the jobs that rows of `READ` stand for."""
    return [_job(dict(zip(_FIELDS, row, strict=True))) for row in rows]


def _job(values: dict[str, Any]) -> Job:
    return Job(**values, payload=None, result=None)


def as_row(job: Job, now_ms: int) -> dict[str, object]:
    """Return a job of a list as plain values for JSON."""
    left_out = ("payload", "result", "attempts")
    facts = {name: value for name, value in asdict(job).items() if name not in left_out}
    return facts | {"attempt": job.attempt, "summary": summary(job, now_ms)}


def as_page(job: Job, now_ms: int) -> dict[str, object]:
    """Return a job with all that is known of it as plain values for JSON."""
    return asdict(job) | {"attempt": job.attempt, "summary": summary(job, now_ms)}


def summary(job: Job, now_ms: int) -> str:
    """Say in a line where a job stands and what comes next."""
    attempt = f"attempt {job.attempt} of {job.max_attempts}"
    error = error_line(job.error_class, job.error_message)
    wait_ms = job.due_ms - now_ms
    due = f"in {span(wait_ms)}" if wait_ms > 0 else "now"
    match job.state:
        case "retryable":
            return f"next try {due} (failure {job.attempt} of {job.max_attempts}: {error})"
        case "scheduled":
            return f"due {due}"
        case "leased":
            return f"running for {span(now_ms - (job.claimed_ms or now_ms))}, {attempt}"
        case "succeeded":
            return f"succeeded, {attempt}"
        case "dead":
            return f"dead, {attempt}: {error}; again: killproof replay {job.id}"
        case "held":
            why = f": {error}" if job.error_class else ""
            return f"held{why}; decide: killproof unhold {job.id}, or cancel {job.id}"
        case "available":
            before = f", after {count_of(job.attempt, 'attempt')}: {error}" if job.attempt else ""
            return f"waits for a worker{before}"
        case "blocked":
            return "waits for other jobs"
        case "cancelled":
            return f"cancelled; again: killproof replay {job.id}"
        case "expired":
            return f"its deadline has passed; again: killproof replay {job.id}"
    raise AssertionError(job.state)
