"""Where a job's time goes: `python -m killproof_bench.operations.spending_loop SPEC`.

Killproof and the bare loop run in turns, with meters, on files of their own.  What is left of a job
when all that the meters saw and what they cost themselves is taken off, is Python.  A third file is
for a run of killproof under Python's profiler, which names the functions.
"""

import cProfile
import gc
import json
import pstats
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from killproof import Host, Queue
from killproof_bench.operations.bare_arms import CLAIM_ACK, Arm, Bare, Killproof, extend_log
from killproof_bench.operations.meters import (
    PARTS,
    PYTHON,
    SYNC,
    SYNC_CHECKS,
    WHOLE,
    Meter,
    MeteredConnections,
    MeteredLocks,
    SyncMeter,
    own_ns,
)
from killproof_bench.operations.turns import mirrored

#: What the claim and the ack of a job execute, in both arms.
STATEMENTS: Final = (
    Queue.TIME_HAS_COME,
    Queue.FIRST_OF_ALL,
    Queue.CLAIM,
    Queue.END,
    Queue.RECORD,
)
KILLPROOF: Final = "killproof"
BARE: Final = "bare"
PROFILED: Final = "profiled"
#: Functions that the profile names.
FUNCTIONS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What the process is told."""

    operation: str
    files: dict[str, str]  #: By side, and `PROFILED`: a database each.
    own_sync: bool  #: Whether the bare loop syncs the log after each commit.
    slices: int  #: Of each, an even number; one more before them warms up.
    jobs: int  #: In a slice.
    seed: int


def main(argument: str) -> dict[str, Any]:
    """Run; return the parts of each side, and the functions of killproof."""
    spec = Spec(**json.loads(argument))
    meters = {side: Meter(STATEMENTS) for side in (KILLPROOF, BARE)}
    locks = MeteredLocks(meters[KILLPROOF])
    arms: dict[str, Arm] = {
        KILLPROOF: Killproof(
            spec.files[KILLPROOF], Host(connect=meters[KILLPROOF].connect, lock=locks)
        ),
        BARE: Bare(
            spec.files[BARE],
            "NORMAL",
            own_sync=spec.own_sync,
            connections=MeteredConnections(meters[BARE]),
        ),
    }
    syncs = SyncMeter()
    for name, arm in arms.items():
        extend_log(spec.files[name])
        _slice(arm, spec)
    for meter in meters.values():
        meter.clear()
    spent = dict.fromkeys(arms, 0)
    gc.collect()
    gc.freeze()
    gc.disable()
    for side in mirrored(list(arms), spec.slices, spec.seed):
        syncs.meter = meters[side]
        spent[side] += _slice(arms[side], spec)
    syncs.meter = None
    jobs, look_ns = spec.slices * spec.jobs, own_ns()
    told = {
        side: parts(meter, spent[side] - meter.looks * look_ns, jobs)
        for side, meter in meters.items()
    }
    for arm in arms.values():
        arm.close()
    return {"jobs": jobs, "parts": told, "functions": _functions(spec)}


def parts(meter: Meter, whole_ns: float, jobs: int) -> list[tuple[str, float, float]]:
    """Return part, calls and microseconds of a job; the whole first, what no meter saw last."""
    ns = dict(meter.ns)
    if SYNC_CHECKS in ns:
        ns[SYNC_CHECKS] -= ns.get(SYNC, 0)  # One meter is inside the other.
    seen = [part for part in PARTS if part in ns]
    found = [(part, meter.calls[part] / jobs, ns[part] / jobs / 1e3) for part in seen]
    rest_ns = whole_ns - sum(ns[part] for part in seen)
    return [(WHOLE, 1.0, whole_ns / jobs / 1e3), *found, (PYTHON, 0.0, rest_ns / jobs / 1e3)]


def _slice(arm: Arm, spec: Spec) -> int:
    work = arm.claim_ack if spec.operation == CLAIM_ACK else arm.ack_and_claim
    begin = time.perf_counter_ns()
    work(spec.jobs)
    return time.perf_counter_ns() - begin


def _functions(spec: Spec) -> list[tuple[str, float, float]]:
    """Return function, calls and own microseconds of a job, the most expensive first."""
    arm = Killproof(spec.files[PROFILED])
    _slice(arm, spec)
    profile = cProfile.Profile()
    profile.enable()
    _slice(arm, spec)
    profile.disable()
    arm.close()
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # Undeclared.
    rows = [
        (_name(*function), calls / spec.jobs, own * 1e6 / spec.jobs)
        for function, (_, calls, own, _, _) in stats.items()
    ]
    return sorted(rows, key=lambda row: -row[2])[:FUNCTIONS]


def _name(file: str, line: int, function: str) -> str:
    """Name a function by its file, or as it is where it is built in."""
    return function if file == "~" else f"{file.rpartition('/')[2]}:{line} {function}"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
