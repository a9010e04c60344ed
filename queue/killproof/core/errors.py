"""The errors of the queue: what each means, and what the caller does next.

*Definite* means that nothing was changed: the call can be repeated as it is.
*Indefinite* means that the change may or may not have happened: look, or repeat with a key.
A wrong argument is a `ValueError` that shows the value, and also definite.
"""


class KillproofError(Exception):
    """The root of all errors that the queue raises on purpose."""

    #: True when nothing was changed, False when the change may have happened.
    definite: bool = True


class LeaseLost(KillproofError):
    """The lease is no longer current: definite; drop the work, it is no longer yours."""

    def __init__(self, job_id: int, fence: int, operation: str) -> None:
        super().__init__(
            f"{operation}: the lease on job {job_id} (fence {fence}) is no longer current; "
            "its outcome was refused: stop working on it"
        )
        self.job_id = job_id
        self.fence = fence


class JobNotFound(KillproofError):
    """There is no job with this id: definite; look it up with `killproof status`."""


class DatabaseBusy(KillproofError):
    """SQLite's write lock was not free within the limit: definite, rolled back; try again later."""


class NestedTransaction(KillproofError):
    """This thread is inside a transaction on this file: definite; pass `tx=` to join it."""


class OutcomeUnknown(KillproofError):
    """The commit may have happened or not: indefinite; look, or repeat the call with a key."""

    definite = False


class StorageFull(KillproofError):
    """The disk is full or refused a write: definite, rolled back; make room and try again."""


class StorageFailed(KillproofError):
    """The disk or the log failed before, the queue is stopped: definite; repair as it says."""


class FileRefused(KillproofError):
    """The file can not be used as it is: definite; the message names the reason and the remedy."""


class PayloadInvalid(KillproofError, ValueError):
    """The payload is not JSON (NaN, a lone surrogate, a cycle, an object): definite; correct it."""


class PayloadTooLarge(PayloadInvalid):
    """The payload is over the limit: definite; store it in a file and enqueue the reference."""
