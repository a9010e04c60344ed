"""P4, P5: one live lease at a time, and no outcome under an old one."""

from bisect import bisect_left
from itertools import pairwise
from operator import itemgetter

from killproof_evidence.evidence import (
    LEADS_TO,
    OUTCOMES,
    Change,
    Evidence,
    Story,
    at,
    at_end,
    where,
)
from killproof_evidence.finding import Finding, Tally
from killproof_evidence.history import Operation

#: Earlier claims of the job that each claim is held against: leases further back have long ended,
#: and a job that loops a thousand times must not cost a million comparisons.
CLAIMS_BACK = 4
#: How long a handler may take to start after its claim in a process that does not stand still, ns.
START_NS = 1_000_000_000
#: The same where the handler is a program that has to be started, and its interpreter with it, ns.
START_OF_PROCESS_NS = 2_000_000_000
#: Doubt in placing a commit on the monotonic clock, ns: two clocks and a millisecond's rounding.
DOUBT_NS = 10_000_000


def lease_exclusion(evidence: Evidence) -> Finding:
    """P4: two live leases of one job never overlap."""
    tally = Tally()
    overlaps = overlap_ns = 0
    workers = _workers(evidence)
    is_told = any(story.claims for story in evidence.stories)
    for story in evidence.stories:
        if not is_told:
            _check_overlaps(evidence, tally, story)
        _check_claimed(tally, story, workers)
        for index, claim in enumerate(story.claims):
            if claim.type != "ok":
                continue
            tally.checked += 1
            for earlier in story.claims[max(0, index - CLAIMS_BACK) : index]:
                _check_pair(evidence, tally, story, earlier, claim)
        for change in story.changes:
            if change.takes and change.old == "leased":
                _check_taken_over(evidence, tally, story, change)
        for first, second in pairwise(story.executions):
            if first.t_end is not None and second.t < first.t_end:
                overlaps += 1
                overlap_ns += first.t_end - second.t
    # No violation by itself: a handler that outlives its lease is what fencing is for.
    tally.figures["overlapping_executions"] = overlaps
    tally.figures["overlapping_ms"] = overlap_ns // 1_000_000
    return tally.finding("no claim is on record")


def _check_overlaps(evidence: Evidence, tally: Tally, story: Story) -> None:
    """Where no worker keeps a history, its handlers tell who had the job, and until when for sure.

    A handler starts soon after the claim unless its process stood still in between, so a second
    start well within the length of the lease, while the first handler was at work, is a second
    lease. Without a length no time ends a lease, and a pause explains nothing.
    """
    lease_ms = evidence.lease_ms(story)
    told = evidence.history.last.keys() | evidence.history.exited
    executions = [each for each in story.executions if each.pid not in told]
    tally.checked += len(executions)
    for first, second in pairwise(executions):
        if first.t_end is None or first.t_end <= second.t:
            continue
        if 0 in (first.worker, second.worker):
            continue  # Of one nobody had the job any more: its worker was dead when it began.
        death = evidence.death_floor(first.holder)
        if death is not None and death <= second.t:
            continue  # A program outlives its worker, and whoever sees that may have the job.
        if lease_ms is not None:
            length_ns = lease_ms * 1_000_000
            since = first.t - length_ns
            # Of either: who was stopped between its claim and its handler may be the second here.
            stood_still = evidence.stalled_ns(since, second.t) > 0 or any(
                start <= second.t and end >= since
                for pid in (first.holder, second.holder)
                for start, end in evidence.pauses.get(pid, ())
            )
            start_ns = START_NS if first.worker is None else START_OF_PROCESS_NS
            if stood_still or second.t - first.t + start_ns >= length_ns:
                continue
        tally.violate(
            story.label,
            f"job {story.label} was started by process {second.pid} while process {first.pid} was "
            f"at it, {(second.t - first.t) / 1e6:.0f} ms after that had started",
            first.at,
            second.at,
            (first.file, first.line_end or first.line_effect or first.line),
        )


def _workers(evidence: Evidence) -> set[int]:
    """Return the processes whose claims are on record, with the tokens that they got."""
    if not any(op.fence is not None for story in evidence.stories for op in story.claims):
        return set()
    operations = evidence.history.operations
    return {op.pid for op in operations if op.f == "claim" or op.f in OUTCOMES}


def _check_claimed(tally: Tally, story: Story, workers: set[int]) -> None:
    """Whose claims are on record has one for each token under which it ran a job.

    Without it nobody can tell when that lease began, so nobody can tell that it was alone.
    """
    for execution in story.executions:
        if execution.pid not in workers or execution.fence is None:
            continue
        claim = story.claim_of(execution.fence)
        if claim is None or claim.type != "ok":
            tally.missing(
                f"process {execution.pid} ran job {story.label} under token {execution.fence}, "
                "and no claim of that is on record"
            )


def _check_pair(
    evidence: Evidence, tally: Tally, story: Story, first: Operation, second: Operation
) -> None:
    if first.type != "ok":
        return
    if second.fence is not None and second.fence == first.fence:
        tally.violate(
            story.label,
            f"{first.process} and {second.process} both claimed job {story.label} "
            f"with token {second.fence}",
            at(first),
            at_end(first),
            at(second),
            at_end(second),
        )
        return
    if first.t_end is None or second.t_end is None:
        return
    both_told = max(first.t_end, second.t_end)
    live_until = certainly_live_until(evidence, story, first, before=second.t)
    second_until = certainly_live_until(evidence, story, second, before=both_told)
    if live_until is None or second_until is None or second.t_end >= live_until:
        return
    # One after the other, the first was live at the commit of the second. At the same time, the
    # order of the commits is open, but if both are live when both are told, they overlap.
    if first.t_end < second.t or both_told < min(live_until, second_until):
        tally.violate(
            story.label,
            f"{second.process} claimed job {story.label} while {first.process} held it: "
            f"{(live_until - second.t_end) / 1e6:.0f} ms of the first lease were left",
            at(first),
            at_end(first),
            at(second),
            at_end(second),
        )


def _check_taken_over(evidence: Evidence, tally: Tally, story: Story, change: Change) -> None:
    holder = lease_was_live(evidence, story, change.fence_before, change)
    if holder is not None:
        tally.violate(
            story.label,
            f"job {story.label} was leased again (token {change.fence}) straight from "
            f"{holder.process}, which lived and whose deadline was to come",
            at(holder),
            at_end(holder),
            where(change.before),
            change.at,
        )


def certainly_live_until(
    evidence: Evidence, story: Story, claim: Operation, *, before: int
) -> int | None:
    """Return the moment up to which this lease was live beyond doubt, monotonic ns.

    Counted from the *start* of the claim or of its last accepted extension, and cut short by the
    first try to end it and by the death of its holder. None: the contract declares no length.

    Args:
        evidence: the run.
        story: the job.
        claim: the acknowledged claim that got the lease.
        before: extensions that began later do not count.
    """
    lease_ms = evidence.lease_ms(story)
    if lease_ms is None:
        return None
    start, end = claim.t, evidence.death_floor(claim.pid)
    if claim.pid in evidence.history.ends:
        end = evidence.history.ends[claim.pid][2]
    bounds = [] if end is None else [end]
    for op in story.outcomes_of(claim.fence):
        if op.type == "fail":
            continue
        if op.f != "extend":
            bounds.append(op.t)
        elif op.type == "ok" and op.t <= before:
            start = max(start, op.t)
    bounds += [op.t for op in story.controls if op.type != "fail" and op.t >= claim.t]
    return min(start + lease_ms * 1_000_000, *bounds) if bounds else start + lease_ms * 1_000_000


def lease_was_live(
    evidence: Evidence, story: Story, fence: int | None, change: Change
) -> Operation | None:
    """Return the claim whose lease was live beyond doubt when a change committed, if it was."""
    claim = story.claim_of(fence)
    moment = evidence.moment(change.t_ms)
    if claim is None or claim.type != "ok" or moment is None:
        return None
    live_until = certainly_live_until(evidence, story, claim, before=moment)
    return claim if live_until is not None and moment + DOUBT_NS < live_until else None


def fenced_outcome(evidence: Evidence) -> Finding:
    """P5: a stale ack, nack, extend or release is refused, and told so."""
    tally = Tally()
    refused = told = 0
    for story in evidence.stories:
        _check_rising(tally, story)
        ended = {change.fence_before: change for change in story.changes if change.ends}
        passed_on = _passed_on(story)
        accepted: dict[int | None, Operation] = {}
        for op in story.outcomes:
            refused += op.type == "fail"
            if op.type != "ok":
                continue
            tally.checked += 1
            told += 1
            if op.fence is None:
                tally.missing(f"an accepted {op.f} carries no token")
            elif _check_superseded(tally, story, op, accepted, passed_on):
                continue
            elif op.f in OUTCOMES and story.changes:
                _check_moved(tally, story, op, ended.get(op.fence))
            if op.f in OUTCOMES:
                accepted.setdefault(op.fence, op)
    if not told:
        # Rising tokens alone do not show that anybody looks at them.
        tally.missing("no outcome was accepted")
    tally.figures["refused"] = refused
    return tally.finding("")


def _check_rising(tally: Tally, story: Story) -> None:
    last: Change | None = None
    for change in story.changes:
        if not change.takes:
            continue
        tally.checked += 1
        if last is not None and (change.fence or 0) <= (last.fence or 0):
            tally.violate(
                story.label,
                f"job {story.label} was claimed with token {change.fence} after token "
                f"{last.fence}: it must rise",
                last.at,
                change.at,
            )
        last = change


def _passed_on(story: Story) -> list[tuple[int, Operation]]:
    """Return when the job had certainly gone to a higher token: (time, claim), rising in both."""
    steps: list[tuple[int, Operation]] = []
    known = (op for op in story.claims if op.type == "ok" and op.t_end is not None)
    for op in sorted(known, key=_end_of):
        if op.fence is not None and (not steps or op.fence > (steps[-1][1].fence or 0)):
            steps.append((_end_of(op), op))
    return steps


def _end_of(op: Operation) -> int:
    return op.t if op.t_end is None else op.t_end


def _check_superseded(
    tally: Tally,
    story: Story,
    op: Operation,
    accepted: dict[int | None, Operation],
    passed_on: list[tuple[int, Operation]],
) -> bool:
    """Accuse an outcome that began after its lease had certainly passed on or ended."""
    index = bisect_left(passed_on, op.t, key=itemgetter(0))
    later = passed_on[index - 1][1] if index else None
    if later is not None and (later.fence or 0) <= (op.fence or 0):
        later = None
    first = accepted.get(op.fence)
    if later is not None:
        tally.violate(
            story.label,
            f"{op.process} was told ok for the {op.f} of job {story.label} under token "
            f"{op.fence}, after {later.process} had claimed it with token {later.fence}",
            at(later),
            at_end(later),
            at(op),
            at_end(op),
        )
        return True
    if first is not None and first.t_end is not None and first.t_end < op.t:
        tally.violate(
            story.label,
            f"{op.process} was told ok for the {op.f} of job {story.label} under token "
            f"{op.fence}, whose lease a {first.f} had already ended",
            at(first),
            at_end(first),
            at(op),
            at_end(op),
        )
        return True
    return False


def _check_moved(tally: Tally, story: Story, op: Operation, end: Change | None) -> None:
    """Accuse an outcome that was told ok, though no commit ended this lease in that way."""
    if end is not None and (end.new is None or end.new in LEADS_TO[op.f]):
        return
    claims = [change.at for change in story.changes if change.takes]
    how = "no commit ended that lease" if end is None else f"that lease ended as {end.new}"
    tally.violate(
        story.label,
        f"{op.process} was told ok for the {op.f} of job {story.label} under token {op.fence}, "
        f"but {how}",
        *claims[:10],
        where(end),
        at(op),
        at_end(op),
        story.changes[-1].at,
    )
