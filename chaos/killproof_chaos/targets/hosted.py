"""Targets on an injected host: what `Target.open(place, host)` returns to the simulator.

Each is the queue's own code, with the options that its contract names and the few calls that the
seam has and the queue has not.
"""

import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from killproof import Host, Queue, operations
from killproof_chaos.targets.minimal_queue import Lease as MinimalLease
from killproof_chaos.targets.minimal_queue import LeaseLost, MinimalQueue
from killproof_evidence.target import Definite

#: No run of the simulator is long enough for a checkpoint by chance; it has no disk to care for.
CHECKPOINT_NEVER: Final = 10**12


class HostedQueue(Queue):
    """Killproof with the leases and retries that its contract here names."""

    def __init__(self, path: Path, host: Host, *, lease: float, retry: str) -> None:
        """Open the queue on this host."""
        super().__init__(path, host=host)
        self.database.checkpoint_commits = CHECKPOINT_NEVER
        self._options: dict[str, Any] = {"lease": lease, "retry": retry}

    def enqueue(self, kind: str, payload: object, **options: Any) -> int:
        """Put a job in, with the options of the contract."""
        return super().enqueue(kind, payload, **self._options | options)

    def replay(self, id: int) -> bool:  # noqa: A002 - the seam's name
        """Make a dead job available again; False when it is not dead."""
        return bool(operations.replay(self, [id]).moved)


class HostedMinimal:
    """`minimal` or a relative of it, with the calls of the seam."""

    #: Calls of the seam that this queue has only to say no.
    refused: Final = frozenset({"release", "cancel", "replay"})

    def __init__(self, queue: type[MinimalQueue], path: Path, host: Any) -> None:
        """Open the queue on this host; until it is closed its modules see the host's clock."""
        names = {base.__module__ for base in queue.__mro__ if issubclass(base, MinimalQueue)}
        self._modules, self._clock = [sys.modules[name] for name in sorted(names)], host.clock
        for module in self._modules:
            _enter(module, host.clock)
        module = sys.modules[MinimalQueue.__module__]
        try:
            setattr(module, "sqlite3", _Driver(host.connect))  # noqa: B010 - mypy knows no setattr
            self._queue = queue(path, sync=host.sync)
        finally:
            setattr(module, "sqlite3", sqlite3)  # noqa: B010 - as above

    def enqueue(self, kind: str, payload: object, **options: Any) -> int:
        """Put a job in; the delay comes in seconds."""
        delay_ms = round(options.pop("delay", 0) * 1_000)
        return self._queue.enqueue(kind, payload, delay_ms=delay_ms, **options)

    def claim(self, kinds: Iterable[str] | None = None) -> MinimalLease | None:
        """Take the first job that is due; this queue knows no kinds."""
        if kinds is not None:
            raise Definite("minimal claims any kind")
        return self._queue.claim()

    def extend(self, lease: MinimalLease) -> None:
        """Prolong a lease."""
        self._settle(lambda: self._queue.extend(lease))

    def ack(self, lease: MinimalLease, result: object = None) -> None:
        """Finish a job."""
        self._settle(lambda: self._queue.ack(lease))

    def nack(self, lease: MinimalLease, error: object) -> None:
        """Record a failed attempt."""
        self._settle(lambda: self._queue.nack(lease, str(error)))

    def release(self, lease: MinimalLease) -> None:
        """Refuse: this queue cannot."""
        raise Definite(f"job {lease.id}: minimal has no release")

    def reap(self) -> int:
        """Do nothing: a claim takes back what ran out."""
        return 0

    def cancel(self, id: int) -> bool:  # noqa: A002 - the seam's name
        """Refuse: this queue cannot."""
        raise Definite(f"job {id}: minimal has no cancel")

    def replay(self, id: int) -> bool:  # noqa: A002 - the seam's name
        """Refuse: this queue cannot."""
        raise Definite(f"job {id}: minimal has no replay")

    def memory(self) -> tuple[object, ...]:
        """Return the objects in whose attributes the queue keeps what it remembers."""
        return (self._queue,)

    def close(self) -> None:
        """Close the connection, and give the modules their clock back."""
        self._queue.db.close()
        for module in self._modules:
            _leave(module, self._clock)

    def _settle(self, call: Callable[[], None]) -> None:
        try:
            call()
        except LeaseLost as error:
            raise Definite(str(error)) from error


class _Driver:
    """The module `sqlite3` with another `connect`."""

    def __init__(self, connect: Callable[..., sqlite3.Connection]) -> None:
        self.connect = connect

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)


#: Module -> the clocks of the open clients; it sees the last of them in place of the module `time`.
_hosted: dict[ModuleType, list[Any]] = {}


def _enter(module: ModuleType, clock: Any) -> None:
    if not hasattr(module, "time"):
        return
    _hosted.setdefault(module, []).append(clock)
    setattr(module, "time", clock)  # noqa: B010 - as above


def _leave(module: ModuleType, clock: Any) -> None:
    if module not in _hosted:
        return
    _hosted[module].remove(clock)
    left = _hosted[module]
    setattr(module, "time", left[-1] if left else time)  # noqa: B010 - as above
    if not left:
        del _hosted[module]
