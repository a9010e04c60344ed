"""Broken queue: a failure that no retry can change is retried like any other."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="permanent-error-retried",
    wrong="a handler says that its job can never succeed, is told ok, and gets the job again",
    promise="P8",
    kind="a permanent error taken for a transient one: all attempts are spent on a typing error",
    right="iif(permanent OR attempts >= max_attempts, 'dead', 'scheduled')",
    engine="proc",
    options=("--seconds", "2", "--nemesis", "handler"),
    seconds=10,
    seen=("milvus-io/milvus#53712", "gabrielkoerich/orch#2941"),
    articles=("F3",),
)


class PermanentErrorRetried(MinimalQueue):
    """Hope against better knowledge."""

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Schedule the next attempt, whatever the handler says; raises LeaseLost."""
        super().nack(lease, error)


target: Final = MinimalTarget(FAULT.name, PermanentErrorRetried, FAULT)
