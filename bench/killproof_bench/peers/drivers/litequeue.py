"""litequeue: pop and done."""

import json
from collections.abc import Sequence
from typing import Any

from litequeue import LiteQueue

from killproof_bench.peers.drivers.loop import Spec, count, pragmas, set_synchronous


class Driver:
    """One queue on one file."""

    def __init__(self, spec: Spec) -> None:
        self._database = f"{spec.folder}/queue.db"
        self._queue: Any = LiteQueue(self._database)
        set_synchronous(self._queue.conn, spec)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Put one after the other."""
        for payload in payloads:
            self._queue.put(json.dumps(payload))

    def facts(self) -> dict[str, str]:
        """Read back."""
        return pragmas(self._queue.conn)

    def claim(self) -> tuple[int, Any] | None:
        """Pop one."""
        message = self._queue.pop()
        if message is None:
            return None
        return json.loads(message.data)["n"], message.message_id

    def ack(self, token: Any) -> None:
        """Mark it done."""
        self._queue.done(token)

    def account(self) -> dict[str, int]:
        """Count by status: 0 is ready, 1 is locked."""
        return {
            "waiting": count(self._database, self._queue.table, "status = 0"),
            "claimed": count(self._database, self._queue.table, "status = 1"),
        }

    def close(self) -> None:
        """Close."""
        self._queue.close()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
