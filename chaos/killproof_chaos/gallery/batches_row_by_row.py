"""Broken killproof: a batch is put in with a commit for each job; a crash leaves a part of it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from killproof_chaos.engines.crash_killproof import DEFAULTS, KillproofSession
from killproof_chaos.engines.crash_session import together
from killproof_chaos.gallery import Fault
from killproof_chaos.recording import Recorder
from killproof_chaos.targets.killproof_adapter import KillproofTarget
from killproof_chaos.workload import Job

if TYPE_CHECKING:
    from killproof_chaos.engines.crash_session import Session

FAULT: Final = Fault(
    name="batches-row-by-row",
    wrong="a batch is a loop over single enqueues: who dies in it leaves the first few of its jobs",
    promise="P14",
    kind="the batch that is none: several commits behind a call that looks like one",
    right="enqueue_many: all rows in one transaction, with one sync",
    engine="crash",
    options=("--operation", "enqueue_many", "--no-errors", "--fail-fast"),
    control="killproof",
)


class RowByRow(KillproofSession):
    """Killproof, and a loop around it."""

    @property
    def more(self) -> Mapping[str, Callable[[Any], object]]:
        """Return the calls, with another way to put in several jobs."""
        return {**super().more, "enqueue_many": self._one_by_one}

    def _one_by_one(self, jobs: tuple[Job, ...]) -> None:
        with together("enqueue", [{"value": job.summary() | DEFAULTS} for job in jobs]) as told:
            told += [{"job": self.queue.enqueue(job.kind, job.payload())} for job in jobs]


class BatchesRowByRow(KillproofTarget):
    """Killproof, whose batches are loops."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def steps(self, place: Path, recorder: Recorder) -> "Session":
        """Open the queue for a caller who loops."""
        return RowByRow(place / self.database, recorder)


target: Final = BatchesRowByRow()
