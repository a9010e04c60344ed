"""firm-queue: claim_ready and execute_claimed, the two calls of its worker."""

from collections.abc import Sequence
from typing import Any

import firm.queue as firm
import sqlalchemy
from firm.queue import schema
from firm.queue.claim import claim_ready
from firm.queue.results import execute_claimed

from killproof_bench.peers.drivers.loop import Spec, count, pragmas

_done: list[int] = []


@firm.job()  # type: ignore[untyped-decorator]
def bench(n: int, padding: str) -> None:
    """Be the job."""
    _done.append(n)


class Driver:
    """One runtime on one file."""

    def __init__(self, spec: Spec) -> None:
        self._database = f"{spec.folder}/firm.db"
        self._runtime: Any = firm.configure(database_url=f"sqlite:///{self._database}")
        wanted = spec.synchronous()
        if wanted is not None:
            # After its own listener, which sets NORMAL: the engine is SQLAlchemy's, and public.
            def _set(connection: Any, _record: Any) -> None:
                connection.execute(f"PRAGMA synchronous = {wanted}")

            sqlalchemy.event.listen(self._runtime.engine, "connect", _set)

        if spec.mode == "seed":
            schema.create_all(self._runtime.engine)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Enqueue one after the other."""
        for payload in payloads:
            bench.enqueue(**payload)

    def facts(self) -> dict[str, str]:
        """Read back."""
        connection = self._runtime.engine.raw_connection()
        try:
            return pragmas(connection.driver_connection)
        finally:
            connection.close()

    def claim(self) -> tuple[int, Any] | None:
        """Claim one; what job it is comes out when it runs."""
        claimed = claim_ready(self._runtime.engine, self._runtime.dialect, ["*"], 1, None)
        if not claimed:
            return None
        if not execute_claimed(self._runtime, claimed[0]):
            raise RuntimeError(f"job {claimed[0]} failed")
        return _done.pop(), None

    def ack(self, token: Any) -> None:
        """Do nothing: execute_claimed has recorded it."""

    def account(self) -> dict[str, int]:
        """Count the rows of its two tables."""
        return {
            "waiting": count(self._database, schema.ready_executions.name),
            "claimed": count(self._database, schema.claimed_executions.name),
        }

    def close(self) -> None:
        """Close."""
        self._runtime.engine.dispose()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
