"""Broken queue: a heartbeat names the job but not the lease, and prolongs that of another."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="extend-without-fence",
    wrong="a worker that was stopped past its lease prolongs the lease of its successor, and is "
    "told that the job is still its own",
    promise="P5",
    kind="the unfenced heartbeat: split brain, where the loser of a lease goes on in good faith",
    right="WHERE id = ? AND fence = ? in the heartbeat too, and 0 rows ends the work",
    engine="sim",
    options=("--scenario", "stale-extend", "--keep-going"),
    seen=("brendanlong/lion-reader#917", "blehnen/DotNetWorkQueue#335"),
    also=frozenset({"P4"}),
)


class ExtendWithoutFence(MinimalQueue):
    """Prolong the lease of whoever holds the job now."""

    EXTEND = "UPDATE job SET deadline_ns = ? WHERE id = ? AND ? > 0 AND state = 'leased'"


target: Final = MinimalTarget(FAULT.name, ExtendWithoutFence, FAULT)
