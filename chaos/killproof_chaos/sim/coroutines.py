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

        def body() -> None:
            try:
                answer = func(*args)
            except Exception as error:
                # Whatever it is belongs to whoever awaits it.
                self.call_soon_threadsafe(_fail, future, error)
            else:
                self.call_soon_threadsafe(_answer, future, answer)

        self._runtime.spawn(body)
        return future

    def _write_to_self(self) -> None:
        self._runtime.wake(self._life)

    def _process_events(self, event_list: list[Any]) -> None:
        """Have nothing to do: the selector gives no events."""


def run(runtime: Runtime, main: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end in the current life, as `asyncio.run` does in a process."""
    loop = Loop(runtime, runtime.life())
    # A process that dies leaves tasks behind, and nobody to hear about them.
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        loop.run_until_complete(main)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        # Here and now, while this life is the current one: a coroutine that is collected later
        # would run its clean-up code in the name of another.
        for task in asyncio.all_tasks(loop):
            coroutine = task.get_coro()
            if coroutine is not None and asyncio.iscoroutine(coroutine):
                _close(coroutine)
        loop.close()


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    # Clean-up code of a dead process fails at every seam, and some makes another error of it.
    with suppress(Exception, Crashed):
        coroutine.close()


def _answer(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
