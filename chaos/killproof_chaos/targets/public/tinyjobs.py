"""tinyjobs: functions in a table, run by its asyncio worker under leases with heartbeats.

One job at a time in each worker, so that what a kill hits is known; the lease is three seconds and
the reaper looks every second, which its worker's options allow. A stale worker is refused by its
name, which is no number: fencing is not judged.
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

LEASE_SECONDS: Final = 3
STATES: Final = {
    "queued": "available", "running": "leased", "success": "succeeded", "failed": "dead",
    "cancelled": "cancelled",
}  # fmt: skip
ROWS: Final = """
    SELECT id, status, attempts, max_attempts, payload, last_error, dedup_key,
           CAST(run_at * 1000 AS INTEGER)
      FROM jobs
"""


class TinyJobs(Adapter):
    """The adapter."""

    name = "tinyjobs"
    peer = PythonPeer(name="tinyjobs", python="3.13", packages=pins.TINYJOBS)
    contract = Contract(
        promises={"P1": "process", "P2": True, "P3": True, "P4": True, "P6": True, "P7": True,
                  "P8": True, "P10": True, "P12": True, "P13": True, "P16": True, "P17": True},
        parameters={"options": ["priority", "delay", "key", "max_attempts"], "max_attempts": 5,
                    "lease_ms": LEASE_SECONDS * 1_000, "busy_ms": 5_000,
                    "drain_ms": 30_000},
        edges={
            "start": ("available",),
            "available": ("leased", "cancelled"),
            "leased": ("succeeded", "dead", "available", "cancelled"),
            "dead": ("available",),
            "cancelled": ("available",),
        },
    )  # fmt: skip
    cites = {
        "P1": "README, Redis: a crash loses nothing there with appendonly; the queue is a file",
        "P2": "README, Quick start: an enqueue writes one row",
        "P3": "README, What you get: every attempt is a row",
        "P4": "README, How it works: one statement claims, and another worker comes at lease's end",
        "P6": "README, What you get: at-least-once, again when a worker died before recording it",
        "P7": "README, Quick start: queued, running, success; success and failed are terminal",
        "P8": "README, Quick start: max_attempts",
        "P10": "README, What you get: delayed jobs",
        "P12": "README, What you get: a key collapses duplicate enqueues",
        "P13": "README, Quick start: last_error, and every attempt is kept; TinyJobs.retry",
        "P16": "tinyjobs/backends/sqlite/backend.py, SQLiteBackend: busy_timeout",
        "P17": "README, What you get: a killed worker's jobs come back",
    }
    audit = AuditMapping(
        table="jobs", id="id", state="status", states=STATES, attempts="attempts",
        priority="-NEW.priority", due_ms="CAST(NEW.run_at * 1000 AS INTEGER)", key="dedup_key",
        payload="json_extract(CAST(NEW.payload AS TEXT), '$.args[1]')",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Return the app, connected."""
        from tinyjobs import TinyJobs as App

        app = App(f"sqlite:///{place / self.database}")
        app.task(name="work", max_attempts=5, retry_base=0.1, retry_max=1.0)(work)
        return app.start()

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Enqueue; the higher its number, the more urgent."""
        options["priority"] = 9 - options.get("priority", 5)
        return str(queue.registry.get("work").with_options(**options).enqueue(kind, payload).id)

    def replay(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Queue a failed job again."""
        return bool(queue.retry(str(id)))

    def cancel(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Cancel a job, also one that runs: its task is to look."""
        return bool(queue.cancel(str(id)))

    def consume(self, queue: Any, stop: Stop) -> None:
        """Run its worker, which takes the signals over."""
        stop.by_exception()  # Until then.
        queue.worker(
            concurrency=1, lease_seconds=LEASE_SECONDS, reap_interval=1.0, poll_maximum=0.1
        ).run()

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job."""
        for name, state, attempts, maximum, payload, error, key, due_ms in db.execute(ROWS):
            kind, body = json.loads(payload)["args"]
            yield JobRow(
                id=name, kind=kind, state=STATES[state], attempts=attempts, max_attempts=maximum,
                payload=body, error=error, key=key, due_ms=due_ms,
            )  # fmt: skip


def work(_kind: str, payload: dict[str, Any]) -> None:
    """Be the task."""
    Adapter.handle(payload)


target = TinyJobs()
