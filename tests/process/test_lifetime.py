"""A process ends with who started it, whenever that was."""

import ctypes
import os
import signal
import subprocess
import sys

import pytest

from killproof_evidence.lifetime import ORPHANED, end_all_with

PR_SET_CHILD_SUBREAPER = 36
libc = ctypes.CDLL(None)

SCRIPT = """
import os, sys
from killproof_evidence.lifetime import die_with_parent
die_with_parent(int(sys.argv[1]))
print("lives", flush=True)
sys.stdin.read()
"""


def test_a_process_whose_parent_died_before_it_asked_ends_at_once() -> None:
    """The kernel tells of no death that has been: nobody would ever end it."""
    strangers = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(os.getppid())], input="", capture_output=True, text=True
    )
    own = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(os.getpid())], input="", capture_output=True, text=True
    )

    assert (strangers.returncode, strangers.stdout) == (ORPHANED, "")
    assert (own.returncode, own.stdout) == (0, "lives\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_by_the_signal_that_it_has_chosen_when_its_parent_is_killed(
    number: signal.Signals,
) -> None:
    child = (
        "import os, signal, time\n"
        "from killproof_evidence.lifetime import die_with_parent\n"
        "parent, (read, write) = os.getpid(), os.pipe()\n"
        "if not (pid := os.fork()):\n"
        f"    die_with_parent(parent, {int(number)})\n"
        "    os.write(write, b'.')\n"
        "    time.sleep(600)\n"
        "os.read(read, 1)\n"
        "print(pid, flush=True)\n"
        "os.kill(parent, signal.SIGKILL)\n"
    )
    # This process adopts the orphan, and so is told how it ended.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
        _, status = os.waitpid(int(done.stdout), 0)
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)

    assert done.returncode == -signal.SIGKILL
    assert os.WTERMSIG(status) == number


def test_a_daemon_that_a_worker_has_left_is_found_by_its_environment_and_ended() -> None:
    """It has a session of its own, and its parent is gone: no group and no parent leads to it."""
    mark = f"run-{os.getpid()}"
    script = "setsid sleep 600 > /dev/null & echo $!"
    environment = os.environ | {"KILLPROOF_EFFECTS": mark}
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        done = subprocess.run(["sh", "-c", script], env=environment, stdout=-1, text=True)
        assert end_all_with("KILLPROOF_EFFECTS", mark) == 1
        _, status = os.waitpid(int(done.stdout), 0)
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
