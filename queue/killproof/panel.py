"""The panel: how the queue stands, for somebody who watches a terminal.

A `Reader` looks: some short reads without any lock, none held open, so that a panel left running
overnight holds neither the writers nor the log back.  What a look costs grows with the jobs that
the file keeps, so who shows it rests `REST_PER_LOOK` times as long as the look took.

`block` makes plain lines of it, for logs and pipes; `killproof.cli_panel` draws it on a terminal.
"""

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from killproof.core import model
from killproof.core.database import Value
from killproof.core.errors import StorageFailed
from killproof.core.jobs import LEAVE_SECONDS, Queue
from killproof.heartbeat import SIGNALS
from killproof.wording import moment, one_line, span

#: The panel takes at most this part of a core: a look, then twenty times as long a rest.
REST_PER_LOOK: Final = 20
#: The article's interval, where lines scroll by.
BLOCK_SECONDS: Final = 30.0
FAILURES_SHOWN: Final = 5
ERROR_CHARS_SHOWN: Final = 80
#: In the mean of retries so many jobs of a state stand for all, those that ended last: 10 ms.
RETRIED_JOBS_MAX: Final = 10_000
RATE_WINDOW_MS: Final = 60_000

logger = logging.getLogger("killproof.panel")

#: A sign beside each state's word; the article's, and its question mark for the rest.
SIGNS: Final = {
    "available": "⏳",
    "scheduled": "⏳",
    "leased": "🔄",
    "succeeded": "✅",
    "dead": "❌",
    "retryable": "🔁",
}
SIGN_OTHER: Final = "❓"
#: The states that are shown also when no job is in them.
ALWAYS_SHOWN: Final = ("available", "leased", "succeeded", "dead", "retryable")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The jobs in one state."""

    state: str
    count: int
    retries: float | None  #: mean number of attempts after the first; None without a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """One of the latest jobs that died."""

    job_id: int
    kind: str
    retries: int
    error: str  #: its class and the beginning of its message, in one line
    finished_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How the queue stood at one moment."""

    path: str
    now_ms: int
    states: tuple[State, ...]
    latest_failures: tuple[Died, ...]
    oldest_waiting_ms: int  #: 0: no job is due and waits
    succeeded_per_second: float  #: of the latest minute
    died_per_second: float
    enqueued_per_second: float | None  #: since the look before; None: there was none
    slots: int | None  #: of this process; None: it has none
    slots_used: int  #: jobs that run; in all processes where this one has no slots


class Panel(Protocol):
    """What shows looks; its `show` may block, and is called in a thread."""

    @property
    def seconds(self) -> float:
        """How long a look stands."""

    def show(self, look: Look) -> None:
        """Show it."""


class Reader:
    """Looks at one queue, again and again."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._enqueued: tuple[int, int] | None = None  # (when, how many so far) of the last look.

    # Each names its states as literals: only then is the partial index of those states used.

    RETRIES_OF_LIVING: Final = """
        SELECT 'available', avg(n)
          FROM (SELECT deliveries - forgiven AS n FROM job WHERE state = 'available' LIMIT :limit)
        UNION ALL
        SELECT 'leased', avg(n)
          FROM (SELECT deliveries - forgiven - 1 AS n FROM job WHERE state = 'leased' LIMIT :limit)
        UNION ALL
        SELECT state, avg(n)
          FROM (SELECT state, deliveries - forgiven AS n FROM job
                 WHERE state IN ('scheduled', 'retryable') LIMIT :limit) GROUP BY state
        UNION ALL
        SELECT state, avg(n)
          FROM (SELECT state, deliveries - forgiven AS n FROM job
                 WHERE state IN ('blocked', 'held') LIMIT :limit) GROUP BY state"""

    RETRIES_OF_ENDED: Final = """
        SELECT avg(max(deliveries - forgiven - 1, 0))
          FROM (SELECT deliveries, forgiven FROM job
                 WHERE state = :state AND finished_ms IS NOT NULL
                 ORDER BY finished_ms DESC LIMIT :limit)"""

    LATEST_FAILURES: Final = """
        SELECT id, kind, max(deliveries - forgiven - 1, 0), error_class, error_message, finished_ms
          FROM job WHERE state = 'dead' AND finished_ms IS NOT NULL
         ORDER BY finished_ms DESC, id DESC LIMIT :limit"""

    OLDEST: Final = "SELECT min(due_ms) FROM job WHERE state = 'available'"

    ENDED_SINCE: Final = """
        SELECT count(*) FROM job
         WHERE state = :state AND finished_ms IS NOT NULL AND finished_ms >= :since_ms"""

    LAST_ID: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'job'"

    def look(self, *, slots: int | None = None, slots_used: int | None = None) -> Look:
        """Return how it stands now.

        Args:
            slots: of this process, if it has any.
            slots_used: of these.

        Raises:
            DatabaseBusy, StorageFailed: definite.
        """
        peek = self._queue.database.peek
        now_ms = self._queue.host.clock.now_ms()
        counts = {cast(str, s): cast(int, n) for s, n in peek(Queue.COUNTS)}
        limit: dict[str, Value] = {"limit": RETRIED_JOBS_MAX}
        retries = {cast(str, s): r for s, r in peek(self.RETRIES_OF_LIVING, limit)}
        for state in model.TERMINAL:
            if counts.get(state):
                ((retries[state],),) = peek(self.RETRIES_OF_ENDED, limit | {"state": state})
        ((oldest_ms,),) = peek(self.OLDEST)
        return Look(
            path=self._queue.path,
            now_ms=now_ms,
            states=tuple(
                State(
                    state=state,
                    count=counts.get(state, 0),
                    retries=cast(float | None, retries.get(state)),
                )
                for state in model.STATES
                if counts.get(state) or state in ALWAYS_SHOWN
            ),
            latest_failures=tuple(
                _died(row) for row in peek(self.LATEST_FAILURES, {"limit": FAILURES_SHOWN})
            ),
            oldest_waiting_ms=0 if oldest_ms is None else max(0, now_ms - cast(int, oldest_ms)),
            succeeded_per_second=self._rate("succeeded", now_ms),
            died_per_second=self._rate("dead", now_ms),
            enqueued_per_second=self._enqueued_rate(now_ms),
            slots=slots,
            slots_used=counts.get("leased", 0) if slots_used is None else slots_used,
        )

    def _rate(self, state: str, now_ms: int) -> float:
        values: dict[str, Value] = {"state": state, "since_ms": now_ms - RATE_WINDOW_MS}
        ((count,),) = self._queue.database.peek(self.ENDED_SINCE, values)
        return cast(int, count) / (RATE_WINDOW_MS / 1_000)

    def _enqueued_rate(self, now_ms: int) -> float | None:
        """Return how many jobs came in a second since the last look: ids are never used twice."""
        rows = self._queue.database.peek(self.LAST_ID)
        last = (now_ms, cast(int, rows[0][0]) if rows else 0)
        before, self._enqueued = self._enqueued, last
        if before is None or before[0] >= now_ms:
            return None
        return max(0, last[1] - before[1]) / ((now_ms - before[0]) / 1_000)


def _died(row: tuple[Value, ...]) -> Died:
    job_id, kind, retries, error_class, message, finished_ms = row
    # Whoever marks a job dead by hand writes no error; that must not end the panel.
    first = ": ".join(str(part) for part in (error_class or "Error", message or "") if part)
    return Died(
        job_id=cast(int, job_id),
        kind=str(kind),
        retries=cast(int, retries),
        error=one_line(first[:ERROR_CHARS_SHOWN]),
        finished_ms=cast(int, finished_ms),
    )


def sign(state: str) -> str:
    """Return the sign of a state.

    >>> sign("dead"), sign("held")
    ('❌', '❓')
    """
    return SIGNS.get(state, SIGN_OTHER)


def rates(look: Look) -> str:
    """Say in a line how fast jobs come and go, who waits, and what runs."""
    parts = [f"done {look.succeeded_per_second:.1f}/s", f"died {look.died_per_second:.1f}/s"]
    if look.enqueued_per_second is not None:
        parts.insert(0, f"enqueued {look.enqueued_per_second:.1f}/s")
    waiting = span(look.oldest_waiting_ms) if look.oldest_waiting_ms else "nothing"
    parts.append(f"oldest waiting: {waiting}")
    if look.slots is None:
        parts.append(f"running: {look.slots_used}")
    else:
        parts.append(f"slots: {look.slots_used} of {look.slots}")
    return " | ".join(parts)


def block(look: Look, *, with_signs: bool = True) -> str:
    """Return the panel as plain lines.

    Args:
        look: what to show.
        with_signs: beside the words; False where the stream can not write them.
    """
    lines = [f"--- {moment(look.now_ms)} {one_line(look.path)}"]
    for one in look.states:
        retries = "" if one.retries is None else f"  {one.retries:.1f} retries on average"
        beside = f"{sign(one.state)} " if with_signs else ""
        lines.append(f"{beside}{one.state:<10}{one.count:>9,}{retries}")
    lines.append(rates(look))
    for died in look.latest_failures:
        lines.append(
            f"job {died.job_id} {one_line(died.kind)} after {died.retries} retries: {died.error}"
        )
    return "\n".join(lines)


class Showing:
    """Shows a queue on a panel, in a thread, for as long as its block is not left.

    What goes wrong in it is left out of the panel, and nothing else notices: it must never stop
    the work.
    """

    def __init__(
        self,
        queue: Queue,
        panel: Panel,
        *,
        slots: int | None = None,
        slots_used: Callable[[], int] | None = None,
        on_storage_failed: Callable[[StorageFailed], object] = lambda _: None,
    ) -> None:
        """Prepare the thread; `with showing:` runs it.

        Args:
            queue: read on a connection of this thread.
            panel: where it is shown.
            slots: of this process, if it has any.
            slots_used: tells how many of them are used now.
            on_storage_failed: called in the thread when the disk has failed; it looks no more.
        """
        self._reader = Reader(queue)
        self._panel = panel
        self._clock = queue.host.clock
        self._slots = slots
        self._slots_used = slots_used
        self._on_storage_failed = on_storage_failed
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killproof-panel", daemon=True)

    def __enter__(self) -> "Showing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join(LEAVE_SECONDS)

    def step(self) -> float:
        """Look and show; return the seconds to rest before the next time."""
        started_ns = self._clock.monotonic_ns()
        used = None if self._slots_used is None else self._slots_used()
        self._panel.show(self._reader.look(slots=self._slots, slots_used=used))
        took = (self._clock.monotonic_ns() - started_ns) / 1e9
        return max(self._panel.seconds, took * REST_PER_LOOK)

    def _run(self) -> None:
        # Signals are for the main thread: delivered here they would not wake it.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        rest = 0.0
        while not self._leaving.wait(rest):
            try:
                rest = self.step()
            except StorageFailed as error:
                self._on_storage_failed(error)
                return
            except Exception as error:  # See the class.
                rest = self._panel.seconds
                logger.debug("the panel was not shown: %r", error)


class Lines:
    """A panel of plain lines, one block each time."""

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        seconds: float = BLOCK_SECONDS,
        with_signs: bool = True,
    ) -> None:
        """Prepare.

        Args:
            write: takes a block of lines; `print` will do.
            seconds: between two blocks.
            with_signs: as for `block`.
        """
        self._write = write
        self._seconds = seconds
        self._with_signs = with_signs

    @property
    def seconds(self) -> float:
        """How long a look stands."""
        return self._seconds

    def show(self, look: Look) -> None:
        """Write a block."""
        self._write(block(look, with_signs=self._with_signs))
