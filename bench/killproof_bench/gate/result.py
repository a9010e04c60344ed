"""The recorded outcomes of the gate: values that go to JSON and come back, with a schema number.

Three commands, three documents: `GateResult` of `bench gate`, `CalibrationResult` of `bench
calibrate`, `ProofResult` of `bench gate-proof`. A page is drawn from these alone.

Ratios are head over base, of time: 1.10 is ten per cent slower. `d`, the statistic of a block, is
the natural logarithm of such a ratio, and sigma is the standard deviation of `d` over the blocks of
one machine, so sigma 0.05 reads as five per cent.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

from killproof_bench.result import ClaimCard, Correctness, Figure, Noise, decode

#: Raised whenever a field changes its meaning; a reader refuses what it does not know.
SCHEMA = 1

#: Exit codes 0, 1 and 2. A wrong arm is no verdict: it voids the run, exit 3.
GateVerdict = Literal["pass", "fail", "inconclusive"]
#: What one layer says; `not measured` when its tool is not there, with the reason beside it.
LayerVerdict = Literal["pass", "fail", "inconclusive", "not measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One of the two sides."""

    name: str  #: As asked for: a revision, or the folder of the working tree.
    commit: str  #: Full hash.
    changed_files: int  #: Uncommitted files that are part of it; always 0 for the base.


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """One deterministic counter of one operation, on both sides."""

    name: str  #: `claim.steps-100k`: what a `perf-ok:` trailer names.
    operation: str
    unit: str
    base: float  #: Over all counted calls of one operation, per call.
    head: float
    base_typical: float  #: The median call: whole numbers for what is counted in ones.
    head_typical: float
    rose: bool  #: Mean by more than 1%, or the median call at all where it counts in ones.
    excused: bool  #: A `perf-ok:` trailer between base and head names it.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """A statement whose query plan scans, sorts or indexes more than before."""

    name: str  #: `claim.plan`: what a trailer names.
    operation: str
    base: tuple[str, ...]  #: The lines of EXPLAIN QUERY PLAN that only the base has.
    head: tuple[str, ...]  #: Those that only the head has.
    rose: bool  #: More scans, sorts or automatic indexes; another text alone is told, not failed.
    excused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterLayer:
    """Layer 0: deterministic counters; the chance of a false alarm is 0."""

    verdict: LayerVerdict
    because: tuple[str, ...]
    seconds: float
    calls: int  #: Counted calls of each operation.
    syscalls_by: str  #: `strace`, or why system calls were not counted.
    counters: tuple[Counter, ...]
    plans: tuple[PlanChange, ...]  #: Only where the plans differ.
    absent: tuple[str, ...]  #: Operations that one side does not have: told, not compared.


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionLayer:
    """Layer 1: instructions per claim, counted by callgrind; fails above 3%."""

    verdict: LayerVerdict
    because: tuple[str, ...]
    seconds: float
    base: Figure  #: Instructions per ack and claim; low and high are the repeats' range.
    head: Figure
    ratio: float | None
    spread: float | None  #: Largest over smallest of one side's repeats, less 1.
    excused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of four arms, ABBA or BAAB."""

    position: int  #: From 0, among the blocks that count.
    order: str  #: `ABBA` or `BAAB`: A is the base; a fair coin.
    us_per_op: tuple[float, float, float, float]  #: Of the four arms in the order of running.
    ops: tuple[int, int, int, int]
    d: float  #: Mean log of B less mean log of A.
    hash_seed: (
        int  #: Shared by the four arms, as are the job seed and the calls that seed the file.
    )
    steal: float  #: Shares of all CPU time while the block ran.
    foreign_cpu: float
    pressure_cpu: float  #: PSI `some`: share of the time in which somebody waited for a CPU.


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One of the planned looks at the data."""

    blocks: int
    p_slower: float  #: Exact p that head is at most 2% slower.
    p_fail_at: float  #: Fail at or below.
    p_not_slower: float  #: Exact p that head is 10% slower or more.
    p_pass_at: float  #: Pass at or below.
    verdict: GateVerdict  #: `inconclusive` means: go on.


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRun:
    """One sequential test, from its first block to its verdict."""

    coin: str  #: The seed from the kernel's randomness, hex: with it every order can be had again.
    verdict: GateVerdict
    ratio: Figure  #: Hodges-Lehmann estimate of head over base, 95% interval of Walsh averages.
    sigma: float | None  #: Of this run's blocks.
    looks: tuple[Look, ...]
    blocks: tuple[Block, ...]
    redone: int  #: Blocks measured again for foreign load, whatever they said.
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingLayer:
    """Layer 2: randomised paired timing with a bounded chance of a false alarm."""

    verdict: LayerVerdict
    because: tuple[str, ...]
    seconds: float
    promised: bool  #: Whether sigma allows the promise to find a 10% slowdown.
    false_alarm_max: float  #: By construction, of this run, a retry counted in.
    miss_max: float  #: The same for calling a slowdown of 10% or more a pass.
    runs: tuple[TimingRun, ...]  #: One, or two with the retry.
    card: ClaimCard | None
    correctness: Correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One run of `killproof bench gate`."""

    schema: int
    kind: Literal["gate"]
    command: str
    started: str  #: UTC, ISO 8601.
    seconds: float
    interrupted: bool
    verdict: GateVerdict
    sentence: str
    base: Revision
    head: Revision
    trailers: tuple[str, ...]  #: What `perf-ok:` trailers between base and head name.
    environment: dict[str, str]
    counters: CounterLayer
    instructions: InstructionLayer
    timing: TimingLayer
    noise: Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What the gate does at one true slowdown and the measured sigma, by simulation."""

    slowdown: float  #: 0.10 is ten per cent; 0 is no change.
    fails: float  #: Share of runs.
    passes: float
    inconclusive: float
    blocks_mean: float
    seconds_mean: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """One run of `killproof bench calibrate`: what the gate can promise on this machine."""

    schema: int
    kind: Literal["calibration"]
    command: str
    started: str
    seconds: float
    interrupted: bool
    verdict: GateVerdict  #: `pass`: the gate can promise; `inconclusive`: it can not.
    sentence: str
    environment: dict[str, str]
    sigma: Figure  #: SD of d over the A/A blocks, with its 95% chi-square interval.
    block_seconds: float
    blocks: tuple[Block, ...]
    redone: int
    expected: tuple[Power, ...]
    card: ClaimCard
    correctness: Correctness
    noise: Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Runs of one sort, and how many ended in a given way, with a Clopper-Pearson interval."""

    what: str  #: `re-paired shams`, `live slowdowns`, ...
    runs: int
    failed: int
    passed: int
    inconclusive: int
    goal: str
    met: bool
    rate: Figure  #: Of `failed`: alarms of shams, detections of slowdowns.
    blocks_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmLength:
    """What one length of an arm buys."""

    seconds: float  #: Measured time of an arm.
    block_seconds: float
    sigma: float
    cost: float  #: sigma squared times seconds of a block: less is more power for each second.


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """One seeded regression and who caught it."""

    name: str
    what: str
    named: str  #: The layer named beforehand.
    caught: bool  #: By that layer.
    by: tuple[str, ...]  #: What told it: counters, or the ratio.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """One run of `killproof bench gate-proof`: the gate's own error rates, measured."""

    schema: int
    kind: Literal["proof"]
    command: str
    started: str
    seconds: float
    interrupted: bool
    verdict: GateVerdict  #: `inconclusive` where sigma is too large or blocks are missing.
    sentence: str
    head: Revision
    seed: int  #: Of the re-pairing.
    environment: dict[str, str]
    sigma: Figure
    slowdown: Figure  #: Achieved ratio of the injected slowdown, over all its blocks.
    hold_us: float  #: Median time between taking SQLite's lock and the end of COMMIT.
    spin_us: float  #: What was added inside the lock.
    sham_blocks: tuple[Block, ...]
    slow_blocks: tuple[Block, ...]
    arm_lengths: tuple[ArmLength, ...]
    tallies: tuple[Tally, ...]
    seeded: tuple[Seeded, ...]
    counter_repeats: int  #: Runs of layer 0 on one revision that were compared,
    counter_repeats_equal: bool  #: and whether every counter was equal in all.
    instructions: Figure  #: Layer 1 repeated on one revision: value is the mean.
    card: ClaimCard
    correctness: Correctness
    noise: Noise


Recorded = GateResult | CalibrationResult | ProofResult
_KINDS: dict[str, type[Recorded]] = {
    "gate": GateResult,
    "calibration": CalibrationResult,
    "proof": ProofResult,
}


def to_json(result: Recorded) -> str:
    """Return the result as one JSON document."""
    return json.dumps(dataclasses.asdict(result), indent=1, ensure_ascii=False)


def from_json(text: str) -> Recorded:
    """Return the result that `to_json` wrote.

    Raises:
        ValueError: Another schema or kind, or a field that is missing or unknown.
    """
    document = json.loads(text)
    kind = _KINDS.get(document.get("kind", "")) if isinstance(document, dict) else None
    if kind is None or document.get("schema") != SCHEMA:
        raise ValueError(f"this is not a result of the gate of schema {SCHEMA}")
    return decode(kind, document)
