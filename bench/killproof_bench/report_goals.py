"""The goals of the comparison, and what a run says of each: printed, never asserted by a test.

A goal is a ratio within one run: medians over pairs of rounds that stood side by side in time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from killproof_bench.report import STEPS_GOAL, STOPPED_LOSS_GOAL, TIME_GOAL
from killproof_bench.result import BenchResult, Ratio
from killproof_bench.seeding import PAYLOAD_BYTES

WORKERS: Final = 16
#: A median of fewer repeats moves with each of them: it is marked, and counts all the same.
REPEATS: Final = 5

Row = tuple[str, str, str]
VOID: Final = ("void", "**no**")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What one setup is asked to show beside the reference, with `WORKERS` workers."""

    name: str
    throughput: float  #: At least so many times the reference's.
    p999: float  #: At most this part of the reference's.
    longest: float | None = None  #: Likewise.
    fewest_over_most: float | None = None  #: At least this, of killproof alone.


#: By durability, batch and call. Why these: what the turnstile is for (fairness and the tail) must
#: not be paid for with the rate where a sync hides its cost, and may cost under half of it
#: elsewhere.
TARGETS: Final = {
    ("power", 1, "ack-and-claim"): Target(
        name="power", throughput=1.3, p999=1 / 10, longest=1 / 20, fewest_over_most=0.85
    ),
    ("power", 10, "claim-then-ack"): Target(name="power, batch 10", throughput=1.4, p999=1 / 10),
    ("process", 1, "ack-and-claim"): Target(
        name="process", throughput=0.55, p999=1 / 6, fewest_over_most=0.5
    ),
}


def goals(result: BenchResult) -> list[Row]:
    """Return each goal that this run can speak about, what was measured, and whether it is met."""
    rows = [row for ratio in result.ratios for row in _of_ratio(ratio, _is_right(result, ratio))]
    if result.stopped is not None:
        loss = result.stopped.loss.value
        goal = f"a stopped holder costs the others at most {STOPPED_LOSS_GOAL:.0%}"
        right = result.stopped.correctness.verdict == "pass"
        row = _row(goal, loss, loss is not None and loss <= STOPPED_LOSS_GOAL)
        rows.append(row if right else (goal, *VOID))
    rows += _of_rows(result)
    if result.verdict == "violated":
        return [(goal, *VOID) for goal, _, _ in rows]
    return rows


def target_of(ratio: Ratio) -> Target | None:
    """Return what this comparison is asked to show; `None` where nothing is."""
    setup = ratio.setup
    plain = (
        setup.loop == "closed"
        and setup.payload_bytes == PAYLOAD_BYTES
        and not setup.finished
        and not setup.job_ms
    )
    if ratio.workers != WORKERS or not plain:
        return None
    return TARGETS.get((setup.durability, setup.batch, setup.call))


def _is_right(result: BenchResult, ratio: Ratio) -> bool:
    """Tell whether both sides were right: of a backlog that ran dry the figures prove nothing."""
    sides = [c for c in result.cells if (c.workers, c.setup) == (ratio.workers, ratio.setup)]
    return all(cell.correctness.verdict == "pass" for cell in sides)


def _of_ratio(ratio: Ratio, right: bool) -> Iterator[Row]:
    for goal, measured, met in _measured(ratio):
        yield (goal, measured, met) if right else (goal, *VOID)


def _measured(ratio: Ratio) -> Iterator[Row]:
    target = target_of(ratio)
    if target is None:
        return
    repeats = len(ratio.pairs)
    median = f"median of {repeats}" + ("" if repeats >= REPEATS else ", fewer than asked for")
    where = f"{target.name}, {WORKERS} workers"
    tail = "all rounds together" if ratio.p999_pooled else median
    yield _at_least(f"{where}: throughput", target.throughput, ratio.throughput, " times", median)
    yield _at_most(f"{where}: p99.9", target.p999, ratio.p999, tail)
    if target.longest is not None:
        yield _at_most(f"{where}: longest wait", target.longest, ratio.longest, median)
    if target.fewest_over_most is not None:
        goal = f"{where}: fewest/most"
        yield _at_least(goal, target.fewest_over_most, ratio.fewest_over_most, "", median)


def _at_least(what: str, least: float, value: float | None, unit: str, how: str) -> Row:
    return _row(
        f"{what} at least {least:g}{unit}", value, value is not None and value >= least, how
    )


def _at_most(what: str, most: float, value: float | None, how: str) -> Row:
    met = value is not None and value <= most
    return _row(f"{what} at most 1/{1 / most:g} of the reference's", value, met, how)


def _row(goal: str, measured: float | None, met: bool, how: str = "") -> Row:
    text = "n/a" if measured is None else f"{measured:.3f}" + (f" ({how})" if how else "")
    return goal, text, "yes" if met else "**no**"


def _of_rows(result: BenchResult) -> Iterator[Row]:
    for cost in result.rows.costs if result.rows is not None else ():
        steps = cost.steps_large / cost.steps_small - 1 if cost.steps_small else math.inf
        ratio = cost.time_ratio.value
        yield _row(
            f"{cost.operation}: steps within {STEPS_GOAL:.0%} of the small file's",
            steps,
            abs(steps) <= STEPS_GOAL,
        )
        yield _row(
            f"{cost.operation}: time ratio under {TIME_GOAL}",
            ratio,
            ratio is not None and ratio < TIME_GOAL,
        )
