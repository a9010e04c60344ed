"""spoolctl: shell commands in a table, each run in a process of its own by `spoolctl work`.

A job whose worker is dead is taken back when its heartbeat is old and its process is gone. The
times of both are those that the project publishes for tests, so that a run need not wait for 30 s.
A command lives on when its worker is killed, so it announces no place in which to be killed.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from killproof_evidence import pins
from killproof_evidence.adapter import Adapter, Stop
from killproof_evidence.contract import Contract
from killproof_evidence.isolated import PythonPeer
from killproof_evidence.target import AuditMapping, Definite, JobRow

STATES: Final = {
    "queued": "available",
    "running": "leased",
    "done": "succeeded",
    "failed": "dead",
    "dead": "dead",
    "canceled": "cancelled",
}
#: The handler: the payload is an argument, which linux bounds (execve(2), MAX_ARG_STRLEN).
COMMAND: Final = (
    "import json,sys;from killproof_evidence import effect;"
    "effect.run(json.loads(sys.argv[1]),worker=effect.holder())"
)
#: Beyond that a run would wait for the delays, which double from 2 s.
MAX_ATTEMPTS: Final = 3
ARGUMENT_BYTES_MAX: Final = 120_000
os.environ |= {"SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "0.5", "SPOOLCTL_TEST_REAP_THRESHOLD": "3"}


class Spoolctl(Adapter):
    """The adapter."""

    name = "spoolctl"
    peer = PythonPeer(name="spoolctl", python="3.13", packages=pins.SPOOLCTL)
    cites = {
        "P1": "docs/guarantees.md, 'Crash recovery' and 'At-least-once execution'",
        "P3": "docs/guarantees.md, 'At-least-once execution': until it succeeds",
        "P4": "README.md, 'Design Philosophy' 3; docs/guarantees.md, 'Atomic claiming'",
        "P6": "README.md, 'Limitations': again only if a worker dies before it has recorded",
        "P7": "docs/reference/states.md",
        "P8": "docs/guarantees.md, 'Retry and backoff': two budgets, for failures and for crashes",
        "P9": "docs/guarantees.md, 'Retry and backoff'",
        "P10": "README.md, 'Scheduling-lite and lanes': --after",
        "P12": "docs/guarantees.md, 'At-least-once execution': --key prevents a second submission",
        "P13": "README.md, 'Retries, backoff, dead-letter': a durable state to inspect and requeue",
        "P15": "docs/verbs.md, cancel",
        "P16": "docs/guarantees.md, 'Atomic claiming': waits 5 s for the write lock",
        "P17": "docs/guarantees.md, 'At-least-once execution'",
    }
    contract = Contract(
        promises=dict.fromkeys(cites, True) | {"P1": "process", "P2": True, "P14": True},
        parameters={"options": ["priority", "delay", "key"], "max_attempts": MAX_ATTEMPTS,
                    "busy_ms": 5_000, "retry": "doubling:2", "crash_first": "policy",
                    "drain_ms": 30_000},
        edges={
            "start": ("available",),
            "available": ("leased", "cancelled"),
            "leased": ("succeeded", "dead", "available", "cancelled"),
            "dead": ("available",),
        },
    )  # fmt: skip
    audit = AuditMapping(
        table="jobs", id="id", state="state", states=STATES,
        priority="-NEW.priority", due_ms="CAST(NEW.next_run_at * 1000 AS INTEGER)",
        key="idempotency_key", payload="json_extract(NEW.argv_json, '$[3]')",
    )  # fmt: skip
    sync_points = frozenset()

    def connect(self, place: Path) -> Any:
        """Open the file."""
        from spoolctl import store

        return store.connect(str(place / self.database))

    def enqueue(self, queue: Any, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Add a command, as `spoolctl add` does."""
        from spoolctl import store

        argument, now = json.dumps(payload), time.time()
        if len(argument) > ARGUMENT_BYTES_MAX:
            raise Definite(f"{len(argument)} bytes are too long for an argument")
        job, _state, same, differences = store.add_job_checked(
            queue,
            [sys.executable, "-c", COMMAND, argument],
            60,
            MAX_ATTEMPTS - 1,
            now,
            idempotency_key=options.get("key"),
            priority=9 - options.get("priority", 5),
            next_run_at=now + options.get("delay", 0),
        )
        if differences.get("execution_differences") and not same:
            raise Definite(f"another command has this key: {differences}")
        return int(job)

    def cancel(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Cancel a job that waits."""
        from spoolctl import store

        return bool(store.cancel_job(queue, id, False, time.time())[0] == "ok")

    def replay(self, queue: Any, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Requeue a dead job."""
        from spoolctl import store

        return bool(store.retry_job(queue, id, False, time.time())[0] == "ok")

    def consume(self, queue: Any, stop: Stop) -> None:
        """Be `spoolctl work`, which ends itself at SIGTERM."""
        from spoolctl import worker

        file = queue.execute("PRAGMA database_list").fetchone()[2]
        worker.work_loop(file, worker.default_worker_id(), 0.1)

    def rows(self, db: Any) -> Iterable[JobRow]:
        """Read every job; those starts that ended with their worker have a budget of their own."""
        for name, state, argv, error, crashes, starts in db.execute(
            "SELECT id, state, argv_json, last_error, crashes,"
            " (SELECT count(*) FROM attempts WHERE job_id = jobs.id) FROM jobs"
        ):
            payload = json.loads(json.loads(argv)[3])
            yield JobRow(
                id=name, kind="", state=STATES[state], attempts=starts, payload=payload,
                error=error, forgiven=crashes,
            )  # fmt: skip


target = Spoolctl()
