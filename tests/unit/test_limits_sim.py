"""Limits under schedules: every race with crashes keeps them, and what a trigger forgets is found.

The races are in `killproof_chaos.sim.scenarios.limits`; that each is searched to its end in the
order of its actors, and breaks where nobody has set a limit, is in `test_sim_scenarios.py`.
"""

import pytest

from killproof import limits
from killproof_chaos.sim import Budget, Dfs, Walk, explore
from killproof_chaos.sim.scenarios import SCENARIOS
from killproof_chaos.targets import load

UNBOUNDED = Budget(seconds=None)


@pytest.mark.parametrize("name", ["mutex-lost", "breaker"])
def test_a_crash_at_any_statement_leaves_no_limit_over_full_and_none_shut_for_ever(
    name: str,
) -> None:
    """Covers S1.5, S1.11. F13."""
    found = explore(load("killproof"), SCENARIOS[name], Walk(seed=5, runs=120), budget=UNBOUNDED)

    assert found.broken == set()
    assert {"P17", "P22"} <= found.passed


@pytest.mark.parametrize(
    ("text", "instead", "race", "promise"),
    [
        ("SET running = running + 1", "SET running = running", "mutex", "P22"),
        ("SET running = max(running - 1, 0)", "SET running = running", "mutex", "P17"),
        ("WHERE over_ns > 0", "WHERE over_ns > 99000000000", "rate", "P22"),
        ("SELECT RAISE(IGNORE)", "SELECT 1", "rate-stepped", "P22"),
        ("SET state = 'half-open'", "SET state = 'open'", "breaker", "P22"),
        ("probe_id = NULL, probe_fence = NULL", "probe_id = 0, state = state", "breaker", "P17"),
    ],
)
def test_what_a_trigger_forgets_is_found_by_some_schedule(
    text: str, instead: str, race: str, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = limits.script()
    assert text in script
    monkeypatch.setattr(limits, "script", lambda: script.replace(text, instead))

    found = explore(load("killproof"), SCENARIOS[race], Dfs(1), budget=UNBOUNDED)
    assert promise in found.broken
