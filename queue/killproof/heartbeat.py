r"""The lease in a worker's hands: how long to trust it, and who keeps it alive.

**Trust window.**  The file says until when the lease runs; others may take the job after that
moment.  The worker trusts it a margin less.  After a renewal the window counts from the *start* of
the call: the file's deadline is computed somewhere inside the call, and a call that hangs for ten
seconds must not make the window ten seconds longer.  So the worker stops trusting before anybody
else may start, by its own monotonic clock, also while the renewal call is still blocked.

**Term.**  A renewal names the fence.  When the queue refuses it, the lease has passed to somebody
else or the job has ended: there is nothing to renew, and the handler is told.

**Settling.**  From the moment a handler ends, its lease is not renewed any more.  The outcome has
what is left of the window (two thirds at least) to reach the file; if it cannot, nothing keeps the
job from being recovered.  It also means that a renewal which the ack overtook is no loss.

**Failure.**  A renewal that meets a busy or full file is tried again soon.  A heartbeat that dies
looks like a lease that runs out, which everybody handles.  A handler that hangs under a living
heartbeat is not its business: that is the kind's time limit, measured here independently of
renewals.

    running --handler ended--> settling --outcome written or refused--> over
       |  \--window over, or renewal refused--> lost (told once to the handler)
       \--time limit or grace over--> told; still there after a further grace: the process leaves
"""

import logging
import math
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Protocol

from killproof.core.clock import Clock
from killproof.core.errors import DatabaseBusy, LeaseLost, StorageFailed, StorageFull
from killproof.core.model import Lease

#: Renew at a third of the lease: two renewals may fail before the window ends.
RENEWALS_PER_LEASE = 3
#: A worker stops trusting a lease this part of it before its end, at most the second below: the
#: time that a thread may need to be told on a machine that is busy.
MARGIN_PER_LEASE = 10
MARGIN_NS_MAX = 1_000_000_000
#: The heartbeat looks up at least this often, so that a limit set by a signal is seen in time.
BEAT_SECONDS_MAX = 1.0
#: And no more often than this for the sake of a limit: without a grace it would never rest.
BEAT_SECONDS_MIN = 0.01
#: A failed renewal is tried again after this part of the usual interval.
RETRIES_PER_INTERVAL = 4

#: How long a worker that leaves waits for a renewal under way.
LEAVE_SECONDS = 1.0

SIGNALS = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)

Cause = Literal["lost", "stopped", "timeout"]


class Extends(Protocol):
    """What the heartbeat needs of a queue."""

    def extend(self, lease: Lease) -> object:
        """Prolong the lease by its length."""


class Tenure:
    """One lease, from the claim to its outcome, as its worker sees it; times in monotonic ns."""

    def __init__(
        self,
        lease: Lease,
        *,
        now_ns: int,
        timeout: float | None = None,
        length: float | None = None,
    ) -> None:
        """Begin.

        Args:
            lease: as claimed.
            now_ns: when the handler starts.
            timeout: seconds that it may take; None is no limit.
            length: seconds that the first renewal makes the lease; None keeps its length.
        """
        length_ms = lease.job.lease_ms if length is None else math.ceil(length * 1_000)
        # Who can not compare clocks watches for the length that the job was enqueued with.
        shorter_ns = min(length_ms, lease.job.lease_ms) * 1_000_000
        self.lease = replace(lease, job=replace(lease.job, lease_ms=length_ms))
        self.length_ns = length_ms * 1_000_000
        self._margin_ns = min(shorter_ns // MARGIN_PER_LEASE, MARGIN_NS_MAX)
        self.interval_ns = shorter_ns // RENEWALS_PER_LEASE
        self.trusted_until_ns = lease.deadline_ns - self._margin_ns
        self.renew_at_ns = now_ns + self.interval_ns
        self.timeout = timeout
        self.timeout_at_ns = None if timeout is None else now_ns + round(timeout * 1e9)
        self.stop_at_ns: int | None = None  # When the grace time of a stopping worker is over.
        self.settling = False  # The handler has ended, or its outcome is on its way.
        self.ended = False  # The handler has returned or raised.
        self.completed = False  # The outcome is in the file already, with the handler's own writes.
        self.told: set[Cause] = set()  # Each cause interrupts the handler once.
        self.overdue_since_ns: int | None = None
        self._lost = False

    def begin(self, *, now_ns: int, timeout: float | None) -> None:
        """Take note that the handler of a job that has waited starts now."""
        self.timeout = timeout
        self.timeout_at_ns = None if timeout is None else now_ns + round(timeout * 1e9)
        self.overdue_since_ns = None  # What it waited is no part of its grace.

    def renewed(self, started_ns: int, now_ns: int) -> None:
        """Take note of a renewal whose call began and ended at the times given."""
        if self.is_lost(now_ns):
            return
        self.trusted_until_ns = started_ns + self.length_ns - self._margin_ns
        self.renew_at_ns = started_ns + self.interval_ns

    def refused(self) -> None:
        """Take note that the queue says the lease is not ours."""
        self._lost = True

    def is_lost(self, now_ns: int) -> bool:
        """Say whether the lease must be taken for lost; once lost, it stays lost.

        A later renewal may succeed if nobody came in between, but the handler has been told.
        """
        if now_ns >= self.trusted_until_ns and not self.completed:
            self._lost = True
        return self._lost

    def cause(self, now_ns: int) -> Cause | None:
        """Return why the handler should be interrupted now, leaving out what it was told before."""
        causes: tuple[tuple[Cause, bool], ...] = (
            ("lost", self.is_lost(now_ns)),
            ("stopped", self.stop_at_ns is not None and now_ns >= self.stop_at_ns),
            ("timeout", self.timeout_at_ns is not None and now_ns >= self.timeout_at_ns),
        )
        return next((name for name, due in causes if due and name not in self.told), None)

    def next_cause_ns(self) -> int:
        """Return when the next cause may come up that the handler has not been told of."""
        times = {
            "lost": self.trusted_until_ns,
            "stopped": self.stop_at_ns,
            "timeout": self.timeout_at_ns,
        }
        waiting = [at for name, at in times.items() if at is not None and name not in self.told]
        return min(waiting, default=self.trusted_until_ns)

    def overdue(self, now_ns: int) -> Cause | None:
        """Return which hard limit has passed while the handler still runs, or None.

        A lost lease is none: the fence keeps its outcome out, and its own time limit ends it.
        """
        if self.timeout_at_ns is not None and now_ns >= self.timeout_at_ns:
            return "timeout"
        if self.stop_at_ns is not None and now_ns >= self.stop_at_ns:
            return "stopped"
        return None


class Heartbeat:
    """The thread that renews the lease of its worker's current tenure; one for a worker's life."""

    def __init__(
        self,
        queue: Extends,
        clock: Clock,
        *,
        on_lost: Callable[[Tenure], None],
        on_overdue: Callable[[Tenure, Cause], None],
        on_storage_failed: Callable[[StorageFailed], None],
        overdue_grace: float,
        log: Callable[[int, Lease, str], None],
    ) -> None:
        """Prepare the thread; `with heartbeat:` runs it.

        Args:
            queue: renews through it, on a connection of this thread.
            clock: its monotonic reading is the one that trust windows are judged by.
            on_lost: called in this thread when the queue refused a renewal.
            on_overdue: called in this thread when a handler outlived its limit by the grace.
            on_storage_failed: called in this thread when the disk failed under a renewal.
            overdue_grace: seconds between asking a handler to stop and `on_overdue`.
            log: writes one line about a lease.
        """
        self._queue = queue
        self._clock = clock
        self._on_lost = on_lost
        self._on_overdue = on_overdue
        self._on_storage_failed = on_storage_failed
        self._overdue_grace_ns = round(overdue_grace * 1e9)
        self._log = log
        self._tenure: Tenure | None = None
        self._pulse = Pulse(self.beat, clock)

    def __enter__(self) -> "Heartbeat":
        self._pulse.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._pulse.__exit__(*error)

    def watch(self, tenure: Tenure | None) -> None:
        """Take care of this tenure from now on (None: of nothing).

        An assignment; the thread is woken only for a lease that is due before its next look.
        """
        self._tenure = tenure
        if tenure is not None:
            self._pulse.wake_by(tenure.renew_at_ns)

    def beat(self) -> float:
        """Do what is due, and return the seconds until something may be due again."""
        tenure = self._tenure
        if tenure is None:
            return BEAT_SECONDS_MAX
        now_ns = self._clock.monotonic_ns()
        self._look_at_limits(tenure, now_ns)
        if tenure.settling:
            return BEAT_SECONDS_MAX
        if now_ns >= tenure.renew_at_ns and not tenure.is_lost(now_ns):
            self._renew(tenure, now_ns)
        # Once lost there is nothing to renew, and its time of renewal lies in the past for good.
        now_ns = self._clock.monotonic_ns()
        due_ns = BEAT_SECONDS_MAX * 1e9 if tenure.is_lost(now_ns) else tenure.renew_at_ns - now_ns
        look_seconds = max(BEAT_SECONDS_MIN, self._overdue_grace_ns / 1e9)
        return max(0.0, min(BEAT_SECONDS_MAX, due_ns / 1e9, look_seconds))

    def _look_at_limits(self, tenure: Tenure, now_ns: int) -> None:
        """Let go of a handler that did not stop when told to.

        The grace counts from when this thread *saw* the limit pass: after a stop of the whole
        process (SIGSTOP, a suspended machine) the handler gets its chance to stop first.
        """
        cause = tenure.overdue(now_ns)
        if cause is None or tenure.ended:
            tenure.overdue_since_ns = None
        elif tenure.overdue_since_ns is None:
            tenure.overdue_since_ns = now_ns
        elif now_ns - tenure.overdue_since_ns >= self._overdue_grace_ns:
            self._on_overdue(tenure, cause)

    def _renew(self, tenure: Tenure, started_ns: int) -> None:
        try:
            self._queue.extend(tenure.lease)
        except LeaseLost:
            # Overtaken by the worker's own ack: a success that looks like a loss from here.
            if not tenure.settling:
                tenure.refused()
                self._on_lost(tenure)
        except StorageFailed as error:
            self._on_storage_failed(error)
        except Exception as error:
            # Whatever it is, the window runs on and decides; a dead thread would only hide it.
            expected = isinstance(error, DatabaseBusy | StorageFull)
            level = logging.WARNING if expected else logging.ERROR
            self._log(level, tenure.lease, f"heartbeat failed, trying again: {error!r}")
            retry_ns = tenure.interval_ns // RETRIES_PER_INTERVAL
            tenure.renew_at_ns = self._clock.monotonic_ns() + retry_ns
        else:
            tenure.renewed(started_ns, self._clock.monotonic_ns())


class Pulse:
    """The thread that asks a function again and again what is due; a `with` block runs it."""

    def __init__(self, beat: Callable[[], float], clock: Clock) -> None:
        """Prepare the thread.

        Args:
            beat: does what is due, and returns the seconds until something may be due again.
            clock: by whose monotonic reading `wake_by` is given.
        """
        self._beat = beat
        self._clock = clock
        self._wake = threading.Event()
        self._wake_at_ns = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="killproof-heartbeat", daemon=True)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._wake.set()
        # It may be waiting for a locked file; a worker that leaves has nothing to renew any more.
        self._thread.join(LEAVE_SECONDS)

    def wake_by(self, at_ns: int) -> None:
        """Make sure that it looks at this moment, if it would have slept past it."""
        if at_ns < self._wake_at_ns:
            self._wake.set()

    def _run(self) -> None:
        # Signals are for the main thread: delivered here they would not wake it from a system call.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        while not self._closing:
            # Whoever comes while this thread looks must wake it: what it saw may be out of date.
            self._wake_at_ns = sys.maxsize
            seconds = self._beat()
            self._wake_at_ns = self._clock.monotonic_ns() + round(seconds * 1e9)
            self._wake.wait(seconds)
            self._wake.clear()
