"""Broken queue: the heartbeat is accepted, and the deadline stays that of the claim."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="lease-never-renewed",
    wrong="a job that runs for longer than one lease is given to a second worker, for the reaper"
    " goes by the time since the claim",
    promise="P4",
    kind="rescue by age: a fixed limit for all jobs, and no heartbeat that counts",
    right="UPDATE job SET deadline_ns = ?: the reaper looks at what the heartbeat writes",
    engine="sim",
    options=("--scenario", "heartbeat", "--keep-going"),
    seen=("agronholm/apscheduler#864", "vectorize-io/hindsight#3779"),
    articles=("F23",),
    also=frozenset({"P3"}),
)


class LeaseNeverRenewed(MinimalQueue):
    """Take note that the worker lives, where no reaper looks."""

    EXTEND = """UPDATE job SET error = 'alive at ' || ?
                 WHERE id = ? AND fence = ? AND state = 'leased'"""


target: Final = MinimalTarget(FAULT.name, LeaseNeverRenewed, FAULT)
