"""The scenarios that come with the harness: each is one race that a queue can lose.

One module for the calls of a queue, and one for each capability that has races of its own. A new
module names its scenarios in a tuple `SCENARIOS`, and is named here; docs/schedules.md tells the
rest.
"""

from typing import Final

from killproof_chaos.sim.scenario import Scenario
from killproof_chaos.sim.scenarios import core, dispatcher, limits, schedule, workflow
from killproof_chaos.sim.scenarios.core import CLAIM, COMPLETING, STALE_ACK, UNIQUE_KEY

__all__ = ["CLAIM", "COMPLETING", "SCENARIOS", "STALE_ACK", "UNIQUE_KEY"]

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for module in (core, limits, workflow, schedule, dispatcher)
    for scenario in module.SCENARIOS
}
