"""A control: the healthy queue of the gallery, through the adapter that judges everybody else.

As `killproof-adapter`: what it promises here it must keep, or the adapter's own code is wrong.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from killproof_chaos.targets.minimal_adapter import CONTRACT, MinimalTarget
from killproof_chaos.targets.minimal_queue import LeaseLost, MinimalQueue
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.effect import ScriptedPermanent
from killproof_evidence.target import JobRow

PROMISED: Final = ("P1", "P2", "P3", "P4", "P7", "P8", "P10", "P12", "P14", "P16", "P17")


class Patient(MinimalQueue):
    """The same with a lease that needs no heartbeat."""

    LEASE_NS = 3_000_000_000


class MinimalControl(Adapter):
    """The adapter."""

    name = "minimal-adapter"
    contract = replace(
        CONTRACT,
        promises={name: CONTRACT.promises[name] for name in PROMISED} | {"P6": True},
        parameters={
            "max_attempts": 5,
            "lease_ms": 3_000,
            "busy_ms": 30_000,
            "drain_ms": 15_000,
        },
    )
    cites = dict.fromkeys((*PROMISED, "P6"), "chaos/killproof_chaos/targets/minimal_queue.py")
    audit = MinimalTarget.audit

    def connect(self, place: Path) -> Any:
        """Open the queue."""
        return Patient(place / self.database)

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Enqueue a job."""
        delay_ms = round(options.pop("delay", 0) * 1_000)
        return int(queue.enqueue(kind, payload, delay_ms=delay_ms, **options))

    def consume(self, queue: Any, stop: Stop) -> None:
        """Claim, handle, ack or nack."""
        while not stop():
            lease = queue.claim()
            if lease is None:
                time.sleep(0.05)
                continue
            with suppress(LeaseLost):
                try:
                    self.handle(lease.payload, job=lease.id)
                except Exception as error:
                    queue.nack(lease, repr(error), isinstance(error, ScriptedPermanent))
                else:
                    queue.ack(lease)

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job."""
        return MinimalTarget("minimal", MinimalQueue).rows(db)


target = MinimalControl()
