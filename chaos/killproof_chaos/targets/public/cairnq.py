"""cairnq: tasks in a table, run by `Worker.serve` under leases that a heartbeat renews.

A handler that is no coroutine runs in a thread, as its documents have it, so the heartbeat goes on.
"""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import AuditMapping, JobRow

LEASE_MS: Final = 3_000
STATES: Final = {
    "queued": "available",
    "running": "leased",
    "succeeded": "succeeded",
    "failed": "dead",
    "canceled": "cancelled",
}


class Cairnq(Adapter):
    """The adapter."""

    name = "cairnq"
    peer = PythonPeer(name="cairnq", python="3.13", packages=pins.CAIRNQ)
    cites = {
        "P1": "README.md: a durable task runtime; submit returns when the file has the task",
        "P3": "cairnq/_protocol/sql/sqlite/complete.sql: finished by the worker that ran it",
        "P4": "cairnq/_protocol/sql/sqlite/claim.sql: an atomic claim, under a lease",
        "P6": "README.md, 'Running it in production': elsewhere only when the lease is lost",
        "P7": "cairnq/_protocol/sql/sqlite: claim, complete, fail, cancel, retry, recover_leases",
        "P8": "cairnq/_protocol/sql/sqlite/recover_leases.sql: a crash takes an attempt too",
        "P10": "cairnq/client.py, submit: no earlier than delay_ms from now",
        "P12": "cairnq/_protocol/migrations/sqlite/0001: a key points to its current task",
        "P13": "cairnq/_protocol/sql/sqlite/retry.sql",
        "P14": "cairnq/_protocol/sql/sqlite: each change of a task is one statement",
        "P15": "cairnq/_protocol/sql/sqlite/cancel.sql: what is queued is cancelled at once",
        "P16": "cairnq/store/sqlite.py: waits for the write lock for busy_timeout_ms",
        "P17": "cairnq/_protocol/sql/sqlite/recover_leases.sql",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True},
        parameters={
            "lease_ms": LEASE_MS,
            "busy_ms": 5_000,
            "drain_ms": 45_000,
            "jobs_per_second": 40,
        },
        edges={
            "start": ("available",),
            "available": ("leased", "cancelled"),
            "leased": ("succeeded", "dead", "available", "cancelled"),
            "dead": ("available",),
        },
    )
    audit = AuditMapping(
        table="cairnq_tasks", id="id", state="status", states=STATES, attempts="attempt",
        priority="-NEW.priority", due_ms="run_at_ms", kind="name", payload="payload",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Open the file; its calls are coroutines of one loop."""
        from cairnq import CairnQ

        self._file = str(place / self.database)
        self._calls = asyncio.Runner()
        queue = CairnQ.sqlite(self._file)
        self._calls.run(queue.connect())
        return queue

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Submit a task; its urgent ones have the higher number."""
        submitted = queue.submit(
            "job",
            payload,
            key=options.get("key"),
            priority=9 - options.get("priority", 5),
            max_attempts=options.get("max_attempts", 3),
            delay_ms=round(1_000 * options.get("delay", 0)),
        )
        return str(self._calls.run(submitted).id)

    def cancel(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Cancel a task; of one that runs it is only asked for."""
        task = self._calls.run(queue.cancel(id))
        return task is not None and task.status == "canceled"

    def replay(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Put a failed task in again."""
        return self._calls.run(queue.retry(id)) is not None

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be its worker, which ends itself at SIGTERM."""
        from cairnq import Worker

        self._calls.run(queue.close())
        worker = Worker.sqlite(
            self._file, lease_ms=LEASE_MS, poll_interval_ms=50, retry_backoff_ms=200
        )
        worker.register("job", lambda ctx, payload: self.handle(payload))
        worker.serve()

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every task."""
        for name, status, attempts, body, error, maximum, due in db.execute(
            "SELECT id, status, attempt, payload, error, max_attempts, run_at_ms FROM cairnq_tasks"
        ):
            yield JobRow(
                id=name, kind="job", state=STATES[status], attempts=attempts, error=error,
                payload=json.loads(body), max_attempts=maximum, due_ms=due,
            )  # fmt: skip


target = Cairnq()
