"""What a worker does between its jobs.

It says, for people, which kinds it takes and which nobody does; and it puts limits right that a
step of the clock has moved.  Nothing rests on it: a chore that fails is left for the next time, and
only a failed disk is told.
"""

import logging
from collections.abc import Iterable
from typing import Final

from killproof import operations, presence
from killproof.core.clock import Clock
from killproof.core.errors import KillproofError, StorageFailed
from killproof.core.jobs import Queue
from killproof.journal import Journal
from killproof.limits import Limits

#: An unknown kind that arrives later is reported within this time.
UNKNOWN_KINDS_SECONDS: Final = 60.0


class Chores:
    """The chores of one worker; done while nothing waits for it."""

    def __init__(self, queue: Queue, kinds: Iterable[str], clock: Clock, journal: Journal) -> None:
        self._queue = queue
        self._kinds = tuple(kinds)
        self._clock = clock
        self._journal = journal
        self._limits = Limits(queue)
        self._announced: str | None = None  # The identity whose kinds are in the file.
        self._reported: set[str] = set()
        self._report_at_ns = 0

    def do(self) -> None:
        """Do what is due.

        Raises:
            StorageFailed: the disk failed.
        """
        self._announce_kinds()
        self._report_unknown_kinds()
        self.mend_limits()

    def _announce_kinds(self) -> None:
        """Write down, once for each identity, which kinds this worker takes."""
        worker = self._queue.worker_id
        if worker is None or worker == self._announced:
            return
        self._announced = worker
        try:
            presence.announce(self._queue, self._kinds)
        except StorageFailed:
            raise
        except KillproofError as error:
            self._journal.say(logging.DEBUG, "kinds not written down: %s", error)

    def _report_unknown_kinds(self) -> None:
        """Warn, once for each kind, of jobs that this worker leaves alone for want of a handler.

        Another worker may have the handler; if none has, this line is all that tells a person.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._report_at_ns:
            return
        self._report_at_ns = now_ns + round(UNKNOWN_KINDS_SECONDS * 1e9)
        try:
            waiting = operations.waiting_kinds(self._queue)
        except KillproofError:
            return  # Advisory: the next look comes by itself.
        for kind in sorted(waiting - set(self._kinds) - self._reported):
            self._reported.add(kind)
            line = "jobs of kind %r wait and this worker has no handler"
            self._journal.say(logging.WARNING, line, kind)

    def mend_limits(self) -> None:
        """Put limits right once a second, also while there is work: other kinds may wait for it.

        Raises:
            StorageFailed: the disk failed.
        """
        try:
            self._limits.mend()
        except StorageFailed:
            raise
        except KillproofError as error:
            self._journal.say(logging.DEBUG, "limits not looked at: %s", error)
