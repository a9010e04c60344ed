"""Broken queue: due times are written in UTC and compared with the local time of the worker."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="due-in-local-time",
    wrong="a worker east of UTC runs delayed jobs hours before their time, one west of it hours "
    "after",
    promise="P10",
    kind="local time: two texts without an offset are compared, and one of them is of another zone",
    right="due_ms <= ?: a count of milliseconds since the epoch has no zone",
    engine="sim",
    options=("--scenario", "promote"),
    seen=("wildbit/mysql-queue#4",),
)


class DueInLocalTime(MinimalQueue):
    """Ask the clock on the wall, an hour east of Greenwich."""

    PROMOTE = """UPDATE job SET state = 'available'
                  WHERE state = 'scheduled'
                    AND strftime('%Y-%m-%d %H:%M:%f', due_ms / 1000.0, 'unixepoch')
                        <= strftime('%Y-%m-%d %H:%M:%f', ? / 1000.0, 'unixepoch', '+1 hour')"""


target: Final = MinimalTarget(FAULT.name, DueInLocalTime, FAULT)
