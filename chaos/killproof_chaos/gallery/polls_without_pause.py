"""Broken queue: a worker that finds nothing to do asks again at once."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget, MinimalWorker
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="polls-without-pause",
    wrong="an idle worker takes the one write lock of the file, finds nothing, and takes it again: "
    "the fewer jobs there are, the longer everybody else waits",
    promise="P20",
    kind="a busy loop: empty polls as fast as the machine lets them, each a write transaction",
    right="stopped.wait(seconds) between two looks, longer and at random for many workers",
    engine="proc",
    options=("--seconds", "4", "--nemesis", "none", "--workers", "2"),
    seconds=10,
    seen=("activepieces/activepieces#14300", "Webador/SlmQueue#35"),
    articles=("F15",),
)


class PollsWithoutPause(MinimalWorker):
    """Never sleep."""

    idle_seconds = 0.0


#: The control looks 25 times a second, as its pause has it: whatever machine it runs on, no more.
target: Final = MinimalTarget(
    FAULT.name,
    MinimalQueue,
    FAULT,
    worker=PollsWithoutPause,
    parameters={"polls_per_second": 40},
)
