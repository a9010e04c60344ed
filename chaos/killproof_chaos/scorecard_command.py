"""The command `killproof chaos scorecard`: many queues judged the same way, a row each.

Exit codes: 0 no confirmed violation and all controls pass, 1 a violation was confirmed, 2 a queue
could not be run, a control did not pass, or interrupted, 3 the harness failed, 64 wrong usage.
"""

import json
import shlex
import sys
import time
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from killproof_chaos.command import (
    EXIT_OF,
    PLAIN_SECONDS,
    TERMINAL_SECONDS,
    JsonOption,
    StoreOption,
    console,
    harness,
    refuse_unwritable,
    within,
)
from killproof_chaos.prove_command import SEED_MAX
from killproof_chaos.resuming import alone, place_of
from killproof_chaos.sim_command import seconds_of
from killproof_evidence.store import write_json

RECORD: Final = "scorecard.json"


def scorecard(
    only: Annotated[
        list[str] | None, typer.Option(help="Only this queue; may be given several times.")
    ] = None,
    budget_each: Annotated[
        str, typer.Option(help="For each queue, at least; confirming comes on top.")
    ] = "1m",
    seed: Annotated[int, typer.Option(help="Of all runs.")] = 1,
    notes: Annotated[
        Path | None, typer.Option(help="What people found in the code: TOML, [QUEUE] P1 = text.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write FILE.md, and FILE.html beside it.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge public queues and two healthy controls, each on what it promises, and print one table.

    A violation is printed as one when it was seen again: in each of three tries of an engine that
    repeats itself, in at least eight of ten runs where only real processes show it. With the STORE
    of a run that was interrupted, it goes on. Queues are fetched at their first use.
    """
    # Here, so that other commands need not wait for it.
    from killproof_chaos.scorecard import making, rows

    asked = making.Asked(
        only=tuple(dict.fromkeys(only or ())),
        budget=seconds_of(budget_each),
        seed=within("seed", seed, 0, SEED_MAX),
    )
    rows.names(asked.only)  # Refuses before a store is made.
    remarks = _notes(notes)
    if report is not None:
        refuse_unwritable("--report", report)
    folder = place_of(store, "scorecard")
    with alone(folder), harness(), _Progress() as progress:
        cards, interrupted = making.make(asked, folder, progress.show)
    verdict = verdict_of(cards, interrupted=interrupted)
    record: dict[str, Any] = {
        "schema": 1,
        "cards": cards,
        "notes": remarks,
        "argv": asked.argv(),
        "budget": asked.budget,
        "seed": asked.seed,
        "interrupted": interrupted,
        "version": version("killproof"),
        "ended": time.time(),
        "verdict": verdict,
    }
    write_json(folder / RECORD, record)
    _tell(record, folder, report, as_json=as_json)
    raise typer.Exit(EXIT_OF[verdict])


def verdict_of(cards: list[dict[str, Any]], *, interrupted: bool) -> str:
    """Return the word for all: what is printed of others is one thing, that it is sound another."""
    controls = [card["verdict"] for card in cards if card["control"]]
    if any(card["verdict"] == "violated" for card in cards):
        return "violated"
    unsure = interrupted or any(word != "pass" for word in controls)
    return "unknown" if unsure or any(card["verdict"] == "failed" for card in cards) else "pass"


def _notes(path: Path | None) -> Mapping[str, Mapping[str, str]]:
    """Read what people have found in the code of a queue.

    Raises:
        ValueError: it is no such file; definite.
    """
    if path is None:
        return {}
    try:
        found: dict[str, dict[str, str]] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--notes {str(path)!r} cannot be read ({error}): give TOML with a table for a queue"
        ) from None
    if not all(isinstance(table, dict) for table in found.values()):
        raise ValueError(f"--notes {str(path)!r} has text outside of a table: write [QUEUE] first")
    return found


def _tell(record: dict[str, Any], folder: Path, report: Path | None, *, as_json: bool) -> None:
    from killproof_chaos import report_scorecard

    out = console(stderr=as_json)
    for part in report_scorecard.terminal(record):
        out.print(part, highlight=False)
    pages = [report_scorecard.write_reports(record, folder / "scorecard.md")]
    if report is not None:
        pages.append(report_scorecard.write_reports(record, report))
    lines = [f"again:  {shlex.join(record['argv'])}", *(f"report: {page}" for page in pages)]
    print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps(record))


class _Progress:
    """Says how far it is: a line that is written over on a terminal, else one now and then."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._latest = 0.0

    def __enter__(self) -> "_Progress":
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the line free."""
        if self._console.is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, line: str) -> None:
        """Show a line, not too often."""
        is_terminal = self._console.is_terminal
        now = time.monotonic()
        if now - self._latest < (TERMINAL_SECONDS if is_terminal else PLAIN_SECONDS):
            return
        self._latest = now
        cut = line[: max(20, self._console.width - 1)] if is_terminal else line
        print(f"\r\x1b[K{cut}" if is_terminal else cut, end="" if is_terminal else "\n",
              file=sys.stderr, flush=True)  # fmt: skip
