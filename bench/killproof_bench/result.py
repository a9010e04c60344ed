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
SCHEMA = 2

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
    wal_bytes: tuple[int, ...] = ()  #: The largest size of the log in each second, warm-up too.
    frames_behind: tuple[int, ...] = ()  #: Likewise the most frames not yet copied.


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
class Setup:
    """What was asked for in one cell, beside its number of workers and its arm."""

    durability: str
    loop: str  #: `closed`, or `open`: calls on a schedule.
    arrivals: str  #: `poisson`, `constant` or `burst`; empty in a closed loop.
    rate_per_s: float  #: Offered by all processes together, in jobs; 0 in a closed loop.
    producers: int  #: Processes that enqueue on the schedule; 0: the workers' calls follow it.
    call: str  #: `ack-and-claim` or `claim-then-ack`.
    batch: int
    payload_bytes: int
    backlog: int  #: Jobs that are available when the round begins.
    finished: int  #: Jobs that had succeeded before it began.
    job_ms: float  #: The handler's sleep.


#: Where a curve of percentiles has its points, in millionths: denser with each nine.
CURVE_MILLIONTHS = (
    *(100_000, 250_000, 500_000, 750_000, 900_000, 950_000, 975_000, 990_000, 995_000, 997_500),
    *(999_000, 999_500, 999_750, 999_900, 999_950, 999_975, 999_990),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One kind of latency; kinds and bases are never mixed in one figure."""

    #: `claim call` (ack-and-claim counts as one), `ack call`, `enqueue commit`, or `time to claim`:
    #: from the intended time of the enqueue to the commit of the claim.
    kind: str
    basis: str  #: `operation`: from the call's begin; `intended`: from when the schedule wanted it.
    p50_ms: Figure
    p90_ms: Figure
    p99_ms: Figure
    p999_ms: Figure
    max_ms: float
    #: The quantiles of `CURVE_MILLIONTHS`, until one has too few samples beyond it.
    curve_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Where the time of a claim goes: means per call that writes, in ms; the parts add up.

    Timed inside the workers at the named points of the protocol, in both arms alike.
    """

    calls: int
    total_ms: float
    python_ms: float  #: Before the call asks for its turn, and after its answer is durable.
    wait_held_ms: float  #: Waiting for the lock while another call has it.
    wait_idle_ms: float  #: Waiting for the lock while nobody has it: the handover gap.
    sql_ms: float  #: From the lock to the last statement's end, the Python around them included.
    commit_ms: float  #: COMMIT: the log is written; at synchronous=FULL SQLite syncs it here.
    checkpoint_ms: float  #: killproof's own; SQLite's automatic one is inside `commit_ms`.
    sync_ms: float  #: From the commit to the durable answer: the turnstile is left, the log synced.
    lock_wait_p50_ms: float
    lock_wait_p99_ms: float
    lock_hold_p50_ms: float  #: From the lock to the end of COMMIT.
    lock_hold_p99_ms: float
    retries: float | None  #: Pauses before the lock, per call; `None`: SQLite's own are unseen.
    lock_held: float  #: Share of the measured time in which a call had the lock.
    idle_while_wanted: float  #: Share in which nobody had it and somebody waited for it.
    user_us: float  #: Processor time of a worker per job, Python and SQLite.
    system_us: float
    run_delay_us: float  #: Per job: a worker could run and had no processor.
    switches: float  #: Voluntary context switches per job.


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How an open loop's schedule was kept, over all rounds."""

    offered_per_s: float  #: Jobs that were due in the measured time, per second.
    done_per_s: float  #: Jobs that were acked in it, per second.
    late: int  #: Calls that began over 1 ms after their intended time, warm-up included.
    skipped: int  #: Calls that were due and were never made: the latencies are at least as printed.
    left: int  #: Jobs that nobody had claimed when the time was over.
    empty_polls: int  #: Claims that found nothing; they take no write lock.


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One arm run once on a fresh file."""

    position: int  #: Place in the whole run's order, from 0.
    jobs_per_s: float
    per_second: tuple[int, ...]  #: Operations ended in each measured second.
    counts: tuple[int, ...]  #: Operations ended by each worker in the measured time.
    p999_ms: float | None  #: Of the claim call; `None` with too few samples in this round.
    max_ms: float
    raw_before: float  #: 4 KiB pwrite + fdatasync per second in the same folder, just before.
    raw_after: float
    watch: LockWatch
    correctness: Correctness
    p99_per_second_ms: tuple[float | None, ...] = ()  #: Of the calls that ended in each.
    max_per_second_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm with one setup and one number of workers, over all its rounds."""

    workers: int
    arm: str
    setup: Setup
    jobs_per_s: Figure
    p50_ms: Figure  #: These and the longest are of the claim call, from its begin.
    p99_ms: Figure
    p999_ms: Figure
    max_ms: float
    fewest_over_most: float  #: Median over the rounds.
    fewest_over_most_worst: float  #: The least fair round.
    jain_min: float
    latencies: tuple[Latency, ...]  #: All kinds that the setup has, each by itself.
    anatomy: Anatomy | None  #: `None`: nothing was timed inside the calls.
    schedule: Schedule | None  #: Of an open loop.
    correctness: Correctness
    card: ClaimCard
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two rounds that stood side by side in time: killproof's over the reference's."""

    throughput: float | None  #: `None` where the reference did nothing: it is beyond all ratios.
    p999: float | None  #: `None` where either round had too few samples.
    longest: float | None
    fewest_over_most: float  #: Killproof's own.
    fewest_over_most_reference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Killproof beside the reference: medians over the pairs; `None` where either was refused."""

    workers: int
    setup: Setup
    fewest_over_most: float
    fewest_over_most_reference: float
    p999: float | None  #: Killproof's p99.9 over the reference's: smaller is better.
    p999_pooled: bool  #: A pair alone had too few samples: it is of all rounds together.
    longest: float | None  #: Killproof's longest wait over the reference's.
    throughput: float | None  #: Killproof's jobs/s over the reference's: larger is better.
    pairs: tuple[Pair, ...]


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
    durability: str  #: Of the first cell.
    rounds_planned: int
    seconds: float
    warmup_seconds: float
    timing_us: float | None  #: What timing one call from inside costs it, measured before the run.
    cells: tuple[Cell, ...]  #: In the order in which they were measured.
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
    return read(BenchResult, text, schema=SCHEMA, what="a bench result")


Value = TypeVar("Value")


def read(kind: type[Value], text: str, *, schema: int, what: str) -> Value:
    """Return a recorded result of whatever command.

    Args:
        kind: Its dataclass.
        text: The JSON that its `to_json` wrote.
        schema: The only one that is known.
        what: It is called so when it is refused.

    Raises:
        ValueError: Another schema, or a field that is missing or unknown.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise ValueError(f"this is not {what} of schema {schema}")
    return decode(kind, document)


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
