"""Broken queue: after any failure nothing is given out for a while, whoever it was that failed."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import MinimalQueue

FAULT: Final = Fault(
    name="one-failure-stops-all",
    wrong="each failure opens one breaker for the whole queue, so a job that always fails keeps "
    "all others waiting, again and again",
    promise="P19",
    kind="head-of-line blocking by a poison job: no bulkhead between what fails and what does not",
    right="a failure puts off the job that failed: its due_ms, and nobody else's",
    engine="sim",
    options=("--scenario", "poison"),
    seen=("in2code-de/luxletter#177", "aschroder/Magento-SMTP-Pro-Email-Extension#139"),
    articles=("F29",),
)


class OneFailureStopsAll(MinimalQueue):
    """Let the whole queue rest for two seconds after a retry was put off."""

    CLAIM = MinimalQueue.CLAIM.replace(
        "WHERE state = 'available'",
        """WHERE state = 'available'
              AND NOT EXISTS (SELECT 1 FROM job
                               WHERE error IS NOT NULL AND state IN ('scheduled', 'available')
                                 AND due_ms / 1000 + 2 > strftime('%s', 'now') + 0)""",
    )


target: Final = MinimalTarget(FAULT.name, OneFailureStopsAll, FAULT, promises={"P19": True})
