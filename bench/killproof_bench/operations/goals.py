"""What the single figures are asked to show, and whether they do: pure functions of the figures."""

from collections.abc import Sequence
from typing import Final

from killproof_bench.operations.bare_arms import BARE, BARE_FULL, BARE_SYNC, CLAIM_ACK
from killproof_bench.operations.enqueue_arms import KEYED, MANY
from killproof_bench.operations.result import Comparison, Goal, Idle
from killproof_bench.result import Figure, Verdict

#: The share of the bare loop's rate that killproof keeps with one worker, by durability.
BARE_SHARE: Final = {"power": 0.95, "process": 0.50}
#: How many times the rate of the bare statements batches are put in.
BATCH_TIMES: Final = {MANY: 1.5, KEYED: 0.8}
#: How many times the rate of the plain reference 16 producers reach: the shared sync has less to
#: give where a sync costs little.
SINGLE_SLOW_DISK: Final = 2.0
SINGLE_FAST_DISK: Final = 1.2
#: Raw syncs per second that divide the two.
SLOW_DISK: Final = 2_500
#: A sentence names so many goals that were missed.
NAMED_MAX: Final = 3
#: From the call of `enqueue` to the first line of an idle worker's handler.
IDLE_START_MS: Final = 5.0
#: Of one core, for each idle worker.
IDLE_CPU: Final = 0.01
#: So many processes are asked of; with others there is no goal.
PRODUCERS: Final = 16


def goals(comparisons: Sequence[Comparison], idle: Idle | None) -> tuple[Goal, ...]:
    """Return every goal that these figures speak about, in their order."""
    found = []
    for each in comparisons:
        if each.operation == CLAIM_ACK:
            found.append(_bare(each))
        elif each.operation in BATCH_TIMES:
            asked = BATCH_TIMES[each.operation]
            for ratio in each.ratios:
                what = f"{each.operation}, {each.durability}, of {ratio.against}"
                found.append(_goal(what, ratio.value, asked, each))
        elif each.operation == single(PRODUCERS):
            asked = SINGLE_SLOW_DISK if min(each.raw) < SLOW_DISK else SINGLE_FAST_DISK
            (ratio,) = each.ratios
            what = f"{each.operation}, of the {ratio.against}"
            found.append(_goal(what, ratio.value, asked, each))
    return (*found, *(_idle(idle) if idle is not None else ()))


def single(producers: int) -> str:
    """Return the name of the operation in which so many processes enqueue single jobs."""
    return f"enqueue, {producers} producers"


def sentence(found: Sequence[Goal], verdict: Verdict) -> str:
    """Return the one sentence that the command and the report begin with."""
    if verdict == "violated":
        return "The figures are void: a queue did not do its work right."
    met = sum(goal.met is True for goal in found)
    missed = [goal.what for goal in found if goal.met is False]
    if not found:
        return "Nothing was measured that a goal speaks of."
    if not missed:
        return f"{met} of {len(found)} goals are met."
    more = f"; and {len(missed) - NAMED_MAX} more" if len(missed) > NAMED_MAX else ""
    return f"{met} of {len(found)} goals are met; not met: {'; '.join(missed[:NAMED_MAX])}{more}."


def _bare(each: Comparison) -> Goal:
    """At `power` beside the faster of the two bare loops: nobody shall say we chose the slower."""
    against = [r for r in each.ratios if r.against in (BARE, BARE_SYNC, BARE_FULL)]
    ratio = min(against, key=lambda r: _value(r.value))
    asked = BARE_SHARE[each.durability]
    return _goal(
        f"one worker, {each.operation}, {each.durability}, of {ratio.against}",
        ratio.value, asked, each, share=True,
    )  # fmt: skip


def _idle(idle: Idle) -> tuple[Goal, ...]:
    """A start in time, a processor left alone, and nothing written while there is nothing to do."""
    void = idle.correctness.verdict != "pass"
    median, cpu = idle.start_p50_ms.value, _value(idle.cpu_per_worker)
    writes = (idle.write_transactions or 0) + idle.log_changes + idle.write_locks_seen
    return (
        Goal(
            what="an idle worker starts a job of another process, median",
            asked=f"under {IDLE_START_MS:g} ms",
            measured="void" if void or median is None else f"{median:.2f} ms",
            met=None if void or median is None else median < IDLE_START_MS,
        ),
        Goal(
            what="an idle worker's processor, mean",
            asked=f"under {IDLE_CPU:.0%} of one core",
            measured=f"{cpu:.2%}",
            met=cpu < IDLE_CPU,
        ),
        Goal(
            what="write transactions, changed logs and write locks seen while idle",
            asked="none",
            measured=f"{writes} in {idle.idle_seconds:.0f} s",
            met=writes == 0,
        ),
    )


def _goal(
    what: str, figure: Figure, asked: float, each: Comparison, *, share: bool = False
) -> Goal:
    """Return the line of one ratio that has to reach a value."""

    def told(value: float | None) -> str:
        if value is None:
            return "?"
        return f"{value:.1%}" if share else f"{value:.2f} times"

    void = each.correctness.verdict != "pass" or figure.value is None
    found = f"{told(figure.value)} ({told(figure.low)} to {told(figure.high)})"
    return Goal(
        what=what,
        asked=f"at least {told(asked)}",
        measured="void" if void else found,
        met=None if void else _value(figure) >= asked,
    )


def _value(figure: Figure) -> float:
    return figure.value if figure.value is not None else 0.0
