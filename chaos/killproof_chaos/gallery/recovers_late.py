"""Broken queue: a lease that ran out is left alone for seconds more, to be on the safe side."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="recovers-late",
    wrong="each doubt was answered by a longer wait, and the bound that is promised has been "
    "forgotten: a killed worker's job comes back when the dashboard is red already",
    promise="P18",
    kind="slow failure detection: timeouts that add up beyond the declared recovery time",
    right="WHERE state = 'leased' AND deadline_ns <= ?: the lease is all the patience there is",
    engine="proc",
    options=(
        "--seconds",
        "4",
        "--nemesis",
        "kill",
        "--kills",
        "3",
        "--workers",
        "8",
        "--producers",
        "1",
    ),
    seconds=10,
)


class RecoversLate(MinimalQueue):
    """Add one and a half seconds to half a second."""

    REAP = MinimalQueue.REAP.replace("deadline_ns <= ?", "deadline_ns + 1500000000 <= ?")


target: Final = MinimalTarget(
    FAULT.name, RecoversLate, FAULT, parameters={"recovery_ms": 1_500, "drain_ms": 10_000}
)
