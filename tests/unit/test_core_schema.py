"""The file itself: impossible states cannot be stored, edges are kept, damage stays where it is."""

import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from killproof import Host, KillproofError, Lease, ManualClock, Queue
from killproof.core import sync
from killproof.core.model import EDGES, STATES

Sql = Callable[..., list[tuple[Any, ...]]]

SCHEMA = files("killproof.core").joinpath("schema.sql").read_text()

# A row that every check accepts, in a state of each kind.
AVAILABLE: dict[str, Any] = {
    "kind": "kind",
    "state": "available",
    "payload": "{}",
    "due_ms": 1,
    "created_ms": 1,
    "updated_ms": 1,
}
LEASED = AVAILABLE | {
    "state": "leased",
    "fence": 1,
    "deliveries": 1,
    "owner": "f" * 32,
    "lease_deadline_ns": 1,
}
SUCCEEDED = AVAILABLE | {"state": "succeeded", "fence": 1, "deliveries": 1, "finished_ms": 1}
ATTEMPT = {
    "job_id": 1,
    "fence": 1,
    "outcome": "released",
    "worker": "f" * 32,
    "started_ms": 1,
    "finished_ms": 1,
}
WORKER = {"id": "f" * 32, "clock": "c", "file": "f", "byte": 1, "pid": 1, "registered_ms": 1}

# (table, a good row, what makes it impossible)
THROTTLE = {"kind": "k", "reason": "paused", "until_ms": 1}

IMPOSSIBLE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a throttle without a kind": ("throttle", THROTTLE, {"kind": ""}),
    "a throttle without a reason": ("throttle", THROTTLE, {"reason": ""}),
    "a job without a kind": ("job", AVAILABLE, {"kind": ""}),
    "a kind without end": ("job", AVAILABLE, {"kind": "k" * 201}),
    "a state that is none": ("job", AVAILABLE, {"state": "done"}),
    "a priority below": ("job", AVAILABLE, {"priority": -1}),
    "a priority above": ("job", AVAILABLE, {"priority": 10}),
    "an empty key": ("job", AVAILABLE, {"key": ""}),
    "a job that may never run": ("job", AVAILABLE, {"max_attempts": 0}),
    "a lease of no length": ("job", AVAILABLE, {"lease_ms": 0}),
    "fewer failures than none": ("job", AVAILABLE, {"failures": -1}),
    "fewer crashes than none": ("job", AVAILABLE, {"crashes": -1}),
    "a result that is no JSON": ("job", SUCCEEDED, {"result": "{"}),
    "a payload that is no JSON": ("job", AVAILABLE, {"payload": "nope"}),
    "a lease without an owner": ("job", LEASED, {"owner": None}),
    "an owner without a lease": ("job", AVAILABLE, {"owner": "f" * 32}),
    "a lease without an end": ("job", LEASED, {"lease_deadline_ns": None}),
    "an end without a lease": ("job", AVAILABLE, {"lease_deadline_ns": 1}),
    "an end without its time": ("job", SUCCEEDED, {"finished_ms": None}),
    "a time of the end before it": ("job", AVAILABLE, {"finished_ms": 1}),
    "more deliveries than fences": ("job", AVAILABLE, {"deliveries": 1, "forgiven": 1}),
    "more forgiven than delivered": ("job", AVAILABLE, {"forgiven": 1}),
    "less forgiven than nothing": ("job", LEASED, {"forgiven": -1, "max_attempts": 9}),
    "a lease that was never counted": ("job", LEASED, {"forgiven": 1}),
    "a lease beyond the last attempt": (
        "job",
        LEASED,
        {"fence": 6, "deliveries": 6, "max_attempts": 5},
    ),
    "a job that waits with no attempt left": (
        "job",
        AVAILABLE,
        {"fence": 5, "deliveries": 5, "max_attempts": 5},
    ),
    "a success that nobody worked for": ("job", SUCCEEDED, {"fence": 0, "deliveries": 0}),
    "a result without success": ("job", AVAILABLE, {"result": "1"}),
    "an outcome that is none": ("attempt", ATTEMPT, {"outcome": "done"}),
    "a failure without its error": ("attempt", ATTEMPT, {"outcome": "failed"}),
    "a worker without an identity": ("worker", WORKER, {"id": "f"}),
    "a schema version below the first": (
        "killproof_schema",
        {"component": "x", "version": 1},
        {"version": 0},
    ),
}


def insert(sql: Sql, table: str, row: dict[str, Any]) -> None:
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    sql(f"INSERT INTO {table} ({names}) VALUES ({marks})", *row.values())  # noqa: S608


def checks(schema: str) -> Iterator[str]:
    """Yield the text of every CHECK, comments and line breaks removed."""
    text = re.sub(r"--.*", "", schema)
    for start in (match.end() for match in re.finditer(r"\bCHECK \(", text)):
        depth, end = 1, start
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield " ".join(text[start : end - 1].split())


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_row_is_refused_whoever_writes(sql: Sql, name: str) -> None:
    """Covers F51."""
    table, good, bad = IMPOSSIBLE[name]

    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        insert(sql, table, good | bad)
    insert(sql, "job", AVAILABLE)  # What an attempt refers to.
    insert(sql, table, good)


@pytest.mark.parametrize("name", [name for name, row in IMPOSSIBLE.items() if row[0] == "job"])
def test_a_good_row_cannot_be_made_impossible_by_another_program(sql: Sql, name: str) -> None:
    _, good, bad = IMPOSSIBLE[name]
    insert(sql, "job", good)
    changes = ", ".join(f"{column} = ?" for column in bad)

    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        sql(f"UPDATE job SET {changes}", *bad.values())  # noqa: S608


def test_every_check_of_the_schema_is_seen_to_refuse_something(sql: Sql) -> None:
    refused = set()
    for table, good, bad in IMPOSSIBLE.values():
        with pytest.raises(sqlite3.IntegrityError) as caught:
            insert(sql, table, good | bad)
        refused.add(" ".join(str(caught.value).partition(": ")[2].split()))

    assert refused == set(checks(SCHEMA))


def test_two_live_jobs_with_one_key_cannot_be_stored(sql: Sql) -> None:
    insert(sql, "job", SUCCEEDED | {"key": "k"})
    insert(sql, "job", AVAILABLE | {"key": "k"})

    for state in ("blocked", "scheduled", "retryable", "held"):
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            insert(sql, "job", AVAILABLE | {"key": "k", "state": state})


def test_an_id_is_never_used_twice(queue: Queue, sql: Sql) -> None:
    """A lease of a deleted job must not fit a newer one. Covers S0.18."""
    first = queue.enqueue("kind", 1)
    sql("DELETE FROM job")

    assert queue.enqueue("kind", 2) > first


@pytest.mark.parametrize("table", ["job", "attempt", "worker"])
def test_no_column_takes_a_value_of_another_type(sql: Sql, table: str) -> None:
    """Covers F48, F51."""
    good = {"job": LEASED, "attempt": ATTEMPT, "worker": WORKER}[table]
    if table != "job":
        insert(sql, "job", AVAILABLE)
    insert(sql, table, good)
    columns = {
        name: kind for _, name, kind, *_ in sql(f"PRAGMA table_info({table})") if kind == "INTEGER"
    }
    for name in columns:
        with pytest.raises(sqlite3.Error, match=r"cannot store TEXT|datatype mismatch"):
            sql(f"UPDATE {table} SET {name} = 'text'")  # noqa: S608


# Edges.

RECORD_EDGES = """
    CREATE TABLE edge (old, new);
    CREATE TRIGGER edge_insert AFTER INSERT ON job BEGIN
        INSERT INTO edge VALUES (NULL, new.state);
    END;
    CREATE TRIGGER edge_update AFTER UPDATE OF state ON job BEGIN
        INSERT INTO edge VALUES (old.state, new.state);
    END;
"""


def illegal(sql: Sql) -> set[tuple[str | None, str]]:
    """Return the recorded changes of state that the state machine does not know."""
    return {(old, new) for old, new in sql("SELECT DISTINCT old, new FROM edge")} - EDGES


class Walk:
    """Does random operations on a queue; keeps the leases it was given, lost ones included."""

    def __init__(self, queue: Queue, clock: ManualClock, seed: int) -> None:
        self.queue = queue
        self.clock = clock
        self.random = random.Random(seed)
        self.leases: list[Lease] = []

    def step(self) -> None:
        queue, choose = self.queue, self.random
        names = "enqueue claim claim ack nack nack release snooze extend cancel reap pass both"
        name = choose.choice(names.split())
        lease = choose.choice(self.leases) if self.leases else None
        if name == "enqueue":
            queue.enqueue(
                choose.choice("ab"),
                0,
                delay=choose.choice([0, 0, 1]),
                max_attempts=choose.choice([1, 2, 3]),
                lease=choose.choice([1, 30]),
                retry=choose.choice(["immediate", "fixed:1"]),
            )
        elif name == "claim":
            self.leases += queue.claim_many(choose.choice([1, 3]))
        elif name == "reap":
            queue.reap()
        elif name == "pass":
            self.clock.advance(choose.choice([0.01, 1, 20]))
        elif lease is not None:
            with suppress(KillproofError):
                self.end(name, lease)

    def end(self, name: str, lease: Lease) -> None:
        queue = self.queue
        if name == "ack":
            queue.ack(lease)
        elif name == "nack":
            queue.nack(lease, "no", permanent=self.random.random() < 0.1)
        elif name == "release":
            queue.release(lease)
        elif name == "snooze":
            queue.snooze(lease, self.random.choice([0, 1]))
        elif name == "extend":
            queue.extend(lease)
        elif name == "cancel":
            queue.cancel(lease.job.id)
        else:
            with suppress(KillproofError):
                self.leases += [x for x in [queue.ack_and_claim(lease)] if x]


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_move_jobs_along_the_edges_only(
    queue: Queue, clock: ManualClock, sql: Sql, seed: int
) -> None:
    for statement in RECORD_EDGES.replace("END;", "END;;").split(";;"):
        with closing(sqlite3.connect(queue.path)) as connection:
            connection.executescript(statement)
    walk = Walk(queue, clock, seed)
    for _ in range(600):
        walk.step()

    assert illegal(sql) == set(), f"seed {seed}"
    seen = {(old, new) for old, new in sql("SELECT DISTINCT old, new FROM edge")}
    # What is left out needs a person, a dependency or a replay, which stand above the core.
    above = {"blocked", "held", "expired"}
    wanted = {edge for edge in EDGES if not above & set(edge)}
    wanted -= {("dead", "available"), ("cancelled", "available")}
    assert len(wanted - seen) <= 2, wanted - seen
    insert(sql, "job", SUCCEEDED)
    assert illegal(sql) == {(None, "succeeded")}  # The control: a row nobody put in.


def test_the_states_of_the_model_are_those_of_the_schema() -> None:
    listed = re.search(r"state IN \(('blocked'.*?)\)", SCHEMA, re.DOTALL)

    assert listed is not None
    assert set(re.findall(r"'(\w+)'", listed[1])) == set(STATES)
    assert {state for edge in EDGES for state in edge if state} == set(STATES)


# Damage: rows written by a program that has switched the checks off.

BIG = (1 << 63) - 1
DAMAGE: dict[str, str] = {
    "payload no JSON": "payload = 'nope'",
    "payload empty": "payload = ''",
    "payload no UTF-8": "payload = CAST(x'22ff22' AS TEXT)",
    "payload nested beyond decoding": f"payload = '{'[' * 1900}{']' * 1900}'",
    "payload a number without end": f"payload = '{'9' * 5000}'",
    "kind no UTF-8": "kind = CAST(x'ff' AS TEXT)",
    "kind empty": "kind = ''",
    "key no UTF-8": "key = CAST(x'ff' AS TEXT)",
    "retry no UTF-8": "retry = CAST(x'ff' AS TEXT)",
    "retry nonsense": "retry = 'fixed:x'",
    "error no UTF-8": "error_message = CAST(x'ff' AS TEXT)",
    "result": "result = 'nope'",
    "priority": f"priority = {BIG}",
    "due": f"due_ms = -{BIG}",
    "lease too long for any clock": f"lease_ms = {BIG}",
    "lease of no length": "lease_ms = -1",
    "attempts none": "max_attempts = 0",
    "attempts fewer than none": "max_attempts = -5",
    "deliveries ahead of the fence": "deliveries = 50",
    "deliveries below": "deliveries = -1",
    "forgiven ahead": "forgiven = 50",
    "forgiven below": "forgiven = -1",
    "fence below": "fence = -1",
    "fence at its end": f"fence = {BIG}",
    "counters at their end": f"fence = {BIG}, deliveries = {BIG}, forgiven = {BIG}",
    "failures below": "failures = -1",
    "finished": "finished_ms = 5",
    "owner": "owner = 'nobody'",
    "deadline": "lease_deadline_ns = 5",
}


def damage(queue: Queue, change: str, job_id: int) -> None:
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE job SET {change} WHERE id = ?", (job_id,))  # noqa: S608


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("delay", [0, 1], ids=["available", "scheduled"])
def test_a_damaged_row_never_stops_the_others(
    queue: Queue, clock: ManualClock, name: str, delay: float
) -> None:
    """Covers F1."""
    ids = [queue.enqueue("kind", i, delay=delay) for i in range(3)]
    damage(queue, DAMAGE[name], ids[0])
    clock.advance(2)

    claimed = set()
    for _ in range(6):
        lease = queue.claim()
        if lease is not None:
            claimed.add(lease.job.id)
            if lease.job.id != ids[0]:
                queue.ack(lease)
    assert set(ids[1:]) <= claimed
    assert queue.counts()["succeeded"] == 2
    assert queue.claim() is None
    assert not queue.wait(None, 0.01)  # Nor is it looked at again and again.
    job = queue.get(ids[0])
    assert job is not None
    assert job.state in ("leased", "dead", "held", "retryable")
    if job.state == "held":
        assert job.error_class == "RowDamaged"


@pytest.mark.parametrize("name", [n for n in DAMAGE if n not in ("owner", "deadline")])
def test_a_damaged_lease_never_stops_the_reaper(
    queue: Queue, clock: ManualClock, name: str
) -> None:
    ids = queue.enqueue_many([("kind", i) for i in range(3)])
    queue.claim_many(3)
    damage(queue, DAMAGE[name], ids[0])
    clock.advance(61)

    assert queue.reap() == 3
    assert queue.reap() == 0
    assert {lease.job.id for lease in queue.claim_many(9)} >= set(ids[1:])


def test_a_lease_without_its_start_never_stops_the_reaper(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    queue.enqueue("kind", 1)
    queue.claim()
    sql("UPDATE job SET claimed_ms = NULL")
    clock.advance(61)

    assert queue.reap() == 1


def test_more_damaged_rows_than_one_call_sweeps_never_stop_the_others(
    queue: Queue, clock: ManualClock, sql: Sql
) -> None:
    ids = queue.enqueue_many([("kind", i) for i in range(250)])
    for state, part in (("available", ids[:125]), ("scheduled", ids[125:249])):
        for job_id in part:
            damage(queue, f"state = '{state}', max_attempts = 0", job_id)
    seen = [lease for _ in range(6) if (lease := queue.claim()) is not None]

    assert [lease.job.id for lease in seen] == [ids[249]]
    assert queue.counts()["held"] == 249


def test_a_damaged_row_that_can_not_even_be_buried_costs_no_other_lease(
    place: Path, clock: ManualClock
) -> None:
    """Another program takes the write lock between the claim and the burial."""
    with (
        Queue(
            place / "q.db", durability="process", busy_limit=0.1, host=Host(clock=clock)
        ) as queue,
        closing(sqlite3.connect(place / "q.db", isolation_level=None)) as other,
    ):
        ids = queue.enqueue_many([("kind", 1), ("kind", 2)])
        damage(queue, "payload = 'nope'", ids[0])

        def hook(name: str) -> None:
            if name == "claim.synced":
                other.execute("BEGIN IMMEDIATE")

        sync.hook = hook
        try:
            leases = queue.claim_many(2)
        finally:
            sync.hook = None
        other.execute("ROLLBACK")

        assert [lease.job.id for lease in leases] == [ids[1]]
        queue.ack(leases[0])
        clock.advance(61)
        assert queue.claim() is None  # Found again when its lease has run out, and buried now.
        assert queue.counts()["dead"] == 1


def test_a_damaged_payload_keeps_its_text_for_a_person(queue: Queue, sql: Sql) -> None:
    """Covers F29."""
    job_id = queue.enqueue("kind", 1)
    damage(queue, "payload = 'half a '", job_id)
    assert queue.claim() is None

    job = queue.get(job_id)
    assert job is not None
    assert (job.state, job.payload, job.error_class) == ("dead", None, "JSONDecodeError")
    assert sql("SELECT payload FROM job") == [("half a ",)]
    assert [attempt.outcome for attempt in job.attempts] == ["failed"]


def test_closing_with_a_damaged_lease_gives_back_the_others(queue: Queue) -> None:
    with Queue(queue.path) as other:
        ids = other.enqueue_many([("kind", 1), ("kind", 2)])
        other.claim_many(2)
        damage(queue, "max_attempts = 0", ids[0])

    assert [job.state for i in ids if (job := queue.get(i))] == ["leased", "available"]
