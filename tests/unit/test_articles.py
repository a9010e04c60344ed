"""The articles' words: their queries run unchanged on views, their INSERTs become proper jobs."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from killproof import (
    FileRefused,
    Host,
    Lease,
    ManualClock,
    Queue,
    SystemClock,
    articles,
    dispatcher,
    handlers,
    workflow_view,
)
from killproof.articles_sql import VIEWS
from killproof.backup import backup, restore
from killproof.core import model
from killproof.effects import Effect, Ledger
from killproof.worker import Worker
from killproof.workflow import STEPS_MAX, Step, Workflow, Workflows

Run = Callable[..., tuple[int, str, str]]
Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def connection(queue: Queue) -> Iterator[sqlite3.Connection]:
    """Another program on the file, as the articles open it: rows by column name."""
    articles.create(queue)
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = OFF")  # No power is cut here.
        yield connection


@pytest.fixture
def rows(connection: sqlite3.Connection) -> Rows:
    return lambda statement, *values: [
        dict(row) for row in connection.execute(statement, values).fetchall()
    ]


def fail(queue: Queue, job_id: int, error: BaseException, times: int = 1) -> None:
    """Let a job fail so often, whatever its delay."""
    for _ in range(times):
        assert isinstance(queue.host.clock, ManualClock)
        queue.host.clock.advance(3_700)
        leases = queue.claim_many(10)
        queue.nack(next(lease for lease in leases if lease.job.id == job_id), error)
        for lease in leases:
            with suppress(Exception):
                queue.release(lease)


# The queries of the articles, each as it is there.


def test_the_first_article_s_columns_are_there_in_its_order(rows: Rows, queue: Queue) -> None:
    """Covers S0.11, S0.19, S0.20, S0.21. Columns that it does not have follow."""
    queue.enqueue("send_report", {"para": "São João"})
    (row,) = rows("SELECT * FROM jobs")

    assert list(row)[:11] == [
        *("id", "type", "payload", "status", "attempts", "max_attempts", "run_after"),
        *("locked_at", "last_error", "created_at", "updated_at"),
    ]
    assert (row["type"], row["payload"]) == ("send_report", '{"para":"São João"}')
    assert (row["status"], row["attempts"], row["max_attempts"]) == ("pending", 0, 5)


def test_each_state_has_the_first_article_s_word_or_its_own(queue: Queue, rows: Rows) -> None:
    """Covers S0.12, S0.13, S0.14, S0.15."""
    done, failed, cancelled, processing, pending = (
        queue.enqueue(kind, {}, max_attempts=1) for kind in "abcde"
    )
    queue.cancel(cancelled)
    for job_id, kind in ((done, "a"), (failed, "b"), (processing, "d")):
        lease = queue.claim([kind])
        assert lease is not None
        if job_id == done:
            queue.ack(lease)
        if job_id == failed:
            queue.nack(lease, TimeoutError())
    found = {row["id"]: row for row in rows("SELECT * FROM jobs")}

    assert {job_id: row["status"] for job_id, row in found.items()} == {
        done: "done",
        failed: "failed",
        cancelled: "cancelled",
        processing: "processing",
        pending: "pending",
    }
    assert found[failed]["last_error"] == "TimeoutError"  # Its text is empty.
    assert [row["id"] for row in found.values() if row["locked_at"]] == [processing]


def test_the_pick_of_the_first_article_finds_what_is_due_and_nothing_else(
    queue: Queue, rows: Rows, clock: ManualClock
) -> None:
    """Covers S0.16, S0.25, S0.36. Picking is the core's; the query shows what it would see."""
    now = SystemClock().now_ms() / 1_000
    clock.step_wall(now - clock.now_ms() / 1_000)
    queue.enqueue("later", {}, delay=3_600)
    due = queue.enqueue("due", {"n": 1})
    queue.enqueue("second", {})
    picked = rows(
        "SELECT * FROM jobs WHERE status = 'pending' AND run_after <= datetime('now') "
        "ORDER BY id ASC LIMIT 1"
    )

    assert [row["id"] for row in picked] == [due]
    assert json.loads(picked[0]["payload"]) == {"n": 1}
    lease = queue.claim()
    assert lease is not None
    assert lease.job.id == due
    assert [row["id"] for row in rows("SELECT * FROM jobs WHERE locked_at IS NOT NULL")] == [due]


def test_a_moment_that_is_waited_for_is_never_shown_early(
    queue: Queue, rows: Rows, clock: ManualClock
) -> None:
    """Covers S0.24, S0.49, and F47, F48."""
    queue.enqueue("later", {}, run_at=clock.now_ms() // 1_000 + 60.001)
    ((shown, exact),) = [
        (row["shown"], row["exact"])
        for row in rows(
            "SELECT CAST(strftime('%s', run_after) AS INTEGER) * 1000 AS shown, due_ms AS exact "
            "FROM jobs JOIN job USING (id)"
        )
    ]

    assert shown - exact == 999
    assert len(rows("SELECT run_after FROM jobs")[0]["run_after"]) == len("2026-11-30 03:00:00")


def test_the_first_article_s_report_queries_run_unchanged(queue: Queue, rows: Rows) -> None:
    """Covers S0.26, S0.42, S0.60, S0.61."""
    failing = queue.enqueue("scrape", {}, retry="immediate", max_attempts=2)
    queue.enqueue("mail", {})
    queue.enqueue("mail", {})
    fail(queue, failing, ValueError("no products"), times=2)

    counts = rows("SELECT status, COUNT(*) AS total FROM jobs GROUP BY status ORDER BY total DESC")
    assert [tuple(row.values()) for row in counts] == [("pending", 2), ("failed", 1)]
    latest = rows(
        "SELECT id, type, attempts, run_after, last_error FROM jobs "
        "WHERE status IN ('pending', 'failed') ORDER BY updated_at DESC LIMIT 20"
    )
    assert {row["id"] for row in latest} == {1, 2, 3}
    dead = next(row for row in latest if row["id"] == failing)
    assert (dead["type"], dead["attempts"]) == ("scrape", 2)
    assert dead["last_error"] == "ValueError: no products"


def test_every_change_of_a_job_moves_updated_at(
    queue: Queue, rows: Rows, clock: ManualClock
) -> None:
    """Covers S0.27, S0.41, S2.26; F62: the statements set it, and no trigger writes a row twice."""
    job_id = queue.enqueue("mail", {})

    def updated_at() -> str:
        return str(rows("SELECT updated_at FROM jobs WHERE id = ?", job_id)[0]["updated_at"])

    def claim() -> Lease:
        clock.advance(61)
        lease = queue.claim()
        assert lease is not None
        return lease

    seen = [updated_at()]
    queue.nack(claim(), "no", delay=60)
    seen.append(updated_at())
    lease = claim()
    seen.append(updated_at())
    clock.advance(10)
    queue.extend(lease)
    seen.append(updated_at())
    clock.advance(10)
    queue.ack(lease)
    seen.append(updated_at())

    assert seen == sorted(set(seen))
    triggers = rows("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'job'")
    assert {row["name"].partition("_")[0] for row in triggers} == {"workflow"}  # WHEN of a run.


def test_the_second_article_s_pick_and_panel_run_unchanged(queue: Queue, rows: Rows) -> None:
    """Covers S1.22, S1.30, S1.45, S1.46. F37: no row and no missing error stops the panel."""
    report = queue.enqueue("enviar_relatorio", {}, priority=5)
    urgent = queue.enqueue("scraping_produtos", {}, priority=1, max_attempts=3, retry="immediate")
    queue.enqueue("backup_diario", {}, priority=3)

    picked = rows(
        "SELECT * FROM tasks WHERE status = 'pending' ORDER BY priority ASC, created_at ASC LIMIT 1"
    )
    assert [row["id"] for row in picked] == [urgent]
    fail(queue, urgent, ConnectionError("x" * 200), times=3)
    lease = queue.claim(["enviar_relatorio"])
    assert lease is not None
    queue.ack(lease, {"sent": True})
    panel = rows(
        "SELECT status, COUNT(*) AS total, AVG(retries) AS retries FROM tasks GROUP BY status"
    )
    assert panel == [
        {"status": "done", "total": 1, "retries": 0.0},
        {"status": "failed", "total": 1, "retries": 2.0},
        {"status": "pending", "total": 1, "retries": 0.0},
    ]
    failures = rows(
        "SELECT name, retries, error, finished_at FROM tasks WHERE status = 'failed' "
        "ORDER BY finished_at DESC LIMIT 5"
    )
    assert failures[0]["error"][:80] == ("ConnectionError: " + "x" * 200)[:80]
    (done,) = rows("SELECT * FROM tasks WHERE id = ?", report)
    assert json.loads(done["result"]) == {"sent": True}
    assert done["started_at"] <= done["finished_at"]


def test_a_task_that_has_begun_says_when(queue: Queue, rows: Rows, clock: ManualClock) -> None:
    """Covers S1.21, S1.31."""
    queue.enqueue("scrape", {})
    (before,) = rows("SELECT * FROM tasks")
    clock.advance(60)
    assert queue.claim() is not None
    (after,) = rows("SELECT * FROM tasks")

    assert (before["status"], before["started_at"]) == ("pending", None)
    assert (after["status"], after["finished_at"]) == ("running", None)
    assert after["started_at"] > after["created_at"]


def test_a_task_that_waits_for_its_retry_says_so(
    queue: Queue, rows: Rows, clock: ManualClock
) -> None:
    """Covers S1.19, S1.20. F34, F37: the word and the count follow from the state."""
    job_id = queue.enqueue("scrape", {}, max_attempts=3, retry="fixed:60")

    def seen() -> tuple[str, int]:
        (row,) = rows("SELECT * FROM tasks WHERE id = ?", job_id)
        return row["status"], row["retries"]

    told = [seen()]
    for _ in range(3):
        lease = queue.claim()
        assert lease is not None
        told.append(seen())
        queue.nack(lease, ValueError("429"))
        told.append(seen())
        clock.advance(61)

    assert told == [
        *(("pending", 0), ("running", 0), ("retrying", 1), ("running", 1), ("retrying", 2)),
        *(("running", 2), ("failed", 2)),
    ]


# Their INSERTs.


def test_the_first_article_s_insert_is_a_job_with_its_defaults(
    rows: Rows, queue: Queue, connection: sqlite3.Connection
) -> None:
    """Covers S0.22, S0.23, S0.31, S0.32. It is seen by the next claim like any other."""
    connection.execute(
        "INSERT INTO jobs (type, payload) VALUES (?, ?)", ("send_report", '{"email": "a@b.c"}')
    )
    ((job_id,),) = connection.execute("SELECT max(id) FROM jobs").fetchall()
    job = queue.get(job_id)

    assert job is not None
    assert (job.kind, job.payload, job.state) == ("send_report", {"email": "a@b.c"}, "available")
    assert (job.max_attempts, job.retry, job.priority) == (5, "article", 5)
    assert abs(job.created_ms - SystemClock().now_ms()) < 3_600_000
    lease = queue.claim(["send_report"])
    assert lease is not None
    queue.ack(lease)
    assert rows("SELECT status FROM jobs") == [{"status": "done"}]


def test_the_second_article_s_insert_is_a_task_with_its_defaults(
    queue: Queue, connection: sqlite3.Connection
) -> None:
    """Covers S1.16, S1.17, S1.18, S1.20."""
    connection.execute("INSERT INTO tasks (name) VALUES ('backup_diario')")
    connection.execute(
        "INSERT INTO tasks (name, payload, priority) VALUES (?, ?, ?)",
        ("scraping_produtos", '{"url": "https://x", "timeout": 30}', 0),
    )
    leases = queue.claim_many(2)

    assert [(lease.job.kind, lease.job.priority) for lease in leases] == [
        ("scraping_produtos", 0),
        ("backup_diario", 5),
    ]
    assert [lease.job.payload for lease in leases][1] == {}
    assert {lease.job.max_attempts for lease in leases} == {3}


def test_a_job_put_in_for_later_waits_until_its_moment(
    queue: Queue, connection: sqlite3.Connection, clock: ManualClock
) -> None:
    """Covers S0.16, S0.24."""
    insert = "INSERT INTO jobs (type, payload, run_after) VALUES ('later', '1', ?)"
    connection.execute(insert, ("2099-12-31 23:59:59",))

    assert queue.counts()["scheduled"] == 1
    assert queue.claim() is None
    job = queue.get(1)
    assert job is not None
    assert job.due_ms == 4_102_444_799_000
    clock.step_wall(job.due_ms / 1_000 - clock.now_ms() / 1_000)
    assert queue.claim() is not None


def test_a_row_that_was_kept_elsewhere_brings_its_age_and_none_comes_from_the_future(
    queue: Queue, connection: sqlite3.Connection
) -> None:
    """Covers S0.27, S1.21."""
    insert = "INSERT INTO jobs (type, payload, created_at, updated_at) VALUES ('a', '1', ?, ?)"
    connection.execute(insert, ("2026-01-31 12:00:00", "2026-02-28 12:00:00"))
    connection.execute(insert, ("2099-01-31 12:00:00", "2099-02-28 12:00:00"))
    connection.execute("INSERT INTO tasks (name, created_at) VALUES ('a', '2026-01-31 12:00:00')")
    times = connection.execute("SELECT created_ms, updated_ms FROM job ORDER BY id").fetchall()

    assert tuple(times[0]) == (1_769_860_800_000, 1_772_280_000_000)
    assert max(times[1]) <= SystemClock().now_ms()
    assert times[2]["created_ms"] == 1_769_860_800_000


def said(connection: sqlite3.Connection, statement: str, wanted: str) -> str:
    """Run a statement; return `wanted` if its refusal says that, else what it said instead."""
    try:
        connection.execute(statement)
    except sqlite3.IntegrityError as error:
        return wanted if wanted in str(error) else str(error)
    return "nothing: it was accepted"


REFUSED = [
    ("INSERT INTO jobs (type, payload) VALUES ('a', '{''x'': 1}')", "payload must be JSON"),
    ("INSERT INTO jobs (type, payload) VALUES ('a', NULL)", "payload must be JSON"),
    ("INSERT INTO jobs (type, payload) VALUES ('a', 'NaN')", "payload must be JSON"),
    ("INSERT INTO jobs (payload) VALUES ('1')", "type must be text"),
    ("INSERT INTO jobs (type, payload) VALUES ('', '1')", "type must be text"),
    ("INSERT INTO jobs (type, payload, status) VALUES ('a', '1', 'done')", "leave out status"),
    ("INSERT INTO jobs (type, payload, status) VALUES ('a', '1', 'Pending')", "leave out status"),
    ("INSERT INTO jobs (id, type, payload) VALUES (7, 'a', '1')", "gives the id"),
    ("INSERT INTO jobs (type, payload, priority) VALUES ('a', '1', 'alta')", "0 (urgent) to 9"),
    ("INSERT INTO jobs (type, payload, priority) VALUES ('a', '1', -1)", "0 (urgent) to 9"),
    ("INSERT INTO jobs (type, payload, max_attempts) VALUES ('a', '1', 0)", "from 1 to"),
    (
        "INSERT INTO jobs (type, payload, run_after) VALUES ('a', '1', '2026-11-30T03:00:00')",
        "YYYY-MM-DD HH:MM:SS",
    ),
    (
        "INSERT INTO jobs (type, payload, run_after) VALUES ('a', '1', '2026-02-30 00:00:00')",
        "YYYY-MM-DD HH:MM:SS",
    ),
    (
        "INSERT INTO jobs (type, payload, run_after) VALUES ('a', '1', '1790000000')",
        "YYYY-MM-DD HH:MM:SS",
    ),
    ("INSERT OR IGNORE INTO jobs (type, payload) VALUES ('a', 'x')", "payload must be JSON"),
    ("INSERT INTO tasks (name, payload) VALUES ('a', 'x')", "payload must be JSON"),
    ("INSERT INTO tasks (name, priority) VALUES ('a', 10)", "0 (urgent) to 9"),
    ("INSERT INTO tasks (name, status) VALUES ('a', 'done')", "leave out status"),
    ("INSERT INTO tasks (name, max_retries) VALUES ('a', 'x')", "from 1 to"),
    ("INSERT INTO tasks (name) VALUES (7)", "name must be text"),
    ("INSERT INTO tasks (id, name) VALUES (7, 'a')", "gives the id"),
    ("INSERT INTO tasks (name, created_at) VALUES ('a', 'now')", "YYYY-MM-DD HH:MM:SS"),
    ("INSERT INTO tasks (name, idempotency_key) VALUES ('a', '')", "1 to 500 characters"),
    (
        """INSERT INTO tasks (name, payload) VALUES ('a', printf('"%.*c"', 1048576, 'x'))""",
        "enqueue its file's path",
    ),
    (
        """INSERT INTO jobs (type, payload) VALUES ('a', printf('"%.*c"', 1048576, 'x'))""",
        "enqueue its file's path",
    ),
    (
        "INSERT INTO jobs (type, payload, idempotency_key) VALUES ('a', '1', 7)",
        "1 to 500 characters",
    ),
]


def test_a_wrong_value_is_refused_in_words_and_nothing_is_put_in(
    queue: Queue, connection: sqlite3.Connection
) -> None:
    """Covers F29, F48, F51, F68: what would be found out by a worker is refused at the door."""
    assert {sql: said(connection, sql, why) for sql, why in REFUSED} == dict(REFUSED)
    assert sum(queue.counts().values()) == 0


def test_a_second_job_with_a_living_key_is_refused_whatever_the_insert_says(
    queue: Queue, connection: sqlite3.Connection
) -> None:
    """Covers S0.54. F44. OR REPLACE reaches into a trigger: it must not delete the living job."""
    job_id = queue.enqueue("charge", {"order": 1}, key="order-1")
    for rule in ("INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE"):
        for view in ("jobs (idempotency_key, type", "tasks (idempotency_key, name"):
            statement = f"{rule} INTO {view}, payload) VALUES ('order-1', 'charge', '2')"
            assert said(connection, statement, "has not ended yet") == "has not ended yet"

    job = queue.get(job_id)
    assert job is not None
    assert (job.payload, job.state) == ({"order": 1}, "available")


WRITES = [
    ("UPDATE jobs SET status = 'processing', locked_at = datetime('now')", "killproof work"),
    ("UPDATE jobs SET status = 'done' WHERE id = 2", "Queue.ack"),
    ("UPDATE jobs SET status = 'pending', locked_at = NULL WHERE status = 'processing'", "replay"),
    ("UPDATE jobs SET priority = 0", "killproof reprioritise"),
    ("UPDATE jobs SET last_error = NULL", "killproof --help"),
    ("DELETE FROM jobs WHERE status = 'processing'", "killproof prune"),
    ("UPDATE tasks SET status = 'running'", "killproof work"),
    ("UPDATE tasks SET status = 'pending' WHERE status = 'running'", "replay"),
    ("UPDATE tasks SET priority = 0", "killproof reprioritise"),
    ("UPDATE tasks SET payload = '{}'", "killproof --help"),
    ("DELETE FROM tasks", "killproof cancel"),
    ("DELETE FROM job_effects", "killproof prune --effects"),
    ("UPDATE job_effects SET job_id = 2", "context.effect"),
]


def test_any_other_write_is_refused_and_says_what_to_call(
    queue: Queue, connection: sqlite3.Connection
) -> None:
    """Covers S0.48: the articles' own updates are what F8, F21 and F22 are about."""
    queue.enqueue("mail", {})
    queue.enqueue("scrape", {})
    lease = queue.claim(["scrape"])
    assert lease is not None
    connection.execute(
        "INSERT INTO job_effects (idempotency_key, job_id) VALUES ('k', ?)", (lease.job.id,)
    )
    before = queue.get(lease.job.id)

    assert {sql: said(connection, sql, instead) for sql, instead in WRITES} == dict(WRITES)
    assert queue.get(lease.job.id) == before
    queue.ack(lease)


# Effects, as the first article reserves them.


def reserve_effect(connection: sqlite3.Connection, key: str, job_id: int) -> bool:
    """The first article's function, on the caller's connection."""
    try:
        connection.execute(
            "INSERT INTO job_effects (idempotency_key, job_id) VALUES (?, ?)", (key, job_id)
        )
    except sqlite3.IntegrityError:
        return False
    return True


WRONG_EFFECTS = [
    ("INSERT OR REPLACE INTO job_effects VALUES ('order-1', 1, NULL)", "is taken: do not run"),
    ("INSERT INTO job_effects VALUES ('order-2', 1, '2026-11-30 03:00:00')", "leave created_at"),
    ("INSERT INTO job_effects VALUES ('', 1, NULL)", "1 to 500 characters"),
    ("INSERT INTO job_effects VALUES ('order-2', 99, NULL)", "only a job that is running"),
]


def test_an_effect_is_reserved_once_by_the_job_that_runs(
    queue: Queue, connection: sqlite3.Connection, rows: Rows
) -> None:
    """Covers S0.55, S0.56, S0.57, S0.58. F43: it belongs to a job, and to its fence."""
    job_id = queue.enqueue("charge", {})

    assert not reserve_effect(connection, "order-1", job_id)  # It does not run.
    lease = queue.claim()
    assert lease is not None
    assert reserve_effect(connection, "order-1", job_id)
    assert not reserve_effect(connection, "order-1", job_id)
    (row,) = rows("SELECT * FROM job_effects")
    assert (list(row), row["job_id"]) == (["idempotency_key", "job_id", "created_at"], job_id)
    assert rows("SELECT state, fence FROM effect") == [{"state": "reserved", "fence": lease.fence}]
    assert {sql: said(connection, sql, why) for sql, why in WRONG_EFFECTS} == dict(WRONG_EFFECTS)


def test_the_ledger_s_own_effects_are_seen_with_their_scope(
    queue: Queue, rows: Rows, clock: ManualClock
) -> None:
    queue.enqueue("charge", {})
    lease = queue.claim()
    assert lease is not None
    ledger = Ledger(queue, lease, clock=clock)
    ledger.apply(Effect(scope="charge", key="order-1", function=lambda key: key, in_doubt="held"))

    assert [row["idempotency_key"] for row in rows("SELECT * FROM job_effects")] == [
        "charge/order-1"
    ]


# Orders.


def order(connection: sqlite3.Connection, order_id: str, *tasks: str) -> None:
    """Put an order in as the third article does, in one transaction."""
    connection.execute("BEGIN")
    connection.execute("INSERT INTO orders (order_id, customer_id) VALUES (?, 'c-1')", (order_id,))
    for task in tasks:
        connection.execute(
            "INSERT INTO order_tasks (order_id, task_name) VALUES (?, ?)", (order_id, task)
        )
    connection.execute("COMMIT")


LEFT = "SELECT COUNT(*) AS n FROM order_tasks WHERE order_id = ? AND status != 'COMPLETED'"


def test_the_tasks_of_an_order_run_in_order_and_the_last_one_ends_it(
    queue: Queue, rows: Rows, connection: sqlite3.Connection
) -> None:
    """Covers S2.21, S2.22, S2.24, S2.29. F63: one after the other, whoever asks."""
    order(connection, "o-1", "reserve", "charge", "ship")

    assert list(rows("SELECT * FROM orders")[0]) == [
        *("order_id", "customer_id", "order_date", "status", "created_at", "updated_at"),
    ]
    assert list(rows("SELECT * FROM order_tasks")[0]) == [
        *("task_id", "order_id", "task_name", "status", "retries", "created_at", "updated_at"),
    ]
    seen = []
    while (lease := queue.claim()) is not None:
        assert queue.claim() is None
        seen.append(
            (
                lease.job.kind,
                [row["status"] for row in rows("SELECT status FROM order_tasks ORDER BY task_id")],
                rows(LEFT, "o-1")[0]["n"],
                rows("SELECT status FROM orders WHERE order_id = 'o-1'")[0]["status"],
            )
        )
        queue.ack(lease)

    assert seen == [
        ("orders.reserve", ["IN_PROGRESS", "PENDING", "PENDING"], 3, "PENDING"),
        ("orders.charge", ["COMPLETED", "IN_PROGRESS", "PENDING"], 2, "PENDING"),
        ("orders.ship", ["COMPLETED", "COMPLETED", "IN_PROGRESS"], 1, "PENDING"),
    ]
    assert rows("SELECT customer_id, status FROM orders") == [
        {"customer_id": "c-1", "status": "PROCESSED"}
    ]


def test_the_third_article_s_queries_run_unchanged(
    queue: Queue, rows: Rows, connection: sqlite3.Connection, clock: ManualClock
) -> None:
    """Covers S2.11, S2.30, S2.36: the failed with their retries, the next, those that hang."""
    order(connection, "o-1", "reserve", "charge")
    order(connection, "o-2", "reserve")
    fail(queue, 1, ConnectionError("down"), times=2)

    picked = rows(
        "SELECT * FROM order_tasks WHERE status = 'PENDING' ORDER BY created_at ASC LIMIT 1"
    )
    assert (picked[0]["task_name"], picked[0]["retries"]) == ("reserve", 2)
    fail(queue, 1, ConnectionError("down"), times=2)
    assert rows("SELECT order_id, task_name, retries FROM order_tasks WHERE status = 'FAILED'") == [
        {"order_id": "o-1", "task_name": "reserve", "retries": 3}
    ]
    assert rows("SELECT status, COUNT(*) AS n FROM orders GROUP BY status") == [
        {"status": "FAILED", "n": 1},
        {"status": "PENDING", "n": 1},
    ]
    assert queue.claim(["orders.reserve"]) is not None
    hung = rows(
        "SELECT order_id FROM order_tasks WHERE status = 'IN_PROGRESS' "
        "AND updated_at < datetime(?, 'unixepoch')",
        (clock.now_ms() + 900_000) // 1_000,
    )
    assert hung == [{"order_id": "o-2"}]


def test_a_task_put_in_behind_steps_side_by_side_waits_for_the_last_of_them_alone(
    queue: Queue, connection: sqlite3.Connection
) -> None:
    """The run was started in Python; a task that waits for what has ended would wait for ever."""
    flow = Workflow("orders")
    for name in ("pack", "print"):
        flow.add(name, needs=[])
    for order_id in ("o-1", "o-2"):
        Workflows(queue).start(flow, {}, key=order_id, deadline=4_000_000_000.0)
    succeeded, failed = queue.claim(["orders.print"]), queue.claim(["orders.print"])
    assert succeeded is not None
    assert failed is not None
    queue.ack(succeeded)
    queue.nack(failed, "torn", permanent=True)
    sql = "INSERT INTO order_tasks (order_id, task_name) VALUES (?, 'ship')"

    connection.execute(sql, ("o-1",))
    lease = queue.claim(["orders.ship"])
    assert lease is not None
    assert lease.job.expires_ms == 4_000_000_000_000
    with pytest.raises(sqlite3.IntegrityError, match="the task before it has failed: killproof"):
        connection.execute(sql, ("o-2",))
    assert workflow_view.faults(queue) == []


def test_the_rows_of_orders_are_updated_with_every_change(
    queue: Queue, rows: Rows, connection: sqlite3.Connection, clock: ManualClock
) -> None:
    """Covers S2.26. Without a trigger of its own on either (F62)."""
    clock.step_wall((SystemClock().now_ms() - clock.now_ms()) / 1_000 + 60)
    order(connection, "o-1", "reserve")
    before = rows("SELECT o.updated_at, t.updated_at AS t FROM orders o JOIN order_tasks t")
    lease = queue.claim()
    assert lease is not None
    clock.advance(5)
    queue.ack(lease)
    after = rows("SELECT o.updated_at, t.updated_at AS t FROM orders o JOIN order_tasks t")

    assert before[0]["updated_at"] < after[0]["updated_at"]
    assert before[0]["t"] < after[0]["t"]


WRONG_ORDERS = [
    ("INSERT INTO order_tasks (order_id, task_name) VALUES ('o-9', 'ship')", "no order with"),
    ("INSERT INTO order_tasks (order_id, task_name) VALUES ('o-1', 'ship')", "task of this name"),
    ("INSERT INTO order_tasks (order_id, task_name) VALUES ('o-0', 'ship')", "order has ended"),
    ("INSERT INTO order_tasks (order_id) VALUES ('o-1')", "task_name must be text"),
    (
        "INSERT INTO order_tasks (order_id, task_name, status) VALUES ('o-1', 'x', 'COMPLETE')",
        "leave out",
    ),
    ("INSERT OR REPLACE INTO orders (order_id, customer_id) VALUES ('o-1', 'c')", "is an order"),
    ("INSERT INTO orders (order_id) VALUES ('o-2')", "customer_id must be text"),
    ("INSERT INTO orders VALUES ('o-2', 'c', NULL, 'PROCESSED', NULL, NULL)", "leave out status"),
    ("INSERT INTO orders VALUES ('o-2', 'c', '1.2.2026', NULL, NULL, NULL)", "YYYY-MM-DD HH:MM"),
    ("INSERT INTO order_tasks (task_id, order_id, task_name) VALUES (7, 'o-1', 'x')", "task_id"),
    ("INSERT INTO order_tasks (order_id, task_name) VALUES ('o-5', 'x')", "at most 5000 tasks"),
    ("INSERT INTO orders (order_id, customer_id) VALUES (2, 'c')", "order_id must be text"),
    ("UPDATE orders SET status = 'PROCESSED'", "follows from the tasks"),
    ("UPDATE order_tasks SET status = 'PENDING' WHERE task_name = 'boxed'", "workflow replay"),
    ("UPDATE order_tasks SET status = 'IN_PROGRESS'", "killproof work claims"),
    ("UPDATE order_tasks SET retries = retries + 1", "INSERT adds a task"),
    ("DELETE FROM orders", "workflow cancel"),
    ("DELETE FROM order_tasks", "workflow cancel"),
]


def test_no_order_is_changed_by_hand_and_no_task_is_without_its_order(
    queue: Queue, connection: sqlite3.Connection, rows: Rows
) -> None:
    """Covers S2.23. F44, F66: neither an orphan nor the same step twice is put in."""
    order(connection, "o-0", "boxed")
    lease = queue.claim()
    assert lease is not None
    queue.ack(lease)
    order(connection, "o-1", "ship")
    order(connection, "o-5")
    connection.execute("UPDATE workflow_run SET steps = 5000 WHERE key = 'o-5'")
    before = rows("SELECT * FROM order_tasks"), rows("SELECT * FROM orders")

    assert {sql: said(connection, sql, why) for sql, why in WRONG_ORDERS} == dict(WRONG_ORDERS)
    assert (rows("SELECT * FROM order_tasks"), rows("SELECT * FROM orders")) == before


def test_an_order_that_was_put_in_by_sql_is_processed_by_the_workflow_of_that_name(
    place: Path, clock: ManualClock
) -> None:
    """Covers S2.31. The file is the article's; its two seconds of sleep stand for work."""
    orders = Workflow("orders")
    found: list[object] = []

    @orders.step()
    def reserve(step: Step) -> dict[str, str]:
        found.append(step.payload)
        return {"shelf": "A3"}

    @orders.step()
    def ship(step: Step) -> None:
        found.append(step.results["reserve"])
        worker.stop()

    with (
        Queue(place / "workflows.db", durability="process", host=Host(clock=clock)) as queue,
        closing(sqlite3.connect(queue.path, isolation_level=None)) as connection,
    ):
        articles.create(queue, ["orders"])
        connection.row_factory = sqlite3.Row
        order(connection, "o-1", "reserve", "ship")
        worker = Worker(queue, orders.handlers, clock=clock)
        worker.run()
        (row,) = connection.execute("SELECT * FROM orders")

        assert found == [{"order_id": "o-1", "customer_id": "c-1"}, {"shelf": "A3"}]
        assert (row["order_id"], row["status"]) == ("o-1", "PROCESSED")


# Making them.


def test_views_are_made_on_request_only_and_making_them_twice_is_harmless(queue: Queue) -> None:
    """Covers S0.18: applying it twice is harmless."""
    assert not any(view.is_made for view in articles.views(queue))

    articles.create(queue, ["jobs"])
    articles.create(queue, ["jobs"])
    assert [view.name for view in articles.views(queue) if view.is_made] == ["jobs", "job_effects"]
    assert articles.drop(queue) == ["jobs", "job_effects"]
    assert not any(view.is_made for view in articles.views(queue))


def test_a_backup_has_the_views_and_a_restored_file_takes_their_inserts(
    queue: Queue, place: Path
) -> None:
    articles.create(queue)
    copy = backup(queue, place)
    restore(copy.path, place / "restored.db")
    with (
        Queue(place / "restored.db") as restored,
        closing(sqlite3.connect(restored.path, isolation_level=None)) as connection,
    ):
        connection.execute("INSERT INTO jobs (type, payload) VALUES ('mail', '1')")

        assert restored.counts()["available"] == 1
        assert all(view.is_made for view in articles.views(restored))


@pytest.mark.parametrize("what", ["CREATE TABLE Jobs (id)", "CREATE VIEW jobs AS SELECT 1 AS id"])
def test_a_name_that_exists_is_never_taken(
    queue: Queue, sql: Callable[..., list[tuple[Any, ...]]], what: str
) -> None:
    sql(what)
    with pytest.raises(FileRefused, match="that is not killproof's: rename it"):
        articles.create(queue)

    assert not any(view.is_made for view in articles.views(queue))
    assert articles.drop(queue) == []
    assert sql("SELECT count(*) FROM sqlite_schema WHERE lower(name) = 'jobs'") == [(1,)]


def test_the_limits_in_the_views_are_those_of_the_queue() -> None:
    text = "".join(text for found in VIEWS.values() for texts in found.values() for text in texts)

    for limit in (
        f"NOT BETWEEN 1 AND {model.KIND_CHARS_MAX}",
        f"NOT BETWEEN 1 AND {model.KEY_CHARS_MAX}",
        f"NOT BETWEEN 1 AND {model.ATTEMPTS_MAX}",
        f"> {model.PAYLOAD_BYTES_MAX}",
    ):
        assert limit in text


def words(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """The words that the views have for a job in each state of the model."""
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute(
        "INSERT INTO workflow_run (name, state, steps, created_ms, checked_ms, payload) "
        "VALUES ('orders', 'running', 0, 0, 0, '{}')"
    )
    for number, state in enumerate(model.STATES, 1):
        connection.execute(
            "INSERT INTO job (kind, state, due_ms, created_ms, updated_ms, payload) "
            "VALUES ('k', ?, 0, 0, 0, '1')",
            (state,),
        )
        connection.execute(
            "INSERT INTO workflow_step (job_id, run_id, name, number, unmet) "
            "VALUES (?, 1, ?, ?, 0)",
            (number, state, number),
        )
    found = connection.execute(
        "SELECT job.state, jobs.status, tasks.status, order_tasks.status FROM job "
        "JOIN jobs USING (id) JOIN tasks USING (id) JOIN order_tasks ON task_id = job.id"
    ).fetchall()
    return {state: tuple(told) for state, *told in found}


def test_the_page_says_which_word_stands_for_which_state(connection: sqlite3.Connection) -> None:
    """Covers S1.19, S2.24. F37: all words follow from the states of one machine."""
    page = (Path(__file__).parents[2] / "docs/articles.md").read_text(encoding="utf-8")
    written: dict[str, tuple[str, ...]] = {}
    for line in re.findall(r"^\| (`\w+`.*) \|$", page, flags=re.MULTILINE):
        states, *told = line.split(" | ")
        for state in re.findall(r"`(\w+)`", states):
            same = (state, state, state.upper())
            is_same = told[0] == "the same word"
            written[state] = same if is_same else tuple(word.strip("`") for word in told)

    assert {state: written.get(state) for state in model.STATES} == words(connection)


def test_the_numbers_of_each_article_are_options_of_an_enqueue(queue: Queue) -> None:
    """Covers S0.38, S0.49, S1.29, S2.30. F34: executions in all, and each policy has a delay."""
    found = []
    for options in (articles.JOBS, articles.TASKS, articles.ORDERS):
        job = queue.get(queue.enqueue("mail", {}, **options))
        assert job is not None
        found.append((job.max_attempts, job.retry))

    assert found == [(5, "article"), (3, "article"), (4, "article")]
    assert f">= {STEPS_MAX};" in "".join(VIEWS["orders"]["order_tasks"])
    assert articles.SLOTS == dispatcher.SLOTS_DEFAULT == 3
    assert queue.database.busy_limit == 30
    assert handlers.TIMEOUT_SECONDS_DEFAULT == articles.STALE_SECONDS == 15 * 60


def test_the_command_makes_shows_and_drops_the_views(run: Run) -> None:
    run("enqueue", "mail", "{}", "--durability", "process")

    assert run("articles", "tasks")[1] == (
        "tasks: not made\nnext: killproof articles tasks --create\n"
    )
    assert run("articles", "--create", "tasks") == (0, "tasks: made\n", "")
    shown = run("articles", "--show", "tasks")[1]
    assert shown.startswith("CREATE VIEW tasks AS -- Made by killproof articles.\nSELECT id,")
    assert json.loads(run("articles", "tasks", "--json")[1]) == [
        {"article": "tasks", "name": "tasks", "is_made": True}
    ]
    assert run("articles", "--drop", "tasks")[0] == 0
    assert run("articles", "--drop", "--create")[0] == 64
    code, _, err = run("articles", "invoices")
    assert (code, err.startswith("killproof: article 'invoices' is unknown: use jobs")) == (
        64,
        True,
    )
