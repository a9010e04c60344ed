"""Killproof, and the plain reference: the same statements without its locks (see `arms`)."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal

import killproof as installed
from killproof_bench.arms import open_arm
from killproof_bench.peers.drivers.loop import Spec, count

KIND = "bench"
#: The most that one call takes.
BATCH = 1_000


class Driver:
    """One open queue."""

    def __init__(self, spec: Spec) -> None:
        self._database = f"{spec.folder}/queue.db"
        self._arm_name = spec.arm
        self._durability: Literal["power", "process"]
        self._durability = "process" if spec.level == "shipped" else "power"
        if spec.mode != "work":
            return
        synchronous = "FULL" if self._durability == "power" else "NORMAL"
        self._arm = open_arm(spec.arm, self._database, synchronous=synchronous)
        self._queue = self._arm.queue

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Make the file with its durability; jobs get ids in their order."""
        with closing(installed.Queue(self._database, durability=self._durability)) as queue:
            for begin in range(0, len(payloads), BATCH):
                queue.enqueue_many([(KIND, payload) for payload in payloads[begin : begin + BATCH]])

    def facts(self) -> dict[str, str]:
        """Read back; killproof syncs by itself, so its level is what its file says when opened."""
        facts = self._arm.connections.facts()
        return facts | {"level": self._queue.durability} if self._arm_name == "killproof" else facts

    def claim(self) -> tuple[int, Any] | None:
        """Claim the first job of this worker."""
        return _held(self._queue.claim())

    def ack_and_claim(self, token: Any) -> tuple[int, Any] | None:
        """Finish one job and claim the next in one transaction."""
        return _held(self._queue.ack_and_claim(token))

    def ack(self, token: Any) -> None:
        """Finish the last one."""
        self._queue.ack(token)

    def account(self) -> dict[str, int]:
        """Count by state."""
        return {
            "waiting": count(self._database, "job", "state = 'available'"),
            "claimed": count(self._database, "job", "state = 'leased'"),
        }

    def close(self) -> None:
        """Close."""
        if hasattr(self, "_queue"):
            self._queue.close()


def _held(lease: installed.Lease | None) -> tuple[int, Any] | None:
    if lease is None:
        return None
    payload = lease.job.payload
    assert isinstance(payload, dict)
    return payload["n"], lease


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
