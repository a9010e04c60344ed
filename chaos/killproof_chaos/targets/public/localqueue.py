"""localqueue: a queue in Rust on SQLite, with leases, receipts and dead letters.

Its `Worker` handles the jobs and renews the lease; the durability is its mode DURABLE. That a stale
receipt is refused is promised too, and not judged: its worker keeps no history.
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

LEASE_SECONDS: Final = 3.0
RETRIES: Final = 3
STATES: Final = {0: "available", 1: "leased", 2: "succeeded", 3: "dead"}
ROWS: Final = """
    SELECT id, status, attempts, max_attempts, payload, coalesce(last_error, failure_reason),
           job_id, available_at
      FROM messages
"""


class LocalQueue(Adapter):
    """The adapter."""

    name = "localqueue"
    peer = PythonPeer(name="localqueue", python="3.13", packages=pins.LOCALQUEUE)
    database = "localqueue.db"
    contract = Contract(
        promises={"P1": "power", "P2": True, "P3": True, "P4": True, "P6": True, "P7": True,
                  "P8": True, "P12": True, "P13": True, "P14": True, "P16": True, "P17": True},
        parameters={"options": ["key"], "max_attempts": RETRIES + 1,
                    "lease_ms": round(LEASE_SECONDS * 1_000), "busy_ms": 5_000,
                    "drain_ms": 30_000},
        edges={
            "start": ("available",),
            "available": ("leased",),
            "leased": ("succeeded", "available", "dead"),
            "dead": ("available",),
        },
    )  # fmt: skip
    cites = {
        "P1": "README, Delivery guarantees: put() has committed; DURABLE protects recent commits",
        "P2": "docs/guarantees.md, What put() guarantees: one message, one id",
        "P3": "docs/guarantees.md, Delivery lifecycle: acked by the worker's ack",
        "P4": "docs/guarantees.md, Delivery lifecycle: another worker only after the lease",
        "P6": "docs/guarantees.md, What the queue does not guarantee: again after a lost ack",
        "P7": "README, Delivery guarantees: the diagram",
        "P8": "README, Delivery guarantees: max_retries after the initial delivery, then failed",
        "P12": "docs/guarantees.md, Deduplication: job_id is unique while its record exists",
        "P13": "README, Dead letters: reason, payload and retry_failed()",
        "P14": "docs/guarantees.md, What put() guarantees: stays until terminal or purged",
        "P16": "README, Runtime diagnostics: busy_timeout_ms; check_integrity()",
        "P17": "README, Delivery guarantees: comes back after its lease, or ends as failed",
    }
    audit = AuditMapping(
        table="messages", id="id", state="status", states=STATES, attempts="attempts",
        due_ms="available_at", key="job_id",
        payload="json_extract(CAST(NEW.payload AS TEXT), '$.payload')",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Open the queue."""
        from localqueue import DeliveryPolicy, DurabilityMode, SimpleQueue

        return SimpleQueue(
            str(place),
            delivery=DeliveryPolicy(lease_seconds=LEASE_SECONDS, max_retries=RETRIES),
            durability=DurabilityMode.DURABLE,
        )

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Put a job in."""
        return int(queue.put({"kind": kind, "payload": payload}, job_id=options.get("key")))

    def replay(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Move a dead letter back, if it is one."""
        from localqueue import LocalQueueError

        try:
            queue.retry_failed(int(id))
        except LocalQueueError:
            return False
        return True

    def consume(self, queue: Any, stop: Stop) -> None:
        """Run its worker, with a heartbeat of a third of the lease."""
        from localqueue import Worker

        worker = Worker(
            queue,
            lambda job: self.handle(job.data["payload"], job=job.id),
            permanent_errors=(effect.ScriptedPermanent,),
            poll_interval=0.2,
            heartbeat_interval=LEASE_SECONDS / 3,
        )
        stop.by(worker.stop)
        worker.run()

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every message."""
        for name, state, attempts, maximum, data, error, key, due_ms in db.execute(ROWS):
            job = json.loads(data)
            yield JobRow(
                id=name, kind=job["kind"], state=STATES[state], attempts=attempts,
                max_attempts=maximum, payload=job["payload"], error=error, key=key, due_ms=due_ms,
            )  # fmt: skip


target = LocalQueue()
