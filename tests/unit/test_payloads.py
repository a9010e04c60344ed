"""Large payloads in files: never a dangling reference, never a wrong payload, nothing left over."""

import errno
import fcntl
import json
import os
import resource
import signal
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from killproof import (
    FileRefused,
    Job,
    JobNotFound,
    Lease,
    LeaseLost,
    ManualClock,
    PayloadInvalid,
    PayloadTooLarge,
    Queue,
    StorageFull,
    Transaction,
    cli_work,
    payload_files,
    payloads,
    spilling,
    transfer,
)
from killproof.backup import backup, restore
from killproof.core import model, sync
from killproof.payload_files import Folder, PayloadLost
from killproof.payloads import Payloads, Reference
from killproof.retention import prune

Run = Callable[..., tuple[int, str, str]]
Sql = Callable[..., list[tuple[Any, ...]]]

LARGE = {"text": "é" * 50_000}
#: Too large for a row.
HUGE = ["r" * (model.RESULT_BYTES_MAX + 1)]


@pytest.fixture
def large(queue: Queue) -> Payloads:
    return Payloads(queue)


def job_of(queue: Queue, job_id: int) -> Job:
    job = queue.get(job_id)
    assert job is not None
    return job


def claimed(queue: Queue) -> Lease:
    lease = queue.claim()
    assert lease is not None
    return lease


def contents(large: Payloads) -> list[str]:
    return [name for name in large.folder.names() if name != ".lock"]


def finish_and_prune(queue: Queue, clock: ManualClock) -> None:
    while (lease := queue.claim()) is not None:
        queue.ack(lease)
    clock.advance(1)
    prune(queue, {"succeeded": 0.5})


# There and back.


def test_a_large_payload_is_in_a_file_and_a_small_one_in_its_row(
    queue: Queue, large: Payloads
) -> None:
    """Covers S0.80."""
    number = large.enqueue("k", LARGE, priority=2, key="once")
    job = job_of(queue, number)
    reference = Reference.of(job.payload)

    assert reference is not None
    assert (job.priority, job.key) == (2, "once")
    assert contents(large) == [reference.sha256]
    assert large.payload(job) == LARGE
    small = job_of(queue, large.enqueue("k", {"a": 1}))
    assert small.payload == large.payload(small) == {"a": 1}
    assert len(contents(large)) == 1


def test_a_database_may_have_any_name(place: Path) -> None:
    (place / "a folder ü").mkdir()
    with Queue(place / "a folder ü" / "queue 'é' %20.db", durability="process") as queue:
        large = Payloads(queue)
        number = large.enqueue("k", LARGE)
        done = backup(queue, place / "a folder ü")
        restore(done.path, place / "back ü.db")

        assert large.payload(job_of(queue, number)) == LARGE
        assert large.collect().files == 0
    with Queue(place / "back ü.db") as other:
        assert Payloads(other).check(whole=True).files == 1


@pytest.mark.parametrize("size", [0, 3, 3 * payload_files.CHUNK_BYTES + 1])
def test_bytes_and_the_content_of_a_file_come_back_as_bytes(
    queue: Queue, large: Payloads, place: Path, size: int
) -> None:
    content = os.urandom(size)
    (place / "a file é").write_bytes(content)
    first = large.enqueue("k", content)
    second = large.enqueue("k", place / "a file é")

    assert large.payload(job_of(queue, first)) == content
    assert large.payload(job_of(queue, second)) == content
    assert len(contents(large)) == 1  # One content, one file.


def test_a_result_too_large_for_its_row_goes_the_same_way(
    queue: Queue, large: Payloads, clock: ManualClock
) -> None:
    """Covers S0.80."""
    number = queue.enqueue("k", None)
    lease = claimed(queue)
    queue.ack(lease, large.spill(lease, HUGE))

    assert Reference.of(job_of(queue, number).result) is not None
    assert large.result(job_of(queue, number)) == HUGE
    assert large.collect().files == 0
    finish_and_prune(queue, clock)
    assert large.collect().files == 1
    assert contents(large) == []


@pytest.mark.parametrize("result", [None, {"a": 1}, ["x" * 2_000] * 90, {1, 2}])
def test_a_result_that_fits_or_is_no_json_is_left_as_it_is(
    queue: Queue, large: Payloads, result: object
) -> None:
    queue.enqueue("k", None)

    assert large.spill(claimed(queue), result) == result


def test_a_small_result_is_known_for_small_without_being_encoded() -> None:
    assert spilling.is_small({"rows": 3, "path": "/tmp/x", "ok": True, "mean": 0.5})
    assert spilling.is_small([1, None, "x"])
    assert not spilling.is_small({"nested": [1]})
    assert not spilling.is_small("x" * 2_000_000)
    assert not spilling.is_small([1 << 10_000_000])


class Shut(list[int]):
    """A collection that is read when somebody looks, as of a database whose session is over."""

    def __iter__(self) -> Iterator[int]:
        raise LookupError("the session is over")


class ShutDict(dict[str, int]):
    """Likewise."""

    def __iter__(self) -> Iterator[str]:
        raise LookupError("the session is over")


class ShutText(str):
    """Likewise."""

    __slots__ = ()

    def __len__(self) -> int:
        raise LookupError("the session is over")


@pytest.mark.parametrize("sort", [Shut, ShutDict, ShutText])
def test_a_result_that_raises_when_it_is_read_is_a_success_all_the_same(
    queue: Queue, sort: type
) -> None:
    """It would end the worker, or the dispatcher with all its jobs, and be tried again."""
    queue.enqueue_many([("k", None)] * 2)
    for result in (sort(), [sort()]):
        lease = claimed(queue)
        queue.ack(lease, spilling.spilled(queue, lease, result))
    assert queue.counts()["succeeded"] == 2


def test_the_result_of_a_lease_that_is_over_is_collected(
    queue: Queue, large: Payloads, clock: ManualClock
) -> None:
    queue.enqueue("k", None)
    lease = claimed(queue)
    clock.advance(61)
    queue.reap()
    again = claimed(queue)
    stale = large.spill(lease, HUGE)
    with pytest.raises(LeaseLost):
        queue.ack(lease, stale)

    assert large.collect().files == 1
    queue.ack(again)


def test_the_result_of_an_attempt_that_failed_after_all_is_collected(
    queue: Queue, large: Payloads, clock: ManualClock
) -> None:
    queue.enqueue("k", None)
    lease = claimed(queue)
    large.spill(lease, HUGE)
    assert large.collect().files == 0  # The ack may be on its way.
    queue.nack(lease, "no")

    assert large.collect().files == 1


@pytest.mark.parametrize("durable", [True, False])
def test_a_content_is_on_the_disk_before_its_name_and_the_name_before_it_is_told(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """A power cut may leave the name without the content where the order is another."""
    steps: list[tuple[str, str]] = []
    sync_file, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        steps.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().suffix))
        sync_file(descriptor)

    def renamed(old: Path, new: Path) -> None:
        steps.append(("rename", ""))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    Folder(queue.path, durable=durable).store(lambda: [b"content"])

    written = [("sync", ".partial"), ("rename", ""), ("sync", ".payloads"), ("sync", "")]
    assert steps == (written if durable else [("rename", "")])


# Never a dangling reference.


@contextmanager
def at_point(
    monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]
) -> Iterator[None]:
    """Do something when a call first reaches a named point."""
    waiting = [act]

    def hook(point: str) -> None:
        if point == name and waiting:
            waiting.pop()()

    monkeypatch.setattr(sync, "hook", hook)
    yield
    monkeypatch.setattr(sync, "hook", None)
    assert not waiting


def test_a_collection_between_the_file_and_the_commit_takes_nothing_from_the_job(
    queue: Queue, large: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The enqueue finds its file gone, under the write lock, and writes it again."""
    large.enqueue("k", b"another, so that there is something to collect in")

    def collect() -> None:
        with Queue(queue.path) as other:
            assert Payloads(other).collect().files == 1

    with at_point(monkeypatch, "enqueue.begin", collect):
        number = large.enqueue("k", LARGE)

    assert large.payload(job_of(queue, number)) == LARGE
    assert large.collect().files == 0


def test_an_enqueue_in_the_middle_of_a_collection_keeps_its_file(
    queue: Queue, large: Payloads, clock: ManualClock
) -> None:
    """The collection finds a row again, under the write lock, and lets the file be."""
    large.enqueue("k", LARGE)
    finish_and_prune(queue, clock)
    large._forget()
    number = large.enqueue("k", LARGE)

    assert list(large._swept(large.folder.names())) == []
    assert large.payload(job_of(queue, number)) == LARGE


class Interrupted(Queue):
    """A queue with a window before its next transaction, in which others may act."""

    act: Callable[[], object] | None = None

    def transaction(self) -> AbstractContextManager[Transaction]:
        act, self.act = self.act, None
        if act is not None:
            act()
        return super().transaction()


def test_a_collection_looks_again_under_the_lock_before_it_takes_a_name_away(
    queue: Queue, large: Payloads, clock: ManualClock
) -> None:
    large.enqueue("k", LARGE)
    finish_and_prune(queue, clock)
    large._forget()
    put_in: list[int] = []
    with Interrupted(queue.path) as interrupted:
        interrupted.act = lambda: put_in.append(large.enqueue("k", LARGE))
        assert list(Payloads(interrupted)._swept(large.folder.names())) == []

    assert large.payload(job_of(queue, put_in[0])) == LARGE


def test_a_file_goes_with_the_last_job_that_has_it(
    queue: Queue, large: Payloads, clock: ManualClock
) -> None:
    first, second = large.enqueue("k", LARGE), large.enqueue("k", LARGE)
    queue.cancel(first)
    clock.advance(1)
    prune(queue, {"cancelled": 0.5})
    assert large.collect().files == 0
    assert large.payload(job_of(queue, second)) == LARGE
    queue.cancel(second)
    assert large.collect().files == 0  # Ended, and kept: it may be replayed.
    clock.advance(1)
    prune(queue, {"cancelled": 0.5})
    assert large.collect() == payloads.Collected(files=1, bytes=100_011)


@pytest.mark.parametrize("writer", [None, {}, {"indent": 4}])
def test_a_reference_that_is_put_in_again_counts_as_a_use(
    queue: Queue, large: Payloads, clock: ManualClock, writer: dict[str, Any] | None
) -> None:
    """A step that hands its payload on, an INSERT of another program: by whatever way."""
    first = large.enqueue("k", LARGE)
    reference = job_of(queue, first).payload
    if writer is None:
        second = queue.enqueue("next", reference)
    else:
        with closing(sqlite3.connect(queue.path)) as other, other:
            (second,) = other.execute(
                "INSERT INTO job (kind, state, due_ms, created_ms, updated_ms, payload) "
                "VALUES ('next', 'available', 0, 0, 0, ?) RETURNING id",
                (json.dumps(reference, **writer),),
            ).fetchone()
    queue.cancel(first)
    clock.advance(1)
    prune(queue, {"cancelled": 0.5})

    assert large.collect().files == 0
    assert large.payload(job_of(queue, second)) == LARGE


def test_a_reference_to_a_file_that_is_not_there_is_refused(queue: Queue, large: Payloads) -> None:
    large.enqueue("k", LARGE)
    forged = Reference(sha256="0" * 64, bytes=1, type="json").value()

    with pytest.raises(PayloadInvalid, match="is a reference to a file that is not there"):
        queue.enqueue("k", forged)
    queue.enqueue("k", {"killproof_payload": "only looks like one"})


def test_a_job_that_its_key_has_already_leaves_no_file_for_long(
    queue: Queue, large: Payloads
) -> None:
    first = large.enqueue("k", LARGE, key="once")
    assert large.enqueue("k", b"another", key="once") == first

    assert large.collect().files == 1
    assert large.payload(job_of(queue, first)) == LARGE


def test_a_transaction_that_is_rolled_back_leaves_only_what_is_collected(
    queue: Queue, large: Payloads
) -> None:
    def fail() -> None:
        with queue.transaction() as tx:
            large.enqueue("k", LARGE, tx=tx)
            raise KeyError

    large.enqueue("k", b"first")
    with pytest.raises(KeyError):
        fail()
    with queue.transaction() as tx:
        number = large.enqueue("k", b"kept", tx=tx)

    assert large.collect().files == 1
    assert large.payload(job_of(queue, number)) == b"kept"


def test_a_collection_removes_what_the_dead_have_left_and_not_what_the_living_write(
    queue: Queue, large: Payloads
) -> None:
    number = large.enqueue("k", LARGE)
    for name in (".dead.partial", ".living.partial", f".{'0' * 64}.dropped", "1" * 64, "a note"):
        (large.folder.path / name).write_bytes(b"12345")
    with (large.folder.path / ".living.partial").open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        collected = large.collect()

    assert (collected.files, collected.bytes) == (3, 15)
    assert set(contents(large)) - {".living.partial", "a note"} == {
        os.path.basename(large.folder.path / name) for name in contents(large) if len(name) == 64
    }
    assert large.payload(job_of(queue, number)) == LARGE


def test_a_collection_leaves_a_folder_alone_that_is_being_copied(
    queue: Queue, large: Payloads
) -> None:
    assert large.collect() == payloads.Collected(files=0, bytes=0)
    large.enqueue("k", LARGE)
    with large.folder.kept():
        assert large.collect().busy
    assert not large.collect().busy


# Never a wrong payload.


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (Path.unlink, "is missing: restore it from a backup, then killproof replay 1"),
        (damage, "is damaged: its content is not what its name says"),
        (lambda path: os.truncate(path, 10), "is damaged"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_told_in_one_line(
    queue: Queue, large: Payloads, spoil: Callable[[Path], object], words: str
) -> None:
    number = large.enqueue("k", LARGE)
    spoil(large.folder.path / contents(large)[0])

    with pytest.raises(PayloadLost) as lost:
        large.payload(job_of(queue, number))
    assert str(lost.value).startswith(f"payload of job {number}: ")
    assert words in str(lost.value)
    assert "\n" not in str(lost.value)
    assert [job_id for job_id, _ in large.check(whole=True).lost] == [number]
    # What is put in again heals it.
    large.enqueue("k", LARGE)
    assert large.check(whole=True).lost == ()
    assert large.payload(job_of(queue, number)) == LARGE


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"killproof_payload": 1},
        {"killproof_payload": {"sha256": "../../etc/passwd", "bytes": 1}},
        {"killproof_payload": {"sha256": "0" * 64, "bytes": "1"}},
        {"killproof_payload": {"sha256": "0" * 64, "bytes": 1, "type": "pickle"}},
        {"killproof_payload": {"sha256": "0" * 64, "bytes": 1}, "more": 1},
    ],
)
def test_what_only_looks_like_a_reference_opens_no_file(value: object) -> None:
    assert Reference.of(value) is None


# The disk, the rights, the limits.


def test_a_disk_that_is_full_leaves_nothing_behind(queue: Queue, large: Payloads) -> None:
    """Method: the kernel refuses to let a file grow; for this process only."""
    large.enqueue("k", b"makes the folder")
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, former[1]))
        with pytest.raises(StorageFull, match="nothing was changed"):
            large.enqueue("k", LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        signal.signal(signal.SIGXFSZ, ignored)

    assert len(contents(large)) == 1
    assert queue.counts()["available"] == 1


def test_files_are_as_private_as_the_database_whatever_the_umask(
    queue: Queue, large: Payloads
) -> None:
    os.chmod(queue.path, 0o640)
    former = os.umask(0o077)
    try:
        large.enqueue("k", LARGE)
        large.collect()
    finally:
        os.umask(former)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in large.folder.path.iterdir()}

    assert modes == {0o640}
    assert stat.S_IMODE(large.folder.path.stat().st_mode) == 0o750


def test_what_is_too_large_or_wrong_leaves_no_file(
    queue: Queue, large: Payloads, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="priority"):
        large.enqueue("k", LARGE, priority=10)
    with pytest.raises(PayloadInvalid, match="is not JSON"):
        large.enqueue("k", {1, 2})
    deep: object = "x" * 70_000
    for _ in range(300):
        deep = [deep]
    with pytest.raises(PayloadInvalid, match="nested 300 levels deep"):
        large.enqueue("k", deep)
    with pytest.raises(FileRefused, match="No such file"):
        large.enqueue("k", place / "nowhere")
    monkeypatch.setattr(payload_files, "FILE_BYTES_MAX", 1_000)
    with pytest.raises(PayloadTooLarge, match="over the limit of 1000 bytes"):
        large.enqueue("k", LARGE)

    assert contents(large) == []
    assert not queue.database.peek(payloads.VERSION)


def test_a_folder_that_can_not_be_made_is_told(queue: Queue, large: Payloads) -> None:
    large.folder.path.write_bytes(b"a file in its place")

    with pytest.raises(FileRefused, match="check the folder and its rights"):
        large.enqueue("k", LARGE)


def test_a_table_of_the_applications_own_is_refused(
    queue: Queue, large: Payloads, sql: Sql
) -> None:
    sql("CREATE TABLE payload_use (id INTEGER)")

    with pytest.raises(FileRefused, match="has a table 'payload_use'"):
        large.enqueue("k", LARGE)


def test_a_job_without_a_reference_pays_next_to_nothing(queue: Queue, large: Payloads) -> None:
    """Method: SQLite's own steps of an enqueue, with the trigger and without."""
    steps = []
    for _ in range(2):
        connection = queue.database._handle().connection
        count = [0]

        def tick(count: list[int] = count) -> None:
            count[0] += 1

        connection.set_progress_handler(tick, 1)
        queue.enqueue("k", {"a": 1})
        connection.set_progress_handler(None, 1)
        steps.append(count[0])
        large.enqueue("k", LARGE)

    assert steps[1] - steps[0] <= 16, steps


def test_no_step_of_a_collection_scans(queue: Queue, large: Payloads) -> None:
    large.enqueue("k", LARGE)
    for statement in (large.END_USES, large.FORGET, large.IS_KNOWN):
        named = (
            *("job_id", "fence", "last_id", "last_fence", "after", "last"),
            *("sha256", "limit", "id"),
        )
        with closing(sqlite3.connect(queue.path)) as connection:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", dict.fromkeys(named))
            plan = [row[3] for row in rows]
        assert not [step for step in plan if step.startswith("SCAN")]


# Copies.


def test_a_backup_and_its_restore_hold_every_large_payload(
    queue: Queue, large: Payloads, place: Path
) -> None:
    """Covers S0.75, S0.80."""
    number = large.enqueue("k", LARGE)
    large.enqueue("k", HUGE)
    done = backup(queue, place)
    large.folder.path.joinpath(contents(large)[0]).unlink()
    back = restore(done.path, place / "back.db")

    assert (done.payloads, done.lost, back.payloads, back.lost) == (2, (), 2, ())
    with Queue(place / "back.db") as other:
        assert Payloads(other).payload(job_of(other, number)) == LARGE
        assert Payloads(other).check(whole=True).lost == ()
    assert not [name for name in os.listdir(place) if "partial" in name]


def test_a_backup_of_what_is_damaged_is_made_and_tells_what_is_not_in_it(
    queue: Queue, large: Payloads, place: Path
) -> None:
    number = large.enqueue("k", LARGE)
    damage(large.folder.path / contents(large)[0])
    done = backup(queue, place)

    assert done.payloads == 0
    assert len(done.lost) == 1
    assert done.lost[0].startswith(f"job {number}: ")
    with closing(sqlite3.connect(done.path)) as copy:
        assert copy.execute("SELECT count(*) FROM job").fetchone() == (1,)


def test_a_backup_without_large_payloads_leaves_alone_those_of_the_file_that_has_its_name(
    queue: Queue, large: Payloads, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two backups of one moment; and where the file system has no links."""
    monkeypatch.setattr(queue.host.clock, "now_ms", lambda: 1_700_000_000_000)
    number = large.enqueue("k", LARGE)
    first = backup(queue, place)
    with queue.transaction() as tx:
        tx.change("DELETE FROM job")
    assert large.collect().files == 1
    second = backup(queue, place)

    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    third = backup(queue, place)
    assert len({first.path, second.path, third.path}) == 3
    with Queue(first.path) as other:
        assert Payloads(other).payload(job_of(other, number)) == LARGE


def test_a_file_that_a_restore_replaces_keeps_its_large_payloads(
    queue: Queue, large: Payloads, place: Path
) -> None:
    backup_of_nothing = backup(queue, place)
    number = large.enqueue("k", LARGE)
    queue.close()
    back = restore(backup_of_nothing.path, queue.path, force=True)

    assert back.replaced is not None
    with Queue(back.replaced) as other:
        assert Payloads(other).payload(job_of(other, number)) == LARGE


def test_an_export_takes_large_payloads_along_and_an_import_takes_them_in(
    queue: Queue, large: Payloads, place: Path
) -> None:
    """Covers S0.82, S0.80."""
    large.enqueue("k", LARGE)
    lease = claimed(queue)
    queue.ack(lease, large.spill(lease, HUGE))
    large.enqueue("k", b"waits")
    lost = large.enqueue("k", b"lost")
    reference = Reference.of(job_of(queue, lost).payload)
    assert reference is not None
    (large.folder.path / reference.sha256).unlink()
    lines = place / "lines"
    files = Folder(str(lines), like=queue.path)
    with pytest.raises(FileRefused, match="export to a FILE"), lines.open("w") as out:
        transfer.export_jobs(queue, out)
    with lines.open("w") as out:
        assert transfer.export_jobs(queue, out, files=files) == 3
    with Queue(place / "other.db", durability="process") as other:
        for added, known in ((2, 0), (0, 2)):
            with lines.open() as source:
                done = transfer.import_jobs(other, source, files=files)
            assert (done.added, done.known) == (added, known)
            assert [why for _, why in done.refused] == [
                f"its large payload can not be taken over: "
                f"{other.path}.payloads/{reference.sha256} is missing"
            ]
        there = Payloads(other)
        assert there.collect().files == 0
        assert there.check(whole=True).lost == ()
        first, second = (job_of(other, number) for number in (1, 2))
        assert (there.payload(first), there.result(first)) == (LARGE, HUGE)
        assert there.payload(second) == b"waits"


# The commands.


def test_the_commands_put_in_check_show_and_collect(run: Run, place: Path) -> None:
    """Covers S0.80."""
    text = json.dumps({"text": "x" * 2_000_000}).encode()
    assert run("enqueue", "k", "-", "--durability", "process", stdin=text)[0] == 64
    assert run("enqueue", "k", "-", "--large", stdin=text)[1] == "1\n"
    assert run("enqueue", "k", "1", "--large")[1] == "2\n"
    assert run("payloads", "check")[1] == "1 large payload there, 1.9 MiB in all\n"
    assert json.loads(run("payloads", "show", "1")[1]) == json.loads(text)
    assert json.loads(run("payloads", "collect", "--json")[1])["files"] == 0
    (place / "queue.db.payloads" / ("0" * 64)).write_text("of nobody")
    assert "1 file without a job: killproof payloads collect" in " ".join(run("doctor")[1].split())
    assert run("payloads", "collect")[1] == "removed 1 file, 9 B\n"
    run("cancel", "1")
    assert "removed 1 large payload, 1.9 MiB" in run("prune", "--cancelled", "0s")[1]
    run("enqueue", "k", "-", "--large", stdin=text)
    (path,) = (path for path in (place / "queue.db.payloads").iterdir() if path.name != ".lock")
    path.unlink()
    code, out, _ = run("payloads", "check")
    assert (code, "job 3: " in out, "is missing" in out) == (1, True, True)
    assert run("doctor")[0] == 1
    os.mkdir(place / "copies")
    code, _, err = run("backup", "copies")
    assert (code, "not in the copy: large payload of job 3" in err) == (1, True)
    assert run("payloads", "show", "9")[0] == 64


def test_the_command_line_reads_as_much_as_a_file_may_hold() -> None:
    assert cli_work.LARGE_BYTES_MAX == payload_files.FILE_BYTES_MAX


def test_a_job_that_is_not_there_is_named(queue: Queue) -> None:
    with pytest.raises(JobNotFound, match="there is no job 7"):
        payloads.job_of(queue, 7)
