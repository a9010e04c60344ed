"""A control: killproof itself, through the adapter that judges everybody else.

It is no public queue, and stands here so that a fault of the adapter's own code shows: what it
promises through this adapter it must keep. Its worker keeps no history here, as nobody's does.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from killproof_chaos.targets.killproof_adapter import CONTRACT, KillproofTarget
from killproof_chaos.workload import KINDS
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.target import Definite, JobRow

PROMISED: Final = ("P1", "P2", "P3", "P4", "P7", "P8", "P10", "P12", "P13", "P14", "P16", "P17")


class KillproofControl(Adapter):
    """The adapter."""

    name = "killproof-adapter"
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
    cites = dict.fromkeys((*PROMISED, "P6"), "docs/semantics.md")
    audit = KillproofTarget.audit

    def connect(self, place: Path) -> Any:
        """Open the queue."""
        from killproof import Host, Queue
        from killproof_chaos.engines.disk_check import VouchingLocks

        # The images of the engine disk lie in memory, where killproof would rightly refuse.
        return Queue(place / self.database, durability="power", host=Host(lock=VouchingLocks()))

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Enqueue a job."""
        from killproof import KillproofError

        try:
            return int(queue.enqueue(kind, payload, lease=3.0, retry="fixed:0.05", **options))
        except KillproofError as error:
            raise (Definite(str(error)) if error.definite else error) from error

    def cancel(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Cancel a job."""
        return bool(queue.cancel(int(id)))

    def replay(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Replay a dead job."""
        from killproof import operations

        return bool(operations.replay(queue, [int(id)]).moved)

    def consume(self, queue: Any, stop: Stop) -> None:
        """Run its worker, which takes the signals over."""
        from killproof.handlers import Handlers
        from killproof.worker import Worker

        handlers = Handlers()
        for kind in KINDS:
            handlers(kind)(lambda context: self.handle(context.payload, job=context.job.id))
        stop.by_exception()  # Until then.
        Worker(queue, handlers).run()

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job."""
        return KillproofTarget().rows(db)


target = KillproofControl()
