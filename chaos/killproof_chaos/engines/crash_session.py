"""One step of a queue at a time, on record: what the engine `crash` asks of a target.

A `Session` is a process's whole view of a queue: a connection, a history, and the calls by name. A
target that has `steps(place, recorder)` gives one; the sessions of the built-in targets are here.
What a queue does by chance or by the clock is fixed, so that the n-th file call of an operation is
the same call in every run.
"""

import os
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from killproof import Host, KillproofError, maintenance, operations
from killproof.core.host import KernelLocks
from killproof_chaos.recording import Recorder
from killproof_chaos.targets.killproof_adapter import LEASE_SECONDS, RETRY, RecordedQueue
from killproof_chaos.targets.minimal_queue import Lease as MinimalLease
from killproof_chaos.targets.minimal_queue import LeaseLost, MinimalQueue
from killproof_chaos.workload import Job
from killproof_evidence import effect
from killproof_evidence.history import HistoryWriter
from killproof_evidence.store import Store
from killproof_evidence.target import Definite, Indefinite

#: No commit of these runs is followed by a checkpoint, but where the operation is one.
CHECKPOINT_NEVER: Final = 10**12
#: The lease of a holder that is going to be killed: a queue that waits for leases need not wait.
BRIEF_NS: Final = 20_000_000
SNOOZE_SECONDS: Final = 0.02
#: What killproof gives a job of a batch, which takes no options.
DEFAULTS: Final = {"lease_ms": 60_000, "retry": "article"}
RECORD_EFFECT: Final = "INSERT INTO chaos_effect (job, attempt, fence) VALUES (?, ?, ?)"


class Session(Protocol):
    """A queue in one process. A call that the target lacks is not among its `operations`."""

    operations: frozenset[str]
    reaps: bool  #: taking back is a call of its own, which takes nothing out
    ids: dict[str, Any]  #: the harness's id -> the queue's, of what was enqueued

    def brief(self) -> None:
        """Make the leases short that are taken from now on, where only their end frees a job."""

    def enqueue(self, job: Job) -> None: ...  # noqa: D102
    def enqueue_many(self, jobs: Sequence[Job]) -> None: ...  # noqa: D102
    def claim(self) -> Any: ...  # noqa: D102
    def extend(self, lease: Any) -> None: ...  # noqa: D102
    def ack(self, lease: Any) -> None: ...  # noqa: D102
    def nack(self, lease: Any, error: str, *, permanent: bool = False) -> None: ...  # noqa: D102
    def release(self, lease: Any) -> None: ...  # noqa: D102
    def snooze(self, lease: Any) -> None: ...  # noqa: D102
    def ack_and_claim(self, lease: Any) -> None: ...  # noqa: D102
    def completing(self, lease: Any) -> None: ...  # noqa: D102
    def reap(self) -> int: ...  # noqa: D102
    def cancel(self, name: str) -> bool: ...  # noqa: D102
    def replay(self, name: str) -> bool: ...  # noqa: D102
    def checkpoint(self, job: Job) -> None: ...  # noqa: D102

    def play(self, lease: Any) -> Exception | None:
        """Run the handler of a leased job; return how it failed."""

    def sink(self, lease: Any) -> str:
        """Return where the leased job's effect goes."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read through the queue's own connection."""

    def close(self) -> None:
        """Close the queue."""


def is_expected(error: BaseException) -> bool:
    """Say whether a caller may meet this error: the queue's own, not its driver's."""
    return isinstance(error, KillproofError | Definite | Indefinite | LeaseLost | ValueError)


def is_definite(error: BaseException) -> bool:
    """Say whether the error says that nothing was changed."""
    if isinstance(error, KillproofError):
        return error.definite
    return isinstance(error, Definite | LeaseLost | ValueError)


def repair(database: Path) -> bool:
    """Do what the error of a stopped file tells its owner to do; False: there was no need."""
    if not database.with_name(f"{database.name}.failed").exists():
        return False
    maintenance.repair(database)
    return True


class VouchedLocks(KernelLocks):
    """The kernel's locks, on a file system in memory: these runs cut no power, they kill."""

    def refusal(self, path: str, durability: str) -> str | None:
        """Vouch for any file system."""


class KillproofSession:
    """Killproof, through the queue object that a worker uses."""

    reaps = True
    operations: frozenset[str] = frozenset(
        {
            *("open_and_migrate", "open", "enqueue", "enqueue_many", "claim", "extend", "ack"),
            *("nack", "release", "snooze", "ack_and_claim", "completing", "reap", "promote"),
            *("cancel", "replay", "checkpoint", "close", "late_ack"),
        }
    )

    def __init__(self, path: Path, recorder: Recorder) -> None:
        """Open the queue at `path`."""
        host = Host(lock=VouchedLocks(), random=random.Random(0))
        self.queue = RecordedQueue(path, recorder, host=host)
        self.queue.database.checkpoint_commits = CHECKPOINT_NEVER
        self.ids: dict[str, Any] = {}
        self._recorder = recorder

    def brief(self) -> None:
        """Do nothing: a death is seen in the kernel, whatever the lease."""

    def enqueue(self, job: Job) -> None:
        """Put a job in."""
        self.ids[job.id] = self._recorder.call(
            "enqueue",
            lambda: self.queue.enqueue(
                job.kind, job.payload(), lease=LEASE_SECONDS, retry=RETRY, **job.options()
            ),
            value=job.summary(),
            told=lambda found: {"job": found},
        )

    def enqueue_many(self, jobs: Sequence[Job]) -> None:
        """Put several jobs in, all or none; the history knows the batch by its jobs."""
        with _together([job.summary() | DEFAULTS for job in jobs]) as numbers:
            numbers += self.queue.enqueue_many([(job.kind, job.payload()) for job in jobs])

    def claim(self) -> Any:
        """Take the first job."""
        return self.queue.claim()

    def extend(self, lease: Any) -> None:
        """Prolong the lease."""
        self.queue.extend(lease)

    def ack(self, lease: Any) -> None:
        """Finish the job."""
        self.queue.ack(lease)

    def nack(self, lease: Any, error: str, *, permanent: bool = False) -> None:
        """Record a failed attempt."""
        self.queue.nack(lease, error, permanent=permanent)

    def release(self, lease: Any) -> None:
        """Give the job back."""
        self.queue.release(lease)

    def snooze(self, lease: Any) -> None:
        """Give the job back for later."""
        self.queue.snooze(lease, SNOOZE_SECONDS)

    def ack_and_claim(self, lease: Any) -> None:
        """Finish the job and take the next."""
        self.queue.ack_and_claim(lease)

    def completing(self, lease: Any) -> None:
        """Write the effect's row and the ack in one transaction."""
        with self.queue.completing(lease) as tx:
            values = (str(lease.job.payload["id"]), lease.job.attempt, lease.fence)
            tx.execute(RECORD_EFFECT, values)

    def reap(self) -> int:
        """Take back the leases of dead workers; return how many."""
        return self._recorder.call("reap", self.queue.reap, told=lambda found: {"value": found})

    def cancel(self, name: str) -> bool:
        """Call a job off; False: it is too late."""
        number = self.ids[name]
        return self._recorder.call(
            "cancel",
            lambda: self.queue.cancel(number),
            job=number,
            told=lambda done: {"value": done},
        )

    def replay(self, name: str) -> bool:
        """Give a dead job its attempts again; False: it is not dead."""
        number = self.ids[name]
        return self._recorder.call(
            "replay",
            lambda: bool(operations.replay(self.queue, [number]).moved),
            job=number,
            told=lambda done: {"value": done},
        )

    def checkpoint(self, job: Job) -> None:
        """Commit once with the checkpoint that every so many commits are followed by."""
        self.queue.database.checkpoint_commits = 1
        try:
            self.enqueue(job)
        finally:
            self.queue.database.checkpoint_commits = CHECKPOINT_NEVER

    def play(self, lease: Any) -> Exception | None:
        """Run the handler."""
        return _play(lease.job.payload, lease.job.id, lease.job.attempt, lease.fence)

    def sink(self, lease: Any) -> str:
        """Return where the effect goes."""
        return str(lease.job.payload.get("sink", "log"))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read without the write lock."""
        return list(self.queue.database.peek(sql))

    def close(self) -> None:
        """Close the queue; what is still held is released."""
        self.queue.close()


class MinimalSession:
    """A queue of `minimal`'s make; its errors are SQLite's, which its adapter calls indefinite."""

    reaps = False
    operations: frozenset[str] = frozenset(
        {
            *("open_and_migrate", "open", "enqueue", "claim", "extend", "ack", "nack"),
            *("completing", "reap", "promote", "close", "late_ack"),
        }
    )

    def __init__(self, queue: type[MinimalQueue], path: Path, recorder: Recorder) -> None:
        """Open the queue at `path`."""
        with _translated():
            self.queue = queue(path)
        self.ids: dict[str, Any] = {}
        self._recorder = recorder

    def brief(self) -> None:
        """Make the leases short: nothing else tells of a death."""
        self.queue.LEASE_NS = BRIEF_NS

    def enqueue(self, job: Job) -> None:
        """Put a job in."""

        def put() -> int:
            with _translated():
                return self.queue.enqueue(
                    job.kind, job.payload(), job.priority, job.delay_ms, job.key, job.max_attempts
                )

        self.ids[job.id] = self._recorder.call(
            "enqueue", put, value=job.summary(), told=lambda found: {"job": found}
        )

    def claim(self) -> Any:
        """Take the first job."""

        def told(lease: MinimalLease | None) -> dict[str, Any]:
            if lease is None:
                return {}
            value = {"id": lease.payload["id"], "attempt": lease.attempt}
            return {"job": lease.id, "fence": lease.fence, "value": value}

        return self._recorder.call("claim", lambda: self._do("claim"), told=told)

    def extend(self, lease: Any) -> None:
        """Prolong the lease."""
        self._settle("extend", lease, lease)

    def ack(self, lease: Any) -> None:
        """Finish the job."""
        self._settle("ack", lease, lease)

    def nack(self, lease: Any, error: str, *, permanent: bool = False) -> None:
        """Record a failed attempt."""
        value = {"permanent": True} if permanent else None
        self._settle("nack", lease, lease, error, permanent, value=value)

    def completing(self, lease: Any) -> None:
        """Write the effect's row with the ack."""
        values = (lease.payload["id"], lease.attempt, lease.fence)
        self._settle("ack", lease, lease, (RECORD_EFFECT, values))

    def play(self, lease: Any) -> Exception | None:
        """Run the handler."""
        return _play(lease.payload, lease.id, lease.attempt, lease.fence)

    def sink(self, lease: Any) -> str:
        """Return where the effect goes."""
        return str(lease.payload.get("sink", "log"))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read."""
        with _translated():
            return self.queue.db.execute(sql).fetchall()

    def close(self) -> None:
        """Close the connection."""
        self.queue.db.close()

    def reap(self) -> int:
        """Claim: a claim takes back what ran out, there is no other way."""
        return int(self.claim() is not None)

    def enqueue_many(self, jobs: Sequence[Job]) -> None:
        """Refuse: this queue cannot."""
        raise Definite(f"{len(jobs)} jobs: minimal has no enqueue_many")

    def release(self, lease: Any) -> None:
        """Refuse: this queue cannot."""
        raise Definite(f"job {lease.id}: minimal has no release")

    def snooze(self, lease: Any) -> None:
        """Refuse: this queue cannot."""
        raise Definite(f"job {lease.id}: minimal has no snooze")

    def ack_and_claim(self, lease: Any) -> None:
        """Refuse: this queue cannot."""
        raise Definite(f"job {lease.id}: minimal has no ack_and_claim")

    def cancel(self, name: str) -> bool:
        """Refuse: this queue cannot."""
        raise Definite(f"job {name}: minimal has no cancel")

    def replay(self, name: str) -> bool:
        """Refuse: this queue cannot."""
        raise Definite(f"job {name}: minimal has no replay")

    def checkpoint(self, job: Job) -> None:
        """Refuse: this queue leaves checkpoints to SQLite."""
        raise Definite(f"job {job.id}: minimal has no checkpoint")

    def _settle(self, f: str, lease: Any, *values: Any, value: object = None) -> None:
        self._recorder.call(
            f,
            lambda: self._do(f, *values),
            job=lease.id,
            fence=lease.fence,
            told=lambda _: {"value": value},
        )

    def _do(self, name: str, *values: Any) -> Any:
        with _translated():
            return getattr(self.queue, name)(*values)


@contextmanager
def _together(asked: Sequence[dict[str, Any]]) -> Iterator[list[int]]:
    """Record one call that puts several jobs in as an enqueue of each; the block tells their ids.

    A history has one open operation at a time, so each job of the batch has a file of its own.
    """
    store = Store(os.environ["KILLPROOF_STORE"])
    names = [f"batch{number}" for number in range(len(asked))]
    writers = [HistoryWriter(store.history_file(name), name) for name in names]
    opened = [w.invoke("enqueue", value=v) for w, v in zip(writers, asked, strict=True)]
    ids: list[int] = []
    try:
        yield ids
    except BaseException as error:
        value = {"error": f"{type(error).__name__}: {error}"}
        for writer, number in zip(writers, opened, strict=True):
            (writer.fail if is_definite(error) else writer.info)(number, value=value)
        raise
    else:
        for writer, number, told in zip(writers, opened, ids, strict=True):
            writer.ok(number, job=told)
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Raise what the adapter of `minimal` makes of its errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise Indefinite(f"{type(error).__name__}: {error}") from error


def _play(payload: dict[str, Any], job: object, attempt: int, fence: int) -> Exception | None:
    try:
        effect.run(payload, job=job, attempt=attempt, fence=fence)
    except effect.ScriptedFailure as error:
        return error
    return None


def settle(session: Session, lease: Any, failure: Exception | None) -> None:
    """Tell the queue how a job ended, as a worker does; a lease that is lost is lost."""
    with suppress(LeaseLost, KillproofError):
        if failure is not None:
            permanent = isinstance(failure, effect.ScriptedPermanent)
            session.nack(lease, str(failure), permanent=permanent)
        elif session.sink(lease) == "table":
            session.completing(lease)
        else:
            session.ack(lease)


def living(database: Path, table: str, state: str, ended: Sequence[str]) -> int:
    """Count the jobs that have not ended."""
    marks = ", ".join("?" * len(ended))
    query = f"SELECT count(*) FROM {table} WHERE {state} NOT IN ({marks})"  # noqa: S608 - names
    with closing(sqlite3.connect(database)) as db:
        return int(db.execute(query, tuple(ended)).fetchone()[0])


def wait_until(moment: float) -> None:
    """Wait until a moment of the wall clock, in seconds."""
    time.sleep(max(0.0, moment - time.time()))
