"""The command `killproof chaos disk`: a power cut at every point of one recorded run.

The engine and its page are imported where they are used: `command.py` says why.
"""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from killproof_chaos.command import (
    Ending,
    JsonOption,
    JunitOption,
    ReportOption,
    StoreOption,
    TargetOption,
    UnknownOption,
    conclude,
    harness,
    new_store,
    points_of,
    shown,
    within,
)
from killproof_chaos.engines.disk_policy import Policy
from killproof_evidence.store import Store

if TYPE_CHECKING:
    from killproof_chaos.engines.disk import Show
    from killproof_chaos.engines.disk_verdict import Turn

#: Of a run that nobody sized: seconds of work, and enough for every fault of the gallery.
POINTS: Final = 150
#: Enough for checkpoints and new logs, few enough for a file that is copied in a millisecond.
JOBS: Final = 80
#: Fewer hardly meet everything that a run must have seen.
JOBS_MIN: Final = 20
JOBS_MAX: Final = 10_000
SEED_MAX: Final = 2**32 - 1


def cut(
    target: TargetOption = "killproof",
    points: Annotated[
        str, typer.Option(help="How many power cuts, spread evenly over the run; or all.")
    ] = str(POINTS),
    policy: Annotated[
        str, typer.Option(help="What becomes of what is pending, comma separated.")
    ] = ",".join(Policy),
    seed: Annotated[
        int | None, typer.Option(help="Decides jobs and drawn policies; drawn when not given.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Jobs of the recorded run.")] = JOBS,
    fail_fast: Annotated[
        bool, typer.Option(help="Stop at the first image that breaks a promise.")
    ] = False,
    store: StoreOption = None,
    unknown: UnknownOption = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
    report: ReportOption = True,
) -> None:
    """Record one run, then cut the power at every point of it, and look what is left.

    Everything that a process had been told by then must be in the file that the queue opens
    afterwards. The policies say what the disk keeps of that which no sync had made durable: keep
    all, drop all, a random subset, torn sectors, or the data without names and sizes.
    """
    from killproof_chaos.engines import disk
    from killproof_chaos.engines.disk_verdict import Options

    options = Options(
        target=target,
        points=points_of(points),
        policies=policies_of(policy),
        seed=within("seed", disk.drawn_seed() if seed is None else seed, 0, SEED_MAX),
        jobs=within("jobs", jobs, JOBS_MIN, JOBS_MAX),
        fail_fast=fail_fast,
    )
    ending = Ending(unknown=unknown, junit=junit, as_json=as_json, report=report)
    seed_text = str(options.seed)
    place = new_store(store, "disk", Path(target).stem, seed_text, told=f"seed {seed_text}, ")
    perform(lambda show: disk.run(options, place, show), place, ending)


def check(store: Store, ending: Ending) -> None:
    """Judge a recorded run again, from its log alone."""
    from killproof_chaos.engines import disk

    perform(lambda show: disk.again(store, show), store, ending)


def perform(judge: "Callable[[Show], dict[str, Any]]", store: Store, ending: Ending) -> None:
    """Judge, show how far that is, write the page, and end with the exit code of the verdict."""
    from killproof_chaos.engines.disk_verdict import POINTS as POINTS_FILE
    from killproof_evidence.judge import render_rows

    # A run that is told to end gives back its room in RAM, and says what it had seen.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with harness(), shown(text_of) as show:
        record = judge(show)
    rows = [row for row in render_rows(record) if row.verdict != "not_judged"]
    has_points = (store.path / POINTS_FILE).exists()
    places = ending.page(_write_page, store.path) if has_points else ()
    conclude(record, ending, rows=rows, figures=figures(record), places=places)


def _write_page(folder: Path) -> Path:
    from killproof_chaos.report_disk import write_report

    return write_report(folder)


def policies_of(text: str) -> tuple[Policy, ...]:
    """Return the chosen policies in their fixed order.

    Raises:
        ValueError: one is unknown, or none is named.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in set(Policy):
            raise ValueError(f"--policy {word!r} is unknown: use {', '.join(Policy)}")
    if not words:
        raise ValueError(f"--policy {text!r} names none: use {', '.join(Policy)}")
    return tuple(policy for policy in Policy if policy in words)


def figures(record: dict[str, Any]) -> list[str]:
    """Return what was measured beside the verdict, a line each."""
    from killproof_chaos import summary

    counts, found = record["counts"], record["properties"]["P1"]
    lines = []
    if "figures" in found:
        lost = found["figures"]
        line = (
            f"acknowledgements gone in {lost['images_lost']:,} of {counts['images']:,} images, "
            f"at {lost['points_lost']:,} points, at most {lost['worst']:,} at once"
        )
        if found["verdict"] == "not_judged" and lost["images_lost"]:
            line += "; the contract promises level process, so no promise is broken"
        lines.append(line)
    lines.append(f"{counts['images_per_second']:,} images/s")
    return lines + summary.figures(record)


def text_of(turn: "Turn") -> str:
    """Return how far the engine is, and how long it still takes."""
    if turn.phase == "record":
        return "recording a run"
    left = turn.seconds / turn.done * (turn.total - turn.done) if turn.done else 0.0
    return (
        f"{turn.done:,} of {turn.total:,} images, {turn.distinct:,} distinct, "
        f"{turn.lost:,} with a loss, about {left:.0f} s left"
    )
