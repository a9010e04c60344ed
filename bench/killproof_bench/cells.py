"""Put the rounds of a run together: cells, their claim cards, and ratios within pairs.

Pure functions of what `scenarios.claim` measured.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from killproof_bench import ledger, measure
from killproof_bench.anatomy import Parts, anatomy
from killproof_bench.arms import BUSY_MS
from killproof_bench.load import Ended
from killproof_bench.measure import Samples
from killproof_bench.result import (
    ARMS,
    Cell,
    ClaimCard,
    Correctness,
    Figure,
    Latency,
    Pair,
    Ratio,
    Round,
    Schedule,
    Setup,
)
from killproof_bench.sampling import Sample, Series

BUSY_POLICY = {
    "killproof": "turnstile for at most 0.25 s, then an own loop of 0.5 to 1 ms, 30 s",
    "reference": f"SQLite's busy handler, {BUSY_MS // 1000} s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One open loop round's schedule; the sums of `result.Schedule`."""

    due: int
    late: int
    skipped: int
    left: int


@dataclass(slots=True)
class Recorded:
    """The rounds of one cell as they come in."""

    rounds: list[Round] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    #: By kind and basis, in the order in which they are to be shown; one series for each round.
    series: dict[tuple[str, str], list[Series]] = field(default_factory=dict)
    parts: list[Parts] = field(default_factory=list)  #: Of the timed round, which has no figures.
    timed: list[Correctness] = field(default_factory=list)  #: Its verdict counts like any other.
    ended: list[Ended] = field(default_factory=list)  #: Of the workers.
    jobs: int = 0  #: Acked, warm-up included.
    empty_polls: int = 0
    kept: list[Kept] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


def cell_of(
    workers: int,
    arm: str,
    recorded: Recorded,
    setup: Setup,
    environment: dict[str, str],
    *,
    seed: int,
) -> Cell:
    """Put the rounds of one arm with one setup and one number of workers together."""
    samples, rounds = recorded.samples, recorded.rounds
    claims = [Series(latencies=part.latencies, blocks=part.blocks) for part in samples]
    claim = latency_of("claim call", "operation", claims, samples, seed=seed)
    rate = measure.rate_figure(
        np.concatenate([part.per_block for part in samples]),
        block_seconds=samples[0].block_seconds,
        seed=seed,
    )
    shares = [measure.fewest_over_most(part.counts) for part in samples]
    correctness = ledger.merged([*(each.correctness for each in rounds), *recorded.timed])
    return Cell(
        workers=workers,
        arm=arm,
        setup=setup,
        jobs_per_s=rate,
        p50_ms=claim.p50_ms,
        p99_ms=claim.p99_ms,
        p999_ms=claim.p999_ms,
        max_ms=max(each.max_ms for each in rounds),
        fewest_over_most=statistics.median(shares),
        fewest_over_most_worst=min(shares),
        jain_min=min(measure.jain(part.counts) for part in samples),
        latencies=(
            claim,
            *(
                latency_of(kind, basis, series, samples, seed=seed)
                for (kind, basis), series in recorded.series.items()
            ),
        ),
        anatomy=anatomy(
            recorded.parts, recorded.ended, recorded.jobs, counts_retries=arm == ARMS[0]
        ),
        schedule=_schedule(recorded) if setup.loop == "open" else None,
        correctness=correctness,
        card=card_of(workers, arm, recorded, rate, correctness, setup, environment),
        rounds=tuple(rounds),
    )


def latency_of(
    kind: str, basis: str, series: Sequence[Series], samples: Sequence[Sample], *, seed: int
) -> Latency:
    """Return the figures of one kind of latency over all rounds."""
    per_round = len(samples[0].per_block)
    latencies: Samples = np.concatenate([part.latencies for part in series])
    blocks: Samples = np.concatenate(
        [part.blocks + number * per_round for number, part in enumerate(series)]
    )
    p50, p90, p99, p999 = (
        measure.quantile_figure(latencies, blocks, permille, seed=seed)
        for permille in (500, 900, 990, 999)
    )
    longest = float(latencies.max()) / 1e6 if len(latencies) else 0.0
    return Latency(
        kind=kind,
        basis=basis,
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        p999_ms=p999,
        max_ms=longest,
        curve_ms=measure.curve(latencies),
    )


def _schedule(recorded: Recorded) -> Schedule:
    seconds = sum(len(part.per_block) * part.block_seconds for part in recorded.samples)
    return Schedule(
        offered_per_s=sum(kept.due for kept in recorded.kept) / seconds,
        done_per_s=sum(sum(part.counts) for part in recorded.samples) / seconds,
        late=sum(kept.late for kept in recorded.kept),
        skipped=sum(kept.skipped for kept in recorded.kept),
        left=sum(kept.left for kept in recorded.kept),
        empty_polls=recorded.empty_polls,
    )


def card_of(
    workers: int,
    arm: str,
    recorded: Recorded,
    rate: Figure,
    correctness: Correctness,
    setup: Setup,
    environment: dict[str, str],
) -> ClaimCard:
    """Fill the claim card of one cell."""
    facts = recorded.facts
    synced = " (sync after the commit, shared)"
    return ClaimCard(
        operation=operation_of(setup),
        unit="jobs/s; milliseconds per call",
        load_model=_load_model(setup),
        arrivals=_arrivals(setup),
        workers=f"{workers} x 1 process with one connection",
        batch=setup.batch,
        payload_bytes=setup.payload_bytes,
        rows_live=setup.backlog,
        rows_dead=setup.finished,
        journal_mode=facts["journal_mode"],
        synchronous=facts["synchronous"],
        autocheckpoint=int(facts["autocheckpoint"]),
        busy_policy=BUSY_POLICY[arm],
        durability=setup.durability
        + (synced if arm == ARMS[0] and setup.durability == "power" else ""),
        filesystem=environment["filesystem"],
        cpu=environment["cpu"],
        python=environment["python"],
        sqlite=facts["sqlite"],
        seconds=sum(len(part.per_block) * part.block_seconds for part in recorded.samples),
        n=rate.n,
        interval=_interval(recorded),
        checkpoints=sum(each.watch.restarts for each in recorded.rounds),
        late_or_skipped=_late_or_skipped(recorded, setup),
        steady=all(measure.is_steady(each.per_second) for each in recorded.rounds),
        correctness=correctness.verdict,
    )


def operation_of(setup: Setup) -> str:
    """Return in words what a worker does with a job, or with a batch of them."""
    many = setup.batch > 1
    if setup.call == "ack-and-claim":
        if many:
            return (
                f"ack_and_claim_many: one transaction acks {setup.batch} jobs and claims the next"
            )
        return "ack-and-claim: one transaction acks a job and claims the next"
    if many:
        return f"claim_many of {setup.batch} jobs, then ack_many: two transactions for a batch"
    return "claim, then ack: two transactions for a job"


def _load_model(setup: Setup) -> str:
    work = f"{setup.job_ms:g} ms of work in each job" if setup.job_ms else "no work between calls"
    if setup.loop == "closed":
        return f"closed loop, {work}"
    offered = f"open loop, {setup.rate_per_s:,.10g} jobs/s offered"
    if setup.producers:
        by = f"{setup.producers} producer{'' if setup.producers == 1 else 's'}"
        return f"{offered} by {by}; workers take what is there, {work}"
    return f"{offered}: each claim has its intended time; {work}"


def _arrivals(setup: Setup) -> str:
    if setup.loop == "closed":
        return "none: all jobs are there before the round begins"
    return f"{setup.arrivals}, from a seed that both arms share"


def _late_or_skipped(recorded: Recorded, setup: Setup) -> str:
    if setup.loop == "closed":
        return "not applicable: closed loop"
    late, skipped = (sum(getattr(k, name) for k in recorded.kept) for name in ("late", "skipped"))
    return f"{late:,} calls began over 1 ms late, {skipped:,} were never made"


def _interval(recorded: Recorded) -> str:
    blocks = sum(len(part.per_block) for part in recorded.samples)
    text = f"{blocks} blocks of {recorded.samples[0].block_seconds:g} s"
    if blocks < measure.BLOCKS_MIN:
        return f"refused: {text} are too few"
    return f"95%, bootstrap over {text}"


def ratios(cells: Sequence[Cell]) -> tuple[Ratio, ...]:
    """Return killproof beside the reference, for each setup and number of workers with both."""
    found = []
    for ours in cells:
        if ours.arm != ARMS[0]:
            continue
        for reference in cells:
            same = (reference.workers, reference.setup) == (ours.workers, ours.setup)
            if same and reference.arm == ARMS[1]:
                found.append(_ratio(ours, reference))
    return tuple(found)


def _ratio(ours: Cell, reference: Cell) -> Ratio:
    # Rounds of the two arms come in pairs; one whose other half was interrupted has none.
    pairs = tuple(_pair(*rounds) for rounds in zip(ours.rounds, reference.rounds, strict=False))
    tails = [pair.p999 for pair in pairs if pair.p999 is not None]
    pooled = len(tails) < len(pairs)
    rates = [pair.throughput for pair in pairs if pair.throughput is not None]
    longest = [pair.longest for pair in pairs if pair.longest is not None]
    return Ratio(
        workers=ours.workers,
        setup=ours.setup,
        fewest_over_most=ours.fewest_over_most,
        fewest_over_most_reference=reference.fewest_over_most,
        p999=_over(ours.p999_ms.value, reference.p999_ms.value)
        if pooled
        else statistics.median(tails),
        p999_pooled=pooled,
        longest=statistics.median(longest) if longest else None,
        throughput=statistics.median(rates) if rates else None,
        pairs=pairs,
    )


def _pair(ours: Round, reference: Round) -> Pair:
    return Pair(
        throughput=_over(ours.jobs_per_s, reference.jobs_per_s),
        p999=_over(ours.p999_ms, reference.p999_ms),
        longest=_over(ours.max_ms, reference.max_ms),
        fewest_over_most=measure.fewest_over_most(ours.counts),
        fewest_over_most_reference=measure.fewest_over_most(reference.counts),
    )


def _over(ours: float | None, reference: float | None) -> float | None:
    return None if ours is None or not reference else ours / reference
