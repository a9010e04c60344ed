"""P22: limits hold over all processes, and are used.

The contract names the limits under `limits`, by resource: `kinds` of job that use it, `running` at
once, or `rate` a second with a `burst`.  A kind may use several, and starts when all let it.

**Kept.**  A job runs from the commit of its claim to the commit that ends its lease, so the audit
alone tells how many run at every commit.  A rate is kept if any n starts in a row took at least the
time in which n tokens less the burst come back.  A queue decides by a clock that it read between
the start of the claim and its commit, so the first of the n may count from the start of its claim,
on the monotonic clock: that is what a process is told, and no step of the wall clock moves it.
What it wrote down then says when the next may start, perhaps by another clock that it read at
another moment of that claim: the next is allowed to be early by the length of the claim before.
Where the starts, by the times of their commits, never left less than one token, nothing was ever
kept back by the rate, and it is unknown.

**Used.**  Nobody is accused for a moment of rest.  A limit is not used when a job of it waited
while fewer ran than may, and all that time somebody was free: either he asked, and was told that
there is nothing (the whole of his claim lies in that time, and both the job and the free place were
committed before it, as somebody shows who was told of that or of a later commit), or for longer
than `limit_wait_ms` (5 s) nobody took it, and a worker that lived through it held nothing.  Whether
a token of a rate was there is the queue's to know; but one has come back when the last start is as
long ago as a token takes, and a second more.  A limit that was never reached has not been tried:
that is unknown.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from killproof_evidence.checkers.leases import DOUBT_NS
from killproof_evidence.evidence import FOREVER, Change, Evidence, Story, at, at_end
from killproof_evidence.finding import Finding, Tally
from killproof_evidence.history import Operation

#: So long, without stalls, a job may wait below its limit while a worker has nothing in hand, ms.
WAIT_MS_DEFAULT: Final = 5_000
#: A token may be found so much later than it came, ns: clocks of two processes, rounding, a load.
TOKEN_NS: Final = 1_000_000_000


@dataclass(slots=True, kw_only=True, eq=False)
class Resource:
    """A resource as the contract limits it, and how many of its jobs run."""

    name: str
    kinds: frozenset[str]
    running: int | None  #: at once, at most; None: any number
    rate: float | None  #: starts a second; None: any number
    burst: int
    leased: dict[int, Change] = field(default_factory=dict)  #: the running jobs, by their story

    @property
    def is_full(self) -> bool:
        """Say whether as many run as may."""
        return self.running is not None and len(self.leased) >= self.running


class Limits:
    """The limits of a contract, followed through the commits."""

    def __init__(self, declared: Mapping[str, Mapping[str, Any]] | None) -> None:
        """Take the contract's parameter `limits`."""
        self.resources = [
            Resource(
                name=name,
                kinds=frozenset(rules.get("kinds", (name,))),
                running=rules.get("running"),
                rate=rules.get("rate"),
                burst=int(rules.get("burst", 1)),
            )
            for name, rules in (declared or {}).items()
        ]
        self._by_kind: dict[str | None, list[Resource]] = {}
        for resource in self.resources:
            for kind in resource.kinds:
                self._by_kind.setdefault(kind, []).append(resource)

    @property
    def kinds(self) -> list[str]:
        """The kinds that are limited in any way."""
        return sorted(kind for kind in self._by_kind if kind is not None)

    def of(self, kind: str | None) -> list[Resource]:
        """Return the resources that a kind uses."""
        return self._by_kind.get(kind, [])

    def is_full(self, kind: str | None) -> bool:
        """Say whether no further job of this kind may start now."""
        return any(resource.is_full for resource in self.of(kind))

    def has_rate(self, kind: str | None) -> bool:
        """Say whether a rate may keep this kind back at any moment."""
        return any(resource.rate is not None for resource in self.of(kind))

    def take(self, change: Change) -> list[Resource]:
        """Count a commit; return the resources in which a job has begun to run."""
        begun = []
        for resource in self.of(change.kind):
            story = id(change.story)
            if change.new != "leased":
                resource.leased.pop(story, None)
            else:
                if story not in resource.leased:
                    begun.append(resource)
                resource.leased[story] = change
        return begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time in which a job waited although its limit let one start, and none of its kind did."""

    start: int  #: monotonic ns
    end: int
    waits: Change  #: one of the jobs that waited at its beginning


def limits_kept(evidence: Evidence) -> Finding:
    """P22: running <= limit over all processes, and the limit is reached when work waits."""
    tally = Tally()
    limits = Limits(evidence.contract.parameters.get("limits"))
    if not limits.resources:
        tally.missing("the contract declares no limits")
        return tally.finding("")
    if not evidence.changes:
        tally.missing("no audit: how many jobs ran at once cannot be told")
        return tally.finding("")
    _check_running(evidence, tally, limits)
    for resource in limits.resources:
        if resource.rate is not None:
            _check_rate(evidence, tally, resource)
    if evidence.moment(0) is None:
        tally.missing("nothing ties the audit's clock to the others, so no wait can be measured")
    else:
        _check_used(evidence, tally, Limits(evidence.contract.parameters.get("limits")))
    return tally.finding("no job of a limited kind was claimed")


def _check_running(evidence: Evidence, tally: Tally, limits: Limits) -> None:
    """Count the leased jobs of each resource at every commit."""
    most: dict[str, int] = {}
    for change in evidence.changes:
        for resource in limits.take(change):
            tally.checked += 1
            count = len(resource.leased)
            most[resource.name] = max(count, most.get(resource.name, 0))
            if resource.running is not None and count > resource.running:
                tally.violate(
                    change.story.label,
                    f"{count} jobs of {resource.name} ran at once when job {change.story.label} "
                    f"was claimed, and {resource.running} may",
                    *(other.at for other in resource.leased.values()),
                )
    for resource in limits.resources:
        reached = most.get(resource.name, 0)
        tally.figures[f"running_max {resource.name}"] = reached
        if resource.running is not None and reached < resource.running:
            tally.missing(
                f"the limit of {resource.name} was never reached: at most {reached} jobs ran at "
                f"once, and {resource.running} may"
            )


# --- Rates.


def _check_rate(evidence: Evidence, tally: Tally, resource: Resource) -> None:
    """Hold each start against all before it: of n starts, the burst and what came since.

    With x the number of a start less what the rate gives until its time, no x may exceed the least
    of those before it by more than the burst: one pass instead of all pairs.
    """
    assert resource.rate is not None
    per_ns = resource.rate / 1e9
    first: tuple[float, Change, int] | None = None
    number, last, most, doubt = 0, 0, 0.0, 0
    fullest, gone = inf, 0.0  # The same by the commits alone: most tokens that were gone at once.
    for change, begin, end in _starts(evidence, resource):
        number += 1
        if evidence.wall_clock.stepped(last, end):
            first = None  # What a step of the wall clock does to a bucket is not held against it.
        last = end
        level = number - evidence.monotonic(change.t_ms) * per_ns
        fullest = min(fullest, level)
        gone = max(gone, level + 1 - fullest)
        least = number - begin * per_ns
        if first is None or least < first[0]:
            first = (least, change, number)
        tally.checked += 1
        above = number + 1 - (end + doubt) * per_ns - first[0]
        doubt = end - begin
        most = max(most, above)
        if above > resource.burst + 1e-6:
            count, since = number - first[2] + 1, first[1]
            tally.violate(
                change.story.label,
                f"{count} jobs of {resource.name} started within "
                f"{(change.t_ms - since.t_ms) / 1e3:.3f} s, and its rate is {resource.rate:g} a "
                f"second after a burst of {resource.burst}",
                since.at,
                *(at(op) for op in _claims(since, change)),
                change.at,
            )
            first = None  # One witness for each crowd.
    if gone <= resource.burst - 1:
        tally.missing(
            f"the rate of {resource.name} was never tried: at most {gone:.1f} of its "
            f"{resource.burst} tokens were gone"
        )
    tally.figures[f"starts {resource.name}"] = number
    tally.figures[f"tokens_used_max {resource.name}"] = round(most, 1)


def _starts(evidence: Evidence, resource: Resource) -> Iterator[tuple[Change, int, int]]:
    """Yield the starts of a resource, with the earliest and the latest time each may have been."""
    operations = evidence.history.operations
    slack = max((op.t_end - op.t for op in operations if op.t_end), default=0)
    # Who died in a claim may have been in it for longer than anybody who lived to tell.
    deaths = {pid: fault.t for pid, fault in evidence.killed.items()}
    untold = [(op.t, deaths.get(op.pid, FOREVER)) for op in operations if op.t_end is None]
    for change in evidence.changes:
        if not change.takes or change.kind not in resource.kinds:
            continue
        claim = change.story.claim_of(change.fence)
        if claim is not None and claim.t_end is not None:
            yield change, claim.t, claim.t_end
        else:
            moment = evidence.monotonic(change.t_ms)
            since = (t for t, end in untold if t <= moment + DOUBT_NS and moment - DOUBT_NS <= end)
            yield change, min([moment - slack - DOUBT_NS, *since]), moment + DOUBT_NS


def _claims(*changes: Change) -> Iterator[Operation]:
    for change in changes:
        claim = change.story.claim_of(change.fence)
        if claim is not None:
            yield claim


# --- Is the limit used?


def _check_used(evidence: Evidence, tally: Tally, limits: Limits) -> None:
    gaps = _gaps(evidence, limits)
    starts = {kind: [gap.start for gap in found] for kind, found in gaps.items()}
    for op in evidence.history.operations:
        if op.f != "claim" or op.type != "ok" or op.job is not None or op.t_end is None:
            continue
        asked = op.value.get("kinds") if isinstance(op.value, dict) else None
        for kind, found in gaps.items():
            if asked is not None and kind not in asked:
                continue
            index = bisect_right(starts[kind], op.t - DOUBT_NS) - 1
            if index >= 0 and found[index].end > op.t_end + DOUBT_NS:
                tally.violate(
                    found[index].waits.story.label,
                    f"{op.process} was told that there is nothing to do, while job "
                    f"{found[index].waits.story.label} of kind {kind} waited and fewer jobs of "
                    "its limits ran than may",
                    found[index].waits.at,
                    at(op),
                    at_end(op),
                )
    wait_ns = evidence.contract.parameters.get("limit_wait_ms", WAIT_MS_DEFAULT) * 1_000_000
    for kind, found in gaps.items():
        for gap in found:
            if gap.end - gap.start > wait_ns and not evidence.starved:
                _accuse_sleepers(evidence, tally, kind, gap, wait_ns)


def _gaps(evidence: Evidence, limits: Limits) -> dict[str, list[Gap]]:
    """Return for each kind, in order, when a job of it waited and could have been started."""
    found: dict[str, list[Gap]] = {kind: [] for kind in limits.kinds}
    waiting: dict[str | None, dict[int, Change]] = {kind: {} for kind in found}
    open_since: dict[str, tuple[int, Change]] = {}
    latest: dict[str, int] = {}  # When a job of a resource started last.

    def close(kind: str, moment: int) -> None:
        if kind in open_since:
            start, waits = open_since.pop(kind)
            if moment > start:
                found[kind].append(Gap(start=start, end=moment, waits=waits))

    def free_from(kind: str, moment: int) -> int:
        tokens = (
            latest.get(resource.name, moment) + int(1e9 / resource.rate) + TOKEN_NS
            for resource in limits.of(kind)
            if resource.rate is not None
        )
        return max(moment, *tokens, 0)

    for change, committed in zip(evidence.changes, _committed_by(evidence), strict=True):
        moment = evidence.monotonic(change.t_ms)
        begun = limits.take(change)
        jobs = waiting.get(change.kind)
        if jobs is not None:
            # What is not due yet may not be started: it is left out, whenever that will be.
            if change.new == "available" and (change.due_ms or 0) <= change.t_ms:
                jobs[id(change.story)] = change
            else:
                jobs.pop(id(change.story), None)
        if change.takes:
            latest |= {resource.name: moment for resource in limits.of(change.kind)}
        touched = {kind for resource in limits.of(change.kind) for kind in resource.kinds}
        for kind in touched & found.keys():
            free = bool(waiting[kind]) and not limits.is_full(kind)
            if not free or (begun and (kind == change.kind or limits.has_rate(kind))):
                close(kind, moment)
            if free and kind not in open_since:
                waits = next(iter(waiting[kind].values()))
                open_since[kind] = max(free_from(kind, moment), committed), waits
    for kind in found:
        close(kind, evidence.t_last)
    steps = evidence.wall_clock.steps
    if steps:
        # A clock that is back makes what was due look early: from the first step to the last
        # nobody is accused.
        first, last = min(step.t for step in steps), max(step.t_end for step in steps)
        for kind, gaps in found.items():
            found[kind] = [gap for gap in gaps if gap.end < first or gap.start > last]
    return found


def _committed_by(evidence: Evidence) -> list[int]:
    """Return of each change by when it was certainly committed, monotonic ns.

    The audit's moment is that of the statement: who is stopped before his commit leaves the others
    to see what was before.  What somebody was told is committed, and so is all that stands before
    it in the order of commits.  Of the simulator every call is in the history: what none of those
    told that were under way then is committed when the last of them has ended.
    """
    latest, found = evidence.t_last, []
    knows_all = evidence.run.get("engine") == "sim"
    for change in reversed(evidence.changes):
        ends = _ends_of_all(evidence, change) if knows_all else []
        latest = min(latest, *_answers(change), *ends, evidence.t_last)
        found.append(latest)
    return found[::-1]


def _ends_of_all(evidence: Evidence, change: Change) -> list[int]:
    """Return when the last call had ended that was under way at a change; empty: one never did."""
    moment = evidence.monotonic(change.t_ms)
    latest = moment
    for op in evidence.history.operations:
        if op.t > moment + DOUBT_NS:
            continue
        killed = evidence.killed.get(op.pid)
        end = op.t_end if op.t_end is not None or killed is None else killed.t
        if end is None:
            return []
        latest = max(latest, end)
    return [latest]


def _answers(change: Change) -> list[int]:
    """Return when those who made a change, or found it made, were told so."""
    story = change.story
    if change.takes:
        claim = story.claim_of(change.fence)
        told = [claim] if claim is not None else []
    elif change.old is None:
        told = story.enqueues
    elif change.old == "leased":
        told = [op for op in story.outcomes_of(change.fence) if op.f != "extend"]
    else:
        told = []
    return [op.t_end for op in told if op.type == "ok" and op.t_end is not None]


def _accuse_sleepers(evidence: Evidence, tally: Tally, kind: str, gap: Gap, wait_ns: int) -> None:
    """Accuse the queue if a worker that takes this kind held nothing for too much of the gap."""
    first: dict[int, Operation] = {}
    for op in evidence.history.operations:
        if op.f != "claim" or op.pid in first or op.t > gap.start - DOUBT_NS:
            continue
        asked = op.value.get("kinds") if isinstance(op.value, dict) else None
        if asked is None or kind in asked:
            first[op.pid] = op
    told = {fault.pid for fault in evidence.faults if fault.fault == "term" and fault.t < gap.end}
    busy = {
        claim.pid
        for story in evidence.stories
        for claim in story.claims
        if _may_hold(story, claim, gap)
    }
    for pid, op in first.items():
        end = min(gap.end, evidence.last_seen[pid])
        waited_ns = end - gap.start - evidence.stalled_ns(gap.start, end)
        paused = any(a < gap.end and b > gap.start for a, b in evidence.pauses.get(pid, ()))
        if waited_ns > wait_ns and not paused and pid not in told and pid not in busy:
            tally.violate(
                gap.waits.story.label,
                f"job {gap.waits.story.label} of kind {kind} waited {waited_ns / 1e9:.1f} s, fewer "
                f"jobs of its limits ran than may, and {op.process} had nothing in hand",
                gap.waits.at,
                at(op),
                evidence.history.last.get(pid),
            )
            return


def _may_hold(story: Story, claim: Operation, gap: Gap) -> bool:
    """Say whether this claim's lease may lie in the gap, or nobody knows."""
    if claim.t_end is None or claim.t > gap.end:
        return claim.t_end is None
    ends = [op.t_end for op in story.outcomes_of(claim.fence) if op.f != "extend"]
    return not any(end is not None and end < gap.start for end in ends)


class Full:
    """When no further job of a kind might start, and how much of a span of time that is."""

    def __init__(self) -> None:
        """Begin with never."""
        self._starts: list[int] = []  # Of intervals that do not overlap, in order.
        self._ends: list[int] = []
        self._before: list[int] = []  # How long all intervals before this one are together.

    def add(self, start: int, end: int) -> None:
        """Add an interval that comes after all others."""
        before = self._before[-1] + self._ends[-1] - self._starts[-1] if self._starts else 0
        self._starts.append(start)
        self._ends.append(max(start, end))
        self._before.append(before)

    def within(self, start: int, end: int) -> int:
        """Return how much of [start, end] it is, ns."""
        return max(0, self._until(end) - self._until(start))

    def _until(self, moment: int) -> int:
        index = bisect_right(self._starts, moment) - 1
        if index < 0:
            return 0
        return self._before[index] + min(moment, self._ends[index]) - self._starts[index]


def full_times(evidence: Evidence) -> dict[str | None, Full]:
    """Return for each limited kind when no further job of it might start."""
    limits = Limits(evidence.contract.parameters.get("limits"))
    found: dict[str | None, Full] = {kind: Full() for kind in limits.kinds}
    since: dict[str, int] = {}
    for change in evidence.changes if limits.resources else ():
        limits.take(change)
        for kind in {kind for resource in limits.of(change.kind) for kind in resource.kinds}:
            full = limits.is_full(kind)
            if full and kind not in since:
                since[kind] = evidence.monotonic(change.t_ms)
            elif not full and kind in since:
                found[kind].add(since.pop(kind), evidence.monotonic(change.t_ms))
    for kind, start in since.items():
        found[kind].add(start, evidence.t_last)
    return found
