"""Who fires the schedules: a thread of every worker, and `killproof schedules run`.

A thread, and not the loop that claims: a handler may run for an hour, and the slots of that hour
must not be late for it.  It sleeps until the next slot, but never longer than a second, so that a
schedule which somebody has just made is seen; a look that finds nothing due is two reads without a
lock, of an index entry.  A worker that dies in it has changed nothing (see `schedule`).

Who looks fires what is due, whatever kinds it works on: a job of a kind that it has no handler for
waits for a worker that has.
"""

import logging
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from killproof.core.errors import KillproofError, StorageFailed
from killproof.core.jobs import Queue

if TYPE_CHECKING:
    from killproof.schedule import Fired

#: A look at least so often, in seconds.
LOOK_SECONDS_MAX: Final = 1.0
#: And not more often than this, whatever the clock of the machine does.
LOOK_SECONDS_MIN: Final = 0.02
#: So much after the slot, at random, up to: of many workers the first has fired by the time that
#: the others look, and they need not ask for the write lock.
SPREAD_SECONDS: Final = 0.01
#: How long who leaves waits for a firing under way.
LEAVE_SECONDS: Final = 1.0
SIGNALS: Final = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)

logger = logging.getLogger("killproof.schedule")


class Firing:
    """Fires the schedules of a file, in a thread, for as long as its block is not left."""

    def __init__(
        self, queue: Queue, *, on_storage_failed: Callable[[StorageFailed], object] = lambda _: None
    ) -> None:
        """Prepare the thread; `with firing:` runs it.

        Args:
            queue: where the schedules are; used on a connection of this thread.
            on_storage_failed: called in the thread when the disk has failed; it looks no more.
        """
        self._queue = queue
        self._on_storage_failed = on_storage_failed
        self._leaving = threading.Event()
        self._told: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name="killproof-schedules", daemon=True)

    def __enter__(self) -> "Firing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        # It may be waiting for a locked file; what it has not committed somebody else fires.
        self._thread.join(LEAVE_SECONDS)

    HAS_ANY: Final = "SELECT 1 FROM killproof_schema WHERE component = 'schedule'"

    def look(self) -> "tuple[Fired | None, float]":
        """Fire what is due; return what was fired, and the seconds until the next look.

        None: the file has never had a schedule.

        Raises:
            KillproofError: as for `Queue.enqueue`.
        """
        if not self._queue.database.peek(self.HAS_ANY):
            return None, LOOK_SECONDS_MAX
        from killproof.schedule import fire_due  # Ten milliseconds for those who have schedules.

        fired = fire_due(self._queue)
        for trouble in fired.troubles:
            if trouble not in self._told:  # Once, and not every second.
                self._told.add(trouble)
                logger.warning("schedule %r can not be fired here: %s", *trouble)
        for job_id in fired.ids:
            logger.debug("job_id=%d put in by a schedule", job_id)
        seconds = LOOK_SECONDS_MAX
        if fired.next_ms is not None:
            until = (fired.next_ms - self._queue.host.clock.now_ms()) / 1_000
            seconds = max(LOOK_SECONDS_MIN, min(seconds, until))
        return fired, seconds + self._queue.host.random.random() * SPREAD_SECONDS

    def _run(self) -> None:
        # Signals are for the main thread: delivered here they would not wake it from a system call.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        is_well = True
        while not self._leaving.is_set():
            try:
                _, seconds = self.look()
                is_well = True
            except StorageFailed as error:
                self._on_storage_failed(error)
                return
            except Exception as error:
                # A busy or a full file, or a fault: a dead thread would only hide it.
                if self._leaving.is_set():
                    return
                level = logging.WARNING if isinstance(error, KillproofError) else logging.ERROR
                if is_well:
                    logger.log(level, "schedules are not looked at, trying again: %r", error)
                is_well, seconds = False, LOOK_SECONDS_MAX
            self._leaving.wait(seconds)
