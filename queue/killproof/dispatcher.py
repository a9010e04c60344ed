r"""The dispatcher: one process, one event loop, hundreds of jobs at once.

    handlers = Handlers()

    @handlers("fetch", timeout=30.0)
    async def fetch(context): ...

    asyncio.run(Dispatcher(Queue("queue.db"), handlers, slots=300).run())

The same handlers serve a `Worker`; `async def` ones run on the loop, plain ones in threads.

**Permit first, then claim, then spawn.**  A claim never asks for more jobs than there are free
slots, and a slot is free when the outcome of its job is in the file, not before.  So no job is held
that does not run, and the leases of this process are never more than its slots.  Plain handlers
need a thread as well: while there is none, their kinds are not asked for.

**Nothing on the loop waits.**  SQLite, the disk, log lines, tracebacks and the panel have threads,
each with a connection of its own; because the file has one writer at a time, more would only wait:

    killproof-claims    waits for work and claims it, `CLAIMS_MAX` jobs in a transaction
    killproof-settle    writes outcomes, those that wait together (`killproof.settling`)
    killproof-heartbeat renews all leases together (`killproof.roster`); watches the loop
    killproof-calls     what coroutines ask of the file
    killproof-plain     plain handlers

**What ends a handler from outside** is what ends a worker's: a lost lease, its kind's time limit,
and a stop whose grace time is over.  A coroutine is cancelled, and what comes of it is judged by
the cause.  A plain handler in a thread can not be interrupted, `context.check` tells it.  Either
way a stale outcome is refused by its fence.  A handler that outlives its limit, or the stop, by a
grace (it swallows the cancellation, hangs in a thread, or blocks the loop) is left behind: the
heartbeat thread records its attempt as failed, gives the other jobs back, which is no attempt of
theirs, and the process leaves through `os._exit`.  Whoever blocks the loop is named and blamed;
others that pass their limits because of it are given back.

**Everything a handler raises is its own failure**: `sys.exit()` and `KeyboardInterrupt` too.

Read `killproof.running` (one job), `killproof.settling` and `killproof.roster` next.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from traceback import format_exception
from types import FrameType
from typing import Final, Literal, TypeVar

from killproof import libraries
from killproof.chores import Chores
from killproof.core import model, sync
from killproof.core.clock import Clock
from killproof.core.errors import KillproofError, StorageFailed
from killproof.core.jobs import LEAVE_SECONDS, Queue
from killproof.core.model import Failure, Lease
from killproof.handlers import Handlers
from killproof.heartbeat import SIGNALS, Cause, Pulse, Tenure
from killproof.journal import Journal
from killproof.loop_watch import BLOCKED_SECONDS, LoopWatch
from killproof.outcomes import EXIT_HANDLER_HUNG, EXIT_STORAGE_FAILED, TRANSIENT, Outcome
from killproof.panel import Panel, Showing
from killproof.roster import Roster
from killproof.running import Ground, Run
from killproof.schedule_firing import Firing
from killproof.settling import Outbox, Settlement, Settler
from killproof.worker import (
    GRACE_SECONDS_DEFAULT,
    OVERDUE_GRACE_SECONDS_DEFAULT,
    PAUSE_SECONDS_FIRST,
    PAUSE_SECONDS_MAX,
    STILL_SECONDS_MAX,
)

#: The article's MAX_CONCURRENT.
SLOTS_DEFAULT: Final = 3
#: Each job holds memory and a lease; a second process is the better answer to more.
SLOTS_MAX: Final = 10_000
#: Jobs that one claim takes: its handlers all begin in one turn of the loop, 3 to 5 ms.
CLAIMS_MAX: Final = 25
#: Plain handlers at once, unless told otherwise: each has a thread, a connection, and its files.
THREADS_DEFAULT: Final = 32
#: Threads for what coroutines ask of the file.
CALLS: Final = 4
#: Between two claims while idle; a job that becomes due, or a stop, is noticed far sooner.
POLL_SECONDS: Final = 1.0
#: While the kinds of plain handlers are not asked for, a thread that becomes free is seen so soon.
POLL_SECONDS_SOME: Final = 0.05
#: How the threads are called that `asyncio.to_thread` uses under `serve`.
THREADS_OF_COROUTINES: Final = "killproof-handlers"
#: And of all threads that run handlers' code.
THREADS_OF_HANDLERS: Final = (THREADS_OF_COROUTINES, "killproof-plain")
#: Between two rounds of the chores, whether there is work or not.
CHORES_SECONDS: Final = 1.0

Answer = TypeVar("Answer")
Heart = Literal["thread", "task"]


class Dispatcher:
    """Runs jobs in the slots of one process; `run` needs an event loop, `serve` makes one."""

    def __init__(
        self,
        queue: Queue,
        handlers: Handlers,
        slots: int = SLOTS_DEFAULT,
        kinds: Iterable[str] | None = None,
        grace: float = GRACE_SECONDS_DEFAULT,
        panel: Panel | None = None,
        *,
        threads: int | None = None,
        poll: float = POLL_SECONDS,
        overdue_grace: float = OVERDUE_GRACE_SECONDS_DEFAULT,
        logger: logging.Logger | None = None,
        clock: Clock | None = None,
        leave: Callable[[int], object] = os._exit,
        heart: Heart = "thread",
    ) -> None:
        """Make a dispatcher; nothing happens before `run`.

        Args:
            queue: where the jobs are; it stays open.
            handlers: the kinds to work on; others are never claimed.
            slots: jobs at once.
            kinds: of these only; None is all that have a handler.
            grace: seconds that running handlers have after SIGTERM.
            panel: shows the queue now and then; None: nothing is shown.
            threads: plain handlers at once; None: as many as slots, at most `THREADS_DEFAULT`.
            poll: seconds between two claims while idle.
            overdue_grace: seconds between the interruption of a handler and leaving it behind.
            logger: where the lines go; the logger `killproof.dispatcher` unless given.
            clock: the queue's clock unless given.
            leave: ends the process with a status at once, without closing SQLite.
            heart: `thread`, which beats also while the loop is blocked; `task` for a simulator.

        Raises:
            ValueError: there is no handler, a kind has none, or a number is out of its range.
        """
        self._kinds = _checked_kinds(handlers, kinds)
        _check_seconds(grace=grace, poll=poll, overdue_grace=overdue_grace)
        self.slots = model.check_count(slots, "slots", 1, SLOTS_MAX)
        most = min(slots, THREADS_DEFAULT) if threads is None else threads
        self._threads_max = min(slots, model.check_count(most, "threads", 1, SLOTS_MAX))
        self._queue = queue
        self._handlers = handlers
        self._coroutine_kinds = tuple(k for k in self._kinds if handlers[k].is_coroutine)
        self._grace_ns = round(grace * 1e9)
        self._poll = poll
        self._panel = panel
        self._clock = clock or queue.host.clock
        self._journal = Journal(logger or logging.getLogger("killproof.dispatcher"))
        self._leave = leave
        self._heart = heart
        self._overdue_grace_ns = round(overdue_grace * 1e9)
        self._roster = self._new_roster(overdue_grace)
        self._watch = LoopWatch(self._clock)
        self._pulse: Pulse | None = None
        self._outbox = Outbox(self._write)
        self._settler = Settler(queue, self._clock, self._journal, is_forced=lambda: self._forced)
        self._chores = Chores(queue, self._kinds, self._clock, self._journal)
        self._runs: dict[Tenure, Run] = {}
        self._gate = threading.Lock()  # Held during a claim.
        self._fresh: list[Lease] = []  # Of the last claim, known before the loop knows them.
        self._jobs: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._changed = asyncio.Event()  # A slot or a thread is free, or it is time to stop.
        self._pid = os.getpid()
        self._stopping = self._forced = False
        self._signum = 0
        self._busy_streak = 0

    def _new_roster(self, overdue_grace: float) -> Roster:
        return Roster(
            self._queue,
            self._clock,
            self._journal,
            on_lost=self._on_lost,
            on_overdue=self._on_overdue,
            on_storage_failed=self._on_storage_failed,
            overdue_grace=overdue_grace,
        )

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping

    @property
    def slots_used(self) -> int:
        """How many jobs have a slot now."""
        return len(self._runs)

    def is_well(self) -> bool:
        """Whether the loop moves, or handlers run, which have limits of their own; any thread."""
        return bool(self._runs) or self._watch.still_seconds < STILL_SECONDS_MAX

    async def run(self, *, signals: bool = True) -> None:
        """Work until `stop` or a signal; then return with no job in hand.  Once for each object.

        A cancellation is a stop, and a second one a second stop; it is raised at the end.

        Args:
            signals: take SIGTERM and SIGINT for the time of the call, in the main thread only.
                False where another program of the same process owns them and calls `stop`.
        """
        self._watch.begin(asyncio.get_running_loop())
        self._pid = os.getpid()
        sync.load()
        libraries.warn()
        takes_signals = signals and threading.current_thread() is threading.main_thread()
        with self._executors(), self._signals() if takes_signals else nullcontext():
            work = asyncio.create_task(self._run())
            cancelled: asyncio.CancelledError | None = None
            while not work.done():
                try:
                    await asyncio.shield(work)
                except asyncio.CancelledError as error:
                    cancelled = error
                    self.stop()
            work.result()
        sync.point("worker.stop")
        if cancelled is not None:
            raise cancelled

    def serve(self) -> None:
        """Run on an event loop of its own, in the main thread, until a signal.

        A task that a handler has left behind may raise `SystemExit` through the loop: it goes on.
        """
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            threads = ThreadPoolExecutor(thread_name_prefix=THREADS_OF_COROUTINES)
            loop.set_default_executor(threads)
            work = loop.create_task(self.run())
            while not work.done():
                try:
                    loop.run_until_complete(asyncio.wait([work]))
                except (SystemExit, KeyboardInterrupt) as error:
                    line = "a task of a handler raised %r through the event loop; going on"
                    self._journal.say(logging.ERROR, line, error)
            threads.shutdown(wait=False, cancel_futures=True)
            self._leave_threads_behind(work.exception())
            work.result()

    def _leave_threads_behind(self, fault: BaseException | None) -> None:
        """End the process if a handler has left a thread that does not end.

        The interpreter would wait for it, for ever perhaps: a cancelled coroutine's, or, after a
        fault of ours, that of a plain handler, whose job others take over meanwhile.
        """
        until_ns = self._clock.monotonic_ns() + self._overdue_grace_ns
        while left := [
            thread.name
            for thread in threading.enumerate()
            if thread.name.startswith(THREADS_OF_HANDLERS)
        ]:
            if self._clock.monotonic_ns() >= until_ns:
                why = "" if fault is None else "".join(format_exception(fault))
                line = "leaving; threads still run: %s\n%s"
                self._journal.say(logging.CRITICAL, line, ", ".join(left), why)
                self._leave(128 + self._signum if self._signum else EXIT_HANDLER_HUNG)
                return
            self._clock.sleep(PAUSE_SECONDS_FIRST)

    def stop(self) -> None:
        """Stop claiming; end when the jobs have, or the grace time has; again: stop now.

        May be called from a handler, a signal handler or another thread.
        """
        self._forced = self._stopping
        grace_ns = 0 if self._forced else self._grace_ns
        self._stopping = True
        # A claim that waits for a lock which another program holds is no reason to stay longer.
        database = self._queue.database
        database.busy_limit = min(database.busy_limit, max(grace_ns / 1e9, LEAVE_SECONDS))
        stop_at_ns = self._clock.monotonic_ns() + grace_ns
        for tenure in list(self._runs):
            tenure.stop_at_ns = stop_at_ns
        self._watch.call(self._on_stop)

    def _on_stop(self) -> None:
        self._changed.set()
        for run in list(self._runs.values()):
            run.look()

    # --- The life of a run.

    async def _run(self) -> None:
        """Claim and run jobs; what breaks in here is a fault of ours and ends all of it."""
        busy_limit = self._queue.database.busy_limit
        if self._stopping:
            return
        try:
            with self._beside():
                forever = self._beat_forever if self._heart == "task" else self._do_chores_forever
                main = asyncio.create_task(self._dispatch())
                tasks = [main, *map(asyncio.create_task, (self._outbox.write_forever(), forever()))]
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await _cancel([*tasks, *self._jobs])
                for task in done:
                    task.result()
                assert main in done, "the others go on until they are cancelled"
        finally:
            self._queue.database.busy_limit = busy_limit

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Run the threads that do not wait for the loop."""
        failed = self._on_storage_failed
        with ExitStack() as threads:
            if self._heart == "thread":
                self._pulse = threads.enter_context(Pulse(self._beat, self._clock))
                threads.enter_context(Firing(self._queue, on_storage_failed=failed))
            if self._panel is not None:
                showing = Showing(
                    self._queue,
                    self._panel,
                    slots=self.slots,
                    slots_used=lambda: self.slots_used,
                    on_storage_failed=failed,
                )
                threads.enter_context(showing)
            yield

    async def _dispatch(self) -> None:
        """Permit, claim, spawn; on a stop wait for those that run."""
        while not self._stopping:
            if (permits := self._permits()) is None:
                await self._wait_for_change()
                continue
            for lease in await self._claim(*permits):
                job = asyncio.create_task(self._work(self._admit(lease)))
                self._jobs.add(job)
                job.add_done_callback(self._on_job_done)
            self._fresh = []
            self._raise_fault()
        while self._jobs:
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        """Wait until a slot is free, or it is time to stop."""
        self._changed.clear()
        await self._changed.wait()
        self._raise_fault()

    def _on_job_done(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            self._fault = error  # Of ours: what a handler raises is an outcome.
        self._changed.set()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _permits(self) -> tuple[int, tuple[str, ...], bool] | None:
        """Return how many jobs may be claimed, of which kinds, and whether that is all kinds."""
        free = min(self.slots - len(self._runs), CLAIMS_MAX)
        if free <= 0:
            return None
        in_threads = sum(not run.handler.is_coroutine for run in self._runs.values())
        free_threads = self._threads_max - in_threads
        if len(self._coroutine_kinds) == len(self._kinds):
            return free, self._kinds, True
        if free_threads > 0:
            # One statement asks for all kinds, so that their order holds between them.
            return min(free, free_threads), self._kinds, True
        if self._coroutine_kinds:
            return free, self._coroutine_kinds, False
        return None

    async def _claim(self, limit: int, kinds: tuple[str, ...], is_all: bool) -> list[Lease]:
        """Claim jobs, or wait a little for some; a busy or full file is never the end."""
        poll = self._poll if is_all else POLL_SECONDS_SOME
        try:
            found = await self._in(self._claims, partial(self._take, limit, kinds, poll))
        except StorageFailed as error:
            self._on_storage_failed(error)
            return []
        except TRANSIENT as error:
            if self._busy_streak == 0:
                line = "claim: %s; trying again until it works"
                self._journal.say(logging.WARNING, line, error)
            pause = min(PAUSE_SECONDS_FIRST * 2 ** min(self._busy_streak, 10), PAUSE_SECONDS_MAX)
            self._busy_streak += 1
            await asyncio.sleep(pause)
            return []
        self._busy_streak = 0
        return found

    def _take(self, limit: int, kinds: tuple[str, ...], poll: float) -> list[Lease]:
        """Claim, and without success wait and claim again; in the thread of the claims."""
        found = self._claim_many(limit, kinds)
        if found or self._stopping:
            return found
        sync.point("worker.idle")
        if self._queue.wait(kinds, seconds=poll, until=lambda: self._stopping):
            return self._claim_many(limit, kinds)
        return []

    def _claim_many(self, limit: int, kinds: tuple[str, ...]) -> list[Lease]:
        """Claim, unless it is time to stop: who leaves the process must know of every lease."""
        with self._gate:
            if self._stopping:
                return []
            self._fresh = self._queue.claim_many(limit, kinds)
            return self._fresh

    async def _do_chores_forever(self) -> None:
        while True:
            try:
                await self._in(self._calls, self._chores.do)
            except StorageFailed as error:
                self._on_storage_failed(error)
            await asyncio.sleep(CHORES_SECONDS)

    # --- One job.

    def _admit(self, lease: Lease) -> Run:
        """Give a job its slot; from here on its lease is renewed."""
        handler = self._handlers[lease.job.kind]
        tenure = Tenure(
            lease,
            now_ns=self._clock.monotonic_ns(),
            timeout=handler.timeout,
            length=handler.lease,
        )
        run = Run(handler, tenure, self._ground)
        self._runs[tenure] = run
        self._roster.add(tenure)
        if self._pulse is not None:
            self._pulse.wake_by(tenure.renew_at_ns)  # It may sleep past a short lease.
        return run

    async def _work(self, run: Run) -> None:
        """Run one job to its outcome, and see that outcome into the file."""
        tenure = run.tenure
        seconds = None
        try:
            sync.point("handler.start")
            if self._stopping or tenure.is_lost(self._clock.monotonic_ns()):
                # Told to stop, or stood still past the lease, in the window since the claim.
                run.outcome = Outcome(word="release")
            else:
                started_ns = self._clock.monotonic_ns()
                await run.handle()
                seconds = (self._clock.monotonic_ns() - started_ns) / 1e9
                sync.point("handler.end")
            assert run.outcome is not None
            tenure.settling = tenure.ended = True
            self._roster.drop(tenure)
            if tenure.completed:
                await self._in(self._settles, partial(self._note_completed, run, run.outcome))
            else:
                await self._outbox.settle(
                    Settlement(tenure=tenure, outcome=run.outcome, seconds=seconds)
                )
            run.is_settled = True
        finally:
            self._roster.drop(tenure)
            del self._runs[tenure]

    def _note_completed(self, run: Run, outcome: Outcome) -> None:
        """Say what a handler did after its success was in the file; in a thread."""
        if outcome.error is not None:
            failure = Failure.of(outcome.error)  # Its own repr may raise.
            text = f"raised after its completion: {failure.error_class}: {failure.message}"
            self._journal.job(logging.ERROR, run.tenure.lease, text)

    async def _write(self, settlements: list[Settlement]) -> list[Settlement]:
        """Write outcomes off the loop; return those to try again."""
        try:
            return await self._in(self._settles, partial(self._settler.write, settlements))
        except StorageFailed as error:
            self._on_storage_failed(error)
            return []

    # --- The heartbeat: in a thread of its own, or for a simulator in a task.

    def _beat(self) -> float:
        self._look_at_loop()
        return self._roster.beat()

    async def _beat_forever(self) -> None:
        while True:
            seconds = await self._in(self._calls, self._roster.beat)
            await asyncio.sleep(seconds)

    def _look_at_loop(self) -> None:
        """Say who blocks the loop, once each time."""
        if not self._watch.look():
            return
        where, run = self._watch.stack(), self._run_on_loop()
        text = "blocks the event loop: await what it waits for, or make it a plain handler"
        if run is not None:
            self._journal.job(logging.WARNING, run.tenure.lease, f"{text}\n{where}")
        else:
            self._journal.say(logging.WARNING, "a task %s\n%s", text, where)

    def _run_on_loop(self) -> Run | None:
        """Return whose handler the loop is inside of; any thread."""
        task = self._watch.task()
        return next((run for run in list(self._runs.values()) if run.task is task), None)

    def _on_lost(self, tenure: Tenure) -> None:
        """Have the handler told; runs in the heartbeat's thread."""
        self._journal.job(logging.WARNING, tenure.lease, "lease lost: the heartbeat was refused")
        if (run := self._runs.get(tenure)) is not None:
            self._watch.call(run.look)

    def _on_overdue(self, overdue: Mapping[Tenure, Cause]) -> None:
        """Leave handlers behind that did not stop, and with them the process.

        Runs in the heartbeat's thread: the loop may be what hangs.
        """
        inside = self._run_on_loop()
        blocked_seconds = min(BLOCKED_SECONDS, self._overdue_grace_ns / 1e9)
        guilty = inside if self._watch.is_blocked(blocked_seconds) else None
        if all(tenure.ended for tenure in overdue):
            return  # They ended at the last moment.
        self._stopping = True  # What is given back must not be claimed here once more.
        has_gate = self._gate.acquire(timeout=LEAVE_SECONDS)
        settlements = []
        for run in list(self._runs.values()):
            cause = overdue.get(run.tenure)
            where = self._watch.stack() if run is inside else run.stack()
            # Whose limit passed because somebody blocks the loop hangs nowhere.
            if run is guilty or (cause is not None and guilty is None):
                text = f"handler hangs ({cause or 'blocks'}), leaving it; it was at:\n{where}"
                self._journal.job(logging.CRITICAL, run.tenure.lease, text)
            if (outcome := run.last_outcome(cause, guilty, where)) is not None:
                settlements.append(Settlement(tenure=run.tenure, outcome=outcome))
        settlements += self._not_started()
        try:
            # Not recorded: the kernel lock and the lease tell the others, as after a kill.
            left = self._settler.write(settlements)
        except KillproofError as error:
            self._journal.say(logging.ERROR, "outcomes not recorded: %s", error)
        else:
            if left:
                self._journal.say(logging.ERROR, "%d outcomes not recorded", len(left))
        is_hung = "timeout" in overdue.values() or not self._signum
        self._leave(EXIT_HANDLER_HUNG if is_hung else 128 + self._signum)
        if has_gate:
            self._gate.release()

    def _not_started(self) -> list[Settlement]:
        """Return how to give back the jobs that were claimed and that the loop has not seen yet."""
        known = {(run.tenure.lease.job.id, run.tenure.lease.fence) for run in self._runs.values()}
        return [
            Settlement(tenure=Tenure(lease, now_ns=0), outcome=Outcome(word="release"))
            for lease in self._fresh
            if (lease.job.id, lease.fence) not in known
        ]

    def _on_storage_failed(self, error: StorageFailed) -> None:
        """Leave at once, and do not close SQLite: a last close would copy unverified frames."""
        self._stopping = self._forced = True
        self._journal.say(logging.CRITICAL, "leaving: %s", error)
        self._leave(EXIT_STORAGE_FAILED)

    # --- Threads and signals.

    @contextmanager
    def _executors(self) -> Iterator[None]:
        """Own the threads for the time of `run`; they end by themselves when nothing is asked."""

        def threads(name: str, count: int) -> Executor:
            return ThreadPoolExecutor(count, f"killproof-{name}", _leave_signals)

        pools = [
            threads("claims", 1),
            threads("settle", 1),
            threads("calls", CALLS),
            threads("plain", self._threads_max),
        ]
        self._claims, self._settles, self._calls, plain = pools
        self._ground = Ground(
            queue=self._queue,
            clock=self._clock,
            loop=asyncio.get_running_loop(),
            plain=plain,
            calls=self._calls,
            pid=self._pid,
            on_storage_failed=self._on_storage_failed,
        )
        try:
            yield
        finally:
            for pool in pools:
                # A chore may be under way.  A plain handler is not: its job would not have ended.
                pool.shutdown(wait=pool is self._calls)

    def _in(self, pool: Executor, function: Callable[[], Answer]) -> Awaitable[Answer]:
        return asyncio.get_running_loop().run_in_executor(pool, function)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Own SIGTERM and SIGINT for the time of `run`.

        Not through the loop: a loop that a handler blocks would never hear of the stop.
        """
        wanted = (signal.SIGTERM, signal.SIGINT)
        former = {signum: signal.signal(signum, self._on_stop_signal) for signum in wanted}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)  # A parent may have handed it down.
        try:
            yield
        finally:
            for signum, handler in former.items():
                signal.signal(signum, handler)

    def _on_stop_signal(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A child that a handler forked: signals end it as if there were no dispatcher.
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self._signum = signum
        self.stop()


def _checked_kinds(handlers: Handlers, kinds: Iterable[str] | None) -> tuple[str, ...]:
    """Return the kinds to work on, each once.

    Raises:
        ValueError: there is none, or one has no handler.
    """
    found = tuple(dict.fromkeys(handlers.kinds if kinds is None else kinds))
    if not found:
        raise ValueError("no handlers: register one with @handlers('kind')")
    if unknown := set(found) - set(handlers.kinds):
        raise ValueError(f"kind {min(unknown)!r} has no handler: register one, or leave it out")
    return found


def _check_seconds(**times: float) -> None:
    """Raise a ValueError that shows the value if one is no number of seconds."""
    for name, seconds in times.items():
        if not (0 <= seconds < threading.TIMEOUT_MAX):
            raise ValueError(f"{name} {seconds!r} must be a number of seconds, at least 0")


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    cancelled = [task for task in tasks if not task.done()]
    for task in cancelled:
        task.cancel()
    if cancelled:
        await asyncio.wait(cancelled)


def _leave_signals() -> None:
    """Leave signals to the main thread: delivered to another they would not wake it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
