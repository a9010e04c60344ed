"""Broken queue: SIGTERM ends the worker at once, in order, and with a job in its hands."""

import os
import signal
from types import FrameType
from typing import Final

from killproof_chaos.engines.roles import Stop, stop_on_sigterm
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget, MinimalWorker
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="drops-jobs-at-stop",
    wrong="the signal ends the process where it is: each deploy leaves its jobs leased to nobody, "
    "and costs each of them an attempt",
    promise="P21",
    kind="no graceful drain: SystemExit passes every 'except Exception' on its way out",
    right="take no further job, finish or give back the one in hand, then end",
    engine="proc",
    options=("--seconds", "3", "--nemesis", "term,handler", "--workers", "2", "--mix", "plain"),
    seconds=10,
    seen=("rq/rq#507", "janbjorge/pgqueuer#630"),
    articles=("F27",),
    unreached=frozenset({"worker.stop"}),
)


class DropsJobsAtStop(MinimalWorker):
    """End as if nobody waited for anything."""

    def stop(self) -> Stop:
        """Return an event that nobody will see set: the process has ended by then."""
        stopped = stop_on_sigterm()
        signal.signal(signal.SIGTERM, self.leave)
        return stopped

    def leave(self, _signal: int, _frame: FrameType | None) -> None:
        """Write that the process ends, and end it."""
        self._recorder.close()
        os._exit(0)


target: Final = MinimalTarget(FAULT.name, MinimalQueue, FAULT, worker=DropsJobsAtStop)
