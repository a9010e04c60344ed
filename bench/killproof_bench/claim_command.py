"""`killproof bench claim`: contention, beside the same statements without killproof's locks.

Its default is one question: what do 1 to 16 workers get at `power`, one job at a time? Every other
axis is an option, and several values of one are measured one after the other. `--goals` chooses the
cells that the project's own goals speak of, and makes the whole report.
"""

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from killproof_bench.command import AsJson, Dir, Report, Seed, check_places, within
from killproof_bench.seeding import PAYLOAD_BYTES, PAYLOAD_BYTES_MIN

if TYPE_CHECKING:
    from killproof_bench.scenarios.claim import Durability, Plan

WORKERS_MAX: Final = 256
PRODUCERS_MAX: Final = 64
SECONDS_MAX: Final = 3600.0
ROUNDS_MAX: Final = 100
ROWS_MAX: Final = 10_000_000
#: What the queue takes in one transaction.
BATCH_MAX: Final = 1_000
#: What the queue takes as a payload in the row: 1 MiB.
PAYLOAD_BYTES_MAX: Final = 1 << 20
RATE_MAX: Final = 1_000_000.0
JOB_MS_MAX: Final = 60_000.0
ROUNDS: Final = 2
#: A median of fewer repeats moves with each of them.
GOAL_ROUNDS: Final = 5
#: One backlog for all numbers of workers, as much as the longest of these rounds could take: they
#: are then one setup, and one curve.
GOAL_JOBS: Final = 140_000
#: Seconds of warm-up where many rounds are to fit into minutes; the log is in its steady state.
GOAL_WARMUP_SECONDS: Final = 1.0

Value = TypeVar("Value", int, float)


class LoopKind(StrEnum):
    """How calls follow each other."""

    CLOSED = "closed"
    OPEN = "open"


class ArrivalKind(StrEnum):
    """The schedule of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"
    BURST = "burst"


class CallKind(StrEnum):
    """What a worker does with a job."""

    ACK_AND_CLAIM = "ack-and-claim"
    CLAIM_THEN_ACK = "claim-then-ack"


Workers = Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of worker processes.")]
Seconds = Annotated[float, typer.Option(help="Measured time of each round.")]
Warmup = Annotated[float, typer.Option(help="Seconds before it that do not count.")]
Rounds = Annotated[
    int | None,
    typer.Option(
        metavar="N", help=f"Of each arm in each cell: {ROUNDS}; with --goals {GOAL_ROUNDS}."
    ),
]
Levels = Annotated[str, typer.Option(metavar="LEVEL,...", help="power, process, or both.")]
Loop = Annotated[LoopKind, typer.Option(help="Calls at once after each other, or on a schedule.")]
Rate = Annotated[
    str | None, typer.Option(metavar="R,R,...", help="Jobs/s that an open loop offers.")
]
Arrivals = Annotated[ArrivalKind, typer.Option(help="Of an open loop; burst: 20 at once.")]
Producers = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Processes that enqueue on the schedule; 0: all jobs are there, and the workers' "
        "own calls follow it.",
    ),
]
Call = Annotated[CallKind, typer.Option(help="One transaction for ack and next claim, or two.")]
Batch = Annotated[
    str, typer.Option(metavar="N,N,...", help="Jobs per claim: the calls that end in _many.")
]
Payload = Annotated[str, typer.Option(metavar="BYTES,...", help="Size of a job's payload.")]
Backlog = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...", help="Jobs there at the begin; default: more than can be done."
    ),
]
Finished = Annotated[
    str, typer.Option(metavar="N,N,...", help="Jobs that have succeeded before the begin.")
]
JobMs = Annotated[float, typer.Option(metavar="MS", help="Work in each job: a sleep.")]
Rows = Annotated[
    int | None,
    typer.Option(metavar="N", help="Also measure the cost with N rows in each other state."),
]
Stopped = Annotated[
    bool, typer.Option("--stopped", help="Also measure what a stopped worker costs.")
]
Goals = Annotated[
    bool, typer.Option("--goals", help="Measure the cells that the goals need, in 8 minutes.")
]


def claim(
    context: typer.Context,
    workers: Workers = "1,2,4,8,16",
    seconds: Seconds = 5.0,
    warmup: Warmup = 2.0,
    rounds: Rounds = None,
    durability: Levels = "power",
    loop: Loop = LoopKind.CLOSED,
    rate: Rate = None,
    arrivals: Arrivals = ArrivalKind.POISSON,
    producers: Producers = 1,
    call: Call = CallKind.ACK_AND_CLAIM,
    batch: Batch = "1",
    payload: Payload = str(PAYLOAD_BYTES),
    backlog: Backlog = None,
    finished: Finished = "0",
    job_ms: JobMs = 0.0,
    rows: Rows = None,
    stopped: Stopped = False,
    goals: Goals = False,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Claim and ack under contention, beside the same statements without killproof's locks."""
    _check_goals_alone(context, goals)
    within("--seconds", seconds, 0.1, SECONDS_MAX)
    within("--warmup", warmup, 0.0, SECONDS_MAX)
    within("--rounds", ROUNDS if rounds is None else rounds, 1, ROUNDS_MAX)
    within("--producers", producers, 0, PRODUCERS_MAX)
    within("--job-ms", job_ms, 0.0, JOB_MS_MAX)
    within("--rows", 1 if rows is None else rows, 1, ROWS_MAX)
    axes = Axes(
        workers=_numbers("--workers", workers, int, 1, WORKERS_MAX),
        levels=_levels(durability),
        rates=_rates(loop, rate),
        batches=_numbers("--batch", batch, int, 1, BATCH_MAX),
        payloads=_numbers("--payload", payload, int, PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX),
        backlogs=(None,) if backlog is None else _numbers("--backlog", backlog, int, 0, ROWS_MAX),
        finishes=_numbers("--finished", finished, int, 0, ROWS_MAX),
    )
    check_places(directory, report)
    from killproof_bench import contention_run
    from killproof_bench.scenarios.claim import Plan

    common = Plan(
        workers=axes.workers,
        seconds=seconds,
        warmup_seconds=warmup,
        rounds=rounds or ROUNDS,
        seed=seed,
        call=call.value,
        job_ms=job_ms,
        loop=loop.value,
        arrivals=arrivals.value,
        producers=producers if loop is LoopKind.OPEN else 0,
    )
    chosen = goal_plans(rounds=rounds or GOAL_ROUNDS, seed=seed)
    request = contention_run.Request(
        plans=chosen if goals else axes.plans(common),
        rows=rows,
        stopped=stopped or goals,
        durability=axes.levels[0],
        seed=seed,
    )
    contention_run.run(request, directory, report, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The options of which several values are measured one after the other."""

    workers: tuple[int, ...]
    levels: "tuple[Durability, ...]"
    rates: tuple[float, ...]  #: 0 in a closed loop.
    batches: tuple[int, ...]
    payloads: tuple[int, ...]
    backlogs: tuple[int | None, ...]
    finishes: tuple[int, ...]

    def plans(self, common: "Plan") -> "list[Plan]":
        """Return a plan for each combination, the first axis slowest."""
        return [
            dataclasses.replace(
                common,
                durability=level,
                rate_per_s=rate,
                batch=batch,
                payload_bytes=payload,
                jobs=jobs,
                finished=finished,
            )
            for level, rate, batch, payload, jobs, finished in itertools.product(
                *(self.levels, self.rates, self.batches),
                *(self.payloads, self.backlogs, self.finishes),
            )
        ]


def goal_plans(*, rounds: int, seed: int) -> "list[Plan]":
    """Return the cells that the goals speak of, and those without which a reader asks for more.

    A round is as long as its p99.9 needs: 10,000 calls of the slower arm.
    """
    from killproof_bench.scenarios.claim import Plan

    def plan(
        workers: tuple[int, ...],
        seconds: float,
        *,
        rounds: int = rounds,
        durability: "Durability" = "power",
        batch: int = 1,
        rate_per_s: float = 0.0,
        jobs: int | None = None,
    ) -> Plan:
        return Plan(
            workers=workers,
            seconds=seconds,
            warmup_seconds=GOAL_WARMUP_SECONDS,
            rounds=rounds,
            durability=durability,
            batch=batch,
            call="ack-and-claim" if batch == 1 else "claim-then-ack",
            loop="open" if rate_per_s else "closed",
            rate_per_s=rate_per_s,
            producers=1 if rate_per_s else 0,
            jobs=jobs,
            seed=seed,
        )

    return [
        plan((16,), 6.0, jobs=GOAL_JOBS),
        plan((16,), 6.0, batch=10),
        plan((16,), 4.0, durability="process"),
        plan((1, 2, 4, 8), 3.0, rounds=2, jobs=GOAL_JOBS),
        plan((8,), 5.0, rounds=2, rate_per_s=200.0),
    ]


#: What may stand beside --goals: the rest is what it chooses.
_BESIDE_GOALS: Final = {"goals", "rounds", "rows", "seed", "report", "directory", "as_json"}


def _check_goals_alone(context: typer.Context, goals: bool) -> None:
    given = [
        name
        for name in context.params
        if goals
        and name not in _BESIDE_GOALS
        and (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"
    ]
    if given:
        raise ValueError(
            f"--goals chooses the cells itself: leave out --{given[0].replace('_', '-')}"
        )


def _levels(text: str) -> "tuple[Durability, ...]":
    known: dict[str, Durability] = {"power": "power", "process": "process"}
    parts = text.split(",")
    if not all(part in known for part in parts):
        raise ValueError(f"--durability {text!r}: give power, process, or power,process")
    return tuple(known[part] for part in dict.fromkeys(parts))


def _rates(loop: LoopKind, text: str | None) -> tuple[float, ...]:
    if loop is LoopKind.CLOSED:
        if text is not None:
            raise ValueError(f"--rate {text!r}: a closed loop has none, add --loop open")
        return (0.0,)
    if text is None:
        raise ValueError("--loop open: say how many jobs/s it offers, such as --rate 200")
    return _numbers("--rate", text, float, 0.01, RATE_MAX)


def _numbers(
    option: str, text: str, kind: Callable[[str], Value], lowest: Value, highest: Value
) -> tuple[Value, ...]:
    """Parse a list of numbers; each once, ascending.

    Raises:
        ValueError: one is none, or outside the bounds.
    """
    try:
        numbers = sorted({kind(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not all(lowest <= number <= highest for number in numbers):
        raise ValueError(
            f"{option} {text!r}: give numbers from {lowest:.10g} to {highest:.10g} with commas, "
            f"such as {lowest:.10g},{4 * max(lowest, 1):.10g}"
        )
    return tuple(numbers)
