"""Broken queue: an enqueue that met an error is done again, although it may have been done."""

import sqlite3
from typing import Any, Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="retries-enqueue-blindly",
    wrong="an error after the commit, of the checkpoint that follows it, leads to a second commit",
    promise="P2",
    kind="the blind retry: 'perhaps' is taken for 'no', and the job exists twice",
    right="an error once COMMIT was sent goes to the caller, who may retry under the same key",
    engine="crash",
    options=("--operation", "enqueue_without_key", "--no-kills", "--fail-fast"),
    seen=("NousResearch/hermes-agent#90734",),
)


class RetriesEnqueueBlindly(MinimalQueue):
    """Keep the log short, and try again whatever failed."""

    def enqueue(self, *values: Any, **options: Any) -> int:
        """Store a job, checkpoint, and return its id."""
        try:
            job = super().enqueue(*values, **options)
            self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error:
            job = super().enqueue(*values, **options)
        return job


target: Final = MinimalTarget(FAULT.name, RetriesEnqueueBlindly, FAULT)
