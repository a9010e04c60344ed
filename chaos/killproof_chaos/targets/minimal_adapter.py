"""`minimal` and its broken relatives as targets: client, worker, snapshot, audit mapping."""

import json
import random
import sqlite3
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from killproof_chaos import hook
from killproof_chaos.engines.roles import Stop, stop_on_sigterm
from killproof_chaos.gallery import Fault
from killproof_chaos.recording import Recorder, open_recorder, process_name
from killproof_chaos.targets.hosted import HostedMinimal
from killproof_chaos.targets.minimal_queue import Lease, LeaseLost, MinimalQueue
from killproof_evidence import effect
from killproof_evidence.contract import Contract
from killproof_evidence.target import AuditMapping, Definite, Host, Indefinite, JobRow

if TYPE_CHECKING:
    from killproof_chaos.engines.crash_session import Session

#: Seconds between two looks of an idle worker; a queue of one file has nobody to ring a bell.
IDLE_SECONDS: Final = 0.04
#: The lease is 500 ms: two extensions may fail before it ends.
HEARTBEAT_SECONDS: Final = 0.15

CONTRACT: Final = Contract(
    promises={
        # Not replay, cancel, limits, workflows, backups; nor P19, which few runs can show.
        **{f"P{number}": True for number in range(2, 22) if number not in (13, 15, 19)},
        "P1": "power",
        "P6": "transaction",
    },
    parameters={
        "lease_ms": MinimalQueue.LEASE_NS // 1_000_000,
        "max_attempts": 5,
        "retry": f"fixed:{MinimalQueue.BACKOFF_MS / 1_000}",
        "crash_later": "immediate",  # Who finds a lease that ran out offers the job at once.
        "grace_ms": 10_000,
        "recovery_ms": 10_000,
        "busy_ms": 30_000,
        "drain_ms": 5_000,
        "open_files": 64,  # Two connections, with three files each, and what a process has anyway.
    },
    edges={
        "start": ("scheduled", "available"),
        "scheduled": ("available",),
        "available": ("leased",),
        "leased": ("succeeded", "scheduled", "available", "dead"),
    },
)
SYNC_POINTS: Final = frozenset(
    f"{operation}.{moment}"
    for operation in ("enqueue", "claim", "extend", "ack", "nack")
    for moment in ("begin", "locked", "written", "committed")
) | {"handler.start", "handler.effect", "handler.end", "worker.idle", "worker.stop"}


class MinimalTarget:
    """A queue of `minimal`'s make, at level 1 with sync points of its own."""

    database = "queue.db"
    address = ""  #: by which `targets.load` has found it, where that is not its name
    audit: AuditMapping | None = AuditMapping(
        table="job",
        id="id",
        state="state",
        fence="fence",
        attempts="attempts",
        priority="priority",
        due_ms="due_ms",
        key="key",
        kind="kind",
        payload="payload",
    )

    def __init__(
        self,
        name: str,
        queue: type[MinimalQueue],
        fault: Fault | None = None,
        worker: type["MinimalWorker"] | None = None,
        promises: Mapping[str, bool | str] = MappingProxyType({}),
        parameters: Mapping[str, Any] = MappingProxyType({}),
        edges: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        """Judge `queue` under this name; `fault` says what is wrong with it on purpose.

        Args:
            name: under which it is found.
            queue: its own code.
            fault: of a broken one.
            worker: what its processes do, where it is this that is broken.
            promises: of the contract, besides those of the control.
            parameters: of the contract, where it declares other bounds than the control.
            edges: of the contract, besides those of the control.
        """
        self.sync_points = SYNC_POINTS - (fault.unreached if fault is not None else frozenset())
        self.name = name
        self.broken = fault is not None
        self.fault = fault
        self._queue = queue
        self._worker = worker
        self.contract = replace(
            CONTRACT,
            promises={**CONTRACT.promises, **promises},
            parameters={**CONTRACT.parameters, **parameters},
            edges={**CONTRACT.edges, **edges},
        )

    def prepare(self, place: Path) -> None:
        """Make an empty queue."""
        with closing(self._queue(place / self.database).db):
            pass

    def client(self, place: Path) -> "MinimalClient":
        """Open the queue for a producer."""
        return MinimalClient(self._queue(place / self.database, sync=hook.hook))

    def open(self, place: Path, host: Host) -> HostedMinimal:
        """Open the queue on an injected host."""
        return HostedMinimal(self._queue, place / self.database, host)

    def memory(self, client: HostedMinimal) -> tuple[object, ...]:
        """Return the objects in whose attributes a client keeps what it remembers."""
        return client.memory()

    @property
    def step_operations(self) -> frozenset[str]:
        """The operations that the engine `crash` can kill in."""
        from killproof_chaos.engines.crash_minimal import OPERATIONS

        return OPERATIONS

    def steps(self, place: Path, recorder: Recorder) -> "Session":
        """Open the queue for the engine `crash`, which takes one step at a time."""
        from killproof_chaos.engines.crash_minimal import MinimalSession

        return MinimalSession(self._queue, place / self.database, recorder)

    def worker_argv(self, place: Path) -> list[str]:
        """Return the command line of a worker."""
        me = self.address or self.name
        return [sys.executable, "-m", "killproof_chaos.targets.worker", me, str(place)]

    def work(self, place: Path) -> None:
        """Be a worker until SIGTERM."""
        (self._worker or MinimalWorker)(self._queue, place / self.database).run()

    def snapshot(self, place: Path) -> Iterable[JobRow]:
        """Read every job."""
        with closing(sqlite3.connect(place / self.database)) as db:
            yield from self.rows(db)

    def rows(self, db: sqlite3.Connection) -> Iterable[JobRow]:
        """Read the same through a connection that is open."""
        columns = "id, kind, state, attempts, payload, error, max_attempts, priority, key, fence"
        cursor = db.execute(f"SELECT {columns}, due_ms FROM job ORDER BY id")  # noqa: S608 - fixed
        names = [column[0] for column in cursor.description]
        for row in cursor:
            values = dict(zip(names, row, strict=True))
            yield JobRow(**{**values, "payload": json.loads(values["payload"])})


class MinimalClient:
    """What a producer may do: enqueue."""

    def __init__(self, queue: MinimalQueue) -> None:
        """Wrap the queue's own calls."""
        self._queue = queue

    def enqueue(self, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Put a job in; the delay comes in seconds.

        Raises:
            Indefinite: SQLite failed, perhaps at the commit.
        """
        named = dict(options)
        named["delay_ms"] = round(named.pop("delay", 0) * 1_000)
        try:
            return self._queue.enqueue(kind, payload, **named)
        except sqlite3.Error as error:
            raise Indefinite(f"{type(error).__name__}: {error}") from error

    def cancel(self, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Refuse: this queue cannot."""
        raise Definite(f"job {id}: minimal has no cancel")

    def replay(self, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Refuse: this queue cannot."""
        raise Definite(f"job {id}: minimal has no replay")

    def close(self) -> None:
        """Close the connection."""
        self._queue.db.close()


class MinimalWorker:
    """Claims, plays the script, acks or nacks; a second thread keeps the lease alive."""

    idle_seconds = IDLE_SECONDS

    def __init__(self, queue: type[MinimalQueue], path: Path) -> None:
        """Work on the queue at `path`, and record every call."""
        self._make = queue
        self._path = path
        self._recorder = open_recorder(process_name(), lambda error: isinstance(error, LeaseLost))
        self._lease: Lease | None = None

    def run(self) -> None:
        """Work until SIGTERM, then finish the job in hand."""
        stopped = self.stop()
        queue = self._make(self._path, sync=hook.hook)
        beat = threading.Thread(target=self._extend, args=(stopped,), name="heartbeat", daemon=True)
        beat.start()
        hook.ready()
        while not stopped.is_set():
            lease = self._recorder.call("claim", queue.claim, told=_claimed)
            if lease is None:
                hook.hook("worker.idle")
                stopped.wait(self.idle_seconds * random.uniform(0.5, 1.5))
                continue
            self._lease = lease
            self._handle(queue, lease)
            self._lease = None
        hook.hook("worker.stop")
        beat.join()
        queue.db.close()
        self._recorder.close()

    def stop(self) -> Stop:
        """Return the event after which no further job is taken."""
        return stop_on_sigterm()

    def _extend(self, stopped: Stop) -> None:
        queue = self._make(self._path, sync=hook.hook)
        while not stopped.wait(HEARTBEAT_SECONDS):
            lease = self._lease
            if lease is not None:
                settle(self._recorder, "extend", lambda held=lease: queue.extend(held), lease)
        queue.db.close()

    def _handle(self, queue: MinimalQueue, lease: Lease) -> None:
        try:
            result = effect.run(
                lease.payload,
                job=lease.id,
                attempt=lease.attempt,
                fence=lease.fence,
                sync=hook.hook,
            )
            json.dumps(result)
        except Exception as error:
            permanent, text = isinstance(error, effect.ScriptedPermanent), str(error)
            value = {"permanent": True} if permanent else None
            settle(self._recorder, "nack", lambda: queue.nack(lease, text, permanent), lease, value)
            return
        also = []
        if lease.payload.get("sink") == "table":
            values = (lease.payload["id"], lease.attempt, lease.fence)
            also.append(("INSERT INTO chaos_effect (job, attempt, fence) VALUES (?, ?, ?)", values))
        settle(self._recorder, "ack", lambda: queue.ack(lease, *also), lease)


def settle(recorder: Recorder, f: str, function: Any, lease: Lease, value: object = None) -> None:
    """Tell the queue, and take its refusal for an answer: somebody else has the job."""
    try:
        recorder.call(f, function, job=lease.id, fence=lease.fence, told=lambda _: {"value": value})
    except LeaseLost:
        return


def _claimed(lease: Lease | None) -> dict[str, Any]:
    if lease is None:
        return {}
    value = {"id": lease.payload["id"], "attempt": lease.attempt}
    return {"job": lease.id, "fence": lease.fence, "value": value}
