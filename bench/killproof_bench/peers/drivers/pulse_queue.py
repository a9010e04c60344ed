"""pulse-queue: lease_next_task and complete_task of its store."""

from collections.abc import Sequence
from typing import Any

from pulse_queue import Store, TaskStatus

from killproof_bench.peers.drivers.loop import Refused, Spec, pragmas, set_synchronous


class Driver:
    """One store on one file."""

    def __init__(self, spec: Spec) -> None:
        self._worker = f"worker-{spec.worker}"
        self._store: Any = Store(f"{spec.folder}/pulse.db")
        # It sets NORMAL and has no option.
        set_synchronous(self._store._conn, spec)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Enqueue one after the other."""
        for payload in payloads:
            self._store.enqueue(payload)

    def facts(self) -> dict[str, str]:
        """Read back."""
        return pragmas(self._store._conn)

    def claim(self) -> tuple[int, Any] | None:
        """Lease one."""
        task = self._store.lease_next_task(self._worker)
        return None if task is None else (task.decode_payload()["n"], task)

    def ack(self, token: Any) -> None:
        """Complete it."""
        if not self._store.complete_task(token.id, self._worker, token.lease_epoch):
            raise Refused(token.id)

    def account(self) -> dict[str, int]:
        """Ask for its counts."""
        return {
            "waiting": self._store.count_tasks(TaskStatus.PENDING),
            "claimed": self._store.count_tasks(TaskStatus.RUNNING),
        }

    def close(self) -> None:
        """Close."""
        self._store.close()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
