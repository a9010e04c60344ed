"""Tables and a picture of where a claim's time goes, of every kind of latency, and of schedules."""

from collections.abc import Callable, Sequence
from typing import Final

from killproof_bench.report import Table, figure, number
from killproof_bench.result import Anatomy, Cell

#: Of the picture: a share of a sixtieth is the least that is seen.
COLUMNS: Final = 60

#: The parts of a call in the order in which they follow each other, with the letter that draws
#: each. What is at both ends of a call is Python.
PARTS: Final[Sequence[tuple[str, str, Callable[[Anatomy], float]]]] = (
    ("python", "p", lambda anatomy: anatomy.python_ms),
    ("wait, lock held", "w", lambda anatomy: anatomy.wait_held_ms),
    ("wait, lock idle", "i", lambda anatomy: anatomy.wait_idle_ms),
    ("statements", "s", lambda anatomy: anatomy.sql_ms),
    ("commit", "C", lambda anatomy: anatomy.commit_ms),
    ("checkpoint", "K", lambda anatomy: anatomy.checkpoint_ms),
    ("sync", "y", lambda anatomy: anatomy.sync_ms),
)


def timed(cells: Sequence[Cell]) -> list[tuple[Cell, Anatomy]]:
    """Return the cells whose calls were timed from inside."""
    return [(cell, cell.anatomy) for cell in cells if cell.anatomy is not None]


def parts_table(cells: Sequence[Cell]) -> Table:
    """Return the mean of each part of a call, in ms."""
    head = ("workers", "arm", "one call, ms", *(f"{name}, ms" for name, _, _ in PARTS))
    return head, [
        (
            str(cell.workers),
            cell.arm,
            number(anatomy.total_ms),
            *(number(part(anatomy)) for _, _, part in PARTS),
        )
        for cell, anatomy in timed(cells)
    ]


def lock_table(cells: Sequence[Cell]) -> Table:
    """Return what the lock cost, and the processor."""
    head = (
        "workers",
        "arm",
        "lock wait p50, p99, ms",
        "lock hold p50, p99, ms",
        "retries a call",
        "lock held",
        "idle while wanted",
        "CPU user + system, us a job",
        "run delay, us a job",
        "switches a job",
    )
    return head, [
        (
            str(cell.workers),
            cell.arm,
            f"{number(anatomy.lock_wait_p50_ms)}, {number(anatomy.lock_wait_p99_ms)}",
            f"{number(anatomy.lock_hold_p50_ms)}, {number(anatomy.lock_hold_p99_ms)}",
            "unseen" if anatomy.retries is None else f"{anatomy.retries:.3f}",
            f"{anatomy.lock_held:.0%}",
            f"{anatomy.idle_while_wanted:.1%}",
            f"{anatomy.user_us:,.0f} + {anatomy.system_us:,.0f}",
            f"{anatomy.run_delay_us:,.0f}",
            f"{anatomy.switches:.2f}",
        )
        for cell, anatomy in timed(cells)
    ]


def picture(cells: Sequence[Cell]) -> str:
    """Draw each cell's mean call as one line that is divided like its time, in plain ASCII."""
    lines = ["where the time of a call goes, each line one mean call"]
    for cell, anatomy in timed(cells):
        sizes = [part(anatomy) for _, _, part in PARTS]
        drawn = "".join(
            letter * size
            for (_, letter, _), size in zip(PARTS, shares(sizes, COLUMNS), strict=True)
        )
        lines.append(
            f"{cell.workers:>3} {cell.arm:<9} |{drawn:<{COLUMNS}}| {number(anatomy.total_ms)} ms"
        )
    lines.append("  ".join(f"{letter} {name}" for name, letter, _ in PARTS))
    return "\n".join(lines)


def shares(sizes: Sequence[float], columns: int) -> list[int]:
    """Divide so many columns like the sizes, to the last one (largest remainders).

    >>> shares([1.0, 1.0, 2.0], 10)
    [3, 2, 5]
    """
    whole = sum(sizes)
    if whole <= 0:
        return [0] * len(sizes)
    exact = [max(0.0, size) / whole * columns for size in sizes]
    found = [int(share) for share in exact]
    rest = sorted(range(len(sizes)), key=lambda place: found[place] - exact[place])
    for place in rest[: columns - sum(found)]:
        found[place] += 1
    return found


def latency_table(cells: Sequence[Cell]) -> Table:
    """Return every kind of latency, each from its own beginning."""
    head = (
        *("workers", "arm", "latency", "from"),
        *("p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms"),
    )
    return head, [
        (
            str(cell.workers),
            cell.arm,
            latency.kind,
            "the call's begin" if latency.basis == "operation" else "its intended time",
            figure(latency.p50_ms),
            figure(latency.p90_ms),
            figure(latency.p99_ms),
            figure(latency.p999_ms),
            number(latency.max_ms),
        )
        for cell in cells
        for latency in cell.latencies
    ]


def schedule_table(cells: Sequence[Cell]) -> Table:
    """Return how the schedules of the open loops were kept."""
    head = (
        *("workers", "arm", "offered, jobs/s", "done, jobs/s"),
        *("began late", "never made", "unclaimed at the end", "empty polls"),
    )
    return head, [
        (
            str(cell.workers),
            cell.arm,
            number(cell.schedule.offered_per_s),
            number(cell.schedule.done_per_s),
            f"{cell.schedule.late:,}",
            f"{cell.schedule.skipped:,}",
            f"{cell.schedule.left:,}",
            f"{cell.schedule.empty_polls:,}",
        )
        for cell in cells
        if cell.schedule is not None
    ]
