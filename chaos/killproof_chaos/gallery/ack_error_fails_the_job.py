"""Broken queue: the ack stands in the handler's `try`, so its error is taken for the handler's."""

import sqlite3
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="ack-error-fails-the-job",
    wrong="the work is done, its ack meets an error, and the job is scheduled to be done again",
    promise="P6",
    kind="an ack that fails is taken for a job that failed: one error, two effects",
    right="the handler alone stands in the try; the ack is repeated until it is known or too late",
    engine="crash",
    options=("--operation", "ack", "--no-kills", "--fail-fast"),
    seen=("ImmediatePlatform/Immediate.Jobs#66",),
    articles=("F17",),
    also=frozenset({"P1", "P5", "P14"}),
)


class AckErrorFailsTheJob(MinimalQueue):
    """Catch whatever goes wrong between the claim and the end."""

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Mark the job succeeded, or else schedule its next attempt; raises LeaseLost."""
        try:
            super().ack(lease, *also)
        except sqlite3.Error as error:
            self.nack(lease, str(error))


target: Final = MinimalTarget(FAULT.name, AckErrorFailsTheJob, FAULT)
