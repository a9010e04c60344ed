"""Broken queue: a handler's exception is logged, and the job counts as done."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="swallows-exceptions",
    wrong="a failed attempt ends its job as succeeded: the error is in a log, if anywhere",
    promise="P3",
    kind="the swallowed exception: except Exception: log(error), and then the ack",
    right="what the handler raises goes to the nack, which schedules a retry or buries the job",
    engine="sim",
    options=("--scenario", "nack"),
    seen=("schmittjoh/JMSJobQueueBundle#26",),
    also=frozenset({"P5"}),
)


class SwallowsExceptions(MinimalQueue):
    """Let nothing stop the worker, not even a failure."""

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Be done with it; raises LeaseLost."""
        self.ack(lease)


target: Final = MinimalTarget(FAULT.name, SwallowsExceptions, FAULT)
