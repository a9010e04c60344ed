"""Killproof, one step at a time: the calls of `Queue`, and in `MORE` all that stands above it."""

import os
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from killproof import Host, backup, effects, maintenance, operations, retention
from killproof.core import barrier
from killproof.handlers import Hold
from killproof.limits import Limits
from killproof.payloads import Payloads
from killproof.schedule import Schedules, key_of
from killproof.workflow import Workflow, Workflows
from killproof_chaos.engines.crash_session import RECORD_EFFECT, run_handler, together
from killproof_chaos.recording import Recorder
from killproof_chaos.targets.killproof_adapter import LEASE_SECONDS, RETRY, STEPS, VouchedLocks
from killproof_chaos.targets.killproof_recorded import RecordedQueue, whole
from killproof_chaos.workload import Job
from killproof_evidence.records import RecordWriter, read_records

#: No commit of these runs is followed by a checkpoint, but where the operation is one.
CHECKPOINT_NEVER: Final = 10**12
SNOOZE_SECONDS: Final = 0.02
#: What killproof gives a job of a batch, which takes no options.
DEFAULTS: Final = {"lease_ms": 60_000, "retry": "article"}
#: The sink of a job whose effect goes through the ledger; for the judge it is one with a key.
LEDGER: Final = "ledger"
#: Too large for a row.
LARGE_RESULT: Final = "r" * (1 << 20)
FIRED_KIND: Final = "report"
HELD: Final = "SELECT id FROM job WHERE state = 'held'"
#: What operations leave besides jobs: a table, and which of its rows count. A reservation is no
#: half of a transaction: it is a commit of its own.
EXTRAS: Final = (
    ("effect", "SELECT count(*) FROM effect WHERE state = 'applied'"),
    ("chaos_note", "SELECT count(*) FROM chaos_note"),
    # The use of a result is a commit of its own as well; and a collection, which takes several,
    # only deletes what jobs have left behind.
    (
        "payload_use",
        "SELECT count(*) FROM payload_use WHERE fence = 0 AND job_id IN (SELECT id FROM job)",
    ),
    ("limit_resource", "SELECT count(*) + total(running) FROM limit_resource"),
    ("limit_gate", "SELECT count(*) FROM limit_gate WHERE rule = 'closed'"),
    ("workflow_run", "SELECT count(*) + total(state <> 'running') FROM workflow_run"),
    ("job_schedule", "SELECT count(*) + coalesce(sum(fired), 0) FROM job_schedule"),
)


class KillproofSession:
    """Killproof, through the queue object that a worker uses."""

    reaps = True

    def __init__(self, path: Path, recorder: Recorder) -> None:
        """Open the queue at `path`."""
        host = Host(lock=VouchedLocks(), random=random.Random(0))
        self.queue = RecordedQueue(path, recorder, host=host)
        self.queue.database.checkpoint_commits = CHECKPOINT_NEVER
        self.ids: dict[str, Any] = {}
        self.leases: list[Any] = []  #: of one claim of several jobs
        self.recorder = recorder

    @property
    def more(self) -> Mapping[str, Callable[[Any], object]]:
        """What stands above the calls that every queue has."""
        return {name: partial(function, self) for name, function in MORE.items()}

    def brief(self) -> None:
        """Do nothing: a death is seen in the kernel, whatever the lease."""

    def enqueue(self, job: Job) -> None:
        """Put a job in."""
        self.ids[job.id] = self.recorder.call(
            "enqueue",
            lambda: self._put(job),
            value=_asked(job),
            told=lambda found: {"job": found},
        )

    def _put(self, job: Job, **more: Any) -> int:
        return self.queue.enqueue(
            job.kind, job.payload(), lease=LEASE_SECONDS, retry=RETRY, **job.options(), **more
        )

    def claim(self) -> Any:
        """Take the first job."""
        return whole(self.queue, self.queue.claim())

    def extend(self, lease: Any) -> None:
        """Prolong the lease."""
        self.queue.extend(lease)

    def ack(self, lease: Any) -> None:
        """Finish the job."""
        self.queue.ack(lease)

    def nack(self, lease: Any, error: str, *, permanent: bool = False) -> None:
        """Record a failed attempt."""
        self.queue.nack(lease, error, permanent=permanent)

    def completing(self, lease: Any) -> None:
        """Write the effect's row and the ack in one transaction."""
        with self.queue.completing(lease) as tx:
            values = (str(lease.job.payload["id"]), lease.job.attempt, lease.fence)
            tx.execute(RECORD_EFFECT, values)

    def reap(self) -> int:
        """Take back the leases of dead workers; return how many."""
        return self.recorder.call("reap", self.queue.reap, told=lambda found: {"value": found})

    def play(self, lease: Any) -> Exception | None:
        """Run the handler."""
        if self.sink(lease) == LEDGER:
            _apply(self, lease)
        return run_handler(lease.job.payload, lease.job.id, lease.job.attempt, lease.fence)

    def sink(self, lease: Any) -> str:
        """Return where the effect goes."""
        return str(lease.job.payload.get("sink", "log"))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read without the write lock."""
        return list(self.queue.database.peek(sql))

    def extras(self) -> int:
        """Count the rows that operations have left in other tables than that of the jobs."""
        names = {str(name) for (name,) in self.rows("SELECT name FROM sqlite_schema")}
        return sum(int(self.rows(count)[0][0]) for table, count in EXTRAS if table in names)

    def tidy(self) -> None:
        """Let go what is held, as a person does."""
        for (number,) in self.rows(HELD):
            operations.unhold(self.queue, number)
        self._prove_payloads()

    def _prove_payloads(self) -> None:
        """Make sure that no job misses its file, and that a collection leaves no other.

        Raises:
            ValueError: the queue has broken that promise.
        """
        large = Payloads(self.queue)
        large.collect()
        found = large.check(whole=True)
        if found.lost or found.orphans:
            raise ValueError(f"large payloads after a death: {found}")

    def close(self) -> None:
        """Close the queue; what is still held is released."""
        for lease in self.leases:
            self.queue.release(lease)
        self.queue.close()


def _asked(job: Job) -> dict[str, Any]:
    """Return what the history says of a job; the ledger's sink is one that has a key."""
    return job.summary() | ({"sink": "http"} if job.sink == LEDGER else {})


def _named(session: KillproofSession, f: str, name: str, function: Callable[[int], bool]) -> bool:
    """Do something to a job of this name, on record; False: the queue says that it did nothing."""
    number = session.ids[name]
    return session.recorder.call(
        f, lambda: function(number), job=number, told=lambda done: {"value": done}
    )


def _enqueue_many(session: KillproofSession, jobs: tuple[Job, ...]) -> None:
    """Put several jobs in, all or none."""
    with together("enqueue", [{"value": job.summary() | DEFAULTS} for job in jobs]) as told:
        numbers = session.queue.enqueue_many([(job.kind, job.payload()) for job in jobs])
        told += [{"job": number} for number in numbers]


def _enqueue_with_note(session: KillproofSession, job: Job) -> None:
    """Put a job in within a transaction of the caller's, who writes a row of an own table."""
    with session.recorder.during("enqueue", value=job.summary()) as completion:
        with session.queue.transaction() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS chaos_note (job TEXT) STRICT")
            tx.execute("INSERT INTO chaos_note VALUES (:job)", {"job": job.id})
            number = session._put(job, tx=tx)
        completion["job"] = number


def _claim_many(session: KillproofSession, limit: int) -> bool:
    """Take several jobs in one transaction."""
    with together("claim", [{}] * limit) as told:
        session.leases = session.queue.claim_many(limit)
        for lease in session.leases:
            assert isinstance(lease.job.payload, dict)
            value = {"id": lease.job.payload["id"], "attempt": lease.job.attempt}
            told.append({"job": lease.job.id, "fence": lease.fence, "value": value})
    return bool(session.leases)


def _ack_many(session: KillproofSession, leases: list[Any]) -> None:
    """Finish several jobs in one transaction."""
    with together("ack", [{"job": one.job.id, "fence": one.fence} for one in leases]):
        session.queue.ack_many(leases)


def _hold_leased(session: KillproofSession, lease: Any) -> None:
    """Put the job in hand aside until a person decides."""
    why = Hold("a person has to look")
    session.recorder.call(
        "hold",
        lambda: operations.hold_leased(session.queue, lease, why),
        job=lease.job.id,
        fence=lease.fence,
    )


def _apply(session: KillproofSession, lease: Any) -> object:
    """Apply the job's effect through the ledger: at a sink that takes whatever comes."""
    name = lease.job.payload["id"]
    sink = Path(os.environ["KILLPROOF_EFFECTS"], "http.jsonl")

    def apply(key: str) -> None:
        log = RecordWriter(sink)
        log.append({"job": name, "key": key})
        log.close()

    def was_applied(key: str) -> bool:
        return any(record and record["key"] == key for _, record in read_records(sink))

    ledger = effects.Ledger(session.queue, lease, clock=session.queue.host.clock)
    effect = effects.Effect(
        scope="crash",
        key=effects.key_of(lease.job),
        function=apply,
        in_doubt="check",
        check=was_applied,
    )
    return ledger.apply(effect)


def _spill_enqueue(session: KillproofSession, job: Job) -> None:
    """Put a job in whose payload goes into a file."""
    large = Payloads(session.queue, threshold=0)
    session.ids[job.id] = session.recorder.call(
        "enqueue",
        lambda: large.enqueue(
            job.kind, job.payload(), lease=LEASE_SECONDS, retry=RETRY, **job.options()
        ),
        value=job.summary(),
        told=lambda found: {"job": found},
    )


def _spill_result(session: KillproofSession, lease: Any) -> None:
    """Finish a job whose result goes into a file."""
    session.queue.ack(lease, Payloads(session.queue).spill(lease, LARGE_RESULT))


def _schedule(session: KillproofSession, slot: float) -> None:
    """Make a schedule, whose jobs have the name that its slot gives them."""
    name = key_of("crash", round(slot * 1_000))
    Schedules(session.queue).every(
        "crash",
        3_600,
        FIRED_KIND,
        {"id": name, "script": ["ok"], "sink": "log", "body": ""},
        first=slot,
        lease=LEASE_SECONDS,
        retry=RETRY,
    )


def _fire(session: KillproofSession, slot: float) -> None:
    """Put in the job of a slot that has come."""
    name = key_of("crash", round(slot * 1_000))
    job = Job(id=name, kind=FIRED_KIND, sink="log", key=name, body_bytes=0)
    session.recorder.call(
        "enqueue",
        lambda: Schedules(session.queue).fire(slot),
        value=job.summary(),
        told=lambda ids: {"job": ids[0]} if ids else {},
    )


def _limit(session: KillproofSession, running: int) -> None:
    """Let so many of the jobs run at once."""
    Limits(session.queue).set("press", kinds=[FIRED_KIND], running=running)


def _close_resource(session: KillproofSession, seconds: float) -> None:
    """Let no job of the limited kind start for a while."""
    Limits(session.queue).close("press", seconds, "come back later")


def _start_run(session: KillproofSession, jobs: tuple[Job, ...]) -> None:
    """Start a run of a workflow: each of its jobs is a step."""
    workflow = Workflow("crash")
    for job in jobs:
        workflow.add(
            job.id,
            kind=job.kind,
            payload=job.payload(),
            needs=job.needs or (),
            lease=LEASE_SECONDS,
            retry=RETRY,
            **job.options(),
        )
    with together("enqueue", [{"value": job.summary()} for job in jobs]) as told:
        number = Workflows(session.queue).start(workflow, key="run")
        rows = session.queue.database.peek(STEPS, {"run": number})
        ids = {str(name): number for name, number in rows}
        told += [{"job": ids[job.id]} for job in jobs]


def _replay(session: KillproofSession, number: int) -> bool:
    return bool(operations.replay(session.queue, [number]).moved)


def _backup(session: KillproofSession, folder: str) -> object:
    """Copy the file while it is open, into a folder beside it."""
    place = Path(session.queue.path).parent / folder
    place.mkdir(exist_ok=True)
    return backup.backup(session.queue, place)


def _checkpoint(session: KillproofSession, job: Job) -> None:
    """Commit once with the checkpoint that every so many commits are followed by."""
    session.queue.database.checkpoint_commits = 1
    try:
        session.enqueue(job)
    finally:
        session.queue.database.checkpoint_commits = CHECKPOINT_NEVER


def _stop(session: KillproofSession, reason: str) -> Callable[[], object]:
    """Close the queue and stop its file, as a disk error does; return how it is repaired."""
    path = session.queue.path
    session.close()
    barrier.mark_failed(path, reason)
    return partial(maintenance.repair, path)


#: What `Session.more` is made of: a capability that killproof learns is one line more.
MORE: Final[Mapping[str, Callable[[KillproofSession, Any], object]]] = {
    "enqueue_many": _enqueue_many,
    "enqueue_with_note": _enqueue_with_note,
    "claim_many": _claim_many,
    "ack_many": _ack_many,
    "ack_and_claim": lambda session, lease: session.queue.ack_and_claim(lease) and None,
    "release": lambda session, lease: session.queue.release(lease),
    "snooze": lambda session, lease: session.queue.snooze(lease, SNOOZE_SECONDS),
    "hold_leased": _hold_leased,
    "ledger": _apply,
    "cancel": lambda session, name: _named(session, "cancel", name, session.queue.cancel),
    "replay": lambda session, name: _named(
        session, "replay", name, lambda number: _replay(session, number)
    ),
    "hold": lambda session, name: operations.hold(session.queue, session.ids[name]),
    "unhold": lambda session, name: operations.unhold(session.queue, session.ids[name]),
    "reprioritise": lambda session, name: operations.reprioritise(
        session.queue, session.ids[name], 0
    ),
    "get": lambda session, name: session.queue.get(session.ids[name]),
    "counts": lambda session, _: session.queue.counts(),
    "checkpoint": _checkpoint,
    "prune": lambda session, _: retention.prune(session.queue, {"succeeded": 0}),
    "backup": _backup,
    "spill_enqueue": _spill_enqueue,
    "spill_result": _spill_result,
    "spill_collect": lambda session, _: Payloads(session.queue).collect().files > 0,
    "schedule": _schedule,
    "fire": _fire,
    "limit": _limit,
    "limit_close": _close_resource,
    "workflow_start": _start_run,
    "repair": _stop,
}
OPERATIONS: Final = frozenset(MORE) | {
    *("open_and_migrate", "open", "reopen", "enqueue", "claim", "extend", "ack", "nack"),
    *("completing", "reap", "promote", "close", "late_ack", "dead_letter"),
    "enqueue_without_key",
    *("limit_claim", "limit_ack", "workflow_ack", "workflow_fail"),
}
