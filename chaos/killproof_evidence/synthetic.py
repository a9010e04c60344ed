"""A store that no queue made: a healthy run of any size, from a seed.

It measures the judge (a million records) and tests it: every promise has evidence in it, faults
included, so the verdict is `pass`, and a single effect line too few or too many must change that.
One virtual clock orders everything; the queue behind it is thirty lines of heaps.
"""

import json
import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final

from killproof_evidence.contract import PROMISE_NAMES, TERMINAL, Contract
from killproof_evidence.environment import environment
from killproof_evidence.evidence import payload_digest
from killproof_evidence.store import Store
from killproof_evidence.target import JobRow

#: History records of one job's life, nearly: enqueue, claim and ack, each with two ends.
RECORDS_PER_JOB: Final = 6.15
#: Wall clock minus monotonic clock, ms, of the virtual machine.
WALL_MS: Final = 1_700_000_000_000
MS: Final = 1_000_000
LEASE_MS: Final = 500
RETRY_MS: Final = 50
MAX_ATTEMPTS: Final = 3
WORKERS: Final = 8
#: Processes that are killed, stopped and paused in a run, each: what a real run of a minute has.
FAULTS_MAX: Final = 200

CONTRACT: Final = Contract(
    promises=dict.fromkeys(PROMISE_NAMES[:21], True) | {"P1": "process", "P6": "key"},
    parameters={
        "lease_ms": LEASE_MS,
        "max_attempts": MAX_ATTEMPTS,
        "retry": f"fixed:{RETRY_MS / 1_000}",
        "grace_ms": 1_000,
        "recovery_ms": 500,
        "busy_ms": 30_000,
    },
    edges={
        "start": ("available", "scheduled"),
        "scheduled": ("available", "cancelled"),
        "retryable": ("available", "cancelled"),
        "available": ("leased", "cancelled"),
        "leased": ("succeeded", "retryable", "available", "dead", "cancelled"),
        "dead": ("available",),
    },
)


def generate(
    path: Path | str, *, records: int = 1_000_000, seed: int = 0, faults: bool = True
) -> Store:
    """Write a healthy store with about this many history records.

    Args:
        path: a folder that does not exist or is empty.
        records: lines of history, all processes together; at least some hundreds, so that every
            promise has evidence.
        seed: the same seed gives the same store on the same machine.
        faults: False leaves out the kills, the pauses and the stops, and what only they can show.

    Raises:
        StoreError: the folder holds something already; definite.
    """
    store = Store.create(path)
    run = _Run(store, random.Random(seed))
    jobs = max(60 if faults else 20, round(records / RECORDS_PER_JOB))
    run.play(jobs, faults=faults)
    run.finish(seed)
    return store


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    id: int
    priority: int
    due_ms: int
    key: str | None
    script: list[str]
    sink: str
    state: str = "start"
    fence: int = 0
    forgiven: int = 0
    error: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"job-{self.id}"

    @property
    def payload(self) -> dict[str, Any]:
        return {"id": self.name, "script": self.script, "sink": self.sink}

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.priority, self.due_ms, self.id


class _Process:
    """One process: its history file, its effect file, and the numbers in both."""

    def __init__(self, run: "_Run", name: str) -> None:
        run.pids += 1
        self.run, self.name, self.pid = run, name, run.pids
        self.number = self.effects = 0
        self.history: TextIOWrapper = open(  # noqa: SIM115 - it lives as long as the process
            run.store.history_file(name), "w"
        )
        self.effect_file: TextIOWrapper | None = None

    def call(
        self, f: str, *, value: object = None, answer: str = "ok", told: object = None, **ids: Any
    ) -> None:
        """Write both ends of an operation; the ids are known beforehand, but for a claim."""
        self.invoke(f, value=value, **({} if f in {"claim", "enqueue"} else ids))
        self.answer(f, answer, value=told, **ids)

    def invoke(self, f: str, *, value: object = None, **ids: Any) -> None:
        """Write the invocation."""
        self.number += 1
        self._write(f, "invoke", ids if value is None else ids | {"value": value})

    def answer(self, f: str, kind: str, *, value: object = None, **ids: Any) -> None:
        """Write the completion of the last invocation."""
        self._write(f, kind, ids if value is None else ids | {"value": value})

    def effect(self, what: str, job: _Job, outcome: str | None = None) -> None:
        """Write one record of the effect log."""
        if self.effect_file is None:
            path = self.run.store.effects / f"{self.pid}.jsonl"
            self.effect_file = open(path, "w")  # noqa: SIM115 - as above
        self.effects += 1
        record: dict[str, Any] = {
            "t": self.run.tick(),
            "pid": self.pid,
            "n": self.effects,
            "job": job.name,
            "attempt": job.fence - job.forgiven,
            "fence": job.fence,
            "what": what,
        }
        if outcome is not None:
            record["outcome"] = outcome
        self.effect_file.write(_line(record))

    def end(self, *, in_order: bool) -> None:
        """Close the files, after an `exit` record if the process ends in order."""
        if in_order:
            self.number += 1
            self._write("exit", "ok", {})
        self.history.close()
        if self.effect_file is not None:
            self.effect_file.close()

    def _write(self, f: str, kind: str, rest: dict[str, Any]) -> None:
        record = {
            "t": self.run.tick(),
            "pid": self.pid,
            "process": self.name,
            "n": self.number,
            "f": f,
            "type": kind,
        }
        self.history.write(_line(record | rest))


class _Run:
    """The virtual machine: a clock, a queue, a producer and workers in turn."""

    def __init__(self, store: Store, source: random.Random) -> None:
        self.store, self.source = store, source
        self.now = 1_000 * MS
        self.pids = 1_000
        self.lives = 0
        self.jobs: list[_Job] = []
        self.ready: list[tuple[tuple[int, int, int], _Job]] = []
        self.waiting: list[tuple[int, int, _Job]] = []
        self.seq = 0
        self.audit = open(store.audit, "w")  # noqa: SIM115 - closed by finish
        self.nemesis = store.writer(store.nemesis)
        self.http = store.writer(store.effects / "http.jsonl")
        self.recovery = store.writer(store.recovery)
        self.producer = _Process(self, "p1")
        self.workers = [self.new_worker() for _ in range(WORKERS)]
        self.zombies: list[tuple[int, _Process, _Job, int]] = []

    def tick(self) -> int:
        """Let a little time pass; return it in ns."""
        self.now += 20_000
        return self.now

    @property
    def wall_ms(self) -> int:
        """The wall clock, ms."""
        return WALL_MS + self.now // MS

    def new_worker(self) -> _Process:
        """Start a worker under a name of its own."""
        self.lives += 1
        return _Process(self, f"w{self.lives}")

    def play(self, count: int, *, faults: bool) -> None:
        """Enqueue and work off so many jobs, faults first, then a heal and a few more."""
        every = max(30, count // FAULTS_MAX)
        for turn in range(count):
            if turn == count - 20:
                self.nemesis.append({"t": self.tick(), "fault": "heal"})
            self.enqueue()
            fault = {0: "kill", 10: "pause", 20: "term"}.get(turn % every)
            self.work(turn % WORKERS, fault if faults and turn < count - 40 else None)
            if len(self.ready) > WORKERS:
                # What was tried again came on top: without this the backlog would only grow.
                self.work((turn + 1) % WORKERS, None)
        while self.ready or self.waiting or self.zombies:
            self.now += RETRY_MS * MS // 2
            self.work(self.source.randrange(WORKERS), None)

    def enqueue(self) -> None:
        """Put one job in; cancel it again if it is one that waits long and has no key."""
        source = self.source
        number = len(self.jobs) + 1
        delay_ms = {7: 10_000, 13: 30}.get(number % 50, 0)
        script = {5: ["raise", "ok"], 16: ["permanent"]}.get(number % 25, ["ok"])
        job = _Job(
            id=number,
            priority=source.choice((2, 5, 5, 5, 7)),
            due_ms=0,
            key=f"key-{number}" if number % 10 == 3 else None,
            script=script,
            sink="http" if number % 5 == 0 else "log",
        )
        self.jobs.append(job)
        value = job.payload | {"kind": "work", "priority": job.priority}
        value |= {"max_attempts": MAX_ATTEMPTS, "digest": payload_digest(job.payload)}
        if delay_ms:
            value["delay_ms"] = delay_ms
        if job.key is not None:
            value["key"] = job.key
        self.producer.invoke("enqueue", value=value)
        job.due_ms = self.wall_ms + delay_ms
        self.move(job, "scheduled" if delay_ms else "available")
        self.producer.answer("enqueue", "ok", job=number)
        if delay_ms == 10_000:
            self.producer.invoke("cancel", job=number)
            self.move(job, "cancelled")
            self.waiting.remove((job.due_ms, job.id, job))  # Nobody waits for it at the end.
            heapify(self.waiting)
            self.producer.answer("cancel", "ok", job=number, value=True)

    def move(self, job: _Job, new: str) -> None:
        """Commit a change: the audit line, and the heap that the job now stands in."""
        self.seq += 1
        old = None if job.state == "start" else job.state
        record = {"seq": self.seq, "t_ms": self.wall_ms, "job": job.id, "old": old, "new": new}
        record |= {"fence": job.fence, "attempts": job.fence, "forgiven": job.forgiven}
        record |= {"priority": job.priority, "due_ms": job.due_ms, "kind": "work"}
        if job.key is not None:
            record["key"] = job.key
        if old is None:
            record["harness_id"] = job.name
        self.audit.write(_line(record))
        job.state = new
        if new == "available":
            heappush(self.ready, (job.rank, job))
        elif new in {"scheduled", "retryable"}:
            heappush(self.waiting, (job.due_ms, job.id, job))

    def claim(self, worker: _Process) -> _Job | None:
        """Promote what is due and take the first job."""
        worker.invoke("claim")
        while self.waiting and self.waiting[0][0] <= self.wall_ms:
            job = heappop(self.waiting)[2]
            if job.state in {"scheduled", "retryable"}:
                self.move(job, "available")
        if not self.ready:
            worker.answer("claim", "ok")
            return None
        job = heappop(self.ready)[1]
        job.fence += 1
        self.move(job, "leased")
        worker.answer("claim", "ok", job=job.id, fence=job.fence)
        return job

    def work(self, index: int, fault: str | None) -> None:
        """Let one worker claim and run a job, and a fault strike it."""
        worker = self.workers[index]
        self.wake_zombie()
        job = self.claim(worker)
        if job is None:
            return
        worker.effect("start", job)
        self.now += self.source.randrange(MS)
        if fault is not None and not job.history:
            # Only a fresh job: the first crash of a job goes back at once, a later one waits.
            self.strike(index, worker, job, fault)
            return
        word = job.script[min(job.fence - job.forgiven, len(job.script)) - 1]
        if word == "ok":
            self.make_effect(worker, job)
            worker.effect("end", job, "ok")
            worker.invoke("ack", job=job.id, fence=job.fence)
            self.keep(job, "succeeded")
            self.move(job, "succeeded")
            worker.answer("ack", "ok", job=job.id, fence=job.fence)
            return
        worker.effect("end", job, word)
        permanent = {"permanent": True} if word == "permanent" else None
        worker.invoke("nack", job=job.id, fence=job.fence, value=permanent)
        self.keep(job, "failed")
        job.error = f"scripted {word}"
        job.due_ms = self.wall_ms + RETRY_MS
        self.move(job, "dead" if permanent else "retryable")
        worker.answer("nack", "ok", job=job.id, fence=job.fence)

    def make_effect(self, worker: _Process, job: _Job) -> None:
        """Make the effect in the job's sink, which applies a key once."""
        if job.sink == "http" and not any(entry.get("applied") for entry in job.history):
            self.http.append({"t": self.tick(), "job": job.name, "what": "applied"})
        worker.effect("effect", job, "ok")

    def keep(self, job: _Job, outcome: str) -> None:
        """Keep one ended delivery in the job's own history."""
        job.history.append({"fence": job.fence, "outcome": outcome})

    def strike(self, index: int, worker: _Process, job: _Job, fault: str) -> None:
        """Kill, pause or stop the worker that holds the job."""
        t = self.tick()
        facts = {"t": t, "fault": fault, "pid": worker.pid, "process": worker.name}
        self.nemesis.append(facts | {"phase": "handler.start", "hit": True})
        self.workers[index] = self.new_worker()
        if fault == "kill":
            worker.end(in_order=False)
            self.keep(job, "crashed")
            self.move(job, "available")
            after = {"t_kill": t, "pid": worker.pid, "job": job.id, "t_reclaim": self.tick()}
            self.recovery.append(after | {"peers_idle": True})
        elif fault == "pause":
            self.now += (LEASE_MS + 20) * MS
            self.keep(job, "expired")
            self.move(job, "available")
            self.zombies.append((self.now + 5 * MS, worker, job, job.fence))
        else:
            worker.effect("end", job, "sleep")
            worker.invoke("release", job=job.id, fence=job.fence)
            self.keep(job, "released")
            job.forgiven += 1
            self.move(job, "available")
            worker.answer("release", "ok", job=job.id, fence=job.fence)
            worker.end(in_order=True)

    def wake_zombie(self) -> None:
        """Let a paused worker go on; what it says of its old lease is refused."""
        if not self.zombies or self.zombies[0][0] > self.now:
            return
        _, worker, job, fence = self.zombies.pop(0)
        self.nemesis.append({"t": self.tick(), "fault": "cont", "pid": worker.pid})
        refusal = {"error": "LeaseLost: the lease is gone"}
        worker.call("ack", job=job.id, fence=fence, answer="fail", told=refusal)
        worker.end(in_order=True)

    def finish(self, seed: int) -> None:
        """End all processes and write what an engine writes at the end."""
        for process in (self.producer, *self.workers):
            process.end(in_order=True)
        self.audit.close()
        for number in range(24):
            used = {"wal_bytes": 40_000 + number % 3, "open_files": 12, "threads": 2}
            samples = self.store.writer(self.store.samples)
            samples.append({"t": number * MS, "pid": 1_001} | used)
            samples.close()
        for writer in (self.nemesis, self.http, self.recovery):
            writer.close()
        self.store.write_snapshot(self.row(job) for job in self.jobs)
        self.store.write_contract(CONTRACT)
        with closing(sqlite3.connect(self.store.db / "queue.db")) as connection:
            connection.execute("CREATE TABLE job (id INTEGER PRIMARY KEY)")
        self.store.write_run(
            {
                "target": "synthetic",
                "engine": "proc",
                "seed": seed,
                "contract": "contract.toml",
                "obligations": {"obliged": [], "hit": []},
                "starved": False,
                "environment": environment(self.store.path),
                "counts": {},
                "replay": None,
                "broken": False,
            }
        )

    def row(self, job: _Job) -> JobRow:
        """Return the job as a healthy queue would tell it."""
        assert job.state in TERMINAL, job
        return JobRow(
            id=job.id,
            kind="work",
            state=job.state,
            attempts=job.fence,
            payload=job.payload,
            error=job.error,
            forgiven=job.forgiven,
            max_attempts=MAX_ATTEMPTS,
            priority=job.priority,
            key=job.key,
            fence=job.fence,
            due_ms=job.due_ms,
            history=tuple(job.history),
        )


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"
