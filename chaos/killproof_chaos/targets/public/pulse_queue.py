"""pulse-queue: tasks in a table, run by the coroutines of a `WorkerPool` under leases with tokens.

The pool renews the lease of a task while its handler works, and takes back those that ran out.
"""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence import effect, pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import AuditMapping, JobRow

LEASE_SECONDS: Final = 3.0
STATES: Final = {
    "PENDING": "available",
    "RUNNING": "leased",
    "RETRY": "retryable",
    "COMPLETED": "succeeded",
    "FAILED": "dead",
}


class PulseQueue(Adapter):
    """The adapter."""

    name = "pulse-queue"
    peer = PythonPeer(name="pulse-queue", python="3.13", packages=pins.PULSE_QUEUE)
    cites = {
        "P1": "README.md: a kill or a reboot of the host does not lose work",
        "P3": "README.md, the table of a handler's outcomes",
        "P4": "README.md, 'Architecture': one row is never handed to two workers",
        "P6": "README.md, 'Delivery semantics': twice after a crash or an expired lease",
        "P7": "README.md, the table of a handler's outcomes",
        "P8": "README.md, 'max_attempts is an attempt budget'; pulse_queue/store.py, "
        "lease_next_task: a crash takes an attempt, so that a poison task does not loop for ever",
        "P10": "pulse_queue/store.py, enqueue: `delay`",
        "P16": "README.md, 'Benchmarks': no lock error with a busy timeout of 5 s",
        "P17": "README.md, 'Lease expiry recovery'",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True},
        parameters={"options": ["priority", "delay", "max_attempts"], "busy_ms": 5_000,
                    "lease_ms": int(LEASE_SECONDS * 1_000), "drain_ms": 25_000,
                    "jobs_per_second": 50},
        edges={
            "start": ("available",),
            "available": ("leased",),
            "leased": ("succeeded", "retryable", "dead", "deleted"),
            "retryable": ("leased",),
        },
    )  # fmt: skip
    audit = AuditMapping(
        table="tasks", id="id", state="state", states=STATES, fence="lease_epoch",
        attempts="attempts", priority="-NEW.priority",
        due_ms="CAST(NEW.available_at * 1000 AS INTEGER)",
        payload="json_extract(CAST(NEW.payload AS TEXT), '$.job')",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Open the store."""
        from pulse_queue import Store

        return Store(place / self.database)

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Put a task in; its urgent ones have the higher number."""
        task = queue.enqueue(
            {"type": "job", "job": payload},
            priority=9 - options.get("priority", 5),
            max_attempts=options.get("max_attempts"),
            delay=options.get("delay", 0.0),
        )
        return str(task.id)

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be a pool of one worker, which ends itself at SIGTERM."""
        from pulse_queue import HandlerRegistry, PermanentTaskError, WorkerPool
        from pulse_queue.backoff import BackoffPolicy

        async def handle(ctx: Any) -> Any:
            facts = {"job": ctx.task_id, "attempt": ctx.attempt}
            try:
                return await asyncio.to_thread(self.handle, ctx.payload["job"], **facts)
            except effect.ScriptedPermanent as error:
                raise PermanentTaskError(str(error)) from error

        async def work() -> None:
            pool = WorkerPool(
                queue,
                HandlerRegistry({"job": handle}),
                concurrency=1,
                poll_interval=0.05,
                lease_ttl=LEASE_SECONDS,
                reclaim_interval=1.0,
                backoff=BackoffPolicy(base=0.2),
            )
            await pool.run()

        asyncio.run(work())

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every task, and the dead letters, which have a table of their own."""
        for name, state, attempts, body, error, maximum in db.execute(
            "SELECT id, state, attempts, payload, last_error, max_attempts FROM tasks"
            " UNION ALL SELECT id, 'FAILED', attempts, payload, last_error, NULL"
            " FROM dead_letter_queue"
        ):
            yield JobRow(
                id=name, kind="", state=STATES[state], attempts=attempts, error=error,
                payload=json.loads(body)["job"], max_attempts=maximum,
            )  # fmt: skip


target = PulseQueue()
