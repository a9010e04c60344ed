"""litequeue: messages in a table, taken by `pop`, ended by `done` or `mark_failed`.

A message whose worker died stays locked until the program looks for it: `list_locked` and `retry`
are there for that, and every worker here does it when it has nothing else to do. Neither `done` nor
`retry` asks what state the message is in, so a state machine is nothing that it promises.
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

LOCKED_SECONDS: Final = 3
STATES: Final = {0: "available", 1: "leased", 2: "succeeded", 3: "dead"}


class LiteQueue(Adapter):
    """The adapter."""

    name = "litequeue"
    peer = PythonPeer(name="litequeue", python="3.13", packages=pins.LITEQUEUE)
    contract = Contract(
        promises={"P1": "process", "P2": True, "P3": True, "P4": True, "P6": True, "P14": True,
                  "P16": True, "P17": True},
        parameters={"options": [], "lease_ms": LOCKED_SECONDS * 1_000, "busy_ms": 5_000,
                    "drain_ms": 15_000},
        edges={
            "start": ("available",),
            "available": ("leased", "succeeded", "dead"),
            "leased": ("succeeded", "dead", "available"),
        },
    )  # fmt: skip
    cites = {
        "P1": "README, differences with queue.Queue: persistence",
        "P2": "README, Quickstart: a put makes one message",
        "P3": "README, Why: done by whoever popped the message and finished processing it",
        "P4": "litequeue.py, LiteQueue.pop: locked, so that no other process gets it too",
        "P6": "litequeue.py, LiteQueue.pop: the same",
        "P14": "README, Why: prune removes what is finished, and nothing else is removed",
        "P16": "README, Why: persistent; sqlite3.connect's own timeout of 5 s is left alone",
        "P17": "litequeue.py, LiteQueue.list_locked and retry: a locked message is made free again",
    }
    audit = AuditMapping(
        table="Queue", id="message_id", state="status", states=STATES,
        payload="json_extract(NEW.data, '$.payload')",
    )  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Open the queue with its defaults."""
        from litequeue import LiteQueue as Queue

        return Queue(place / self.database)

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Put a message in."""
        return str(queue.put(json.dumps({"kind": kind, "payload": payload})).message_id)

    def consume(self, queue: Any, stop: Stop) -> None:
        """Pop, handle, and mark as done or failed."""
        while not stop():
            message = queue.pop()
            if message is None:
                for locked in list(queue.list_locked(LOCKED_SECONDS)):
                    queue.retry(locked.message_id)
                time.sleep(0.05)
                continue
            try:
                self.handle(json.loads(message.data)["payload"], job=message.message_id)
            except Exception:
                queue.mark_failed(message.message_id)
            else:
                queue.done(message.message_id)

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every message."""
        for name, status, data in db.execute("SELECT message_id, status, data FROM Queue"):
            job = json.loads(data)
            yield JobRow(id=name, kind=job["kind"], state=STATES[status], payload=job["payload"])


target = LiteQueue()
