"""Put the repeats of a comparison together: rates, ratios, claim cards."""

from collections.abc import Mapping, Sequence

from killproof_bench.operations.result import ArmFigure, Comparison, RatioFigure
from killproof_bench.operations.turns import Turned, coverage, median_figure
from killproof_bench.result import ClaimCard, Correctness, Figure, Verdict
from killproof_bench.seeding import PAYLOAD_BYTES


def compared(
    *,
    operation: str,
    durability: str,
    repeats: Mapping[str, Sequence[Turned]],
    facts: Mapping[str, Mapping[str, str]],
    environment: Mapping[str, str],
    raw: Sequence[float],
    correctness: Correctness,
    unit: str = "jobs/s",
    workers: str = "1 process",
    batch: int = 1,
    rows_live: int = 0,
    busy_policy: Mapping[str, str] | None = None,
) -> Comparison:
    """Return the comparison of the first arm with every other one.

    Args:
        operation: What is done.
        durability: Of the files.
        repeats: By arm, in the order of the repeats; every arm has as many.
        facts: By arm, what was read back of its connection, and `checkpoints`.
        environment: cpu, filesystem, python.
        raw: Raw syncs per second around the repeats.
        correctness: One verdict for all files.
        unit: Of the rate.
        workers: Of one arm at a time.
        batch: Jobs in a transaction.
        rows_live: Jobs in the file at the begin.
        busy_policy: By arm; nobody contends when it is not given.
    """
    arms = []
    for arm, turned in repeats.items():
        rates = tuple(each.per_s for each in turned)
        figure = median_figure(rates, sum(each.operations for each in turned))
        arms.append(
            ArmFigure(
                arm=arm,
                per_s=figure,
                repeats=rates,
                card=card(
                    operation=operation,
                    unit=unit,
                    workers=workers,
                    durability=durability,
                    facts=facts[arm],
                    environment=environment,
                    figure=figure,
                    repeats=len(turned),
                    seconds=sum(each.ns for each in turned) / 1e9,
                    verdict=correctness.verdict,
                    batch=batch,
                    rows_live=rows_live,
                    busy_policy=(busy_policy or {}).get(arm, "nobody else writes"),
                ),
            )
        )
    ours, *others = arms
    return Comparison(
        operation=operation,
        durability=durability,
        arms=tuple(arms),
        ratios=tuple(ratio(ours, other) for other in others),
        raw=tuple(raw),
        correctness=correctness,
    )


def ratio(ours: ArmFigure, other: ArmFigure) -> RatioFigure:
    """Return how many times the other arm's rate ours is, by repeat and in the median."""
    ratios = tuple(a / b for a, b in zip(ours.repeats, other.repeats, strict=True))
    return RatioFigure(against=other.arm, value=median_figure(ratios, len(ratios)), repeats=ratios)


def card(
    *,
    operation: str,
    unit: str,
    workers: str,
    durability: str,
    facts: Mapping[str, str],
    environment: Mapping[str, str],
    figure: Figure,
    repeats: int,
    seconds: float,
    verdict: Verdict,
    batch: int,
    rows_live: int,
    busy_policy: str,
) -> ClaimCard:
    """Return the claim card of one arm of a comparison in turns."""
    return ClaimCard(
        operation=operation,
        unit=unit,
        load_model="closed loop, no work between two calls",
        arrivals="none: closed loop",
        workers=workers,
        batch=batch,
        payload_bytes=PAYLOAD_BYTES,
        rows_live=rows_live,
        rows_dead=0,
        journal_mode=facts["journal_mode"],
        synchronous=facts["synchronous"],
        autocheckpoint=int(facts["autocheckpoint"]),
        busy_policy=busy_policy,
        durability=durability,
        filesystem=environment["filesystem"],
        cpu=environment["cpu"],
        python=environment["python"],
        sqlite=facts["sqlite"],
        seconds=seconds,
        n=figure.n,
        interval=f"range of {repeats} repeats: holds the median with p = {coverage(repeats):.2f}",
        checkpoints=int(facts["checkpoints"]),
        late_or_skipped="not applicable: closed loop",
        steady=True,
        correctness=verdict,
    )
