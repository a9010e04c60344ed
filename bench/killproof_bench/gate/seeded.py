"""Seeded regressions: small changes for the worse that a gate is there to catch.

Each is a patch of one place of the queue's source, found by its text in a copy of the head, and
names beforehand the layer that has to catch it. A place that has moved makes the proof fail loudly,
so that no regression is ever "caught" by not being there.
"""

import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from killproof_bench.gate.checkout import Patch

_DATABASE: Final = "queue/killproof/core/database.py"
_JOBS: Final = "queue/killproof/core/jobs.py"
#: Where the lock is held and the statements are done.
_COMMIT: Final = 'handle.connection.execute("COMMIT")'
#: Loops that are timed to find how many make a microsecond.
_TIMED: Final = 2_000_000
_TIMES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One change for the worse."""

    name: str
    what: str
    layer: int  #: 0 or 2: who has to catch it, said before it is tried.
    patch: Patch


REGRESSIONS: Final = (
    Regression(
        name="index dropped",
        what="the partial index of available jobs is not made",
        layer=0,
        patch=Patch(
            file="queue/killproof/core/schema.sql",
            anchor="CREATE INDEX job_available ON",
            text="-- CREATE INDEX job_available ON",
        ),
    ),
    Regression(
        name="extra commit",
        what="each write is followed by a second transaction",
        layer=0,
        patch=Patch(
            file=_DATABASE,
            anchor=_COMMIT,
            text="\n".join(
                (
                    _COMMIT,
                    'handle.connection.execute("BEGIN IMMEDIATE")',
                    'handle.connection.execute("UPDATE killproof_setting SET value = value")',
                    _COMMIT,
                )
            ),
        ),
    ),
    Regression(
        name="extra fsync",
        what="the log is synced twice",
        layer=0,
        patch=Patch(
            file="queue/killproof/core/barrier.py",
            anchor="os.fdatasync(self._descriptor)",
            text="os.fdatasync(self._descriptor)\nos.fdatasync(self._descriptor)",
        ),
    ),
    Regression(
        name="N+1 query",
        what="the claim reads each job it took once more",
        layer=0,
        patch=Patch(
            file=_JOBS,
            anchor="taken.append(",
            text='tx.row(self.GET, {"id": row[0]})\ntaken.append(',
        ),
    ),
    Regression(
        name="JSON twice",
        what="each payload is decoded twice",
        layer=0,
        patch=Patch(
            file=_JOBS,
            anchor='values["payload"] = json.loads(values["payload"])',
            text='json.loads(values["payload"]); values["payload"] = json.loads(values["payload"])',
        ),
    ),
    Regression(
        name="backoff doubled",
        what="the pause between two tries for SQLite's lock is twice as long",
        layer=0,
        patch=Patch(
            file=_DATABASE,
            anchor="BUSY_PAUSE_SECONDS: Final = 0.0005",
            text="BUSY_PAUSE_SECONDS: Final = 0.001",
        ),
    ),
)


def spin(loops: int) -> Patch:
    """Return a busy-spin of so many empty loops inside the lock.

    Loops, not a time: the spin calls nothing, so no counter of calls sees it, and it costs the same
    under any tool.
    """
    return Patch(
        file=_DATABASE,
        anchor=_COMMIT,
        text=f"for _ in range({loops}):\n    pass\n{_COMMIT}",
    )


def loops_per_us(workers: int) -> float:
    """Measure the loops of a microsecond, in as many processes at once as an arm has workers."""
    program = (
        "import time\n"
        "def timed():\n"
        "    begin = time.perf_counter_ns()\n"
        f"    for _ in range({_TIMED}): pass\n"
        "    return time.perf_counter_ns() - begin\n"
        f"print(sorted(timed() for _ in range({_TIMES}))[{_TIMES // 2}])\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(workers)
    ]
    spent_ns = [int(process.communicate()[0]) for process in processes]
    return _TIMED / (statistics.median(spent_ns) / 1e3)
