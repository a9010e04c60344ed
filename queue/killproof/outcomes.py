"""What the end of a handler means for its job, and how the queue is told.

A `Worker` and a `Dispatcher` run handlers in different ways and make the same of what comes out of
them: that is here, and neither knows more.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from killproof import operations
from killproof.core import model
from killproof.core.errors import (
    DatabaseBusy,
    FileRefused,
    LeaseLost,
    OutcomeUnknown,
    StorageFailed,
    StorageFull,
)
from killproof.core.jobs import Queue
from killproof.core.model import Failure, Lease
from killproof.handlers import (
    HandlerStopped,
    HandlerTimeout,
    Hold,
    Interruption,
    Permanent,
    RetryLater,
    Snooze,
)
from killproof.heartbeat import Cause, Tenure
from killproof.limits import Limits

#: What a later try may get past: a busy file is never the end of a worker, nor a job's failure.
TRANSIENT = (DatabaseBusy, StorageFull, OutcomeUnknown)

#: Exit statuses of a process that leaves through `os._exit`; a stop in order is 0.
EXIT_STORAGE_FAILED = 3  # The disk failed: a restart does not help, `killproof doctor` may.
EXIT_HANDLER_HUNG = 70  # sysexits' EX_SOFTWARE: the attempt is recorded, restart the worker.


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a worker makes of the end of a handler."""

    word: Literal["ack", "nack", "snooze", "release", "hold", "nothing"]
    result: object = None
    error: BaseException | None = None
    delay: float | None = None  #: seconds; None is the policy's
    permanent: bool = False
    is_shared: bool = False  #: the delay holds for all jobs of the kind's resources


def judge(lease: Lease, error: BaseException) -> Outcome:
    """Return what an exception out of a handler means for its job.

    Raises:
        StorageFailed: the disk failed under it: that is nobody's failed attempt.
    """
    try:
        return _judged(lease, error)
    except StorageFailed:
        raise
    except Exception as odd:
        # A class of the handler's own: without `super().__init__()`, with a delay that is none.  It
        # ends no worker, and is no reason to try again for ever: a failed attempt.
        return Outcome(word="nack", error=odd)


def _judged(lease: Lease, error: BaseException) -> Outcome:
    if isinstance(error, OutcomeUnknown) and isinstance(error.__cause__, Interruption):
        error = error.__cause__  # It met a wait for the disk; the order to stop is the reason.
    match error:
        case StorageFailed():
            raise error
        case LeaseLost() if (error.job_id, error.fence) == (lease.job.id, lease.fence):
            return Outcome(word="nothing", error=error)
        case HandlerStopped():
            return Outcome(word="release", error=error)
        case Snooze():
            return Outcome(word="snooze", error=error, delay=_delay(error))
        case Hold():
            return Outcome(word="hold", error=error)
        case RetryLater():
            return Outcome(word="nack", error=error, delay=_delay(error), is_shared=error.shared)
    return Outcome(word="nack", error=error, permanent=isinstance(error, Permanent))


def _delay(error: RetryLater | Snooze) -> float:
    """Return the seconds that a handler asked for.

    Raises:
        ValueError: they are none, whatever was put there since.
    """
    return model.to_ms(error.seconds, type(error).__name__) / 1_000


def interruption(tenure: Tenure, cause: Cause) -> Interruption | LeaseLost:
    """Return what a handler is told when it must stop."""
    lease = tenure.lease
    if cause == "lost":
        return LeaseLost(lease.job.id, lease.fence, "handler")
    if cause == "stopped":
        return HandlerStopped("the worker is stopping and its grace time is over")
    return HandlerTimeout(f"ran longer than the time limit of its kind, {tenure.timeout:g} s")


def send(queue: Queue, lease: Lease, outcome: Outcome) -> None:
    """Tell the queue; one transaction, and one before it if others have to wait as well.

    Raises:
        LeaseLost: the lease is not current; definite.
        KillproofError: as for `Queue.ack`; sending it again is harmless.
    """
    error, delay = outcome.error, outcome.delay
    match outcome.word:
        case "ack":
            queue.ack(lease, outcome.result)
        case "nack":
            assert error is not None
            if outcome.is_shared and delay is not None:
                # First: once this job may be claimed again, the others must know as well.  A file
                # that can have no limits loses no outcome for it.
                with suppress(FileRefused, ValueError):
                    Limits(queue).close_kind(lease.job.kind, delay, Failure.of(error).message)
            queue.nack(lease, error, delay=delay, permanent=outcome.permanent)
        case "snooze":
            assert delay is not None
            queue.snooze(lease, delay)
        case "hold":
            assert error is not None
            operations.hold_leased(queue, lease, error)
        case "release":
            queue.release(lease)
        case "nothing":
            pass
