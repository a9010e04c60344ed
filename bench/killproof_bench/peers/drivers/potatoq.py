"""potatoq: fetch and complete of its SQLite broker's consumer."""

from collections.abc import Sequence
from typing import Any

from potatoq import Potatoq
from potatoq.message import Message

from killproof_bench.peers.drivers.loop import Spec, count, pragmas, set_synchronous


class Driver:
    """One broker on one file."""

    def __init__(self, spec: Spec) -> None:
        self._database = f"{spec.folder}/potatoq.sqlite3"
        self._app: Any = Potatoq(
            "bench",
            broker=f"sqlite:///{self._database}",
            broker_transport_options={"durable": spec.level == "power"},
        )
        self._broker = self._app.broker
        self._broker.setup()
        if spec.level == "seed":
            set_synchronous(self._broker.conn, spec)
        self._consumer = self._broker.consumer(["default"], f"worker-{spec.worker}")

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Enqueue them in one transaction."""
        self._broker.enqueue([Message(task="bench", args=[payload]) for payload in payloads])

    def facts(self) -> dict[str, str]:
        """Read back."""
        return pragmas(self._broker.conn)

    def claim(self) -> tuple[int, Any] | None:
        """Fetch one."""
        delivery = self._consumer.fetch(0)
        return None if delivery is None else (delivery.message.args[0]["n"], delivery)

    def ack(self, token: Any) -> None:
        """Complete it, without a result to keep."""
        self._consumer.complete(token, None, [])

    def account(self) -> dict[str, int]:
        """Count by state: 1 is ready, 2 is running."""
        return {
            "waiting": count(self._database, "potatoq_jobs", "state = 1"),
            "claimed": count(self._database, "potatoq_jobs", "state = 2"),
        }

    def close(self) -> None:
        """Close."""
        self._broker.close()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
