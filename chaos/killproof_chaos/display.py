"""What a person sees while a run is under way: a bar with the time left, or plain lines.

It writes to stderr, so that stdout stays for results. Without a terminal there is a line every few
seconds, which a log can keep.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from killproof_chaos.engines.proc import Progress as Turn
from killproof_chaos.engines.proc import Show
from killproof_chaos.plan import Options

PLAIN_SECONDS: Final = 5.0
PHASE_TEXT: Final = {
    "starting": "starting",
    "chaos": "killing and stopping",
    "drain": "healed: the queue finishes its jobs",
    "stop": "asking everybody to end",
    "judge": "judging what was recorded",
}


@contextmanager
def shown(options: Options, places: int, console: Console) -> Iterator[Show]:
    """Give the function that shows the progress of this run."""
    if console.is_terminal:
        with _bar(options, places, console) as show:
            yield show
    else:
        yield _Plain(options, places).show


@contextmanager
def _bar(options: Options, places: int, console: Console) -> Iterator[Show]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[left]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=options.seconds, left="")

        def show(turn: Turn) -> None:
            left = options.seconds - turn.elapsed
            text = f"{left:.0f} s left" if left > 0 else "until all has hit"
            progress.update(
                task,
                description=f"{PHASE_TEXT[turn.phase]}: {_figures(turn, options, places)}",
                completed=min(turn.elapsed, options.seconds),
                left=text if turn.phase == "chaos" else "",
            )

        yield show


class _Plain:
    """Lines for a log: one at each change of phase, and one every few seconds."""

    def __init__(self, options: Options, places: int) -> None:
        self._options = options
        self._places = places
        self._phase = ""
        self._next = 0.0

    def show(self, turn: Turn) -> None:
        """Write a line if one is due."""
        if turn.phase == self._phase and turn.elapsed < self._next:
            return
        self._phase, self._next = turn.phase, turn.elapsed + PLAIN_SECONDS
        figures = _figures(turn, self._options, self._places)
        print(f"{turn.elapsed:5.1f} s  {PHASE_TEXT[turn.phase]}: {figures}", file=sys.stderr)


def _figures(turn: Turn, options: Options, places: int) -> str:
    if turn.phase in ("drain", "stop") and turn.counts:
        states = sorted(turn.counts.items())
        return ", ".join(f"{count} {state}" for state, count in states)
    parts = [
        f"{seen}/{asked} {name}s"
        for name, seen, asked in (
            ("kill", turn.kills, options.kills),
            ("pause", turn.pauses, options.pauses),
        )
        if name in options.nemeses
    ]
    if parts:
        parts.append(f"{turn.cells} of {places} places")
    return ", ".join([*parts, f"{turn.enqueued} enqueued"])
