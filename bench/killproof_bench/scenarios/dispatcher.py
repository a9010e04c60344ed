"""What one dispatcher process holds: many waiting jobs, little memory, and a loop that moves.

Two questions.  How long do 300 jobs that wait a second each take in 300 slots of one process, and
how much memory?  And how late is the event loop while 200 jobs run and other processes write to the
same file without a pause?  Every file is new, on the disk that was named, at level `power`; the
process that is measured is started for it.  Lag is how much later than asked a sleep of 5 ms ends.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from killproof import Queue
from killproof_bench.crew import CrewError

SLOTS_WAITING: Final = 300
SLOTS_BUSY: Final = 200
WRITERS: Final = 2
SECONDS_GOAL: Final = 2.5
RSS_GOAL_BYTES: Final = 150 << 20
LAG_GOAL_MS: Final = 20.0
#: Of each waiting job.
WAIT_SECONDS: Final = 1.0
#: Jobs that lie ready when the busy part begins, so that its slots are full from the start.
READY_JOBS: Final = 1_000
#: The writers begin and end a little outside of what is measured.
MARGIN_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What one dispatcher process was like."""

    slots: int
    seconds: float  #: measured; of the waiting part, until the last outcome was in the file
    succeeded: int
    rss_bytes: int  #: at most
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    looks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherResult:
    """Both parts, and the conditions."""

    waiting: Loop
    busy: Loop
    writers: int
    enqueued: int  #: by the writers, during the busy part
    durability: str  #: as read back
    load_before: float  #: of the machine
    is_right: bool  #: every waiting job succeeded, at its first attempt


def run(folder: Path, *, seconds: float, writers: int = WRITERS) -> DispatcherResult:
    """Measure both parts, one after the other.

    Raises:
        CrewError: a process failed; its own words are on standard error.
    """
    load = os.getloadavg()[0]
    for name in ("waiting", "busy"):
        (folder / name).mkdir()
    (waiting,) = _play(
        [["waiting", str(folder / "waiting"), str(SLOTS_WAITING), str(WAIT_SECONDS)]]
    )
    with Queue(folder / "waiting" / "queue.db") as queue:
        once = queue.database.peek(
            "SELECT count(*) FROM job WHERE state = 'succeeded' AND deliveries = 1"
        )
        durability = queue.durability
    with Queue(folder / "busy" / "queue.db") as queue:
        queue.enqueue_many([("request", number) for number in range(READY_JOBS)])
    place = str(folder / "busy")
    busy, *written = _play(
        [
            ["busy", place, str(SLOTS_BUSY), str(seconds)],
            *[["writing", place, "0", str(seconds + MARGIN_SECONDS)]] * writers,
        ]
    )
    return DispatcherResult(
        waiting=_loop(SLOTS_WAITING, waiting),
        busy=_loop(SLOTS_BUSY, busy),
        writers=writers,
        enqueued=round(sum(one["enqueued"] for one in written)),
        durability=durability,
        load_before=load,
        is_right=once == [(SLOTS_WAITING,)],
    )


def _loop(slots: int, found: dict[str, float]) -> Loop:
    return Loop(
        slots=slots,
        seconds=found["seconds"],
        succeeded=round(found["succeeded"]),
        rss_bytes=round(found["rss_bytes"]),
        lag_p50_ms=found["lag_p50_ms"],
        lag_p99_ms=found["lag_p99_ms"],
        lag_max_ms=found["lag_max_ms"],
        looks=round(found["looks"]),
    )


def _play(roles: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    """Start one process for each role; return what each printed."""
    command = [sys.executable, "-m", "killproof_bench.scenarios.dispatching"]
    processes = [
        subprocess.Popen([*command, *role], stdout=subprocess.PIPE, text=True) for role in roles
    ]
    printed = [process.communicate()[0] for process in processes]
    for role, process in zip(roles, processes, strict=True):
        if process.returncode:
            raise CrewError(f"{role[0]} ended with status {process.returncode}")
    return [json.loads(text) for text in printed]


def sentence(result: DispatcherResult) -> str:
    """Say what was measured, with its conditions."""
    waiting, busy = result.waiting, result.busy
    rss = waiting.rss_bytes / 2**20
    return (
        f"{waiting.slots} jobs that wait {WAIT_SECONDS:g} s each, {waiting.slots} slots, one "
        f"process: {waiting.seconds:.2f} s to the last outcome (goal under {SECONDS_GOAL:g}), "
        f"{rss:.0f} MiB (goal under {RSS_GOAL_BYTES >> 20}), {_lag(waiting)}.\n"
        f"{busy.slots} slots full for {busy.seconds:.1f} s while {result.writers} processes write "
        f"without a pause: {_lag(busy)} (goal p99 under {LAG_GOAL_MS:g}); "
        f"{busy.succeeded / busy.seconds:,.0f} jobs/s done, "
        f"{result.enqueued / busy.seconds:,.0f} enqueues/s beside them.\n"
        f"Durability {result.durability}; load of the machine before: {result.load_before:.1f} on "
        f"{os.cpu_count()} cores; every waiting job succeeded at its first attempt: "
        f"{'yes' if result.is_right else 'NO, the figures are void'}."
    )


def _lag(loop: Loop) -> str:
    return (
        f"loop lag p50 {loop.lag_p50_ms:.1f} ms, p99 {loop.lag_p99_ms:.1f} ms, "
        f"max {loop.lag_max_ms:.0f} ms (n={loop.looks:,})"
    )
