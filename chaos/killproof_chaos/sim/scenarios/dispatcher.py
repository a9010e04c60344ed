"""Races of the dispatcher: its loop, its claims and its outcomes are lives of their own.

The production code runs here as it is: its event loop on virtual time, and each call to the file as
a life that the scheduler interleaves with the loop. Only the heartbeat is a task of the loop and no
thread; that it goes on while a handler blocks the loop is for the real engines to show.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Actor, Scenario, claimed, facts_of
from killproof_chaos.sim.scenarios.core import job, work_once

SLOTS: Final = 2
#: Between two looks at whether the connection is free; virtual.
TURN_SECONDS: Final = 0.001


class Recorded:
    """The target's queue as one dispatcher uses it, its claims and outcomes on record."""

    def __init__(self, me: Actor, when_idle: Callable[[], None]) -> None:
        """Record as this actor; `when_idle` is called instead of waiting for work."""
        self._me, self._queue, self._when_idle = me, me.client, when_idle
        self._is_taken = False

    def __getattr__(self, name: str) -> Any:
        """Give what is not on record as it is."""
        return getattr(self._queue, name)

    @property
    def database(self) -> Any:
        """The file, which here takes outcomes one by one: each is then on record exactly."""
        return _Database(self._queue.database, self.alone)

    def claim_many(self, limit: int, kinds: Iterable[str] | None = None) -> list[Any]:
        """Claim one job, or none; a call may always give less than it was asked for."""
        found: list[Any] = []
        with self.alone(), self._me.during("claim") as completion:
            found = self._queue.claim_many(1, kinds)
            completion |= claimed(found[0] if found else None)
        return found

    def wait(
        self,
        kinds: Iterable[str] | None = None,
        seconds: float = 1.0,
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Have the dispatcher stopped: waiting would only make the schedule longer."""
        self._when_idle()
        return False

    def ack(self, lease: Any, result: object = None) -> None:
        """Ack."""
        self._tell("ack", lease, lambda: self._queue.ack(lease, result))

    def nack(self, lease: Any, error: Any, **options: Any) -> None:
        """Nack."""
        self._tell("nack", lease, lambda: self._queue.nack(lease, error, **options))

    def release(self, lease: Any) -> None:
        """Release."""
        self._tell("release", lease, lambda: self._queue.release(lease))

    def _tell(self, operation: str, lease: Any, function: Callable[[], Any]) -> None:
        """Tell the queue of one lease; a refusal is on record, and raised again."""
        refusals: list[Exception] = []

        def call() -> None:
            try:
                function()
            except Exception as error:
                refusals.append(error)
                raise

        facts = facts_of(lease)
        with self.alone():
            self._me.call(operation, call, job=facts.job, fence=facts.fence)
        if refusals:
            raise refusals[0]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the connection: the lives of one process share it here, as no threads do.

        Nothing is lost by it, because SQLite lets one of them write at a time.
        """
        while self._is_taken:
            self._me.sleep(TURN_SECONDS)
        self._is_taken = True
        try:
            yield
        finally:
            self._is_taken = False


class OneByOne(Exception):
    """Outcomes are not written together here."""


class _Database:
    """A database whose write transactions take turns."""

    def __init__(self, database: Any, alone: Callable[[], AbstractContextManager[None]]) -> None:
        object.__setattr__(self, "_both", (database, alone))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._both[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._both[0], name, value)

    @contextmanager
    def write(self, operation: Any) -> Iterator[Any]:
        """Open a transaction; one for several outcomes is refused, and each is written alone."""
        database, alone = self._both
        if operation in ("ack", "release"):
            raise OneByOne
        with alone(), database.write(operation) as tx:
            yield tx


async def dispatch(me: Actor) -> None:
    """Be a dispatcher that stops when it finds nothing."""
    from killproof.dispatcher import Dispatcher
    from killproof.worker import Context, Handlers

    handlers = Handlers()

    @handlers("report")
    async def report(context: Context) -> None:
        if not me.play(context.lease):
            raise ValueError("scripted")

    quiet = logging.getLogger("killproof.sim")
    quiet.disabled = True  # A schedule is told by its trace.
    queue: Any = Recorded(me, lambda: dispatcher.stop())
    dispatcher = Dispatcher(queue, handlers, SLOTS, heart="task", logger=quiet)
    await dispatcher.run(signals=False)


DISPATCHERS: Final = Scenario(
    name="dispatcher",
    text="a dispatcher with two slots and a worker reach for three jobs",
    actors={"d1": dispatch, "w1": work_once},
    jobs=(job(1), job(2, script=("raise", "ok")), job(3)),
    needs=frozenset({"enqueue", "claim", "ack", "dispatcher"}),
    shares_memory=True,  # The loop and the lives that it asks.
)
DISPATCHER_LOST: Final = Scenario(
    name="dispatcher-lost",
    text="a dispatcher with two slots dies or is stopped past its leases, and a worker looks",
    actors={"d1": dispatch, "w1": work_once},
    jobs=(job(1), job(2)),
    faults=Faults(crashes=1, passes=1),
    needs=frozenset({"enqueue", "claim", "ack", "dispatcher"}),
    shares_memory=True,  # The loop and the lives that it asks.
)
SCENARIOS: Final = (DISPATCHERS, DISPATCHER_LOST)
