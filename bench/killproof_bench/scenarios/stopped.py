"""What a worker that is stopped while it holds the turnstile costs the others.

Question: the turnstile makes writers queue; does a holder that a debugger, a frozen container or a
CPU quota stops take everybody with it? Primary figure: the throughput that the others lose after
the first quarter of a second, which the turnstile grants a holder. Valid comparison: the same
processes with the same worker stopped a moment later, when it has left the turnstile and holds
nothing; the windows take turns.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap  # type: ignore[attr-defined]  # It ships no types.

from killproof_bench.crew import Crew, CrewError, specs
from killproof_bench.measure import BLOCKS_MIN, RESAMPLES, Samples
from killproof_bench.recording import Call
from killproof_bench.result import Figure, StoppedResult
from killproof_bench.scenarios.claim import (
    BACKLOG_PER_SECOND,
    Durability,
    make_template,
    verdict,
)

WORKERS = 8
WINDOW_SECONDS = 1.5
#: What the turnstile grants a holder before the others go on without it.
SETTLE_SECONDS = 0.25
#: Between two windows, with all workers running: what the last one left behind passes.
RECOVER_SECONDS = 0.5
PAIRS = 6
WARMUP_SECONDS = 1.0
#: Eight workers pass the turnstile in milliseconds; one that has not in this time never will.
STOP_SECONDS = 10.0

#: The signals that `arms.Stoppable` answers to.
HOLDING, FREE = signal.SIGUSR1, signal.SIGUSR2


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time in which the throughput of the others counts."""

    kind: int  #: HOLDING, FREE, or 0 while all are running.
    from_ns: int
    until_ns: int


def run(
    folder: Path,
    *,
    durability: Durability = "power",
    workers: int = WORKERS,
    pairs: int = PAIRS,
    window_seconds: float = WINDOW_SECONDS,
    seed: int = 1,
    tick: Callable[[], None],
) -> StoppedResult:
    """Run the workers once, stopping the last one again and again.

    Raises:
        CrewError: A process failed, or the chosen worker never held the turnstile.
    """
    cycle = SETTLE_SECONDS + window_seconds + RECOVER_SECONDS
    seconds = WARMUP_SECONDS + 2 * pairs * (cycle + RECOVER_SECONDS) + STOP_SECONDS
    backlog = round(BACKLOG_PER_SECOND * seconds)
    template = make_template(folder, durability, backlog)
    place = folder / "stopped"
    place.mkdir()
    shutil.move(template, place / "queue.db")
    synchronous = "FULL" if durability == "power" else "NORMAL"
    told = specs(
        place, "killproof", workers, backlog=backlog, synchronous=synchronous, stoppable=True
    )
    with Crew(told, hash_seed=seed) as crew:
        crew.wait_until_ready()
        start_ns = crew.go(seconds)
        crew.wait_for(start_ns + round(WARMUP_SECONDS * 1e9), tick)
        windows = list(_windows(crew, pairs, window_seconds, tick))
        crew.stop()
        outcome = crew.finish()
    correctness = verdict(place / "queue.db", backlog, outcome)
    shutil.rmtree(place)
    others = outcome.calls[:-1]
    undisturbed, holding, running = (
        tuple(_rate(others, window) for window in windows if window.kind == kind)
        for kind in (FREE, HOLDING, 0)
    )
    return StoppedResult(
        workers=workers,
        durability=durability,
        window_seconds=window_seconds,
        settle_seconds=SETTLE_SECONDS,
        running=running,
        undisturbed=undisturbed,
        holding=holding,
        loss=loss(undisturbed, holding, seed=seed),
        wal_bytes_max=outcome.watch.wal_bytes_max,
        correctness=correctness,
    )


def loss(undisturbed: Sequence[float], holding: Sequence[float], *, seed: int) -> Figure:
    """Return the share of the throughput that is lost, with a bootstrap over pairs of windows."""
    free, held = np.array(undisturbed), np.array(holding)
    if not len(free) or not free.sum():
        return Figure(value=None, low=None, high=None, n=len(free))
    low: float | None = None
    high: float | None = None
    if len(free) >= BLOCKS_MIN:
        interval = bootstrap(
            (free, held),
            lambda a, b, axis: 1 - b.sum(axis=axis) / a.sum(axis=axis),
            paired=True,
            n_resamples=RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(seed),
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    return Figure(value=float(1 - held.sum() / free.sum()), low=low, high=high, n=len(free))


def _windows(
    crew: Crew, pairs: int, window_seconds: float, tick: Callable[[], None]
) -> list[Window]:
    """Stop the last worker, holding and free by turns as in ABBA, and note the windows."""
    victim = crew.workers[-1].pid
    window_ns, settle_ns = round(window_seconds * 1e9), round(SETTLE_SECONDS * 1e9)
    windows = []
    for number in range(pairs):
        running_ns = time.perf_counter_ns()
        crew.wait_for(running_ns + round(RECOVER_SECONDS * 1e9), tick)
        windows.append(Window(kind=0, from_ns=running_ns, until_ns=time.perf_counter_ns()))
        for kind in (HOLDING, FREE) if number % 2 else (FREE, HOLDING):
            os.kill(victim, kind)
            from_ns = _wait_until_stopped(victim) + settle_ns
            crew.wait_for(from_ns + window_ns, tick)
            windows.append(Window(kind=kind, from_ns=from_ns, until_ns=from_ns + window_ns))
            os.kill(victim, signal.SIGCONT)
            crew.wait_for(time.perf_counter_ns() + round(RECOVER_SECONDS * 1e9), tick)
    return windows


def _wait_until_stopped(pid: int) -> int:
    """Return when the process was seen stopped, perf_counter_ns."""
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            if file.read().rpartition(")")[2].split()[0] == "T":
                return time.perf_counter_ns()
        time.sleep(0.001)
    raise CrewError(f"worker {pid} did not pass the turnstile within {STOP_SECONDS:g} s")


def _rate(calls: Sequence[Samples], window: Window) -> float:
    """Return how many calls per second ended in the window."""
    ended = sum(
        int(
            np.count_nonzero(
                (call[:, Call.END] >= window.from_ns) & (call[:, Call.END] < window.until_ns)
            )
        )
        for call in calls
    )
    return ended / ((window.until_ns - window.from_ns) / 1e9)
