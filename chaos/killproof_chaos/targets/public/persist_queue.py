"""persist-queue: its `SQLiteAckQueue`, with one worker process at a time.

It promises safety among threads, and not among processes, so nothing else is asked of it: the
worker is alone, and producers only put. What a killed worker had comes back when the queue is
resumed, which the next worker does at its start, as the class does by default when it is opened.
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

STATES: Final = {
    0: "available", 1: "available", 2: "leased", 5: "succeeded", 9: "dead",
}  # fmt: skip


class PersistQueue(Adapter):
    """The adapter."""

    name = "persist-queue"
    peer = PythonPeer(name="persist-queue", python="3.13", packages=pins.PERSIST_QUEUE)
    database = "data.db"
    contract = Contract(
        promises={"P1": "process", "P2": True, "P3": True, "P6": True, "P7": True, "P14": True,
                  "P16": True, "P17": True},
        parameters={"options": [], "busy_ms": 10_000, "drain_ms": 15_000,
                    "workers_max": 1},
        edges={
            "start": ("available",),
            "available": ("leased",),
            "leased": ("succeeded", "available", "dead"),
        },
    )  # fmt: skip
    cites = {
        "P1": "README, Key Features: each item is stored on disk to survive crashes",
        "P2": "README, Acknowledgment Queue: a put makes one item",
        "P3": "README, Acknowledgment Queue: ack marks as completed",
        "P6": "README, Key Features: an item is read once, or again after a restart",
        "P7": "README, Acknowledgment Queue: ack, nack, ack_failed after a get",
        "P14": "README, Key Features: recoverable, items can be read after a restart",
        "P16": "persistqueue/sqlbase.py, SQLiteBase: timeout, seconds to wait for the lock",
        "P17": "persistqueue/sqlackqueue.py, auto_resume: what was not acked is ready again",
    }
    audit = AuditMapping(
        table="ack_queue_default", id="_id", state="status", states=STATES,
        payload="json_extract(CAST(NEW.data AS TEXT), '$.payload')",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Open the queue, and take nothing back: a worker may be at it."""
        from persistqueue import SQLiteAckQueue
        from persistqueue.serializers import json as as_json

        return SQLiteAckQueue(
            str(place), auto_resume=False, multithreading=True, serializer=as_json
        )

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Put an item in."""
        return int(queue.put({"kind": kind, "payload": payload}))

    def consume(self, queue: Any, stop: Stop) -> None:
        """Take back what the worker before had; get, handle, ack or give up."""
        from persistqueue import Empty

        queue.resume_unack_tasks()
        while not stop():
            try:
                item = queue.get(timeout=0.1, raw=True)
            except Empty:
                continue
            try:
                self.handle(item["data"]["payload"], job=item["pqid"])
            except Exception:
                queue.ack_failed(item)
            else:
                queue.ack(item)

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every item."""
        for name, data, status in db.execute("SELECT _id, data, status FROM ack_queue_default"):
            job = json.loads(data)
            yield JobRow(id=name, kind=job["kind"], state=STATES[status], payload=job["payload"])


target = PersistQueue()
