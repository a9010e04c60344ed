"""tinyjobs: its SQLite backend, called as its own worker calls it."""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import Any

from tinyjobs import TinyJobs

from killproof_bench.peers.drivers.loop import Refused, Spec, count, pragmas, set_synchronous

LEASE_SECONDS = 60.0


class Driver:
    """One app on one file; its calls are coroutines, so it brings a loop of its own."""

    def __init__(self, spec: Spec) -> None:
        self._database = f"{spec.folder}/jobs.db"
        self._worker = f"worker-{spec.worker}"
        self._loop = asyncio.new_event_loop()
        self._app = TinyJobs(f"sqlite:///{self._database}")
        self._app.task(name="bench")(_bench)
        self._run(self._app.ready())
        # It sets NORMAL and has no option; its one connection is made by setup and kept.
        (self._connection,) = self._app.backend._connections._all
        set_synchronous(self._connection, spec)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Send one after the other: it has no public call for many."""
        for payload in payloads:
            self._run(self._app.asend("bench", (payload,)))

    def facts(self) -> dict[str, str]:
        """Read back."""
        return pragmas(self._connection)

    def claim(self) -> tuple[int, Any] | None:
        """Claim one."""
        jobs = self._run(
            self._app.backend.claim(
                worker_id=self._worker, queues=("default",), limit=1, lease_seconds=LEASE_SECONDS
            )
        )
        return (_number(jobs[0]), jobs[0]) if jobs else None

    def ack(self, token: Any) -> None:
        """Complete it."""
        if not self._run(self._app.backend.complete(token, None)):
            raise Refused(token.id)

    def account(self) -> dict[str, int]:
        """Count by status."""
        return {
            "waiting": count(self._database, "jobs", "status = 'queued'"),
            "claimed": count(self._database, "jobs", "status = 'running'"),
        }

    def close(self) -> None:
        """Close."""
        self._run(self._app.aclose())
        self._loop.close()

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(call)


def _bench(payload: dict[str, Any]) -> None:
    """Do nothing."""


def _number(job: Any) -> int:
    return int(json.loads(job.payload)["args"][0]["n"])


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
