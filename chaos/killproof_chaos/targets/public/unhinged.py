"""unhinged: a durable execution engine; each job here is a task of one step.

A run whose claim has run out is failed by whoever claims next, and its task runs again.
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

CLAIM_SECONDS: Final = 3
STATES: Final = {
    "pending": "available",
    "sleeping": "retryable",
    "running": "leased",
    "completed": "succeeded",
    "failed": "dead",
    "cancelled": "cancelled",
}


class Unhinged(Adapter):
    """The adapter."""

    name = "unhinged"
    peer = PythonPeer(name="unhinged", python="3.13", packages=pins.UNHINGED)
    cites = {
        "P1": "README.md, 'How it works': every commit is synced; unhinged/engine.py, Engine: on "
        "linux that survives a power cut",
        "P3": "README.md, 'How it works': every task completes",
        "P4": "README.md, 'How it works': no run is executed by two processes",
        "P6": "README.md, 'How it works': again only when the lease had been reclaimed",
        "P7": "unhinged/engine.py: claim_task, complete_run, fail_run",
        "P8": "unhinged/engine.py, fail_run: an expired claim is a failed attempt",
        "P12": "unhinged/engine.py, spawn_task: an idempotency key gives the task that exists",
        "P14": "unhinged/engine.py, its first text: each call is one transaction",
        "P16": "unhinged/engine.py, Engine: waits for the write lock for busy_timeout",
        "P17": "README.md, 'How it works': every task still completes",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "power", "P2": True},
        parameters={"options": ["key", "max_attempts"], "lease_ms": CLAIM_SECONDS * 1_000,
                    "busy_ms": 5_000, "drain_ms": 45_000, "jobs_per_second": 40},
        edges={
            "start": ("available",),
            "available": ("leased",),
            "retryable": ("leased",),
            "leased": ("succeeded", "available", "retryable", "dead"),
        },
    )  # fmt: skip
    audit = AuditMapping(
        table="t_jobs", id="task_id", state="state", states=STATES, key="idempotency_key",
        kind="task_name", payload="params",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Be an app with one task."""
        from unhinged import Unhinged as App

        app = App(str(place / self.database), queue_name="jobs")
        app.engine.create_queue("jobs")
        app.register_task("job")(lambda params, ctx: self.handle(params))
        return app

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Spawn a task."""
        spawned = queue.spawn(
            "job",
            payload,
            max_attempts=options.get("max_attempts", 5),
            idempotency_key=options.get("key"),
        )
        return str(spawned["task_id"])

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be its worker until told to stop."""
        stop.by(queue.stop_worker)
        queue.start_worker(claim_timeout=CLAIM_SECONDS, poll_interval=0.05)

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every task, with the runs that were started."""
        for name, state, body, maximum, starts, error in db.execute(
            "SELECT t.task_id, t.state, params, max_attempts, count(r.started_at),"
            " max(r.failure_reason)"
            " FROM t_jobs t LEFT JOIN r_jobs r USING (task_id) GROUP BY t.task_id"
        ):
            yield JobRow(
                id=name, kind="job", state=STATES[state], attempts=starts, error=error,
                payload=json.loads(body), max_attempts=maximum,
            )  # fmt: skip


target = Unhinged()
