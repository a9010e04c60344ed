"""Broken queue: a job whose worker fell silent comes back, however often that happened."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="reaper-forgets-the-bound",
    wrong="the reaper does not compare attempts with their maximum, so a job that kills its "
    "worker never dies",
    promise="P8",
    kind="the poison job: the bound is checked where a failure is told, and a crash tells nothing",
    right="SET state = iif(attempts < max_attempts, 'available', 'dead') in the reaper as well",
    engine="sim",
    options=("--scenario", "last-attempt", "--keep-going"),
    seen=("oban-bg/oban#137", "vectorize-io/hindsight#2675"),
    articles=("F20",),
)


class ReaperForgetsTheBound(MinimalQueue):
    """Give every lost job another chance."""

    REAP = """UPDATE job SET state = 'available', deadline_ns = NULL, error = 'the lease ran out'
               WHERE state = 'leased' AND deadline_ns <= ?"""


target: Final = MinimalTarget(FAULT.name, ReaperForgetsTheBound, FAULT)
