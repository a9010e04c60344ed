"""Backups under load, logs of several processes, and the first run, all with real processes."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from killproof import Queue
from killproof.backup import backup, restore

SECONDS_MAX = 120.0
#: Backups in a row under load; a campaign asks for more.
BACKUPS = int(os.environ.get("KILLPROOF_TEST_BACKUPS", "3"))

PRODUCER = """
import os, sys
from killproof import Queue
with Queue("queue.db") as queue:
    while True:
        job_id = queue.enqueue("k", "x" * 500)
        os.write(1, f"{job_id}\\n".encode())
"""

WORKER = """
from killproof import Queue
with Queue("queue.db") as queue:
    lease = None
    while True:
        lease = queue.ack_and_claim(lease) if lease else queue.claim()
"""

JOBS = """
import time
from killproof.worker import Handlers
handlers = Handlers()

@handlers("fail")
def fail(context):
    raise ValueError("x" * 3000)

@handlers("wait")
def wait(context):
    while True:
        time.sleep(0.01)
"""


class Processes:
    """Processes in one folder; they end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str, out: str | None = None, **env: str) -> subprocess.Popen[bytes]:
        stdout = (self.folder / out).open("ab") if out else subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, *argv], cwd=self.folder, stdout=stdout, env=os.environ | env
        )
        self.all.append(process)
        if not isinstance(stdout, int):
            stdout.close()
        return process

    def close(self) -> None:
        for process in self.all:
            process.kill()
            process.wait()


@pytest.fixture
def processes(place: Path) -> Iterator[Processes]:
    processes = Processes(place)
    yield processes
    processes.close()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.01)


def acknowledged(folder: Path) -> list[int]:
    """The ids that the producers were given, whole lines only."""
    return [
        int(line) for path in folder.glob("acks.*") for line in path.read_text().split("\n")[:-1]
    ]


def test_a_backup_under_load_holds_every_job_that_was_acknowledged_before_it(
    place: Path, processes: Processes
) -> None:
    """P24.  Method: producers write down what they are told; what stands there must be in.

    Covers F45.
    """
    with Queue(place / "queue.db") as queue:
        for number in range(2):
            processes.start("-c", PRODUCER, out=f"acks.{number}")
            processes.start("-c", WORKER)
        until(lambda: len(acknowledged(place)) > 200, "200 jobs")
        for _ in range(BACKUPS):
            before = acknowledged(place)
            done = backup(queue, place)
            with closing(sqlite3.connect(done.path)) as copy:
                held = {job_id for (job_id,) in copy.execute("SELECT id FROM job")}
                assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert copy.execute("SELECT 1 FROM job WHERE state = 'leased'").fetchone() is None

            assert set(before) <= held
        until(lambda: len(acknowledged(place)) > len(before), "they go on")


def test_a_backup_that_is_killed_leaves_no_file_that_looks_like_one(
    place: Path, processes: Processes
) -> None:
    with Queue(place / "queue.db") as queue:
        queue.enqueue_many([("k", "x" * 1_000) for _ in range(200)])
    code = (
        "import os, sys; from killproof import Queue, backup; backup.STEP_PAGES = 8\n"
        "with Queue('queue.db') as queue:\n"
        "    backup.backup(queue, '.', progress=lambda *_: os.kill(os.getpid(), 9))"
    )
    assert processes.start("-c", code).wait(SECONDS_MAX) == -signal.SIGKILL

    assert [path.name for path in place.glob("*.db")] == ["queue.db"]
    assert len(list(place.glob(".*.partial"))) == 1


def test_a_restore_is_refused_while_another_process_has_the_file(
    place: Path, processes: Processes
) -> None:
    with Queue(place / "queue.db") as queue:
        queue.enqueue("wait", None)
        path = backup(queue, place).path
    (place / "jobs_here.py").write_text(JOBS)
    worker = processes.start("-m", "killproof", "work", "jobs_here")
    with Queue(place / "queue.db") as queue:
        until(lambda: queue.counts()["leased"], "a worker at work")
    command = [sys.executable, "-m", "killproof", "restore", path, "--force"]
    refused = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert (refused.returncode, "is open in another process" in refused.stderr) == (64, True)
    worker.kill()
    worker.wait()
    done = restore(path, place / "queue.db", force=True)

    with Queue(done.path) as queue:
        assert queue.counts()["available"] == 1


def test_the_log_lines_of_two_workers_in_one_file_are_whole(
    place: Path, processes: Processes
) -> None:
    """Covers S1.3, S1.6, S0.64, S0.73: whole lines, and workers that leave the CPU to others."""
    with Queue(place / "queue.db") as queue:
        for _ in range(30):
            queue.enqueue("fail", None, max_attempts=1)
    (place / "jobs_here.py").write_text(JOBS)
    options = ["--log-format", "json", "--log-file", "work.log", "--nice", "5"]
    workers = [processes.start("-m", "killproof", "work", "jobs_here", *options) for _ in range(2)]
    with Queue(place / "queue.db") as queue:
        until(lambda: queue.counts()["dead"] == 30, "30 dead letters")
        # One may have done all of them before the other was up.
        log = place / "work.log"
        until(lambda: log.read_text().count(" works on: ") == 2, "both are at work")
        niceness = [os.getpriority(os.PRIO_PROCESS, worker.pid) for worker in workers]
        for worker in workers:
            worker.terminate()
        assert [worker.wait(SECONDS_MAX) for worker in workers] == [0, 0]
    lines = [json.loads(line) for line in (place / "work.log").read_text().splitlines()]
    failed = [line for line in lines if line["level"] == "warning"]

    assert niceness == [min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)] * 2
    assert sorted(line["job_id"] for line in failed) == list(range(1, 31))
    assert all("ValueError: xxx" in line["traceback"] for line in failed)


def test_systemd_is_told_of_a_worker_that_is_ready_lives_and_stops(
    place: Path, processes: Processes
) -> None:
    """Covers S0.67."""
    (place / "jobs_here.py").write_text(JOBS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place / "notify"))
        manager.settimeout(SECONDS_MAX)
        worker = processes.start(
            *("-m", "killproof", "work", "jobs_here", "--grace", "0.1"),
            NOTIFY_SOCKET=str(place / "notify"),
            WATCHDOG_USEC="10000000",
        )
        assert [manager.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
        with Queue(place / "queue.db") as queue:
            queue.enqueue("wait", None)
            until(lambda: queue.counts()["leased"], "a job at work")
        worker.terminate()
        said = b""
        while said != b"STOPPING=1":
            said = manager.recv(100)
        assert worker.wait(SECONDS_MAX) == 0


def test_the_first_run_kills_a_worker_and_the_job_ends_all_the_same(place: Path) -> None:
    """Covers S0.1, S0.33, S1.48: real processes, and what is told is what the file says."""
    command = [sys.executable, "-m", "killproof", "init", "--json"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    with Queue(place / "queue.db") as queue:
        job = queue.get(told["job_id"])
    again = subprocess.run(command, cwd=place, capture_output=True, text=True)

    assert job is not None
    assert [attempt.outcome for attempt in job.attempts] == told["outcomes"]
    assert told["outcomes"] == ["crashed", "succeeded"]
    assert job.result == told["result"] == {"said": "Hello, world!"}
    assert f"killed process {told['killed_pid']} with SIGKILL" in done.stderr
    assert (again.returncode, "my_jobs.py exists" in again.stderr) == (64, True)


def test_importing_the_queue_needs_no_third_party_module(place: Path) -> None:
    """Covers S1.9, S0.7, S2.14, F3."""
    code = (
        "import sys; import killproof, killproof.worker, killproof.backup, killproof.transfer\n"
        "import killproof.metrics, killproof.systemd, killproof.logs, killproof.checklist\n"
        "import killproof.first_run, killproof.webhook, killproof.explain\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "print(*sorted(names - sys.stdlib_module_names - {'killproof', '__main__'}))"
    )
    done = subprocess.run(
        [sys.executable, "-Sc", code], cwd=place, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "queue")},
    )  # fmt: skip

    assert done.stdout.split() == []


def test_the_version_is_told_without_the_command_line_library(place: Path) -> None:
    code = (
        "import sys; from killproof.__main__ import main; sys.argv = ['killproof', '--version']\n"
        "assert main() == 0; assert not {'typer', 'click', 'rich'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True)

    assert (done.returncode, done.stdout.split()[0]) == (0, "killproof"), done.stderr


def test_what_programs_read_is_utf8_whatever_the_terminal_speaks(place: Path) -> None:
    with Queue(place / "queue.db") as queue:
        queue.enqueue("é\u20ac", "ü\u2028")
    env = os.environ | {"PYTHONIOENCODING": "latin-1"}
    answers = [
        subprocess.run([sys.executable, "-m", "killproof", *command], cwd=place, check=True,
                       capture_output=True, env=env, input=lines).stdout.decode("utf-8")
        for command, lines in ((["metrics"], b""), (["export"], b""))
    ]  # fmt: skip
    command = [sys.executable, "-m", "killproof", "import", "-", "--db", "new.db"]
    subprocess.run(command, cwd=place, check=True, env=env, input=answers[1].encode("utf-8"))

    assert 'killproof_waiting_jobs{kind="é€"} 1' in answers[0]
    with Queue(place / "new.db") as queue:
        job = queue.get(1)
        assert job is not None
        assert (job.kind, job.payload) == ("é€", "ü\u2028")
