"""localqueue: get and ack of its SimpleQueue."""

from collections.abc import Sequence
from typing import Any

from localqueue import DeliveryPolicy, DurabilityMode, Empty, SimpleQueue

from killproof_bench.peers.drivers.loop import SYNCHRONOUS, Spec


class Driver:
    """One queue in one folder."""

    def __init__(self, spec: Spec) -> None:
        durable = spec.level == "power"
        self._queue: Any = SimpleQueue(
            spec.folder,
            delivery=DeliveryPolicy(lease_seconds=60, max_retries=3),
            durability=DurabilityMode.DURABLE if durable else DurabilityMode.RELAXED,
        )

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Put them in one transaction."""
        self._queue.put_many(list(payloads))

    def facts(self) -> dict[str, str]:
        """Read back through its own diagnostics: its connection lives in Rust."""
        seen = self._queue._get_native().diagnostics()
        return {
            "journal_mode": seen.journal_mode,
            "synchronous": SYNCHRONOUS[seen.synchronous],
            "autocheckpoint": "-1",
            "busy_timeout": str(seen.busy_timeout_ms),
            "sqlite": seen.sqlite_version,
        }

    def claim(self) -> tuple[int, Any] | None:
        """Get one, without its own pauses of 10 ms and more for an empty queue."""
        try:
            job = self._queue.get(timeout=0)
        except Empty:
            return None
        return job.data["n"], job

    def ack(self, token: Any) -> None:
        """Ack it; a stale receipt raises."""
        self._queue.ack(token)

    def account(self) -> dict[str, int]:
        """Ask its own statistics."""
        stats = self._queue.stats()
        return {"waiting": stats["ready"], "claimed": stats["processing"]}

    def close(self) -> None:
        """Close."""
        self._queue.close()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
