"""The recorded outcome of `killproof bench peers`: values that go to JSON and come back.

A report is made from these alone. A queue that could not be measured is a row that says why; a
figure that was refused is `None` with the number of its samples, never left out.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

from killproof_bench.result import ClaimCard, Correctness, Figure, Noise, Verdict, read

#: Raised whenever a field changes its meaning; a reader refuses what it does not know.
SCHEMA = 1

#: What an acknowledgement survives, as the peer's own connection was read back: a power cut, a
#: killed process, or less than that.
Level = Literal["power", "process", "less"]
Role = Literal["killproof", "reference", "peer"]
State = Literal["measured", "not installed", "failed", "not run"]
Delivery = Literal["at-least-once", "at-most-once"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One thing that a queue does not promise, or promises otherwise, and where that is written."""

    text: str
    source: str  #: An address, or a file of its distribution.


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A queue of this run, measured or not."""

    name: str  #: As `--only` takes it, and as `Cell.contender` names it.
    role: Role
    version: str
    url: str
    language: str  #: "Python 3.13" and so on: what it ran on, or was to run on.
    packages: tuple[str, ...]  #: name==version of all that its environment holds.
    claim_call: str
    ack_call: str
    durability_how: str  #: How its durability was set, or that it was left as it is.
    delivery: Delivery
    gaps: tuple[Gap, ...]
    state: State
    because: str  #: Empty where it was measured.


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRound:
    """One contender run once, on a fresh copy of its own file."""

    number: int  #: Rounds of the same number are compared with each other.
    position: int  #: Place in the whole run's order, from 0.
    jobs_per_s: float
    counts: tuple[int, ...]  #: Jobs acked by each worker in the measured time.
    p999_ms: float | None
    longest_ms: float  #: Longest time that one worker spent on one job, unfinished ones included.
    raw_before: float  #: 4 KiB pwrite + fdatasync per second in the same folder, just before.
    raw_after: float
    acked_twice: int  #: Jobs of which more than one ack was accepted.
    lost: int  #: Jobs neither acked nor stored any more.
    errors: int  #: Errors that the queue's calls raised at the worker, which then tried again.
    error_example: str  #: The first of them, one line; empty without any.
    empty: int  #: Claims that said "nothing there" while jobs were waiting.
    correctness: Correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCell:
    """One contender at one number of workers and one level of durability, over all its rounds."""

    contender: str
    workers: int
    level: Level
    jobs_per_s: Figure
    p50_ms: Figure
    p99_ms: Figure
    p999_ms: Figure
    longest_ms: float
    fewest_over_most: float  #: Median over the rounds.
    acked_twice: int
    lost: int
    errors: int
    empty: int
    correctness: Correctness
    card: ClaimCard
    rounds: tuple[PeerRound, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Killproof beside one contender at the same number of workers and level of durability."""

    contender: str
    workers: int
    level: Level  #: Killproof's, the highest that the contender keeps too.
    throughput: Figure  #: Killproof's jobs/s over its: median of the rounds, least and most.
    p999: float | None  #: Killproof's p99.9 over its: smaller is better. `None` where refused.
    p999_is_bound: bool  #: Its p99.9 was refused and its p99 stands in: the true ratio is smaller.
    longest: float  #: Killproof's longest wait over its.


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One figure that was aimed at."""

    text: str
    measured: float | None
    met: bool | None  #: `None` where it was not measured.


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersResult:
    """One run, whole or interrupted."""

    schema: int
    command: str
    seed: int
    started: str  #: UTC, ISO 8601.
    interrupted: bool
    environment: dict[str, str]
    jobs: int  #: In the file when a round begins.
    payload_bytes: int
    workers: tuple[int, ...]
    rounds_planned: int
    seconds: float
    warmup_seconds: float
    contenders: tuple[Contender, ...]
    cells: tuple[PeerCell, ...]
    comparisons: tuple[Comparison, ...]
    goals: tuple[Goal, ...]
    raw_before: float
    raw_after: float
    noise: Noise
    verdict: Verdict  #: Of the bench's own arms; a contender's is in its cells.
    sentence: str

    def to_json(self) -> str:
        """Return the result as one JSON document."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)


def from_json(text: str) -> PeersResult:
    """Return the result that `to_json` wrote.

    Raises:
        ValueError: Another schema, or a field that is missing or unknown.
    """
    return read(PeersResult, text, schema=SCHEMA, what="a result of bench peers")
