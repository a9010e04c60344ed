"""Broken queue: due times are texts in two spellings, and what is due today waits for midnight."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="due-as-text",
    wrong="an ISO time with a T is later than every time of its day that is written with a space",
    promise="P17",
    kind="times compared as text: the order of the alphabet is that of time for one spelling only",
    right="due_ms INTEGER in a STRICT table: a number has one spelling",
    engine="sim",
    options=("--scenario", "promote", "--keep-going"),
    seen=("stablyai/orca#8452", "getsentry/taskbroker#106"),
    articles=("F48",),
)


class DueAsText(MinimalQueue):
    """Compare a T with a space."""

    PROMOTE = """UPDATE job SET state = 'available'
                  WHERE state = 'scheduled'
                    AND strftime('%Y-%m-%dT%H:%M:%fZ', due_ms / 1000.0, 'unixepoch')
                        <= strftime('%Y-%m-%d %H:%M:%f', ? / 1000.0, 'unixepoch')"""


target: Final = MinimalTarget(FAULT.name, DueAsText, FAULT)
