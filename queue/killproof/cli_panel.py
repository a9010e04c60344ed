"""The command that watches a queue, and the panel that `killproof work --panel` draws.

On a terminal it is drawn in place, once a second; anywhere else it is a block of plain lines every
30 seconds.  Each state has a sign and its word, so nothing is told by colour alone.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from killproof.cli_terminal import DB_DEFAULT, AsJson, Db, existing, plain, seconds_of, style_of
from killproof.panel import BLOCK_SECONDS, Lines, Look, Panel, Showing, rates, sign
from killproof.web_reading import OpenFile
from killproof.wording import moment, one_line, printable, span

if TYPE_CHECKING:
    from rich.console import Console, Group

app = typer.Typer()

#: Between two looks on a terminal.
LIVE_SECONDS: Final = 1.0
#: Opening waits for a lock only while the log of a queue that was killed is recovered.
OPEN_BUSY_SECONDS: Final = 5.0

Every = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Between two looks; 1s on a terminal, else 30s."),
]
Once = Annotated[bool, typer.Option("--once", help="Look once and leave.")]


@app.command()
def panel(
    db: Db = DB_DEFAULT, every: Every = None, once: Once = False, as_json: AsJson = False
) -> None:
    """Watch a queue: jobs by state, retries, rates, the oldest, the latest failures.

    It takes no lock and needs no worker.  With --json each look is one object in a line.
    """
    watch(db, every=every, is_once=once, as_json=as_json)


def watch(db: Path, *, every: str | None, is_once: bool, as_json: bool) -> None:
    """Show a queue until Ctrl-C or SIGTERM."""
    seconds = None if every is None else seconds_of(every, "--every")
    former = signal.signal(signal.SIGTERM, _leave)
    try:
        with existing(db) as queue:
            path, host = queue.path, queue.host
        # A panel stands for days: a file that is gone ends it, and another one is opened anew.
        file = OpenFile(path, busy_limit=OPEN_BUSY_SECONDS, host=host)
        with contextlib.closing(file), shown(seconds, as_json=as_json) as panel:
            while True:
                queue, is_new = file.queue()
                if is_new:
                    showing = Showing(queue, panel)
                rest = showing.step()
                if is_once:
                    return
                host.clock.sleep(rest)
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, former)


def _leave(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def shown(seconds: float | None = None, *, as_json: bool = False) -> Iterator[Panel]:
    """Give the panel that standard output can show."""
    if as_json:
        yield _Objects(BLOCK_SECONDS if seconds is None else seconds)
    elif sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        with Drawn(LIVE_SECONDS if seconds is None else seconds) as panel:
            yield panel
    else:
        seconds = BLOCK_SECONDS if seconds is None else seconds
        yield Lines(_print, seconds=seconds, with_signs=_has_signs())


def _print(text: str) -> None:
    print(text, flush=True)


def _has_signs() -> bool:
    """Whether the stream can write the signs."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


class _Objects:
    """A panel for programs: one object a line."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def show(self, look: Look) -> None:
        """Print a line."""
        _print(json.dumps(asdict(look), ensure_ascii=not _has_signs()))


class Drawn:
    """A panel on a terminal, drawn over itself; lines written meanwhile go above it."""

    def __init__(self, seconds: float = LIVE_SECONDS, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self.seconds = seconds
        self._has_signs = _has_signs()
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, look: Look) -> None:
        """Draw it."""
        self._live.update(drawing(look, with_signs=self._has_signs), refresh=True)

    def write(self, text: str) -> None:
        """Write lines above the panel."""
        self._console.print(text, markup=False, soft_wrap=True)


def drawing(look: Look, *, with_signs: bool = True) -> "Group":
    """Return the panel as something that `rich` draws."""
    from rich.console import Group
    from rich.text import Text

    from killproof.cli_terminal import table_of

    states = table_of("", "state", "jobs", "retries", right=("jobs", "retries"))
    for one in look.states:
        retries = "" if one.retries is None else f"{one.retries:.1f}"
        beside = sign(one.state) if with_signs else ""
        style = style_of(one.state, one.count)
        states.add_row(beside, one.state, f"{one.count:,}", retries, style=style)
    head = Text(f"{one_line(look.path)}  {moment(look.now_ms)}", style="bold", no_wrap=True)
    parts: list[object] = [head, states, Text(rates(look))]
    if look.latest_failures:
        table = table_of("latest failures", "kind", "retries", "ago", "error", right=("retries",))
        for died in look.latest_failures:
            ago = span(max(0, look.now_ms - died.finished_ms))
            kind = plain(printable(died.kind))
            table.add_row(str(died.job_id), kind, str(died.retries), ago, plain(died.error))
        parts += [Text(), table]
    return Group(*parts)  # type: ignore[arg-type]  # Texts and tables, all of which it draws.
