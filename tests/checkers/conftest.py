"""Histories written by hand: a `Run` is told in sentences and then judged like a real store.

    producer, worker = run.process("p1"), run.process("w1")
    job = producer.enqueues("a")
    worker.claims(job); worker.runs(job); worker.acks(job)
    assert run.verdict("P1") == "pass"

Each sentence writes what a real process and the audit would have written; what a broken queue
does differently is said in the test. Time passes by a millisecond with each record.
"""

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from killproof_evidence.checkers import CHECKERS
from killproof_evidence.contract import PROMISE_NAMES, Contract
from killproof_evidence.evidence import Evidence
from killproof_evidence.finding import Finding
from killproof_evidence.judge import Verdict, judge
from killproof_evidence.store import Store

MS = 1_000_000
WALL_MS = 1_700_000_000_000
EDGES = {
    "start": ("available", "scheduled"),
    "scheduled": ("available", "cancelled"),
    "retryable": ("available", "cancelled"),
    "available": ("leased", "cancelled"),
    "leased": ("succeeded", "retryable", "available", "scheduled", "dead", "cancelled"),
    "dead": ("available",),
}
#: What each history has shown, by test: `KILLPROOF_WITNESSES=write` writes it anew.
WITNESSES: Final = Path(__file__).with_name("witnesses.jsonl")
PARAMETERS = {
    "lease_ms": 500,
    "max_attempts": 3,
    "retry": "fixed:0.05",
    "grace_ms": 1_000,
    "recovery_ms": 200,
    "busy_ms": 30_000,
}


@dataclass(eq=False)
class Job:
    name: str
    id: int
    asked: dict[str, Any]
    state: str | None = None
    fence: int = 0
    attempts: int = 0
    forgiven: int = 0
    due_ms: int = 0
    error: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)  # What the snapshot tells differently.
    rows: int = 1

    @property
    def payload(self) -> dict[str, Any]:
        return {name: self.asked[name] for name in ("id", "script", "sink") if name in self.asked}


class Process:
    def __init__(self, run: "Run", name: str, pid: int) -> None:
        self.run, self.name, self.pid = run, name, pid
        self.number = self.effects = 0
        self.alive = True
        self.lines: list[dict[str, Any]] = []
        self.effect_lines: list[dict[str, Any]] = []
        self.attempts: dict[tuple[str, int], int] = {}

    # --- Sentences.

    def enqueues(self, name: str, *, answer: str = "ok", exists: bool = True, **asked: Any) -> Job:
        job = self.run.job(name, **asked)
        self.invokes("enqueue", value=job.asked)
        if exists:
            delay_ms = job.asked.get("delay_ms", 0)
            job.due_ms = self.run.wall_ms + delay_ms
            self.run.commits(job, "scheduled" if delay_ms else "available")
        self.hears(answer, job=job if answer == "ok" else None)
        return job

    def claims(self, job: Job, *, commits: bool = True, **value: Any) -> int:
        self.invokes("claim", value=value or None)
        if commits:
            if job.state in {"scheduled", "retryable"}:
                self.run.commits(job, "available")
            job.fence += 1
            job.attempts += 1
            self.run.commits(job, "leased")
        self.hears("ok", job=job, fence=job.fence)
        return job.fence

    def starts(self, job: Job, *, attempt: int | None = None, fence: int | None = None) -> None:
        self.logs("start", job, attempt, fence)

    def makes_effect(self, job: Job, *, fence: int | None = None) -> None:
        self.logs("effect", job, None, fence, "ok")

    def ends(self, job: Job, outcome: str = "ok", *, fence: int | None = None) -> None:
        self.logs("end", job, None, fence, outcome)

    def runs(self, job: Job, outcome: str = "ok") -> None:
        self.starts(job)
        if outcome == "ok":
            self.makes_effect(job)
        self.ends(job, outcome)

    def acks(self, job: Job, **how: Any) -> None:
        self.settles("ack", job, "succeeded", **how)

    def nacks(self, job: Job, to: str = "retryable", *, delay_ms: int = 50, **how: Any) -> None:
        job.error = "scripted"
        if how.get("commits", True):
            job.due_ms = self.run.wall_ms + 1 + delay_ms
        self.settles("nack", job, to, **how)

    def releases(self, job: Job, *, forgiven: int = 1, **how: Any) -> None:
        job.forgiven += forgiven
        self.settles("release", job, "available", **how)

    def extends(self, job: Job, **how: Any) -> None:
        self.settles("extend", job, None, **how)

    def settles(
        self,
        f: str,
        job: Job,
        to: str | None,
        *,
        fence: int | None = None,
        answer: str | None = "ok",
        commits: bool = True,
        value: object = None,
        token: bool = True,
    ) -> None:
        fence = job.fence if fence is None else fence
        self.invokes(f, job=job, fence=fence if token else None, value=value)
        if commits and answer != "fail" and to is not None:
            job.history.append({"fence": fence, "outcome": f})
            self.run.commits(job, to)
        if answer is not None:
            self.hears(answer, job=job)

    def cancels(self, job: Job, *, told: bool = True, commits: bool = True) -> None:
        self.invokes("cancel", job=job)
        if told and commits:
            self.run.commits(job, "cancelled")
        self.hears("ok", value=told)

    def replays(self, job: Job, *, commits: int = 1) -> None:
        self.invokes("replay", job=job)
        for _ in range(commits):
            job.state = "dead"
            job.forgiven = job.attempts
            self.run.commits(job, "available")
        self.hears("ok", value=True)

    def polls(self) -> None:
        self.invokes("claim")
        self.hears("ok")

    def starts_run(
        self, name: str, graph: dict[str, list[str]], *, commits: bool = True, answer: str = "ok"
    ) -> dict[str, Job]:
        """Start a run; the graph has the needs of each step."""
        jobs = {
            step: self.run.job(f"{name}.{step}", needs=[f"{name}.{need}" for need in needs])
            for step, needs in graph.items()
        }
        self.invokes("start", value={"run": name, "steps": [job.asked for job in jobs.values()]})
        if commits:
            self.run.commits_run(name, "running")
            for job in jobs.values():
                job.due_ms = self.run.wall_ms
                self.run.commits(job, "blocked" if job.asked["needs"] else "available")
        told = {job.asked["id"]: job.id for job in jobs.values()}
        self.hears(answer, value={"run": 1, "jobs": told} if answer == "ok" else None)
        return jobs

    def does_step(self, job: Job, *, result: str = "r", saw: dict[str, str] | None = None) -> None:
        """Run a step to the end of its handler; the needs have returned `r` unless told."""
        seen = dict.fromkeys(job.asked["needs"], "r") if saw is None else saw
        self.claims(job)
        self.starts(job)
        self.effect_lines[-1]["saw"] = seen
        self.makes_effect(job)
        self.ends(job)
        self.effect_lines[-1]["result"] = result

    def remembers(self, job: Job, name: str, result: str = "r") -> None:
        """Run a step of a handler whose result is to be remembered."""
        self.logs("step", job, None, None)
        self.effect_lines[-1] |= {"name": name, "result": result}

    def backs_up(
        self, *, seq: int | None = None, jobs: dict[int, str] | None = None, **head: Any
    ) -> str:
        """Make a backup of all that is committed; what is leased is given back in it."""
        name = f"backup-{len(self.run.backups)}"
        self.invokes("backup")
        states = {job.id: str(job.state) for job in self.run.jobs if job.state is not None}
        found = {n: "available" if old == "leased" else old for n, old in states.items()}
        found = found if jobs is None else jobs
        seq = len(self.run.audit) if seq is None else seq
        facts = {"backup": name, "opens": True, "problems": [], "seq": seq, "jobs": len(found)}
        if self.run.runs:
            facts["runs"] = {run: state for run, state in self.run.runs.items() if state}
        self.run.backups.append(facts | head)
        self.run.backups += [
            {"backup": name, "job": str(n), "state": state} for n, state in found.items()
        ]
        self.hears("ok", value={"backup": name})
        return name

    def exits(self) -> None:
        self.number += 1
        self.alive = False
        self._write("exit", "ok", {})

    # --- Records.

    def invokes(
        self, f: str, *, job: Job | None = None, fence: int | None = None, value: object = None
    ) -> None:
        self.number += 1
        self.doing = f
        self._write(f, "invoke", {"job": job and job.id, "fence": fence, "value": value})

    def hears(
        self, answer: str, *, job: Job | None = None, fence: int | None = None, value: object = None
    ) -> None:
        self._write(self.doing, answer, {"job": job and job.id, "fence": fence, "value": value})

    def logs(
        self,
        what: str,
        job: Job,
        attempt: int | None,
        fence: int | None,
        outcome: str | None = None,
    ) -> None:
        self.effects += 1
        record = {"t": self.run.tick(), "pid": self.pid, "n": self.effects, "job": job.name}
        fence = job.fence if fence is None else fence
        attempt = self.attempts.setdefault((job.name, fence), attempt or fence - job.forgiven)
        record |= {"attempt": attempt, "fence": fence, "what": what}
        self.effect_lines.append(record if outcome is None else record | {"outcome": outcome})

    def _write(self, f: str, kind: str, rest: dict[str, Any]) -> None:
        record = {"t": self.run.tick(), "pid": self.pid, "process": self.name, "n": self.number}
        known = {name: value for name, value in rest.items() if value is not None}
        self.lines.append(record | {"f": f, "type": kind} | known)


class Run:
    def __init__(self, folder: Path, shown: "Shown | None" = None) -> None:
        self.folder = folder
        self.shown = shown
        self.now = 1_000 * MS
        self.offset_ms = 0  # Of the wall clock that the processes are told.
        self.promises: dict[str, bool | str] = dict.fromkeys(PROMISE_NAMES[:21], True)
        self.promises |= {"P1": "process", "P6": "transaction"}
        self.parameters: dict[str, Any] = dict(PARAMETERS)
        self.edges = dict(EDGES)
        self.facts: dict[str, Any] = {"target": "by hand", "engine": "proc", "seed": 1}
        self.facts["obligations"] = {"obliged": [], "hit": []}
        self.processes: list[Process] = []
        self.jobs: list[Job] = []
        self.audit: list[dict[str, Any]] = []
        self.nemesis: list[dict[str, Any]] = []
        self.tables: list[dict[str, Any]] = []
        self.posts: list[dict[str, Any]] = []
        self.samples: list[dict[str, Any]] = []
        self.recoveries: list[dict[str, Any]] = []
        self.backups: list[dict[str, Any]] = []
        self.runs: dict[str, str | None] = {}
        self.database: str | None = "CREATE TABLE job (id INTEGER PRIMARY KEY)"
        self.audited = True

    # --- Sentences.

    def process(self, name: str) -> Process:
        process = Process(self, name, 100 + len(self.processes))
        self.processes.append(process)
        return process

    def job(self, name: str, **asked: Any) -> Job:
        value = {"id": name, "kind": "k", "priority": 5, "script": ["ok"], "sink": "log"} | asked
        job = Job(name=name, id=len(self.jobs) + 1, asked=value)
        self.jobs.append(job)
        return job

    def commits(self, job: Job, new: str | None, **differently: Any) -> None:
        record: dict[str, Any] = {"seq": len(self.audit) + 1, "t_ms": self.wall_ms, "job": job.id}
        record |= {"old": job.state, "new": new, "fence": job.fence, "attempts": job.attempts}
        record |= {"forgiven": job.forgiven, "priority": job.asked["priority"]}
        record |= {"due_ms": job.due_ms, "kind": job.asked["kind"]}
        if job.asked.get("key") is not None:
            record["key"] = job.asked["key"]
        if job.state is None:
            record["harness_id"] = job.name
        self.audit.append(record | differently)
        job.state = new

    def commits_run(self, name: str, new: str | None, *, run: int = 1) -> None:
        record = {"seq": len(self.audit) + 1, "t_ms": self.wall_ms, "run": run}
        self.audit.append(record | {"old": self.runs.get(name), "new": new, "key": name})
        self.runs[name] = new

    def reaps(self, job: Job, to: str = "available") -> None:
        job.history.append({"fence": job.fence, "outcome": "crashed"})
        self.commits(job, to)

    def passes(self, ms: float) -> None:
        self.now += int(ms * MS)

    def kills(self, process: Process, fault: str = "kill") -> None:
        process.alive = False
        self.strikes(fault, process)

    def pauses(self, process: Process, ms: int) -> None:
        self.strikes("pause", process, t_end=self.now + (ms + 1) * MS)
        self.passes(ms)

    def strikes(self, fault: str, process: Process | None = None, **facts: Any) -> None:
        record: dict[str, Any] = {"t": self.tick(), "fault": fault}
        if process is not None:
            record |= {"pid": process.pid, "process": process.name, "phase": "x.y", "hit": True}
        self.nemesis.append(record | facts)

    def stalls(self, ms: int) -> None:
        self.strikes("stall", t_end=self.now + (ms + 1) * MS)
        self.passes(ms)

    def steps_clock(self, offset_ms: int) -> None:
        """Set the wall clock of all processes to so much beside the true time."""
        before_ms, true_ms = self.offset_ms, self.wall_ms - self.offset_ms
        facts = {"wall_ms": true_ms, "before_ms": before_ms, "offset_ms": offset_ms}
        self.strikes("clock", None, t_end=self.now + MS, **facts)
        self.tick()
        self.offset_ms = offset_ms

    def heals(self) -> None:
        self.strikes("heal")

    # --- Judging.

    def tick(self) -> int:
        self.now += MS
        return self.now

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now // MS + self.offset_ms

    def store(self) -> Store:
        """Write the store; every process that still lives ends in order, a while later."""
        self.passes(50)
        for process in self.processes:
            if process.alive:
                process.exits()
        store = Store.create(self.folder)
        for process in self.processes:
            write(store.history_file(process.name), process.lines)
            write(store.effects / f"{process.pid}.jsonl", process.effect_lines)
        write(store.audit, self.audit if self.audited else [])
        write(store.nemesis, self.nemesis)
        write(store.effects / "table.jsonl", self.tables)
        write(store.effects / "http.jsonl", self.posts)
        write(store.samples, self.samples)
        write(store.recovery, self.recoveries)
        write(store.backups, self.backups)
        rows = [row for job in self.jobs if job.state for row in [snapshot(job)] * job.rows]
        write(store.snapshot, rows)
        store.write_contract(
            Contract(promises=self.promises, parameters=self.parameters, edges=self.edges)
        )
        store.write_run(self.facts)
        if self.database is not None:
            with closing(sqlite3.connect(store.db / "queue.db")) as connection:
                connection.executescript(self.database)
        return store

    def finding(self, promise: str) -> Finding:
        """Run one checker over the store."""
        finding = CHECKERS[promise](Evidence(self.store()))
        if self.shown is not None:
            self.shown.compare({promise: finding_as_record(finding)})
        return finding

    def verdict(self, promise: str) -> str:
        return self.finding(promise).verdict

    def story(self, promise: str) -> str:
        """Return what the first witness of a violation says."""
        finding = self.finding(promise)
        assert finding.verdict == "violated", finding
        assert finding.witnesses[0].lines or promise == "P16", finding
        return finding.witnesses[0].story

    def judged(self, **how: Any) -> Verdict:
        verdict = judge(self.store(), **how)
        if self.shown is not None and not how:
            found = verdict.record["properties"].items()
            self.shown.compare({n: property_as_record(p) for n, p in found if p["checked"]})
        return verdict


def snapshot(job: Job) -> dict[str, Any]:
    row = {"id": job.id, "kind": job.asked["kind"], "state": job.state, "attempts": job.attempts}
    row |= {"payload": job.payload, "error": job.error, "forgiven": job.forgiven}
    row |= {"max_attempts": None, "key": job.asked.get("key"), "due_ms": job.due_ms}
    return row | {"history": job.history} | job.row


def write(path: Path, records: list[dict[str, Any]]) -> None:
    lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")


# --- What a reader is shown.


class Shown:
    """Holds what the checkers show in one test against what they showed when it was read.

    Most tests ask for a verdict and a story. How many cases were looked at, which lines prove the
    story and which job it names is what a person works with, and a checker that gets it wrong
    would pass them all: it is kept in a file, as a whole, and compared here.
    """

    def __init__(self, test: str) -> None:
        self._test, self._number = test, 0

    def compare(self, found: Mapping[str, Any]) -> None:
        self._number += 1
        name = f"{self._test} #{self._number}"
        kept = json.loads(json.dumps(found))
        if os.environ.get("KILLPROOF_WITNESSES") == "write":
            _known()[name] = kept
        elif name in _known():
            assert kept == _known()[name], (
                f"{name}: this is not what {WITNESSES.name} has. If it is meant: "
                "KILLPROOF_WITNESSES=write pytest tests/checkers, and read what git diff shows"
            )


@cache
def _known() -> dict[str, Any]:
    if not WITNESSES.exists():
        return {}
    with open(WITNESSES, encoding="utf-8") as file:
        return dict(entry for line in file for entry in json.loads(line).items())


def is_of_a_test(name: str) -> bool:
    """Say whether the test of a kept entry is still there."""
    file, _, test = name.partition("::")
    path = WITNESSES.with_name(file)
    function = re.split(r"[\[ ]", test)[0]
    return path.exists() and f"def {function}(" in path.read_text("utf-8")


def finding_as_record(finding: Finding) -> dict[str, Any]:
    record: dict[str, Any] = {"verdict": finding.verdict, "checked": finding.checked}
    record |= {"figures": finding.figures} if finding.figures else {}
    record |= {"level": finding.level} if finding.level is not None else {}
    if finding.verdict == "unknown":
        record["reason"] = finding.reason
    if finding.violations:
        record["violations"] = finding.violations
        record["witnesses"] = [
            [witness.job, witness.story, *(f"{file}:{line}" for file, line in witness.lines)]
            for witness in finding.witnesses
        ]
    return record


def property_as_record(found: Mapping[str, Any]) -> dict[str, Any]:
    record = {name: value for name, value in found.items() if name != "witnesses"}
    if found["witnesses"]:
        record["witnesses"] = [
            [w["job"], w["story"], *(f"{line['file']}:{line['line']}" for line in w["lines"])]
            for w in found["witnesses"]
        ]
    return record


@pytest.fixture(scope="session", autouse=True)
def written_witnesses() -> Iterator[None]:
    yield
    if os.environ.get("KILLPROOF_WITNESSES") == "write":
        kept = [(name, found) for name, found in sorted(_known().items()) if is_of_a_test(name)]
        lines = (json.dumps({name: found}) + "\n" for name, found in kept)
        WITNESSES.write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def shown(request: pytest.FixtureRequest) -> Shown:
    return Shown(f"{request.path.name}::{request.node.name}")


@pytest.fixture
def run(tmp_path: Path, shown: Shown) -> Run:
    """A run that has not begun."""
    return Run(tmp_path / "store", shown)


@pytest.fixture
def new_run(tmp_path: Path, shown: Shown) -> Callable[[], Run]:
    """Make one run after another, for a guarantee that needs two."""
    numbers = iter(range(1_000))
    return lambda: Run(tmp_path / f"store-{next(numbers)}", shown)
