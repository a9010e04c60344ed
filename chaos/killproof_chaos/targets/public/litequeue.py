"""litequeue: messages in a table, taken by `pop`, ended by `done` or `mark_failed`.

A message whose worker died stays locked; the README tells to look for such messages with
`list_locked` and to give them back with `retry`, which every worker here does when it has nothing
else to do.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import Package, PythonPeer
from killproof_evidence.target import AuditMapping, JobRow

LOCKED_SECONDS: Final = 3
STATES: Final = {0: "available", 1: "leased", 2: "succeeded", 3: "dead"}


class LiteQueue(Adapter):
    """The adapter."""

    name = "litequeue"
    peer = PythonPeer(
        name="litequeue", python="3.11", packages=(Package(name="litequeue", version="0.9"),)
    )
    contract = Contract(
        promises={"P1": "process", "P2": True, "P3": True, "P6": True, "P7": True, "P14": True,
                  "P16": True, "P17": True},
        parameters={"options": [], "lease_ms": LOCKED_SECONDS * 1_000, "busy_ms": 5_000},
        edges={
            "start": ("available",),
            "available": ("leased",),
            "leased": ("succeeded", "dead", "available"),
        },
    )  # fmt: skip
    audit = AuditMapping(
        table="Queue", id="message_id", state="status", states=STATES, payload="data"
    )

    def connect(self, place: Path) -> Any:
        """Open the queue with its defaults."""
        from litequeue import LiteQueue as Queue  # type: ignore[import-not-found]

        return Queue(place / self.database)

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Put a message in."""
        return str(queue.put(json.dumps({"kind": kind, **payload})).message_id)

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
                self.handle(json.loads(message.data), job=message.message_id)
            except Exception:
                queue.mark_failed(message.message_id)
            else:
                queue.done(message.message_id)

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every message."""
        for name, status, data in db.execute("SELECT message_id, status, data FROM Queue"):
            payload = json.loads(data)
            yield JobRow(id=name, kind=payload.pop("kind"), state=STATES[status], payload=payload)


target = LiteQueue()
