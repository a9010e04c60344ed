"""`killproof bench claim`: contention, beside the same statements without killproof's locks.

Its default is one question: what do 1 to 16 workers get at `power`, one job at a time? Every other
axis is an option, and several values of one are measured one after the other. `--goals` chooses the
cells that the project's own goals speak of, and makes the whole report.
"""

import itertools
from collections.abc import Callable
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


def claim(
    context: typer.Context,
    workers: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of worker processes.")
    ] = "1,2,4,8,16",
    seconds: Annotated[float, typer.Option(help="Measured time of each round.")] = 5.0,
    warmup: Annotated[float, typer.Option(help="Seconds before it that do not count.")] = 2.0,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N", help=f"Of each arm in each cell: {ROUNDS}; with --goals {GOAL_ROUNDS}."
        ),
    ] = None,
    durability: Annotated[
        str, typer.Option(metavar="LEVEL,...", help="power, process, or both.")
    ] = "power",
    loop: Annotated[
        LoopKind, typer.Option(help="Calls at once after each other, or on a schedule.")
    ] = LoopKind.CLOSED,
    rate: Annotated[
        str | None, typer.Option(metavar="R,R,...", help="Jobs/s that an open loop offers.")
    ] = None,
    arrivals: Annotated[
        ArrivalKind, typer.Option(help="Of an open loop; burst: 20 at once.")
    ] = ArrivalKind.POISSON,
    producers: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Processes that enqueue on the schedule; 0: all jobs are there, and the workers' "
            "own calls follow it.",
        ),
    ] = 1,
    call: Annotated[
        CallKind, typer.Option(help="One transaction for ack and next claim, or two.")
    ] = CallKind.ACK_AND_CLAIM,
    batch: Annotated[
        str,
        typer.Option(metavar="N,N,...", help="Jobs per claim; above 1: claim_many and ack_many."),
    ] = "1",
    payload: Annotated[
        str, typer.Option(metavar="BYTES,...", help="Size of a job's payload.")
    ] = str(PAYLOAD_BYTES),
    backlog: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Jobs there at the begin; default: more than can be done."
        ),
    ] = None,
    finished: Annotated[
        str, typer.Option(metavar="N,N,...", help="Jobs that have succeeded before the begin.")
    ] = "0",
    job_ms: Annotated[float, typer.Option(metavar="MS", help="Work in each job: a sleep.")] = 0.0,
    rows: Annotated[
        int | None,
        typer.Option(metavar="N", help="Also measure the cost with N rows in each other state."),
    ] = None,
    stopped: Annotated[
        bool, typer.Option("--stopped", help="Also measure what a stopped worker costs.")
    ] = False,
    goals: Annotated[
        bool,
        typer.Option("--goals", help="Measure the cells that the goals need, in about 8 minutes."),
    ] = False,
    seed: Seed = 1,
    report: Report = None,
    directory: Dir = Path("."),
    as_json: AsJson = False,
) -> None:
    """Claim and ack under contention, beside the same statements without killproof's locks."""
    if rounds is not None:
        within("--rounds", rounds, 1, ROUNDS_MAX)
    if rows is not None:
        within("--rows", rows, 1, ROWS_MAX)
    _check_goals_alone(context, goals)
    within("--seconds", seconds, 0.1, SECONDS_MAX)
    within("--warmup", warmup, 0.0, SECONDS_MAX)
    within("--producers", producers, 0, PRODUCERS_MAX)
    within("--job-ms", job_ms, 0.0, JOB_MS_MAX)
    levels = _levels(durability)
    counts = _numbers("--workers", workers, int, 1, WORKERS_MAX)
    batches = _numbers("--batch", batch, int, 1, BATCH_MAX)
    payloads = _numbers("--payload", payload, int, PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX)
    backlogs = [None] if backlog is None else _numbers("--backlog", backlog, int, 0, ROWS_MAX)
    finishes = _numbers("--finished", finished, int, 0, ROWS_MAX)
    rates = _rates(loop, rate)
    check_places(directory, report)
    from killproof_bench import contention_run
    from killproof_bench.scenarios.claim import Plan

    plans = [
        Plan(
            workers=counts,
            seconds=seconds,
            warmup_seconds=warmup,
            rounds=rounds or ROUNDS,
            durability=level,
            seed=seed,
            call=call.value,
            batch=size,
            payload_bytes=payload_bytes,
            finished=old,
            jobs=jobs,
            job_ms=job_ms,
            loop=loop.value,
            rate_per_s=offered,
            arrivals=arrivals.value,
            producers=producers if loop is LoopKind.OPEN else 0,
        )
        for level, offered, size, payload_bytes, jobs, old in itertools.product(
            levels, rates, batches, payloads, backlogs, finishes
        )
    ]
    if goals:
        plans = goal_plans(rounds=rounds or GOAL_ROUNDS, seed=seed)
    request = contention_run.Request(
        plans=plans, rows=rows, stopped=stopped or goals, durability=levels[0], seed=seed
    )
    contention_run.run(request, directory, report, as_json=as_json)


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
    ) -> Plan:
        return Plan(
            workers=workers,
            seconds=seconds,
            warmup_seconds=GOAL_WARMUP_SECONDS,
            rounds=rounds,
            durability=durability,
            batch=batch,
            loop="open" if rate_per_s else "closed",
            rate_per_s=rate_per_s,
            producers=1 if rate_per_s else 0,
            seed=seed,
        )

    return [
        plan((16,), 6.0),
        plan((16,), 6.0, batch=10),
        plan((16,), 4.0, durability="process"),
        plan((1, 2, 4, 8), 3.0, rounds=2),
        plan((8,), 5.0, rounds=2, rate_per_s=400.0),
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


def _levels(text: str) -> "list[Durability]":
    known: dict[str, Durability] = {"power": "power", "process": "process"}
    parts = text.split(",")
    if not all(part in known for part in parts):
        raise ValueError(f"--durability {text!r}: give power, process, or power,process")
    return [known[part] for part in dict.fromkeys(parts)]


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
