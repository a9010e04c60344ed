"""Queues that go wrong in ways that a harness may take for nothing; `$ODD` says which."""

import os
from pathlib import Path
from sqlite3 import Error

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue


class Raises(MinimalQueue):
    """Cannot extend at all."""

    def extend(self, lease: Lease) -> None:
        """Fail before anything is done."""
        raise TypeError(f"job {lease.id} cannot be extended")


class Silent(MinimalQueue):
    """Extends nothing, and says that it did."""

    def extend(self, lease: Lease) -> None:
        """Do nothing."""


class Stale(MinimalQueue):
    """Leaves a lock file behind when it is killed, and refuses to open beside one."""

    def __init__(self, path: Path) -> None:
        """Refuse, where somebody seems to be at work."""
        self.lock = path.with_name("lock")
        if self.lock.exists():
            raise RuntimeError(f"{self.lock} exists: somebody is at work")
        super().__init__(path)

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Ack under the lock file."""
        self.lock.touch()
        super().ack(lease, *also)
        self.lock.unlink()


class Aborts(MinimalQueue):
    """Takes its process along when a statement of an ack fails."""

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Ack, or die."""
        try:
            super().ack(lease, *also)
        except Error:
            os.abort()


KINDS: dict[str, type[MinimalQueue]] = {
    "raises": Raises,
    "silent": Silent,
    "stale": Stale,
    "aborts": Aborts,
}
KIND = os.environ.get("ODD", "raises")
FAULT = Fault(name=KIND, wrong="see its class", promise="P16", kind="", right="", engine="crash")
target = MinimalTarget(f"odd-{KIND}", KINDS[KIND], FAULT)
