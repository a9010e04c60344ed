"""What is recorded of the single figures: the file beside the report, and what it is made of.

Frozen values without behaviour.  `to_json` writes them whole; a field that another version added
or dropped is an error when read, never a default.
"""

import dataclasses
import json
from dataclasses import dataclass

from killproof_bench.result import ClaimCard, Correctness, Figure, Noise, Verdict, read

#: Rises with every change of these fields; a reader refuses what it does not know.
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigure:
    """One way to do the work."""

    arm: str
    per_s: Figure  #: Operations per second, median over the repeats.
    repeats: tuple[float, ...]  #: Operations per second of each repeat.
    card: ClaimCard


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioFigure:
    """Killproof's rate over that of another arm: larger is better."""

    against: str
    value: Figure  #: Median of the ratios within each repeat.
    repeats: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One operation, done in every arm, in turns."""

    operation: str
    durability: str
    arms: tuple[ArmFigure, ...]  #: Killproof first.
    ratios: tuple[RatioFigure, ...]
    raw: tuple[float, ...]  #: 4 KiB pwrite + fdatasync per second, before, between, after.
    correctness: Correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One part of the time of an operation."""

    part: str
    calls: float  #: Per job.
    us: float  #: Microseconds per job, the mean.


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Where the time of one job goes, in killproof and in the bare loop beside it."""

    operation: str
    durability: str
    jobs: int
    killproof: tuple[Cost, ...]
    bare: tuple[Cost, ...]
    functions: tuple[Cost, ...]  #: Python functions by their own time, under a profiler.


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Idle workers, and what comes of a job that another process enqueues."""

    files: int
    workers: int  #: On each file.
    durability: str
    start_p50_ms: Figure  #: From the call of `enqueue` to the first line of the handler.
    start_p99_ms: Figure
    start_max_ms: float
    committed_p50_ms: Figure  #: The same from the return of `enqueue`; may be below zero.
    idle_seconds: float  #: How long the workers were watched with nothing to do.
    cpu_per_worker: Figure  #: Share of one core; low and high are the least and the most.
    voluntary_switches_per_s: float  #: Of one worker, the mean: how often it looked.
    write_transactions: int | None  #: By the number in the turnstile file; `None` without one.
    log_changes: int  #: Files whose WAL index changed while all were idle.
    lock_samples: int  #: Looks at /proc/locks while idle.
    write_locks_seen: int  #: How many of them saw SQLite's write lock or the turnstile held.
    card: ClaimCard
    raw: tuple[float, ...]
    correctness: Correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One line of what was to be shown."""

    what: str
    asked: str
    measured: str
    met: bool | None  #: `None`: not measured, or void.


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsResult:
    """One run of `killproof bench bare`, `enqueue`, `idle` or all of them."""

    schema: int
    command: str
    seed: int
    started: str  #: UTC, ISO 8601.
    interrupted: bool
    environment: dict[str, str]
    noise: Noise
    comparisons: tuple[Comparison, ...]
    spending: tuple[Spending, ...]
    idle: Idle | None
    goals: tuple[Goal, ...]
    verdict: Verdict
    sentence: str


def to_json(result: OperationsResult) -> str:
    """Return the result as one JSON document."""
    return json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False)


def from_json(text: str) -> OperationsResult:
    """Return the result that `to_json` wrote.

    Raises:
        ValueError: Another schema, or a field that is missing or unknown.
    """
    return read(OperationsResult, text, schema=SCHEMA, what="a result of the single figures")
