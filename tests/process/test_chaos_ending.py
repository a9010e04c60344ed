"""A command of the harness that is ended from outside gives everything back and tells the truth."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from killproof_chaos import memory

SECONDS_MAX = 120.0
UNKNOWN = 2


def folders_of(pid: int) -> list[Path]:
    return list(memory.MEMORY.glob(f"{memory.PREFIX}*-{pid}-*"))


def is_in_use(pid: int) -> bool:
    """Whether the folder is made and taken over: in between, a signal would leave it behind."""
    return any(list(folder.iterdir()) for folder in folders_of(pid))


@pytest.mark.skipif(not memory.MEMORY.is_dir(), reason="there is no file system in memory")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_cancelled_says_so_and_leaves_nothing_in_memory(
    place: Path, number: signal.Signals
) -> None:
    """CI cancels a job by SIGTERM; a person by Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "killproof", "chaos", "crash", "--store", "run", "--json"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"},
    )
    try:
        end = time.monotonic() + SECONDS_MAX
        while not is_in_use(process.pid) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        assert is_in_use(process.pid)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()

    assert process.returncode == UNKNOWN, stderr
    if stdout:  # Else nothing had been judged yet.
        assert any("interrupted" in why for why in json.loads(stdout)["unknown_because"])
    else:
        assert "interrupted before anything was judged" in stderr
    assert "Traceback" not in stderr
    # What a child that was just being born has made again, the next run of anybody's removes.
    with memory.lent("test"):
        assert not folders_of(process.pid)
