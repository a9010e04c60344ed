"""Putting jobs in: what is accepted, what is refused and how, keys, delays, batches."""

import dataclasses
import math
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from killproof import (
    JobNotFound,
    ManualClock,
    NestedTransaction,
    PayloadInvalid,
    PayloadTooLarge,
    Queue,
    StorageFull,
)
from killproof.core import model
from killproof.core.jobs import BATCH_MAX, ID_MAX

Sql = Callable[..., list[tuple[Any, ...]]]

CYCLE: list[object] = []
CYCLE.append(CYCLE)


def nested(levels: int) -> object:
    value: object = None
    for _ in range(levels):
        value = [value]
    return value


# (arguments beside kind and payload, what the message must show)
BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "priority below": ({"priority": -1}, "priority -1 must be an integer from 0 to 9"),
    "priority above": ({"priority": 10}, "priority 10 must be an integer from 0 to 9"),
    "priority a bool": ({"priority": True}, "priority True"),
    "priority a float": ({"priority": 5.0}, "priority 5.0"),
    "delay negative": ({"delay": -0.001}, "delay -0.001 must be a number of seconds"),
    "delay not a number": ({"delay": math.nan}, "delay nan"),
    "delay endless": ({"delay": math.inf}, "delay inf"),
    "delay a bool": ({"delay": True}, "delay True"),
    "delay text": ({"delay": "5"}, "delay '5'"),
    "delay over a century": ({"delay": 4e9}, "at most 100 years"),
    "delay beyond any integer": ({"delay": 10**5000}, "delay <no text"),
    "run_at naive": ({"run_at": datetime(2026, 1, 1)}, "has no time zone"),
    "run_at negative": ({"run_at": -1}, "run_at -1"),
    "run_at before the epoch": ({"run_at": datetime(1, 1, 1, tzinfo=UTC)}, "run_at -621"),
    "run_at text": ({"run_at": "tomorrow"}, "run_at 'tomorrow'"),
    "run_at and delay": ({"run_at": 1, "delay": 1}, "exclude each other"),
    "key empty": ({"key": ""}, "key ''"),
    "key too long": ({"key": "x" * 501}, "1 to 500 characters"),
    "key not text": ({"key": 7}, "key 7"),
    "key with a NUL": ({"key": "a\0b"}, "without NUL or surrogates"),
    "key with a surrogate": ({"key": "a\ud800"}, "without NUL or surrogates"),
    "attempts none": ({"max_attempts": 0}, "max_attempts 0"),
    "attempts a bool": ({"max_attempts": True}, "max_attempts True"),
    "attempts beyond": ({"max_attempts": 10**7}, "max_attempts 10000000"),
    "lease none": ({"lease": 0}, "at least 0.001"),
    "lease negative": ({"lease": -1}, "lease -1"),
    "lease not a number": ({"lease": math.nan}, "lease nan"),
    "retry not text": ({"retry": 5}, "retry policy 5 is unknown"),
    "retry unknown": ({"retry": "sometimes"}, "retry policy 'sometimes' is unknown"),
    "retry without its number": ({"retry": "fixed"}, "retry policy 'fixed' is unknown"),
    "retry negative": ({"retry": "fixed:-1"}, "retry policy 'fixed:-1'"),
    "retry not a number": ({"retry": "exponential:nan"}, "retry policy 'exponential:nan'"),
    "retry endless": ({"retry": "fixed:inf"}, "retry policy 'fixed:inf'"),
    "retry with a number too many": ({"retry": "article:1"}, "retry policy 'article:1'"),
}

BAD_KINDS: dict[str, tuple[Any, str]] = {
    "empty": ("", "kind ''"),
    "too long": ("k" * 201, "1 to 200 characters"),
    "not text": (5, "kind 5"),
    "None": (None, "kind None"),
    "a NUL": ("a\0", "without NUL or surrogates"),
    "a surrogate": ("\udcff", "without NUL or surrogates"),
}

BAD_PAYLOADS: dict[str, tuple[object, str]] = {
    "NaN": ({"x": math.nan}, "nan"),
    "infinity": ([math.inf], "inf"),
    "a lone surrogate": ("\ud83d", "lone surrogate"),
    "a surrogate as a key": ({"\udc00": 1}, "lone surrogate"),
    "a cycle": (CYCLE, "Circular reference"),
    "an object": ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "datetime"),
    "a set": ({1, 2}, "{1, 2}"),
    "bytes": (b"abc", "b'abc'"),
    "one level too deep": (nested(model.PAYLOAD_DEPTH_MAX + 1), "nested 201 levels deep"),
    "deeper than the interpreter goes": (nested(100_000), "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_wrong_option_is_refused_with_its_value_and_nothing_is_written(
    queue: Queue, name: str
) -> None:
    options, shown = BAD_OPTIONS[name]

    with pytest.raises(ValueError, match=re.escape(shown)) as caught:
        queue.enqueue("kind", {}, **options)
    assert "\n" not in str(caught.value)
    assert sum(queue.counts().values()) == 0


@pytest.mark.parametrize("name", BAD_KINDS)
def test_a_wrong_kind_is_refused_with_its_value_and_nothing_is_written(
    queue: Queue, name: str
) -> None:
    kind, shown = BAD_KINDS[name]

    with pytest.raises(ValueError, match="kind") as caught:
        queue.enqueue(kind, {})
    assert shown in str(caught.value)
    assert sum(queue.counts().values()) == 0


@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_a_payload_that_is_not_json_is_refused_with_its_value_and_nothing_is_written(
    queue: Queue, name: str
) -> None:
    """Covers F68."""
    payload, shown = BAD_PAYLOADS[name]

    with pytest.raises(PayloadInvalid) as caught:
        queue.enqueue("kind", payload)
    assert caught.value.definite
    assert shown in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert sum(queue.counts().values()) == 0


def test_a_payload_one_byte_over_the_limit_is_refused_and_at_the_limit_kept(queue: Queue) -> None:
    fits = "x" * (model.PAYLOAD_BYTES_MAX - 2)  # Two quotes.

    assert queue.get(queue.enqueue("kind", fits)) is not None
    with pytest.raises(PayloadTooLarge, match="1048577 bytes is over the limit of 1048576"):
        queue.enqueue("kind", fits + "x")
    assert sum(queue.counts().values()) == 1


def test_the_size_of_a_payload_is_counted_in_bytes_not_characters(queue: Queue) -> None:
    with pytest.raises(PayloadTooLarge):
        queue.enqueue("kind", "\N{SNOWMAN}" * (model.PAYLOAD_BYTES_MAX // 2))


@pytest.mark.parametrize(
    "payload",
    [None, True, 0, -1.5, "", "null", [], {}, {"": [None]}, "\0", "\u2028 \N{SNOWMAN} \U0001f600"],
    ids=repr,
)
def test_every_json_value_comes_back_as_it_went_in(queue: Queue, payload: object) -> None:
    queue.enqueue("kind", payload)
    lease = queue.claim()

    assert lease is not None
    assert lease.job.payload == payload
    assert type(lease.job.payload) is type(payload)


def test_the_deepest_payload_accepted_is_claimed_from_a_deep_stack(queue: Queue) -> None:
    def claim_below(frames: int) -> object:
        return queue.claim() if frames == 0 else claim_below(frames - 1)

    job_id = queue.enqueue("kind", nested(model.PAYLOAD_DEPTH_MAX))

    assert claim_below(400) is not None
    assert queue.counts()["dead"] == 0
    job = queue.get(job_id)
    assert job is not None
    assert job.payload == nested(model.PAYLOAD_DEPTH_MAX)


def test_a_broad_payload_is_not_taken_for_a_deep_one(queue: Queue) -> None:
    broad = [{"i": [i]} for i in range(1_000)]

    job = queue.get(queue.enqueue("kind", broad))

    assert job is not None
    assert job.payload == broad


def test_a_new_job_holds_what_was_asked_for(queue: Queue, clock: ManualClock) -> None:
    job_id = queue.enqueue(
        "mail", [1], priority=0, key="k", max_attempts=3, lease=1.5, retry="fixed:2"
    )

    job = queue.get(job_id)
    assert job is not None
    assert (job.kind, job.payload, job.priority, job.key) == ("mail", [1], 0, "k")
    assert (job.max_attempts, job.lease_ms, job.retry) == (3, 1500, "fixed:2")
    assert (job.state, job.fence, job.deliveries, job.attempt) == ("available", 0, 0, 0)
    assert (job.due_ms, job.created_ms) == (clock.now_ms(), clock.now_ms())
    assert (job.owner, job.finished_ms, job.result, job.attempts) == (None, None, None, ())


# Delays.


@pytest.mark.parametrize("seconds", [0.001, 0.0011, 1.1, 0.1 + 0.2, 59.9999, 86_400])
def test_a_delayed_job_is_not_claimed_a_millisecond_early(
    queue: Queue, clock: ManualClock, seconds: float
) -> None:
    """Covers F47."""
    start_ms = clock.now_ms()
    job = queue.get(queue.enqueue("kind", 0, delay=seconds))

    assert job is not None
    assert job.state == "scheduled"
    assert seconds * 1_000 <= job.due_ms - start_ms < seconds * 1_000 + 1.001
    clock.wall_ms = job.due_ms - 1
    assert queue.claim() is None
    clock.wall_ms = job.due_ms
    assert queue.claim() is not None


def test_a_job_that_falls_due_takes_no_later_one_with_it(queue: Queue, clock: ManualClock) -> None:
    due = queue.enqueue("kind", 0, delay=1)
    queue.enqueue("kind", 0, delay=1.001)
    clock.wall_ms += 1_000

    assert [lease.job.id for lease in queue.claim_many(2)] == [due]
    clock.wall_ms += 1
    assert len(queue.claim_many(2)) == 1


def test_an_empty_claim_before_the_due_time_does_not_hide_the_job_after_it(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("kind", 0, delay=10)
    assert [queue.claim() for _ in range(3)] == [None] * 3
    clock.advance(10)

    assert queue.claim() is not None


def test_run_at_takes_an_aware_moment_of_any_zone_and_epoch_seconds(
    queue: Queue, clock: ManualClock
) -> None:
    moment = datetime.fromtimestamp(clock.now_ms() / 1_000 + 90, UTC)
    zoned = moment.astimezone(tz=UTC) + timedelta(0)
    ids = [queue.enqueue("kind", 0, run_at=at) for at in (moment, zoned, moment.timestamp())]

    assert {job.due_ms for i in ids if (job := queue.get(i))} == {clock.now_ms() + 90_000}


def test_run_at_in_the_past_means_now_and_keeps_the_order_of_arrival(
    queue: Queue, clock: ManualClock
) -> None:
    first = queue.enqueue("kind", 0)
    late = queue.enqueue("kind", 0, run_at=1)

    job = queue.get(late)
    assert job is not None
    assert (job.state, job.due_ms) == ("available", clock.now_ms())
    assert [lease.job.id for lease in queue.claim_many(2)] == [first, late]


# Keys.


def test_a_key_names_one_live_job_whatever_state_it_is_in(queue: Queue, clock: ManualClock) -> None:
    """Covers F44."""
    first = queue.enqueue("kind", 1, key="k")
    seen = [queue.enqueue("kind", 2, key="k")]  # available
    lease = queue.claim()
    assert lease is not None
    seen.append(queue.enqueue("kind", 3, key="k"))  # leased
    queue.nack(lease, "no")
    seen.append(queue.enqueue("kind", 4, key="k"))  # retryable
    clock.advance(3_700)
    again = queue.claim()
    assert again is not None
    queue.snooze(again, 5)
    seen.append(queue.enqueue("kind", 5, key="k"))  # scheduled

    assert seen == [first] * 4
    job = queue.get(first)
    assert job is not None
    assert job.payload == 1


@pytest.mark.parametrize("end", ["ack", "nack", "cancel"])
def test_a_key_is_free_again_when_its_job_has_ended(queue: Queue, end: str) -> None:
    first = queue.enqueue("kind", 1, key="k")
    lease = queue.claim()
    assert lease is not None
    if end == "ack":
        queue.ack(lease)
    elif end == "nack":
        queue.nack(lease, "no", permanent=True)
    else:
        queue.cancel(first)

    second = queue.enqueue("kind", 2, key="k")
    assert second != first
    assert queue.enqueue("kind", 3, key="k") == second


def test_a_key_is_seen_through_the_transaction_that_puts_it_in(queue: Queue) -> None:
    with queue.transaction() as tx:
        first = queue.enqueue("kind", 1, key="k", tx=tx)
        assert queue.enqueue("kind", 2, key="k", tx=tx) == first

    assert queue.counts()["available"] == 1


def test_a_key_of_a_transaction_that_was_rolled_back_is_free(queue: Queue) -> None:
    with suppress(ZeroDivisionError), queue.transaction() as tx:
        queue.enqueue("kind", 1, key="k", tx=tx)
        raise ZeroDivisionError

    assert sum(queue.counts().values()) == 0
    queue.enqueue("kind", 2, key="k")
    assert queue.counts()["available"] == 1


def test_keys_do_not_clash_between_none_and_text(queue: Queue) -> None:
    ids = {queue.enqueue("kind", i, key=key) for i, key in enumerate([None, None, "a", "b"])}

    assert len(ids) == 4


# Batches.


def test_a_batch_goes_in_in_order(queue: Queue) -> None:
    ids = queue.enqueue_many([("a", 1), ("b", 2), ("a", 3)])

    assert ids == sorted(ids)
    assert [lease.job.payload for lease in queue.claim_many(9)] == [1, 2, 3]
    assert queue.enqueue_many([]) == []


def test_many_jobs_are_rows_as_one_by_one_and_their_ids_go_on(queue: Queue) -> None:
    """More of them than one statement holds, after an id that was given out and is gone."""
    one = queue.enqueue("kind", {"n": "ä\n"})
    gone = queue.enqueue("kind", 0)
    with queue.transaction() as tx:
        tx.execute("DELETE FROM job WHERE id = ?", (gone,))

    ids = queue.enqueue_many([("kind", {"n": "ä\n"})] * 120)

    assert ids == list(range(gone + 1, gone + 121))
    assert queue.enqueue("kind", 0) == gone + 121
    times = dict.fromkeys(("id", "due_ms", "created_ms"))
    jobs = [job for each in (one, ids[0], ids[-1]) if (job := queue.get(each))]
    rows = [dataclasses.asdict(job) | times for job in jobs]
    assert rows == [rows[0]] * 3


def test_many_jobs_have_their_own_ids_though_a_trigger_puts_jobs_in_between(queue: Queue) -> None:
    with queue.transaction() as tx:
        tx.execute(
            "CREATE TRIGGER twin AFTER INSERT ON job WHEN NEW.kind = 'kind' BEGIN"
            " INSERT INTO job (kind, state, payload, due_ms, created_ms, updated_ms)"
            " VALUES ('twin', 'available', NEW.payload, 0, 0, 0); END"
        )

    ids = queue.enqueue_many([("kind", number) for number in range(70)])

    found = [queue.get(each) for each in ids]
    assert [(job.kind, job.payload) for job in found if job] == [("kind", n) for n in range(70)]
    assert queue.counts()["available"] == 140


def test_where_no_ids_are_left_a_batch_is_refused_as_one_job_is(queue: Queue, sql: Sql) -> None:
    queue.enqueue("kind", 0)
    for given in (ID_MAX, ID_MAX - 1):
        sql("UPDATE sqlite_sequence SET seq = ? WHERE name = 'job'", given)
        with pytest.raises(StorageFull):
            queue.enqueue_many([("kind", 1), ("kind", 2)])
    assert queue.counts()["available"] == 1


@pytest.mark.parametrize("keys", [["k"], ["k"] * 3, ["k", ""], ["k", 7], "ab", ["k", "x" * 501]])
def test_a_batch_whose_keys_are_wrong_puts_none_in(queue: Queue, keys: Any) -> None:
    with pytest.raises(ValueError, match="key"):
        queue.enqueue_many([("a", 1), ("a", 2)], keys=keys)

    assert sum(queue.counts().values()) == 0


def test_a_batch_with_keys_puts_in_what_one_by_one_would(tmp_path: Path) -> None:
    """Fresh keys, those of living and of ended jobs, twins in the batch and over two statements."""
    numbers = random.Random(5)
    keys = [numbers.choice([None, *(f"k{n}" for n in range(90))]) for _ in range(160)]
    jobs = [(f"kind-{n % 3}", n) for n in range(160)]
    told, stored = [], []
    for name in ("many", "single"):
        with Queue(tmp_path / f"{name}.db") as queue:
            living = queue.enqueue("old", 0, key="k1")
            queue.enqueue("urgent", 0, key="k2", priority=0)
            lease = queue.claim()
            assert lease
            queue.ack(lease)
            if name == "many":
                ids = queue.enqueue_many(jobs, keys=keys)
            else:
                ids = [
                    queue.enqueue(kind, payload, key=key)
                    for (kind, payload), key in zip(jobs, keys, strict=True)
                ]
            assert ids[keys.index("k1")] == living
            # Numbers that were never given out may be left free: the order of the ids is the same.
            rank = {each: n for n, each in enumerate(sorted(set(ids)))}
            told.append([rank[each] for each in ids])
            found = [job for each in sorted(set(ids)) if (job := queue.get(each))]
            times = dict.fromkeys(("id", "due_ms", "created_ms"))
            stored.append([dataclasses.asdict(job) | times for job in found])

    assert told[0] == told[1]
    assert stored[0] == stored[1]


def test_a_batch_repeated_with_its_keys_puts_nothing_in(queue: Queue) -> None:
    jobs = [("kind", n) for n in range(60)]
    keys = [f"k{n}" for n in range(60)]
    first = queue.enqueue_many(jobs, keys=keys)

    assert queue.enqueue_many(jobs, keys=keys) == first == sorted(first)
    assert queue.counts()["available"] == 60
    assert queue.enqueue_many(jobs, keys=[None] * 60)[0] > first[-1]


def test_a_batch_with_keys_has_its_own_ids_though_a_trigger_puts_jobs_in_between(
    queue: Queue,
) -> None:
    """One of them just where the job whose key lives already would have been."""
    living = queue.enqueue("kind", 0, key="b")
    with queue.transaction() as tx:
        tx.execute(
            "CREATE TRIGGER twin AFTER INSERT ON job WHEN NEW.kind = 'twice' BEGIN"
            " INSERT INTO job (kind, state, payload, due_ms, created_ms, updated_ms)"
            " VALUES ('twin', 'available', '7', 0, 0, 0); END"
        )

    ids = queue.enqueue_many([("twice", 1), ("kind", 2), ("kind", 3)], keys=["a", "b", None])

    assert ids[1] == living
    found = [queue.get(each) for each in ids]
    assert [(job.kind, job.payload) for job in found if job] == [
        ("twice", 1),
        ("kind", 0),
        ("kind", 3),
    ]


def test_a_batch_with_one_wrong_job_puts_none_in(queue: Queue) -> None:
    with pytest.raises(PayloadInvalid):
        queue.enqueue_many([("a", 1), ("a", math.nan)])
    with pytest.raises(ValueError, match="kind ''"):
        queue.enqueue_many([("a", 1), ("", 2)])

    assert sum(queue.counts().values()) == 0


def test_a_batch_over_the_limit_is_refused_whole(queue: Queue) -> None:
    with pytest.raises(ValueError, match=str(BATCH_MAX + 1)):
        queue.enqueue_many([("a", i) for i in range(BATCH_MAX + 1)])

    assert sum(queue.counts().values()) == 0


# Joining a transaction.


def test_an_enqueue_joins_the_transaction_it_is_given(queue: Queue, sql: Sql) -> None:
    with queue.transaction() as tx:
        tx.execute("CREATE TABLE done (x)")
        tx.execute("INSERT INTO done VALUES (:x)", {"x": 5})
        queue.enqueue("kind", 1, tx=tx)
        assert sql("SELECT count(*) FROM job") == [(0,)]

    assert sql("SELECT count(*) FROM job") == [(1,)]
    assert sql("SELECT x FROM done") == [(5,)]


def dictionary(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
    return dict(zip([column[0] for column in cursor.description], row, strict=True))


@pytest.mark.parametrize("factory", [None, sqlite3.Row, dictionary])
def test_an_enqueue_joins_the_callers_own_connection(queue: Queue, sql: Sql, factory: Any) -> None:
    with closing(sqlite3.connect(queue.path)) as connection:
        connection.row_factory = factory
        connection.execute("CREATE TABLE done (x)")
        first = queue.enqueue("kind", 1, key="k", tx=connection)
        assert queue.enqueue("kind", 2, key="k", tx=connection) == first
        assert sql("SELECT count(*) FROM job") == [(0,)]
        connection.rollback()
        assert sql("SELECT count(*) FROM job") == [(0,)]
        queue.enqueue("kind", 3, tx=connection)
        connection.commit()

    assert sql("SELECT payload FROM job") == [("3",)]


def test_a_connection_on_another_file_is_refused(queue: Queue, place: Path) -> None:
    with (
        closing(sqlite3.connect(place / "other.db")) as other,
        closing(sqlite3.connect(":memory:")) as memory,
    ):
        for connection in (other, memory):
            with pytest.raises(ValueError, match=r"tx is a connection on .*, not on"):
                queue.enqueue("kind", 1, tx=connection)


def test_a_transaction_of_another_file_is_refused(queue: Queue, place: Path) -> None:
    with (
        Queue(place / "other.db", durability="process") as other,
        other.transaction() as tx,
        pytest.raises(ValueError, match=r"tx is a transaction on .*other.db', not on"),
    ):
        queue.enqueue("kind", 1, tx=tx)
    assert sum(queue.counts().values()) == 0


def test_a_transaction_that_has_ended_is_refused(queue: Queue) -> None:
    """Its statement would commit itself, without the barrier: an acknowledgement that can lie."""
    with queue.transaction() as tx:
        pass

    with pytest.raises(ValueError, match="whose block has ended"):
        queue.enqueue("kind", 1, tx=tx)
    with pytest.raises(ValueError, match="whose block has ended"):
        tx.execute("DELETE FROM job")
    assert sum(queue.counts().values()) == 0


def test_inside_a_transaction_every_call_without_tx_is_refused_at_once(queue: Queue) -> None:
    job_id = queue.enqueue("kind", 1)
    lease = queue.claim()
    assert lease is not None
    with queue.transaction() as tx:
        calls: list[Callable[[], object]] = [
            lambda: queue.enqueue("kind", 1),
            lambda: queue.enqueue_many([("kind", 1)]),
            lambda: queue.claim_many(1),
            lambda: queue.ack(lease),
            lambda: queue.ack_and_claim(lease),
            lambda: queue.nack(lease, "no"),
            lambda: queue.release(lease),
            lambda: queue.snooze(lease, 1),
            lambda: queue.extend(lease),
            lambda: queue.cancel(job_id),
            lambda: queue.get(job_id),
            lambda: queue.counts(),
            lambda: queue.reap(),
        ]
        for call in calls:
            with pytest.raises(NestedTransaction) as caught:
                call()
            assert caught.value.definite
        queue.enqueue("kind", 2, tx=tx)

    assert queue.counts()["available"] == 1


def test_a_second_queue_on_the_same_file_in_the_same_thread_is_refused_at_once(
    queue: Queue,
) -> None:
    """The turnstile belongs to a description: the thread would wait for itself."""
    with (
        Queue(queue.path, busy_limit=0.5) as second,
        queue.transaction() as tx,
    ):
        with pytest.raises(NestedTransaction, match="pass tx= to join it"):
            second.enqueue("kind", 1)
        second.enqueue("kind", 2, tx=tx)
        assert second.database.bypasses == 0

    assert queue.counts()["available"] == 1


def test_a_second_queue_on_the_same_file_is_welcome_outside_of_transactions(queue: Queue) -> None:
    with Queue(queue.path) as second:
        ids = [queue.enqueue("kind", 1), second.enqueue("kind", 2)]

        assert [job.payload for i in ids if (job := second.get(i))] == [1, 2]
        assert second.database.bypasses == queue.database.bypasses == 0


def test_an_error_of_the_callers_block_reaches_the_caller_as_it_is(queue: Queue) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), queue.transaction():
        Path("/nowhere/at/all").read_text()
    with pytest.raises(sqlite3.OperationalError, match="no such table"), queue.transaction() as tx:
        tx.execute("SELECT * FROM absent")

    assert sum(queue.counts().values()) == 0
    queue.enqueue("kind", 1)


def test_a_cursor_left_open_ends_with_its_transaction(queue: Queue) -> None:
    queue.enqueue_many([("kind", 1), ("kind", 2)])
    with queue.transaction() as tx:
        cursor = tx.execute("SELECT id FROM job")
        cursor.fetchone()

    with pytest.raises(sqlite3.ProgrammingError, match="closed cursor"):
        cursor.fetchone()


@pytest.mark.parametrize("job_id", [0, -1, True, 1.0, "1", None, 1 << 63])
def test_an_id_that_cannot_be_one_is_refused_with_its_value(queue: Queue, job_id: Any) -> None:
    for call in (queue.get, queue.cancel):
        with pytest.raises(ValueError, match=r"id .* must be an integer from 1"):
            call(job_id)


def test_a_job_that_is_not_there_is_none_to_get_and_an_error_to_cancel(queue: Queue) -> None:
    assert queue.get(7) is None
    with pytest.raises(JobNotFound, match="there is no job 7"):
        queue.cancel(7)


@pytest.mark.parametrize(
    ("moment", "accepted"),
    [(4_102_444_800, True), (253_402_300_799, True), (253_402_300_800, False), (-1, False)],
    ids=["year 2100", "last second of 9999", "first of 10000", "before 1970"],
)
def test_a_moment_may_lie_anywhere_up_to_the_year_9999(
    queue: Queue, moment: float, accepted: bool
) -> None:
    """Else a bound meant for delays would refuse every moment after 2069."""
    if accepted:
        job = queue.get(queue.enqueue("kind", None, run_at=moment))

        assert job is not None
        assert job.due_ms == moment * 1_000
    else:
        with pytest.raises(ValueError, match=f"run_at {moment} must be seconds since 1970"):
            queue.enqueue("kind", None, run_at=moment)
