"""Turn what operations cost as a file grows into lines and a report: pure functions."""

from collections.abc import Iterator, Sequence
from typing import Final

from killproof_bench.report import figure, markdown_table, plain_table
from killproof_bench.result import OperationCost
from killproof_bench.rows_result import Axis, GrowthResult

TITLE: Final = "Rows: what an operation costs as the file grows"
#: What is to be shown: virtual machine steps change by at most so much ...
STEPS_GOAL: Final = 0.05
#: ... and the median time by at most this factor.
TIME_GOAL: Final = 1.3


def sentence(axes: Sequence[Axis]) -> str:
    """Say whether the cost is flat."""
    if not axes:
        return "Nothing was measured."
    steps = max(abs(steps_change(cost)) for axis in axes for cost in axis.costs)
    times = [time_ratio(cost) for axis in axes for cost in axis.costs]
    flat = steps <= STEPS_GOAL and max(times) <= TIME_GOAL
    grown = ", then in ".join(named(axis) for axis in axes)
    return (
        f"{'Flat' if flat else 'Not flat'}: from {axes[0].rows_small:,} to "
        f"{axes[0].rows_large:,} rows in {grown}, the steps of an operation change by at most "
        f"{steps:.1%} and its median time by a factor of at most {max(times):.2f}."
    )


def steps_change(cost: OperationCost) -> float:
    """Return how much more steps the large file takes, as a share."""
    return cost.steps_large / cost.steps_small - 1


def time_ratio(cost: OperationCost) -> float:
    """Return the ratio of the medians."""
    return cost.us_large / cost.us_small


def table(axis: Axis) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the cost of each operation, and whether it is within the goals."""
    head = (
        *("operation", "steps, small", "steps, large", "us, small", "us, large", "time ratio"),
        *(f"steps within {STEPS_GOAL:.0%}", f"time within {TIME_GOAL:g}"),
    )
    return head, [
        (
            cost.operation,
            f"{cost.steps_small:,.1f}",
            f"{cost.steps_large:,.1f}",
            f"{cost.us_small:,.1f}",
            f"{cost.us_large:,.1f}",
            figure(cost.time_ratio),
            _yes(abs(steps_change(cost)) <= STEPS_GOAL),
            _yes(time_ratio(cost) <= TIME_GOAL),
        )
        for cost in axis.costs
    ]


def terminal(result: GrowthResult) -> str:
    """Return what the command prints."""
    lines = [result.sentence]
    for axis in result.axes:
        lines += ["", files(axis), plain_table(*table(axis))]
    lines.append("")
    lines += [f"{name}: {value}" for name, value in conditions(result)]
    return "\n".join(lines)


def markdown(result: GrowthResult) -> str:
    """Return the report."""
    parts = [
        f"# {TITLE}",
        result.sentence,
        f"Command: `{result.command}`",
        markdown_table(("", ""), conditions(result)),
    ]
    for axis in result.axes:
        parts += [f"## More rows {named(axis)}", markdown_table(*table(axis)), files(axis)]
    parts += ["## Method", method(result), "## What this does not show", LIMITS]
    return "\n\n".join(parts) + "\n"


LIMITS: Final = (
    "- Files that do not fit into memory: the pages a call needs are in the cache here.\n"
    "- A file that grew over months: its rows were inserted one after the other.\n"
    "- Counting all jobs (`killproof status`), and retention: they read more on a larger file.\n"
    "- Contention: one process makes one call at a time."
)


def method(result: GrowthResult) -> str:
    """Say how it was measured."""
    calls = result.axes[0].calls if result.axes else 0
    return (
        "Two files are seeded by SQL in the terms of the schema, with the attempts of what has "
        "ended and leases of a living worker; they differ in the states named alone.\n"
        "Steps are those of SQLite's virtual machine, counted at every step over 20 calls, each of "
        "which also looks for dead workers.\n"
        f"Times are medians of {calls:,} calls; the two files take turns call by call. "
        "In brackets: 95% interval of the ratio, by a paired bootstrap."
    )


def conditions(result: GrowthResult) -> Iterator[tuple[str, str]]:
    """Yield what the figures hold under."""
    noise = result.noise
    quiet = "quiet" if not noise.noisy else f"NOISY: {'; '.join(noise.because)}"
    yield "seed", str(result.seed)
    yield "started", result.started
    yield from result.environment.items()
    yield "load", "closed loop, one process, one call at a time"
    yield "durability", result.durability
    yield "journal_mode", result.journal_mode
    yield "synchronous", result.synchronous
    yield "autocheckpoint", str(result.autocheckpoint)
    yield "raw fdatasync/s, before and after", ", ".join(f"{rate:,.0f}" for rate in result.raw)
    yield (
        "noise",
        f"{quiet} (load {noise.load_before:.2f} before, {noise.load_after:.2f} after)",
    )


def named(axis: Axis) -> str:
    """Return the states that grow, in words."""
    return ", ".join(axis.states)


def files(axis: Axis) -> str:
    """Say what is in the two files."""
    return (
        f"{axis.rows_small:,} rows in each state; in the large file {axis.rows_large:,} "
        f"{named(axis)} ({axis.file_bytes / 2**20:,.0f} MiB, seeded in "
        f"{axis.seeding_seconds:.0f} s)."
    )


def _yes(met: bool) -> str:
    return "yes" if met else "**no**"
