"""Broken killproof: the caller's row and the job that belongs to it are committed apart."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from killproof_chaos.engines.crash_killproof import KillproofSession
from killproof_chaos.gallery import Fault
from killproof_chaos.recording import Recorder
from killproof_chaos.targets.killproof_adapter import KillproofTarget
from killproof_chaos.workload import Job

if TYPE_CHECKING:
    from killproof_chaos.engines.crash_session import Session

FAULT: Final = Fault(
    name="outbox-in-two-transactions",
    wrong="the row is committed, then the job is put in: who dies in between has a row without one",
    promise="P14",
    kind="the dual write at the producer: an outbox that is not in the transaction of its cause",
    right="queue.enqueue(..., tx=tx): the caller's row and the job in one transaction",
    engine="crash",
    options=("--operation", "enqueue_with_note", "--no-errors", "--fail-fast"),
    seen=("akash-network/console#1845", "mohamedboukari/bunmail#184"),
    control="killproof",
)


class Apart(KillproofSession):
    """Killproof, and a caller who writes twice."""

    @property
    def more(self) -> Mapping[str, Callable[[Any], object]]:
        """Return the calls, with another way to write a row and put in its job."""
        return {**super().more, "enqueue_with_note": self._in_two_transactions}

    def _in_two_transactions(self, job: Job) -> None:
        with self.queue.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS chaos_note (job TEXT) STRICT")
            tx.execute("INSERT INTO chaos_note VALUES (:job)", {"job": job.id})
        self.enqueue(job)


class OutboxInTwoTransactions(KillproofTarget):
    """Killproof, whose caller does without its transaction."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def steps(self, place: Path, recorder: Recorder) -> "Session":
        """Open the queue for a caller who writes twice."""
        return Apart(place / self.database, recorder)


target: Final = OutboxInTwoTransactions()
