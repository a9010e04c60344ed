"""qler: claim_job and complete_job of its queue."""

import asyncio
import contextvars
import json
from collections.abc import Coroutine, Sequence
from typing import Any

from qler import Queue
from sqler import AsyncSQLerDB

from killproof_bench.peers.drivers.loop import SYNCHRONOUS, Spec, count


class Driver:
    """One queue on one file; its calls are coroutines."""

    def __init__(self, spec: Spec) -> None:
        self._file = f"{spec.folder}/jobs.db"
        self._worker = f"worker-{spec.worker}"
        self._loop = asyncio.new_event_loop()
        self._context = contextvars.copy_context()
        self._db: Any = AsyncSQLerDB.on_disk(self._file)
        if (wanted := spec.synchronous()) is not None:
            # It takes a database of the caller's; the last pragma of the list wins.
            self._db.adapter.pragmas.append(f"PRAGMA synchronous = {wanted}")
        self._run(self._db.connect())
        self._queue: Any = Queue(self._db)
        self._run(self._queue.init_db())

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Enqueue them in transactions of a thousand."""
        jobs = [{"task_path": "bench.work", "kwargs": payload} for payload in payloads]
        for begin in range(0, len(jobs), 1_000):
            self._run(self._queue.enqueue_many(jobs[begin : begin + 1_000]))

    def facts(self) -> dict[str, str]:
        """Read back."""
        return {
            "journal_mode": str(self._value("PRAGMA journal_mode")),
            "synchronous": SYNCHRONOUS[int(self._value("PRAGMA synchronous"))],
            "autocheckpoint": str(self._value("PRAGMA wal_autocheckpoint")),
            "busy_timeout": str(self._value("PRAGMA busy_timeout")),
            "sqlite": str(self._value("SELECT sqlite_version()")),
        }

    def claim(self) -> tuple[int, Any] | None:
        """Claim one."""
        job = self._run(self._queue.claim_job(self._worker, ["default"]))
        if job is None:
            return None
        return json.loads(job.payload_json)["kwargs"]["n"], job

    def ack(self, token: Any) -> None:
        """Complete it."""
        self._run(self._queue.complete_job(token, self._worker))

    def account(self) -> dict[str, int]:
        """Count by status."""
        return {
            "waiting": count(self._file, "qler_jobs", "status = 'pending'"),
            "claimed": count(self._file, "qler_jobs", "status = 'running'"),
        }

    def close(self) -> None:
        """Close."""
        self._run(self._db.close())
        self._loop.close()

    def _value(self, sql: str) -> Any:
        return self._run(self._ask(sql))

    async def _ask(self, sql: str) -> Any:
        cursor = await self._db.adapter.execute(sql)
        try:
            return (await cursor.fetchone())[0]
        finally:
            await cursor.close()

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        # In one context: it pins a connection to each, and has four of them.
        return self._loop.run_until_complete(self._loop.create_task(call, context=self._context))


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
