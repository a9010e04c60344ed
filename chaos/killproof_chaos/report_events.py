"""Everything that happened to one job, as events in the lanes of its processes.

The history, the effect log, the audit and the nemesis log each tell a part; here they meet on
one clock. Faults are told of a process only while it had to do with the job.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from killproof_evidence.evidence import Evidence, Execution, Story, at, at_end
from killproof_evidence.finding import Line
from killproof_evidence.history import Operation
from killproof_evidence.records import read_lines

#: The lane of what the queue committed, whoever asked for it.
QUEUE_LANE: Final = "queue"

#: What an operation is called while the reader looks at one job.
WORDS: Final = {
    "enqueue": "enqueues the job",
    "claim": "claims the job",
    "extend": "extends its lease",
    "ack": "acks the job",
    "nack": "nacks the job",
    "release": "gives the job back",
    "snooze": "snoozes the job",
    "cancel": "cancels the job",
    "replay": "replays the job",
}
#: Operations after which the process no longer holds the lease, accepted or refused.
GIVES_UP: Final = frozenset({"ack", "nack", "release", "snooze"})
#: How a fault reads in the lane of its victim: the symbol and the words.
FAULTS: Final = {
    "kill": ("✗", "is killed (SIGKILL)"),
    "producer-kill": ("✗", "is killed (SIGKILL)"),
    "pause": ("‖", "is stopped (SIGSTOP)"),
    "term": ("▽", "is asked to stop (SIGTERM)"),
    "handler-exit": ("✗", "has exited inside the handler"),
    "handler-abort": ("✗", "has aborted inside the handler"),
    "io": ("!", "has a disk call fail"),
    "io-end": ("✗", "has ended after a disk call failed"),
    "died": ("✗", "has died, and nothing tells why"),
}
#: Doubt about a time of the audit, ns: it is kept in whole milliseconds.
AUDIT_NS: Final = 2e6
ENDINGS: Final = frozenset(FAULTS) - {"pause", "term", "io"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened to the job, or to a process that had it."""

    t: float  #: CLOCK_MONOTONIC ns
    lane: str
    symbol: str  #: one character; `what` says it in words
    what: str
    line: Line | None = None  #: where it is written; None: computed
    rank: int = 0  #: order among events of one moment
    holds: bool | None = None  #: from here on the lane holds the lease, or no longer
    stopped: bool | None = None  #: from here on the process stands still, or no longer
    ends: bool = False  #: the process is gone
    bad: bool = False  #: a refusal, a fault, an end by force


def events_of(evidence: Evidence, story: Story, cited: set[Line]) -> list[Event]:
    """Return the events of a job in the order of time.

    Args:
        evidence: the run.
        story: the job.
        cited: the lines that prove the violation; of a call and its answer, the cited one is
            named.
    """
    operations = (*story.enqueues, *story.claims, *story.outcomes, *story.controls)
    events = [_operation_event(op, cited) for op in operations]
    events += _execution_events(evidence, story)
    # With a clock that was set, the audit's place among the others is not known.
    times = [] if evidence.clock_stepped else _commit_times(evidence, story)
    if times:
        events += _change_events(story, times)
    events += _deadline_events(evidence, story, times)
    events += _fault_events(evidence, _concerned(evidence, story, times), cited, list(events))
    return sorted(events, key=lambda event: (event.t, event.rank))


def _process(op: Operation) -> str:
    """Return the process; its name goes on with `~1` after an answer that nobody knows."""
    return op.process.partition("~")[0]


def _operation_event(op: Operation, cited: set[Line]) -> Event:
    process = _process(op)
    token = f" with token {op.fence}" if op.fence is not None else ""
    what = f"{process} {WORDS.get(op.f, op.f)}{token}"
    answer = at_end(op)
    # A call and its answer are two lines of the file but one event of the story.
    line = at(op) if answer is None or (at(op) in cited and answer not in cited) else answer
    if op.t_end is None:
        what += ": no answer is on record"
        return Event(t=op.t, lane=process, symbol="?", what=what, line=line, bad=True)
    holds = True if op.f == "claim" and op.type == "ok" else False if op.f in GIVES_UP else None
    if op.type == "ok":
        what += ", and is told that it is too late" if op.value_end is False else ""
        symbol = op.f[0].upper()
        return Event(
            t=op.t_end, lane=process, symbol=symbol, what=what, line=line, rank=1, holds=holds
        )
    error = op.value_end.get("error") if isinstance(op.value_end, dict) else None
    what += ": refused" if op.type == "fail" else ": nobody knows whether it happened"
    what += f" ({error})" if error else ""
    symbol = "!" if op.type == "fail" else "?"
    return Event(
        t=op.t_end, lane=process, symbol=symbol, what=what, line=line, rank=1, holds=holds, bad=True
    )


def _execution_events(evidence: Evidence, story: Story) -> Iterator[Event]:
    times = _effect_times(evidence, story)
    for run in story.executions:
        known = evidence.history.processes.get(run.pid, f"pid {run.pid}")
        process = known.partition("~")[0]
        attempt = f", attempt {run.attempt}" if run.attempt is not None else ""
        started = f"{process} starts the handler{attempt}"
        yield Event(t=run.t, lane=process, symbol="▷", what=started, line=run.at, rank=2)
        if run.effects:
            often = "" if run.effects == 1 else f", {run.effects} times in this attempt"
            yield Event(
                t=times.get((run.file, run.line_effect), run.t),
                lane=process,
                symbol="◆",
                what=f"{process} makes the effect{often}",
                line=(run.file, run.line_effect),
                rank=3,
            )
        if run.ended and run.t_end is not None:
            by_force = run.outcome in {"exit", "abort"}
            yield Event(
                t=run.t_end,
                lane=process,
                symbol="▪",
                what=f"{process} ends the handler" + (f": {run.outcome}" if run.outcome else ""),
                line=(run.file, run.line_end),
                rank=4,
                bad=by_force,
            )


def _effect_times(evidence: Evidence, story: Story) -> dict[Line, int]:
    """Return the time of each effect of the job; the index of the evidence keeps only its line."""
    wanted: dict[str, set[int]] = {}
    for run in story.executions:
        if run.line_effect:
            wanted.setdefault(run.file, set()).add(run.line_effect)
    times: dict[Line, int] = {}
    for file, numbers in wanted.items():
        for number, text in read_lines(evidence.store.path / file, numbers).items():
            times[file, number] = json.loads(text)["t"]
    return times


def _commit_times(evidence: Evidence, story: Story) -> list[float]:
    """Return when each change of the job was committed, monotonic ns, never backwards.

    The audit knows milliseconds of the wall clock; a commit also lies between the call that
    asked for it and the answer, which are known to the nanosecond.
    """
    times: list[float] = []
    for change in story.changes:
        moment: float = evidence.monotonic(change.t_ms)
        claim = story.claim_of(change.fence) if change.takes else None
        if claim is not None and claim.t_end is not None:
            moment = min(max(moment, claim.t), claim.t_end)
        times.append(max(moment, times[-1]) if times else moment)
    return times


def _change_events(story: Story, times: list[float]) -> Iterator[Event]:
    for change, moment in zip(story.changes, times, strict=True):
        token = f", token {change.fence}" if change.fence is not None and change.takes else ""
        what = f"committed: {change.old or 'nothing'} → {change.new or 'deleted'}{token}"
        yield Event(t=moment, lane=QUEUE_LANE, symbol="•", what=what, line=change.at)


def _deadline_events(evidence: Evidence, story: Story, times: list[float]) -> Iterator[Event]:
    """Yield when each lease that nobody ended had run out, whatever happened meanwhile."""
    lease_ms = evidence.lease_ms(story)
    if lease_ms is None:
        return
    last = max((op.t for op in (*story.claims, *story.outcomes)), default=0)
    for claim in story.claims:
        if claim.type != "ok" or claim.t_end is None:
            continue
        began, ended = _lease_in_audit(story, claim, times)
        own = [op for op in story.outcomes if op.fence == claim.fence and op.pid == claim.pid]
        extended = [op.t for op in own if op.f == "extend" and op.type == "ok"]
        deadline = max([began, *extended]) + lease_ms * 1e6
        killed = evidence.killed.get(claim.pid)
        cut = [op.t for op in own if op.f in GIVES_UP] + ([killed.t] if killed else [])
        if deadline > last or min([ended, *cut]) < deadline - AUDIT_NS:
            continue
        process = _process(claim)
        what = f"the lease of {process} has run out ({lease_ms:g} ms)"
        if deadline < claim.t_end:
            # It was stopped inside the claim: nobody can hold what ended before it was told.
            deadline, what = claim.t_end, f"the lease of {process} had run out before this"
        rank = -1 if deadline > claim.t_end else 2
        yield Event(t=deadline, lane=process, symbol="◷", what=what, rank=rank, holds=False)


def _lease_in_audit(story: Story, claim: Operation, times: list[float]) -> tuple[float, float]:
    """Return when the queue committed the lease and when it ended it; where untold, the answer."""
    began: float = claim.t_end or claim.t
    for index, moment in enumerate(times):
        if story.changes[index].takes and story.changes[index].fence == claim.fence:
            following = times[index + 1 :]
            return moment, following[0] if following else math.inf
    return began, math.inf


def _concerned(
    evidence: Evidence, story: Story, times: list[float]
) -> dict[int, tuple[float, float]]:
    """Return from when to when each process had to do with the job, by pid.

    One that took the job and never gave it back has to do with it for good: its kill, however
    late, is part of the story.
    """
    spans: dict[int, tuple[float, float]] = {}

    def widen(pid: int, start: float, end: float) -> None:
        first, last = spans.get(pid, (start, end))
        spans[pid] = (min(first, start), max(last, end))

    given_back: dict[int, int] = {}
    for op in (*story.enqueues, *story.claims, *story.outcomes, *story.controls):
        widen(op.pid, op.t, math.inf if op.t_end is None else op.t_end)
        if op.f in GIVES_UP:
            given_back[op.pid] = max(op.t, given_back.get(op.pid, 0))
    for claim in story.claims:
        if claim.type == "ok" and given_back.get(claim.pid, 0) < claim.t:
            widen(claim.pid, claim.t, math.inf)
    told = evidence.history.last.keys() | evidence.history.exited
    for run in story.executions:
        widen(run.pid, run.t, _last_of(run))
        if run.pid not in told:
            widen(run.holder, *_between_commits(story, run, times))
    return spans


def _between_commits(story: Story, run: Execution, times: list[float]) -> tuple[float, float]:
    """Return from when to when a worker without a history may have had the job.

    From the claim before its handler to the first commit after it: a stop on either side of the
    handler is why the worker came too late, and nothing else on record tells of it.
    """
    ended = _last_of(run)
    taken = [t for t, x in zip(times, story.changes, strict=False) if x.takes and t <= run.t]
    after = [t for t in times if t > ended]
    return taken[-1] if taken else run.t, after[0] if after else ended


def _last_of(run: Execution) -> float:
    return run.t_end if run.ended and run.t_end is not None else math.inf


def _fault_events(
    evidence: Evidence,
    concerned: dict[int, tuple[float, float]],
    cited: set[Line],
    others: list[Event],
) -> Iterator[Event]:
    for number, record in evidence.store.read(evidence.store.nemesis):
        line = ("nemesis.jsonl", number)
        if record is None or record.get("pid") not in concerned or "t" not in record:
            continue
        start, end = concerned[record["pid"]]
        near = record["t"] <= end and start <= (record.get("t_end") or record["t"])
        if near or line in cited:
            yield from _fault_pair(evidence, record, line, others)


def _fault_pair(
    evidence: Evidence, record: dict[str, Any], line: Line, others: list[Event]
) -> Iterator[Event]:
    fault, t = str(record.get("fault")), record["t"]
    symbol, words = FAULTS.get(fault, ("✗", fault))
    known = evidence.history.processes.get(record["pid"], f"pid {record['pid']}")
    process = str(record.get("process") or known).partition("~")[0]
    if any(event.lane == known for event in others):  # The lane of its handlers: no other name is
        process = known  # known of a worker without a history there.
    phase = f" at {record['phase']}" if record.get("phase") else ""
    yield Event(
        t=t,
        lane=process,
        symbol=symbol,
        what=f"{process} {words}{phase}",
        line=line,
        rank=5,
        stopped=True if fault == "pause" else None,
        ends=fault in ENDINGS,
        bad=True,
    )
    if fault == "pause" and isinstance(record.get("t_end"), int):
        # The supervisor writes the time at which it saw the process run again; whatever the
        # process itself did before that, it did awake.
        own = [e.t for e in others if e.lane == process and e.line is not None and e.t > t]
        awake = min([record["t_end"], *own])
        what = f"{process} goes on (SIGCONT)"
        yield Event(t=awake, lane=process, symbol="▶", what=what, line=line, rank=-2, stopped=False)
