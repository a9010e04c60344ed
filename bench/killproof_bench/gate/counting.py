"""Count what each operation of one revision costs: `python -S -P counting.py SPEC`.

Like `arm.py` it is the gate's own code for both sides and imports the standard library and
`killproof` alone. Everything that could differ between two runs stands still: the clock moves when
told to, the random source gives one half for ever (so no commit is chosen for a checkpoint), tokens
are numbered, the hash seed is the environment's. What is left is the code.

Each sort of counter has a pass of its own over all operations, on a fresh file, so that counting
one thing never adds to another. A call is prepared outside of what is counted, and the first few of
each operation only fill caches. One JSON document goes to standard output: for each operation and
counter the value of every counted call.
"""

import functools
import gc
import json
import os
import random
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from killproof import Host, Lease, Queue
from killproof.core import host as core_host
from killproof.core.clock import ManualClock
from killproof.core.host import KernelLocks

KIND = "gate"
PAYLOAD = {"reference": "x" * 80}
#: Counted calls of each operation, and those before them that only fill caches.
CALLS = 12
WARM_CALLS = 2
#: Jobs of one call of a batch operation.
BATCH = 10
#: Jobs that can be claimed: more than all operations together take.
AVAILABLE = 1_000
#: Longer than the claim's own pause between two looks for dead workers.
LOOK_SECONDS = 1.0
#: How long, by the clock that stands still, a foreign writer holds the lock of a busy call.
BUSY_SECONDS = 0.02
#: And by a real one, should a revision not wait by the clock it was given.
BUSY_REAL_SECONDS = 5.0
#: A call of `access` with such a path marks the trace of system calls.
MARK = "/killproof-gate/"

Call = Callable[[], object]
Counted = dict[str, dict[str, list[float]]]  #: Operation, counter, value of each call.


class Clock(ManualClock):
    """A clock that moves when told to, and remembers what was slept."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.after_sleep: Call = lambda: None

    def sleep(self, seconds: float) -> None:
        """Move on, and let whoever is waited for do so too."""
        self.slept.append(seconds)
        super().sleep(seconds)
        self.after_sleep()


class Half(random.Random):
    """A random source without chance."""

    def random(self) -> float:
        """Return one half."""
        return 0.5


class Vouched(KernelLocks):
    """The kernel's locks on a RAM file system, where the level `power` is run for its code path."""

    def refusal(self, path: str, durability: str) -> str | None:
        """Refuse nothing: no power cut is promised here, and none is measured."""
        return None


class Bench:
    """A queue on a fresh file whose world stands still; a context manager by `opened`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.connection: sqlite3.Connection | None = None
        tokens = iter(range(1, sys.maxsize))
        self.queue = Queue(
            path,
            durability="power",
            host=Host(
                clock=self.clock,
                random=Half(),
                connect=self.connect,
                lock=Vouched(),
                token=lambda: f"{next(tokens):032x}",
            ),
        )

    def connect(self, path: str) -> sqlite3.Connection:
        """Open as the core does; the latest connection is the one in use."""
        self.connection = core_host.connect(path)
        return self.connection

    def lease(self) -> Lease:
        """Claim a job, which is not counted."""
        lease = self.queue.claim()
        assert lease is not None
        return lease


@contextmanager
def opened(folder: Path, name: str, rows: int) -> Iterator[Bench]:
    """Give a queue with jobs to claim and so many rows in other states."""
    bench = Bench(folder / f"{name}.db")
    with bench.queue as queue:
        for _ in range(0, AVAILABLE, 500):
            queue.enqueue_many((KIND, PAYLOAD) for _ in range(500))
        multiply(bench, rows)
        yield bench


def multiply(bench: Bench, rows: int) -> None:
    """Add rows in four other states: one of each is made by the queue, then copied by SQL.

    The columns are read from the file, so the copying knows nothing of a revision's schema.
    """
    queue = bench.queue
    done, dead = bench.lease(), bench.lease()
    queue.ack(done)
    queue.nack(dead, "no such report", permanent=True)
    later = queue.enqueue(KIND, PAYLOAD, delay=1_000_000)
    held = bench.lease()
    queue.extend(held)
    with closing(sqlite3.connect(bench.path)) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(job)")]
        names = ", ".join(f'"{name}"' for name in columns if name != "id")
        connection.execute("PRAGMA synchronous = OFF")
        for job in (done.job.id, dead.job.id, later, held.job.id):
            connection.execute(
                f"""INSERT INTO job ({names})
                    WITH RECURSIVE line (i) AS
                        (SELECT 1 UNION ALL SELECT i + 1 FROM line WHERE i < ?)
                    SELECT {names} FROM job, line WHERE id = ?""",  # noqa: S608
                (rows // 4, job),
            )
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def operations(bench: Bench) -> dict[str, Callable[[], Call]]:
    """Return for each operation what prepares its next call."""
    queue, clock = bench.queue, bench.clock
    keys = iter(range(sys.maxsize))

    def plain(call: Call) -> Callable[[], Call]:
        return lambda: call

    def of_lease(call: Callable[[Lease], object]) -> Callable[[], Call]:
        def prepare() -> Call:
            lease = bench.lease()
            return lambda: call(lease)

        return prepare

    def looking() -> Call:
        clock.advance(LOOK_SECONDS)
        return queue.claim

    def with_key() -> Call:
        key = f"key-{next(keys):06d}"
        return lambda: queue.enqueue(KIND, PAYLOAD, key=key)

    def ack_many() -> Call:
        leases = queue.claim_many(BATCH)
        return lambda: queue.ack_many(leases)

    def cancel() -> Call:
        job = queue.enqueue(KIND, PAYLOAD)
        return lambda: queue.cancel(job)

    return {
        "enqueue": plain(lambda: queue.enqueue(KIND, PAYLOAD)),
        "enqueue-with-key": with_key,
        "enqueue-many": plain(lambda: queue.enqueue_many([(KIND, PAYLOAD)] * BATCH)),
        "claim": plain(lambda: queue.claim()),
        "claim-of-kind": plain(lambda: queue.claim([KIND])),
        "claim-that-looks": looking,
        "claim-many": plain(lambda: queue.claim_many(BATCH)),
        "claim-of-nothing": plain(lambda: queue.claim(["nobody"])),
        "ack": of_lease(lambda lease: queue.ack(lease)),
        "ack-many": ack_many,
        "ack-and-claim": of_lease(lambda lease: queue.ack_and_claim(lease)),
        "extend": of_lease(lambda lease: queue.extend(lease)),
        "nack": of_lease(lambda lease: queue.nack(lease, "no such report")),
        "release": of_lease(lambda lease: queue.release(lease)),
        "snooze": of_lease(lambda lease: queue.snooze(lease, 1_000.0)),
        "cancel": cancel,
        "get": plain(lambda: queue.get(1)),
    }


def each(bench: Bench, counting: Callable[[Call], dict[str, float]]) -> Counted:
    """Run all operations of a pass; one that this revision does not have is left out."""
    found: Counted = {}
    for name, prepare in operations(bench).items():
        try:
            for _ in range(WARM_CALLS):
                prepare()()
        except (AttributeError, TypeError):
            continue
        # An empty log grows for all calls to come, and none of them is due for a checkpoint.
        with closing(sqlite3.connect(bench.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        counters: dict[str, list[float]] = {}
        for _ in range(CALLS):
            for counter, value in counting(prepare()).items():
                counters.setdefault(counter, []).append(value)
        found[name] = counters
    return found


def steps(bench: Bench, label: str) -> Callable[[Call], dict[str, float]]:
    """Count steps of SQLite's virtual machine, and frames of the log from its size alone.

    The progress handler is called once for each step at interval 1. Nothing opens the log: its
    size tells, for it only grows while nothing is checkpointed.
    """
    assert bench.connection is not None
    (page_bytes,) = bench.connection.execute("PRAGMA page_size").fetchone()
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    def counting(call: Call) -> dict[str, float]:
        nonlocal count
        assert bench.connection is not None
        count, before = 0, os.stat(f"{bench.path}-wal").st_size
        bench.connection.set_progress_handler(step, 1)
        call()
        bench.connection.set_progress_handler(None, 1)
        grown = os.stat(f"{bench.path}-wal").st_size - before
        return {f"steps-{label}": count, f"frames-{label}": grown // (page_bytes + 24)}

    return counting


def python_calls(call: Call) -> dict[str, float]:
    """Count calls of Python and of C functions, and some of the latter by their names."""
    count = 0
    named = Counter[str]()

    def profile(_frame: object, event: str, argument: Any) -> None:
        nonlocal count
        if event == "call":
            count += 1
        elif event == "c_call":
            count += 1
            named[argument.__name__] += 1

    sys.setprofile(profile)
    call()
    sys.setprofile(None)
    wanted = ("fdatasync", "fsync", "flock", "fcntl", "pread", "pwrite")
    found = {f"python-{name}": float(named[name]) for name in wanted}
    # The last call counted is the one that switches the counting off.
    return found | {"python-calls": float(count - 1)}


class Recorder:
    """What was executed, seen at the cursor: the statement as written, not with its values."""

    def __init__(self) -> None:
        self.executed: list[tuple[str, Any]] = []

    def install(self) -> None:
        """Let every connection of this process be one that records."""
        executed = self.executed

        class Cursor(sqlite3.Cursor):
            def execute(self, sql: str, values: Any = ()) -> Self:
                executed.append((sql, values))
                return super().execute(sql, values)

            def executemany(self, sql: str, rows: Any) -> Self:
                kept = list(rows)
                executed.extend((sql, values) for values in kept)
                return super().executemany(sql, kept)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

            # The one in C does not ask for a cursor by the method above.
            def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
                return self.cursor().execute(sql, values)  # type: ignore[no-any-return]

        sqlite3.connect = functools.partial(  # type: ignore[assignment]
            sqlite3.connect, factory=Connection
        )

    def counting(self, call: Call) -> dict[str, float]:
        """Count statements and write transactions of a call."""
        begin = len(self.executed)
        call()
        texts = [sql.strip().upper() for sql, _ in self.executed[begin:]]
        writes = [text for text in texts if text.startswith("BEGIN IMMEDIATE")]
        return {"statements": float(len(texts)), "transactions": float(len(writes))}


def plans(bench: Bench, executed: list[tuple[str, Any]]) -> list[str]:
    """Return the lines of the query plans of distinct statements, in order."""
    lines: list[str] = []
    with closing(sqlite3.connect(bench.path)) as connection:
        for sql, values in dict(executed).items():
            if sql.strip().upper().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
                rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
                lines += [row[3] for row in rows]
    return lines


def plan_counts(lines: list[str]) -> dict[str, float]:
    """Count what a plan should not have; a row of constants or of a function is no scan."""
    scans = [line for line in lines if line.startswith("SCAN") and "VIRTUAL" not in line]
    return {
        "scans": sum("CONSTANT ROW" not in line for line in scans),
        "sorts": sum("TEMP B-TREE" in line for line in lines),
        "automatic-indexes": sum("AUTOMATIC" in line for line in lines),
    }


def statements(folder: Path) -> tuple[Counted, dict[str, list[str]]]:
    """Count statements and read the query plans; to be called last, for it changes `sqlite3`."""
    recorder = Recorder()
    recorder.install()
    with opened(folder, "plans", 1_000) as bench:
        counted: Counted = {}
        texts: dict[str, list[str]] = {}
        for name, prepare in operations(bench).items():
            try:
                calls = [recorder.counting(prepare()) for _ in range(CALLS)]
            except (AttributeError, TypeError):
                continue
            counted[name] = {key: [call[key] for call in calls] for key in calls[0]}
            call = prepare()
            recorder.executed.clear()
            call()
            texts[name] = plans(bench, recorder.executed)
            counted[name] |= {key: [value] for key, value in plan_counts(texts[name]).items()}
    return counted, texts


def busy(folder: Path) -> Counted:
    """Count how a call waits while a foreign writer has the lock for a time of the still clock."""
    with opened(folder, "busy", 4) as bench:
        with closing(
            sqlite3.connect(bench.path, isolation_level=None, check_same_thread=False)
        ) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            guard = threading.Timer(BUSY_REAL_SECONDS, foreign.execute, ("ROLLBACK",))
            slept = bench.clock.slept
            slept.clear()

            def let_go() -> None:
                if sum(slept) >= BUSY_SECONDS and foreign.in_transaction:
                    foreign.execute("ROLLBACK")

            bench.clock.after_sleep = let_go
            guard.start()
            bench.queue.enqueue(KIND, PAYLOAD)
            guard.cancel()
        if not slept:
            return {}
        late = round((sum(slept) - BUSY_SECONDS) * 1e6)
        return {
            "busy": {"late-us": [late], "longest-sleep-us": [round(max(slept) * 1e6)]},
        }


def marked(call: Call) -> dict[str, float]:
    """Mark the trace around a call."""
    os.access(f"{MARK}begin", os.F_OK)
    call()
    os.access(f"{MARK}end", os.F_OK)
    return {}


def loop(folder: Path, calls: int) -> None:
    """Ack and claim so many times, for the counter of instructions.

    The difference of two lengths is the cost of the calls alone: what comes before is the same.
    """
    with opened(folder, "loop", 4) as bench:
        lease: Lease | None = bench.lease()
        for _ in range(calls):
            assert lease is not None
            lease = bench.queue.ack_and_claim(lease)


def main(argument: str) -> None:
    """Count everything, or make the calls for a tracer, or loop for a counter of instructions."""
    spec = json.loads(argument)
    folder = Path(spec["folder"])
    gc.disable()
    if spec["calls"]:
        loop(folder, spec["calls"])
        return
    if spec["traced"]:
        with opened(folder, "traced", 1_000) as bench:
            found = each(bench, marked)
        print(json.dumps({"operations": list(found)}))
        return
    counted: Counted = {}
    for label, rows in (("1k", 1_000), ("100k", spec["rows"])):
        with opened(folder, label, rows) as bench:
            merge(counted, each(bench, steps(bench, label)))
    with opened(folder, "python", 1_000) as bench:
        merge(counted, each(bench, python_calls))
    merge(counted, busy(folder))
    found, texts = statements(folder)
    merge(counted, found)
    print(json.dumps({"counted": counted, "plans": texts}))


def merge(into: Counted, more: Counted) -> None:
    """Add the counters of another pass."""
    for operation, counters in more.items():
        into.setdefault(operation, {}).update(counters)


if __name__ == "__main__":
    main(sys.argv[1])
