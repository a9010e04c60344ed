"""potatoq: tasks in a table, run by the processes that `potatoq worker` forks.

Each worker here is a supervisor with one process. What raises is dead-lettered at once, as the
project's defaults have it: retries are opt-in. The times after which a supervisor counts as dead
are its own settings.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence import effect, pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import AuditMapping, JobRow

DEAD_AFTER_SECONDS: Final = 3.0
STATES: Final = {0: "scheduled", 1: "available", 2: "leased"}
RESULTS: Final = {"SUCCESS": "succeeded", "FAILURE": "dead", "REVOKED": "cancelled"}
#: Begins the ids of what potatoq keeps there for itself.
OWN: Final = "potatoq-"


class Potatoq(Adapter):
    """The adapter."""

    name = "potatoq"
    peer = PythonPeer(name="potatoq", python="3.13", packages=pins.POTATOQ)
    cites = {
        "P1": "docs/guide/retries-and-failures.md: removed from the broker only when it finished",
        "P3": "docs/guide/retries-and-failures.md: at least once",
        "P7": "docs/brokers/sqlite.md, and potatoq/brokers/sqlite.py, its first text",
        "P8": "docs/guide/retries-and-failures.md, 'When a worker process dies': 5 deliveries",
        "P10": "README.md, 'Why': ETA and countdown are stored by the broker",
        "P16": "potatoq/brokers/sqlite.py, PRAGMAS: waits 30 s for the write lock",
        "P17": "docs/guide/retries-and-failures.md: a crash never loses a task",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True},
        parameters={"options": ["priority", "delay"], "max_attempts": 5, "busy_ms": 30_000,
                    "lease_ms": int(DEAD_AFTER_SECONDS * 1_000), "drain_ms": 60_000},
        edges={
            "start": ("available", "scheduled"),
            "scheduled": ("available",),
            "available": ("leased",),
            "leased": ("deleted", "available", "scheduled"),
        },
    )  # fmt: skip
    #: A worker is two processes, and which of them a signal finds is not what a handler announces.
    sync_points = frozenset()
    audit = AuditMapping(
        table="potatoq_jobs", id="id", state="state", states=STATES, attempts="deliveries",
        priority="-NEW.priority", due_ms="CAST(NEW.run_at * 1000 AS INTEGER)",
        payload="json_extract(NEW.payload, '$.args[0]')",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Be an app with one task."""
        from potatoq import Potatoq as App

        app = App("killproof", broker=f"sqlite:///{place / self.database}")
        app.conf.worker_dead_after = DEAD_AFTER_SECONDS
        app.conf.worker_heartbeat_interval = DEAD_AFTER_SECONDS / 6
        app.task(name="job", typing=False)(handle)
        app.broker.setup()
        return app

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Send a task; its urgent ones have the higher number."""
        task = queue.tasks["job"]
        delay = options.get("delay")
        priority = 9 - options.get("priority", 5)
        return str(task.apply_async([payload], countdown=delay, priority=priority).id)

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be `potatoq worker`, which ends itself at SIGTERM."""
        from potatoq.worker.supervisor import Supervisor

        Supervisor(queue, concurrency=1, loglevel="WARNING").start()

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job: those that wait or run, the dead letters, and the results of others."""
        seen = set()
        for name, state, text in db.execute("SELECT id, state, payload FROM potatoq_jobs"):
            seen.add(name)
            yield JobRow(id=name, kind="", state=STATES[state], payload=json.loads(text)["args"][0])
        for name, reason, text in db.execute("SELECT id, reason, payload FROM potatoq_dead"):
            if name not in seen:
                payload = json.loads(text)["args"][0]
                yield JobRow(id=name, kind="", state="dead", payload=payload, error=reason)
            seen.add(name)
        for name, state in db.execute("SELECT id, state FROM potatoq_results"):
            if name not in seen and state in RESULTS and not name.startswith(OWN):
                yield JobRow(id=name, kind="", state=RESULTS[state])


def handle(payload: dict[str, Any]) -> dict[str, Any]:
    """Be the task; the supervisor is the worker of this run, and this process its child."""
    return effect.run(payload, worker=effect.holder())


target = Potatoq()
