"""Broken queue: a worker that was told to stop goes on for seconds, and takes further jobs."""

import signal
import threading
from typing import Final

from killproof_chaos.engines.roles import Stop, stop_on_sigterm
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget, MinimalWorker
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="stops-late",
    wrong="SIGTERM starts a timer, and nobody looks before it rings: whoever sent the signal loses "
    "patience first, and sends the other one",
    promise="P21",
    kind="a stop beyond the declared grace: the supervisor's SIGKILL is the real shutdown",
    right="signal.signal(SIGTERM, ...) sets what the loop looks at before each claim",
    engine="proc",
    options=("--seconds", "1", "--nemesis", "none", "--workers", "2"),
    seconds=10,
)


class StopsLate(MinimalWorker):
    """Have three seconds of something better to do."""

    def stop(self) -> Stop:
        """Return an event that is set long after the signal."""
        stopped = stop_on_sigterm()
        timer = threading.Timer(3.0, stopped.set)
        signal.signal(signal.SIGTERM, lambda _signal, _frame: timer.start())
        return stopped


target: Final = MinimalTarget(
    FAULT.name, MinimalQueue, FAULT, worker=StopsLate, parameters={"grace_ms": 1_000}
)
