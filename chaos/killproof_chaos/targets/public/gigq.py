"""gigq: functions in a table, run by `Worker.start`.

A job that runs longer than its time limit is taken back by whoever looks for work next.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import AuditMapping, JobRow

#: A job's time limit, after which it counts as stuck; no handler here works that long.
TIMEOUT_SECONDS: Final = 3
STATES: Final = {
    "pending": "available",
    "running": "leased",
    "completed": "succeeded",
    "failed": "dead",
    "timeout": "dead",
    "cancelled": "cancelled",
}


def work(payload: dict[str, Any]) -> dict[str, Any]:
    """Be the function of each job; gigq imports it by the name of its module."""
    return Adapter.handle(payload)


class GigQ(Adapter):
    """The adapter."""

    name = "gigq"
    peer = PythonPeer(name="gigq", python="3.13", packages=pins.GIGQ)
    cites = {
        "P1": "README.md, 'How it works': jobs and results live in SQLite; crash recovery",
        "P3": "README.md: status and results, from the file that the workers use",
        "P4": "README.md, 'How it works': one worker at a time runs a given job",
        "P6": "README.md, 'How it works'; stuck work alone is reclaimed",
        "P7": "gigq/job_status.py; gigq/worker.py",
        "P8": "gigq/job.py, Job: max_attempts, the most executions",
        "P15": "gigq/job_queue.py, cancel: a pending job is cancelled",
        "P16": "gigq/db_utils.py, get_connection: waits 30 s for the write lock",
        "P17": "README.md: crash recovery, stuck work is reclaimed",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True},
        parameters={"options": ["priority", "max_attempts"], "max_attempts": 3,
                    "lease_ms": TIMEOUT_SECONDS * 1_000, "busy_ms": 30_000,
                    "drain_ms": 45_000, "jobs_per_second": 30},
        edges={
            "start": ("available",),
            "available": ("leased", "cancelled"),
            "leased": ("succeeded", "dead", "available"),
        },
    )  # fmt: skip
    audit = AuditMapping(
        table="jobs", id="id", state="status", states=STATES, attempts="attempts",
        priority="-NEW.priority", kind="name", payload="json_extract(NEW.params, '$.payload')",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Open the queue."""
        from gigq import JobQueue

        return JobQueue(str(place / self.database))

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Submit a job; its urgent ones have the higher number."""
        from gigq import Job

        job = Job(
            name=kind,
            function=work,
            params={"payload": payload},
            priority=9 - options.get("priority", 5),
            max_attempts=options.get("max_attempts", 3),
            timeout=TIMEOUT_SECONDS,
        )
        return str(queue.submit(job))

    def cancel(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Cancel a pending job."""
        return bool(queue.cancel(id))

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be its worker, which ends itself at SIGTERM."""
        from gigq import Worker

        Worker(queue.db_path, polling_interval=0.1).start()

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job."""
        found = db.execute(
            "SELECT id, name, status, attempts, params, error, max_attempts FROM jobs"
        )
        for name, kind, status, attempts, params, error, maximum in found:
            yield JobRow(
                id=name, kind=kind, state=STATES[status], attempts=attempts, error=error,
                payload=json.loads(params)["payload"], max_attempts=maximum,
            )  # fmt: skip


target = GigQ()
