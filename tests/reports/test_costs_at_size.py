"""What a claim costs when the table is large, and what an idle worker costs when it is empty.

No time is asserted: SQLite counts its own instructions, and every statement is noted. The tables
have thousands of rows and not millions: a cost that grows with them shows at once.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from killproof import Host, ManualClock, Queue
from killproof.core import jobs
from killproof.core.database import Value

FEW, MANY = 100, 3_000


class Connection(sqlite3.Connection):
    """Notes its statements, and lets the controls spoil them."""

    statements: list[str]
    change: tuple[str, str]

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self.statements.append(" ".join(sql.split()))
        return super().execute(sql.replace(*self.change), *values)


class Patient(ManualClock):
    """Notes how long each pause was."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        super().sleep(seconds)


def opened(
    path: Path, statements: list[str], change: tuple[str, str] = ("\0", ""), make: Any = Queue
) -> Queue:
    def connect(name: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            name, timeout=0, isolation_level=None, check_same_thread=False, factory=Connection
        )
        connection.statements, connection.change = statements, change
        return connection

    queue: Queue = make(path, durability="process", host=Host(clock=Patient(), connect=connect))
    return queue


def instructions(queue: Queue, call: Callable[[], object]) -> int:
    """Count SQLite's instructions during a call, in steps of ten."""
    counted = 0

    def step() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection = queue.database._handle().connection
    connection.set_progress_handler(step, 10)
    call()
    connection.set_progress_handler(None, 10)
    return counted


# B130, B131: the backlog is sorted at each claim; finished rows slow it down.

#: Rows in a state, of mixed priorities, beside which one claim is looked at.
FILL = """
    WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :rows)
    INSERT INTO job (kind, state, priority, due_ms, payload, deliveries, forgiven, fence,
                     created_ms, updated_ms, finished_ms)
    SELECT 'kind', :state, n % 10, 1700000000000 + n % 97 + :later_ms, '1', :claims, :claims,
           :claims, 1, 1, iif(:state IN ('succeeded', 'dead', 'cancelled'), n, NULL)
      FROM number"""
BESIDE = ["available", "scheduled", "retryable", "succeeded", "dead", "cancelled", "held"]


def cost_of_a_claim(path: Path, beside: str, rows: int, *spoiled: str) -> int:
    with opened(path, []) as queue:
        with queue.transaction() as tx:
            values: dict[str, Value] = {"rows": rows, "state": beside, "later_ms": 0, "claims": 1}
            if beside in ("scheduled", "retryable"):
                values["later_ms"] = 10**9
            tx.execute(FILL, values)
            for sql in spoiled:
                tx.execute(sql)
        queue.enqueue("kind", "the one")
        queue.claim()  # Registers, and looks around once.
        queue.enqueue("kind", "the next one")
        return instructions(queue, queue.claim)


def check_a_claim_costs_the_same(place: Path, beside: str, *spoiled: str) -> None:
    few = cost_of_a_claim(place / "few.db", beside, FEW, *spoiled)
    many = cost_of_a_claim(place / "many.db", beside, MANY, *spoiled)
    assert few > 10
    assert many <= few * 1.2, f"{few} instructions became {many}"


@pytest.mark.parametrize("beside", BESIDE)
def test_a_claim_costs_the_same_beside_any_number_of_rows_in_any_state(
    place: Path, beside: str
) -> None:
    """B130, B131: 6.5 s for each claim at 1.18 million rows; slower as finished rows pile up."""
    check_a_claim_costs_the_same(place, beside)


NO_INDEX = "DROP INDEX job_available"
#: Another order than that of the promise: each claim sorts what waits.
WRONG_ORDER = "CREATE INDEX other ON job (kind, due_ms, id) WHERE state = 'available'"
#: Ended rows in the index as well: each claim walks over them.
NOT_PARTIAL = "CREATE INDEX other ON job (kind, priority, due_ms, id, state)"


@pytest.mark.parametrize(
    ("beside", "instead"), [("available", WRONG_ORDER), ("succeeded", NOT_PARTIAL)]
)
def test_an_index_that_does_not_fit_the_claim_is_seen_in_its_cost(
    place: Path, beside: str, instead: str
) -> None:
    """B130, B131, control."""
    with pytest.raises(AssertionError, match="instructions became"):
        check_a_claim_costs_the_same(place, beside, NO_INDEX, instead)


# B127: VACUUM blocks everything for minutes.


def check_nothing_is_rewritten_unasked(place: Path, change: tuple[str, str]) -> None:
    statements: list[str] = []
    with opened(place / "q.db", statements, change) as queue:
        queue.database.checkpoint_commits = 1
        ids = queue.enqueue_many([("kind", number) for number in range(20)])
        queue.ack_many(queue.claim_many(20))
        queue.reap()
        assert len(ids) == 20
    told = [sql.replace(*change) for sql in statements]
    assert len(told) > 50
    assert not [sql for sql in told if "vacuum" in sql.lower()], "the file is rewritten"


def test_no_call_rewrites_the_whole_file(place: Path) -> None:
    """B127: 11 minutes, twice the space, and in /tmp."""
    check_nothing_is_rewritten_unasked(place, ("\0", ""))


def test_a_checkpoint_that_vacuums_as_well_is_seen(place: Path) -> None:
    """B127, control."""
    with pytest.raises(AssertionError, match="the file is rewritten"):
        check_nothing_is_rewritten_unasked(place, ("PRAGMA foreign_keys = ON", "VACUUM"))


# B133: idle workers are a third of all the traffic, and wake all at once.


class PollsByClaiming(Queue):
    """Looks for work with the write lock in its hand, as often as it can."""

    def wait(
        self, kinds: Any = None, seconds: float = 1.0, *, until: Callable[[], bool] = bool
    ) -> bool:
        self._full_last = True
        for _ in range(round(seconds / 0.05)):
            self.claim(kinds)
            self.host.clock.sleep(0.05)
        return False


def check_an_idle_worker_is_cheap(place: Path, make: type[Queue]) -> None:
    statements: list[str] = []
    with opened(place / "q.db", statements, make=make) as queue:
        clock = queue.host.clock
        assert isinstance(clock, Patient)
        queue.enqueue("kind", 1, delay=3_600)
        for _ in range(3):
            assert queue.claim() is None
        statements.clear()
        clock.pauses.clear()
        assert not queue.wait(None, 60)
        assert not [sql for sql in statements if "BEGIN" in sql], "the write lock is taken"
        rows_read = [sql for sql in statements if "FROM job" in sql]
        assert len(rows_read) < 10, "rows are read although nobody has committed"
        assert len(statements) < 60 * 30, "it looks too often"
        assert max(clock.pauses) <= 2 * jobs.IDLE_PAUSE
        assert len({round(pause, 4) for pause in clock.pauses}) > 50, "all wake at once"


def test_an_idle_worker_takes_no_lock_reads_no_rows_and_looks_at_odd_times(place: Path) -> None:
    """B133: a fixed interval without jitter, and a query at each."""
    check_an_idle_worker_is_cheap(place, Queue)


def test_a_worker_that_polls_by_claiming_is_seen(place: Path) -> None:
    """B133, control."""
    with pytest.raises(AssertionError, match="write lock is taken"):
        check_an_idle_worker_is_cheap(place, PollsByClaiming)


def test_workers_that_wake_together_are_seen(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B133, control."""
    monkeypatch.setattr("random.Random.random", lambda self: 0.5)
    with pytest.raises(AssertionError, match="all wake at once"):
        check_an_idle_worker_is_cheap(place, Queue)
