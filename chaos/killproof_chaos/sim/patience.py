"""How long a queue may have nothing to do while jobs wait and no fault happens, by its contract.

Time is virtual and exact here, so a job that is not done by then is no matter of a slow machine: a
lease, a backoff or a snooze is longer than anybody has declared, a thousand times where somebody
took ms for s.
"""

from typing import Final

from killproof_chaos.sim.runtime import WALL_STEP_MS
from killproof_chaos.sim.scenario import Scenario
from killproof_evidence.checkers.retries import delay_ms_min
from killproof_evidence.contract import Contract

#: What nobody has to declare: polls, pauses and jitter, s.
UNDECLARED_SECONDS: Final = 10.0
#: The random part of the policy `article`, s.
JITTER_SECONDS: Final = 20.0
#: Where the contract names no policy, or an unknown one, s.
RETRY_SECONDS_DEFAULT: Final = 86_400.0


def patience_of(contract: Contract, scenario: Scenario, *, lease: float) -> float:
    """Return the seconds after the last fault, or the last job, in which a job must be found.

    Args:
        contract: of the target, in this scenario.
        scenario: for the delays of its jobs, and the clock that may have been stepped.
        lease: the length of one, s.
    """
    attempts = max(
        contract.parameters.get("max_attempts") or 1,
        *(job.max_attempts for job in scenario.jobs),
        1,
    )
    delay = max((job.delay_ms for job in scenario.jobs), default=0) / 1_000
    # A moment that was computed by a clock an hour ahead lies an hour later than was meant.
    stepped = scenario.faults.wall_steps * WALL_STEP_MS / 1_000
    retries = attempts * _longest_seconds(contract.parameters.get("retry"), attempts)
    return 2 * lease + retries + delay + stepped + scenario.patience + UNDECLARED_SECONDS


def _longest_seconds(policy: object, attempts: int) -> float:
    """Return the longest delay that a policy gives after any of so many failures."""
    name, _, number = str(policy).partition(":")
    try:
        if name == "exponential":  # Full jitter: from nothing to that of the doubling one.
            return delay_ms_min(f"doubling:{number}", attempts) / 1_000
        jitter = JITTER_SECONDS if name == "article" else 0.0
        return delay_ms_min(str(policy), attempts) / 1_000 + jitter
    except ValueError:
        return RETRY_SECONDS_DEFAULT
