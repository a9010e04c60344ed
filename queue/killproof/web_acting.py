"""What a person does through the page or its API: checked, put on record, done, put on record.

Each action is one of the queue's own operations; nothing is decided here but who may.  The answer
of an action is what the command of that name prints with `--json`.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from killproof import operations, pausing, web_audit
from killproof.core.errors import JobNotFound, KillproofError, OutcomeUnknown
from killproof.core.jobs import Queue
from killproof.web_access import ACTIONS, Person

logger = logging.getLogger("killproof")


class Denied(KillproofError):
    """The role does not suffice: definite; the message names the one that does."""


class NothingChanged(KillproofError):
    """The job is in a state in which this is not possible: definite; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What somebody wants done."""

    action: str  #: one of `ACTIONS`
    job_id: int | None = None
    kind: str | None = None
    state: str | None = None  #: of `replay_all`
    priority: int | None = None  #: of `reprioritise`
    seconds: float | None = None  #: of `pause`
    limit: int | None = None  #: of `replay_all`

    def detail(self) -> dict[str, object]:
        """Return what goes on record beside the job and the kind."""
        found: dict[str, object] = {
            "state": self.state,
            "priority": self.priority,
            "seconds": self.seconds,
            "limit": self.limit,
        }
        return {name: value for name, value in found.items() if value is not None}


def act(queue: Queue, person: Person, order: Order) -> dict[str, object]:
    """Do it, if the person may, and put both on record.

    Raises:
        Denied, NothingChanged, JobNotFound, ValueError: definite, nothing was changed.
        KillproofError: as for the operation; `OutcomeUnknown` is indefinite.
    """
    denied = None
    if not person.may(order.action):
        denied = (
            f"{order.action} asks for the role {ACTIONS[order.action]}, and the token of "
            f"{person.name} is of a {person.role}: use another one"
        )
    entry_id = web_audit.begin(
        queue,
        who=person.name,
        role=person.role,
        action=order.action,
        job_id=order.job_id,
        kind=order.kind,
        detail=order.detail(),
        denied=denied,
    )
    if denied is not None:
        raise Denied(denied)
    try:
        answer = DEEDS[order.action](queue, order)
    except Exception as error:
        _record(queue, entry_id, _outcome_of(order, error), str(error))
        raise
    _record(queue, entry_id, "done", None)
    return answer


def _outcome_of(order: Order, error: Exception) -> web_audit.Outcome:
    match error:
        case NothingChanged() | JobNotFound() | ValueError():
            return "refused"
        case OutcomeUnknown():
            return "unknown"
    # A replay of many is many transactions: those before the one that failed have happened.
    return "unknown" if order.action == "replay_all" else "failed"


def _record(queue: Queue, entry_id: int, outcome: web_audit.Outcome, said: str | None) -> None:
    """Complete the entry; where that fails it stays `begun`, which promises nothing.

    The person must be told what became of the action, not of its record.
    """
    try:
        web_audit.end(queue, entry_id, outcome, said)
    except KillproofError as error:
        logger.warning("audit entry %d stays begun, it was %s: %s", entry_id, outcome, error)


def _cancel(queue: Queue, order: Order) -> dict[str, object]:
    job_id = _job_of(order)
    return _moved(queue, job_id, queue.cancel(job_id), state="cancelled")


def _hold(queue: Queue, order: Order) -> dict[str, object]:
    job_id = _job_of(order)
    return _moved(queue, job_id, operations.hold(queue, job_id), state="held")


def _unhold(queue: Queue, order: Order) -> dict[str, object]:
    job_id = _job_of(order)
    return _moved(queue, job_id, operations.unhold(queue, job_id), state="available")


def _reprioritise(queue: Queue, order: Order) -> dict[str, object]:
    job_id = _job_of(order)
    if order.priority is None:
        raise ValueError('reprioritise needs a priority from 0 (urgent) to 9: {"priority": 0}')
    is_changed = operations.reprioritise(queue, job_id, order.priority)
    return _moved(queue, job_id, is_changed, priority=order.priority)


def _urgent(queue: Queue, order: Order) -> dict[str, object]:
    job_id = _job_of(order)
    return _moved(queue, job_id, operations.reprioritise(queue, job_id, 0), priority=0)


def _replay(queue: Queue, order: Order) -> dict[str, object]:
    job_id = _job_of(order)
    done = operations.replay(queue, [job_id])
    for _, why in done.refused:
        if queue.get(job_id) is None:
            raise JobNotFound(f"there is no job {job_id} in {queue.path}: see killproof jobs")
        raise NothingChanged(f"job {job_id}: {why}")
    return asdict(done)


def _replay_all(queue: Queue, order: Order) -> dict[str, object]:
    if order.state is None:
        raise ValueError('say which: {"state": "dead"}, cancelled or expired')
    limit = operations.REPLAY_JOBS_MAX if order.limit is None else order.limit
    done = operations.replay(queue, state=order.state, kind=order.kind, limit=limit)
    return asdict(done)


def _pause(queue: Queue, order: Order) -> dict[str, object]:
    return asdict(pausing.pause(queue, _kind_of(order), order.seconds))


def _resume(queue: Queue, order: Order) -> dict[str, object]:
    kind = _kind_of(order)
    if not pausing.resume(queue, kind):
        raise NothingChanged(f"kind {kind!r} is not paused: nothing was changed")
    return {"kind": kind, "resumed": True}


def _job_of(order: Order) -> int:
    if order.job_id is None:
        raise ValueError(f"{order.action} needs a job: POST /api/jobs/ID/{order.action}")
    return order.job_id


def _kind_of(order: Order) -> str:
    if order.kind is None:
        raise ValueError(f'{order.action} needs a kind: {{"kind": "KIND"}}')
    return order.kind


def _moved(queue: Queue, job_id: int, is_changed: bool, **facts: object) -> dict[str, object]:
    if not is_changed:
        job = queue.get(job_id)
        raise NothingChanged(f"job {job_id} is {job.state if job else 'gone'}: nothing was changed")
    return {"id": job_id} | facts


DEEDS: Final[dict[str, Callable[[Queue, Order], dict[str, object]]]] = {
    "replay": _replay,
    "cancel": _cancel,
    "hold": _hold,
    "unhold": _unhold,
    "reprioritise": _reprioritise,
    "urgent": _urgent,
    "pause": _pause,
    "resume": _resume,
    "replay_all": _replay_all,
}
assert DEEDS.keys() == ACTIONS.keys()
