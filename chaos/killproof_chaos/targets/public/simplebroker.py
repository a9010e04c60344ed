"""SimpleBroker: messages in named queues of one file.

A read is at-most-once for the work; for critical work its documents advise to move a message into
an inflight or worker-private queue, process it there, and delete it. That is what is judged. What a
worker left in its private queue is handled by the next one of its name, before anything else; what
fails goes into a queue of dead letters. What is deleted is done.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import AuditMapping, JobRow

WAITING: Final = "jobs"
DEAD: Final = "dead"
STATE: Final = "iif(NEW.queue = 'jobs', 'available', iif(NEW.queue = 'dead', 'dead', 'leased'))"


class SimpleBroker(Adapter):
    """The adapter."""

    name = "simplebroker"
    peer = PythonPeer(name="simplebroker", python="3.13", packages=pins.SIMPLEBROKER)
    contract = Contract(
        promises={"P1": "power", "P2": True, "P4": True, "P6": True, "P7": True, "P14": True,
                  "P16": True, "P17": True},
        parameters={"options": [], "busy_ms": 5_000, "drain_ms": 15_000},
        edges={
            "start": ("available",),
            "available": ("leased",),
            "leased": ("dead", "deleted"),
        },
    )  # fmt: skip
    cites = {
        "P1": "README, Recommended For: ACID durability; BROKER_SYNC_MODE is FULL by default",
        "P2": "README, Timestamps as Message IDs: unique in a backend, one for each write",
        "P4": "docs/specs/11-delivery.md, SB-DELIVERY-3: of concurrent moves one wins",
        "P6": "docs/specs/11-delivery.md, SB-DELIVERY-3: the same",
        "P7": "docs/specs/11-delivery.md, SB-DELIVERY-3: a move is atomic, and consumes nothing",
        "P14": "docs/specs/11-delivery.md, SB-DELIVERY-3: a crash after a move loses nothing",
        "P16": "README, Recommended For: safe concurrent access; BROKER_BUSY_TIMEOUT",
        "P17": "docs/specs/11-delivery.md, SB-DELIVERY-3: it is there after a crash, to be handled",
    }
    audit = AuditMapping(table="messages", id="ts", state=STATE, payload=
        "json_extract(NEW.body, '$.payload')")  # fmt: skip

    def connect(self, place: Path) -> Any:
        """Open the queue."""
        from simplebroker import Queue

        queue = Queue(WAITING, db_path=str(place / self.database), persistent=True)
        queue.exists()  # Makes the tables; else the first write would.
        return queue

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Write a message."""
        return int(queue.write(json.dumps({"kind": kind, "payload": payload})))

    def consume(self, queue: Any, stop: Stop) -> None:
        """Move, handle, and delete or move on."""
        from simplebroker import Queue

        name = os.environ.get("KILLPROOF_PROCESS", "").partition(".")[0]
        if not name[1:].isdecimal():  # One works at a time, and the next is that worker again.
            name = "w1"
        private = Queue(f"inflight-{name}", db_path=queue.db_target, persistent=True)
        while not stop():
            found = private.peek_one(with_timestamps=True) or queue.move_one(
                private, with_timestamps=True
            )
            if found is None:
                time.sleep(0.05)
                continue
            body, number = found
            try:
                self.handle(json.loads(body)["payload"], job=number)
            except Exception:
                private.move_one(DEAD, exact_timestamp=number)
            else:
                private.delete(message_id=number)

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every message."""
        state = STATE.replace("NEW.", "")
        for name, word, body in db.execute(f"SELECT ts, {state}, body FROM messages"):  # noqa: S608
            job = json.loads(body)
            yield JobRow(id=name, kind=job["kind"], state=word, payload=job["payload"])


target = SimpleBroker()
