"""Broken queue: a job that has used up its attempts is deleted, and nobody hears of it again."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue, change, now_ms

FAULT: Final = Fault(
    name="deletes-dead-jobs",
    wrong="the last failure deletes the row: an accepted job is gone, with its payload and error",
    promise="P1",
    kind="no dead letter: what fails for good is dropped",
    right="SET state = 'dead', error = ?: the row stays until a person has seen it",
    engine="crash",
    options=("--operation", "dead_letter", "--no-errors", "--fail-fast"),
    seen=("rails-lambda/lambdakiq#30",),
    also=frozenset({"P7"}),
)


class DeletesDeadJobs(MinimalQueue):
    """Keep the table tidy."""

    TIDY = "DELETE FROM job WHERE id = ? AND state = 'dead'"

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Schedule the next attempt, or forget the job; raises LeaseLost."""
        with self.writing("nack") as db:
            due_ms = now_ms() + self.BACKOFF_MS * 2 ** (lease.attempt - 1)
            change(db, self.NACK, lease, permanent, due_ms, error)
            db.execute(self.TIDY, (lease.id,))


target: Final = MinimalTarget(FAULT.name, DeletesDeadJobs, FAULT)
