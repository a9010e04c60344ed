"""The leases of many jobs in one process: who renews them all, and sees who overstays.

One look renews what is due, and what will be due soon along with it, in one transaction for
`RENEWALS_MAX` leases: jobs that were claimed one by one fall into step, and three hundred of them
cost a transaction in a third of their lease, not three hundred.

Every window is anchored at the *start* of the call, as in `killproof.heartbeat`, where `Tenure` is.
A lease that the queue refuses stops nobody else's: it is told, and the rest is renewed.  When the
transaction as a whole can not be had, each of its leases is tried again soon; when one row breaks
it, each is renewed alone.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from killproof.core.clock import Clock
from killproof.core.database import Value
from killproof.core.errors import StorageFailed
from killproof.core.jobs import Queue
from killproof.core.model import Lease
from killproof.heartbeat import (
    BEAT_SECONDS_MAX,
    BEAT_SECONDS_MIN,
    RETRIES_PER_INTERVAL,
    Cause,
    Tenure,
)
from killproof.journal import Journal
from killproof.outcomes import TRANSIENT

#: Leases in one transaction: about 5 ms under the lock.
RENEWALS_MAX: Final = 500
#: What comes due within this part of its interval is taken along.
AHEAD_PER_INTERVAL: Final = 2


class Roster:
    """The tenures of a process's running jobs.

    `beat` is for one thread; the others may be called by any.  Adding and taking away are single
    operations of a dict, so a look that goes on meanwhile sees the jobs before or after them.
    """

    def __init__(
        self,
        queue: Queue,
        clock: Clock,
        journal: Journal,
        *,
        on_lost: Callable[[Tenure], None],
        on_overdue: Callable[[Mapping[Tenure, Cause]], None],
        on_storage_failed: Callable[[StorageFailed], None],
        overdue_grace: float,
    ) -> None:
        """Make an empty roster.

        Args:
            queue: renews through it, on a connection of the thread that beats.
            clock: its monotonic reading is the one that trust windows are judged by.
            journal: for lines about renewals that fail.
            on_lost: called by `beat` when the queue refused a renewal.
            on_overdue: called by `beat` with the handlers that outlived their limit by the grace.
            on_storage_failed: called by `beat` when the disk failed under a renewal.
            overdue_grace: seconds between asking a handler to stop and `on_overdue`.
        """
        self._queue = queue
        self._clock = clock
        self._journal = journal
        self._on_lost = on_lost
        self._on_overdue = on_overdue
        self._on_storage_failed = on_storage_failed
        self._overdue_grace_ns = round(overdue_grace * 1e9)
        self._tenures: dict[Tenure, None] = {}

    def __len__(self) -> int:
        return len(self._tenures)

    def add(self, tenure: Tenure) -> None:
        """Take care of this tenure from now on."""
        self._tenures[tenure] = None

    def drop(self, tenure: Tenure) -> None:
        """Take care of it no more."""
        self._tenures.pop(tenure, None)

    def beat(self) -> float:
        """Do what is due, and return the seconds until something may be due again."""
        tenures = list(self._tenures)
        now_ns = self._clock.monotonic_ns()
        self._look_at_limits(tenures, now_ns)
        if any(_is_due(tenure, now_ns) for tenure in tenures):
            self._renew_with_others(tenures, now_ns)
        now_ns = self._clock.monotonic_ns()
        waiting = (
            (tenure.renew_at_ns - now_ns) / 1e9
            for tenure in tenures
            # Once lost there is nothing to renew, and its time of renewal lies in the past.
            if not tenure.settling and not tenure.is_lost(now_ns)
        )
        look_seconds = max(BEAT_SECONDS_MIN, self._overdue_grace_ns / 1e9)
        return max(0.0, min(BEAT_SECONDS_MAX, look_seconds, *waiting))

    def _look_at_limits(self, tenures: Sequence[Tenure], now_ns: int) -> None:
        """Tell of the handlers that did not stop when told to.

        The grace counts from when a look *saw* the limit pass: after a stop of the whole process
        (SIGSTOP, a suspended machine) a handler gets its chance to stop first.
        """
        overdue: dict[Tenure, Cause] = {}
        for tenure in tenures:
            cause = None if tenure.ended else tenure.overdue(now_ns)
            if cause is None:
                tenure.overdue_since_ns = None
            elif tenure.overdue_since_ns is None:
                tenure.overdue_since_ns = now_ns
            elif now_ns - tenure.overdue_since_ns >= self._overdue_grace_ns:
                overdue[tenure] = cause
        if overdue:
            self._on_overdue(overdue)

    def _renew_with_others(self, tenures: Sequence[Tenure], now_ns: int) -> None:
        """Renew what is due now, and with it what will be soon."""
        soon = [
            tenure
            for tenure in tenures
            if _is_due(tenure, now_ns + tenure.interval_ns // AHEAD_PER_INTERVAL)
            and not tenure.is_lost(now_ns)
        ]
        soon.sort(key=lambda tenure: tenure.trusted_until_ns)  # Whose window ends first, first.
        for first in range(0, len(soon), RENEWALS_MAX):
            self._renew(soon[first : first + RENEWALS_MAX])

    def _renew(self, tenures: Sequence[Tenure]) -> None:
        started_ns = self._clock.monotonic_ns()
        try:
            refused = extend_many(self._queue, [tenure.lease for tenure in tenures])
        except StorageFailed as error:
            self._on_storage_failed(error)
        except TRANSIENT as error:
            self._put_off(tenures, logging.WARNING, error)
        except Exception as error:
            # Whatever it is, the windows run on and decide; a dead thread would only hide it.
            if len(tenures) == 1:
                self._put_off(tenures, logging.ERROR, error)
                return
            for tenure in tenures:
                self._renew([tenure])
        else:
            now_ns = self._clock.monotonic_ns()
            for tenure in tenures:
                if (tenure.lease.job.id, tenure.lease.fence) not in refused:
                    tenure.renewed(started_ns, now_ns)
                elif not tenure.settling:  # Else overtaken by its own outcome, which is no loss.
                    tenure.refused()
                    self._on_lost(tenure)

    def _put_off(self, tenures: Sequence[Tenure], level: int, error: Exception) -> None:
        text = f"heartbeat of {len(tenures)} failed, trying again: {error!r}"
        self._journal.job(level, tenures[0].lease, text)
        now_ns = self._clock.monotonic_ns()
        for tenure in tenures:
            tenure.renew_at_ns = now_ns + tenure.interval_ns // RETRIES_PER_INTERVAL


def _is_due(tenure: Tenure, at_ns: int) -> bool:
    return not tenure.settling and at_ns >= tenure.renew_at_ns


def extend_many(queue: Queue, leases: Sequence[Lease]) -> set[tuple[int, int]]:
    """Prolong leases by their full length from now, in one transaction.

    Returns:
        (job id, fence) of those that are not current; the others are prolonged all the same.

    Raises:
        KillproofError: as for `Queue.extend`, but for `LeaseLost`; none was prolonged, or, after
            `OutcomeUnknown`, perhaps all.
    """
    queue._check_identity()
    clock = queue.host.clock
    started_ns = clock.monotonic_ns()
    refused = set()
    with queue.database.write("extend") as tx:
        now_ms = clock.now_ms()
        for lease in leases:
            values: dict[str, Value] = {
                "id": lease.job.id,
                "fence": lease.fence,
                "worker": lease.owner,
                "now_ms": now_ms,
                "deadline_ns": started_ns + lease.job.lease_ms * 1_000_000,
            }
            if not tx.change(queue.EXTEND, values):
                refused.add((lease.job.id, lease.fence))
    return refused
