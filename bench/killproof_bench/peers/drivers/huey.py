"""huey: enqueue and dequeue of its SQLite storage; a dequeue deletes, and nothing acks."""

import json
from collections.abc import Sequence
from typing import Any

from huey.storage import SqliteStorage

from killproof_bench.peers.drivers.loop import Spec, pragmas


class Driver:
    """One storage on one file."""

    def __init__(self, spec: Spec) -> None:
        # Its option: True is synchronous=FULL, False is OFF, None is SQLite's own default.
        fsync = {"seed": False, "power": True}.get(spec.level)
        self._storage: Any = SqliteStorage(filename=f"{spec.folder}/huey.db", fsync=fsync)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Enqueue one after the other."""
        for payload in payloads:
            self._storage.enqueue(json.dumps(payload).encode())

    def facts(self) -> dict[str, str]:
        """Read back."""
        return pragmas(self._storage.conn)

    def claim(self) -> tuple[int, Any] | None:
        """Dequeue one."""
        data = self._storage.dequeue()
        return None if data is None else (json.loads(data)["n"], None)

    def ack(self, token: Any) -> None:
        """Do nothing: it has been deleted."""

    def account(self) -> dict[str, int]:
        """Ask for its size."""
        return {"waiting": self._storage.queue_size(), "claimed": 0}

    def close(self) -> None:
        """Close."""
        self._storage.close()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
