"""Real workers, killed, stopped, told to leave, and locked out.

Each worker is a process of its own that runs the handlers below.  A handler writes what it does
to the file `said`, one `write` a line, so that a kill loses nothing; it goes on when the file `go`
exists.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from killproof import Job, Queue

SECONDS_MAX = 120.0

JOBS = """
import json, os, signal, sys, time
from killproof import LeaseLost, Queue
from killproof.worker import Handlers, Worker

handlers = Handlers()


def say(context, word, at_ns=0):
    line = f"{word} {context.job.id} {context.job.attempt} {os.getpid()} {at_ns}\\n"
    said = os.open("said", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(said, line.encode())
    os.close(said)


def wait_for_go():
    while not os.path.exists("go"):
        time.sleep(0.005)


@handlers("wait")
def wait(context):
    say(context, "start")
    try:
        wait_for_go()
    except LeaseLost:
        say(context, "lost")
        raise
    say(context, "end")
    return context.job.attempt


@handlers("watch")
def watch(context):
    trusted_ns = 0
    try:
        say(context, "start")
        while True:
            now_ns = time.monotonic_ns()  # First: a process that gets no CPU looks late, too.
            if context.lost:
                break
            trusted_ns = now_ns
            time.sleep(0.002)
    except LeaseLost:
        pass
    say(context, "lost", trusted_ns)


@handlers("brief")
def brief(context):
    return "whole"


@handlers("long")
def long(context):
    say(context, "start")
    time.sleep(2.4)
    return "whole"


@handlers("deaf", timeout=1.0)
def deaf(context):
    has_said = False
    while True:
        try:
            if not has_said:
                say(context, "start")
                has_said = True
            time.sleep(0.01)
        except BaseException:
            pass


@handlers("blocked", timeout=1.0)
def blocked(context):
    say(context, "start")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(3600)


@handlers("forks")
def forks(context):
    child = os.fork()
    if child == 0:
        return "out of the handler, in the wrong process"
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@handlers("forks and terminates")
def forks_and_terminates(context):
    up, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b".")
        time.sleep(3600)
    os.read(up, 1)  # A signal in the middle of the fork is lost in Python itself.
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def terminate_at_start(name):
    if name == "handler.start":
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    import logging
    logging.basicConfig(level=logging.INFO)
    options = json.loads(sys.argv[1])
    with Queue("queue.db", busy_limit=options.pop("busy_limit", 30.0)) as queue:
        Worker(queue, handlers, **options).run()
"""


class Process:
    """One worker process and what it logs."""

    def __init__(self, place: Path, number: int, argv: list[str], env: dict[str, str]) -> None:
        self.log = place / f"log.{number}"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                argv, cwd=place, stdout=log, stderr=log, env=os.environ | env
            )
        self.pid = self.popen.pid

    def send(self, signum: signal.Signals) -> None:
        os.kill(self.pid, signum)

    def status(self) -> int:
        return self.popen.wait(SECONDS_MAX)

    def logged(self, text: str) -> bool:
        return text in self.log.read_text()


class Place:
    """A queue, the handlers above, and the workers on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        (folder / "jobs_here.py").write_text(JOBS)
        # Nobody cuts the power here, and a busy disk must not hold up a heartbeat.
        self.queue = Queue(folder / "queue.db", durability="process")

    def worker(self, *, env: dict[str, str] | None = None, **options: float) -> Process:
        argv = [sys.executable, "jobs_here.py", json.dumps(options)]
        return self.start(argv, env)

    def start(self, argv: list[str], env: dict[str, str] | None = None) -> Process:
        process = Process(self.folder, len(self.processes), argv, env or {})
        self.processes.append(process)
        return process

    def said(self, word: str) -> list[list[str]]:
        """The lines that begin with the word: job, attempt, pid, time."""
        try:
            lines = (self.folder / "said").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [line.split()[1:] for line in lines if line.split()[0] == word]

    def until_said(self, word: str, times: int = 1) -> list[list[str]]:
        self.until(lambda: len(self.said(word)) >= times, f"{word} said {times} times")
        return self.said(word)

    def until_state(self, job_id: int, state: str) -> Job:
        self.until(lambda: self.job(job_id).state == state, f"job {job_id} {state}")
        return self.job(job_id)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(process.log.read_text() for process in self.processes)
                pytest.fail(f"never came: {what}\n{logs}")
            time.sleep(0.01)

    def go(self) -> None:
        (self.folder / "go").touch()

    def job(self, job_id: int) -> Job:
        job = self.queue.get(job_id)
        assert job is not None
        return job

    def close(self) -> None:
        for process in self.processes:
            process.popen.kill()
            process.popen.wait()
        self.queue.close()


@pytest.fixture
def here(place: Path) -> Iterator[Place]:
    here = Place(place)
    yield here
    here.close()


def outcomes(job: Job) -> list[str]:
    return [attempt.outcome for attempt in job.attempts]


# Death.


def test_a_job_whose_worker_is_killed_in_the_handler_is_finished_by_another(here: Place) -> None:
    """Covers F25, S0.1, S0.2."""
    job_id = here.queue.enqueue("wait", None, lease=3_600)
    first, second = here.worker(), here.worker()
    (start,) = here.until_said("start")
    victim = first if start[2] == str(first.pid) else second
    victim.send(signal.SIGKILL)
    here.until_said("start", 2)  # Long before the lease of an hour: the kernel told.
    here.go()
    job = here.until_state(job_id, "succeeded")

    assert (job.result, outcomes(job)) == (2, ["crashed", "succeeded"])


def test_a_worker_stopped_past_its_lease_is_a_zombie_whose_outcome_is_refused(
    here: Place,
) -> None:
    """The hour of its lease passes in the file: no heartbeat of the other can be late for it."""
    job_id = here.queue.enqueue("wait", None, lease=3_600)
    zombie = here.worker()
    here.until_said("start")
    zombie.send(signal.SIGSTOP)
    with closing(sqlite3.connect(here.queue.path, isolation_level=None, timeout=30)) as other:
        other.execute("UPDATE job SET lease_deadline_ns = 1")
    here.worker()
    here.until_said("start", 2)
    here.go()
    job = here.until_state(job_id, "succeeded")
    zombie.send(signal.SIGCONT)
    here.until(lambda: zombie.logged("LeaseLost") or zombie.logged("refused"), "zombie told")

    assert here.job(job_id) == job
    assert (job.result, outcomes(job)) == (2, ["expired", "succeeded"])


def test_a_job_longer_than_its_lease_runs_once_beside_an_idle_worker(here: Place) -> None:
    """Covers F23."""
    job_id = here.queue.enqueue("long", None, lease=2.0)
    here.worker()
    here.worker()
    job = here.until_state(job_id, "succeeded")

    assert len(here.said("start")) == 1
    assert outcomes(job) == ["succeeded"]


# Leaving.


def test_sigterm_lets_the_running_job_end(here: Place) -> None:
    """Covers F27."""
    job_id = here.queue.enqueue("wait", None)
    behind = here.queue.enqueue("wait", None)
    worker = here.worker()
    here.until_said("start")
    worker.send(signal.SIGTERM)
    here.go()

    assert worker.status() == 0
    assert here.job(job_id).state == "succeeded"
    assert here.job(behind).deliveries == 0


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
def test_a_job_that_outlives_the_grace_is_released_and_no_attempt_is_lost(
    here: Place, signals: list[signal.Signals]
) -> None:
    """One signal with a short grace, or a second signal that ends a long one. Covers F27."""
    job_id = here.queue.enqueue("wait", None, max_attempts=1)
    worker = here.worker(grace=0.1 if len(signals) == 1 else 3_600)
    here.until_said("start")
    for signum in signals:
        worker.send(signum)
        time.sleep(0.05)  # Two equal moments are one: a pending signal is not counted.

    assert worker.status() == 0
    assert (here.job(job_id).state, outcomes(here.job(job_id))) == ("available", ["released"])
    here.go()
    here.worker()
    assert here.until_state(job_id, "succeeded").attempt == 1


def test_sigterm_between_claim_and_start_releases_the_job_at_once(here: Place) -> None:
    job_id = here.queue.enqueue("wait", None, max_attempts=1)
    worker = here.worker(env={"KILLPROOF_SYNC": "jobs_here:terminate_at_start"})

    assert worker.status() == 0
    assert here.said("start") == []
    assert (here.job(job_id).state, here.job(job_id).attempt) == ("available", 0)


def test_an_idle_worker_leaves_on_sigterm(here: Place) -> None:
    job_id = here.queue.enqueue("brief", None)
    worker = here.worker()
    here.until_state(job_id, "succeeded")
    worker.send(signal.SIGTERM)

    assert worker.status() == 0


# Hanging.


@pytest.mark.parametrize("kind", ["deaf", "blocked"])
def test_a_handler_that_does_not_stop_at_its_limit_is_recorded_and_left_behind(
    here: Place, kind: str
) -> None:
    job_id = here.queue.enqueue(kind, None, max_attempts=1)
    worker = here.worker(overdue_grace=0.2)

    assert worker.status() == 70
    (attempt,) = here.job(job_id).attempts
    assert (here.job(job_id).state, attempt.error_class) == ("dead", "HandlerTimeout")
    assert f"in {kind}" in (attempt.traceback or "")


def test_a_handler_that_ignores_the_end_of_the_grace_is_released_and_left_behind(
    here: Place,
) -> None:
    job_id = here.queue.enqueue("deaf", None, max_attempts=1)
    worker = here.worker(grace=0.0, overdue_grace=0.2)
    here.until_said("start")
    worker.send(signal.SIGTERM)

    assert worker.status() in (128 + signal.SIGTERM, 70)  # Its own limit may be over as well.
    assert outcomes(here.job(job_id)) in (["released"], ["failed"])


# A locked file.


def test_an_ack_outlasts_a_held_write_lock_and_the_effect_happens_once(here: Place) -> None:
    """Covers F17."""
    job_id = here.queue.enqueue("wait", None)
    worker = here.worker(busy_limit=0.05)
    here.until_said("start")
    with closing(sqlite3.connect(here.queue.path, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        here.go()
        here.until(lambda: worker.logged("not written yet, trying again"), "an ack met the lock")
        other.execute("ROLLBACK")
    job = here.until_state(job_id, "succeeded")

    assert len(here.said("start")) == 1
    assert (job.attempt, outcomes(job), job.error_message) == (1, ["succeeded"], None)


def test_a_locked_file_is_never_the_end_of_an_idle_worker(here: Place) -> None:
    """Covers F15, F16."""
    worker = here.worker(busy_limit=0.05)
    with closing(sqlite3.connect(here.queue.path, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute(
            "INSERT INTO job (kind, state, due_ms, created_ms, updated_ms, payload)"
            " VALUES ('brief', 'available', 0, 0, 0, 'null')"
        )
        other.execute("COMMIT")
        other.execute("BEGIN IMMEDIATE")
        here.until(lambda: worker.logged("claim: "), "a claim met the lock")
        other.execute("ROLLBACK")
    here.until_state(1, "succeeded")

    assert worker.popen.poll() is None


def test_a_worker_stops_trusting_its_lease_before_anybody_else_may_claim(here: Place) -> None:
    """Goal: also while the renewal itself is blocked.  Method: hold the lock past the lease.

    What counts is when it last trusted it, not when it got the CPU to say that it does no more.
    """
    job_id = here.queue.enqueue("watch", None, lease=1.0)
    here.worker()
    here.until_said("start")
    with closing(sqlite3.connect(here.queue.path, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        trusted_ns = here.until_said("lost")[-1][-1]
        query = "SELECT lease_deadline_ns FROM job WHERE id = ?"
        (deadline_ns,) = other.execute(query, (job_id,)).fetchone()
        other.execute("ROLLBACK")

    assert 0 < int(trusted_ns) <= deadline_ns


# Forks.


def test_a_child_that_comes_out_of_the_handler_leaves_at_once(here: Place) -> None:
    job_id = here.queue.enqueue("forks", None)
    here.worker()
    job = here.until_state(job_id, "succeeded")

    assert (job.result, outcomes(job)) == (70, ["succeeded"])


def test_sigterm_to_a_child_of_a_handler_ends_the_child_and_not_the_worker(here: Place) -> None:
    job_id = here.queue.enqueue("forks and terminates", None)
    worker = here.worker()

    assert here.until_state(job_id, "succeeded").result == -signal.SIGTERM
    assert worker.popen.poll() is None


# The command.


def test_a_worker_started_before_its_file_makes_it_and_works(here: Place) -> None:
    """Covers S0.83."""
    command = [sys.executable, "-m", "killproof", "work", "jobs_here", "--db", "later.db"]
    worker = here.start(command)
    here.until((here.folder / "later.db").exists, "the worker makes the file")
    with Queue(here.folder / "later.db") as queue:
        job_id = queue.enqueue("wait", None)
        here.go()
        here.until(lambda: (queue.get(job_id) or pytest.fail("gone")).state == "succeeded", "done")
        worker.send(signal.SIGTERM)

        assert worker.status() == 0
    assert worker.logged("later.db does not exist yet: making it")
    assert worker.logged(f"job_id={job_id} kind=wait attempt=1 key=None: succeeded in ")


def test_enqueue_imports_no_table_no_plot_and_no_harness(place: Path) -> None:
    code = (
        "import sys; from killproof import cli; sys.argv = ['killproof', 'enqueue', 'k', '1']\n"
        "assert cli.main() == 0\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())

    assert "killproof" in loaded
    assert not loaded & {"rich", "bokeh", "numpy", "jinja2", "killproof_chaos", "killproof_bench"}
