"""cairnq: claim and complete of its SQLite store, which its worker uses."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from cairnq.store.sqlite import SQLiteStore

from killproof_bench.peers.drivers.loop import SYNCHRONOUS, Spec, count


class Driver:
    """One store on one file; its calls are coroutines."""

    def __init__(self, spec: Spec) -> None:
        self._file = f"{spec.folder}/tasks.db"
        self._worker = f"worker-{spec.worker}"
        self._loop = asyncio.new_event_loop()
        self._store: Any = SQLiteStore(self._file)
        self._run(self._store.connect())
        if (wanted := spec.synchronous()) is not None:
            self._run(self._store._conn.execute(f"pragma synchronous = {wanted}"))

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Submit them; those that wait together it writes together."""
        self._run(self._submit(payloads))

    async def _submit(self, payloads: Sequence[dict[str, Any]]) -> None:
        for begin in range(0, len(payloads), 100):
            some = payloads[begin : begin + 100]
            await asyncio.gather(
                *(self._store.submit(name="bench", payload=payload) for payload in some)
            )

    def facts(self) -> dict[str, str]:
        """Read back."""
        synchronous = int(self._pragma("synchronous"))
        return {
            "journal_mode": self._pragma("journal_mode"),
            "synchronous": SYNCHRONOUS[synchronous],
            "autocheckpoint": self._pragma("wal_autocheckpoint"),
            "busy_timeout": self._pragma("busy_timeout"),
            "sqlite": str(self._run(self._value("select sqlite_version()"))),
        }

    def claim(self) -> tuple[int, Any] | None:
        """Claim one."""
        tasks = self._run(
            self._store.claim(queues=["default"], worker_id=self._worker, lease_ms=60_000)
        )
        return (tasks[0].payload["n"], tasks[0].id) if tasks else None

    def ack(self, token: Any) -> None:
        """Complete it; a lost lease raises."""
        self._run(self._store.complete(task_id=token, worker_id=self._worker, result=None))

    def account(self) -> dict[str, int]:
        """Count by status."""
        return {
            "waiting": count(self._file, "cairnq_tasks", "status = 'queued'"),
            "claimed": count(self._file, "cairnq_tasks", "status = 'running'"),
        }

    def close(self) -> None:
        """Close."""
        self._run(self._store.close())
        self._loop.close()

    def _pragma(self, name: str) -> str:
        return str(self._run(self._value(f"pragma {name}")))

    async def _value(self, sql: str) -> Any:
        cursor = await self._store._conn.execute(sql)
        row = await cursor.fetchone()
        return row[0]

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(call)


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
