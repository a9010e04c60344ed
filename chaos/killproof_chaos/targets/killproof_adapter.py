"""Killproof itself as a target, at level 3: audit mapping, injected host and named sync points.

The worker is `killproof.worker.Worker` as anybody would run it, on a queue whose calls are
recorded, with handlers that play the scripts of the jobs. Only numbers differ from production:
short leases, quick retries, and a checkpoint every few commits, so that all of it happens within
seconds.
"""

import json
import logging
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from killproof import (
    Host,
    KillproofError,
    Queue,
    backup,
    maintenance,
    operations,
    workflow_tables,
)
from killproof.core import model, sync
from killproof.core.host import KernelLocks
from killproof.limits import Limits
from killproof.payload_files import Folder, PayloadLost
from killproof.payloads import Payloads, Reference
from killproof.schedule import KEY_PREFIX, Schedules
from killproof.spilling import MARK
from killproof.worker import Handlers, Worker
from killproof.workflow import Workflow, Workflows
from killproof_chaos import hook, mix, phases
from killproof_chaos.plan import DISPATCHER
from killproof_chaos.recording import Recorder, open_recorder, process_name
from killproof_chaos.targets.hosted import HostedQueue
from killproof_chaos.targets.killproof_played import named, play
from killproof_chaos.targets.killproof_recorded import CHECKPOINT_COMMITS, RecordedQueue
from killproof_chaos.workload import CLUMP, KINDS
from killproof_evidence.contract import DELETED, START, TERMINAL, Contract
from killproof_evidence.target import AuditMapping, Definite, Indefinite, JobRow, RunMapping

if TYPE_CHECKING:
    from killproof_chaos.engines.crash_session import Session

LEASE_SECONDS: Final = 0.5
RETRY: Final = "fixed:0.05"
#: Longer than every sleep of the workload, shorter than its hang.
TIMEOUT_SECONDS: Final = 1.2
GRACE_SECONDS: Final = 0.25
#: Below the folder of the queue.
BACKUPS: Final = "backups"

#: As in the core; and what has ended may be pruned.
_MOVES: Final = {(old or START, new) for old, new in model.EDGES} | {
    (state, DELETED) for state in TERMINAL
}
EDGES: Final = {
    old: tuple(sorted(new for before, new in _MOVES if before == old))
    for old in sorted({before for before, _ in _MOVES})
}
CONTRACT: Final = Contract(
    promises={
        **{f"P{number}": True for number in range(2, 22)},
        "P1": "power",
        "P6": "transaction",
        "P22": True,
        "P23": True,
        "P24": True,
    },
    parameters={
        "lease_ms": round(LEASE_SECONDS * 1_000),
        "max_attempts": 5,
        "retry": RETRY,
        "crash_first": "immediate",
        "grace_ms": 5_000,
        "recovery_ms": 5_000,
        "busy_ms": 30_000,
        # The pools of a dispatcher fill with its first jobs: with 32 threads for coroutines at
        # most, as many for handlers, and one for each task of its own.
        "threads": 80,
        # And each thread opens its own when it first needs them: 80 were the most of ten runs.
        "open_files": 256,
    },
    edges=EDGES,
)
#: What `killproof chaos run` sets: a mutex, a number, and a rate that bursts of jobs go beyond.
LIMITS: Final[Mapping[str, Mapping[str, Any]]] = {
    "archive": {"kinds": ["backup"], "running": 1},
    "press": {"kinds": ["report", "import"], "running": 2},
    "shop": {"kinds": [CLUMP], "rate": 3.0, "burst": 3},
}
#: A schedule, and the kind of its jobs. They take long enough for a kill; and between two slots the
#: queue has time to be seen at rest.
TICK: Final = "tick"
TICK_MS: Final = 700
TICK_PAYLOAD: Final = {"id": TICK, "script": ["sleep:0.25"], "sink": "log"}
#: Bytes from which on a payload is in a file: far less than in production.
SPILL_BYTES: Final = 4_096
#: The name of all workflows; what tells them apart is their graph.
WORKFLOW: Final = "chaos"
#: Promotion and the reaping that a claim does share the claim's transaction.
NOT_OFFERED: Final = frozenset({"promote.locked", "promote.committed", "promote.synced"})


def _is_definite(error: BaseException) -> bool:
    return isinstance(error, KillproofError) and error.definite


class KillproofTarget:
    """The queue that this harness was made for."""

    name = "killproof"
    broken = False
    contract = CONTRACT
    sync_points = frozenset(phases.PHASES) - NOT_OFFERED
    database = "queue.db"
    address = ""  #: by which `targets.load` has found it, where that is not its name
    capabilities = frozenset({"backup", "dispatcher", "limits", "schedule", "spill", "workflow"})
    mix_parameters: Mapping[str, Mapping[str, Any]] = {
        "limits": {"limits": LIMITS},
        "schedule": {"schedules": {TICK: {"every_ms": TICK_MS, "prefix": f"{KEY_PREFIX}{TICK}:"}}},
    }
    #: `open` gives a whole `killproof.Queue` on any host: engine `disk` chooses the clock of the
    #: boot after a cut, and holds jobs as a worker does not.
    hosts_queue = True
    audit: AuditMapping | None = AuditMapping(
        table="job",
        id="id",
        state="state",
        fence="fence",
        attempts="deliveries",
        forgiven="forgiven",
        priority="priority",
        due_ms="due_ms",
        key="key",
        kind="kind",
        # A large payload is in a file; such a job has its name for a key as well.
        payload=f"CASE WHEN NEW.key LIKE '{KEY_PREFIX}%' OR NEW.payload LIKE '{{\"{MARK}\":%'"
        " THEN json_object('id', NEW.key) ELSE NEW.payload END",
    )

    #: What a worker works on.
    recorded: type[RecordedQueue] = RecordedQueue
    runs = RunMapping(table="workflow_run", id="id", state="state", name="key")

    def prepare(self, place: Path) -> None:
        """Make an empty queue."""
        with Queue(place / self.database, host=_host()) as queue:
            set_up(queue, mix.read(place))

    def client(self, place: Path) -> "KillproofClient":
        """Open the queue for a producer."""
        return KillproofClient(self.opened(place), place / BACKUPS)

    def opened(self, place: Path) -> Queue:
        """Open the queue as its users do."""
        return Queue(place / self.database, host=_host())

    def open(self, place: Path, host: Host) -> Queue:
        """Open the queue on an injected host."""
        return HostedQueue(place / self.database, host, lease=LEASE_SECONDS, retry=RETRY)

    def announce(self, hook: Callable[[str], None] | None) -> None:
        """Tell this function of every sync point that this process passes; None tells nobody."""
        sync.hook = hook

    def memory(self, client: Queue) -> tuple[object, ...]:
        """Return the objects in whose attributes a client keeps what it remembers."""
        return client, client.database

    @property
    def step_operations(self) -> frozenset[str]:
        """The operations that the engine `crash` can kill in."""
        from killproof_chaos.engines.crash_killproof import OPERATIONS

        return OPERATIONS

    def steps(self, place: Path, recorder: Recorder) -> "Session":
        """Open the queue for the engine `crash`, which takes one step at a time."""
        from killproof_chaos.engines.crash_killproof import KillproofSession

        return KillproofSession(place / self.database, recorder)

    def worker_argv(self, place: Path) -> list[str]:
        """Return the command line of a worker."""
        me = self.address or self.name
        return [sys.executable, "-m", "killproof_chaos.targets.worker", me, str(place)]

    def work(self, place: Path) -> None:
        """Be a worker until SIGTERM."""
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
        sync.hook = hook.hook
        recorder = open_recorder(process_name(), _is_definite)
        if process_name().startswith(DISPATCHER):
            from killproof_chaos.targets import killproof_dispatcher

            killproof_dispatcher.work(place / self.database, recorder, kinds_of(place), _host())
            return
        queue = self.recorded(place / self.database, recorder, host=_host())
        handlers = Handlers()
        for kind in kinds_of(place):
            handlers(kind, timeout=TIMEOUT_SECONDS)(play)
        worker = Worker(queue, handlers, grace=GRACE_SECONDS)
        # `run` handles signals from its beginning; ready is said before, and a stop may be early.
        signal.signal(signal.SIGTERM, lambda _signal, _frame: worker.stop())
        hook.ready()
        worker.run()
        queue.close()
        recorder.close()

    def backup_problems(self, copy: Path) -> list[str]:
        """Say which large payloads are missing beside a copy, or are others than its jobs say."""
        folder, found = Folder(str(copy)), []
        with closing(sqlite3.connect(copy)) as db:
            for number, text in db.execute("SELECT id, payload FROM job ORDER BY id"):
                reference = Reference.of(json.loads(text))
                try:
                    if reference is not None:
                        folder.read(reference.sha256, reference.bytes)
                except PayloadLost as error:
                    found.append(f"payload of job {number}: {error}")
        return found

    def stopped(self, place: Path) -> bool:
        """Say whether a process has left the marker that stops all others."""
        return (place / f"{self.database}.failed").exists()

    def repair(self, place: Path) -> None:
        """Do what `killproof doctor --repair` does; nothing without the marker."""
        maintenance.repair(place / self.database)

    def snapshot(self, place: Path) -> Iterable[JobRow]:
        """Read every job with its ended deliveries."""
        with closing(sqlite3.connect(place / self.database)) as db:
            yield from self.rows(db)

    def rows(self, db: sqlite3.Connection) -> Iterable[JobRow]:
        """Read the same through a connection that is open."""
        ended: dict[int, list[dict[str, Any]]] = {}
        for job, fence, outcome, error in db.execute(ATTEMPTS):
            facts = {"fence": fence, "outcome": outcome, "error": error}
            ended.setdefault(job, []).append(facts)
        folder = Folder(str(db.execute("PRAGMA database_list").fetchone()[2]))
        cursor = db.execute(JOBS)
        names = [column[0] for column in cursor.description]
        for row in cursor:
            values = dict(zip(names, row, strict=True))
            payload = named(_read(folder, json.loads(values["payload"])), values["key"])
            yield JobRow(
                **{**values, "payload": payload},
                history=tuple(ended.get(values["id"], ())),
            )


def _read(folder: Folder, payload: Any) -> Any:
    """Return a payload as it was put in; what is lost stays a reference, and P13 sees it."""
    reference = Reference.of(payload)
    if reference is None:
        return payload
    try:
        return json.loads(folder.read(reference.sha256, reference.bytes))
    except PayloadLost:
        return payload


def set_up(queue: Queue, asked: Set[str]) -> None:
    """Make what the run asks of the file before anybody works on it."""
    if "limits" in asked:
        limits = Limits(queue)
        for name, rules in LIMITS.items():
            limits.set(name, **rules)
    if "workflow" in asked:
        with queue.transaction() as tx:
            workflow_tables.ensure(tx)
    if "schedule" in asked:
        # A whole multiple of the interval: so nobody has to be told when it was made.
        first_ms = (time.time_ns() // 1_000_000 // TICK_MS + 1) * TICK_MS
        Schedules(queue).every(
            TICK,
            TICK_MS / 1_000,
            TICK,
            TICK_PAYLOAD,
            first=first_ms / 1_000,
            missed="all",
            lease=LEASE_SECONDS,
            retry=RETRY,
        )


class VouchedLocks(KernelLocks):
    """The kernel's locks anywhere: an engine that cuts no power keeps its files in memory."""

    def refusal(self, path: str, durability: str) -> str | None:
        """Vouch for it."""


def _host() -> Host | None:
    """Return the host of a process; `$KILLPROOF_CHAOS_MEMORY` says that files lie in memory."""
    return Host(lock=VouchedLocks()) if os.environ.get("KILLPROOF_CHAOS_MEMORY") else None


ATTEMPTS: Final = """
    SELECT job_id, fence, outcome, error_class || ': ' || error_message AS error
      FROM attempt ORDER BY job_id, fence"""
JOBS: Final = """
    SELECT id, kind, state, deliveries AS attempts, payload, forgiven, max_attempts, priority, key,
           fence, due_ms, error_class || ': ' || error_message AS error
      FROM job ORDER BY id"""


def kinds_of(place: Path) -> Sequence[str]:
    """Return the kinds that the run's jobs have: `kinds.json` beside the queue, if there is one."""
    path = place / "kinds.json"
    kinds = json.loads(path.read_text(encoding="utf-8")) if path.exists() else [*KINDS]
    return [*kinds, TICK] if "schedule" in mix.read(place) else kinds


class KillproofClient:
    """What a producer does: enqueue, cancel, replay, and reap as a maintenance job would."""

    def __init__(self, queue: Queue, backups: Path) -> None:
        """Wrap the queue's own calls; `backups` is the folder of its copies."""
        sync.hook = hook.hook
        queue.database.checkpoint_commits = CHECKPOINT_COMMITS
        self._queue = queue
        self._backups = backups
        self._payloads = Payloads(queue, threshold=SPILL_BYTES)

    def enqueue(self, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Put a job in.

        Raises:
            Definite, Indefinite: as the queue's own error says of itself.
        """
        named: dict[str, Any] = options | {"lease": LEASE_SECONDS, "retry": RETRY}
        with _translated():
            if named.pop("spill", False):
                return self._payloads.enqueue(kind, payload, **named)
            return self._queue.enqueue(kind, payload, **named)

    def collect(self) -> int:
        """Remove the files of payloads that no job needs; return how many."""
        with _translated():
            return self._payloads.collect().files

    def cancel(self, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Cancel a job; False when it has ended."""
        with _translated():
            return self._queue.cancel(int(id))

    def replay(self, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Make a dead job available again; False when it is not dead."""
        with _translated():
            return bool(operations.replay(self._queue, [int(id)]).moved)

    def reap(self) -> int:
        """Take back the leases of dead workers."""
        with _translated():
            return self._queue.reap()

    def start(self, run: str, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Start a run with all its steps in one transaction."""
        workflow = Workflow(WORKFLOW)
        for step in steps:
            options = {k: v for k, v in step.items() if k not in ("id", "payload", "needs")}
            workflow.add(
                _step_of(step["id"]),
                payload=step["payload"],
                needs=[_step_of(need) for need in step["needs"]],
                **options | {"lease": LEASE_SECONDS, "retry": RETRY},
            )
        with _translated():
            number = Workflows(self._queue).start(workflow, key=run)
            rows = self._queue.database.peek(STEPS, {"run": number})
        jobs = {f"{run}.{cast(str, name)}": job for name, job in rows}
        return {"run": number, "jobs": jobs}

    def backup(self) -> str:
        """Copy the file while it is open; return the path of the copy below the queue's folder."""
        self._backups.mkdir(exist_ok=True)
        with _translated():
            made = backup.backup(self._queue, self._backups)
        return f"{self._backups.name}/{Path(made.path).name}"

    def close(self) -> None:
        """Close the queue."""
        self._queue.close()


STEPS: Final = "SELECT name, job_id FROM workflow_step WHERE run_id = :run"


def _step_of(name: str) -> str:
    """Return the step's own name; the harness's begins with that of the run."""
    return name.rpartition(".")[2]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except KillproofError as error:
        text = f"{type(error).__name__}: {error}"
        raise (Definite if error.definite else Indefinite)(text) from error
