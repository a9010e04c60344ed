"""A small, fast job queue on one SQLite file.

>>> from killproof import Queue
>>> with Queue(path) as queue:
...     job_id = queue.enqueue("greet", {"name": "Ada"})
...     lease = queue.claim()
...     queue.ack(lease, {"said": f"Hello {lease.job.payload['name']}"})
"""

from killproof.core.clock import Clock, ManualClock, SystemClock
from killproof.core.database import Transaction
from killproof.core.errors import (
    DatabaseBusy,
    FileRefused,
    JobNotFound,
    KillproofError,
    LeaseLost,
    NestedTransaction,
    OutcomeUnknown,
    PayloadInvalid,
    PayloadTooLarge,
    StorageFailed,
    StorageFull,
)
from killproof.core.host import Host
from killproof.core.jobs import Queue
from killproof.core.model import Attempt, Job, Lease

__all__ = [
    "Attempt",
    "Clock",
    "DatabaseBusy",
    "FileRefused",
    "Host",
    "Job",
    "JobNotFound",
    "KillproofError",
    "Lease",
    "LeaseLost",
    "ManualClock",
    "NestedTransaction",
    "OutcomeUnknown",
    "PayloadInvalid",
    "PayloadTooLarge",
    "Queue",
    "StorageFailed",
    "StorageFull",
    "SystemClock",
    "Transaction",
]
