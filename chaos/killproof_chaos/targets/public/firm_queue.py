"""firm-queue: jobs in tables for each state, run by the worker of `firm-queue work`.

Each process here is what a supervisor runs: one worker of one thread with its heartbeat, and the
dispatcher that makes retries ready; and it does what a supervisor does in its loop: it prunes who
has no heartbeat any longer and takes their jobs back. One that was pruned itself begins anew.
"""

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import JobRow

ALIVE_SECONDS: Final = 3.0
MAX_ATTEMPTS: Final = 3


class FirmQueue(Adapter):
    """The adapter."""

    name = "firm-queue"
    peer = PythonPeer(name="firm-queue", python="3.13", packages=pins.FIRM_QUEUE)
    cites = {
        "P1": "docs/queue/workers-and-supervisor.md, 'Heartbeats & crash recovery'",
        "P3": "docs/queue/retries-and-failures.md; firm/queue/results.py, its first text",
        "P4": "firm/queue/claim.py, its first text: never the same job for two workers",
        "P6": "docs/queue/workers-and-supervisor.md: at-least-once, where a process had died",
        "P16": "docs/database-backends.md, SQLite: waits 5 s for the write lock",
        "P17": "docs/queue/workers-and-supervisor.md: another worker finishes it",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True},
        parameters={"options": ["delay"], "lease_ms": int(ALIVE_SECONDS * 1_000),
                    "max_attempts": MAX_ATTEMPTS, "busy_ms": 5_000, "drain_ms": 40_000,
                    "jobs_per_second": 20},
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Configure it, make its tables and register one job."""
        import firm.queue as firm
        from firm.queue import schema
        from sqlalchemy import inspect

        runtime = firm.configure(database_url=f"sqlite:///{place / self.database}")
        # Its mark comes last: where a power cut has left only the first tables, it is made again.
        if not inspect(runtime.engine).has_table(schema.VERSION_TABLE):
            schema.create_all(runtime.engine)
        self._job = firm.job(attempts=MAX_ATTEMPTS, backoff=1.0)(handle)
        return runtime

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Enqueue one."""
        from datetime import timedelta

        if "delay" in options:
            return int(self._job.enqueue_in(timedelta(seconds=options["delay"]), payload))
        return int(self._job.enqueue(payload))

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be a worker, a dispatcher and a supervisor until told to stop."""
        from contextlib import suppress

        from firm._core import process
        from firm.queue.dispatcher import DispatcherLoop
        from firm.queue.recovery import recover_orphaned_claims
        from firm.queue.worker import Worker
        from sqlalchemy.exc import OperationalError

        while not stop():
            recover_orphaned_claims(queue)
            evicted = threading.Event()
            name = process.generate_name("worker")
            info = process.ProcessInfo(kind="Worker", name=name, pid=os.getpid())
            number = process.register(queue.engine, info)
            beat = process.HeartbeatPoller(
                queue.engine, number, ALIVE_SECONDS / 6, on_evicted=evicted.set
            )
            loops = [Worker(queue, threads=1, poll_interval=0.02, process_id=number), beat]
            loops.append(DispatcherLoop(queue, poll_interval=0.5))
            for loop in loops:
                loop.start()
            while not stop() and not evicted.wait(0.2):
                # It reads and then writes in one transaction, and is refused when somebody else
                # has written in between; a supervisor ends then, and would be started again.
                with suppress(OperationalError):
                    if dead := process.prune_dead(queue.engine, ALIVE_SECONDS):
                        recover_orphaned_claims(queue, dead)
            for loop in loops:
                loop.stop()
            process.deregister(queue.engine, number)

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job."""
        for name, text, finished, error in db.execute(
            "SELECT j.id, j.arguments, j.finished_at, f.error FROM firm_queue_jobs j"
            " LEFT JOIN firm_queue_failed_executions f ON f.job_id = j.id"
        ):
            state = "succeeded" if finished else "dead" if error else "available"
            yield JobRow(
                id=name, kind="", state=state, payload=json.loads(text)["args"][0], error=error
            )


def handle(payload: dict[str, Any]) -> None:
    """Be the job."""
    Adapter.handle(payload)


target = FirmQueue()
