"""A few guards of the core, taken away: the tests that claim to miss them do.

The whole table takes minutes: `make mutations`.
"""

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


def test_a_word_that_names_no_guard_is_no_success() -> None:
    done = mutations("no guard has this name")

    assert done.returncode == 64
    assert "no guard's name holds 'no guard has this name'" in done.stdout
