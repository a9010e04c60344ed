"""The recorded outcome of a bench: values that go to JSON and come back, with a schema number.

A report is made from these alone, so a report can be made again from a recorded result, on another
machine, years later. A figure that was refused is recorded as `None` with the number of samples it
had, never left out.
"""

import dataclasses
import json
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

#: Raised whenever a field changes its meaning; a reader refuses what it does not know.
SCHEMA = 1

Verdict = Literal["pass", "violated", "unknown"]

#: The two sides of every comparison: killproof as it is, and its statements without its locks.
ARMS = ("killproof", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured value with its 95% interval; `value` is `None` where it was refused."""

    value: float | None
    low: float | None  #: Lower end of the interval; `None` with too few blocks.
    high: float | None  #: Upper end of the interval.
    n: int  #: Samples.


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """Whether the measured run did what a queue promises; anything but `pass` voids its figures."""

    verdict: Verdict
    because: tuple[str, ...]  #: One sentence per violation.
    jobs: int  #: Jobs acked and accounted for.


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWatch:
    """What a process without a connection saw of the locks and of the WAL."""

    samples: int
    write_lock_held: float | None  #: Share of the samples in which SQLite's write lock was held.
    turnstile_held: float | None  #: Share of the samples in which somebody held the turnstile.
    wal_bytes_max: int
    frames_behind_max: int  #: Most WAL frames not yet copied into the database.
    restarts: int  #: WAL restarts; each follows one complete checkpoint, and none is missed.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCard:
    """The conditions of a figure. A number without them says nothing."""

    operation: str
    unit: str
    load_model: str
    arrivals: str
    workers: str
    batch: int
    payload_bytes: int
    rows_live: int
    rows_dead: int
    journal_mode: str  #: As read back from a worker's connection.
    synchronous: str  #: As read back from a worker's connection.
    autocheckpoint: int  #: Pages, as read back.
    busy_policy: str
    durability: str
    filesystem: str
    cpu: str
    python: str
    sqlite: str
    seconds: float  #: Measured time of all rounds, after the warm-up.
    n: int  #: Operations that ended in the measured time.
    interval: str  #: How the intervals were made.
    checkpoints: int
    late_or_skipped: str
    steady: bool  #: First and last third of each round have median rates within 5%.
    correctness: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One arm run once on a fresh file."""

    position: int  #: Place in the whole run's order, from 0.
    jobs_per_s: float
    per_second: tuple[int, ...]  #: Operations ended in each measured second.
    counts: tuple[int, ...]  #: Operations ended by each worker in the measured time.
    max_ms: float
    raw_before: float  #: 4 KiB pwrite + fdatasync per second in the same folder, just before.
    raw_after: float
    watch: LockWatch
    correctness: Correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm at one number of workers, over all its rounds."""

    workers: int
    arm: str
    jobs_per_s: Figure
    p50_ms: Figure
    p99_ms: Figure
    p999_ms: Figure
    max_ms: float
    fewest_over_most: float  #: Median over the rounds.
    fewest_over_most_worst: float  #: The least fair round.
    jain_min: float
    correctness: Correctness
    card: ClaimCard
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Killproof beside the reference at one number of workers; `None` where either was refused."""

    workers: int
    fewest_over_most: float
    fewest_over_most_reference: float
    p999: float | None  #: Killproof's p99.9 over the reference's: smaller is better.
    throughput: float | None  #: Killproof's jobs/s over the reference's: larger is better.


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How quiet the machine was; anything beside the bench itself is foreign."""

    noisy: bool
    because: tuple[str, ...]
    steal: float  #: Share of all CPU time that the hypervisor gave to others.
    foreign_cpu: float  #: Share of all CPU time used by processes that are not the bench's.
    load_before: float
    load_after: float
    pressure_cpu_before: float  #: PSI some avg10, per cent, before the bench began.
    pressure_io_before: float
    raw_spread: float | None  #: Highest over lowest raw fdatasync rate of the run.


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCost:
    """One operation on a small and on a large file."""

    operation: str
    steps_small: float  #: SQLite virtual machine steps per call, mean over the calls counted.
    steps_large: float
    us_small: float  #: Median microseconds per call.
    us_large: float
    time_ratio: Figure  #: Large over small, of medians.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsResult:
    """What an operation costs with few and with many rows in every state but the one claimed."""

    rows_small: int  #: In each of `states`.
    rows_large: int
    states: tuple[str, ...]
    available: int
    durability: str
    calls: int  #: Timed calls per operation and file.
    seeding_seconds: float
    file_bytes: int
    costs: tuple[OperationCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedResult:
    """What one worker, stopped while it holds the turnstile, costs the others."""

    workers: int
    durability: str
    window_seconds: float
    settle_seconds: float
    running: tuple[float, ...]  #: Jobs/s of the others while all run, for orientation.
    undisturbed: tuple[float, ...]  #: The same, the last worker stopped holding nothing.
    holding: tuple[float, ...]  #: The same, the last worker stopped holding the turnstile.
    loss: Figure  #: 1 - holding / undisturbed.
    wal_bytes_max: int
    correctness: Correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckersResult:
    """How fast the judge judges."""

    records: int
    generate_seconds: float
    judge_seconds: float
    records_per_s: float
    peak_rss_bytes: int
    verdict: str
    properties: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One run of `killproof bench`, whole or interrupted."""

    schema: int
    command: str
    seed: int
    started: str  #: UTC, ISO 8601.
    interrupted: bool
    environment: dict[str, str]
    durability: str
    rounds_planned: int
    seconds: float
    warmup_seconds: float
    cells: tuple[Cell, ...]
    ratios: tuple[Ratio, ...]
    noise: Noise
    rows: RowsResult | None
    stopped: StoppedResult | None
    verdict: Verdict
    sentence: str


def to_json(result: BenchResult) -> str:
    """Return the result as one JSON document."""
    return json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False)


def from_json(text: str) -> BenchResult:
    """Return the result that `to_json` wrote.

    Raises:
        ValueError: Another schema, or a field that is missing or unknown.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"this is not a bench result of schema {SCHEMA}")
    return decode(BenchResult, document)


Value = TypeVar("Value")


def decode(kind: type[Value], document: dict[str, Any]) -> Value:
    """Build a dataclass of plain JSON, field by field, by the types it declares."""
    hints = get_type_hints(kind)
    if unknown := document.keys() ^ hints.keys():
        raise ValueError(f"{kind.__name__}: missing or unknown fields {sorted(unknown)}")
    return kind(**{name: _decoded(hints[name], document[name]) for name in hints})


def _decoded(hint: Any, value: Any) -> Any:
    if get_origin(hint) in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        return tuple(_decoded(get_args(hint)[0], part) for part in value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return decode(hint, value)
    return value
