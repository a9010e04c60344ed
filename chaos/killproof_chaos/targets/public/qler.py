"""qler: jobs in a table, run by `Worker.run` under leases that the worker renews.

A task that is no coroutine is registered as synchronous, as its documents have it, and runs in a
thread. Leases are whole seconds.
"""

import asyncio
import json
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import AuditMapping, JobRow

LEASE_SECONDS: Final = 4
MAX_ATTEMPTS: Final = 3
STATES: Final = {
    "pending": "available",
    "running": "leased",
    "completed": "succeeded",
    "failed": "dead",
    "cancelled": "cancelled",
}


class Qler(Adapter):
    """The adapter."""

    name = "qler"
    peer = PythonPeer(name="qler", python="3.13", packages=pins.QLER)
    cites = {
        "P1": "README.md: background jobs on SQLite; enqueue returns the job",
        "P3": "qler/queue.py, complete_job",
        "P4": "qler/worker.py, Worker: leases, which it renews while a job runs",
        "P7": "qler/enums.py, JobStatus; qler/queue.py",
        "P16": "qler/queue.py, init_db: waits 5 s for the write lock",
        "P17": "qler/queue.py, recover_expired_leases: back to pending",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True},
        parameters={"options": ["priority"], "max_attempts": MAX_ATTEMPTS, "busy_ms": 5_000,
                    "lease_ms": LEASE_SECONDS * 1_000, "drain_ms": 45_000,
                    "jobs_per_second": 15},
        edges={
            "start": ("available",),
            "available": ("leased",),
            "leased": ("succeeded", "available", "dead"),
        },
    )  # fmt: skip
    audit = AuditMapping(
        table="qler_jobs", id="ulid", state="status", states=STATES, priority="-NEW.priority",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Be a queue with one task; each call is a loop of its own, which closes the file."""
        from qler import Queue, task

        queue = Queue(
            str(place / self.database),
            default_lease_duration=LEASE_SECONDS,
            default_max_retries=MAX_ATTEMPTS - 1,
            default_retry_delay=1,
        )
        self._task = task(queue, sync=True)(handle)
        asyncio.run(_closing(queue, queue.init_db()))
        return queue

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Enqueue a job; its urgent ones have the higher number."""
        enqueued = self._task.enqueue(payload, _priority=9 - options.get("priority", 5))
        return str(asyncio.run(_closing(queue, enqueued)).ulid)

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be its worker, which ends itself at SIGTERM."""
        from qler import Worker

        worker = Worker(queue, poll_interval=0.05, lease_recovery_interval=1.0)
        asyncio.run(_closing(queue, worker.run()))

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job; what is not a column of its own is in a document."""
        for name, status, text in db.execute("SELECT ulid, status, data FROM qler_jobs"):
            data = json.loads(text)
            payload = json.loads(data["payload_json"])["args"][0]
            yield JobRow(
                id=name, kind="", state=STATES[status], payload=payload, error=data["last_error"]
            )


async def _closing(queue: Any, call: Coroutine[Any, Any, Any]) -> Any:
    """Make a call; a file that stays open would keep the process alive."""
    try:
        return await call
    finally:
        await queue.close()


def handle(payload: dict[str, Any]) -> dict[str, Any]:
    """Be the task."""
    return Adapter.handle(payload)


target = Qler()
