"""ballast.py: lease_next_job and execute_job."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from ballast import Database, execute_job, install, lease_next_job, queue

from killproof_bench.peers.drivers.loop import Refused, Spec, count, pragmas, set_synchronous


class Configured(Database):  # type: ignore[misc]  # Its types are not installed here.
    """Its database, which opens a connection per transaction; each gets the wanted level."""

    spec: Spec

    def connect(self) -> sqlite3.Connection:
        """Connect as it does, and set the level on top."""
        connection: sqlite3.Connection = super().connect()
        set_synchronous(connection, self.spec)
        return connection


class Driver:
    """One database."""

    def __init__(self, spec: Spec) -> None:
        self._file = f"{spec.folder}/app.db"
        self._database = Configured(self._file)
        self._database.spec = spec
        self._handlers = {"bench": lambda connection, payload: None}
        if spec.mode == "seed":
            install(self._database)

    def seed(self, payloads: Sequence[dict[str, Any]]) -> None:
        """Enqueue them in one transaction."""
        with self._database.transaction() as connection:
            for payload in payloads:
                queue.enqueue(connection, "bench", payload)

    def facts(self) -> dict[str, str]:
        """Read back from a connection made as each call makes its own."""
        with self._database.connection() as connection:
            return pragmas(connection)

    def claim(self) -> tuple[int, Any] | None:
        """Lease one."""
        job = lease_next_job(self._database)
        return None if job is None else (job.payload["n"], job)

    def ack(self, token: Any) -> None:
        """Execute it: the handler and the done mark are one transaction."""
        if not execute_job(self._database, token, self._handlers):
            raise Refused(token.id)

    def account(self) -> dict[str, int]:
        """Count by status."""
        return {
            "waiting": count(self._file, "ballast_jobs", "status = 'queued'"),
            "claimed": count(self._file, "ballast_jobs", "status = 'running'"),
        }

    def close(self) -> None:
        """Close nothing: each call closes its own."""


def open_queue(spec: Spec) -> Driver:
    """Open it."""
    return Driver(spec)
