"""Operations of a target that takes no single steps: a producer's life, and a worker's.

Any target has these, in whatever language: its client puts a job in, and its worker process claims
jobs, runs their handlers and finishes them. Every file call from the beginning of the process
to the last one that changes a file is a point, in each process that the worker itself starts.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crash_context import prepare_audit
from killproof_chaos.engines.crash_process import (
    Budget,
    asking,
    environment_of,
    start,
    text_of,
    word_of,
)
from killproof_chaos.engines.crash_scenarios import NEXT, job
from killproof_chaos.engines.crash_session import is_definite
from killproof_chaos.recording import Recorder, open_recorder
from killproof_chaos.shim.calls import Kind
from killproof_chaos.workload import Job
from killproof_evidence import effect
from killproof_evidence.contract import TERMINAL
from killproof_evidence.store import Store
from killproof_evidence.target import Client, Definite

PRODUCE: Final = "produce"
WORK: Final = "work"
LIVES: Final = (PRODUCE, WORK)
#: Calls that change what is on the disk; a worker that only polls makes none of them.
CHANGES: Final = frozenset(
    {Kind.WRITE, Kind.TRUNCATE, Kind.ALLOCATE, Kind.RENAME, Kind.UNLINK, Kind.MKDIR, Kind.RMDIR,
     Kind.LINK, Kind.FSYNC, Kind.FDATASYNC}
)  # fmt: skip
#: Between two looks at a copy of the file.
LOOK_SECONDS: Final = 0.01
#: How long a worker gets for its jobs. Its command line starts an interpreter, which took more
#: than 6 s on two cores with sixteen others; only one that never finishes needs it all.
WORK_SECONDS: Final = 30.0
PASS_SECONDS_MAX: Final = 0.1
#: Leases that must be able to run out in that time, twice.
LEASES: Final = 3

FIRST: Final = job("first", sink="log")
SECOND: Final = job("second", sink="log")
#: Fails for good at once: a wait for a retry would be filled with polls, which no two runs share.
FAILING: Final = job("failing", sink="log", script=("permanent",))
TABLED: Final = job("tabled")
PRODUCED: Final = job("produced", sink="log")
LATER: Final = job("later", sink="log")
DOOMED: Final = job("doomed", script=("permanent",), sink="log")
KEYED: Final = job("keyed", key="once", sink="log")


def prepare(target: Any, store: Store, operation: str) -> int:
    """Make the template of a life: a queue with jobs of a producer that ended in order."""
    os.environ.update(environment_of(store))
    target.prepare(store.db)
    prepare_audit(target, store.db)
    jobs = [FIRST]
    if operation == WORK:
        jobs.append(FAILING if target.contract.promised("P13") else SECOND)
        # A row in the transaction of the ack: only who promises it makes it.
        jobs += [TABLED] if target.contract.promised("P6") == "transaction" else []
    with closing(Producer(target, store, "setup")) as producer:
        for one in jobs:
            producer.enqueue(one)
    return 0


class Producer:
    """A client of the target whose calls are on record."""

    def __init__(self, target: Any, store: Store, name: str) -> None:
        """Open the client."""
        self._recorder: Recorder = open_recorder(name, is_definite)
        self._client: Client = target.client(store.db)

    def enqueue(self, one: Job) -> None:
        """Put a job in; a client without options is given none."""
        options = one.options() if one.key is not None else {}
        self._recorder.call(
            "enqueue",
            lambda: self._client.enqueue(one.kind, one.payload(), **options),
            value=one.summary() if options else _without_options(one),
            told=lambda found: {"job": found},
        )

    def close(self) -> None:
        """Close the client, in order."""
        self._client.close()
        self._recorder.close()


def _without_options(one: Job) -> dict[str, Any]:
    """Return what the history says of a job whose options are the target's own."""
    return {name: value for name, value in one.summary().items()
            if name not in ("max_attempts", "priority")}  # fmt: skip


def produce(target: Any, store: Store, *, also_next: bool) -> dict[str, str]:
    """Be a producer of one job; return what it was told."""
    error: Exception | None = None
    producer: Producer | None = None
    try:
        producer = Producer(target, store, "child")
        producer.enqueue(PRODUCED)
    except Exception as raised:
        error = raised
    told = {"told": word_of(error), "error": text_of(error)}
    if not also_next:
        if producer is not None:
            producer.close()
        return told
    try:
        producer = producer or Producer(target, store, "child")
        producer.enqueue(NEXT)
    except Exception as raised:
        return told | {"next": word_of(raised), "next_error": text_of(raised)}
    return told | {"next": "ok", "next_error": ""}


def produce_again(target: Any, store: Store) -> None:
    """Be the producer that comes after a death: the queue takes jobs again.

    Raises:
        TargetFailed: it does not.
    """
    with asking("open"):
        producer = Producer(target, store, "recovery")
    with asking("enqueue"), closing(producer):
        if target.contract.promised("P12"):
            producer.enqueue(KEYED)
            with suppress(Definite):  # Who refuses the key of a living job has made no second one.
                producer.enqueue(KEYED)
        if target.contract.promised("P13"):
            producer.enqueue(DOOMED)
        producer.enqueue(LATER)


def work(target: Any, store: Store) -> int:
    """Be a worker of a target that can be one in this process."""
    os.environ["KILLPROOF_PROCESS"] = "child"
    target.work(store.db)
    return 0


def start_worker(
    target: Any, store: Store, name: str, *, argv: bool, beneath: Mapping[str, str] | None = None
) -> int:
    """Start a worker process; return its pid.

    Args:
        target: the queue.
        store: of the point.
        name: of its history, where it writes one.
        argv: by its command line, as its users do, also where this process could be one.
        beneath: environment for the command line alone, such as the shim's.
    """
    variables = environment_of(store) | {"KILLPROOF_PROCESS": name}
    log = store.path / f"{name}.log"
    if not argv and callable(getattr(target, "work", None)):

        def body() -> int:
            os.environ.update(variables)
            target.work(store.db)
            return 0

        return start(body, log)
    command = target.worker_argv(store.db)
    environment = os.environ | dict(beneath or {}) | variables

    def become() -> int:
        os.setsid()  # So that all it starts can be killed with it.
        os.execvpe(command[0], command, environment | {effect.WORKER: str(os.getpid())})

    return start(become, log)


def kill_group(pid: int) -> None:
    """Kill a worker that was started by its command line, and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def has_work(target: Any, store: Store) -> Callable[[], bool]:
    """Return the question whether a job has not ended yet; it never touches the worker's files.

    It looks at a copy, which may be torn, and so believes only two looks that agree.
    """
    calm = 0

    def ask() -> bool:
        nonlocal calm
        calm = calm + 1 if _all_ended(target, store) else 0
        return calm < 2

    return ask


def _all_ended(target: Any, store: Store) -> bool:
    try:
        rows = look(target, store.db)
    except Exception:
        # Whatever a torn copy does to the target's own reader: the next look tells.
        return False
    return all(row.state in TERMINAL for row in rows)


def look(target: Any, place: Path) -> list[Any]:
    """Return the target's jobs as a copy of its files tells them."""
    with tempfile.TemporaryDirectory(prefix="look-", dir=place.parent) as folder:
        copy = Path(folder, "db")
        shutil.copytree(place, copy, ignore_dangling_symlinks=True)
        return list(target.snapshot(copy))


def budget(target: Any) -> Budget:
    """Return the time that a worker gets for its jobs: leases may have to run out first."""
    lease_ms = target.contract.parameters.get("lease_ms", 0)
    return Budget(max(WORK_SECONDS, LEASES * lease_ms / 1_000), PASS_SECONDS_MAX)


def is_dead(pid: int) -> bool:
    """Say whether a process that is nobody's child here runs no longer."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    return state.rpartition(")")[2].split()[0] in ("Z", "X")


def wait_until_dead(pid: int, seconds: float) -> bool:
    """Wait until such a process is dead; say whether it is."""
    deadline = time.monotonic() + seconds
    while not is_dead(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
