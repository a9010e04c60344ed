"""A few guards of the core, taken away: the tests that claim to miss them do.

The whole table takes minutes: `make mutations`.
"""

import runpy
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "mutations.py"


def mutations(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_guard_that_is_taken_away_is_missed_by_its_test() -> None:
    done = mutations("--quick")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 guards are missed" in done.stdout


def test_the_text_of_every_guard_is_still_in_the_core() -> None:
    """The whole table is run by hand, so it would fall behind the code without a sign."""
    table = runpy.run_path(str(SCRIPT))
    core = table["ROOT"] / table["CORE"]
    found = {m.name: (core / m.file).read_text("utf-8").count(m.guard) for m in table["MUTATIONS"]}

    assert found
    assert {name: times for name, times in found.items() if times != 1} == {}


def test_a_word_that_names_no_guard_is_no_success() -> None:
    done = mutations("no guard has this name")

    assert done.returncode == 64
    assert "no guard's name holds 'no guard has this name'" in done.stdout
