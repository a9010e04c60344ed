"""Which function works on which kind of job, and what it may say besides "done" and "failed".

A handler is a plain function of a `Context` (see `killproof.worker`).  What it returns becomes the
job's result; what it raises is a failed attempt, except for the words of this module:

- `RetryLater(seconds)`: failed, and the other side said when to come back (HTTP's Retry-After);
  `shared=True` tells all workers of the kind's resources.
- `Snooze(seconds)`: not now, and not an attempt (a rate limit, a maintenance window).
- `Permanent(message)`: failed, and no further attempt can help (a malformed address): dead at once.
- `Hold(message)`: a person has to look before anything else happens.

Two words come from the worker *into* a handler.  They are no `Exception`, so that a handler's own
`except Exception` around a retry loop does not swallow the order to stop.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from killproof.core import model

if TYPE_CHECKING:
    from killproof.worker import Context

#: A handler without a limit of its own: the first article's "locked for too long", 15 minutes.
TIMEOUT_SECONDS_DEFAULT = 900.0

Function = TypeVar("Function", bound="Callable[[Context], object]")


class RetryLater(Exception):
    """The attempt failed; try again after the seconds given, instead of the policy's delay.

    `shared` means that the other side turned us away, not this job: nothing of the resources that
    the kind belongs to starts before then, in any process (see `killproof.limits`).
    """

    def __init__(self, seconds: float, message: str = "", *, shared: bool = False) -> None:
        self.seconds = model.to_ms(seconds, "RetryLater") / 1_000
        self.shared = shared
        super().__init__(message or f"asked to be retried after {seconds:g} s")


class Snooze(Exception):
    """Put the job back for the seconds given; this delivery is no attempt."""

    def __init__(self, seconds: float, message: str = "") -> None:
        self.seconds = model.to_ms(seconds, "Snooze") / 1_000
        super().__init__(message or f"asked to be snoozed for {seconds:g} s")


class Permanent(Exception):
    """The attempt failed and no other can succeed: the job goes to the dead letters at once."""


class Hold(Exception):
    """The job must wait for a person: it is `held` until `killproof unhold` or `cancel`."""


class Interruption(BaseException):
    """The worker's order to a handler to stop; let it pass."""


class HandlerTimeout(Interruption):
    """The handler ran longer than its kind's time limit: a failed attempt."""


class HandlerStopped(Interruption):
    """The worker is leaving and the grace time is over: the job is released, not an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One registered function and its limits."""

    kind: str
    function: "Callable[[Context], object]"  #: runs to its end when called
    original: "Callable[[Context], object]"  #: as it was registered
    is_coroutine: bool  #: whether `original` only makes a coroutine, which an event loop runs
    timeout: float | None  #: seconds one execution may take; None is no limit
    lease: float | None  #: seconds a silent worker keeps the job; None is what enqueue said


class Handlers:
    """The handlers of a worker, by kind of job.

    >>> handlers = Handlers()
    >>> @handlers("greet", timeout=30.0)
    ... def greet(context): return {"hello": context.payload}
    >>> handlers.kinds
    ('greet',)
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def __call__(
        self,
        kind: str,
        *,
        timeout: float | None = TIMEOUT_SECONDS_DEFAULT,
        lease: float | None = None,
    ) -> Callable[[Function], Function]:
        """Register the decorated function for a kind of job.

        Args:
            kind: the kind, as given to `enqueue`.
            timeout: seconds one execution may take, whatever the heartbeat says; None is no limit.
            lease: seconds until others take the job from a worker that stands still (it counts
                from the last heartbeat); None leaves what the job was enqueued with.

        Raises:
            ValueError: the kind has a handler already, a limit is not a positive number, or the
                function is a generator (calling it would run nothing, and count as success).
        """
        model.check_text(kind, "kind", model.KIND_CHARS_MAX)
        _check_seconds(timeout, "timeout")
        _check_seconds(lease, "lease")

        def register(function: Function) -> Function:
            if kind in self._handlers:
                other = inspect.unwrap(self._handlers[kind].function)
                raise ValueError(f"kind {kind!r} has a handler already: {_place(other)}")
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise ValueError(f"{_place(function)} is a generator: a call would run nothing")
            self._handlers[kind] = Handler(
                kind=kind,
                function=_plain(function),
                original=function,
                is_coroutine=_is_coroutine_function(function),
                timeout=timeout,
                lease=lease,
            )
            return function

        return register

    def __getitem__(self, kind: str) -> Handler:
        return self._handlers[kind]

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that have a handler, in the order of registration."""
        return tuple(self._handlers)


def _plain(function: "Callable[[Context], object]") -> "Callable[[Context], object]":
    """Return a function that runs to its end when called: a coroutine gets a loop of its own.

    Called as it is, a coroutine function would return at once and the job would be a success.  What
    counts is what comes back: under a decorator a coroutine function looks like any other.
    """

    @functools.wraps(function)
    def run(context: "Context") -> object:
        result = call(function, context)
        if not inspect.isawaitable(result):
            return result
        import asyncio  # 50 ms at the start of every worker, for those who need it alone.

        return asyncio.run(_awaited(result))

    return run


def call(function: "Callable[[Context], object]", context: "Context") -> object:
    """Call a handler's function; what it returns may be awaitable, and is then yet to be run.

    Raises:
        TypeError: it returned a generator; and whatever the function raises.
    """
    result = function(context)
    if isinstance(result, Generator | AsyncGenerator):
        raise TypeError(f"{_place(function)} returned a generator: nothing of it was run")
    return result


def _is_coroutine_function(function: object) -> bool:
    """Whether a call runs nothing: a function, a partial, or an object whose call is `async`.

    A decorated one may look plain.  Then it is called in a thread, and what it returns awaited.
    """
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - not whether it can be called.
    )


async def _awaited(result: Awaitable[object]) -> object:
    return await result


def _place(function: object) -> str:
    """Name a function as a person looks for it."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _check_seconds(seconds: float | None, name: str) -> None:
    if seconds is not None:
        model.to_ms(
            seconds, name, lowest_ms=1
        )  # Beyond a hundred years timers and SQLite overflow.
