"""SimpleBroker: write and read_one; a read removes, and nothing acks."""

import json
from collections.abc import Sequence
from typing import Any

from simplebroker import Queue, resolve_config

from killproof_bench.peers.drivers.loop import Spec, pragmas

#: Its documented BROKER_SYNC_MODE.
SYNC_MODES = {"seed": "OFF", "power": "FULL"}


class Driver:
    """One queue on one file."""

    def __init__(self, spec: Spec) -> None:
        mode = SYNC_MODES.get(spec.level)
        overrides = {} if mode is None else {"BROKER_SYNC_MODE": mode}
        self._queue: Any = Queue(
            "bench",
            db_path=f"{spec.folder}/broker.db",
            persistent=True,
            config=resolve_config(override=overrides),
        )

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Write one after the other."""
        for payload in payloads:
            self._queue.write(json.dumps(payload))

    def facts(self) -> dict[str, str]:
        """Read back."""
        with self._queue.get_connection() as broker:
            return pragmas(broker._runner.get_connection())

    def claim(self) -> tuple[int, Any] | None:
        """Read one."""
        message = self._queue.read_one()
        return None if message is None else (json.loads(message)["n"], None)

    def ack(self, token: Any) -> None:
        """Do nothing: it has been read."""

    def account(self) -> dict[str, int]:
        """Ask its own statistics; what was read is claimed for good, and waits for no one."""
        return {"waiting": self._queue.stats().pending, "claimed": 0}

    def close(self) -> None:
        """Close."""
        self._queue.close()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
