"""The numbers behind a report's pictures, computed from a store's evidence.

Every time is in seconds since the first record of the run, so that pictures and tables of one
report share one clock. Nothing here knows HTML. What a picture cannot hold is thinned evenly
and counted as left out, never dropped in silence.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from killproof_chaos.phases import MOMENTS, PHASES
from killproof_evidence.contract import TERMINAL
from killproof_evidence.evidence import Evidence, Story

#: Widths of a time bin, s; the first that gives at most `BINS_MAX` bins is taken.
BIN_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
#: A picture some 900 points wide shows no more; a table of so many rows can still be read.
BINS_MAX: Final = 120
#: Marks of one kind in a picture, so that a run of a day still fits into one small file.
MARKS_MAX: Final = 1_000
#: Nearest-rank p99 of fewer values is just the largest of them.
P99_COUNT_MIN: Final = 100
#: So many hits are the darkest cell, at least: a map of ones must not look like a hot spot.
SHADE_HITS_MIN: Final = 9
#: A producer's kill hits the same phases as a worker's.
SAME_FAULT: Final = {"producer-kill": "kill"}
#: An end on the audit's wall clock may lie so far outside the monotonic run, s, by rounding.
CLOCK_SLACK: Final = 1.0

Mark = TypeVar("Mark")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMark:
    """One fault of the nemesis log."""

    fault: str
    start: float
    end: float | None  #: None: it has no length
    process: str  #: such as w3.2: the second life of worker 3; empty: of nobody in particular
    phase: str
    hit: bool

    @property
    def lane(self) -> str:
        """The process without the number of its life."""
        return self.process.split(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """What happened in one interval; latencies in ms, None where nothing ended in it."""

    start: float
    end: float
    ended: int  #: jobs
    enqueued: int  #: jobs, acknowledged
    claim_ms: float | None  #: median of the claim calls that got a job
    claim_ms_max: float | None
    job_ms: float | None  #: median from enqueue, or due time, to the end
    job_ms_max: float | None
    kills: int
    pauses: int  #: begun in it

    @property
    def ended_per_second(self) -> float:
        """The rate at which jobs ended."""
        return self.ended / (self.end - self.start)

    @property
    def enqueued_per_second(self) -> float:
        """The rate at which jobs were enqueued."""
        return self.enqueued / (self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution in a few numbers, ms."""

    values: tuple[float, ...]  #: in order

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def p50(self) -> float | None:
        """The nearest-rank median."""
        return quantile(self.values, 0.5)

    @property
    def p99(self) -> float | None:
        """The nearest-rank 99th percentile; None where it would only repeat the maximum."""
        return quantile(self.values, 0.99) if self.count >= P99_COUNT_MIN else None

    @property
    def largest(self) -> float | None:
        """The slowest."""
        return self.values[-1] if self.values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One phase under one fault."""

    hits: int
    obliged: bool

    @property
    def missed(self) -> bool:
        """Say whether the run owed a hit here and had none."""
        return self.obliged and self.hits == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """Where the faults of one kind landed."""

    fault: str
    moments: tuple[str, ...]  #: those that any operation of the target has
    #: operation, and a cell for each of the moments; None: the target has no such phase
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    others: tuple[tuple[str, Cell], ...]  #: phases that are no moment of an operation
    elsewhere: int  #: faults whose victim was in no named phase
    largest: int

    def shade(self, cell: Cell) -> float:
        """Return how dark a cell is, 0 to 1: on a log scale, for most hits land in the handler."""
        return math.log1p(cell.hits) / math.log1p(max(self.largest, SHADE_HITS_MIN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All numbers of one report."""

    seconds: float  #: from the first record to the last
    bins: tuple[Bin, ...]
    faults: tuple[FaultMark, ...]
    heal: float | None
    stalls: tuple[tuple[float, float], ...]  #: when no time bound was counted
    claims: Spread
    jobs: Spread
    recovery_idle: Spread  #: kill to re-claim while a peer had nothing to do
    recovery_busy: Spread  #: the same while every peer was busy
    never_reclaimed: int
    heats: tuple[Heat, ...]

    def of(self, *names: str) -> list[FaultMark]:
        """Return the faults of these names."""
        return [mark for mark in self.faults if mark.fault in names]


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank quantile of values in order; None of nothing.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([], 0.5)
    (2.0, None)
    """
    if not ordered:
        return None
    rank = -int(-share * len(ordered) // 1)
    return ordered[min(len(ordered), max(1, rank)) - 1]


def thinned(marks: Sequence[Mark], count_max: int = MARKS_MAX) -> Sequence[Mark]:
    """Return at most so many of the marks, evenly spread over their order, the last included."""
    if len(marks) <= count_max:
        return marks
    last = len(marks) - 1
    return [marks[index * last // (count_max - 1)] for index in range(count_max)]


def figures_of(evidence: Evidence) -> Figures:
    """Compute every number that the pictures and tables of a report show."""
    records = [
        record
        for _, record in evidence.store.read(evidence.store.nemesis)
        if record is not None and isinstance(record.get("t"), int)
    ]
    clock = _Clock(evidence, records)
    faults = tuple(_fault_marks(records, clock))
    enqueued, ended, jobs = _job_times(evidence, clock)
    claims = [
        (clock.seconds(op.t_end), (op.t_end - op.t) / 1e6)
        for op in evidence.history.operations
        if op.f == "claim" and op.type == "ok" and op.job is not None and op.t_end is not None
    ]
    heal = evidence.heal
    # As P18 counts: the clock stands still while nobody but a stopped or foreign process can write.
    recoveries = [
        (r.peers_idle, (r.t_reclaim - r.t_kill - evidence.stalled_ns(r.t_kill, r.t_reclaim)) / 1e6)
        for r in evidence.recoveries
        if r.t_reclaim is not None
    ]
    return Figures(
        seconds=clock.length,
        bins=_bins(clock.length, enqueued, ended, claims, jobs, faults),
        faults=faults,
        heal=None if heal is None else clock.seconds(heal.t),
        stalls=tuple((clock.seconds(a), clock.seconds(b)) for a, b in evidence.stalls),
        claims=_spread(ms for _, ms in claims),
        jobs=_spread(ms for _, ms in jobs),
        recovery_idle=_spread(ms for idle, ms in recoveries if idle),
        recovery_busy=_spread(ms for idle, ms in recoveries if not idle),
        never_reclaimed=len(evidence.recoveries) - len(recoveries),
        heats=tuple(_heats(evidence, faults)),
    )


class _Clock:
    """Turns CLOCK_MONOTONIC nanoseconds into seconds since the first record."""

    def __init__(self, evidence: Evidence, faults: list[dict[str, Any]]) -> None:
        times: list[int] = [record["t"] for record in faults]
        self.start: int = min([op.t for op in evidence.history.operations] + times, default=0)
        self.end: int = max([evidence.t_last, self.start, *times])
        self.length: float = (self.end - self.start) / 1e9

    def seconds(self, t: int) -> float:
        """Return the seconds since the first record."""
        return (t - self.start) / 1e9

    def covers(self, t: int) -> bool:
        """Say whether a moment lies in the run; the wall clock of the audit may be far off."""
        return -CLOCK_SLACK <= self.seconds(t) <= self.length + CLOCK_SLACK


def _fault_marks(records: list[dict[str, Any]], clock: _Clock) -> Iterable[FaultMark]:
    goes_on: dict[object, list[int]] = {}
    for record in records:
        if record.get("fault") == "cont":
            goes_on.setdefault(record.get("pid"), []).append(record["t"])
    for record in records:
        name, t, end = str(record.get("fault")), record["t"], record.get("t_end")
        if name in {"heal", "stall", "cont"}:
            continue
        if name == "pause" and not isinstance(end, int):
            # An engine may write the end of a pause as a line of its own.
            end = min((c for c in goes_on.get(record.get("pid"), ()) if c >= t), default=None)
        yield FaultMark(
            fault=name,
            start=clock.seconds(t),
            end=clock.seconds(end) if isinstance(end, int) else None,
            process=str(record.get("process") or ""),
            phase=str(record.get("phase") or ""),
            hit=bool(record.get("hit")),
        )


Timed = list[tuple[float, float]]


def _job_times(evidence: Evidence, clock: _Clock) -> tuple[list[float], list[float], Timed]:
    """Return when jobs were enqueued, when they ended, and how long each took, by its end."""
    enqueued: list[float] = []
    ended: list[float] = []
    took: Timed = []
    for story in evidence.stories:
        enqueue = story.acknowledged()
        if enqueue is not None and enqueue.t_end is not None:
            enqueued.append(clock.seconds(enqueue.t_end))
        t_end = _ended(evidence, story, clock)
        if t_end is None:
            continue
        ended.append(clock.seconds(t_end))
        if enqueue is None or enqueue.t_end is None:
            continue
        delay = story.asked.get("delay_ms")
        due = enqueue.t_end + int(delay * 1e6 if isinstance(delay, int | float) else 0)
        took.append((clock.seconds(t_end), max(0, t_end - due) / 1e6))
    return enqueued, ended, took


def _ended(evidence: Evidence, story: Story, clock: _Clock) -> int | None:
    """Return when the job first ended, ns: as the queue committed it, else as a worker was told."""
    for change in story.changes:
        if change.new in TERMINAL:
            moment = evidence.monotonic(change.t_ms)
            if clock.covers(moment):
                return moment
            break
    if story.state not in TERMINAL:
        return None
    told = [op.t_end for op in story.outcomes if op.type == "ok" and op.f in {"ack", "nack"}]
    return next((t for t in reversed(told) if t is not None), None)


def _bins(
    length: float,
    enqueued: list[float],
    ended: list[float],
    claims: Timed,
    jobs: Timed,
    faults: tuple[FaultMark, ...],
) -> tuple[Bin, ...]:
    width = next((w for w in BIN_SECONDS if length / w <= BINS_MAX), length / BINS_MAX)
    count = max(1, -int(-length // width)) if length > 0 else 0

    def place(second: float) -> int:
        return min(count - 1, max(0, int(second // width)))

    def counted(moments: Iterable[float]) -> list[int]:
        found = [0] * count
        for moment in moments:
            found[place(moment)] += 1
        return found

    def gathered(timed: Timed) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in range(count)]
        for moment, value in timed:
            found[place(moment)].append(value)
        return [sorted(values) for values in found]

    if count == 0:
        return ()
    ins, outs = counted(enqueued), counted(ended)
    kills = counted(f.start for f in faults if SAME_FAULT.get(f.fault, f.fault) == "kill")
    pauses = counted(f.start for f in faults if f.fault == "pause")
    calls, times = gathered(claims), gathered(jobs)
    return tuple(
        Bin(
            start=index * width,
            end=min((index + 1) * width, max(length, index * width + width / 2)),
            ended=outs[index],
            enqueued=ins[index],
            claim_ms=quantile(calls[index], 0.5),
            claim_ms_max=quantile(calls[index], 1.0),
            job_ms=quantile(times[index], 0.5),
            job_ms_max=quantile(times[index], 1.0),
            kills=kills[index],
            pauses=pauses[index],
        )
        for index in range(count)
    )


def _heats(evidence: Evidence, faults: tuple[FaultMark, ...]) -> Iterable[Heat]:
    """Yield a heat map for each fault that was aimed at phases or has hit one."""
    obliged: set[tuple[str, str]] = set()
    for name in (evidence.run.get("obligations") or {}).get("obliged", ()):
        fault, at, phase = str(name).partition("@")
        if at:
            obliged.add((fault, phase))
    hits = Counter((SAME_FAULT.get(mark.fault, mark.fault), mark.phase) for mark in faults)
    cells = obliged | set(hits)
    for fault in sorted({fault for fault, _ in cells}):
        phases = sorted({p for f, p in cells if f == fault and "." in p}, key=_place_of_phase)
        if phases:
            yield _heat(fault, phases, hits, obliged)


def _place_of_phase(phase: str) -> tuple[int, str]:
    """Sort as a job lives; what another queue's adapter calls its phases comes after."""
    return (PHASES.index(phase) if phase in PHASES else len(PHASES), phase)


def _heat(
    fault: str,
    phases: list[str],
    hits: Mapping[tuple[str, str], int],
    obliged: set[tuple[str, str]],
) -> Heat:
    def cell(phase: str) -> Cell:
        return Cell(hits=hits.get((fault, phase), 0), obliged=(fault, phase) in obliged)

    rows, others = [], []
    # A map has holes only where holes mean something: a fault that was aimed at nothing in
    # particular is told as a list.
    aimed = any(name == fault for name, _ in obliged)
    known = [m for m in MOMENTS if any(_is_moment(phase, m) for phase in phases)]
    for operation in dict.fromkeys(phase.rpartition(".")[0] for phase in phases):
        own = [phase for phase in phases if phase.rpartition(".")[0] == operation]
        if aimed and all(phase.rpartition(".")[2] in MOMENTS for phase in own):
            names = (f"{operation}.{moment}" for moment in known)
            rows.append((operation, tuple(cell(p) if p in own else None for p in names)))
        else:
            others += [(phase, cell(phase)) for phase in own]
    return Heat(
        fault=fault,
        moments=tuple(known),
        rows=tuple(rows),
        others=tuple(others),
        elsewhere=sum(n for (f, p), n in hits.items() if f == fault and p not in phases),
        largest=max(hits.get((fault, phase), 0) for phase in phases),
    )


def _is_moment(phase: str, moment: str) -> bool:
    return phase.rpartition(".")[2] == moment


def _spread(values: Iterable[float]) -> Spread:
    return Spread(values=tuple(sorted(values)))
