"""spoolctl: the two calls with which its worker claims a command and records its success.

Its documented interface is a command line that runs programs; to start a program for each job
would measure that, so the worker's own calls around it are driven.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

from spoolctl import store

from killproof_bench.peers.drivers.loop import Refused, Spec, count, pragmas, set_synchronous


class Driver:
    """One connection of its store."""

    def __init__(self, spec: Spec) -> None:
        self._database = f"{spec.folder}/queue.db"
        self._worker = f"worker-{spec.worker}"
        self._outputs = store.output_root(self._database)
        self._connection: Any = store.connect(self._database)
        set_synchronous(self._connection, spec)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Add one after the other; the payload is an argument of the command."""
        for payload in payloads:
            argv = ["true", str(payload["n"]), payload["padding"]]
            store.add_job(self._connection, argv, 60, 3, time.time())

    def facts(self) -> dict[str, str]:
        """Read back."""
        return pragmas(self._connection)

    def claim(self) -> tuple[int, Any] | None:
        """Claim one."""
        claimed = store.claim_next(
            self._connection, self._worker, os.getpid(), time.time(), self._outputs
        )
        if claimed is None:
            return None
        job, attempt = claimed
        return int(job.argv[1]), (job.id, attempt.id)

    def ack(self, token: Any) -> None:
        """Record its success."""
        job, attempt = token
        state = store.record_success(
            self._connection, job, attempt, self._worker, os.getpid(), time.time()
        )
        if state is None:
            raise Refused(job)

    def account(self) -> dict[str, int]:
        """Count by state."""
        return {
            "waiting": count(self._database, "jobs", "state = 'queued'"),
            "claimed": count(self._database, "jobs", "state = 'running'"),
        }

    def close(self) -> None:
        """Close."""
        self._connection.close()


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
