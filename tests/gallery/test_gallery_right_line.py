"""Queues that look first and act later: with the line that they lack the same code is healthy.

The control shows that their commands accuse nobody; this shows that it is the fault that they find,
and not what a broken queue brings along to have one.
"""

from pathlib import Path

import pytest

from killproof_chaos import gallery, targets
from killproof_chaos.sim.explore import Budget, explore
from killproof_chaos.sim.scenarios import SCENARIOS
from killproof_chaos.sim.schedulers import Dfs

#: The broken pieces of each file, and what mends them.
MENDED = {
    "rescues-by-id": (
        ("WHERE id = ?", "WHERE id = ? AND state = 'leased' AND deadline_ns <= ?"),
        ("self.RESCUE, found", "self.RESCUE, (*found, time.monotonic_ns())"),
    ),
    "resets-all-at-start": (
        ("WHERE state = 'leased'\"", "WHERE state = 'leased' AND deadline_ns <= ?\""),
        ("execute(self.RESET)", "execute(self.RESET, (time.monotonic_ns(),))"),
        ("from typing import Final", "import time\nfrom typing import Final"),
    ),
    "reuses-ids": (('SCHEMA.replace("AUTOINCREMENT", "")', "SCHEMA"),),
    "limit-per-process": (("DROP TRIGGER IF EXISTS limit_lease_begins", "SELECT 1"),),
}


@pytest.mark.parametrize("name", MENDED)
def test_with_the_line_that_it_lacks_a_queue_breaks_nothing_in_the_same_race(
    place: Path, name: str
) -> None:
    fault = gallery.fault(name)
    text = Path(gallery.__file__).with_name(f"{name.replace('-', '_')}.py").read_text("utf-8")
    for broken, mended in MENDED[name]:
        assert text.count(broken) == 1
        text = text.replace(broken, mended)
    (place / "mended.py").write_text(text, "utf-8")
    target = targets.load(str(place / "mended.py"))

    scenario = SCENARIOS[fault.options[fault.options.index("--scenario") + 1]]
    found = explore(target, scenario, Dfs(1), budget=Budget(seconds=None))

    assert found.broken == set()
    assert fault.promise in found.passed
