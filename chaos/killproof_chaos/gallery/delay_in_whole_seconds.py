"""Broken queue: the time at which a delayed job is due loses its milliseconds."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="delay-in-whole-seconds",
    wrong="a job that was asked for in one second runs up to a second too early",
    promise="P10",
    kind="truncation: a clock in whole seconds under delays that are not",
    right="integer milliseconds from end to end: never early, whatever is rounded",
    engine="sim",
    options=("--scenario", "promote"),
    articles=("F47",),
)


class DelayInWholeSeconds(MinimalQueue):
    """Keep the time at which a job is due in seconds."""

    INSERT = """INSERT INTO job (kind, payload, state, priority, due_ms, key, max_attempts)
                VALUES (?, ?, ?, ?, ? / 1000 * 1000, ?, ?) RETURNING id"""


target: Final = MinimalTarget(FAULT.name, DelayInWholeSeconds, FAULT)
