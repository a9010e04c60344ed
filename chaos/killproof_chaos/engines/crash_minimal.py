"""`minimal`, and every queue of its make, one step at a time."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from killproof_chaos.engines.crash_session import BRIEF_NS, RECORD_EFFECT, run_handler
from killproof_chaos.recording import Recorder
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue
from killproof_chaos.workload import Job
from killproof_evidence.target import Indefinite

OPERATIONS: Final = frozenset(
    {
        *("open_and_migrate", "open", "reopen", "enqueue", "claim", "extend", "ack", "nack"),
        *("completing", "reap", "promote", "close", "late_ack", "dead_letter"),
        "enqueue_without_key",
    }
)


class MinimalSession:
    """A queue of `minimal`'s make; its errors are SQLite's, which its adapter calls indefinite."""

    reaps = False
    more: Mapping[str, Callable[[Any], object]] = MappingProxyType({})

    def __init__(self, queue: type[MinimalQueue], path: Path, recorder: Recorder) -> None:
        """Open the queue at `path`."""
        with _translated():
            self.queue = queue(path)
        self.ids: dict[str, Any] = {}
        self._recorder = recorder

    def brief(self) -> None:
        """Make the leases short: nothing else tells of a death."""
        self.queue.LEASE_NS = BRIEF_NS

    def enqueue(self, job: Job) -> None:
        """Put a job in."""

        def put() -> int:
            with _translated():
                return self.queue.enqueue(
                    job.kind, job.payload(), job.priority, job.delay_ms, job.key, job.max_attempts
                )

        self.ids[job.id] = self._recorder.call(
            "enqueue", put, value=job.summary(), told=lambda found: {"job": found}
        )

    def claim(self) -> Any:
        """Take the first job."""

        def told(lease: Lease | None) -> dict[str, Any]:
            if lease is None:
                return {}
            value = {"id": lease.payload["id"], "attempt": lease.attempt}
            return {"job": lease.id, "fence": lease.fence, "value": value}

        return self._recorder.call("claim", lambda: self._do("claim"), told=told)

    def extend(self, lease: Any) -> None:
        """Prolong the lease."""
        self._settle("extend", lease, lease)

    def ack(self, lease: Any) -> None:
        """Finish the job."""
        self._settle("ack", lease, lease)

    def nack(self, lease: Any, error: str, *, permanent: bool = False) -> None:
        """Record a failed attempt."""
        value = {"permanent": True} if permanent else None
        self._settle("nack", lease, lease, error, permanent, value=value)

    def completing(self, lease: Any) -> None:
        """Write the effect's row with the ack."""
        values = (lease.payload["id"], lease.attempt, lease.fence)
        self._settle("ack", lease, lease, (RECORD_EFFECT, values))

    def play(self, lease: Any) -> Exception | None:
        """Run the handler."""
        return run_handler(lease.payload, lease.id, lease.attempt, lease.fence)

    def sink(self, lease: Any) -> str:
        """Return where the effect goes."""
        return str(lease.payload.get("sink", "log"))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read."""
        with _translated():
            return self.queue.db.execute(sql).fetchall()

    def close(self) -> None:
        """Close the connection."""
        self.queue.db.close()

    def reap(self) -> int:
        """Claim: a claim takes back what ran out, there is no other way."""
        return int(self.claim() is not None)

    def tidy(self) -> None:
        """Do nothing: this queue waits for nobody."""

    def extras(self) -> int:
        """Count nothing: this queue has jobs alone."""
        return 0

    def _settle(self, f: str, lease: Any, *values: Any, value: object = None) -> None:
        self._recorder.call(
            f,
            lambda: self._do(f, *values),
            job=lease.id,
            fence=lease.fence,
            told=lambda _: {"value": value},
        )

    def _do(self, name: str, *values: Any) -> Any:
        with _translated():
            return getattr(self.queue, name)(*values)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what the adapter of `minimal` makes of its errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise Indefinite(f"{type(error).__name__}: {error}") from error
