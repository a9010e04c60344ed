"""The commands of the gate: `killproof bench gate`, `calibrate` and `gate-proof`.

Exit codes of `gate`: 0 pass; 1 fail, head is slower; 2 inconclusive, unless `--unknown` says what
CI makes of it; 3 a tool failed, or an arm lost a job or did one twice, and the run is void; 64
wrong usage. `calibrate`: 0 the gate can promise here, 2 it can not.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from killproof_bench.command import (
    EXIT_FAILED,
    AsJson,
    Report,
    check_places,
    failed,
    progress,
    scratch,
    surroundings,
    within,
)

if TYPE_CHECKING:
    from killproof_bench.gate.result import GateResult, Recorded

EXIT_CODES: Final = {"pass": 0, "fail": 1, "inconclusive": 2}
WORKERS_MAX: Final = 16
BLOCKS_MAX: Final = 2_000
#: Where arms run: memory, so that the time is the code's and not a disk's.
MEMORY: Final = Path("/dev/shm")


class Unknown(StrEnum):
    """What the exit code makes of an inconclusive run."""

    PASS = "pass"
    FAIL = "fail"


Head = Annotated[
    Path, typer.Option(metavar="WORKTREE", help="The checkout to judge, as it is now.")
]
Workers = Annotated[int, typer.Option(metavar="N", help="Worker processes of a timed arm.")]
Place = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Where arms run; a RAM file system is right."),
]


def gate(
    base: Annotated[
        str, typer.Option(metavar="REV", help="What to compare with: its merge base with HEAD.")
    ],
    head: Head = Path("."),
    layer: Annotated[
        list[int] | None,
        typer.Option(help="Only this: 0 counters, 1 instructions, 2 time; may be repeated."),
    ] = None,
    workers: Workers = 1,
    retry: Annotated[bool, typer.Option(help="Time once more where it ended inconclusive.")] = True,
    unknown: Annotated[
        Unknown | None, typer.Option(help="The exit code of an inconclusive run; default 2.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE.xml", help="Also write JUnit XML.")
    ] = None,
    report: Report = None,
    directory: Place = None,
    as_json: AsJson = False,
) -> None:
    """Tell whether a change makes the queue slower, with known error rates."""
    within("--workers", workers, 1, WORKERS_MAX)
    for number in layer or ():
        within("--layer", number, 0, 2)
    if junit is not None and not junit.parent.is_dir():
        raise ValueError(f"--junit {str(junit)!r}: make the folder first")
    with _ready(directory, report) as (folder, show):
        from killproof_bench.gate import session

        options = session.Options(
            base=base,
            head=head,
            layers=tuple(sorted(set(layer))) if layer else session.LAYERS,
            workers=workers,
            retry=retry,
        )
        result = session.gate(
            options, folder, command=_command(), environment=surroundings(folder), show=show
        )
    from killproof_bench.gate import report as told

    _tell(result, told.terminal(result), told.markdown(result), report, as_json)
    _tell_ci(result, junit, doubt_passes=unknown is Unknown.PASS)
    if result.timing.correctness.verdict == "violated":
        raise typer.Exit(EXIT_FAILED)
    code = EXIT_CODES[result.verdict]
    if result.verdict == "inconclusive" and unknown is not None:
        code = 0 if unknown is Unknown.PASS else 1
    raise typer.Exit(code)


def calibrate(
    head: Head = Path("."),
    blocks: Annotated[int, typer.Option(metavar="N", help="A/A blocks to record.")] = 20,
    workers: Workers = 1,
    report: Report = None,
    directory: Place = None,
    as_json: AsJson = False,
) -> None:
    """Tell what the gate can promise on this machine, in about a minute."""
    within("--blocks", blocks, 2, BLOCKS_MAX)
    within("--workers", workers, 1, WORKERS_MAX)
    with _ready(directory, report) as (folder, show):
        from killproof_bench.gate import calibration

        result = calibration.calibrate(
            head,
            folder,
            count=blocks,
            workers=workers,
            durability="power",
            command=_command(),
            environment=surroundings(folder),
            show=show,
        )
    from killproof_bench.gate import report as told

    terminal, markdown = told.calibration_terminal(result), told.calibration_markdown(result)
    _tell(result, terminal, markdown, report, as_json)
    raise typer.Exit(EXIT_CODES[result.verdict])


def gate_proof(
    head: Head = Path("."),
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where blocks are kept; the same command goes on there."),
    ] = None,
    shams: Annotated[int, typer.Option(metavar="N", help="A/A blocks to record.")] = 200,
    slowdowns: Annotated[int, typer.Option(metavar="N", help="Blocks with a 10% spin.")] = 90,
    live: Annotated[int, typer.Option(metavar="N", help="Live runs of each sort.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the re-pairing.")] = 1,
    report: Report = None,
    directory: Place = None,
    as_json: AsJson = False,
) -> None:
    """Measure the gate's own error rates: shams, slowdowns, seeded regressions; 20 minutes."""
    within("--shams", shams, 0, BLOCKS_MAX)
    within("--slowdowns", slowdowns, 0, BLOCKS_MAX)
    within("--live", live, 0, BLOCKS_MAX)
    if store is not None and not store.parent.is_dir():
        raise ValueError(f"--store {str(store)!r}: make the folder above it first")
    with _ready(directory, report) as (folder, show):
        from killproof_bench.gate import proof
        from killproof_bench.gate.recorder import Goal

        result = proof.prove(
            head,
            folder,
            store or folder / "store",
            Goal(shams=shams, slowdowns=slowdowns, live=live),
            seed=seed,
            workers=1,
            command=_command(),
            environment=surroundings(folder),
            show=show,
        )
    from killproof_bench.gate import report_proof as told

    _tell(result, told.terminal(result), told.markdown(result), report, as_json)
    raise typer.Exit(EXIT_CODES[result.verdict])


@contextmanager
def _ready(
    directory: Path | None, report: Path | None
) -> Iterator[tuple[Path, Callable[[str, float], None]]]:
    """Give the scratch folder and the display; turn what a tool says into one line and exit 3."""
    place = directory or MEMORY
    if directory is None and not os.access(MEMORY, os.W_OK):
        place = Path(".")
        print(
            f"killproof bench: {MEMORY} cannot be written: arms run in {place.resolve()} and take "
            "its disk's time too; --dir names a RAM file system",
            file=sys.stderr,
        )
    check_places(place, report)
    from killproof_bench.gate.blocks import ArmError, Incorrect
    from killproof_bench.gate.checkout import CheckoutError

    try:
        with scratch(place) as folder, progress() as bar:
            task = bar.add_task("", total=None)

            def show(text: str, left: float) -> None:
                # The bar is the time spent of the time expected, which moves with the estimate.
                done = bar.tasks[task].elapsed or 0.0
                told = f"{text}, about {left:.0f} s"
                bar.update(task, description=told, completed=done, total=done + left)

            yield folder, show
    except (ArmError, CheckoutError, Incorrect) as error:
        raise failed(error) from error


def _tell(
    result: "Recorded", terminal: str, markdown: str, report: Path | None, as_json: bool
) -> None:
    """Print the result, and write the report in its three forms."""
    from killproof_bench.gate.result import to_json

    print(to_json(result) if as_json else terminal)
    if report is None:
        return
    from killproof_bench import page

    report.write_text(markdown, encoding="utf-8")
    report.with_suffix(".json").write_text(to_json(result) + "\n", encoding="utf-8")
    page.write(result, report.with_suffix(".html"))
    print(f"report: {report}, and .json and .html beside it", file=sys.stderr)


def _tell_ci(result: "GateResult", junit: Path | None, *, doubt_passes: bool) -> None:
    """Write what CI reads; where that fails, the verdict and its exit code stay."""
    from killproof_bench.gate import report as told

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    forms = [
        ("--junit", junit, "wb", told.junit(result, doubt_passes=doubt_passes)),
        ("GITHUB_STEP_SUMMARY", summary, "ab", told.summary(result).encode()),
    ]
    for what, place, mode, content in forms:
        if not place:
            continue
        try:
            with open(place, mode) as file:
                file.write(content)
        except OSError as error:
            print(f"killproof bench: {what} {str(place)!r}: {error.strerror}", file=sys.stderr)


def _command() -> str:
    return f"killproof {shlex.join(sys.argv[1:])}"
