"""Jobs that a worker keeps waiting, and acks that it keeps back: one transaction for several jobs.

With `Worker(..., prefetch=10)` one transaction acks what is finished and claims the next ten.  That
pays for jobs of milliseconds; a job that waits here is kept from idle workers.

**Each job keeps its own lease and fence.**  A thread renews those that wait.  One whose lease was
lost, or that was cancelled, or whose deadline has passed, before its handler started, is never
started.  On a stop those that wait are given back at once, which is no attempt of theirs.

**No ack waits for a long handler.**  The same thread writes what has been kept back for
`KEEP_SECONDS`, so a kill repeats the jobs of that stretch at most.

**A crash costs those that wait an attempt each**, as it does the one that ran: to tell them apart
would need a write for each start.  It costs them no second one, for a job whose worker has died is
never claimed together with others (`Queue.ack_and_claim_many`).
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from killproof import spilling
from killproof.core.clock import Clock
from killproof.core.errors import KillproofError, StorageFailed
from killproof.core.jobs import LEAVE_SECONDS, Queue
from killproof.core.model import Lease
from killproof.heartbeat import Pulse, Tenure
from killproof.journal import Journal
from killproof.outcomes import TRANSIENT, Outcome
from killproof.roster import Roster
from killproof.settling import Settlement, Settler

#: An ack is kept back for so long at most, whatever the next handler does.
KEEP_SECONDS: Final = 0.05


class Prefetch:
    """The waiting jobs and unwritten acks of one worker; `with prefetch:` runs its thread."""

    def __init__(
        self,
        queue: Queue,
        kinds: Iterable[str],
        count: int,
        *,
        clock: Clock,
        journal: Journal,
        admit: Callable[[Lease], Tenure],
        is_stopping: Callable[[], bool],
        on_storage_failed: Callable[[StorageFailed], None],
    ) -> None:
        """Make it empty.

        Args:
            queue: claims and acks go through it.
            kinds: of the jobs.
            count: jobs that are claimed at once.
            clock: by which leases are judged.
            journal: for lines about what is not started, or has to be tried again.
            admit: makes the tenure of a lease.
            is_stopping: whether the worker was told to stop.
            on_storage_failed: called by the thread when the disk failed.
        """
        self._queue = queue
        self._kinds = tuple(kinds)
        self._count = count
        self._clock = clock
        self._journal = journal
        self._admit = admit
        self._is_stopping = is_stopping
        self._on_storage_failed = on_storage_failed
        self._settler = Settler(queue, clock, journal)
        self._roster = Roster(
            queue,
            clock,
            journal,
            on_lost=lambda _: None,  # It is looked at when its turn comes.
            on_overdue=lambda _: None,  # What waits has no limit.
            on_storage_failed=on_storage_failed,
            overdue_grace=LEAVE_SECONDS,
        )
        self._guard = threading.Lock()
        #: One writes at a time: who leaves must find what another's busy write has put back.
        self._writing = threading.Lock()
        self._waiting: deque[Tenure] = deque()
        self._kept: list[Settlement] = []
        self._kept_since_ns = 0
        self._pulse = Pulse(self._beat, clock)

    def __enter__(self) -> "Prefetch":
        self._pulse.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._pulse.__exit__(kind, *error)
        if kind is not None:
            with suppress(KillproofError):  # Else what is done here would be done once more.
                self.give_back()

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, tenure: Tenure, outcome: Outcome) -> None:
        """Keep an ack back until the next claim, or for `KEEP_SECONDS`."""
        with self._guard:
            if not self._kept:
                self._kept_since_ns = self._clock.monotonic_ns()
            self._kept.append(Settlement(tenure=tenure, outcome=outcome))
        self._pulse.wake_by(self._kept_since_ns + round(KEEP_SECONDS * 1e9))

    def claim(self) -> None:
        """Ack what is kept back, and claim the next jobs, in one transaction.

        Raises:
            KillproofError: as for `Queue.claim`; what is kept back is not forgotten.
        """
        with self._guard:
            kept, self._kept = self._kept, []
        try:
            for one in kept:
                one.outcome = spilling.settled(
                    self._queue, one.tenure.lease, one.outcome, self._journal
                )
            results = [one.outcome.result for one in kept]
            leases = [one.tenure.lease for one in kept]
            found = self._queue.ack_and_claim_many(
                leases, self._count, self._kinds, results=results
            )
        except BaseException as error:
            self._put_back(kept)
            if not kept or isinstance(error, TRANSIENT) or not isinstance(error, Exception):
                raise
            # One was refused, or its row is damaged: one by one; the next call claims.
            self.write()
            return
        with self._guard:
            for lease in found:
                tenure = self._admit(lease)
                self._waiting.append(tenure)
                self._roster.add(tenure)
        if found:
            self._pulse.wake_by(self._clock.monotonic_ns() + round(KEEP_SECONDS * 1e9))

    def next(self) -> Tenure | None:
        """Return the next job that may be started; what may not is given back.

        Raises:
            DatabaseBusy, StorageFailed: as for `Queue.is_current`; the job waits on.
        """
        while True:
            with self._guard:
                if not self._waiting:
                    return None
                tenure = self._waiting[0]
            why = self._unfit(tenure)
            with self._guard:
                if not self._waiting or self._waiting[0] is not tenure:
                    continue  # A stop has given it back meanwhile.
                self._waiting.popleft()
            self._roster.drop(tenure)
            if why is None:
                return tenure
            self._journal.job(logging.WARNING, tenure.lease, f"not started: {why}")
            self._release([tenure])

    def _unfit(self, tenure: Tenure) -> str | None:
        """Say why a job must not be started any more, or None."""
        lease = tenure.lease
        expires_ms = lease.job.expires_ms
        if tenure.is_lost(self._clock.monotonic_ns()):
            return "its lease ran out while it waited"
        if expires_ms is not None and expires_ms <= self._clock.now_ms():
            return "its deadline passed while it waited"
        if not self._queue.is_current(lease):
            return "somebody else has taken, cancelled or ended it"
        return None

    def write(self) -> None:
        """Write the acks that are kept back now; what meets a busy file stays kept.

        Raises:
            StorageFailed: the disk failed.
        """
        with self._writing:
            with self._guard:
                kept, self._kept = self._kept, []
            left = kept
            try:
                left = self._settler.write(kept)
            finally:
                if left:
                    self._kept_since_ns = self._clock.monotonic_ns()  # A rest before the next try.
                self._put_back(left)

    def give_back(self) -> None:
        """Write what is kept back and release what waits; any thread, and the end of a worker."""
        with self._guard:
            waiting = list(self._waiting)
            self._waiting.clear()
        for tenure in waiting:
            self._roster.drop(tenure)
        self._release(waiting)
        self.write()

    def has_unwritten(self) -> bool:
        """Whether acks are kept back."""
        return bool(self._kept)

    def _release(self, tenures: Iterable[Tenure]) -> None:
        """Give jobs back; what meets a busy file is recovered by its lease."""
        self._settler.write(
            [Settlement(tenure=tenure, outcome=Outcome(word="release")) for tenure in tenures]
        )

    def _put_back(self, kept: list[Settlement]) -> None:
        with self._guard:
            self._kept[:0] = kept

    def _beat(self) -> float:
        """Renew what is due, write what was kept for long enough, and release at a stop."""
        try:
            if self._is_stopping():
                self.give_back()
            elif self._clock.monotonic_ns() - self._kept_since_ns >= KEEP_SECONDS * 1e9:
                self.write()
            seconds = self._roster.beat()
            if self._kept:
                kept_seconds = (self._clock.monotonic_ns() - self._kept_since_ns) / 1e9
                return min(seconds, max(0.0, KEEP_SECONDS - kept_seconds))
            # Who has neither has no stop to look for, and rests as the heartbeat does.
            return min(seconds, KEEP_SECONDS) if self._waiting else seconds
        except StorageFailed as error:
            self._on_storage_failed(error)
        except Exception as error:  # A thread that dies of it would renew nothing any more.
            self._journal.say(logging.WARNING, "what waits is looked at again: %r", error)
        return KEEP_SECONDS
