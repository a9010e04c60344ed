"""Between a worker and the folder of large payloads: nothing for nearly all jobs, and cheaply so.

`payloads` is imported for the first job that needs it.
"""

import logging
from dataclasses import replace
from typing import Final

from killproof.core.errors import (
    DatabaseBusy,
    KillproofError,
    OutcomeUnknown,
    StorageFailed,
)
from killproof.core.jobs import Queue
from killproof.core.model import Job, Lease
from killproof.journal import Journal
from killproof.outcomes import Outcome

#: The only key of a reference to a file; `killproof.payloads` has the rest.
MARK: Final = "killproof_payload"
#: Values in a flat result that are looked at before it is encoded to learn its size: as long texts
#: as these, and so many, are a fraction of the megabyte that a row holds.
SMALL_VALUES_MAX: Final = 64
SMALL_CHARS_MAX: Final = 1_000


def is_reference(payload: object) -> bool:
    """Whether a payload may be a reference to a file."""
    return isinstance(payload, dict) and MARK in payload


def payload_of(queue: Queue, job: Job) -> object:
    """Return the payload of a job that has a reference; errors as for `Payloads.payload`."""
    from killproof.payloads import Payloads

    return Payloads(queue).payload(job)


def is_small(result: object) -> bool:
    """Whether a result is small beyond doubt: nearly all are, and need not be encoded twice."""
    # By the very types: a class of the handler's own may raise whatever when it is looked at.
    values: list[object] = [result]
    if type(result) is dict:
        values = [*result, *result.values()]
    elif type(result) is list or type(result) is tuple:
        values = [*result]
    return len(values) <= SMALL_VALUES_MAX and all(
        value is None
        or type(value) in (bool, float)
        or (type(value) is str and len(value) <= SMALL_CHARS_MAX)
        or (type(value) is int and value.bit_length() <= 64)
        for value in values
    )


def spilled(queue: Queue, lease: Lease, result: object) -> object:
    """Return what to ack with: the result, or a reference if it is too large for a row.

    Raises:
        KillproofError: as for `Payloads.spill`.
    """
    if is_small(result):
        return result
    from killproof.payloads import Payloads

    return Payloads(queue).spill(lease, result)


def settled(queue: Queue, lease: Lease, outcome: Outcome, journal: Journal | None) -> Outcome:
    """Return an outcome whose result fits a row; waits for the disk if it is large.

    The work is done: where its result can not be kept whole (the disk is full), the queue keeps the
    beginning of it and says so, as it does with what is no JSON.  To be called again before each
    further try: there may be room by then.

    Args:
        queue: in whose folder the file is.
        lease: of the job.
        outcome: of its handler.
        journal: where it is said that a result is cut; None where it was.

    Raises:
        DatabaseBusy, OutcomeUnknown: to be tried again, as the ack would be.
        StorageFailed: definite.
    """
    if outcome.word != "ack" or is_small(outcome.result):
        return outcome
    try:
        return replace(outcome, result=spilled(queue, lease, outcome.result))
    except (DatabaseBusy, OutcomeUnknown, StorageFailed):
        raise
    except KillproofError as error:
        if journal is not None:
            text = f"only the beginning of its result is kept: {error}"
            journal.job(logging.ERROR, lease, text)
        return outcome
