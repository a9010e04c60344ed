"""Broken queue: an ack names the job but not the lease; a worker that lost it wins all the same."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="ack-without-fence",
    wrong="the ack checks the job's id alone, so a worker that was stopped past its lease wins",
    promise="P5",
    kind="the zombie writer: a lease without a fencing token at the point of the write",
    right="WHERE id = ? AND fence = ? AND state = 'leased', and 0 rows is an error",
    engine="sim",
    options=("--scenario", "stale-ack"),
    seen=("aegra/aegra#547", "oxpull/django-ox#16"),
    articles=("F21",),
    also=frozenset({"P6"}),
)


class AckWithoutFence(MinimalQueue):
    """Accept an outcome from whoever claims to have one."""

    ACK = """UPDATE job SET state = 'succeeded', deadline_ns = NULL
              WHERE id = ? AND ? > 0 AND state IN ('leased', 'available', 'succeeded')"""


target: Final = MinimalTarget(FAULT.name, AckWithoutFence, FAULT)
