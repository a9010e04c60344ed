"""Evidence: a store, read once and indexed by job, as the checkers see it.

Reading is the only place that touches files; a checker is a function of what stands here. A run
of a million records must fit in memory, so records become slotted objects, an execution is one
object for its three lines, and texts that repeat are shared.

Two names meet here. The queue gives a job its id; the harness gave it a name before (`id` in the
payload), because an enqueue whose answer never came has no other. They are tied together by the
answers that did come, by the audit and by the snapshot.
"""

import gc
import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from killproof_evidence.contract import Contract
from killproof_evidence.finding import Line
from killproof_evidence.history import History, Malformed, Operation, read_history
from killproof_evidence.store import Store
from killproof_evidence.wall_clock import CLOCK, WallClock

AUDIT: Final = "audit.jsonl"
SNAPSHOT: Final = "snapshot.jsonl"
NEMESIS: Final = "nemesis.jsonl"
TABLE: Final = "effects/table.jsonl"
HTTP: Final = "effects/http.jsonl"
BACKUPS: Final = "backups.jsonl"
#: What a store has of the queue's file itself; `unread` of run.json, where that could not be read.
OF_THE_FILE: Final = (AUDIT, TABLE, SNAPSHOT)

#: Faults after which a process has no further record; the rest leave it alive.
DEADLY: Final = frozenset({"kill", "producer-kill"})
#: Handler outcomes that end the process by itself.
SELF_ENDED: Final = frozenset({"exit", "abort"})
#: A process that a failing disk call made end: it may stop in the middle of anything.
GAVE_UP: Final = "io-end"
#: Faults during which no bound is counted: nobody else could commit, or nobody was watching.
STANDSTILLS: Final = frozenset({"stall", "lock"})
#: So many operations are looked through faster than an index is made, and cost no memory.
FEW: Final = 8
#: The end of an interval that has none.
FOREVER: Final = 1 << 63
#: Two claims may disagree on the clocks' distance by this much, ns; more is a stepped clock.
STEP_NS: Final = 20_000_000
#: Operations that end a lease, and the states in which they may leave the job.
LEADS_TO: Final = {
    "ack": {"succeeded"},
    "nack": {"retryable", "scheduled", "available", "dead", "held"},
    "release": {"available", "scheduled"},
    "snooze": {"available", "scheduled", "retryable"},
    "hold": {"held"},
}
OUTCOMES: Final = frozenset(LEADS_TO)


@dataclass(slots=True, kw_only=True, eq=False)
class Change:
    """One committed change of a job, in commit order."""

    line: int  #: of audit.jsonl
    t_ms: int  #: wall clock
    old: str | None
    new: str | None
    fence: int | None  #: the token, or the count of attempts where the queue has no token
    attempts: int | None
    forgiven: int | None
    priority: int | None
    due_ms: int | None
    key: str | None
    kind: str | None
    takes: bool  #: a claim: a new lease began, also where an old one was still written down
    before: "Change | None"  #: the change of the same job that was committed before this one
    story: "Story"

    @property
    def at(self) -> Line:
        """Where it is written."""
        return AUDIT, self.line

    @property
    def ends(self) -> bool:
        """Say whether a lease ended here, by whatever cause."""
        return self.old == "leased" and (self.new != "leased" or self.takes)

    @property
    def fence_before(self) -> int | None:
        """The token that this change found: that of the lease which ended, where one did."""
        return self.fence if self.before is None else self.before.fence


@dataclass(slots=True, kw_only=True, eq=False)
class Execution:
    """One start of a handler, with its effect and its end where they came."""

    file: str
    line: int  #: of the start
    pid: int
    attempt: int | None
    fence: int | None
    t: int  #: CLOCK_MONOTONIC ns of the start
    effects: int = 0
    line_effect: int = 0
    line_end: int = 0
    t_end: int | None = None  #: of the last record of this execution
    outcome: str | None = None  #: the word of the script; None: it did not get so far
    result: str | None = None  #: a digest of what it returned; only of steps of a workflow
    given: str | None = None  #: a digest of its payload; only of payloads that were in a file
    saw: dict[str, str] | None = None  #: by need, a digest of what that step had returned
    steps: "list[Memoised] | None" = None  #: the remembered steps that ran in it
    read: dict[str, str] | None = None  #: by remembered step, a digest of what the handler got
    worker: int | None = None  #: the pid that has the job; 0: it had died; None: the handler's own

    @property
    def holder(self) -> int:
        """The pid of the process that has the job, and that a fault must strike to matter."""
        return self.worker or self.pid

    @property
    def at(self) -> Line:
        """Where its start is written."""
        return self.file, self.line

    @property
    def ended(self) -> bool:
        """Say whether the handler came to an end of its own."""
        return self.line_end > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memoised:
    """One run of a step whose result is to be remembered by the attempts that follow."""

    name: str
    line: int
    t: int  #: when it ended, CLOCK_MONOTONIC ns
    result: str  #: a digest of what it returned


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """A job as the snapshot tells it."""

    line: int
    state: str
    kind: str | None
    attempts: int | None
    forgiven: int
    max_attempts: int | None
    key: str | None
    due_ms: int | None
    error: str | None
    name: str | None  #: the harness's, as the payload has it at the end
    digest: str | None  #: of the payload; only of dead jobs, which must keep it; None: not shown
    history: list[dict[str, Any]] | None

    @property
    def at(self) -> Line:
        """Where it is written."""
        return SNAPSHOT, self.line


@dataclass(slots=True, kw_only=True, eq=False)
class Story:
    """Everything that is known of one job."""

    id: str | None  #: the queue's
    name: str | None  #: the harness's
    enqueues: list[Operation] = field(default_factory=list)
    claims: list[Operation] = field(default_factory=list)
    outcomes: list[Operation] = field(default_factory=list)  #: ack nack release snooze extend
    controls: list[Operation] = field(default_factory=list)  #: cancel and replay
    changes: list[Change] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)  #: lines of effects/table.jsonl
    posts: list[int] = field(default_factory=list)  #: lines of effects/http.jsonl
    unstarted: list[Line] = field(default_factory=list)  #: of handlers that never said they began
    _claims_by_fence: dict[int | None, Operation] | None = None
    _outcomes_by_fence: dict[int | None, list[Operation]] | None = None

    @property
    def label(self) -> str | None:
        """The name under which a witness speaks of the job."""
        return self.id if self.id is not None else self.name

    @property
    def row(self) -> Row | None:
        """The job at the end."""
        return self.rows[0] if self.rows else None

    @property
    def asked(self) -> dict[str, Any]:
        """What the enqueue that made the job asked for; empty where it is not on record."""
        birth = self.birth
        return birth.value if birth is not None and isinstance(birth.value, dict) else {}

    @property
    def birth(self) -> Operation | None:
        """The enqueue that made the job: of several under one key, the one whose name it bears."""
        if len(self.enqueues) > 1 and self.name is not None:
            for op in self.enqueues:
                if isinstance(op.value, dict) and str(op.value.get("id")) == self.name:
                    return op
        return self.enqueues[0] if self.enqueues else None

    @property
    def state(self) -> str | None:
        """The last known state; None: gone, or never seen."""
        if self.rows:
            return self.rows[0].state
        return self.changes[-1].new if self.changes else None

    def acknowledged(self) -> Operation | None:
        """Return the enqueue that was acknowledged, if any was."""
        return next((op for op in self.enqueues if op.type == "ok"), None)

    def told(self, f: str) -> list[Operation]:
        """Return the acknowledged cancels or replays that the queue says took effect."""
        return [
            op
            for op in self.controls
            if op.f == f and op.type == "ok" and op.value_end is not False
        ]

    def tried(self, f: str) -> bool:
        """Say whether a cancel or replay may have happened, acknowledged or not."""
        return any(op.f == f and op.type != "fail" for op in self.controls)

    # A poison job may be claimed many thousand times: where there are many, both look-ups use an
    # index, built at the first question, when everything has been read. A few need none.

    def claim_of(self, fence: int | None) -> Operation | None:
        """Return the first claim that got this token."""
        if len(self.claims) <= FEW:
            return next((op for op in self.claims if op.fence == fence), None)
        if self._claims_by_fence is None:
            self._claims_by_fence = {op.fence: op for op in reversed(self.claims)}
        return self._claims_by_fence.get(fence)

    def outcomes_of(self, fence: int | None) -> list[Operation]:
        """Return the outcomes and extensions that carried this token, by time."""
        if len(self.outcomes) <= FEW:
            return [op for op in self.outcomes if op.fence == fence]
        if self._outcomes_by_fence is None:
            self._outcomes_by_fence = {}
            for op in self.outcomes:
                self._outcomes_by_fence.setdefault(op.fence, []).append(op)
        return self._outcomes_by_fence.get(fence, [])

    def settled(self, fence: int | None) -> bool:
        """Say whether an outcome under this token was accepted, or may have been."""
        return any(op.f != "extend" and op.type != "fail" for op in self.outcomes_of(fence))


def happened(story: Story, op: Operation) -> bool | None:
    """Say whether an operation of unknown outcome happened, as the queue's own table tells it.

    None: nothing tells. With an audit nearly every `info` has an answer, which is what spares the
    judge the search that such operations cost elsewhere.
    """
    if op.f == "enqueue":
        return bool(story.changes or story.rows)
    if not story.changes:
        return None
    if op.f in LEADS_TO:
        ended = (c for c in story.changes if c.ends and c.fence_before == op.fence)
        return any(change.new is None or change.new in LEADS_TO[op.f] for change in ended)
    if op.f == "cancel":
        return any(change.new == "cancelled" for change in story.changes)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One line of the nemesis log."""

    line: int
    fault: str
    t: int
    t_end: int | None
    pid: int | None
    hit: bool

    @property
    def at(self) -> Line:
        """Where it is written."""
        return NEMESIS, self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one process, or the file, used at one moment."""

    line: int
    pid: int | None
    values: dict[str, Any]

    @property
    def at(self) -> Line:
        """Where it is written."""
        return "samples.jsonl", self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A kill of a holder and the claim that followed; None: none did."""

    line: int
    job: str
    t_kill: int
    t_reclaim: int | None
    peers_idle: bool

    @property
    def at(self) -> Line:
        """Where it is written."""
        return "recovery.jsonl", self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """One committed change of a workflow's run, in commit order with those of its jobs."""

    line: int  #: of audit.jsonl
    run: str  #: the queue's id
    name: str | None  #: the harness's
    old: str | None
    new: str | None

    @property
    def at(self) -> Line:
        """Where it is written."""
        return AUDIT, self.line


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """A run of a workflow as its producer asked for it."""

    name: str
    start: Operation
    steps: list[Story] = field(default_factory=list)
    count: int = 0  #: of its steps, as asked for


@dataclass(slots=True, kw_only=True, eq=False)
class Backup:
    """One backup, as a process of its own found it after the run."""

    line: int
    name: str  #: as its maker told it
    opens: bool
    error: str | None  #: why it does not open
    problems: list[str]  #: what SQLite finds wrong in it
    seq: int | None  #: the last change that is in it; None: no audit tells
    count: int  #: jobs that were in it
    runs: dict[str, str] | None  #: runs of workflows that were in it; None: nobody looked
    jobs: dict[str, tuple[int, str]] = field(default_factory=dict)  #: id -> its line, its state

    @property
    def at(self) -> Line:
        """Where it is written."""
        return BACKUPS, self.line


class Evidence:
    """A run as the checkers see it."""

    def __init__(self, store: Store) -> None:
        """Read the whole store; this is where the time goes."""
        self.store = store
        self.run: dict[str, Any] = store.read_run()
        self.contract: Contract = store.read_contract()
        self.malformed: list[Malformed] = []
        self.unexplained: list[Malformed] = []
        self.changes: list[Change] = []
        self.run_changes: list[RunChange] = []
        self.runs: dict[str, Run] = {}
        self.stories: list[Story] = []
        self._by_id: dict[str, Story] = {}
        self._by_name: dict[str, Story] = {}
        self._check_files()
        with _no_collector():
            self.wall_clock = WallClock()
            self.faults = self._read_nemesis()
            self.killed: dict[int, Fault] = {
                f.pid: f for f in self.faults if f.fault in DEADLY and f.pid is not None
            }
            self._read_audit()
            self._read_snapshot()
            self.history: History = read_history(store, killed=self.killed)
            self.malformed += self.history.malformed
            self._index_history()
            self.self_ended: dict[int, Line] = {
                f.pid: f.at for f in self.faults if f.fault == GAVE_UP and f.pid is not None
            }
            self._read_effects()
            self._read_sinks()
            self.samples = list(self._read_samples())
            self.recoveries = list(self._read_recoveries())
            self.backups = self._read_backups()
        self.last_seen = self._last_seen()
        self.t_last = max(self.last_seen.values(), default=0)  #: of any process
        self._explain_deaths()
        self.stalls = self._intervals()
        self.pauses = self._pauses()
        self._longest_ns = max(
            (op.t_end - op.t for op in self.history.operations if op.t_end is not None), default=0
        )
        self.clock_stepped = False  #: the clocks parted in the run, and no step on record says why
        self.wall_offset_ns = self._wall_offset()

    # --- Questions that several checkers ask.

    @property
    def starved(self) -> bool:
        """Say whether the supervisor got too little CPU for time bounds to mean anything."""
        return bool(self.run.get("starved"))

    @property
    def heal(self) -> Fault | None:
        """The start of the heal phase."""
        return next((fault for fault in self.faults if fault.fault == "heal"), None)

    def lease_ms(self, story: Story) -> int | None:
        """Return the length of the job's lease in ms; None: not declared."""
        asked = story.asked.get("lease_ms")
        return asked if asked is not None else self.contract.parameters.get("lease_ms")

    def max_attempts(self, story: Story) -> int | None:
        """Return the bound on the job's attempts; None: not declared."""
        # What was asked for, before what the accused says of itself.
        asked = story.asked.get("max_attempts")
        if asked is None and story.row is not None:
            asked = story.row.max_attempts
        return asked if asked is not None else self.contract.parameters.get("max_attempts")

    def story_of(self, job: str) -> Story | None:
        """Return the job of this id, the queue's or the harness's."""
        return self._by_id.get(job) or self._by_name.get(job)

    def stalled_ns(self, start: int, end: int) -> int:
        """Return how much of [start, end] lies in a stall, when no bound may be counted."""
        return sum(max(0, min(end, b) - max(start, a)) for a, b in self.stalls)

    def death_floor(self, pid: int) -> int | None:
        """Return a time at which the process certainly still lived; None: it ended in order."""
        if pid in self.history.exited:
            return None
        if (fault := self.killed.get(pid)) is not None:
            return fault.t
        return self.last_seen.get(pid, 0)

    def monotonic(self, t_ms: int) -> int:
        """Return a time that a process was told, in ms, as CLOCK_MONOTONIC ns, as near as known."""
        return self.wall_clock.true_ms(t_ms) * 1_000_000 - self.wall_offset_ns

    def moment(self, t_ms: int) -> int | None:
        """Return the same, or None where nothing ties the two clocks together for certain."""
        return None if self.clock_stepped or not self.wall_offset_ns else self.monotonic(t_ms)

    def told_in_doubt(self, change: Change) -> bool:
        """Say whether the wall clock may have been stepped between this commit and its decision.

        An operation reads the clock once, before it has the lock, and the audit reads it again: a
        step in between makes an honest claim look early. Where it is not known how long before, the
        longest operation of the run is allowed for.
        """
        if not self.wall_clock.steps:
            return False
        claim = change.story.claim_of(change.fence) if change.takes else None
        if claim is not None and claim.t_end is not None:
            return self.wall_clock.stepped(claim.t, claim.t_end)
        moment = self.monotonic(change.t_ms)
        return self.wall_clock.stepped(moment - self._longest_ns - STEP_NS, moment + STEP_NS)

    # --- Reading.

    def _story(self, id: str | None, name: str | None) -> Story:  # noqa: A002
        """Return the story of a job, tying its two names together."""
        story = self._by_id.get(id) if id is not None else None
        named = self._by_name.get(name) if name is not None else None
        if story is None and named is not None and (id is None or named.id is None):
            story = named
        elif story is not None and named is not None and named is not story and named.id is None:
            _merge(named, story)
            self.stories.remove(named)
            self._by_name[str(name)] = story
        if story is None:
            story = Story(id=None, name=None)
            self.stories.append(story)
        if id is not None and story.id is None:
            story.id = id
            self._by_id[id] = story
        if name is not None and story.name is None:
            story.name = name
            # One name with two ids is a broken promise (P12); the first keeps the name.
            self._by_name.setdefault(name, story)
        return story

    def _bad(self, file: str, line: int, reason: str) -> None:
        self.malformed.append(Malformed(file=file, line=line, reason=reason))

    def _check_files(self) -> None:
        """Compare the files with those that the run left behind, where its engine wrote them down.

        A file that was lost or cut on the way to the judge would otherwise accuse the queue.
        """
        for file in self.run.get("unread") or ():
            self._bad(file, 0, "the queue's file could not be read to its end")
        found = self.store.sizes()
        for file, size in (self.run.get("files") or {}).items():
            if found.get(file) != size:
                now = f"{found[file]} bytes" if file in found else "missing"
                self._bad(file, 0, f"{now}, and the run left {size} bytes")

    def _read_nemesis(self) -> list[Fault]:
        faults = []
        steps = []
        for line, record in self.store.read(self.store.nemesis):
            if record is None or "fault" not in record or "t" not in record:
                self._bad(NEMESIS, line, "torn, or without a fault and a time")
                continue
            if record["fault"] == CLOCK:
                steps.append(record)
            faults.append(
                Fault(
                    line=line,
                    fault=record["fault"],
                    t=record["t"],
                    t_end=record.get("t_end"),
                    pid=record.get("pid"),
                    hit=bool(record.get("hit")),
                )
            )
        try:
            self.wall_clock = WallClock.of_records(steps)
        except (KeyError, TypeError) as error:
            self._bad(NEMESIS, 0, f"a step of the clock with a missing or wrong field ({error})")
        return faults

    def _read_audit(self) -> None:
        words: dict[Any, Any] = {}
        share = words.setdefault
        expected = 1
        for line, record in self.store.read(self.store.audit):
            if record is None:
                self._bad(AUDIT, line, "torn")
                continue
            get = record.get
            # The table never loses a row and its numbers have no gap: a gap is a missing line.
            if get("seq") != expected:
                self._bad(AUDIT, line, f"change {get('seq')} where {expected} was due")
            expected = (get("seq") or expected) + 1
            if "run" in record:
                self.run_changes.append(
                    RunChange(
                        line=line,
                        run=str(record["run"]),
                        name=get("key"),
                        old=get("old"),
                        new=get("new"),
                    )
                )
                continue
            name = get("harness_id")
            story = self._story(str(record["job"]), None if name is None else str(name))
            old, new, key, kind = get("old"), get("new"), get("key"), get("kind")
            fence, attempts = get("fence"), get("attempts")
            if fence is None:
                fence = attempts
            before = story.changes[-1] if story.changes else None
            last = None if before is None else before.fence
            change = Change(
                line=line,
                t_ms=get("t_ms") or 0,
                old=share(old, old),
                new=share(new, new),
                fence=fence,
                attempts=attempts,
                forgiven=get("forgiven"),
                priority=get("priority"),
                due_ms=get("due_ms"),
                key=key,
                kind=share(kind, kind),
                takes=new == "leased" and (old != "leased" or fence != last),
                before=before,
                story=story,
            )
            story.changes.append(change)
            self.changes.append(change)

    def _read_snapshot(self) -> None:
        words: dict[Any, Any] = {}
        share = words.setdefault
        for line, record in self.store.read(self.store.snapshot):
            if record is None or "id" not in record or "state" not in record:
                self._bad(SNAPSHOT, line, "torn, or without an id and a state")
                continue
            get = record.get
            payload = get("payload")
            name = payload.get("id") if isinstance(payload, dict) else None
            story = self._story(str(record["id"]), None if name is None else str(name))
            state, kind = record["state"], get("kind")
            story.rows.append(
                Row(
                    line=line,
                    state=share(state, state),
                    kind=share(kind, kind),
                    attempts=get("attempts"),
                    forgiven=get("forgiven") or 0,
                    max_attempts=get("max_attempts"),
                    key=get("key"),
                    due_ms=get("due_ms"),
                    error=get("error"),
                    name=name,
                    digest=_digest(payload) if state == "dead" else None,
                    history=get("history"),
                )
            )

    def _index_history(self) -> None:
        for op in self.history.operations:
            if op.f == "enqueue":
                value = op.value
                name = value.get("id") if isinstance(value, dict) else None
                story = self._story(op.job, None if name is None else str(name))
                story.enqueues.append(op)
            elif op.f == "start":
                try:
                    self._index_start(op)
                except (AttributeError, KeyError, TypeError) as error:
                    self._bad(op.file, op.line, f"a start that does not say of what ({error})")
            elif op.job is None:
                continue
            else:
                story = self._story(op.job, None)
                if op.f == "claim":
                    story.claims.append(op)
                elif op.f in OUTCOMES or op.f == "extend":
                    story.outcomes.append(op)
                else:
                    story.controls.append(op)
        for story in self.stories:
            for operations in (story.enqueues, story.claims, story.outcomes, story.controls):
                if len(operations) > 1:
                    operations.sort(key=_by_time)

    def _index_start(self, op: Operation) -> None:
        """Read the start of a run as the enqueue of each of its steps."""
        name = str(op.value["run"])
        run = self.runs.setdefault(name, Run(name=name, start=op))
        run.count = len(op.value["steps"])
        told = op.value_end if isinstance(op.value_end, dict) else {}
        ids = told.get("jobs") or {}
        for step in op.value["steps"]:
            number = ids.get(step["id"])
            job = None if number is None else str(number)
            enqueue = replace(op, f="enqueue", job=job, value=step | {"run": name}, value_end=None)
            story = self._story(job, str(step["id"]))
            story.enqueues.append(enqueue)
            if story not in run.steps:
                run.steps.append(story)

    def _read_effects(self) -> None:
        for path in self.store.effect_files():
            _EffectFile(f"effects/{path.name}", self).read(self.store.read(path))
        for story in self.stories:
            if len(story.executions) > 1:
                story.executions.sort(key=_by_time)

    def _read_sinks(self) -> None:
        for file, attribute in ((TABLE, "tables"), (HTTP, "posts")):
            for line, record in self.store.read(self.store.path / file):
                if record is None or "job" not in record:
                    self._bad(file, line, "torn, or without a job")
                    continue
                getattr(self._story(None, str(record["job"])), attribute).append(line)

    def _read_samples(self) -> Iterator[Sample]:
        for line, record in self.store.read(self.store.samples):
            if record is None:
                self._bad("samples.jsonl", line, "torn")
            else:
                yield Sample(line=line, pid=record.get("pid"), values=record)

    def _read_recoveries(self) -> Iterator[Recovery]:
        for line, record in self.store.read(self.store.recovery):
            if record is None or "t_kill" not in record or "job" not in record:
                self._bad("recovery.jsonl", line, "torn, or without a kill and a job")
                continue
            yield Recovery(
                line=line,
                job=str(record["job"]),
                t_kill=record["t_kill"],
                t_reclaim=record.get("t_reclaim"),
                peers_idle=bool(record.get("peers_idle", True)),
            )

    def _read_backups(self) -> dict[str, Backup]:
        """Read what each backup is and holds, by its name."""
        found: dict[str, Backup] = {}
        for line, record in self.store.read(self.store.backups):
            try:
                if record is None:
                    raise KeyError("torn")
                name = record["backup"]
                if "job" in record:
                    found[name].jobs[record["job"]] = line, record["state"]
                    continue
                found[name] = Backup(
                    line=line,
                    name=name,
                    opens=record["opens"],
                    error=record.get("error"),
                    problems=record["problems"],
                    seq=record.get("seq"),
                    count=record.get("jobs", 0),
                    runs=record.get("runs"),
                )
            except (KeyError, TypeError) as error:
                self._bad(BACKUPS, line, f"a record with a missing or wrong field ({error})")
        return found

    def _last_seen(self) -> dict[int, int]:
        seen: dict[int, int] = {}
        for op in self.history.operations:
            t = op.t if op.t_end is None else op.t_end
            if t > seen.get(op.pid, 0):
                seen[op.pid] = t
        for story in self.stories:
            for execution in story.executions:
                t = execution.t if execution.t_end is None else execution.t_end
                if t > seen.get(execution.holder, 0):
                    seen[execution.holder] = t
        for pid, (_, _, t) in self.history.ends.items():
            seen[pid] = max(t, seen.get(pid, 0))
        return seen

    def _explain_deaths(self) -> None:
        """Note processes that neither ended in order nor were killed: an OOM kill, perhaps.

        Each line stands, so a violation that they prove stands too; a pass would rest on sand.
        """
        stopped = {fault.pid for fault in self.faults if fault.fault == "term"}
        for pid, (file, line) in self.history.last.items():
            if pid not in self.killed and pid not in self.self_ended and pid not in stopped:
                reason = "its process ended here, and nothing tells why"
                self.unexplained.append(Malformed(file=file, line=line, reason=reason))

    def _intervals(self) -> list[tuple[int, int]]:
        """Return when nobody could commit or the supervisor slept, joined where they overlap."""
        joined: list[tuple[int, int]] = []
        found = ((f.t, f.t_end) for f in self.faults if f.fault in STANDSTILLS)
        for start, end in sorted((a, b) for a, b in found if b is not None):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        return joined

    def _pauses(self) -> dict[int, list[tuple[int, int]]]:
        """Return, for each pid, when it was stopped; without an end, until the run's."""
        pauses: dict[int, list[tuple[int, int]]] = {}
        for fault in self.faults:
            if fault.pid is None:
                continue
            found = pauses.setdefault(fault.pid, [])
            if fault.fault == "pause":
                found.append((fault.t, FOREVER if fault.t_end is None else fault.t_end))
            elif fault.fault == "cont" and found and found[-1][1] == FOREVER:
                found[-1] = (found[-1][0], fault.t)
        return pauses

    def integrity(self) -> dict[str, list[str]]:
        """Return what SQLite finds wrong in each copied database; an empty list is sound.

        The copies are copied once more, so that opening one does not change the store.
        """
        found: dict[str, list[str]] = {}
        names = sorted(p.name for p in self.store.db.glob("*")) if self.store.db.is_dir() else []
        with tempfile.TemporaryDirectory(prefix="killproof-integrity-") as folder:
            for name in names:
                source = self.store.db / name
                if source.is_file() and not name.endswith(("-shm", ".workers", ".turnstile")):
                    shutil.copyfile(source, Path(folder, name))
            for name in names:
                copy = Path(folder, name)
                if copy.is_file() and _is_database(copy):
                    found[name] = _problems(copy)
        return found

    def _wall_offset(self) -> int:
        """Return wall clock minus monotonic clock, as enqueues and claims bound it; 0: untold.

        An audit row was written between the two ends of its operation, on both clocks; all of
        them together leave a small interval, or none where the wall clock was stepped.
        """
        low, high = -FOREVER, FOREVER
        for change in self.changes:
            story = change.story
            if change.takes:
                op = story.claim_of(change.fence)
            elif change.old is None and _born_once(story):
                op = story.enqueues[0]
            else:
                continue
            if op is not None and op.type == "ok" and op.t_end is not None:
                true_ms = self.wall_clock.true_ms(change.t_ms)
                low = max(low, true_ms * 1_000_000 - op.t_end)
                high = min(high, (true_ms + 1) * 1_000_000 - op.t)
        if low > high + STEP_NS:
            self.clock_stepped = True
        return 0 if high == FOREVER else (low + high) // 2


def _born_once(story: Story) -> bool:
    """Say whether its one enqueue made its one row; a queue may use the id of a row again."""
    return len(story.enqueues) == 1 and sum(c.old is None for c in story.changes) == 1


class _EffectFile:
    """Joins the records of one pid to executions."""

    def __init__(self, name: str, evidence: Evidence) -> None:
        self._name = name
        self._evidence = evidence
        self._open: dict[tuple[Any, ...], Execution] = {}
        self._expected = 1
        self._last = 0
        self._pid = 0

    def read(self, records: Iterable[tuple[int, dict[str, Any] | None]]) -> None:
        """Read the whole file into the stories."""
        torn = 0
        for line, record in records:
            if torn:
                self._bad(torn, "not a JSON object")
            torn = 0
            if record is None:
                torn = line
                continue
            try:
                self._take(line, record)
            except (KeyError, TypeError) as error:
                self._bad(line, f"a record with a missing or wrong field ({error})")
        if torn and self._pid not in self._evidence.killed:
            self._bad(torn, "torn")

    def _take(self, line: int, record: dict[str, Any]) -> None:
        get = record.get
        what, self._pid, t = record["what"], record["pid"], record["t"]
        number = get("n")
        if number is not None:
            # A pid that is used again starts again at 1, and later.
            anew = number == 1 and what == "start" and t > self._last
            if number != self._expected and not anew:
                self._bad(line, f"record {number} where {self._expected} was due")
            self._expected = number + 1
        self._last = t
        name, queue_id = str(record["job"]), get("queue_id")
        key = (name, get("attempt"), get("fence"))
        if what == "start":
            execution = Execution(
                file=self._name,
                line=line,
                pid=self._pid,
                attempt=get("attempt"),
                fence=get("fence"),
                t=t,
                saw=get("saw"),
                given=get("given"),
                worker=get("worker"),
            )
            self._open[key] = execution
            self._place(name, queue_id, execution)
            return
        opened = self._open.get(key)
        if opened is None:
            return self._take_unstarted(line, record)
        opened.t_end = t
        if what == "step":
            opened.steps = opened.steps or []
            name, digest = str(record["name"]), str(record["result"])
            opened.steps.append(Memoised(name=name, line=line, t=t, result=digest))
            return None
        if what == "effect":
            opened.effects += 1
            opened.line_effect = line
            opened.outcome = get("outcome")
        else:
            opened.line_end = line
            opened.outcome = get("outcome")
            opened.result, opened.read = get("result"), get("read")
            del self._open[key]
        if opened.outcome in SELF_ENDED:
            self._evidence.self_ended[self._pid] = (self._name, line)
        return None

    def _take_unstarted(self, line: int, record: dict[str, Any]) -> None:
        """Keep what a handler did that had not said before that it begins.

        Where records have numbers, none is missing before this one, or the gap is told already:
        so it is a fact about the run. After the end of its own execution, and in a file without
        numbers, it is a record that cannot be trusted.
        """
        name, key = str(record["job"]), (record.get("attempt"), record.get("fence"))
        story = self._story_of(name, record.get("queue_id"))
        known = any(e.file == self._name and (e.attempt, e.fence) == key for e in story.executions)
        if known or record.get("n") is None:
            self._bad(line, f"{record['what']} without a start")
        else:
            story.unstarted.append((self._name, line))

    def _place(self, name: str, queue_id: object, execution: Execution) -> None:
        self._story_of(name, queue_id).executions.append(execution)

    def _story_of(self, name: str, queue_id: object) -> Story:
        evidence = self._evidence
        story = evidence._by_id.get(str(queue_id)) if queue_id is not None else None
        if story is None or story.name not in {None, name}:
            story = evidence._story(None, name)
        return story

    def _bad(self, line: int, reason: str) -> None:
        self._evidence._bad(self._name, line, reason)


def _digest(payload: Any) -> str | None:
    return None if payload is None else payload_digest(payload)


def payload_digest(payload: Any) -> str:
    """Return the SHA-256 of a payload in canonical JSON, to compare it without keeping it."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def at(operation: Operation) -> Line:
    """Where the invocation is written."""
    return operation.file, operation.line


class Written(Protocol):
    """Anything that was read from one line."""

    @property
    def at(self) -> Line:
        """Where it is written."""


def where(record: Written | None) -> Line | None:
    """Where a record is written; None where there is none."""
    return None if record is None else record.at


def at_end(operation: Operation) -> Line | None:
    """Where the completion is written; None: it never came."""
    return (operation.file, operation.line_end) if operation.line_end else None


def _is_database(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _problems(path: Path) -> list[str]:
    try:
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute("PRAGMA integrity_check").fetchall()
            problems = [str(row[0]) for row in rows if row[0] != "ok"]
            for table, rowid, parent, _ in connection.execute("PRAGMA foreign_key_check"):
                problems.append(f"row {rowid} of {table} refers to no row of {parent}")
    except sqlite3.Error as error:
        return [str(error)]
    return problems


def _by_time(record: Operation | Execution) -> int:
    return record.t


def _merge(source: Story, target: Story) -> None:
    lists = ("enqueues", "claims", "outcomes", "controls", "executions", "tables", "posts")
    for name in (*lists, "unstarted"):
        getattr(target, name).extend(getattr(source, name))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Stop the cyclic collector: it would walk millions of live objects again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
