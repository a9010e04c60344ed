"""Broken queue: whatever fails in an enqueue, its caller is told that nothing was enqueued."""

import sqlite3
from typing import Any, Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue
from killproof_evidence.target import Definite

FAULT: Final = Fault(
    name="commit-error-refused",
    wrong="an error after the commit, of the checkpoint that follows it, is told as a refusal",
    promise="P2",
    kind="the retried enqueue: an exception is taken for 'not done', and the job exists twice",
    right="an error once COMMIT was sent is neither yes nor no, and says so",
    engine="crash",
    options=("--operation", "enqueue", "--no-kills", "--fail-fast"),
    seen=("ohdearquant/khive#2256",),
)


class CommitErrorRefused(MinimalQueue):
    """Keep the log short, and take every error for a no."""

    def enqueue(self, *values: Any, **options: Any) -> int:
        """Store a job, checkpoint, and return its id."""
        try:
            job = super().enqueue(*values, **options)
            self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            raise Definite(f"not enqueued: {error}") from error
        return job


target: Final = MinimalTarget(FAULT.name, CommitErrorRefused, FAULT)
