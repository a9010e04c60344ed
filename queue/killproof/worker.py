"""The worker: one process, one job at a time, until told to stop.

    handlers = Handlers()

    @handlers("send_report", timeout=30.0)
    def send_report(context): ...

    Worker(Queue("queue.db"), handlers).run()

`run` repeats four steps: claim a job of a kind that has a handler; call the handler; judge what
came out of it; tell the queue, which hands out the next job in the same transaction.

**The outcome of the handler and the writing of it are two things.**  A job whose ack meets a busy
file has succeeded all the same: the ack is sent again (it is idempotent for its fence) until it
is in the file, refused, or the lease has run out.  The job is not failed for it, and its effect
not repeated.

**What ends a handler from outside.**  Its lease is lost, its kind's time limit is over, or the
worker was told to stop and the grace time is over.  A SIGALRM timer raises `LeaseLost`,
`HandlerTimeout` or `HandlerStopped` in it.  A handler that swallows that, or hangs in C, is left
behind: the heartbeat thread records the outcome and the process leaves through `os._exit`,
because Python has no way to end a thread, and the hung call could otherwise go on to an effect
that another worker repeats.  (A call that holds the interpreter's lock stops the heartbeat too:
its lease runs out and others go on, but to end the process is then up to its supervisor's
watchdog.)

**Everything a handler raises is its own failure.**  `sys.exit()`, `KeyboardInterrupt`, a stray
`CancelledError` are recorded as failed attempts: a library that calls `sys.exit` in a handler
must not take the worker with it, and an exit that left no trace would be tried for ever.

**Signals.**  SIGTERM and SIGINT stop the claiming; the handler has the grace time to end; then its
job is released, which is not an attempt.  A second signal ends the grace time at once.

Read `killproof.heartbeat` next: the trust window is there.
"""

import contextvars
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Final, TypeVar

from killproof import effects, libraries, outcomes, spilling
from killproof.chores import Chores
from killproof.core import model, sync
from killproof.core.clock import Clock, SystemClock
from killproof.core.database import Transaction
from killproof.core.errors import KillproofError, LeaseLost, StorageFailed
from killproof.core.jobs import LEAVE_SECONDS, Queue
from killproof.core.model import Failure, Job, Lease
from killproof.effects import Rejected
from killproof.handlers import (
    Handler,
    Handlers,
    HandlerStopped,
    HandlerTimeout,
    Hold,
    Interruption,
    Permanent,
    RetryLater,
    Snooze,
)
from killproof.heartbeat import Cause, Heartbeat, Tenure
from killproof.journal import Journal
from killproof.outcomes import EXIT_HANDLER_HUNG, EXIT_STORAGE_FAILED, TRANSIENT, Outcome
from killproof.schedule_firing import Firing

if TYPE_CHECKING:
    from concurrent.futures import Executor  # 15 ms for the type alone.

    from killproof.prefetching import Prefetch

__all__ = [
    "EXIT_HANDLER_HUNG",
    "EXIT_STORAGE_FAILED",
    "Context",
    "HandlerStopped",
    "HandlerTimeout",
    "Handlers",
    "Hold",
    "Interruption",
    "Permanent",
    "Rejected",
    "RetryLater",
    "Snooze",
    "Worker",
]

GRACE_SECONDS_DEFAULT: Final = 30.0
#: Between two rounds of the chores while idle; a job, or a stop, is noticed far sooner.
POLL_SECONDS_DEFAULT: Final = 1.0
#: Between telling a handler to stop and leaving it behind.
OVERDUE_GRACE_SECONDS_DEFAULT: Final = 5.0
#: Jobs that one worker keeps at most.
PREFETCH_MAX: Final = 100
#: A loop that has not moved for so long, with no handler in it, stands still: a claim waits at most
#: the busy limit of 30 s for SQLite's lock.
STILL_SECONDS_MAX: Final = 90.0
#: Pauses between tries against a busy or full file, doubling from the first to the second.
PAUSE_SECONDS_FIRST: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
#: A handler that ignores one interruption is not sent the next one sooner: it may be cleaning up.
ALARM_SECONDS_MIN: Final = 0.05
#: An interruption that met a transaction looks again so much later.
ALARM_SECONDS_WRITING: Final = 0.002

Result = TypeVar("Result")


class Context:
    """What a handler gets: its job, and the ways to act so that a crash does no harm."""

    def __init__(
        self, queue: Queue, tenure: Tenure, clock: Clock, threads: "Executor | None" = None
    ) -> None:
        """Make the context of one execution.

        Args:
            queue: where the job is.
            tenure: of its lease.
            clock: the worker's.
            threads: where the calls of a coroutine wait for the file; None is the loop's own.
        """
        self._queue = queue
        self._tenure = tenure
        self._clock = clock
        self._threads = threads
        self._payload: object = None

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        return self._tenure.lease.job

    @property
    def payload(self) -> object:
        """The payload, decoded; a large one is read from its file, and proven by its hash.

        Raises:
            PayloadLost: its file is missing or damaged: the job becomes a dead letter; definite.
            OSError: the file can not be read now.
        """
        if self._payload is None:
            found = self.job.payload
            is_in_file = spilling.is_reference(found)
            self._payload = spilling.payload_of(self._queue, self.job) if is_in_file else found
        return self._payload

    async def apayload(self) -> object:
        """Do as `payload` does, from a coroutine: a file is read in a thread."""
        if spilling.is_reference(self.job.payload):
            return await self._off_loop(lambda: self.payload)
        return self.payload

    @property
    def lease(self) -> Lease:
        """The lease, for the operations of `Queue` that ask for it."""
        return self._tenure.lease

    @property
    def lost(self) -> bool:
        """True when the lease must be taken for lost: somebody else may have the job; stop.

        It is judged by the worker's own clock, without a query.  Long loops look at it.
        """
        return self._tenure.is_lost(self._clock.monotonic_ns())

    def check(self) -> None:
        """Return, or raise what ends this handler from outside: its lease, its time, or a stop.

        For the loops of a plain handler in a dispatcher: nothing can interrupt a thread.

        Raises:
            LeaseLost, HandlerTimeout, HandlerStopped: let it pass.
        """
        tenure = self._tenure
        now_ns = self._clock.monotonic_ns()
        if tenure.is_lost(now_ns):
            raise LeaseLost(self.job.id, self.lease.fence, "handler")
        if (cause := tenure.overdue(now_ns)) is not None:
            raise outcomes.interruption(tenure, cause)

    @property
    def effect_key(self) -> str:
        """The name of this job's effect, equal on every attempt: an idempotency key for the remote.

        It is the job's own key if it has one, so that an event that is enqueued again after its job
        has ended is still the same event; otherwise it is made of what no other job shares.
        """
        return effects.key_of(self.job)

    def effect(
        self,
        key: str,
        function: Callable[[str], object],
        *,
        in_doubt: effects.InDoubt,
        check: effects.Check | None = None,
        scope: str | None = None,
    ) -> object:
        """Apply an effect outside of the file once, as far as that can be known.

        `killproof.effects` says what the arguments mean, and what is raised; `scope` is the job's
        kind unless given.
        """
        effect = effects.Effect(
            scope=self.job.kind if scope is None else scope,
            key=key,
            function=function,
            in_doubt=in_doubt,
            check=check,
        )
        return self._ledger().apply(effect)

    async def aeffect(
        self,
        key: str,
        function: Callable[[str], object],
        *,
        in_doubt: effects.InDoubt,
        check: effects.Check | None = None,
        scope: str | None = None,
    ) -> object:
        """Do as `effect` does, from a coroutine; `function` and `check` may be `async def`.

        The ledger is written in a thread.  Plain functions are called in one as well.
        """
        effect = effects.Effect(
            scope=self.job.kind if scope is None else scope,
            key=key,
            function=function,
            in_doubt=in_doubt,
            check=check,
        )
        return await self._ledger().apply_async(effect, self._off_loop)

    def _ledger(self) -> effects.Ledger:
        return effects.Ledger(self._queue, self.lease, clock=self._clock, lost=lambda: self.lost)

    def progress(self, done: float, total: float | None = None, note: str = "") -> bool:
        """Store how far the job is, for `killproof show`, twice a second at most.

        `killproof.workflow_memo.report_progress` says what is returned and raised.  It waits for
        the file: a coroutine calls it through `asyncio.to_thread`.
        """
        from killproof.workflow_memo import report_progress  # For those who tell.

        return report_progress(self, done, total, note)

    @contextmanager
    def completing(self, result: object = None) -> Iterator[Transaction]:
        """Run the block's SQL and the job's success in one transaction: both happen, or none.

        The block holds SQLite's write lock, so it must be short and do no I/O of its own; an
        interruption waits until its end.  After it the job has succeeded, whatever the handler
        does.
        """
        result = spilling.spilled(self._queue, self.lease, result)
        # A renewal that the commit overtakes is no loss; see `Tenure`.
        self._tenure.settling = True
        try:
            with self._queue.completing(self.lease, result) as tx:
                yield tx
                sync.point("handler.effect")
        except BaseException:
            self._tenure.settling = False
            raise
        self._tenure.completed = True

    async def acomplete(
        self, write: Callable[[Transaction], object], result: object = None
    ) -> None:
        """Do as `completing` does, from a coroutine: `write` runs the SQL, in a thread.

        An interruption waits until the transaction has ended.
        """

        def complete() -> None:
            with self.completing(result) as tx:
                write(tx)

        await self._off_loop(complete)

    async def _off_loop(self, function: Callable[[], Result]) -> Result:
        """Run what waits for the file in a thread, to its end, however often it is cancelled."""
        import asyncio  # 50 ms at the start of a worker, for coroutines alone.

        future = asyncio.get_running_loop().run_in_executor(self._threads, function)
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                result = await asyncio.shield(future)
            except asyncio.CancelledError as error:
                # Cut off here, nobody would know what became of the transaction.
                if future.done():
                    raise
                cancelled = error
            else:
                if cancelled is not None:
                    raise cancelled
                return result


class Worker:
    """One worker process; its `run` needs the main thread, which gets the signals."""

    def __init__(
        self,
        queue: Queue,
        handlers: Handlers,
        *,
        grace: float = GRACE_SECONDS_DEFAULT,
        poll: float = POLL_SECONDS_DEFAULT,
        overdue_grace: float = OVERDUE_GRACE_SECONDS_DEFAULT,
        prefetch: int = 1,
        logger: logging.Logger | None = None,
        clock: Clock | None = None,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        """Make a worker; nothing happens before `run`.

        Args:
            queue: where the jobs are; it stays open.
            handlers: the kinds to work on; others are never claimed.
            grace: seconds that a running handler has after SIGTERM.
            poll: seconds between two rounds of the chores while idle.
            overdue_grace: seconds between the interruption of a handler and leaving it behind.
            prefetch: jobs that are claimed at once, and acked together, for handlers of
                milliseconds; `killproof.prefetching` says what that costs others.
            logger: where the lines go; the logger `killproof.worker` unless given.
            clock: the queue's clock, for tests.
            leave: ends the process with a status at once, without closing SQLite.

        Raises:
            ValueError: there is no handler, or a time is not a positive number.
        """
        if not len(handlers):
            raise ValueError("no handlers: register one with @handlers('kind')")
        for name, seconds in (("grace", grace), ("poll", poll), ("overdue_grace", overdue_grace)):
            if not (0 <= seconds < threading.TIMEOUT_MAX):
                raise ValueError(f"{name} {seconds!r} must be a number of seconds, at least 0")
        self._queue = queue
        self._handlers = handlers
        self._grace_ns = round(grace * 1e9)
        self._poll = poll
        self._journal = Journal(logger or logging.getLogger("killproof.worker"))
        self._clock = clock or SystemClock()
        self._leave = leave
        self._heartbeat = Heartbeat(
            queue,
            self._clock,
            on_lost=self._on_lost,
            on_overdue=self._on_overdue,
            on_storage_failed=self._on_storage_failed,
            overdue_grace=overdue_grace,
            log=self._journal.job,
        )
        self._firing = Firing(queue, on_storage_failed=self._on_storage_failed)
        self._pid = os.getpid()
        self._tenure: Tenure | None = None
        self._armed = False  # The handler runs: an interruption may be raised.
        self._stopping = False
        self._forced = False
        self._signum = 0
        self._wanted: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {}
        self._busy_streak = 0
        self._chores = Chores(queue, handlers.kinds, self._clock, self._journal)
        self._moved_ns = 0
        self._ahead = self._prefetch_of(prefetch)

    def _prefetch_of(self, count: int) -> "Prefetch | None":
        model.check_count(count, "prefetch", 1, PREFETCH_MAX)
        if count == 1:
            return None
        from killproof.prefetching import Prefetch  # For those who ask for it.

        return Prefetch(
            self._queue,
            self._handlers.kinds,
            count,
            clock=self._clock,
            journal=self._journal,
            admit=self._admit,
            is_stopping=lambda: self._stopping,
            on_storage_failed=self._on_storage_failed,
        )

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping

    def is_well(self) -> bool:
        """Whether the loop moves, or a handler runs, which has limits of its own; any thread."""
        still_ns = self._clock.monotonic_ns() - self._moved_ns
        return self._tenure is not None or still_ns < STILL_SECONDS_MAX * 1e9

    def run(self) -> None:
        """Work until `stop` or a signal; then return with no job in hand.  Once for each worker.

        Raises:
            RuntimeError: called outside of the main thread, where no signal could end a handler.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("Worker.run needs the main thread: start it as a process of its own")
        self._pid = os.getpid()
        self._moved_ns = self._clock.monotonic_ns()
        sync.load()
        libraries.warn()
        busy_limit = self._queue.database.busy_limit
        try:
            with self._signals(), self._heartbeat, self._firing:
                if self._ahead is None:
                    self._loop()
                else:
                    with self._ahead:
                        self._loop_ahead(self._ahead)
        except StorageFailed as error:
            self._on_storage_failed(error)
        finally:
            self._queue.database.busy_limit = busy_limit
        sync.point("worker.stop")

    def stop(self) -> None:
        """Stop after the current job, or when the grace time is over; again: stop now.

        May be called from a handler, a signal handler or another thread.
        """
        self._forced = self._stopping
        grace_ns = 0 if self._forced else self._grace_ns
        self._stopping = True
        # A claim that waits for a lock which another program holds is no reason to stay longer.
        database = self._queue.database
        database.busy_limit = min(database.busy_limit, max(grace_ns / 1e9, LEAVE_SECONDS))
        if (tenure := self._tenure) is not None:
            tenure.stop_at_ns = self._clock.monotonic_ns() + grace_ns
            self._set_alarm(tenure)

    # --- The loop.

    def _loop(self) -> None:
        lease: Lease | None = None
        may_claim = True
        while not self._stopping:
            self._moved_ns = self._clock.monotonic_ns()
            if lease is None and may_claim:
                lease = self._claim()
            if lease is not None:
                lease = self._work(self._admit(lease))
                self._chores.mend_limits()
            elif not self._stopping:
                may_claim = self._idle()
        if lease is not None:
            # Claimed together with the last ack, and told to stop since: nobody has started it.
            self._settle(Tenure(lease, now_ns=0), Outcome(word="release"))

    def _loop_ahead(self, ahead: "Prefetch") -> None:
        """Do as `_loop` does, with jobs that wait and acks that are kept back."""
        may_claim = True
        while not self._stopping:
            self._moved_ns = self._clock.monotonic_ns()
            if not len(ahead) and (may_claim or ahead.has_unwritten()):
                try:
                    ahead.claim()
                    self._busy_streak = 0
                except TRANSIENT as error:
                    self._note_transient("claim", error)
            try:
                tenure = ahead.next()
            except TRANSIENT as error:
                self._note_transient("look at what waits", error)
                continue
            if tenure is not None:
                handler = self._handlers[tenure.lease.job.kind]
                tenure.begin(now_ns=self._clock.monotonic_ns(), timeout=handler.timeout)
                self._work(tenure)
                self._chores.mend_limits()
            elif not self._stopping and not ahead.has_unwritten():
                may_claim = self._idle()
        ahead.give_back()
        tries = 0
        while ahead.has_unwritten() and not self._forced:
            self._clock.sleep(min(PAUSE_SECONDS_FIRST * 2**tries, PAUSE_SECONDS_MAX))
            ahead.write()
            tries = min(tries + 1, 10)

    def _claim(self) -> Lease | None:
        """Claim a job, or return None; a file that is busy or full is never the end of a worker."""
        while not self._stopping:
            try:
                lease = self._queue.claim(self._handlers.kinds)
            except TRANSIENT as error:
                self._note_transient("claim", error)
            else:
                self._busy_streak = 0
                return lease
        return None

    def _note_transient(self, what: str, error: Exception) -> None:
        """Say it once for a row of equal troubles, and pause before the next try."""
        if self._busy_streak == 0:
            self._journal.say(logging.WARNING, "%s: %s; trying again until it works", what, error)
        self._moved_ns = self._clock.monotonic_ns()  # A locked file is no reason to be killed.
        pause = min(PAUSE_SECONDS_FIRST * 2 ** min(self._busy_streak, 10), PAUSE_SECONDS_MAX)
        self._busy_streak += 1
        self._clock.sleep(pause)

    def _idle(self) -> bool:
        """Wait until a job may be there, without taking the write lock; False: there is none."""
        self._chores.do()
        sync.point("worker.idle")
        try:
            return self._queue.wait(
                self._handlers.kinds, seconds=self._poll, until=lambda: self._stopping
            )
        except TRANSIENT as error:
            self._note_transient("wait", error)
        return True

    # --- One job.

    def _admit(self, lease: Lease) -> Tenure:
        """Begin a lease's tenure."""
        handler = self._handlers[lease.job.kind]
        return Tenure(
            lease,
            now_ns=self._clock.monotonic_ns(),
            timeout=handler.timeout,
            length=handler.lease,
        )

    def _work(self, tenure: Tenure) -> Lease | None:
        """Run one job to its outcome; return the lease of the next, if the ack brought one."""
        lease = tenure.lease
        handler = self._handlers[lease.job.kind]
        self._tenure = tenure
        self._heartbeat.watch(tenure)
        sync.point("handler.start")
        if self._stopping or tenure.is_lost(self._clock.monotonic_ns()):
            # Told to stop, or stood still past the lease, in the window since the claim.
            outcome = Outcome(word="release")
        else:
            outcome = self._call(handler, tenure)
            sync.point("handler.end")
        tenure.settling = tenure.ended = True
        self._heartbeat.watch(None)
        self._tenure = None
        if tenure.completed:
            if outcome.error is not None:
                failure = Failure.of(outcome.error)  # Its own repr may raise.
                text = f"raised after its completion: {failure.error_class}: {failure.message}"
                self._journal.job(logging.ERROR, lease, text)
            return None
        if self._ahead is not None and outcome.word == "ack":
            self._ahead.keep(tenure, outcome)
            return None
        return self._settle(tenure, outcome)

    def _call(self, handler: Handler, tenure: Tenure) -> Outcome:
        """Call the handler and judge how it ended."""
        context = Context(self._queue, tenure, self._clock)
        started_ns = self._clock.monotonic_ns()
        self._set_alarm(tenure)
        try:
            try:
                self._armed = True
                # What a job sets in its context variables is not for the next one.
                result = contextvars.copy_context().run(handler.function, context)
            finally:
                self._armed = False
        except BaseException as error:  # All of it is the handler's: see the module.
            self._armed = False  # The interruption may have come inside the `finally` above.
            outcome = outcomes.judge(tenure.lease, error)
        else:
            outcome = Outcome(word="ack", result=result)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() != self._pid:
            # A child that the handler forked has come back out of it: it holds no lease.
            os._exit(EXIT_HANDLER_HUNG)
        self._own_signals()
        seconds = (self._clock.monotonic_ns() - started_ns) / 1e9
        self._journal.end(tenure.lease, outcome, seconds)
        return outcome

    def _settle(self, tenure: Tenure, outcome: Outcome) -> Lease | None:
        """Write the outcome, however long the file is busy, while the lease lasts.

        At least one try is made: the fence, not this worker's clock, decides what is refused.
        """
        lease = tenure.lease
        tries = 0
        while True:
            try:
                told = self._journal if tries == 0 else None
                outcome = spilling.settled(self._queue, lease, outcome, told)
                if outcome.word == "ack" and not self._stopping:
                    return self._queue.ack_and_claim(lease, outcome.result, self._handlers.kinds)
                outcomes.send(self._queue, lease, outcome)
                return None
            except LeaseLost as error:
                self._journal.job(
                    logging.WARNING, lease, f"outcome {outcome.word} refused: {error}"
                )
                return None
            except TRANSIENT as error:
                if self._forced or tenure.is_lost(self._clock.monotonic_ns()):
                    text = f"outcome {outcome.word} given up, the job will be recovered: {error}"
                    self._journal.job(logging.ERROR, lease, text)
                    return None
                if tries == 0:
                    text = f"outcome {outcome.word} not written yet, trying again: {error}"
                    self._journal.job(logging.WARNING, lease, text)
            self._moved_ns = self._clock.monotonic_ns()
            self._clock.sleep(min(PAUSE_SECONDS_FIRST * 2**tries, PAUSE_SECONDS_MAX))
            tries = min(tries + 1, 10)

    # --- What ends a handler from outside.

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Own SIGTERM, SIGINT and SIGALRM for the time of `run`."""
        self._wanted = {
            signal.SIGTERM: self._on_stop_signal,
            signal.SIGINT: self._on_stop_signal,
            signal.SIGALRM: self._on_alarm,
        }
        former = {signum: signal.getsignal(signum) for signum in self._wanted}
        self._own_signals()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._wanted = {}
            for signum, handler in former.items():
                signal.signal(signum, handler)

    def _own_signals(self) -> None:
        """Take the signals, and take them back from a handler that has set or blocked them.

        The end of an event loop resets the ones that it was given: the next SIGTERM would end the
        process in the middle of a job.  A parent may have handed down a blocked SIGTERM.
        """
        for signum, handler in self._wanted.items():
            if signal.getsignal(signum) != handler:
                signal.signal(signum, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._wanted)

    def _on_stop_signal(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A child that a handler forked: signals end it as if there were no worker.
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self._signum = signum
        self.stop()

    def _set_alarm(self, tenure: Tenure, *, seconds_min: float = 0.0) -> None:
        """Set the timer to the next moment at which the handler may have to be interrupted."""
        seconds = (tenure.next_cause_ns() - self._clock.monotonic_ns()) / 1e9
        # Zero would switch the timer off.
        signal.setitimer(signal.ITIMER_REAL, max(seconds, seconds_min, 0.001))

    def _on_alarm(self, signum: int, frame: FrameType | None) -> None:
        """Raise in the handler what is due; in the main thread, between two of its instructions."""
        tenure = self._tenure
        if tenure is None or not self._armed or os.getpid() != self._pid:
            return
        if self._queue.database.is_writing():
            # The handler is inside a transaction: cut there, its outcome would be unknown.
            signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS_WRITING)
            return
        cause = tenure.cause(self._clock.monotonic_ns())
        if cause is None:
            # The window was renewed since the timer was set.
            self._set_alarm(tenure)
            return
        tenure.told.add(cause)
        self._set_alarm(tenure, seconds_min=ALARM_SECONDS_MIN)
        raise self._interruption(tenure, cause)

    def _interruption(self, tenure: Tenure, cause: Cause) -> Interruption | LeaseLost:
        return outcomes.interruption(tenure, cause)

    def _on_lost(self, tenure: Tenure) -> None:
        """Wake the main thread; runs in the heartbeat thread."""
        self._journal.job(logging.WARNING, tenure.lease, "lease lost: the heartbeat was refused")
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, signal.SIGALRM)

    def _on_overdue(self, tenure: Tenure, cause: Cause) -> None:
        """Leave a handler behind that did not stop; runs in the heartbeat thread."""
        where = "".join(traceback.format_stack(_main_frame()))
        self._journal.job(
            logging.CRITICAL, tenure.lease, f"handler hangs ({cause}), leaving it:\n{where}"
        )
        error = self._interruption(tenure, cause)
        error.add_note(f"It did not stop when told to; the main thread was at:\n{where}")
        try:
            if tenure.completed:
                pass  # Its outcome is in the file; it is the process that has to be freed.
            elif cause == "timeout":
                self._queue.nack(tenure.lease, error)
            else:
                self._queue.release(tenure.lease)
        except Exception as refused:
            if not tenure.ended:
                # Not recorded: the kernel lock and the lease tell the others, as after a kill.
                self._journal.job(logging.ERROR, tenure.lease, f"outcome not recorded: {refused}")
        if tenure.ended:
            return  # It ended at the last moment: the process is free, and may hold the next job.
        if self._ahead is not None:
            self._stopping = True  # What is given back must not be claimed here once more.
            with suppress(KillproofError):
                self._ahead.give_back()
        hung = cause == "timeout" or not self._signum
        self._leave(EXIT_HANDLER_HUNG if hung else 128 + self._signum)

    def _on_storage_failed(self, error: StorageFailed) -> None:
        """Leave at once, and do not close SQLite: a last close would copy unverified frames."""
        self._journal.say(logging.CRITICAL, "leaving: %s", error)
        self._leave(EXIT_STORAGE_FAILED)


def _main_frame() -> FrameType | None:
    """Return where the main thread is."""
    ident = threading.main_thread().ident
    return sys._current_frames().get(ident) if ident is not None else None
