"""What the log says happened is what happened, in that order, for all processes together.

Goal: an image rebuilt from the log is the disk. Method: real queues of several processes are
recorded; the log is replayed and compared with the files; the order is checked against SQLite's
own locks, which the log also holds; and each check is shown to fail on a log that is wrong.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.shim.calls import ALL_KINDS, SYNCS, Action, File, Kind
from killproof_chaos.shim.control import FOREVER, Control, Rule, kill
from killproof_chaos.shim.environment import preload_environment
from killproof_chaos.shim.log import (
    NO_KEY,
    Begin,
    Blind,
    End,
    FileKey,
    Note,
    Record,
    Seen,
    Start,
    Torn,
    file_key,
    pair,
    read_log,
)

try:
    build()
except ShimUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)

DEADLINE_SECONDS = 120.0
PROCESSES = 4

#: Enqueues, and notes each acknowledgement; every third job is claimed and acknowledged too.
PRODUCER = """
import os, sys
from killproof import Queue
from killproof_chaos.shim.notes import Shim
shim, queue = Shim(), Queue(sys.argv[1] + "/queue.db")
queue.database.checkpoint_commits = 20
for number in range(int(sys.argv[2])):
    shim.note(b"ack %d" % queue.enqueue("a", {"text": "x" * 3000}))
    if number % 3 == 0 and (lease := queue.claim()):
        queue.ack(lease)
        shim.note(b"done %d" % lease.job.id)
os._exit(0)
"""


@pytest.fixture
def watched(place: Path) -> Iterator[Control]:
    """A control over `place/db`, where every kind of call goes into the log."""
    (place / "db").mkdir()
    with Control.create(
        place / "control", watch=place / "db", log=place / "log", notes=place / "notes",
        record=ALL_KINDS,
    ) as control:  # fmt: skip
        yield control


def start(control: Control, code: str, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", code, str(control.path.parent / "db"), *arguments],
        env=os.environ | preload_environment(control),
    )


def log_of(control: Control) -> list[Record]:
    return list(read_log(control.path.parent / "log"))


def recorded(control: Control, jobs: int) -> list[Record]:
    """Run the producers side by side to their end; return the log."""
    start(control, PRODUCER, "1").wait(DEADLINE_SECONDS)  # One makes the file.
    running = [start(control, PRODUCER, str(jobs)) for _ in range(PROCESSES)]
    assert [process.wait(DEADLINE_SECONDS) for process in running] == [0] * PROCESSES
    assert control.problems() == []
    return log_of(control)


def replayed(records: Iterable[Record]) -> dict[str, bytes]:
    """Apply every write, truncate, rename and unlink in order; return the files by name."""
    begins: dict[tuple[int, int], Begin] = {}
    names: dict[str, FileKey] = {}
    content: dict[FileKey, bytearray] = {}
    for record in records:
        if isinstance(record, Begin):
            begins[record.slot, record.call] = record
        if not isinstance(record, End) or not record.is_done:
            continue
        begin = begins[record.slot, record.call]
        file = content.setdefault(record.key, bytearray())
        if record.kind == Kind.OPEN:
            names[begin.path] = record.key
        elif record.kind == Kind.WRITE:
            file.extend(bytes(max(0, record.at - len(file))))
            file[record.at : record.at + record.result] = begin.data[: record.result]
        elif record.kind == Kind.TRUNCATE:
            del file[begin.length :]
            file.extend(bytes(begin.length - len(file)))
        elif record.kind == Kind.RENAME:
            names[begin.target] = names.pop(begin.path)
        elif record.kind == Kind.UNLINK:
            del names[begin.path]
    return {name: bytes(content[key]) for name, key in names.items()}


def unsupported_notes(records: Sequence[Record]) -> list[Note]:
    """Return the notes whose thread wrote to a -wal and did not sync it before the note."""
    unsynced: dict[tuple[int, int], set[FileKey]] = {}
    syncing: dict[tuple[int, int], set[FileKey]] = {}
    found = []
    for record in records:
        if isinstance(record, Note):
            if unsynced.get((record.slot, record.thread)):
                found.append(record)
        elif isinstance(record, Begin | End) and record.file == File.WAL:
            thread = (record.slot, record.thread)
            pending = unsynced.setdefault(thread, set())
            if record.kind == Kind.WRITE and isinstance(record, End):
                pending.add(record.key)
            elif record.kind in SYNCS and isinstance(record, Begin):
                syncing[thread] = pending & {record.key}
            elif record.kind in SYNCS and isinstance(record, End) and record.is_done:
                pending -= syncing.pop(thread)
    return found


#: The byte of the -shm that SQLite locks to write to the log.
WRITE_LOCK_BYTE = 120
F_WRLCK = 1


def is_taking(record: End) -> bool:
    """Say whether a process got a lock on the write lock's byte."""
    return record.kind == Kind.LOCK and record.at == WRITE_LOCK_BYTE and record.is_done


def overlapping_holds(records: Sequence[Record]) -> list[Record]:
    """Return the records by which two processes would have held SQLite's write lock at once.

    A killed holder says nothing of it; the kernel frees its locks after its last record.
    """
    last = {record.slot: record.seq for record in records if isinstance(record, Begin | End)}
    begins: dict[tuple[int, int], Begin] = {}
    holder: int | None = None
    found: list[Record] = []
    for record in records:
        if isinstance(record, Begin) and record.file == File.SHM and record.at == WRITE_LOCK_BYTE:
            begins[record.slot, record.call] = record
            if record.kind == Kind.UNLOCK and holder == record.slot:
                holder = None
        elif isinstance(record, End) and (record.slot, record.call) in begins:
            begin = begins[record.slot, record.call]
            if is_taking(record) and begin.flags >> 16 == F_WRLCK:
                if holder is not None and holder != record.slot and last[holder] > record.seq:
                    found.append(record)
                holder = record.slot
    return found


def test_the_log_replays_to_the_very_files(watched: Control) -> None:
    records = recorded(watched, jobs=40)

    rebuilt = replayed(records)
    folder = (watched.path.parent / "db").resolve()
    for name in ("queue.db", "queue.db-wal"):
        assert rebuilt[str(folder / name)] == (folder / name).read_bytes()

    damaged = [
        replace(record, data=bytes(len(record.data)))
        if isinstance(record, Begin) and record.file == File.WAL
        else record
        for record in records
    ]
    assert replayed(damaged) != rebuilt


def test_every_call_of_processes_that_ended_in_order_has_begun_and_ended(watched: Control) -> None:
    records = recorded(watched, jobs=20)

    calls = pair(records)
    assert all(call.end is not None for call in calls)
    assert all(call.end.seq > call.begin.seq for call in calls if call.end is not None)
    starts = [record for record in records if isinstance(record, Start)]
    assert len({record.slot for record in starts}) == len(starts) == PROCESSES + 1
    assert {call.begin.slot for call in calls} == {record.slot for record in starts}
    assert not any(isinstance(record, Torn | Blind) for record in records)


def test_no_acknowledgement_stands_before_the_end_of_the_sync_it_rests_on(
    watched: Control,
) -> None:
    records = recorded(watched, jobs=20)

    notes = [record for record in records if isinstance(record, Note)]
    acknowledged = {note.text for note in notes if note.text.startswith(b"ack")}
    assert len(acknowledged) == 20 * PROCESSES + 1
    assert unsupported_notes(records) == []
    # Without the ends of the syncs nothing supports a note; so the check can fail.
    lying = [r for r in records if not (isinstance(r, End) and r.kind in SYNCS)]
    assert unsupported_notes(lying)


def test_the_order_of_the_log_is_that_of_sqlite_s_write_lock(watched: Control) -> None:
    records = recorded(watched, jobs=30)

    assert overlapping_holds(records) == []
    holders = [r.slot for r in records if isinstance(r, Begin) and r.at == WRITE_LOCK_BYTE]
    assert len(set(holders)) > PROCESSES  # And they took turns, so there was an order to get wrong.
    # A log in which one hands the lock on a moment too late; so the check can fail.
    taken = next(r for r in records if isinstance(r, End) and is_taking(r) and r.slot != 0)
    release = next(
        r for r in reversed(records[: taken.seq])
        if isinstance(r, Begin) and r.kind == Kind.UNLOCK and r.at == WRITE_LOCK_BYTE
    )  # fmt: skip
    late = [record for record in records if record is not release]
    late.insert(late.index(taken) + 1, replace(release, seq=taken.seq + 1))
    assert overlapping_holds(late)


def test_a_killed_process_leaves_at_most_one_unended_call_for_each_thread(
    watched: Control,
) -> None:
    start(watched, PRODUCER, "1").wait(DEADLINE_SECONDS)
    before = len(watched.processes())
    for round_ in range(8):
        running = [start(watched, PRODUCER, "100000") for _ in range(2)]
        deadline = time.monotonic() + DEADLINE_SECONDS
        while sum(p.total for p in watched.processes()[before + 2 * round_ :]) < 400 + 97 * round_:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        for process in running:
            process.kill()
            assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL

    records = log_of(watched)
    unended = [call.begin for call in pair(records) if call.end is None]
    assert len({(begin.slot, begin.thread) for begin in unended}) == len(unended) <= 16
    assert overlapping_holds(records) == []
    assert unsupported_notes(records) == []


def test_a_kill_before_a_call_leaves_no_begin_and_one_after_it_both_records(
    watched: Control,
) -> None:
    rule = kill(60)
    watched.set_rule(replace(rule, times=FOREVER))
    assert start(watched, PRODUCER, "1").wait(DEADLINE_SECONDS) == -signal.SIGKILL
    assert [call.end is not None for call in pair(log_of(watched))] == [True] * 59

    watched.set_rule(replace(rule, action=Action.SIGNAL_AFTER))
    assert start(watched, PRODUCER, "1").wait(DEADLINE_SECONDS) == -signal.SIGKILL
    assert [call.end is not None for call in pair(log_of(watched))] == [True] * (59 + 60)


RECREATES = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(50):
    file = os.open("queue.db-wal", os.O_RDWR | os.O_CREAT)
    os.close(file)
    os.unlink("queue.db-wal")
os.close(os.open("queue.db-wal", os.O_RDWR | os.O_CREAT))
"""


def test_a_file_that_was_made_again_is_another_file(watched: Control) -> None:
    assert start(watched, RECREATES).wait(DEADLINE_SECONDS) == 0

    opens = [call for call in pair(log_of(watched)) if call.begin.kind == Kind.OPEN]
    assert {call.begin.key for call in opens} == {NO_KEY}  # It was never there before.
    keys = [call.end.key for call in opens if call.end is not None]
    assert len(set(keys)) == len(keys) == 51
    assert file_key(watched.path.parent / "db" / "queue.db-wal") == keys[-1]
    assert file_key(watched.path.parent / "db" / "nothing") is None


def test_the_inode_alone_would_not_have_told_them_apart(watched: Control) -> None:
    assert start(watched, RECREATES).wait(DEADLINE_SECONDS) == 0

    keys = {r.key for r in log_of(watched) if isinstance(r, End) and r.kind == Kind.OPEN}
    if len({key.inode for key in keys}) == len(keys):
        pytest.skip("this file system gives no inode number twice in a row")
    assert len({key.generation for key in keys}) == len(keys)


APPENDS = """
import fcntl, os, sys
file = os.open(sys.argv[1] + "/queue.db.failed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(file, b"one"); os.write(file, b"three")
plain = os.open(sys.argv[1] + "/queue.db.failed", os.O_WRONLY)
os.lseek(plain, 2, 0); os.write(plain, b"xy"); os.writev(plain, [b"z", b"w"])
fcntl.fcntl(plain, fcntl.F_SETFL, os.O_APPEND); os.write(plain, b"end")
os.pwrite(file, b"p", 0)  # Linux appends all the same, and moves no descriptor.
other = os.open(sys.argv[1] + "/queue.db.failed", os.O_WRONLY)
os.pwritev(other, [b"q"], 0, os.RWF_APPEND)
"""


def test_a_write_without_an_offset_is_recorded_with_the_one_it_had(watched: Control) -> None:
    assert start(watched, APPENDS).wait(DEADLINE_SECONDS) == 0

    writes = [call for call in pair(log_of(watched)) if call.begin.kind == Kind.WRITE]
    assert [(c.begin.at, c.end.at if c.end else None, c.begin.data) for c in writes] == [
        (-1, 0, b"one"),
        (-1, 3, b"three"),
        (2, 2, b"xy"),
        (4, 4, b"zw"),
        (-1, 8, b"end"),
        (-1, 11, b"p"),
        (-1, 12, b"q"),
    ]


VECTOR = """
import os, sys
file = os.open(sys.argv[1] + "/queue.db", os.O_RDWR | os.O_CREAT)
left = [bytes([number % 256]) for number in range(1000)]
while left:
    del left[: os.writev(file, left)]
"""


def test_a_write_of_many_pieces_is_recorded_whole(watched: Control) -> None:
    assert start(watched, VECTOR).wait(DEADLINE_SECONDS) == 0

    database = watched.path.parent / "db" / "queue.db"
    assert database.read_bytes() == bytes(number % 256 for number in range(1000))
    assert replayed(log_of(watched))[str(database.resolve())] == database.read_bytes()
    assert watched.problems() == []


MAPS = """
import mmap, os, sys
for name in sys.argv[2:]:
    file = os.open(f"{sys.argv[1]}/{name}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 4096)
    mmap.mmap(file, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE).close()
    mmap.mmap(file, 4096, prot=mmap.PROT_READ).close()
"""


def test_a_file_that_is_mapped_for_writing_is_told_as_unseen(watched: Control) -> None:
    process = start(watched, MAPS, "queue.db", "queue.db-shm", "queue.db.turnstile")
    assert process.wait(DEADLINE_SECONDS) == 0

    blind = [record for record in log_of(watched) if isinstance(record, Blind)]
    assert [record.file for record in blind] == [File.DATABASE]
    (seen,) = watched.processes()
    assert seen.counts[Kind.MAP, File.SHM] == 1


def test_a_descriptor_that_no_recorded_open_made_is_given_its_name(watched: Control) -> None:
    database = watched.path.parent / "db" / "queue.db"
    with database.open("wb") as file:
        subprocess.run(
            ["sh", "-c", "echo text; cat /dev/null"],
            stdout=file,
            env=os.environ | preload_environment(watched),
            check=True,
        )

    (seen,) = [record for record in log_of(watched) if isinstance(record, Seen)]
    assert (seen.path, seen.file) == (str(database.resolve()), File.DATABASE)
    assert seen.key == file_key(database)


NOTERS = {
    "sh": ("sh", "-c", 'echo "ack 7" >> "$KILLPROOF_NOTES"'),
    "perl": ("perl", "-e", 'open(F, ">>", $ENV{KILLPROOF_NOTES}); syswrite(F, "ack 7\\n")'),
    "node": (
        "node", "-e", 'require("fs").appendFileSync(process.env.KILLPROOF_NOTES, "ack 7\\n")',
    ),
    "python": (
        sys.executable, "-c",
        "import os; os.write(os.open(os.environ['KILLPROOF_NOTES'], os.O_WRONLY), b'ack 7\\n')",
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", NOTERS)
def test_a_client_in_any_language_notes_with_a_line_in_a_file(
    watched: Control, program: str
) -> None:
    argv = NOTERS[program]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    subprocess.run(argv, env=os.environ | preload_environment(watched), check=True)

    notes = [record.text for record in log_of(watched) if isinstance(record, Note)]
    assert notes == [b"ack 7\n"]
    assert watched.notes is not None
    assert watched.notes.read_bytes() == b"ack 7\n"


def test_a_file_of_notes_may_lie_below_the_watched_folder(place: Path) -> None:
    (place / "db").mkdir()
    with Control.create(
        place / "control", watch=place / "db", log=place / "log", notes=place / "db/notes"
    ) as control:
        subprocess.run(NOTERS["sh"], env=os.environ | preload_environment(control), check=True)

        assert [r.text for r in log_of(control) if isinstance(r, Note)] == [b"ack 7\n"]


def test_a_client_arms_itself_with_a_note(watched: Control) -> None:
    watched.set_start_armed(False)
    watched.set_rule(Rule(action=Action.SIGNAL_BEFORE, value=signal.SIGKILL))
    code = """
import os, sys
notes = os.open(os.environ["KILLPROOF_NOTES"], os.O_WRONLY)
os.mkdir(sys.argv[1] + "/a")
os.write(notes, b"killproof:arm\\n"); os.write(notes, b"killproof:disarm")
os.mkdir(sys.argv[1] + "/b")
os.write(notes, b"killproof:arm")
os.mkdir(sys.argv[1] + "/c")
"""
    assert start(watched, code).wait(DEADLINE_SECONDS) == -signal.SIGKILL
    assert sorted(path.name for path in (watched.path.parent / "db").iterdir()) == ["a", "b"]


def test_only_the_kinds_that_were_asked_for_are_recorded(place: Path) -> None:
    (place / "db").mkdir()
    with Control.create(
        place / "control", watch=place / "db", log=place / "log", record=SYNCS
    ) as control:
        assert start(control, PRODUCER, "1").wait(DEADLINE_SECONDS) == 0

        kinds = {r.kind for r in log_of(control) if isinstance(r, Begin | End)}
        assert kinds <= SYNCS
        assert any(isinstance(record, Note) for record in log_of(control))


def test_a_log_that_cannot_be_written_is_not_believed(watched: Control) -> None:
    log = watched.path.parent / "log"
    log.unlink()
    log.mkdir()
    assert start(watched, APPENDS).wait(DEADLINE_SECONDS) == 0

    assert watched.problems()[0].endswith(f"is there room for {log}?")
