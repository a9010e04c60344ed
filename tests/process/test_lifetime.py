"""A process ends with who started it, whenever that was."""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from killproof_evidence.lifetime import ORPHANED, end_all_with

PR_SET_CHILD_SUBREAPER = 36
DEADLINE_SECONDS = 60.0
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


@pytest.mark.parametrize("what", ["pytest", "lint-target"])
def test_what_judges_a_queue_ends_with_a_pytest_or_a_lint_that_is_killed(
    tmp_path: Path, what: str
) -> None:
    """Else a run that a CI job was killed in goes on beside the next one."""
    target = tmp_path / "slow.py"
    told = tmp_path / "pid"
    target.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(told)!r}).write_text(f'{{os.getpid()}}\\n')\n"
        "time.sleep(600)\n"
    )
    script = (
        "import os, pathlib\n"
        "from killproof_chaos import pytest_runs\n"
        "from killproof_chaos.lint import trial\n"
        f"target, folder = {str(target)!r}, pathlib.Path({str(tmp_path)!r})\n"
        f"if {what!r} == 'pytest':\n"
        "    argv = pytest_runs.command(target, 'proc', 5, 1, folder / 'store')\n"
        "    pytest_runs.perform(argv, folder / 'log', cwd=folder, environment=os.environ)\n"
        "else:\n"
        "    trial.perform(target, folder / 'store', 600)\n"
    )
    judge = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (told.exists() and told.read_text().endswith("\n")):
            assert time.monotonic() < deadline, "it never began"
            time.sleep(0.02)
        descriptor = os.pidfd_open(int(told.read_text()))
    finally:
        judge.kill()
        judge.wait()
    try:
        ended, _, _ = select.select([descriptor], [], [], DEADLINE_SECONDS)
    finally:
        os.close(descriptor)

    assert ended
