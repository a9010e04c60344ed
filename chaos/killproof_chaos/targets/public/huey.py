"""huey: tasks in a table of SQLite, each deleted when a consumer takes it.

A task whose consumer is killed is lost, as its documents say; nothing here is judged on that. Tasks
are enqueued by calling the decorated function, and worked by its `Consumer` with one thread. It is
told to end gracefully at SIGTERM, as its documents advise for supervisors.
"""

import io
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import AT_MOST_ONCE, Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import JobRow


class Huey(Adapter):
    """The adapter."""

    name = "huey"
    peer = PythonPeer(name="huey", python="3.13", packages=pins.HUEY)
    contract = Contract(
        promises={"P1": "power", "P2": True, "P6": AT_MOST_ONCE, "P10": True, "P16": True},
        parameters={"options": ["priority", "delay"], "busy_ms": 5_000},
        edges={
            "start": ("available", "scheduled"),
            "scheduled": ("available",),
            "available": ("deleted",),
        },
    )  # fmt: skip
    cites = {
        "P1": "docs/api.rst, SqliteHuey: fsync makes writes durable; docs/deployment.rst, shutdown "
        "signals: a running task that is interrupted by SIGKILL or a power loss is lost",
        "P2": "docs/guide.rst: calling the function enqueues one call of it",
        "P6": "huey/storage.py, BaseStorage.dequeue: removes atomically; no retries by default",
        "P10": "docs/guide.rst, scheduling tasks: run at a given time or after a delay",
        "P16": "docs/api.rst, SqliteStorage: timeout, seconds to wait for the write lock",
    }

    def connect(self, place: Path) -> Any:
        """Return the decorated function."""
        from huey import SqliteHuey

        huey = SqliteHuey(filename=str(place / self.database), fsync=True)
        return huey.task()(handle)

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> str:
        """Call it, later if asked; the higher its number, the more urgent."""
        words = {"args": (kind, payload), "priority": 9 - options.get("priority", 5)}
        return str(queue.schedule(delay=options.get("delay", 0), **words).id)

    def consume(self, queue: Any, stop: Stop) -> None:
        """Run a consumer; it takes the signals over."""
        from huey.consumer import Consumer

        stop.by_exception()  # Until then.
        Consumer(queue.huey, periodic=False, max_delay=0.2, graceful_signal="TERM").run()

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every task that waits; of the others nothing is left."""
        for table, state in (("task", "available"), ("schedule", "scheduled")):
            for (data,) in db.execute(f"SELECT data FROM {table}"):  # noqa: S608 - the two above
                task_id, *_, (kind, payload) = _Plain(io.BytesIO(data)).load()[:7]
                yield JobRow(id=task_id, kind=kind, state=state, payload=payload)


def handle(_kind: str, payload: dict[str, Any]) -> None:
    """Be the task."""
    Adapter.handle(payload)


class _Fields(tuple[Any, ...]):
    """Whatever class an object is of, its fields."""

    def __new__(cls, *fields: Any) -> "_Fields":
        return super().__new__(cls, fields)


class _Plain(pickle.Unpickler):
    """Reads huey's message where huey is not."""

    def find_class(self, _module: str, _name: str) -> Any:
        return _Fields


target = Huey()
