"""gigq: its worker's process_one, which claims, runs and completes one job."""

from collections.abc import Sequence
from typing import Any

from gigq import Job, JobQueue, Worker
from gigq.db_utils import close_connections, get_connection

from killproof_bench.peers.drivers.loop import Spec, count, pragmas, set_synchronous

#: What the function below was given last: process_one says only that it did something.
_done: list[int] = []


def work(n: int, padding: str) -> None:
    """Be the job."""
    _done.append(n)


class Driver:
    """One queue and one worker on one file."""

    def __init__(self, spec: Spec) -> None:
        self._database = f"{spec.folder}/jobs.db"
        self._queue: Any = JobQueue(self._database)
        self._worker: Any = Worker(self._database, worker_id=f"worker-{spec.worker}")
        # One connection per thread and file, which the worker shares.
        self._connection = get_connection(self._database)
        set_synchronous(self._connection, spec)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Submit one after the other."""
        for payload in payloads:
            self._queue.submit(Job(name="bench", function=work, params=payload))

    def facts(self) -> dict[str, str]:
        """Read back."""
        return pragmas(self._connection)

    def claim(self) -> tuple[int, Any] | None:
        """Process one."""
        if not self._worker.process_one() or not _done:
            return None
        return _done.pop(), None

    def ack(self, token: Any) -> None:
        """Do nothing: process_one has completed it."""

    def account(self) -> dict[str, int]:
        """Count by status."""
        return {
            "waiting": count(self._database, "jobs", "status = 'pending'"),
            "claimed": count(self._database, "jobs", "status = 'running'"),
        }

    def close(self) -> None:
        """Close."""
        close_connections()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
