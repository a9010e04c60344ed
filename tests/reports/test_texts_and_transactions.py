"""Texts that a store refuses, payloads that are too large, and effects apart from their job."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from killproof import Host, Lease, ManualClock, PayloadInvalid, PayloadTooLarge, Queue
from killproof.core import model
from killproof.core.model import PAYLOAD_BYTES_MAX
from killproof.payloads import Payloads

SECONDS_MAX = 120.0
Made = type[Queue]


def opened(place: Path, make: Made = Queue) -> Queue:
    return make(place / "q.db", durability="process", host=Host(clock=ManualClock()))


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


# B118, B119: an error whose text the store refuses can not be recorded.


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


def error_of(text: str | bytes | None) -> BaseException:
    if text is None:
        return Mute()
    return ValueError(text)


#: Among them what a cut by bytes, a C string or an encoder stumbles over.
AWKWARD = ["a\0b", "\ud83d", "x" * 16_383 + "\U0001f600" * 3, "\U0010ffff", "\udcff" * 20_000]
TEXTS = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=40),
    st.sampled_from(AWKWARD),
)


def check_every_failure_is_recorded(queue: Queue, text: str | bytes | None) -> None:
    job_id = queue.enqueue("kind", 1, max_attempts=1)
    queue.nack(claimed(queue), error_of(text))
    job = queue.get(job_id)
    assert job is not None
    assert job.state == "dead", "it is neither retried nor dead"
    assert job.error_message is not None
    assert len(job.error_message) <= 6 * model.ERROR_CHARS_MAX + 8  # Six of \\udcff for one.
    sql = "SELECT length(error_message) FROM job WHERE id = ?"
    ((size,),) = queue.database.peek(sql, (job_id,))
    assert size == len(job.error_message), "half of the readers see less of it"
    (attempt,) = job.attempts
    assert attempt.error_message == job.error_message


def test_whatever_the_text_of_an_error_its_failure_is_recorded(place: Path) -> None:
    """B118, B119: a NUL, half a surrogate, 10 MB, no text at all: neither retried nor dead."""
    with opened(place) as queue:

        @given(text=TEXTS)
        @settings(deadline=None, max_examples=100)
        def each(text: str | bytes | None) -> None:
            check_every_failure_is_recorded(queue, text)

        each()
        check_every_failure_is_recorded(queue, "\U0001f600" * 3_000_000)


@pytest.mark.parametrize("text", ["a\0b", "half \ud83d"])
def test_an_error_that_is_stored_as_it_is_is_seen_to_be_cut_or_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """B118, control."""
    monkeypatch.setattr(model, "storable", lambda text, keep_end=False: text)
    with opened(place) as queue, pytest.raises((AssertionError, UnicodeEncodeError)):
        check_every_failure_is_recorded(queue, text)


def test_an_error_that_is_asked_for_its_text_unguarded_is_seen_to_end_the_failure_path(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B118, control."""
    monkeypatch.setattr(model, "_guarded", lambda describe: describe())
    with opened(place) as queue, pytest.raises(SystemExit):
        check_every_failure_is_recorded(queue, None)


JSON: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=8), inner, max_size=4
    ),
    max_leaves=12,
)  # fmt: skip


def check_values_come_back(queue: Queue, payload: object, result: object) -> None:
    job_id = queue.enqueue("kind", payload)
    lease = claimed(queue)
    queue.ack(lease, result)
    job = queue.get(job_id)
    assert job is not None
    assert lease.job.payload == job.payload == payload
    assert job.result == result


def test_payload_and_result_come_back_as_they_went_in(place: Path) -> None:
    """B119: fuzz round trip; a cut text was refused for ever."""
    with opened(place) as queue:

        @given(payload=JSON, result=JSON)
        @settings(deadline=None, max_examples=100)
        def each(payload: object, result: object) -> None:
            check_values_come_back(queue, payload, result)

        each()


def test_a_result_that_is_cut_by_length_is_seen_not_to_come_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B119, control."""
    whole = model.encode_result
    monkeypatch.setattr(model, "encode_result", lambda result: (whole(result) or "")[:20])
    with opened(place) as queue, pytest.raises(sqlite3.IntegrityError, match="json_valid"):
        check_values_come_back(queue, 1, "\U0001f600" * 30)


# B121: large payloads.


def check_a_payload_over_the_limit_is_refused(place: Path) -> None:
    with opened(place) as queue:
        most = "é" * ((PAYLOAD_BYTES_MAX - 2) // 2)  # Two bytes each, and two quotes.
        assert queue.enqueue("kind", most) == 1
        assert claimed(queue).job.payload == most
        with pytest.raises(PayloadTooLarge, match="store it in a file and enqueue its path"):
            queue.enqueue("kind", most + "x")
        with pytest.raises(PayloadInvalid, match="nested"):
            queue.enqueue("kind", deep(100_000))
        assert sum(queue.counts().values()) == 1


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_payload_over_the_limit_is_refused_with_what_to_do_instead(place: Path) -> None:
    """B121: a large payload broke every read of its row."""
    check_a_payload_over_the_limit_is_refused(place)


def test_a_queue_without_the_limit_is_seen_to_take_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B121, control."""
    monkeypatch.setattr(model, "PAYLOAD_BYTES_MAX", 1 << 30)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_a_payload_over_the_limit_is_refused(place)


class KeepsInTheRow(Payloads):
    """Takes any payload into the row, as it would be without files."""

    def enqueue(self, kind: str, payload: object, **options: Any) -> int:
        return self._queue.enqueue(kind, payload, **options)


def check_a_claim_costs_the_same_beside_any_payload(place: Path, made: type[Payloads]) -> None:
    written = []
    for number, size in enumerate((100, 900_000)):
        with Queue(place / f"{number}.db", durability="process") as queue:
            payloads = made(queue, threshold=1_000)
            payload = {"text": "x" * size}
            job = queue.get(payloads.enqueue("kind", payload))
            assert job is not None
            log = Path(f"{queue.path}-wal")
            before = log.stat().st_size
            claimed(queue)
            written.append(log.stat().st_size - before)
            assert payloads.payload(job) == payload
    assert written[1] <= written[0] + 2 * 4_120, f"the claims wrote {written} bytes"


def test_a_claim_writes_the_same_beside_a_large_payload_in_a_file(place: Path) -> None:
    """B121: each claim of a row wrote its payload anew."""
    check_a_claim_costs_the_same_beside_any_payload(place, Payloads)


def test_a_claim_of_a_row_with_a_large_payload_is_seen_to_write_it(place: Path) -> None:
    """B121, control."""
    with pytest.raises(AssertionError, match="the claims wrote"):
        check_a_claim_costs_the_same_beside_any_payload(place, KeepsInTheRow)


# B122: an unbounded queue in memory before the file.


class Buffers(Queue):
    """Answers at once, and writes later."""

    def enqueue(self, kind: str, payload: object, **options: Any) -> int:
        self.later = [*getattr(self, "later", []), (kind, payload)]
        return len(self.later)


def check_an_answer_means_that_the_job_is_in_the_file(place: Path, make: Made) -> None:
    with opened(place, make) as queue, closing(sqlite3.connect(queue.path)) as other:
        for number in range(1, 20):
            queue.enqueue("kind", number)
            (rows,) = other.execute("SELECT count(*) FROM job").fetchone()
            assert rows == number, "it grows in memory"


def test_an_enqueue_that_has_returned_is_in_the_file_and_nowhere_else(place: Path) -> None:
    """B122: memory grew until the producer died; there is no buffer that could."""
    check_an_answer_means_that_the_job_is_in_the_file(place, Queue)


def test_a_buffer_in_memory_is_seen(place: Path) -> None:
    """B122, control."""
    with pytest.raises(AssertionError, match="grows in memory"):
        check_an_answer_means_that_the_job_is_in_the_file(place, Buffers)


# B112, B113: the job and its effect, in one transaction or in two; killed at each step.

#: Runs numbered steps, and dies by SIGKILL before the one given; each step names what it does.
STEPS = """
import os, signal, sqlite3, sys
from killproof import Queue
from killproof.core import sync
queue = Queue(sys.argv[1])
left = int(sys.argv[2])
def step(name):
    global left
    left -= not name.startswith(("claim.", "enqueue.", "promote.", "reap."))
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
sync.hook = step
%s
"""

ENQUEUES = """
with queue.transaction() as tx:
    step("begun")
    tx.execute("INSERT INTO invoice VALUES (1)")
    step("inserted")
    queue.enqueue("kind", 1, tx=tx)
    step("enqueued")
step("committed")
"""
ENQUEUES_WITH_A_CONNECTION_OF_ITS_OWN = """
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
connection.execute("BEGIN IMMEDIATE")
step("begun")
queue.enqueue("kind", 1, tx=connection)
step("enqueued")
connection.execute("INSERT INTO invoice VALUES (1)")
step("inserted")
connection.execute("COMMIT")
step("committed")
"""
ENQUEUES_APART = """
queue.enqueue("kind", 1)
step("enqueued")
with queue.transaction() as tx:
    tx.execute("INSERT INTO invoice VALUES (1)")
step("committed")
"""
COMPLETES = """
lease = queue.claim()
with queue.completing(lease) as tx:
    step("begun")
    tx.execute("INSERT INTO invoice VALUES (1)")
    step("inserted")
step("committed")
"""
COMPLETES_APART = """
lease = queue.claim()
with queue.transaction() as tx:
    tx.execute("INSERT INTO invoice VALUES (1)")
step("inserted")
queue.ack(lease)
"""


def killed_before(queue: Queue, code: str, step: int) -> bool:
    """Run the code and kill it before this step; False when it had fewer steps."""
    argv = [sys.executable, "-c", STEPS % code, queue.path, str(step)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(done.stderr)  # No finding: not for a control.
    return done.returncode != 0


def prepared(place: Path) -> Queue:
    queue = Queue(place / "q.db", durability="process")
    with queue.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS invoice (n)")
    return queue


def invoices(queue: Queue) -> int:
    ((count,),) = queue.database.peek("SELECT count(*) FROM invoice")
    return int(str(count))


def check_both_or_neither(place: Path, code: str) -> None:
    with prepared(place) as queue:
        step = 1
        while killed_before(queue, code, step):
            assert queue.counts()["available"] == invoices(queue), "one without the other"
            step += 1
        assert step > 4, "nothing was killed"
        assert invoices(queue) == 2  # Killed after the commit, and not killed at all.


@pytest.mark.parametrize(
    "code", [ENQUEUES, ENQUEUES_WITH_A_CONNECTION_OF_ITS_OWN], ids=["ours", "the caller's"]
)
def test_a_row_and_its_job_are_both_there_or_neither_wherever_the_program_is_killed(
    place: Path, code: str
) -> None:
    """B112: a job whose row was rolled back, or a row whose job does not exist."""
    check_both_or_neither(place, code)


def test_a_job_that_is_put_in_apart_is_seen_without_its_row(place: Path) -> None:
    """B112, control."""
    with pytest.raises(AssertionError, match="one without the other"):
        check_both_or_neither(place, ENQUEUES_APART)


def check_a_rollback_takes_the_job_along(place: Path, joins: bool) -> None:
    with prepared(place) as queue:
        with closing(sqlite3.connect(queue.path)) as mine:
            if joins:
                mine.execute("INSERT INTO invoice VALUES (1)")
            queue.enqueue("kind", 1, tx=mine if joins else None)
            mine.rollback()
        assert queue.counts()["available"] == 0, "a job whose transaction was rolled back"


def test_a_rollback_of_the_callers_takes_the_job_along(place: Path) -> None:
    """B112: a worker started before the enqueuing transaction committed."""
    check_a_rollback_takes_the_job_along(place, joins=True)
    with pytest.raises(AssertionError, match="rolled back"):  # The control.
        check_a_rollback_takes_the_job_along(place, joins=False)


def check_the_effect_is_there_once(place: Path, code: str) -> None:
    step, killed = 0, True
    while killed:
        step += 1
        (place / str(step)).mkdir()
        with prepared(place / str(step)) as queue:
            queue.enqueue("kind", 1)
            killed = killed_before(queue, code, step)
            queue.reap()
            if (lease := queue.claim()) is not None:
                with queue.completing(lease) as tx:
                    tx.execute("INSERT INTO invoice VALUES (1)")
            assert queue.counts()["succeeded"] == 1
            assert invoices(queue) == 1, "the effect is there twice"
    assert step > 5, "nothing was killed"


def test_an_effect_in_the_jobs_own_transaction_is_there_once_wherever_its_worker_is_killed(
    place: Path,
) -> None:
    """B113: completing a job in the same transaction as its effects."""
    check_the_effect_is_there_once(place, COMPLETES)


def test_an_effect_before_the_ack_is_seen_to_happen_twice(place: Path) -> None:
    """B113, control."""
    with pytest.raises(AssertionError, match="twice"):
        check_the_effect_is_there_once(place, COMPLETES_APART)


# B37, B29, B35: workers that wait for what is not there, or for somebody to recover it.

WORKER = """
import os, signal, sys
from killproof import Queue
from killproof.worker import Handlers, Worker
handlers = Handlers()
@handlers("kind")
def handle(context):
    if context.job.payload == "kill":
        with open(sys.argv[1] + ".killed", "a") as file:
            file.write("x")
        if os.path.getsize(sys.argv[1] + ".killed") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
exec(sys.argv[2])
with Queue(sys.argv[1], durability="process") as queue:
    print("works", flush=True)
    Worker(queue, handlers, poll=0.02).run()
"""
#: The control: whoever does not find the file gives up.
NEEDS_THE_FILE = "assert os.path.exists(sys.argv[1]), 'no queue'"
#: The control: recovery is left to the user.
NEVER_SWEEPS = "Queue._sweep = lambda *_: 0"


def check_jobs_run_without_any_care(
    place: Path, guard: str, payload: str, *, worker_first: bool, seconds: float = SECONDS_MAX
) -> None:
    path = str(place / "q.db")
    argv = [sys.executable, "-c", WORKER, path, guard]
    pipe = subprocess.PIPE
    workers = []
    try:
        if worker_first:
            workers.append(subprocess.Popen(argv, stdout=pipe, stderr=pipe))
            assert workers[0].stdout is not None
            assert workers[0].stdout.readline() == b"works\n", "it gave up"
        with Queue(path, durability="process") as queue:
            job_id = queue.enqueue("kind", payload)
            if not worker_first:
                workers += [subprocess.Popen(argv, stdout=pipe, stderr=pipe) for _ in range(2)]
            clock = queue.host.clock
            end_ns = clock.monotonic_ns() + round(seconds * 1e9)
            job = queue.get(job_id)
            while job is not None and job.state != "succeeded" and clock.monotonic_ns() < end_ns:
                clock.sleep(0.01)
                job = queue.get(job_id)
            assert job is not None
            assert job.state == "succeeded", "it waits for a person"
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_a_worker_that_was_started_before_its_queue_was_made_runs_its_jobs(place: Path) -> None:
    """B37: a missing table was taken for permanent."""
    check_jobs_run_without_any_care(place, "", "plain", worker_first=True)


def test_a_worker_that_needs_the_file_first_is_seen_to_give_up(place: Path) -> None:
    """B37, control."""
    with pytest.raises(AssertionError, match="gave up"):
        check_jobs_run_without_any_care(place, NEEDS_THE_FILE, "plain", worker_first=True)


def test_with_the_defaults_a_killed_workers_job_is_finished_by_another(place: Path) -> None:
    """B29, B35: stalled jobs were found, and retried only by a task of the user's own."""
    check_jobs_run_without_any_care(place, "", "kill", worker_first=False)
    assert os.path.getsize(place / "q.db.killed") == 2


def test_without_a_sweep_a_killed_workers_job_is_seen_to_wait(place: Path) -> None:
    """B29, control."""
    with pytest.raises(AssertionError, match="waits for a person"):
        check_jobs_run_without_any_care(
            place, NEVER_SWEEPS, "kill", worker_first=False, seconds=1.0
        )
