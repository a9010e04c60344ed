"""ballast.py: a job's handler and its end are one transaction, by one worker of one process.

That is its documented scope, so it gets one worker here too. What that had when it died is taken
back at the start of the next.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import AuditMapping, JobRow

STATES: Final = {
    "queued": "available",
    "running": "leased",
    "done": "succeeded",
    "failed": "dead",
}


class Ballast(Adapter):
    """The adapter."""

    name = "ballast"
    peer = PythonPeer(name="ballast.py", python="3.13", packages=pins.BALLAST)
    cites = {
        "P1": "README.md, 'Exactly-once jobs': no lost work",
        "P3": "README.md, 'Exactly-once jobs': done in the transaction of the handler",
        "P4": "ballast/jobs.py, its first text: one worker, on one thread",
        "P6": "README.md, 'Exactly-once jobs': a crash rolls back effects and completion together",
        "P7": "ballast/jobs.py, its first text",
        "P14": "README.md, 'Design in one paragraph'",
        "P16": "README.md, 'Design in one paragraph': writers queue instead of erroring",
        "P17": "README.md, 'Exactly-once jobs': a crash rolls back, and the job retries",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True, "P6": "transaction"},
        parameters={
            "options": ["max_attempts"],
            "workers_max": 1,
            "busy_ms": 5_000,
            "drain_ms": 45_000,
            "jobs_per_second": 12,
        },
        edges={
            "start": ("available",),
            "available": ("leased",),
            "leased": ("succeeded", "available", "dead"),
        },
    )
    audit = AuditMapping(
        table="ballast_jobs", id="id", state="status", states=STATES, attempts="attempts",
        kind="kind", payload="payload_json",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Open the database and make its tables."""
        from ballast import Database, install

        database = Database(place / self.database)
        install(database)
        return database

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Enqueue in a transaction of its own."""
        from ballast import queue as jobs

        with queue.transaction() as db:
            maximum = options.get("max_attempts", 5)
            return str(jobs.enqueue(db, "job", payload, max_attempts=maximum))

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be its worker until told to stop."""
        from ballast import JobWorker

        def handle(db: Any, payload: dict[str, Any]) -> None:
            done = self.handle(payload)
            json.dumps(done)
            if payload["sink"] == "table":
                values = (payload["id"], done["attempt"])
                db.execute("INSERT INTO chaos_effect (job, attempt) VALUES (?, ?)", values)

        worker = JobWorker(queue, {"job": handle}, poll_seconds=0.05, retry_base_seconds=1)
        worker.start()
        while not stop():
            time.sleep(0.05)
        worker.stop()

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job."""
        for name, status, attempts, body, error, maximum in db.execute(
            "SELECT id, status, attempts, payload_json, last_error, max_attempts FROM ballast_jobs"
        ):
            yield JobRow(
                id=name, kind="job", state=STATES[status], attempts=attempts, error=error,
                payload=json.loads(body), max_attempts=maximum,
            )  # fmt: skip


target = Ballast()
