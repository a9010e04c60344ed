"""persist-queue: get and ack of its SQLiteAckQueue."""

from collections.abc import Sequence
from typing import Any

from persistqueue import Empty, SQLiteAckQueue
from persistqueue.serializers import json as as_json

from killproof_bench.peers.drivers.loop import Spec, count, pragmas, set_synchronous


class Driver:
    """One queue in one folder."""

    def __init__(self, spec: Spec) -> None:
        self._database = f"{spec.folder}/data.db"
        # With auto_resume each process that opens would hand out again what another one holds.
        self._queue: Any = SQLiteAckQueue(
            spec.folder,
            auto_resume=False,
            multithreading=True,
            auto_commit=True,
            serializer=as_json,
        )
        self._table = self._queue._table_name
        set_synchronous(self._queue._putter, spec)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Put one after the other."""
        for payload in payloads:
            self._queue.put(payload)

    def facts(self) -> dict[str, str]:
        """Read back from the connection that writes."""
        return pragmas(self._queue._putter)

    def claim(self) -> tuple[int, Any] | None:
        """Get one."""
        try:
            item = self._queue.get(block=False, raw=True)
        except Empty:
            return None
        return item["data"]["n"], item["pqid"]

    def ack(self, token: Any) -> None:
        """Ack it."""
        self._queue.ack(id=token)

    def account(self) -> dict[str, int]:
        """Count by status: 0 and 1 wait, 2 is claimed."""
        return {
            "waiting": count(self._database, self._table, "status < 2"),
            "claimed": count(self._database, self._table, "status = 2"),
        }

    def close(self) -> None:
        """Close."""
        self._queue.close()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
