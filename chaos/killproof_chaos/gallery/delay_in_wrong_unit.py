"""Broken queue: a delay comes in milliseconds, and is taken for microseconds."""

from typing import Any, Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="delay-in-wrong-unit",
    wrong="a delay of one second is one of a millisecond",
    promise="P10",
    kind="a duration in the wrong unit: one side says milliseconds, the other divides by a "
    "thousand",
    right="one unit in the whole program, and its name in every variable",
    engine="sim",
    options=("--scenario", "promote"),
    seen=("cashapp/misk#1972",),
)


class DelayInWrongUnit(MinimalQueue):
    """Divide once too often."""

    def enqueue(self, *values: Any, **options: Any) -> int:
        """Store a job; its delay comes in milliseconds, and is taken for microseconds."""
        options["delay_ms"] = -(-options.get("delay_ms", 0) // 1_000)
        return super().enqueue(*values, **options)


target: Final = MinimalTarget(FAULT.name, DelayInWrongUnit, FAULT)
