"""plainjob, for Node: jobs in a table, run by `defineWorker`.

Its maintenance, in each process that has the queue open, puts jobs in again whose time has run out.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import NodePeer
from killproof_evidence.target import AuditMapping, JobRow

STATES: Final = {0: "available", 1: "leased", 2: "succeeded", 3: "dead"}


class Plainjob(Adapter):
    """The adapter; the queue's calls are in plainjob.mjs."""

    name = "plainjob"
    peer = NodePeer(name="plainjob", packages=pins.PLAINJOB, scripts_of=("better-sqlite3",))
    cites = {
        "P1": "README.md, 'Features': reliable persistence",
        "P3": "src/queue.ts, Queue: markJobAsDone marks a job as completed",
        "P6": "README.md, 'Features': put in again if a worker dies",
        "P7": "src/jobs.ts, JobStatus; src/queue.ts, Queue",
        "P10": "README.md, 'Features': runs after a specified delay",
        "P16": "src/queue.ts, defineQueue: waits 5 s for the write lock",
        "P17": "README.md, 'Features': put in again if a worker dies",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True},
        parameters={
            "options": ["delay"],
            "lease_ms": 5_000,
            "busy_ms": 5_000,
            "drain_ms": 40_000,
            "jobs_per_second": 8,
        },
        edges={
            "start": ("available",),
            "available": ("leased",),
            "leased": ("succeeded", "dead", "available"),
        },
    )
    sync_points = frozenset()
    audit = AuditMapping(
        table="plainjob_jobs", id="id", state="status", states=STATES, due_ms="next_run_at",
        kind="type", payload="data",
    )  # fmt: skip

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job."""
        for number, status, data, error in db.execute(
            "SELECT id, status, data, error FROM plainjob_jobs"
        ):
            yield JobRow(
                id=number, kind="job", state=STATES[status], payload=json.loads(data), error=error
            )


target = Plainjob()
