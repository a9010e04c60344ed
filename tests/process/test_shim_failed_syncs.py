"""A sync of the log fails once: nobody acknowledges any more, and the repair loses nothing.

Goal: what `docs/semantics.md` says of a failing disk, on real processes. Method: three processes
enqueue into one file under the shim, which puts their calls, their answers and every sync into one
total order; one sync of the log is made to fail, where the barrier asks for it or inside SQLite.
The controls take the guard away and must be seen to acknowledge.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from killproof import Queue
from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.shim.calls import SYNCS, Action, File, Kind
from killproof_chaos.shim.control import FOREVER, Control, Rule
from killproof_chaos.shim.environment import preload_environment
from killproof_chaos.shim.log import Begin, End, Note, Record, read_log

try:
    build()
except ShimUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)

SECONDS_MAX = 120.0
ACKS_BEFORE = 4
#: What a process goes on to try after the failure, and is refused.
TRIES_AFTER = 25

LIMITS = f"""
ACKS, TRIES = {ACKS_BEFORE}, {TRIES_AFTER}
"""
#: Enqueues until it has been refused for a while; the process `victim` arms itself for one call.
#: While somebody is inside alone, the others stand between two calls: the next commit is its own.
PROGRAM = """
import contextlib, fcntl, os, sys, time
from killproof import KillproofError, Queue
from killproof_chaos.shim.notes import Shim

folder, name, fails_in = sys.argv[1:]
queue, shim = Queue(folder + "/queue.db"), Shim()
queue.database.checkpoint_commits = 10**9
pen = os.open(folder + "/../pen", os.O_RDWR | os.O_CREAT)

@contextlib.contextmanager
def inside(alone=False):
    fcntl.flock(pen, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    yield
    fcntl.flock(pen, fcntl.LOCK_UN)

def call(number):
    shim.note(f"call {name} {number}".encode())
    try:
        job = queue.enqueue("job", {"by": name, "number": number})
    except KillproofError as error:
        shim.note(f"told {name} {number} {type(error).__name__}".encode())
        return False
    shim.note(f"ack {name} {number} {job}".encode())
    return True

def checkpoints(wanted):
    queue.database.checkpoint_commits = 1 if wanted else 10**9

def is_struck():
    # The call in which the sync fails.
    global number
    with inside(alone=fails_in in ("restart", "everywhere")):
        if fails_in == "everywhere":
            os.close(os.open(folder + "/../everywhere", os.O_CREAT))
        if fails_in == "restart":
            checkpoints(True)
            call(number)
            number += 1
        checkpoints(fails_in == "checkpoint")
        shim.arm()
        call(number)
        checkpoints(False)
    return True

print("ready", flush=True)
sys.stdin.readline()
acks = tries = number = 0
struck = False
while tries < TRIES:
    number += 1
    if name == "victim" and acks == ACKS and not struck:
        struck = is_struck()
        continue
    with inside():
        if os.path.exists(folder + "/../everywhere"):
            shim.arm()
        acks += call(number)
    tries += acks > ACKS or os.path.exists(folder + "/queue.db.failed")
    time.sleep(0.001)
os._exit(0)
"""

#: The sync is tried again, as programs do: the kernel has forgotten the error, and says 0.
RETRIES_THE_SYNC = """
import os
from killproof.core import barrier
def patiently(self):
    while True:
        try:
            return os.fdatasync(self._descriptor)
        except OSError:
            continue
barrier.Barrier.wait = patiently
"""
#: SQLite's own failed sync is told to the caller, and the queue goes on.
GOES_ON_AFTER_SQLITES = """
from killproof.core import database
database._FSYNC_FAILED = ()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What three processes did around one failed sync, in one order."""

    records: list[Record]
    marked_seq: int | None  #: when the marker that stops the queue was there; None: never
    failed_seq: int  #: when the first sync had failed

    def notes(self, word: str) -> Iterator[tuple[int, list[str]]]:
        """Yield the notes that begin with the word: place in the order, and the words."""
        for record in self.records:
            if isinstance(record, Note) and record.text.startswith(word.encode()):
                yield record.seq, record.text.decode().split()

    def acks(self) -> set[int]:
        """Return the ids of all acknowledged jobs."""
        return {int(words[3]) for _, words in self.notes("ack")}

    def acks_of_calls_after(self, seq: int) -> list[str]:
        """Return the acknowledged calls that began after this place in the order."""
        late = {(words[1], words[2]) for at, words in self.notes("call") if at > seq}
        return [" ".join(w) for _, w in self.notes("ack") if (w[1], w[2]) in late]


def play(place: Path, fails_in: str, *, first: str = "") -> Outcome:
    """Let a sync of the log fail; `first` runs before everything else in each process."""
    folder = place / "db"
    folder.mkdir()
    with Queue(folder / "queue.db"):
        pass
    log = place / "log"
    with Control.create(place / "control", watch=folder, log=log, armed=False) as control:
        control.set_rule(
            Rule(
                action=Action.FAIL,
                value=errno.EIO,
                kinds=SYNCS,
                files=frozenset({File.WAL}),
                times=FOREVER if fails_in == "everywhere" else 1,
            )
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", first + LIMITS + PROGRAM, str(folder), name, fails_in],
                env=os.environ | preload_environment(control),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in ("victim", "second", "third")
        ]
        for process in processes:  # Whoever opens the queue after the failure is refused.
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            _, complaints = process.communicate(timeout=SECONDS_MAX)
            assert process.returncode == 0, complaints
        assert control.hits() >= 1, "the sync did fail"
    records = list(read_log(log))
    failed = [r.seq for r in records if isinstance(r, End) and r.injected]
    opens = {
        (r.slot, r.call)
        for r in records
        if isinstance(r, Begin) and r.kind is Kind.OPEN and r.file is File.FAILED
    }
    marked = [r.seq for r in records if isinstance(r, End) and (r.slot, r.call) in opens]
    return Outcome(records=records, marked_seq=min(marked, default=None), failed_seq=min(failed))


def repaired(place: Path) -> "subprocess.CompletedProcess[str]":
    """Do what the error says."""
    return subprocess.run(
        [sys.executable, "-m", "killproof", "doctor", "--repair", "--db", place / "db/queue.db"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


@pytest.mark.parametrize(
    ("fails_in", "reason"),
    [
        ("barrier", "fdatasync of "),
        ("everywhere", "fdatasync of "),
        ("checkpoint", "a checkpoint failed: "),
        ("restart", "an fsync inside SQLite failed: "),
    ],
)
def test_after_a_failed_sync_of_the_log_nobody_acknowledges_and_the_repair_loses_nothing(
    place: Path, fails_in: str, reason: str
) -> None:
    """The victim's barrier alone, everybody's from then on, or a sync that SQLite makes itself.

    Covers the barrier's errors, `fail`, the marker, and `repair`, in several processes.
    """
    outcome = play(place, fails_in)

    told = {(words[1], words[3]) for _, words in outcome.notes("told")}
    assert ("victim", "OutcomeUnknown") in told
    assert {("second", "StorageFailed"), ("third", "StorageFailed")} <= told
    assert outcome.marked_seq is not None
    late_from = outcome.failed_seq if fails_in == "everywhere" else outcome.marked_seq
    assert outcome.acks_of_calls_after(late_from) == []

    # Who met the marker between its making and its first line may have written first.
    assert reason in (place / "db/queue.db.failed").read_text()

    done = repaired(place)
    assert done.returncode == 0, done.stdout + done.stderr
    with Queue(place / "db/queue.db") as queue:
        assert [job for job in outcome.acks() if queue.get(job) is None] == []
        assert queue.enqueue("job", {"by": "repaired"}) > max(outcome.acks())


@pytest.mark.parametrize(
    ("fails_in", "first"),
    [("barrier", RETRIES_THE_SYNC), ("restart", GOES_ON_AFTER_SQLITES)],
    ids=["the sync is tried again", "SQLite's sync is overlooked"],
)
def test_without_the_guard_acknowledgements_go_on_after_the_failed_sync(
    place: Path, fails_in: str, first: str
) -> None:
    """The negative control of the test above: the same play, and its question answered by yes."""
    outcome = play(place, fails_in, first=first)

    assert outcome.marked_seq is None
    assert outcome.acks_of_calls_after(outcome.failed_seq) != []


def test_a_stopped_queue_is_not_repaired_under_a_process_that_has_it_open(place: Path) -> None:
    play(place, "barrier")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); "
            "db.execute('SELECT count(*) FROM job').fetchone(); print('open', flush=True); "
            "sys.stdin.read()",
            str(place / "db/queue.db"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"

    refused = repaired(place)
    assert refused.returncode != 0
    assert "end all of them, then repair" in refused.stderr
    holder.communicate()
    assert repaired(place).returncode == 0
