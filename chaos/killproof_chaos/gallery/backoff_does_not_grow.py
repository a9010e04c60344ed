"""Broken queue: each retry waits as long as the first one."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, MinimalQueue

FAULT: Final = Fault(
    name="backoff-does-not-grow",
    wrong="the exponent of the backoff is reset with every attempt, so the delays do not double",
    promise="P9",
    kind="a backoff that forgets: its counter lives in the process, or is set back by the retry "
    "itself",
    right="delay = BACKOFF_MS * 2 ** (attempt - 1), and attempt comes from the row",
    engine="proc",
    options=("--seconds", "2", "--nemesis", "handler"),
    seconds=10,
)


class BackoffDoesNotGrow(MinimalQueue):
    """Take every failure for the first."""

    BACKOFF_MS = 200  # The second delay is to be so much longer that a busy machine cannot hide it.

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Schedule the next attempt as after the first failure."""
        super().nack(lease._replace(attempt=1), error, permanent)


target: Final = MinimalTarget(
    FAULT.name, BackoffDoesNotGrow, FAULT, parameters={"retry": "doubling:0.2"}
)
