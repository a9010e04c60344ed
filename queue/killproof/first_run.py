"""The first run: a handler file, a job, and a worker that is killed before your eyes.

Nothing is acted.  Two worker processes are started; the one that takes the job is killed with
SIGKILL while its handler runs; the kernel frees its lock, the other sees it and takes the job.
What is told is read from the file: the attempts, and the times in them.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from killproof.core.errors import FileRefused, KillproofError
from killproof.core.jobs import Queue
from killproof.core.model import Job

Found = TypeVar("Found")

#: How long the workers may take to start, and the job to end.
SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.01
#: The handler runs so long that there is somebody to kill.
HANDLER_SECONDS: Final = 0.5

HANDLERS: Final = '''\
"""Handlers: `killproof work {module} --db {db}` runs them; start as many as you like."""

import time

from killproof.worker import Context, Handlers

handlers = Handlers()


@handlers("hello", timeout=30.0)
def hello(context: Context) -> dict[str, str]:
    """What it returns becomes the job's result; what it raises is a failed attempt."""
    time.sleep({seconds})  # The work.
    return {{"said": f"Hello, {{context.payload['name']}}!"}}
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRun:
    """What happened."""

    handlers: str  #: the file that was written
    db: str
    job_id: int
    killed_pid: int
    second_pid: int
    recovery_ms: int  #: from the kill to the next claim
    outcomes: tuple[str, ...]  #: of the attempts
    result: object


def first_run(folder: Path, module: str, db: Path, say: Callable[[str], object]) -> FirstRun:
    """Write a handler file and show that a job outlives its worker.

    Args:
        folder: where the handler file goes.
        module: its name, without `.py`.
        db: the database; it must not exist.
        say: is told each step as it happens.

    Raises:
        FileRefused: a file is there already; nothing was made; definite.
        KillproofError: a worker did not do its part in time.
    """
    if not module.isidentifier():
        raise ValueError(f"module {module!r} is no name of a Python module")
    file = folder / f"{module}.py"
    for path in (file, db):
        if path.exists():
            raise FileRefused(f"{path} exists: name another, or remove it")
    with file.open("x", encoding="utf-8") as out:
        out.write(HANDLERS.format(module=module, db=db, seconds=HANDLER_SECONDS))
    say(f"wrote {file}: a handler for jobs of kind hello")
    with Queue(db) as queue:
        say(f"made {db}: what is put in survives {_survives(queue)}")
        workers = [_start(folder, module, db) for _ in range(2)]
        try:
            return _kill_one(queue, workers, file, say)
        finally:
            for worker in workers:
                worker.terminate()  # The one that is left has nothing to do: it leaves in order.
            for worker in workers:
                worker.wait(SECONDS_MAX)


def _start(folder: Path, module: str, db: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "killproof", "work", module, "--db", str(db.resolve())]
    return subprocess.Popen([*command, "--log-level", "error"], cwd=folder)


def _survives(queue: Queue) -> str:
    return "kill, reboot and power cut" if queue.durability == "power" else "kill"


def _kill_one(
    queue: Queue,
    workers: list[subprocess.Popen[bytes]],
    file: Path,
    say: Callable[[str], object],
) -> FirstRun:
    clock = queue.host.clock
    say(f"started two workers: processes {workers[0].pid} and {workers[1].pid}")
    # Both must be there: else it would be the start of the second that is waited for.
    _until(lambda: _registered(queue) == 2 or None, workers, "both workers are at work")
    job_id = queue.enqueue("hello", {"name": "world"})
    say(f"put job {job_id} in")
    job = _until(lambda: _in_state(queue, job_id, "leased"), workers, f"job {job_id} is taken")
    victim = _pid_of(queue, job)
    other = next(worker.pid for worker in workers if worker.pid != victim)
    say(f"process {victim} took job {job_id} and is working on it")
    killed_ms = clock.now_ms()
    os.kill(victim, signal.SIGKILL)
    say(f"killed process {victim} with SIGKILL, in the middle of its handler")
    again = _until(lambda: _is_again(queue, job_id), workers, f"job {job_id} is taken again")
    recovery_ms = max(0, (again.claimed_ms or 0) - killed_ms)
    say(f"process {other} took job {job_id} over {recovery_ms} ms later")
    done = _until(lambda: _in_state(queue, job_id, "succeeded"), workers, f"job {job_id} succeeds")
    outcomes = tuple(attempt.outcome for attempt in done.attempts)
    say(f"job {job_id} succeeded; its attempts: {', '.join(outcomes)}")
    return FirstRun(
        handlers=str(file),
        db=queue.path,
        job_id=job_id,
        killed_pid=victim,
        second_pid=other,
        recovery_ms=recovery_ms,
        outcomes=outcomes,
        result=done.result,
    )


REGISTERED: Final = "SELECT count(*) FROM worker"

PID: Final = "SELECT pid FROM worker WHERE id = :owner"


def _registered(queue: Queue) -> int:
    ((count,),) = queue.database.peek(REGISTERED)
    assert isinstance(count, int)
    return count


def _pid_of(queue: Queue, job: Job) -> int:
    ((pid,),) = queue.database.peek(PID, {"owner": job.owner})
    assert isinstance(pid, int)
    return pid


def _in_state(queue: Queue, job_id: int, state: str) -> Job | None:
    job = queue.get(job_id)
    return job if job is not None and job.state == state else None


def _is_again(queue: Queue, job_id: int) -> Job | None:
    job = queue.get(job_id)
    return job if job is not None and job.fence >= 2 else None


def _until(
    look: Callable[[], Found | None], workers: list[subprocess.Popen[bytes]], what: str
) -> Found:
    """Look until there is something, and return it.

    Raises:
        KillproofError: it did not come in time, or a worker could not start.
    """
    deadline = time.monotonic() + SECONDS_MAX
    while (found := look()) is None:
        if any((worker.poll() or 0) > 0 for worker in workers):
            raise KillproofError(f"a worker has left with an error before {what}: see above")
        if time.monotonic() > deadline:
            raise KillproofError(f"waited {SECONDS_MAX:g} s until {what}: is the machine busy?")
        time.sleep(LOOK_SECONDS)
    return found
