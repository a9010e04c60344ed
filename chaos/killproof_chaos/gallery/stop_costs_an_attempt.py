"""Broken killproof: a job that is given back at a stop has used up one of its attempts."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import KillproofTarget
from killproof_chaos.targets.killproof_recorded import RecordedQueue

FAULT: Final = Fault(
    name="stop-costs-an-attempt",
    wrong="a deploy counts as a failure of every job that it interrupts: five deploys in a busy "
    "hour, and the long jobs are dead",
    promise="P21",
    kind="a shutdown that is charged to the job: attempts that say nothing about the work",
    right="forgiven = forgiven + 1 in the release: what was given back was no attempt",
    engine="proc",
    options=("--seconds", "3", "--nemesis", "term,handler", "--workers", "2", "--mix", "plain"),
    seconds=10,
    seen=("python-arq/arq#267",),
    control="killproof",
    articles=("F27",),
)


class Unforgiving(RecordedQueue):
    """A worker's queue that gives a job back, and keeps the attempt."""

    END = RecordedQueue.END.replace("'released', ", "")  # type: ignore[misc]


class StopCostsAnAttempt(KillproofTarget):
    """Killproof with one word less in one statement."""

    name = FAULT.name
    broken = True
    fault = FAULT
    recorded = Unforgiving


target: Final = StopCostsAnAttempt()
