"""liteque, for Node: jobs in a table, run by its `Runner`.

A job is deleted when it has succeeded; one that failed is kept, as an option has it.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import NodePeer
from killproof_evidence.target import AuditMapping, JobRow

STATES: Final = {
    "pending": "available",
    "running": "leased",
    "pending_retry": "retryable",
    "failed": "dead",
}


class Liteque(Adapter):
    """The adapter; the queue's calls are in liteque.mjs."""

    name = "liteque"
    peer = NodePeer(name="liteque", packages=pins.LITEQUE, scripts_of=("better-sqlite3",))
    cites = {
        "P1": "README.md: a queue in SQLite; enqueue returns the job",
        "P7": "src/schema.ts, tasksTable: the states; src/queue.ts",
        "P8": "src/queue.ts, attemptDequeue: each run takes one of numRetries + 1, also one whose "
        "time ran out",
        "P10": "src/queue.ts, enqueue: delayMs",
        "P12": "src/queue.ts, enqueue: a key that is enqueued already is ignored",
        "P16": "src/db.ts, buildDBClient: waits for the write lock as better-sqlite3 does, 5 s",
        "P17": "src/queue.ts, attemptDequeue: takes a running job whose time ran out",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True},
        parameters={
            "max_attempts": 3,
            "lease_ms": 3_000,
            "busy_ms": 5_000,
            "drain_ms": 40_000,
            "jobs_per_second": 8,
        },
        edges={
            "start": ("available",),
            "available": ("leased",),
            "retryable": ("leased",),
            "leased": ("deleted", "retryable", "dead"),
        },
    )
    sync_points = frozenset()
    audit = AuditMapping(
        table="tasks", id="id", state="status", states=STATES, due_ms="availableAt",
        attempts="NEW.maxNumRuns - NEW.numRunsLeft", priority="priority", key="idempotencyKey",
        payload="payload",
    )  # fmt: skip

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job that is there."""
        for number, status, data, left, maximum in db.execute(
            "SELECT id, status, payload, numRunsLeft, maxNumRuns FROM tasks"
        ):
            yield JobRow(
                id=number, kind="job", state=STATES[status], attempts=maximum - left,
                payload=json.loads(data), max_attempts=maximum,
            )  # fmt: skip


target = Liteque()
