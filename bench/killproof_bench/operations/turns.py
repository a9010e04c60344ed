"""Arms that take turns: the order, the process that runs them, and the figures of its repeats.

A repeat is a fresh process with its own hash seed and fresh files: the variance of Python programs
lies between processes.  Inside it the arms run in short slices, forwards and then backwards
(A B B A, or A B C C B A), so that whatever drifts falls on all of them alike.  The ratio is taken
within each repeat; the figure is the median of the repeats.

The children import this module too: the standard library only, numpy never.
"""

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from killproof_bench.result import Figure

#: A child that says nothing for so long has failed: its work takes a second or two.
CHILD_SECONDS = 120.0


class ChildError(RuntimeError):
    """A process that does the work failed, or said nothing: the tool failed, exit 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """What one repeat of one arm took."""

    operations: int
    ns: int

    @property
    def per_s(self) -> float:
        """Operations per second."""
        return self.operations * 1e9 / self.ns


def mirrored(arms: Sequence[str], slices: int, seed: int) -> list[str]:
    """Return the order of so many slices of each arm, an even number: there and back again.

    >>> mirrored(["a", "b"], 2, seed=1)
    ['a', 'b', 'b', 'a']
    """
    assert slices % 2 == 0, "a way there without the way back is no mirror"
    coin = random.Random(seed)
    order: list[str] = []
    for _ in range(slices // 2):
        there = list(arms) if coin.random() < 0.5 else list(reversed(arms))
        order += there + there[::-1]
    return order


def copy_durably(source: Path, target: Path) -> None:
    """Copy a file and have it on the disk: else the first syncs of the clock would pay for it."""
    shutil.copyfile(source, target)
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def restarts(database: str) -> int:
    """Return how often the write-ahead log began anew; each follows a complete checkpoint.

    The header of the log counts (https://sqlite.org/fileformat2.html#the_write_ahead_log); the log
    carries no POSIX locks, so that a process with a connection may open it.
    """
    with Path(f"{database}-wal").open("rb") as log:
        return int.from_bytes(log.read(16)[12:], "big")


def run_child(module: str, spec: dict[str, Any], *, hash_seed: int) -> dict[str, Any]:
    """Run `python -m MODULE SPEC` in a session of its own; return the JSON line it prints.

    Raises:
        ChildError: it failed, or took longer than `CHILD_SECONDS`.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(spec)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        start_new_session=True,
    )
    try:
        line, complaint = process.communicate(timeout=CHILD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"{module} took longer than {CHILD_SECONDS:g} s") from error
    finally:
        # Also when Ctrl-C came meanwhile: it reaches this process alone.
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
    if process.returncode:
        said = complaint.strip().rpartition("\n")[2]  # Of a trace the error itself.
        raise ChildError(f"{module} ended with status {process.returncode}: {said or 'no word'}")
    told: dict[str, Any] = json.loads(line)
    return told


def median_figure(values: Sequence[float], n: int) -> Figure:
    """Return the median of the repeats, with their range as its interval.

    The range of k independent repeats holds the true median with probability 1 - 2 ** (1 - k)
    (the sign test): 0.97 for six, whatever their distribution.
    """
    return Figure(value=statistics.median(values), low=min(values), high=max(values), n=n)


def coverage(repeats: int) -> float:
    """Return the probability that the range of the repeats holds the median.

    >>> round(coverage(6), 3)
    0.969
    """
    return float(1 - 2.0 ** (1 - repeats))
