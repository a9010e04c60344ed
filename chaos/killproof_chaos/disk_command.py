"""The command `killproof chaos disk`: a power cut at every point of one recorded run."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from killproof_chaos import summary
from killproof_chaos.engines import disk
from killproof_chaos.engines.crew import EngineFailed
from killproof_chaos.engines.disk_model import Policy
from killproof_evidence.judge import render_rows
from killproof_evidence.store import Store

EXIT_OF: Final = {"pass": 0, "violated": 1, "unknown": 2}
EXIT_FAILED: Final = 3
STORES: Final = "killproof-store"
#: Of a run that nobody sized: about a second of work for every thousand images and core.
POINTS: Final = 1_000
#: Enough for checkpoints and new logs, few enough for a file that is copied in a millisecond.
JOBS: Final = 80
JOBS_MAX: Final = 10_000
SEED_MAX: Final = 2**32 - 1
PLAIN_SECONDS: Final = 5.0
FILE_COLUMNS: Final = 110


def cut(
    target: Annotated[
        str, typer.Option(help="A name from `chaos targets`, package.module:attribute, or path.py.")
    ] = "killproof",
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
    store: Annotated[
        Path | None, typer.Option(help="A new folder for all evidence of the run.")
    ] = None,
    unknown: Annotated[
        str | None, typer.Option(help="pass or fail: how to exit when the verdict is unknown.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write the verdict as JUnit XML.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print verdict.json on stdout.")] = False,
) -> None:
    """Record one run, then cut the power at every point of it, and look what is left.

    Everything that a process had been told by then must be in the file that the queue opens
    afterwards. The policies say what the disk keeps of that which no sync had made durable: keep
    all, drop all, a random subset, torn sectors, or the data without names and sizes.
    """
    options = disk.Options(
        target=target,
        points=points_of(points),
        policies=policies_of(policy),
        seed=_within("seed", disk.drawn_seed() if seed is None else seed, 0, SEED_MAX),
        jobs=_within("jobs", jobs, 4, JOBS_MAX),
    )
    if unknown not in (None, "pass", "fail"):
        raise ValueError(f"--unknown {unknown!r} is neither pass nor fail")
    name = f"disk-{Path(target).stem}-{options.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    place = Store.create(store or Path(STORES) / name.replace(":", "-"))
    print(f"seed {options.seed}, evidence in {place.path}", file=sys.stderr)
    perform(lambda show: disk.run(options, place, show), unknown, junit, as_json=as_json)


def check(store: Store, unknown: str | None, junit: Path | None, *, as_json: bool) -> None:
    """Judge a recorded run again, from its log alone."""
    perform(lambda show: disk.again(store, show), unknown, junit, as_json=as_json)


def refuse_plan(folder: Path) -> None:
    """Refuse to replay a run of this engine: it has no plan, and is repeated by its command.

    Raises:
        ValueError: the folder holds such a run; the message names the command.
    """
    store = Store(folder)
    record = store.read_run() if store.run.exists() else {}
    if record.get("engine") == "disk":
        raise ValueError(
            f"{folder} is a run of the engine disk, which has no plan: judge it again with "
            f"`killproof chaos check {folder}`, or repeat it with `{record['replay']}`"
        )


def perform(
    judge: Callable[[disk.Show], dict[str, Any]],
    unknown: str | None,
    junit: Path | None,
    *,
    as_json: bool,
) -> None:
    """Judge, show how far that is, and end with the exit code of the verdict."""
    try:
        with shown(Console(stderr=True)) as show:
            record = judge(show)
    except EngineFailed as error:
        print(
            f"killproof: the harness failed, which says nothing of the queue: {error}",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED) from None
    if junit is not None:
        junit.write_bytes(summary.junit(record, list(render_rows(record))))
    conclude(record, unknown, as_json=as_json)


def points_of(text: str) -> int | None:
    """Return how many points; None for all.

    Raises:
        ValueError: it is neither `all` nor a number from 1.
    """
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--points {text!r} is neither all nor a number from 1")
    return int(text)


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


def headline(record: dict[str, Any]) -> str:
    """Return the result in one sentence."""
    counts = record["counts"]
    extent = (
        f"in {counts['images']:,} power cuts ({counts['distinct']:,} distinct images), "
        f"{counts['acknowledged']:,} acknowledgements"
    )
    return summary.sentence(record, extent)


def figures(record: dict[str, Any]) -> list[str]:
    """Return what was measured beside the verdict, a line each."""
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


def conclude(record: dict[str, Any], unknown: str | None, *, as_json: bool) -> None:
    """Print the verdict and end with its exit code."""
    out = Console(stderr=as_json)
    if not out.is_terminal:
        out.width = FILE_COLUMNS
    out.print(summary.table([row for row in render_rows(record) if row.verdict != "not_judged"]))
    for line in figures(record):
        out.print(line, style="dim", markup=False, highlight=False)
    for story in summary.stories(record):
        out.print(story, style="red", markup=False, highlight=False)
    for reason in summary.reasons(record):
        out.print(f"unknown because {reason}", style="yellow", markup=False, highlight=False)
    out.print(headline(record), style="bold", markup=False, highlight=False)
    # Plain print: a command that is folded to the width can not be pasted.
    print(f"again:  {record['replay']}", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps(record, ensure_ascii=False))
    code = EXIT_OF[record["verdict"]]
    if code == EXIT_OF["unknown"] and unknown is not None:
        code = 0 if unknown == "pass" else 1
    raise typer.Exit(code)


@contextmanager
def shown(console: Console) -> Iterator[disk.Show]:
    """Give the function that shows the progress: a bar with the time left, or plain lines."""
    if not console.is_terminal:
        yield _plain()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
    )
    # No thread of its own: the checking processes are forked from this one.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("recording a run", total=None)

        def show(turn: disk.Turn) -> None:
            progress.update(
                task, description=text_of(turn), completed=turn.done, total=turn.total or None
            )
            progress.refresh()

        yield _at_most_every(0.2, show)


def text_of(turn: disk.Turn) -> str:
    """Return how far the engine is, and how long it still takes."""
    if turn.phase == "record":
        return "recording a run"
    left = turn.seconds / turn.done * (turn.total - turn.done) if turn.done else 0.0
    return (
        f"{turn.done:,} of {turn.total:,} images, {turn.distinct:,} distinct, "
        f"{turn.lost:,} with a loss, about {left:.0f} s left"
    )


def _plain() -> disk.Show:
    return _at_most_every(PLAIN_SECONDS, lambda turn: print(text_of(turn), file=sys.stderr))


def _at_most_every(seconds: float, show: Callable[[disk.Turn], None]) -> disk.Show:
    latest = -seconds

    def seldom(turn: disk.Turn) -> None:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= seconds or turn.done == turn.total:
            latest = now
            show(turn)

    return seldom


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(f"--{name} {value} must be an integer from {low} to {high}")
    return value
