"""Asyncio under the simulator: an event loop whose time is virtual and whose idleness is a wait.

Each actor that is a coroutine function has a loop of its own, as each process has. The loop runs
what is ready; where a real one would sleep in `select`, the actor waits in the runtime, and others
run. What it hands to an executor (`asyncio.to_thread`, a thread pool) becomes a life of its own in
the same process, so the scheduler interleaves its statements with those of the loop.

Not here: sockets, subprocesses and signals. A queue on one file needs none.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from greenlet import GreenletExit

from killproof_chaos.sim.runtime import Crashed, Life, Runtime

#: Timers so close together fire together, s; far below any interval of a queue.
RESOLUTION: Final = 1e-6


class _Selector:
    """What the loop asks for events; there are none, only time and wake-ups."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until the time has passed or another life has called `call_soon_threadsafe`."""
        if timeout is None or timeout > 0:
            self._runtime.wait(None if timeout is None else max(1, round(timeout * 1e9)))
        return []


class Loop(asyncio.BaseEventLoop):
    """The event loop of one actor."""

    def __init__(self, runtime: Runtime, life: Life) -> None:
        """Make the loop of this life."""
        super().__init__()
        self._runtime, self._life = runtime, life
        self._selector = _Selector(runtime)
        self._clock_resolution = RESOLUTION
        #: Whatever may end with an exception. Held until the loop ends: what is collected before
        #: complains at some moment of the collector's, and what is collected after, to nobody.
        self.futures: list[asyncio.Future[Any]] = []
        #: One for each thread, done when it has ended, whatever became of its caller.
        self.threads: list[asyncio.Future[None]] = []
        self.set_task_factory(_task)  # type: ignore[arg-type]  # It names no options.
        self.set_exception_handler(_complain)

    def complain(self, error: BaseException) -> None:
        """Take note of an exception that nobody awaits; of the dead nobody hears any more."""
        if not self._life.is_dead:
            self._runtime.fail(self._life.name, error)

    def time(self) -> float:
        """Return the virtual clock, s."""
        self._runtime.clock_mark += 1
        self._runtime.observe(self._runtime.now_ns)
        return self._runtime.now_ns / 1e9

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function as a life of its own; the executor's width is not simulated."""
        future: asyncio.Future[Any] = self.create_future()
        self.futures.append(future)
        ended: asyncio.Future[None] = self.create_future()
        self.threads.append(ended)

        def body() -> None:
            settle: Callable[[asyncio.Future[Any], Any], None] = _answer
            try:
                answer = func(*args)
            except (Crashed, GreenletExit):
                raise
            except BaseException as error:
                # Whatever it is belongs to whoever awaits it.
                settle, answer = _fail, error
            if not self.is_closed():  # Else nobody awaits it, as with asyncio's own.
                self.call_soon_threadsafe(settle, future, answer)
                self.call_soon_threadsafe(_answer, ended, None)

        self._runtime.spawn(body)
        return future

    def _write_to_self(self) -> None:
        self._runtime.wake(self._life)

    def _process_events(self, event_list: list[Any]) -> None:
        """Have nothing to do: the selector gives no events."""


def run(runtime: Runtime, main: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end in the current life, as `asyncio.run` does in a process."""
    loop = Loop(runtime, runtime.life())
    try:
        loop.run_until_complete(main)
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        # Threads go on to their end, as `asyncio.run` lets them, though their callers may be gone.
        left = [thread for thread in loop.threads if not thread.done()]
        if tasks or left:
            loop.run_until_complete(asyncio.wait([*tasks, *left]))
        for future in loop.futures:
            if _is_unheard(future) and (error := future.exception()) is not None:
                loop.complain(error)
    finally:
        # Here and now, while this life is the current one: a coroutine that is collected later
        # would run its clean-up code in the name of another.
        for task in asyncio.all_tasks(loop):
            coroutine = task.get_coro()
            if coroutine is not None and asyncio.iscoroutine(coroutine):
                _close(coroutine)
        loop.close()


def _task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    assert isinstance(loop, Loop)
    task = asyncio.Task(coroutine, loop=loop, **options)
    loop.futures.append(task)
    return task


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, Loop)
    if (error := context.get("exception")) is not None:
        loop.complain(error)


def _is_unheard(future: asyncio.Future[Any]) -> bool:
    """Say whether it ended with an exception that nobody has asked for: the mark is asyncio's."""
    return future.done() and not future.cancelled() and bool(getattr(future, "_log_traceback", 0))


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    # Clean-up code of a dead process fails at every seam, and some makes another error of it.
    with suppress(Exception, Crashed):
        coroutine.close()


def _answer(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
