"""One job in a slot of a dispatcher: its handler called, interrupted, and judged.

A coroutine runs in a task of its own, which a timer cancels when its lease is lost, its time is
over, or the dispatcher's grace is.  A plain handler runs in a thread, where nothing can interrupt
it; to cancel the task that waits for the thread would only hide that it goes on.
"""

import asyncio
import contextvars
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from traceback import format_stack
from typing import Final

from killproof import outcomes
from killproof.core.clock import Clock
from killproof.core.errors import StorageFailed
from killproof.core.jobs import Queue
from killproof.handlers import Handler, HandlerTimeout, call
from killproof.heartbeat import Cause, Tenure
from killproof.outcomes import EXIT_HANDLER_HUNG, Outcome
from killproof.worker import ALARM_SECONDS_MIN, Context

#: A timer is never set shorter, so that none runs without a pause.
TIMER_SECONDS_MIN: Final = 0.001
#: The causes that there are: who was told all of them is told nothing more.
CAUSES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the jobs of one dispatcher share."""

    queue: Queue
    clock: Clock
    loop: asyncio.AbstractEventLoop
    plain: Executor  #: threads of plain handlers
    calls: Executor  #: threads for what coroutines ask of the file
    pid: int  #: a child that a handler forks has another
    on_storage_failed: Callable[[StorageFailed], object]


class Raised:
    """What a handler raised, as a value."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Run:
    """One job that has a slot, from its claim until its outcome is in the file."""

    def __init__(self, handler: Handler, tenure: Tenure, ground: Ground) -> None:
        self.handler = handler
        self.tenure = tenure
        self.task: asyncio.Task[None] | None = None  # In which the handler runs.
        self.outcome: Outcome | None = None  # Of its handler, once that has ended.
        self.is_settled = False
        self._ground = ground
        self._timer: asyncio.TimerHandle | None = None
        self._is_in_thread = False  # A cancellation would not reach it.
        self._thread: int | None = None  # The one it is in.
        self._cause: Cause | None = None  # Why it was interrupted last.

    async def handle(self) -> None:
        """Call the handler; its outcome is known at the end."""
        ground = self._ground
        context = Context(ground.queue, self.tenure, ground.clock, ground.calls)
        self.task = asyncio.create_task(self._call(context))
        self.look()
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:  # A fault of ours ends everything.
            self.task.cancel()
            raise
        if self._timer is not None:
            self._timer.cancel()
        if self.outcome is None:  # Cancelled before its first step.
            self.outcome = Outcome(word="release")

    async def _call(self, context: Context) -> None:
        """Call the handler and judge how it ended; nothing it raises leaves this function.

        A `SystemExit` that left a task would go through the event loop and end all other jobs.
        """
        try:
            ended = await self._result(context)
        except BaseException as error:  # All of it is the handler's own failure.
            ended = Raised(error)
        try:
            if isinstance(ended, Raised):
                self.outcome = outcomes.judge(self.tenure.lease, self._meant(ended.error))
            else:
                self.outcome = Outcome(word="ack", result=ended)
        except StorageFailed as failed:
            self.outcome = Outcome(word="nothing", error=failed)
            self._ground.on_storage_failed(failed)
        except Exception as odd:  # What it raised can not even be asked for its class.
            self.outcome = Outcome(word="nack", error=odd)
        finally:
            self.tenure.ended = True
            if os.getpid() != self._ground.pid:
                # A child that the handler forked: it would take over the parent's event loop.
                os._exit(EXIT_HANDLER_HUNG)

    def _meant(self, error: BaseException) -> BaseException:
        """Return why a handler was cancelled, where that is what it ended with."""
        if not isinstance(error, asyncio.CancelledError) or self._cause is None:
            return error
        told = outcomes.interruption(self.tenure, self._cause)
        told.__cause__ = error
        return told

    async def _result(self, context: Context) -> object:
        """Return what the handler returns, wherever it runs; `Raised` is what a thread raised."""
        if self.handler.is_coroutine:
            await context.apayload()  # A large one is read here, and not on the loop.
            result = call(self.handler.original, context)
        else:
            self._is_in_thread = True
            # What a job sets in its context variables is not for the next one in its thread.
            called = partial(contextvars.copy_context().run, self._called, context)
            result = await self._ground.loop.run_in_executor(self._ground.plain, called)
            self._is_in_thread, self._thread = False, None
            if inspect.isawaitable(result) and self.tenure.told:
                self.look(again=True)  # It could not be interrupted before.
        return await result if inspect.isawaitable(result) else result

    def _called(self, context: Context) -> object:
        """Call a plain handler in its thread; whatever it raises is a value here.

        A `StopIteration` can not pass through a future, and a `SystemExit` would end the thread.
        """
        self._thread = threading.get_ident()
        try:
            return call(self.handler.original, context)
        except BaseException as error:
            return Raised(error)
        finally:
            if os.getpid() != self._ground.pid:
                # A child that the handler forked has come back out of it: it holds no lease.
                os._exit(EXIT_HANDLER_HUNG)

    def look(self, *, again: bool = False) -> None:
        """Interrupt the handler if that is due, and set the timer to when it may be next.

        Args:
            again: interrupt it for the cause that it was told before.
        """
        if self._timer is not None:
            self._timer.cancel()
        tenure = self.tenure
        if tenure.ended or self.task is None:
            return
        now_ns = self._ground.clock.monotonic_ns()
        cause = self._cause if again else tenure.cause(now_ns)
        if cause is not None:
            tenure.told.add(cause)
            self._cause = cause
            if not self._is_in_thread:
                self.task.cancel(cause)
        if len(tenure.told) < CAUSES:
            seconds = (tenure.next_cause_ns() - now_ns) / 1e9
            seconds = max(seconds, TIMER_SECONDS_MIN if cause is None else ALARM_SECONDS_MIN)
            self._timer = self._ground.loop.call_later(seconds, self.look)

    # When the process is about to leave.

    def last_outcome(self, cause: Cause | None, guilty: "Run | None", where: str) -> Outcome | None:
        """Return what to record of this job; None: it is recorded.

        Args:
            cause: which limit it has outlived, if any.
            guilty: who blocks the event loop, if somebody does.
            where: the place at which it is.
        """
        if self.is_settled or self.tenure.completed:
            return None
        if self.outcome is not None:
            return self.outcome  # It has ended, and its outcome was on its way.
        if guilty is not None and guilty is not self:
            return Outcome(word="release")  # It could not even be told.
        if guilty is self and cause is None:
            error = HandlerTimeout("blocked the event loop past the time limit of another job")
        elif cause == "timeout":
            limit = self.handler.timeout
            error = HandlerTimeout(f"ran longer than the time limit of its kind, {limit:g} s")
        else:
            return Outcome(word="release")
        error.add_note(f"It did not stop when told to; it was at:\n{where}")
        return Outcome(word="nack", error=error)

    def stack(self) -> str:
        """Return where the handler is, through all that it awaits; of a thread, where that is."""
        if self._thread is not None:
            frame = sys._current_frames().get(self._thread)
            return "".join(format_stack(frame)) if frame is not None else ""
        lines: list[str] = []
        awaited = self.task.get_coro() if self.task is not None else None
        while isinstance(awaited, Coroutine):
            if (frame := getattr(awaited, "cr_frame", None)) is not None:
                lines += format_stack(frame, 1)
            awaited = getattr(awaited, "cr_await", None)
        return "".join(lines)
