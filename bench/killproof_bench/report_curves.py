"""Curves in plain ASCII: throughput over workers, and latency over the rate that is offered."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from killproof_bench.ascii_chart import Curve, curves
from killproof_bench.report import plan_name
from killproof_bench.result import ARMS, Cell, Latency, Setup

#: Two points are a line that anybody can draw in the head.
POINTS_MIN: Final = 3
_MARKS: Final = {ARMS[0]: "#", ARMS[1]: "-"}


def over_workers(cells: Sequence[Cell]) -> list[str]:
    """Return throughput over the number of workers, where there are enough numbers for a curve."""
    lines = [
        Curve(
            name=arm,
            mark=mark,
            points=[
                (float(cell.workers), cell.jobs_per_s.value)
                for cell in cells
                if cell.arm == arm and cell.jobs_per_s.value is not None
            ],
        )
        for arm, mark in _MARKS.items()
    ]
    if max(len(line.points) for line in lines) < POINTS_MIN:
        return []
    return [curves(lines, x_name="workers", y_name="jobs/s", log_x=True)]


def over_load(cells: Sequence[Cell]) -> list[str]:
    """Return p99 over the offered rate, one picture for all open loops that differ in it alone.

    It is of the latency that a user has: the time to claim, or the claim call from its intended
    time where nobody enqueues.
    """
    families: dict[tuple[int, Setup], list[Cell]] = {}
    for cell in cells:
        if cell.setup.loop == "open":
            family = replace(cell.setup, rate_per_s=0.0, backlog=0)
            families.setdefault((cell.workers, family), []).append(cell)
    return [
        picture
        for (workers, family), members in families.items()
        for picture in _load_picture(workers, family, members)
    ]


def _load_picture(workers: int, family: Setup, cells: Sequence[Cell]) -> list[str]:
    lines = [
        Curve(
            name=arm,
            mark=mark,
            points=[
                (cell.setup.rate_per_s, latency.p99_ms.value)
                for cell in cells
                if cell.arm == arm
                and (latency := _felt(cell)) is not None
                and latency.p99_ms.value is not None
            ],
        )
        for arm, mark in _MARKS.items()
    ]
    if max(len(line.points) for line in lines) < POINTS_MIN:
        return []
    what = "time to claim" if family.producers else "claim call from its intended time"
    like = plan_name(replace(family, loop="closed"))
    drawn = curves(
        lines,
        x_name="jobs/s offered",
        y_name=f"p99 of the {what}, ms; {workers} workers, {like}, {family.arrivals}",
        log_y=True,
    )
    return [drawn]


def _felt(cell: Cell) -> Latency | None:
    wanted = "time to claim" if cell.setup.producers else "claim call"
    for latency in cell.latencies:
        if (latency.kind, latency.basis) == (wanted, "intended"):
            return latency
    return None
