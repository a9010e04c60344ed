"""The story of one schedule: a few numbered steps that a person can follow.

A trace has a line for each statement. A story has a step for each part of an operation that
nobody interrupted, and one for each fault: who did what, what the database said to it, which job
changed its state by it, and in the end which promise broke, in the checker's words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from killproof_chaos.sim.judging import ERROR, Violation
from killproof_chaos.sim.runtime import Event, Scheduler
from killproof_chaos.sim.stage import Outcome, Stage
from killproof_evidence.audit import TABLE, audit_records
from killproof_evidence.judge import PROPERTIES

HEALER: Final = "heal"
DRAIN: Final = "drain"
SENTENCES: Final = {entry.number: entry.sentence for entry in PROPERTIES}
FAULTS: Final = frozenset({"crash", "pass", "clock", "lost"})
HANDLER: Final = frozenset({"start", "effect", "end"})
#: Operation -> what somebody does, and what somebody is about to do.
VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "enqueue": ("enqueues", "enqueue"),
    "claim": ("claims", "claim"),
    "extend": ("extends its lease of", "extend its lease of"),
    "ack": ("acks", "ack"),
    "nack": ("nacks", "nack"),
    "release": ("gives back", "give back"),
    "snooze": ("puts off", "put off"),
    "reap": ("reaps", "reap"),
    "cancel": ("cancels", "cancel"),
    "replay": ("replays", "replay"),
}
#: A statement and its answer are cut to so much in the details: rows hold whole payloads.
DETAIL_CHARS_MAX: Final = 100
#: State changes that one step names; a batch may make many.
CHANGES_MAX: Final = 6
#: Places between a number and the widest of its kind in a printed story.
INDENT: Final = "    "


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a story."""

    number: int  #: from 1
    t_ms: int  #: virtual time since the start
    actor: str
    text: str  #: a sentence without the full stop
    changes: tuple[str, ...] = ()  #: what was committed in it: "job 1: available -> leased"
    details: tuple[str, ...] = ()  #: its statements, with what the database answered
    fault: str = ""  #: crash, pass, clock or lost; empty: an operation

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """Yield the step as lines of text."""
        yield f"{self.number:3d}. {self.text}"
        for change in self.changes:
            yield f"{INDENT} = {change}"
        if verbose:
            for detail in self.details:
                yield f"{INDENT}   {detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What happened in one schedule, and which promises broke."""

    target: str
    scenario: str
    actors: tuple[str, ...]
    steps: tuple[Step, ...]
    violations: tuple[Violation, ...]
    schedule: str  #: the choices, such as `7b,19A`

    def text(self, *, verbose: bool = False) -> str:
        """Return the story as lines; the same schedule gives the same bytes anywhere."""
        lines = [f"{self.target}, {self.scenario}, schedule {self.schedule}"]
        for step in self.steps:
            lines += step.lines(verbose=verbose)
        lines += self.endings()
        return "\n".join(lines) + "\n"

    def endings(self) -> list[str]:
        """Return which promises broke, and why; a line that says so where none did."""
        found = []
        for violation in self.violations:
            sentence = SENTENCES.get(violation.promise, "An error that nobody expected")
            name = "" if violation.promise == ERROR else f" ({violation.promise})"
            line = f" => broken: {sentence}{name}"
            found += [] if line in found else [line]
            found.append(f"{INDENT}{violation.story}")
        return found or [" => no promise broke"]


def perform(stage: Stage, scheduler: Scheduler) -> tuple[Outcome, Story] | None:
    """Play the scheduler's next schedule and tell it; None: it has none left."""
    runtime, marks = stage.runtime, list[tuple[int, int]]()
    ended = runtime.transaction_ended

    def noted() -> None:
        # The audit as everybody sees it at this moment: what the last transaction has committed.
        ended()
        if not runtime.quiet:
            marks.append((len(runtime.trace), _audited(stage)))

    first = len(stage.scenario.jobs)
    setattr(runtime, "transaction_ended", noted)  # noqa: B010 - for the length of this run
    try:
        outcome = stage.play(scheduler, keeps_trace=True)
    finally:
        delattr(runtime, "transaction_ended")
    return None if outcome is None else (outcome, _tell(stage, outcome, [(0, first), *marks]))


def _audited(stage: Stage) -> int:
    ((count,),) = stage.database.execute(f"SELECT count(*) FROM {TABLE}").fetchall()  # noqa: S608
    return int(count)


def _tell(stage: Stage, outcome: Outcome, marks: Sequence[tuple[int, int]]) -> Story:
    """Tell a schedule.

    Args:
        stage: on which it was the last.
        outcome: with its trace.
        marks: (events in the trace, records in the audit) whenever a transaction had ended.
    """
    mapping = stage.target.audit
    audit = list(audit_records(stage.database, mapping))
    commits = [
        (events, audit[before:after])
        for (_, before), (events, after) in pairwise(marks)
        if after > before
    ]
    names = {
        record["job"]: record["queue_id"]
        for file, record in outcome.events
        if file.startswith("effects/")
    }
    teller = _Teller(names=names, lease_ms=round(stage.lease * 1_000), id_column=mapping.id)
    parts = list(_parts(outcome.trace))
    steps: list[Step] = []
    for part in parts:
        text = teller.sentence(part, parts)
        if text:
            records = [
                record
                for events, found in commits
                if part.start < events <= part.stop
                for record in found
            ]
            steps.append(
                Step(
                    number=len(steps) + 1,
                    t_ms=part.events[0].t_ms,
                    actor=part.actor,
                    text=text,
                    changes=tuple(_changes(records, whole=part.f == DRAIN)),
                    details=tuple(_details(part)),
                    fault=part.events[0].what if part.is_fault else "",
                )
            )
    return Story(
        target=stage.target.name,
        scenario=stage.scenario.text,
        actors=tuple(stage.scenario.actors),
        steps=tuple(steps),
        violations=outcome.verdict.violations if outcome.verdict is not None else (),
        schedule=outcome.token,
    )


@dataclass(slots=True, kw_only=True)
class _Part:
    """Events of one actor in a row that belong to one operation."""

    actor: str
    number: int  #: of the actor's operation, so that two claims in a row are two
    f: str  #: of the operation; `run` for a handler, `drain` for the healer; empty: none
    start: int  #: events of the trace before it
    stop: int  #: events of the trace up to its last
    events: list[Event] = field(default_factory=list)

    @property
    def is_fault(self) -> bool:
        return self.events[0].what in FAULTS

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.what in kinds]

    @property
    def begins(self) -> bool:
        return bool(self.of("invoke"))

    @property
    def end(self) -> Event | None:
        found = self.of("ok", "fail", "info")
        return found[-1] if found else None


def _parts(trace: Iterable[Event]) -> Iterator[_Part]:
    """Group the events of a trace."""
    numbers: dict[str, int] = {}
    invoked: dict[str, Event] = {}
    part: _Part | None = None
    for at, event in enumerate(trace):
        if event.text == "exit" and event.what == "ok":
            continue
        if event.what == "invoke":
            numbers[event.actor] = numbers.get(event.actor, 0) + 1
            invoked[event.actor] = event
        f = "run" if event.what in HANDLER else event.operation or event.what
        if event.actor == HEALER:
            f = DRAIN
        number = 0 if f == DRAIN else numbers.get(event.actor, 0)
        fresh = part is None or (part.actor, part.number, part.f) != (event.actor, number, f)
        if fresh or event.what in FAULTS or (part is not None and part.is_fault):
            if part is not None:
                yield part
            part = _Part(actor=event.actor, number=number, f=f, start=at, stop=at)
        assert part is not None
        part.events.append(event)
        part.stop = at + 1
    if part is not None:
        yield part


def _changes(records: Sequence[Mapping[str, Any]], *, whole: bool) -> list[str]:
    """Return state changes in words; of a whole drain only what became of each job."""
    moves: dict[Any, list[Any]] = {}
    for at, record in enumerate(records):
        kept = moves.setdefault(
            record["job"] if whole else at, [record["job"], record["old"], None, None]
        )
        kept[2], kept[3] = record["new"], record.get("fence")
    return [_change(*move) for move in moves.values()][:CHANGES_MAX]


def _change(job: Any, old: str | None, new: str | None, fence: Any) -> str:
    token = f" (token {fence})" if new == "leased" and fence else ""
    if old is None:
        return f"job {job}: new, {new}{token}"
    return f"job {job}: {old} -> {new or 'deleted'}{token}"


def _rows_of(answer: object) -> int:
    """Return how many rows a statement changed, from what the trace has of it."""
    if isinstance(answer, int):
        return max(answer, 0)
    if isinstance(answer, list):
        return len(answer)
    return 1 if answer is not None else 0


def _details(part: _Part) -> Iterator[str]:
    for event in part.events:
        if event.what in ("statement", "error"):
            answer = "" if event.answer is None else f" -> {_short(repr(event.answer))}"
            yield _short(" ".join(event.text.split())) + answer


def _short(text: str) -> str:
    return text if len(text) <= DETAIL_CHARS_MAX else f"{text[:DETAIL_CHARS_MAX]} ..."


class _Teller:
    """Finds the words for each part, and remembers who holds what."""

    def __init__(self, *, names: Mapping[str, Any], lease_ms: int, id_column: str) -> None:
        self._names, self._lease_ms = names, lease_ms
        #: A query that returns jobs: its first column is their id.
        self._jobs = re.compile(rf"\bSELECT\s+(?:\w+\.)?(?:\*|{re.escape(id_column)}\b)", re.I)
        #: (actor, job) -> when the lease that the actor was told of runs out, ms
        self._leases: dict[tuple[str, Any], int] = {}
        self._invoked: dict[str, Event] = {}
        self._writer = ""  #: who has the write lock

    def sentence(self, part: _Part, parts: Sequence[_Part]) -> str:
        """Return the step in words; empty where there is nothing to tell."""
        if part.is_fault:
            return self._fault(part)
        for event in part.of("invoke"):
            self._invoked[part.actor] = event
        self._note_writer(part)
        if part.f == DRAIN:
            return self._drain(part)
        if part.f == "run":
            return self._run(part)
        if part.f in ("sleep", "wait"):
            return f"{part.actor} waits ({part.events[-1].text})"
        if part.f == "notify":
            return f"{part.actor} tells all that wait for {part.events[-1].text}"
        return self._operation(part, parts)

    def _operation(self, part: _Part, parts: Sequence[_Part]) -> str:
        f = part.f
        does, do = VERBS.get(f, (f"calls {f} on", f"call {f} on"))
        whom = self._object(part)
        end = part.end
        if end is not None:
            result = self._result(part, end)
            verb = does if part.begins else f"goes on to {do}"
            return f"{part.actor} {verb}{whom}: {result}"
        verb = f"begins to {do}" if part.begins else f"goes on to {do}"
        return f"{part.actor} {verb}{whom}: {self._so_far(part, parts)}"

    def _object(self, part: _Part) -> str:
        event = self._invoked.get(part.actor)
        if event is None:
            return ""
        values: Any = event.values or {}
        job = values.get("job")
        fence = values.get("fence")
        key = (values.get("value") or {}).get("key") if part.f == "enqueue" else None
        found = f" job {job}" if job is not None else ""
        found += f" with token {fence}" if fence is not None else ""
        return found + (f" a job with key {key!r}" if key else "")

    def _result(self, part: _Part, end: Event) -> str:
        values: Any = end.values or {}
        value = values.get("value")
        if end.what != "ok":
            word = "is refused" if end.what == "fail" else "fails"
            return f"{word}, {(value or {}).get('error', '')}"
        job, fence = values.get("job"), values.get("fence")
        if part.f == "claim":
            if job is None:
                return "finds nothing"
            invoked = self._invoked[part.actor].t_ms
            self._leases[part.actor, job] = invoked + self._lease_ms
            attempt = (value or {}).get("attempt")
            return f"gets job {job} (token {fence}, attempt {attempt})"
        if part.f == "enqueue":
            return f"it is job {job}"
        if part.f == "extend":
            self._leases[part.actor, job] = end.t_ms + self._lease_ms
        elif job is not None:
            self._leases.pop((part.actor, job), None)
        if part.f == "reap":
            return f"takes back {value}"
        if value is None or value is True or isinstance(value, dict):
            return "accepted"
        return "refused" if value is False else f"{value}"

    def _so_far(self, part: _Part, parts: Sequence[_Part]) -> str:
        """Return how far an operation has come that something interrupts."""
        later = parts[parts.index(part) + 1 :]
        following = next((p for p in later if p.actor == part.actor and not p.is_fault), None)
        if self._writer not in ("", part.actor) and (
            following is not None and _first_word(following) == "BEGIN"
        ):
            return f"waits for the write lock of {self._writer}"
        told = []
        for event in part.of("statement"):
            first = _word(event)
            if first in ("SELECT", "WITH") and event.answer:
                told.append(self._seen(event))
            elif first in ("UPDATE", "INSERT", "DELETE") and _rows_of(event.answer):
                told.append("has changed")
            elif first in ("COMMIT", "END"):
                told.append("committed")
        if self._writer == part.actor:
            told.append("has the write lock")
        words = list(dict.fromkeys(told))
        if "committed" in words and "has changed" in words:
            return "committed, and has not heard of it yet"
        return ", ".join(word for word in words if word != "committed") or "nothing done yet"

    def _seen(self, event: Event) -> str:
        """Return what a query showed, where it showed jobs."""
        rows: Any = event.answer if isinstance(event.answer, list) else [event.answer]
        ids = {row[0] for row in rows if isinstance(row, tuple) and row}
        known = [str(job) for job in sorted(ids & set(self._names.values()), key=str)]
        if known and self._jobs.search(event.text):
            return f"has seen job {', '.join(known)}"
        return "has read"

    def _run(self, part: _Part) -> str:
        events = part.of(*HANDLER)
        name = events[0].text
        job = f"job {self._names.get(name, name)}"
        kinds = [event.what for event in events]
        end: Any = events[-1].values if kinds[-1] == "end" else None
        made = "makes its effect" if "effect" in kinds else ""
        word = "" if end is None or end["outcome"] == "ok" else f"the handler says {end['outcome']}"
        verb = "runs" if kinds[0] == "start" and kinds[-1] == "end" else (
            "begins to run" if kinds[0] == "start" else "goes on running"
        )  # fmt: skip
        told = " and ".join(part for part in (made, word) if part)
        return f"{part.actor} {verb} {job}" + (f": {told}" if told else "")

    def _drain(self, part: _Part) -> str:
        told = []
        for event in part.events:
            values: Any = event.values or {}
            if event.what == "ok" and event.text == "claim" and values.get("job") is not None:
                told.append(f"job {values['job']} (token {values.get('fence')})")
            elif event.what in ("fail", "info"):
                told.append(f"a refusal: {(values.get('value') or {}).get('error', '')}")
        errors = [event.text for event in part.of("error")][:1]
        what = ", ".join([*dict.fromkeys(told), *errors]) or "nothing"
        return f"all faults have ended; a worker drains the queue and gets {what}"

    def _fault(self, part: _Part) -> str:
        event = part.events[0]
        if event.what == "crash":
            self._leases = {
                key: until for key, until in self._leases.items() if key[0] != event.actor
            }
            if self._writer == event.actor:
                self._writer = ""
            where = f" in its {event.operation}" if event.operation else ""
            return f"{event.actor} dies{where}; what it had not committed is gone"
        if event.what == "pass":
            out = [key for key, until in self._leases.items() if until <= event.t_ms]
            told = "".join(f"; the lease of {who} on job {job} has run out" for who, job in out)
            return f"{event.text} pass{told}"
        if event.what == "clock":
            return f"the wall clock is set {event.text}"
        return "a wake-up is lost"

    def _note_writer(self, part: _Part) -> None:
        for event in part.of("statement"):
            words = event.text.upper().split()
            if words[0] == "BEGIN" and len(words) > 1:
                self._writer = part.actor
            elif words[0] in ("COMMIT", "END", "ROLLBACK") and self._writer == part.actor:
                self._writer = ""


def _word(event: Event) -> str:
    words = event.text.upper().split(None, 1)
    return words[0] if words else ""


def _first_word(part: _Part) -> str:
    found = part.of("statement")
    return _word(found[0]) if found else ""
