"""The queue's numbers as OpenMetrics text, for a scraper.

What is counted is what the file holds at this moment, so everything is a gauge: a total that fell
whenever old jobs are pruned would be taken for a restart.  What has happened (times, failure rates)
is told of the jobs that ended within a window, the latest ones if they are too many.

A scrape is some short reads and one look at the write lock, whose wait it reports.

Source of the text: the OpenMetrics specification 1.0, https://openmetrics.io.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

from killproof import limits_reading, presence, workflow_view
from killproof.core import model
from killproof.core.errors import DatabaseBusy
from killproof.core.jobs import Queue

#: What a scraper must be told: charset and version are part of the format.
CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
WINDOW_SECONDS_DEFAULT: Final = 3_600.0
#: Ended jobs of one state that are looked at: a quarter of a second of reading.
WINDOW_JOBS_MAX: Final = 100_000
#: Kinds that get a line of their own; a series for each of a million kinds helps nobody.
KINDS_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric with its samples; all are gauges."""

    name: str  #: without the prefix; ends in the unit if it has one
    help: str
    unit: str = ""
    samples: tuple[tuple[Mapping[str, str], float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What became of the jobs of one kind that ended within the window."""

    kind: str
    succeeded: int
    dead: int
    attempts: int  #: executions in all
    failed: int  #: of these, failed, crashed, or fallen silent
    created_to_done_ms: float | None  #: mean of those that succeeded
    execution_ms: float | None  #: mean of the last attempt of those that succeeded


def render(families: Iterable[Family]) -> str:
    """Return the text of the format, with its end mark."""
    lines = []
    for family in families:
        name = f"killproof_{family.name}"
        lines.append(f"# TYPE {name} gauge")
        if family.unit:
            lines.append(f"# UNIT {name} {family.unit}")
        lines.append(f"# HELP {name} {_escaped(family.help)}")
        for labels, value in family.samples:
            inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{name}{{{inside}}} {value:.12g}" if inside else f"{name} {value:.12g}")
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def collect(queue: Queue, *, window: float = WINDOW_SECONDS_DEFAULT) -> list[Family]:
    """Read the numbers.

    Args:
        queue: where from.
        window: seconds; times and rates are of the jobs that ended within them.

    Raises:
        ValueError: the window is no positive number of seconds; definite.
        KillproofError: as for `Queue.counts`.
    """
    window_ms = model.to_ms(window, "window", lowest_ms=1)
    return [
        *_depth(queue),
        *_history(ended(queue, window_ms), window_ms),
        *_people(queue),
        *_limits(queue),
        *_runs(queue),
        *_file(queue),
    ]


WAITING: Final = """
    SELECT kind, count(*) FROM job WHERE state = 'available'
     GROUP BY kind ORDER BY kind LIMIT :limit"""


def _depth(queue: Queue) -> Iterator[Family]:
    counts = queue.counts()
    yield Family(
        name="jobs",
        help="Jobs by state.",
        samples=tuple(({"state": state}, count) for state, count in counts.items()),
    )
    waiting = queue.database.peek(WAITING, {"limit": KINDS_MAX})
    yield Family(
        name="waiting_jobs",
        help="Jobs that are due and wait for a worker.",
        samples=tuple(({"kind": str(kind)}, cast(int, count)) for kind, count in waiting),
    )
    yield Family(
        name="oldest_waiting_seconds",
        help="How long the oldest job that is due has waited; 0 if none does.",
        unit="seconds",
        samples=(({}, oldest_ms(queue) / 1_000),),
    )


OLDEST: Final = "SELECT min(due_ms) FROM job WHERE state = 'available'"


def oldest_ms(queue: Queue) -> int:
    """Return how long the oldest job that is due has waited, in milliseconds; 0 without any."""
    ((due_ms,),) = queue.database.peek(OLDEST)
    return 0 if due_ms is None else max(0, queue.host.clock.now_ms() - cast(int, due_ms))


# Of each state the latest: the index of ended jobs gives them in order.

ENDED: Final = """
    SELECT kind, sum(state = 'succeeded'), sum(state = 'dead'), sum(failures + crashes),
           avg(iif(state = 'succeeded', finished_ms - created_ms, NULL)),
           avg(iif(state = 'succeeded', finished_ms - claimed_ms, NULL))
      FROM (SELECT * FROM (SELECT kind, state, failures, crashes, created_ms, claimed_ms,
                                  finished_ms
                             FROM job
                            WHERE state = 'succeeded' AND finished_ms IS NOT NULL
                              AND finished_ms >= :since_ms
                            ORDER BY finished_ms DESC LIMIT :limit)
             UNION ALL
            SELECT * FROM (SELECT kind, state, failures, crashes, created_ms, claimed_ms,
                                  finished_ms
                             FROM job
                            WHERE state = 'dead' AND finished_ms IS NOT NULL
                              AND finished_ms >= :since_ms
                            ORDER BY finished_ms DESC LIMIT :limit))
     GROUP BY kind ORDER BY kind LIMIT :kinds"""


def ended(queue: Queue, window_ms: int) -> list[Ended]:
    """Return what became of the jobs that ended within the window, by kind."""
    values = {
        "since_ms": queue.host.clock.now_ms() - window_ms,
        "limit": WINDOW_JOBS_MAX,
        "kinds": KINDS_MAX,
    }
    found = cast(
        list[tuple[str, int, int, int, float | None, float | None]],
        queue.database.peek(ENDED, values),
    )
    return [
        Ended(
            kind=kind,
            succeeded=succeeded,
            dead=dead,
            attempts=succeeded + failed,
            failed=failed,
            created_to_done_ms=done_ms,
            execution_ms=execution_ms,
        )
        for kind, succeeded, dead, failed, done_ms, execution_ms in found
    ]


def _history(kinds: list[Ended], window_ms: int) -> Iterator[Family]:
    yield Family(
        name="window_seconds",
        help="The times and rates are of the jobs that ended within so many seconds.",
        unit="seconds",
        samples=(({}, window_ms / 1_000),),
    )
    yield Family(
        name="ended_jobs",
        help="Jobs that ended within the window.",
        samples=tuple(
            ({"kind": one.kind, "state": state}, count)
            for one in kinds
            for state, count in (("succeeded", one.succeeded), ("dead", one.dead))
        ),
    )
    yield Family(
        name="failure_ratio",
        help="Failed executions of the jobs that ended within the window, by all of them.",
        unit="ratio",
        samples=tuple(
            ({"kind": one.kind}, one.failed / one.attempts) for one in kinds if one.attempts
        ),
    )
    yield Family(
        name="created_to_done_mean_seconds",
        help="Mean time from enqueue to success.",
        unit="seconds",
        samples=tuple(
            ({"kind": one.kind}, one.created_to_done_ms / 1_000)
            for one in kinds
            if one.created_to_done_ms is not None
        ),
    )
    yield Family(
        name="execution_mean_seconds",
        help="Mean time of the execution that succeeded.",
        unit="seconds",
        samples=tuple(
            ({"kind": one.kind}, one.execution_ms / 1_000)
            for one in kinds
            if one.execution_ms is not None
        ),
    )


def _people(queue: Queue) -> Iterator[Family]:
    with queue.database.read() as tx:
        found = presence.workers(queue, tx)
    states = {"alive": True, "dead": False, "untold": None}
    yield Family(
        name="workers",
        help="Registered workers; a dead one stays registered until another starts.",
        samples=tuple(
            ({"state": name}, sum(one.lives is lives for one in found))
            for name, lives in states.items()
        ),
    )


def _limits(queue: Queue) -> Iterator[Family]:
    """Yield the numbers of each limit; nothing where there is none."""
    with queue.database.read() as tx:
        found = limits_reading.read(queue, tx)[:KINDS_MAX]
    if not found:
        return
    yield Family(
        name="limit_running",
        help="Running jobs of each limited resource.",
        samples=tuple(({"limit": one.name}, one.running) for one in found),
    )
    yield Family(
        name="limit_running_max",
        help="How many may run at a time, of each resource where that is limited.",
        samples=tuple(
            ({"limit": one.name}, one.running_max) for one in found if one.running_max is not None
        ),
    )
    yield Family(
        name="limit_tokens",
        help="Jobs that may start now, of each resource whose rate is limited.",
        samples=tuple(({"limit": one.name}, one.tokens) for one in found if one.tokens is not None),
    )
    yield Family(
        name="limit_shut",
        help="1 for each rule that lets nothing start now, else 0.",
        samples=tuple(
            ({"limit": one.name, "rule": rule}, any(gate.rule == rule for gate in one.gates))
            for one in found
            for rule in ("running", "rate", "closed", "breaker")
        ),
    )


def _runs(queue: Queue) -> Iterator[Family]:
    """Yield the runs of each workflow; nothing where none was ever started."""
    found = workflow_view.report(queue, with_steps=False)[:KINDS_MAX]
    if not found:
        return
    yield Family(
        name="workflow_runs",
        help="Runs by workflow and state.",
        samples=tuple(
            ({"workflow": one.name, "state": state}, one.counts.get(state, 0))
            for one in found
            for state in workflow_view.STATES
        ),
    )
    yield Family(
        name="workflow_run_seconds_mean",
        help="Mean time from start to success, of runs that succeeded within a week.",
        samples=tuple(
            ({"workflow": one.name}, one.mean_ms / 1_000)
            for one in found
            if one.mean_ms is not None
        ),
    )


def _file(queue: Queue) -> Iterator[Family]:
    clock = queue.host.clock
    begun_ns = entered_ns = clock.monotonic_ns()
    try:
        with queue.transaction():
            entered_ns = clock.monotonic_ns()
    except DatabaseBusy:
        entered_ns = clock.monotonic_ns()
    yield Family(
        name="lock_wait_seconds",
        help="How long this scrape waited for the write lock; the busy limit if it was not free.",
        unit="seconds",
        samples=(({}, (entered_ns - begun_ns) / 1e9),),
    )
    yield Family(
        name="file_bytes",
        help="Sizes of the database and of its write-ahead log.",
        unit="bytes",
        samples=tuple(
            ({"file": name}, os.stat(f"{queue.path}{end}").st_size)
            for name, end in (("database", ""), ("log", "-wal"))
        ),
    )
