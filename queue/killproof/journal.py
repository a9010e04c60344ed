"""What a worker says about its jobs: lines that whoever greps for an id, a kind or a key finds.

A log handler is the application's code: whatever it raises, the jobs go on.
"""

import logging

from killproof.core.model import Failure, Lease
from killproof.outcomes import Outcome


class Journal:
    """Writes lines to a logger, and never raises."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def end(self, lease: Lease, outcome: Outcome, seconds: float) -> None:
        """Say how a handler ended."""
        if outcome.error is None:
            self.job(logging.INFO, lease, f"succeeded in {seconds:.3f} s")
            return
        failure = Failure.of(outcome.error)
        text = f"{outcome.word} after {seconds:.3f} s: {failure.error_class}: {failure.message}"
        whole = failure.traceback if outcome.word == "nack" else None
        self.job(logging.WARNING, lease, text, whole)

    def job(self, level: int, lease: Lease, text: str, whole: str | None = None) -> None:
        """Write a line about a job.

        The whole error goes along as the record's `traceback`, for formatters that show it.
        """
        job = lease.job
        values = {"job_id": job.id, "kind": job.kind, "attempt": job.attempt, "key": job.key}
        line = "job_id=%d kind=%s attempt=%d key=%s: %s"
        extra = values if whole is None else values | {"traceback": whole}
        self.say(level, line, *values.values(), text, extra=extra)

    def say(
        self, level: int, line: str, *values: object, extra: dict[str, object] | None = None
    ) -> None:
        """Write a line, its values put in as `logging` does."""
        try:
            self._logger.log(level, line, *values, extra=extra)
        except Exception:  # See the module.
            return
