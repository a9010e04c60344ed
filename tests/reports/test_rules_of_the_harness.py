"""Rules for a chaos harness that no other test shows: what others got wrong there."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from killproof import Queue
from killproof.core.liveness import Liveness

SECONDS_MAX = 120.0

# C8: a killed process that nobody has reaped still has its process id.

HOLDER = """
import sys
from killproof import Queue
queue = Queue(sys.argv[1])
queue.claim()
print("holds", flush=True)
sys.stdin.readline()
"""


def check_a_zombie_is_dead(place: Path, monkeypatch: pytest.MonkeyPatch, *, by_pid: bool) -> None:
    with Queue(place / "q.db", durability="process") as queue:
        queue.enqueue("kind", 1, lease=3_600)
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, queue.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"holds\n"
            holder.kill()
            stat = Path(f"/proc/{holder.pid}/stat")
            end = time.monotonic() + SECONDS_MAX
            while stat.read_text().rpartition(")")[2].split()[0] != "Z":
                assert time.monotonic() < end
                time.sleep(0.001)
            os.kill(holder.pid, 0)  # To a check of the process id it lives.
            if by_pid:
                monkeypatch.setattr(Liveness, "is_free", lambda *_: os.kill(holder.pid, 0))
            assert queue.reap() == 1, "it is taken for alive"


def test_the_job_of_a_process_that_nobody_has_reaped_is_taken_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule C8."""
    check_a_zombie_is_dead(place, monkeypatch, by_pid=False)


def test_a_look_at_the_process_id_is_seen_to_take_a_zombie_for_alive(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule C8, control."""
    with pytest.raises(AssertionError, match="taken for alive"):
        check_a_zombie_is_dead(place, monkeypatch, by_pid=True)
