"""Outcomes on their way into the file: together where they can be, alone where they must.

Three hundred jobs that end in one second are a few transactions and not three hundred: all
successes that wait are written in one, and so are all jobs given back.  If one of them is refused,
none of that transaction happened, and each is written alone: a stale outcome takes no other with
it.  Failures are written alone; they are few, or each has a delay before it anyway.

The line about a job's end is written here as well: a terminal that does not read, or a traceback
that takes a millisecond to format, must not stop the event loop.

As with the worker, the end of a handler and the writing of it are two things.  A busy file fails no
job: what could not be written is tried again for as long as its lease lasts.  At least one try is
made, because the fence decides what is refused, not this process's clock.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from killproof import outcomes
from killproof.core import model
from killproof.core.clock import Clock
from killproof.core.errors import LeaseLost, StorageFailed
from killproof.core.jobs import Queue
from killproof.heartbeat import Tenure
from killproof.journal import Journal
from killproof.outcomes import TRANSIENT, Outcome
from killproof.spilling import settled
from killproof.worker import PAUSE_SECONDS_FIRST, PAUSE_SECONDS_MAX

#: Outcomes in one transaction: about 10 ms under the lock.
TOGETHER_MAX: Final = 250


@dataclass(slots=True, kw_only=True, eq=False)
class Settlement:
    """One outcome that has to reach the file."""

    tenure: Tenure
    outcome: Outcome
    seconds: float | None = None  #: that the handler took; None: it was not started
    tries: int = 0


Write = Callable[[Queue, Sequence[Settlement]], None]


class Settler:
    """Writes outcomes, on the connection of the thread that calls it."""

    def __init__(
        self,
        queue: Queue,
        clock: Clock,
        journal: Journal,
        *,
        is_forced: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare.

        Args:
            queue: written through it, on a connection of the calling thread.
            clock: by which a lease is judged to be over.
            journal: for lines about what is refused or has to wait.
            is_forced: whether nobody waits any more: what meets a busy file is then given up.
        """
        self._queue = queue
        self._clock = clock
        self._journal = journal
        self._is_forced = is_forced

    def write(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Write outcomes; return those to try again after a pause.

        The others are in the file, were refused, or are given up because their lease is over.

        Raises:
            StorageFailed: the disk failed.
        """
        settlements, left = self._prepare(settlements)
        acks = [one for one in settlements if one.outcome.word == "ack"]
        releases = [one for one in settlements if one.outcome.word == "release"]
        alone = [one for one in settlements if one.outcome.word not in ("ack", "release")]
        left += self._write_in_batches(acks, ack_many)
        left += [one for one in alone if not self._write_alone(one)]
        return left + self._write_in_batches(releases, release_many)

    def _prepare(
        self, settlements: Sequence[Settlement]
    ) -> tuple[list[Settlement], list[Settlement]]:
        """Say how handlers ended, and put large results into files.

        Returns:
            Those that can be written now, and those to try again.
        """
        ready, left = [], []
        for one in settlements:
            lease, is_first = one.tenure.lease, one.tries == 0
            if is_first and one.seconds is not None:
                self._journal.end(lease, one.outcome, one.seconds)
            try:
                told = self._journal if is_first else None
                one.outcome = settled(self._queue, lease, one.outcome, told)
            except StorageFailed:
                raise
            except TRANSIENT as error:
                if self._is_kept(one, error):
                    left.append(one)
            else:
                ready.append(one)
        return ready, left

    def _write_in_batches(
        self,
        settlements: Sequence[Settlement],
        write: Write,
    ) -> list[Settlement]:
        left = []
        for first in range(0, len(settlements), TOGETHER_MAX):
            left += self._write_together(settlements[first : first + TOGETHER_MAX], write)
        return left

    def _write_together(
        self,
        settlements: Sequence[Settlement],
        write: Write,
    ) -> list[Settlement]:
        if len(settlements) > 1:
            try:
                write(self._queue, settlements)
            except StorageFailed:
                raise
            except TRANSIENT as error:
                return [one for one in settlements if self._is_kept(one, error)]
            except Exception as error:
                # One of them was refused, or its row is damaged: none was written.
                line = "%d outcomes are written one by one: %r"
                self._journal.say(logging.DEBUG, line, len(settlements), error)
            else:
                return []
        return [one for one in settlements if not self._write_alone(one)]

    def _write_alone(self, one: Settlement) -> bool:
        """Write one outcome; False: try again."""
        lease, word = one.tenure.lease, one.outcome.word
        try:
            outcomes.send(self._queue, lease, one.outcome)
        except LeaseLost as error:
            self._journal.job(logging.WARNING, lease, f"outcome {word} refused: {error}")
        except StorageFailed:
            raise
        except TRANSIENT as error:
            return not self._is_kept(one, error)
        except Exception as error:
            # A damaged row: its lease tells the others, and the other jobs go on.
            self._journal.job(logging.ERROR, lease, f"outcome {word} not recorded: {error!r}")
        return True

    def _is_kept(self, one: Settlement, error: Exception) -> bool:
        """Say whether to try again what met a busy or full file."""
        lease, word = one.tenure.lease, one.outcome.word
        if self._is_forced() or one.tenure.is_lost(self._clock.monotonic_ns()):
            text = f"outcome {word} given up, the job will be recovered: {error}"
            self._journal.job(logging.ERROR, lease, text)
            return False
        if one.tries == 0:
            text = f"outcome {word} not written yet, trying again: {error}"
            self._journal.job(logging.WARNING, lease, text)
        one.tries += 1
        return True


class Outbox:
    """Outcomes on an event loop that wait to be written."""

    def __init__(self, write: Callable[[list[Settlement]], Awaitable[list[Settlement]]]) -> None:
        """Prepare.

        Args:
            write: writes outcomes off the loop and returns those to try again, as
                `Settler.write` does.
        """
        self._write = write
        self._waiting: list[tuple[Settlement, asyncio.Future[None]]] = []
        self._has_waiting = asyncio.Event()

    async def settle(self, settlement: Settlement) -> None:
        """Return when the outcome is in the file, was refused, or is given up."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((settlement, written))
        self._has_waiting.set()
        await written

    async def write_forever(self) -> None:
        """Write what waits, all of it at once; what comes meanwhile is the next round."""
        tries = 0
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            batch, self._waiting = self._waiting, []
            left = set(await self._write([settlement for settlement, _ in batch]))
            for settlement, written in batch:
                if settlement in left:
                    self._waiting.append((settlement, written))
                elif not written.done():
                    written.set_result(None)
            if left:
                await asyncio.sleep(min(PAUSE_SECONDS_FIRST * 2**tries, PAUSE_SECONDS_MAX))
                tries = min(tries + 1, 10)
                self._has_waiting.set()
            else:
                tries = 0


def ack_many(queue: Queue, settlements: Sequence[Settlement]) -> None:
    """Finish jobs with their results in one transaction, all or none.

    Raises:
        LeaseLost: one of them is not current: none was finished; definite.
        KillproofError: as for `Queue.ack`; repeating it is harmless.
    """
    # Results are the handlers' own objects, whose code must not run under the lock.
    texts = [model.encode_result(one.outcome.result) for one in settlements]
    with queue.database.write("ack") as tx:
        for one, text in zip(settlements, texts, strict=True):
            queue._ack(tx, one.tenure.lease, text)


def release_many(queue: Queue, settlements: Sequence[Settlement]) -> None:
    """Give jobs back untouched in one transaction, all or none; it was no attempt.

    Raises:
        LeaseLost: one of them is not current: none was given back; definite.
        KillproofError: as for `Queue.ack`.
    """
    with queue.database.write("release") as tx:
        for one in settlements:
            queue._end(tx, one.tenure.lease, "release", "available", "released")
