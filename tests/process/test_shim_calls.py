"""The shim sees each call once, and strikes exactly where it is told to.

Goal: what `crash` counts is what the kernel is asked for. Method: small programs whose calls are
counted by hand, and strace as an independent witness.
"""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from killproof_chaos.shim.build import FLAGS, SOURCE, ShimUnavailable, build, find_compiler
from killproof_chaos.shim.calls import ALL_KINDS, Action, File, Kind
from killproof_chaos.shim.control import FOREVER, Control, Process, Rule, kill
from killproof_chaos.shim.environment import preload_environment
from killproof_chaos.shim.log import Begin, End, Signal, pair, read_log

try:
    build()
except ShimUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)

DEADLINE_SECONDS = 120.0

#: Three writes of three bytes, one sync; the folder is argv[1].
THREE_WRITES = """
import os, sys
file = os.open(sys.argv[1] + "/queue.db-wal", os.O_RDWR | os.O_CREAT, 0o644)
for number in range(3):
    os.pwrite(file, b"abc", 3 * number)
os.fdatasync(file)
os.close(file)
"""


@pytest.fixture
def watched(place: Path) -> Iterator[Control]:
    """A control over `place/db`, where every kind of call goes into the log."""
    (place / "db").mkdir()
    with Control.create(
        place / "control", watch=place / "db", log=place / "log", record=ALL_KINDS
    ) as control:
        yield control


def run(control: Control, code: str) -> "subprocess.CompletedProcess[str]":
    """Run Python code under the shim, with the watched folder as argv[1]."""
    return subprocess.run(
        [sys.executable, "-c", code, str(control.path.parent / "db")],
        env=os.environ | preload_environment(control),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def only_process(control: Control) -> Process:
    (process,) = control.processes()
    return process


def wal_of(control: Control) -> bytes:
    return (control.path.parent / "db" / "queue.db-wal").read_bytes()


def test_each_call_is_counted_once_by_kind_and_file(watched: Control) -> None:
    assert run(watched, THREE_WRITES).returncode == 0

    process = only_process(watched)
    assert process.counts == {
        (Kind.OPEN, File.WAL): 1,
        (Kind.WRITE, File.WAL): 3,
        (Kind.FDATASYNC, File.WAL): 1,
        (Kind.CLOSE, File.WAL): 1,
    }
    assert (process.calls, process.total, process.inside) == (6, 6, False)
    assert process.last == (Kind.CLOSE, File.WAL)


EVERY_CALL = """
import fcntl, os, sys
os.chdir(sys.argv[1])
folder = os.open(".", os.O_RDONLY)
file = os.open("queue.db", os.O_RDWR | os.O_CREAT, 0o644)
os.write(file, b"a"); os.writev(file, [b"b", b"c"]); os.pwritev(file, [b"d"], 3)
os.pwrite(file, b"e", 4); os.pwritev(file, [b"f"], 5, os.RWF_DSYNC)
os.fsync(file); os.fdatasync(file); os.ftruncate(file, 10); os.truncate("queue.db", 9)
os.posix_fallocate(file, 0, 4)
fcntl.flock(file, fcntl.LOCK_EX); fcntl.flock(file, fcntl.LOCK_UN)
fcntl.lockf(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_UN)
os.mkdir("payloads"); os.mkdir("inner", dir_fd=folder)
spill = os.open("payloads/1", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.write(spill, b"x")
os.link("payloads/1", "payloads/2"); os.rename("payloads/2", "payloads/3")
os.rename("payloads/1", "inner/1", src_dir_fd=folder, dst_dir_fd=folder)
os.unlink("payloads/3"); os.unlink("inner/1", dir_fd=folder)
os.rmdir("payloads"); os.rmdir("inner", dir_fd=folder)
os.fsync(folder)
copy = os.dup(file); os.write(copy, b"y"); os.dup2(folder, copy); os.fsync(copy)
import shutil
shutil.copyfile("queue.db", "copy")
"""


def test_every_variant_of_every_call_is_seen(watched: Control) -> None:
    done = run(watched, EVERY_CALL)

    assert done.stderr == ""
    assert only_process(watched).counts == {
        (Kind.OPEN, File.DIRECTORY): 1,
        (Kind.OPEN, File.DATABASE): 2,
        (Kind.OPEN, File.OTHER): 2,
        (Kind.CLOSE, File.DATABASE): 1,
        (Kind.CLOSE, File.OTHER): 1,
        (Kind.WRITE, File.DATABASE): 6,
        (Kind.WRITE, File.OTHER): 2,  # The copy was made with writes: sendfile shows no bytes.
        (Kind.FSYNC, File.DATABASE): 1,
        (Kind.FDATASYNC, File.DATABASE): 1,
        (Kind.FSYNC, File.DIRECTORY): 2,
        (Kind.TRUNCATE, File.DATABASE): 2,
        (Kind.ALLOCATE, File.DATABASE): 1,
        (Kind.LOCK, File.DATABASE): 2,
        (Kind.UNLOCK, File.DATABASE): 2,
        (Kind.MKDIR, File.DIRECTORY): 2,
        (Kind.RMDIR, File.DIRECTORY): 2,
        (Kind.LINK, File.OTHER): 1,
        (Kind.RENAME, File.OTHER): 2,
        (Kind.UNLINK, File.OTHER): 2,
    }


ONE_ENQUEUE = """
import sys
from killproof import Queue
with Queue(sys.argv[1] + "/queue.db") as queue:
    queue.database.checkpoint_commits = 10**9  # One by chance would differ between two runs.
    queue.enqueue("a", {})
"""
STANDARD_LIBRARY = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1] + "/queue.db")
connection.execute("PRAGMA journal_mode = wal")
with connection:
    connection.execute("CREATE TABLE job(id)")
connection.close()
"""
KIND_OF_SYSCALL = {
    "openat": Kind.OPEN, "close": Kind.CLOSE, "fsync": Kind.FSYNC, "fdatasync": Kind.FDATASYNC,
    "ftruncate": Kind.TRUNCATE, "unlink": Kind.UNLINK, "unlinkat": Kind.UNLINK,
    "write": Kind.WRITE, "pwrite64": Kind.WRITE, "pwritev2": Kind.WRITE,
}  # fmt: skip


def traced(place: Path, code: str) -> Counter[Kind]:
    """Return what strace counts of the same program without the shim, on files below place/db."""
    folder = place / "traced"
    folder.mkdir()
    subprocess.run(
        ["strace", "-f", "-y", "-o", str(place / "trace"), "-e", "trace=file,desc",
         sys.executable, "-c", code, str(folder)],
        check=True,
        timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    counts: Counter[Kind] = Counter()
    for line in (place / "trace").read_text(encoding="utf-8", errors="replace").splitlines():
        found = re.match(r"\d+ +(\w+)\((.*)\) += ", line)
        if found is None or str(folder) not in found[2] or sys.executable in found[2]:
            continue
        name, arguments = found[1], found[2]
        if name in KIND_OF_SYSCALL:
            counts[KIND_OF_SYSCALL[name]] += 1
        elif name == "flock" or re.search(r"F_(OFD_)?SETLKW?\b", arguments):
            free = "LOCK_UN" in arguments or "F_UNLCK" in arguments
            counts[Kind.UNLOCK if free else Kind.LOCK] += 1
        elif re.search(r"F_(OFD_)?GETLK\b", arguments):
            counts[Kind.GETLOCK] += 1
    return counts


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("code", [ONE_ENQUEUE, STANDARD_LIBRARY], ids=["enqueue", "sqlite3"])
def test_the_counts_of_a_database_are_those_of_strace(watched: Control, code: str) -> None:
    assert run(watched, code).stderr == ""

    counts: Counter[Kind] = Counter()
    for (kind, _), count in only_process(watched).counts.items():
        counts[kind] += count
    del counts[Kind.MAP]
    assert counts == traced(watched.path.parent, code)
    assert counts[Kind.WRITE] > 5


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the sqlite3 program is not installed")
def test_a_program_in_another_language_is_seen_too(watched: Control) -> None:
    database = watched.path.parent / "db" / "queue.db"
    subprocess.run(
        ["sqlite3", str(database), "PRAGMA journal_mode = wal; CREATE TABLE job(id);"],
        env=os.environ | preload_environment(watched),
        check=True,
        capture_output=True,
    )

    counts = only_process(watched).counts
    assert counts[Kind.FDATASYNC, File.WAL] > 0
    assert counts[Kind.UNLINK, File.WAL] == 1


@pytest.mark.parametrize(("after", "left"), [(False, b"abc"), (True, b"abcabc")])
def test_a_kill_before_a_write_leaves_no_bytes_and_one_after_it_does(
    watched: Control, after: bool, left: bytes
) -> None:
    watched.set_rule(kill(3, after=after))  # The open is the first call.

    assert run(watched, THREE_WRITES).returncode == -signal.SIGKILL
    assert wal_of(watched) == left
    assert watched.hits() == 1
    process = only_process(watched)
    assert (process.calls, process.last, process.inside) == (3, (Kind.WRITE, File.WAL), not after)
    last = list(read_log(watched.path.parent / "log"))[-1]
    assert isinstance(last, Signal)
    assert (last.number, last.after, last.kind) == (3, after, Kind.WRITE)


def test_every_call_of_a_program_can_be_killed_at(watched: Control) -> None:
    assert run(watched, THREE_WRITES).returncode == 0
    calls = only_process(watched).calls

    for number in range(1, calls + 1):
        watched.set_rule(kill(number))
        assert run(watched, THREE_WRITES).returncode == -signal.SIGKILL
    watched.set_rule(kill(calls + 1))
    assert run(watched, THREE_WRITES).returncode == 0


def test_a_kind_and_a_file_are_counted_apart_from_the_others(watched: Control) -> None:
    watched.set_rule(
        Rule(
            action=Action.SIGNAL_BEFORE,
            value=signal.SIGKILL,
            kinds=frozenset({Kind.WRITE}),
            files=frozenset({File.SHM}),
        ),
        number=0,
    )
    assert run(watched, THREE_WRITES).returncode == 0

    watched.set_rule(
        Rule(
            action=Action.SIGNAL_BEFORE,
            value=signal.SIGKILL,
            kinds=frozenset({Kind.WRITE}),
            files=frozenset({File.WAL}),
            first=3,
        ),
        number=1,
    )
    assert run(watched, THREE_WRITES).returncode == -signal.SIGKILL
    assert wal_of(watched) == b"abcabcabc"  # The earlier run's; this one wrote the first six.
    assert (watched.hits(0), watched.hits(1)) == (0, 1)


ARMS_ITSELF = """
import os, sys
from killproof_chaos.shim.notes import Shim
file = os.open(sys.argv[1] + "/queue.db-wal", os.O_RDWR | os.O_CREAT, 0o644)
shim = Shim()
os.write(file, b"a")
shim.arm()
os.write(file, b"b"); os.write(file, b"c")
shim.disarm()
os.write(file, b"d")
shim.arm()
os.write(file, b"e")
"""


def test_counting_begins_anew_where_the_process_arms_itself(watched: Control) -> None:
    watched.set_start_armed(False)
    watched.set_rule(kill(2))

    assert run(watched, ARMS_ITSELF).returncode == -signal.SIGKILL
    assert wal_of(watched) == b"ab"

    watched.clear_rules()
    assert run(watched, ARMS_ITSELF).returncode == 0
    process = watched.processes()[-1]
    assert (process.calls, process.total) == (1, 6)
    assert process.counts == {(Kind.WRITE, File.WAL): 1}


def test_each_arming_counts_the_calls_of_a_rule_anew(watched: Control) -> None:
    watched.set_start_armed(False)
    watched.set_rule(kill(3))
    twice = ARMS_ITSELF.replace('os.write(file, b"e")', "os.fsync(file); os.close(file)")

    assert run(watched, twice).returncode == 0  # Two calls, and two again.
    assert watched.hits() == 0


def test_a_rule_for_one_process_spares_the_others(watched: Control) -> None:
    watched.set_rule(kill(1, pid=1))

    assert run(watched, THREE_WRITES).returncode == 0
    assert watched.hits() == 0


def wait_until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.001)


#: The same from a thread, and the main thread waits: a signal to the process would go to that one.
WRITES_IN_A_THREAD = """
import os, sys, threading
file = os.open(sys.argv[1] + "/queue.db-wal", os.O_RDWR | os.O_CREAT, 0o644)
def work():
    for number in range(300):
        os.pwrite(file, b"abc", 3 * number)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("code", "writes"), [(THREE_WRITES, 3), (WRITES_IN_A_THREAD, 300)], ids=["main", "thread"]
)
def test_a_process_stops_at_the_call_and_goes_on_when_it_is_let(
    watched: Control, code: str, writes: int
) -> None:
    watched.set_rule(
        Rule(
            action=Action.SIGNAL_AFTER,
            value=signal.SIGSTOP,
            kinds=frozenset({Kind.WRITE}),
            first=2,
        )
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(watched.path.parent / "db")],
        env=os.environ | preload_environment(watched),
    ) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert wal_of(watched) == b"abcabc"
        process.send_signal(signal.SIGCONT)
        assert process.wait(DEADLINE_SECONDS) == 0

    assert wal_of(watched) == b"abc" * writes


def test_a_running_process_is_armed_from_outside(watched: Control) -> None:
    watched.set_start_armed(False)
    code = f"{THREE_WRITES}\nprint('ready', flush=True); input()\nos.mkdir(sys.argv[1] + '/a')"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(watched.path.parent / "db")],
        env=os.environ | preload_environment(watched),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        found = watched.process(process.pid)
        assert found is not None
        assert (found.calls, found.total) == (0, 6)
        watched.arm(found)
        watched.set_rule(kill(1))
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL

    assert not (watched.path.parent / "db" / "a").exists()


FORKS = """
import os, sys
file = os.open(sys.argv[1] + "/queue.db-wal", os.O_RDWR | os.O_CREAT, 0o644)
os.write(file, b"a")
child = os.fork()
os.write(file, b"b")
if child:
    os.waitpid(child, 0)
"""


def test_a_forked_child_counts_for_itself(watched: Control) -> None:
    assert run(watched, FORKS).returncode == 0

    parent, child = watched.processes()
    assert parent.pid != child.pid
    assert (parent.counts[Kind.WRITE, File.WAL], child.counts[Kind.WRITE, File.WAL]) == (2, 1)


SPAWNS = """
import os, subprocess, sys
file = os.open(sys.argv[1] + "/queue.db-wal", os.O_RDWR | os.O_CREAT, 0o644)
os.set_inheritable(file, True)
code = f"import os; os.write({file}, b'c'); os.fsync({file})"
subprocess.run([sys.executable, "-c", code], close_fds=False, check=True)
os.write(file, b"p")
"""


def test_an_inherited_descriptor_is_known_also_after_exec(watched: Control) -> None:
    assert run(watched, SPAWNS).returncode == 0

    parent, child = watched.processes()
    assert child.counts == {(Kind.WRITE, File.WAL): 1, (Kind.FSYNC, File.WAL): 1}
    assert parent.counts == {(Kind.OPEN, File.WAL): 1, (Kind.WRITE, File.WAL): 1}


THREADS = """
import os, sys, threading
def work(number):
    file = os.open(f"{sys.argv[1]}/{number}", os.O_RDWR | os.O_CREAT, 0o644)
    for _ in range(500):
        os.write(file, b"x")
    os.close(file)
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_an_inherited_descriptor_of_a_deleted_file_keeps_its_name(watched: Control) -> None:
    deletes = SPAWNS.replace("code =", 'os.unlink(sys.argv[1] + "/queue.db-wal")\ncode =')
    assert run(watched, deletes).returncode == 0

    child = watched.processes()[1]
    assert child.counts == {(Kind.WRITE, File.WAL): 1, (Kind.FSYNC, File.WAL): 1}


def test_threads_are_all_counted_and_recorded(watched: Control) -> None:
    assert run(watched, THREADS).returncode == 0

    assert only_process(watched).counts == {
        (Kind.OPEN, File.OTHER): 8,
        (Kind.WRITE, File.OTHER): 4000,
        (Kind.CLOSE, File.OTHER): 8,
    }
    calls = pair(read_log(watched.path.parent / "log"))
    assert len(calls) == 4016
    assert sorted(call.begin.number for call in calls) == list(range(1, 4017))
    assert len({call.begin.thread for call in calls}) == 8
    assert watched.problems() == []


CLOSES_EVERYTHING = """
import os, sys
os.closerange(3, 4096)
file = os.open(sys.argv[1] + "/queue.db", os.O_RDWR | os.O_CREAT, 0o644)
for descriptor in range(4, 600):  # The log's number is among them.
    os.dup2(file, descriptor)
    os.pwrite(descriptor, b"abc", 0)
"""


def test_a_program_that_closes_all_descriptors_gets_no_log_in_its_files(watched: Control) -> None:
    assert run(watched, CLOSES_EVERYTHING).stderr == ""

    assert (watched.path.parent / "db" / "queue.db").read_bytes() == b"abc"
    assert only_process(watched).counts[Kind.WRITE, File.DATABASE] == 596
    assert watched.problems() == []
    ends = [record for record in read_log(watched.path.parent / "log") if isinstance(record, End)]
    assert sum(end.kind == Kind.WRITE for end in ends) == 596


REUSED_BY_A_SOCKET = """
import os, socket, sys
file = os.open(sys.argv[1] + "/queue.db", os.O_RDWR | os.O_CREAT, 0o644)
os.write(file, b"abc")
os.closerange(file, file + 1)
ours, theirs = socket.socketpair()
assert ours.fileno() == file
os.write(file, b"to the socket")
"""


def test_a_socket_that_got_a_file_s_number_is_not_watched(watched: Control) -> None:
    assert run(watched, REUSED_BY_A_SOCKET).stderr == ""

    assert only_process(watched).counts[Kind.WRITE, File.DATABASE] == 1


NUMBERS_THAT_BECOME_FILES = """
import ctypes, fcntl, os, sys
file = os.open(sys.argv[1] + "/queue.db", os.O_RDWR | os.O_CREAT, 0o644)
os.symlink(sys.argv[1] + "/queue.db", sys.argv[1] + "/../link")
def freed():
    reader, writer = os.pipe()
    os.write(writer, b"known as a pipe")
    os.closerange(writer, writer + 1)
    return writer
copies = [
    lambda number: os.dup2(file, number),
    lambda number: os.dup2(file, number, inheritable=False),
    lambda number: ctypes.CDLL(None).dup(file),  # Python's own is fcntl's.
    lambda number: fcntl.fcntl(file, fcntl.F_DUPFD, number),
    lambda number: os.open(sys.argv[1] + "/../link", os.O_WRONLY),
]
for copy in copies:
    number = freed()
    assert copy(number) == number
    os.write(number, b"abc")
"""


def test_a_number_that_became_a_watched_file_is_watched(watched: Control) -> None:
    assert run(watched, NUMBERS_THAT_BECOME_FILES).stderr == ""

    assert only_process(watched).counts[Kind.WRITE, File.DATABASE] == 5


BEHIND_OUR_BACK = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
reader, writer = os.pipe()
os.write(writer, b"known as a pipe")
libc.fclose(ctypes.c_void_p(libc.fdopen(writer, b"w")))
number = libc.mkstemp(ctypes.create_string_buffer(os.fsencode(sys.argv[1] + "/payload.XXXXXX")))
assert number == writer, number
os.write(number, b"abc")
os.fsync(number)
"""


def test_a_number_that_libc_itself_closed_and_opened_is_known_for_what_it_is(
    watched: Control,
) -> None:
    assert run(watched, BEHIND_OUR_BACK).stderr == ""

    counts = only_process(watched).counts
    assert (counts[Kind.WRITE, File.OTHER], counts[Kind.FSYNC, File.OTHER]) == (1, 1)


def test_a_file_or_folder_that_is_removed_by_either_name_of_the_call_is_seen(
    watched: Control,
) -> None:
    code = """
import ctypes, os, sys
os.chdir(sys.argv[1])
open("payload", "x").close(); os.mkdir("folder")
assert [ctypes.CDLL(None).remove(name) for name in (b"payload", b"folder", b"none")] == [0, 0, -1]
"""
    assert run(watched, code).stderr == ""

    counts = only_process(watched).counts
    assert (counts[Kind.UNLINK, File.OTHER], counts[Kind.RMDIR, File.DIRECTORY]) == (2, 1)


VFORKS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    int file = open(arguments[count - 1], O_RDWR | O_CREAT, 0644), status;
    pid_t child = vfork();
    if (child == 0) {
        if (write(file, "child", 5) != 5)
            _exit(1);
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status != 0 || write(file, "parent", 6) != 6;
}
"""


def test_a_vforked_child_is_not_taken_for_its_parent(watched: Control, tmp_path: Path) -> None:
    source, program = tmp_path / "vforks.c", tmp_path / "vforks"
    source.write_text(VFORKS, encoding="utf-8")
    subprocess.run([find_compiler(), "-o", str(program), str(source)], check=True)
    watched.set_rule(kill(2))  # The parent's write. The child's would kill the child.

    done = subprocess.run(
        [str(program), str(watched.path.parent / "db" / "queue.db-wal")],
        env=os.environ | preload_environment(watched),
        timeout=DEADLINE_SECONDS,
        check=False,
    )

    assert done.returncode == -signal.SIGKILL
    assert wal_of(watched) == b"child"


def test_an_error_of_the_kernel_s_reaches_program_and_log(watched: Control) -> None:
    code = """
import os, sys
os.chdir(sys.argv[1])
for call in (lambda: os.open("no/queue.db", 0), lambda: os.unlink("x"),
             lambda: os.open("queue.db", 0), lambda: os.rmdir(sys.argv[1])):
    try:
        call()
    except OSError as error:
        print(error.errno, end=" ")
"""
    assert run(watched, code).stdout == "2 2 2 "

    ends = [call.end for call in pair(read_log(watched.path.parent / "log"))]
    assert [(end.kind, end.error, end.is_done) for end in ends if end is not None] == [
        (Kind.UNLINK, 2, False),
        (Kind.OPEN, 2, False),
        (Kind.RMDIR, 0, True),
    ]


def test_names_are_known_through_links_and_dots(watched: Control) -> None:
    folder = watched.path.parent / "db"
    (watched.path.parent / "link").symlink_to(folder)
    code = """
import os, sys
os.chdir(sys.argv[1] + "/../link/..")
os.mkdir("link/../db/./a/"); os.rmdir("./link/a")
os.symlink("db/target", "to"); os.close(os.open("to", os.O_CREAT | os.O_WRONLY))
file = os.open("to", os.O_WRONLY); os.write(file, b"x")
"""
    assert run(watched, code).stderr == ""

    calls = [
        record for record in read_log(watched.path.parent / "log") if isinstance(record, Begin)
    ]
    assert [(call.kind, call.path) for call in calls] == [
        (Kind.MKDIR, str(folder.resolve() / "a")),
        (Kind.RMDIR, str(folder.resolve() / "a")),
        (Kind.WRITE, ""),
    ]


def test_files_elsewhere_are_left_alone(watched: Control) -> None:
    watched.set_rule(kill(1))
    code = """
import os, sys
other = sys.argv[1] + "/../dbother"
os.mkdir(other); os.rename(other, other + "2")
file = os.open(other + "2/queue.db-wal", os.O_CREAT | os.O_WRONLY)
os.write(file, b"x"); os.fsync(file); os.close(file)
"""
    assert run(watched, code).returncode == 0
    assert only_process(watched).total == 0


def test_a_killed_enqueue_leaves_a_whole_database(watched: Control) -> None:
    assert run(watched, ONE_ENQUEUE).returncode == 0
    number = only_process(watched).calls

    watched.set_rule(kill(number // 2, after=True))
    assert run(watched, ONE_ENQUEUE).returncode == -signal.SIGKILL

    with closing(sqlite3.connect(watched.path.parent / "db" / "queue.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_rule_that_fires_for_ever_fires_in_every_process(watched: Control) -> None:
    rule = Rule(action=Action.SIGNAL_BEFORE, value=signal.SIGKILL, first=2, times=FOREVER)
    watched.set_rule(rule)

    for _ in range(3):
        assert run(watched, THREE_WRITES).returncode == -signal.SIGKILL
    assert watched.hits() == 3


def test_without_a_control_file_the_shim_says_so_and_stays_out(watched: Control) -> None:
    variables = preload_environment(watched) | {"KILLPROOF_SHIM": "/nowhere/control"}
    done = subprocess.run(
        [sys.executable, "-c", THREE_WRITES, str(watched.path.parent / "db")],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr == "killproof shim: /nowhere/control is no control file of this version\n"
    assert watched.processes() == []


def test_the_source_compiles_without_a_warning(tmp_path: Path) -> None:
    subprocess.run(
        [find_compiler(), *FLAGS, "-Werror", "-o", str(tmp_path / "shim.so"), str(SOURCE)],
        check=True,
    )


def test_a_library_is_built_once_and_a_failed_build_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build()
    made = first.stat().st_mtime_ns

    assert build() == first
    assert first.stat().st_mtime_ns == made

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    broken = tmp_path / "broken.c"
    broken.write_text("#error no\n")
    monkeypatch.setattr("killproof_chaos.shim.build.SOURCE", broken)
    with pytest.raises(ShimUnavailable, match=r"failed \(.*#error no\); install a C compiler"):
        build()
    assert list((tmp_path / "other" / "killproof").iterdir()) == []
