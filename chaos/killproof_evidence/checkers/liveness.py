"""P17, P18, P19: what must come to pass once the faults have stopped.

The clock of these promises stands still while a stopped or foreign process holds the write lock,
or while the supervisor was not watching. Where it was starved altogether, the judge turns a
violated bound into `unknown`.
"""

from math import ceil

from killproof_evidence.checkers.limits import Full, Limits, full_times
from killproof_evidence.contract import TERMINAL
from killproof_evidence.evidence import Evidence, Story, at, at_end, where
from killproof_evidence.finding import Finding, Tally

#: How long a queue gets after the heal before an unfinished job counts, ms.
DRAIN_MS_DEFAULT = 10_000
#: How long a due job may wait for its first start after the heal, ms.
STARVE_MS_DEFAULT = 30_000
#: A queue that begins jobs for the first time in this last share of its time is at its backlog.
BACKLOG_SHARE = 0.25
#: States in which a job waits for a person or for another job.
PARKED = frozenset({"held", "blocked"})


def eventual_termination(evidence: Evidence) -> Finding:
    """P17: once faults stop, every acknowledged, uncancelled job ends."""
    tally = Tally()
    heal = evidence.heal
    if heal is None:
        tally.missing("the run has no heal phase")
        return tally.finding("")
    drain_ms = evidence.contract.parameters.get("drain_ms", DRAIN_MS_DEFAULT)
    until = _until(evidence, heal.t)
    for story in evidence.stories:
        enqueue = story.acknowledged()
        if enqueue is None or story.row is None or story.told("cancel"):
            continue
        tally.checked += 1
        state = story.row.state
        if state in TERMINAL or state in PARKED or _is_early(evidence, story, state, until):
            continue
        since = max(heal.t, enqueue.t if enqueue.t_end is None else enqueue.t_end)
        waited_ns = until - since - evidence.stalled_ns(since, until)
        if waited_ns < drain_ms * 1_000_000:
            tally.missing(
                f"job {story.label} is unfinished, and had {waited_ns / 1e9:.1f} s without faults "
                f"of the {drain_ms / 1e3:.1f} s that a queue gets"
            )
            continue
        if excuse := _is_coming(evidence, story, state, heal.t, until):
            tally.missing(f"job {story.label} is unfinished, and {excuse}")
            continue
        tally.violate(
            story.label,
            f"job {story.label} is still {state} after {waited_ns / 1e9:.1f} s without faults",
            at(enqueue),
            at_end(enqueue),
            heal.at,
            *(execution.at for execution in story.executions[-3:]),
            *(change.at for change in story.changes[-4:]),
            story.row.at,
        )
    return tally.finding("no acknowledged job is in the snapshot")


def _until(evidence: Evidence, heal: int) -> int:
    """Return when the queue's time was over: when its workers were asked to end.

    The last record is no measure: workers without a history that stand still leave none.
    Producers are asked at the heal already, and the workers, all at once, when the time is over.
    """
    asked = (fault.t for fault in evidence.faults if fault.fault == "term" and fault.t > heal)
    return max([evidence.t_last, *asked])


def _is_coming(evidence: Evidence, story: Story, state: str, heal: int, until: int) -> str | None:
    """Say what the job was still waiting for that comes by itself; None: nothing.

    A slow machine has a long backlog, and an attempt whose worker has died lasts as long as its
    lease: neither is a queue that has come to a stop.
    """
    lease_ms, maximum = evidence.lease_ms(story), evidence.max_attempts(story)
    waits = state != "leased"
    if state == "leased" and story.executions and lease_ms is not None and maximum is not None:
        since_ns = until - story.executions[-1].t
        if len(story.executions) <= maximum and since_ns < lease_ms * 1_000_000:
            return f"its attempt {len(story.executions)} of {maximum} began less than a lease ago"
        # Its lease has run out a moment ago: it waits behind the others for somebody to come.
        waits = since_ns < 2 * lease_ms * 1_000_000
    if not waits:
        return None
    begun = (other for other in evidence.stories if other.executions and other is not story)
    latest = max((other.executions[0].t for other in begun), default=heal)
    if until - latest < (until - heal) * BACKLOG_SHARE:
        return "the queue came to other jobs for the first time until the end"
    return None


def _is_early(evidence: Evidence, story: Story, state: str, until: int) -> bool:
    """Say whether the job was not due yet at the end of the run."""
    if state == "leased" or story.row is None:
        return False
    due = evidence.moment(story.row.due_ms) if story.row.due_ms is not None else None
    if due is None:
        due = story.enqueues[0].t + (story.asked.get("delay_ms") or 0) * 1_000_000
    return due > until


def bounded_recovery(evidence: Evidence) -> Finding:
    """P18: from the kill of a holder to the next claim, within the declared bound."""
    tally = Tally()
    bound_ms = evidence.contract.parameters.get("recovery_ms")
    if bound_ms is None:
        tally.missing("the contract declares no recovery_ms")
    times: list[float] = []
    for recovery in evidence.recoveries:
        if not recovery.peers_idle:
            continue
        story = evidence.story_of(recovery.job)
        if recovery.t_reclaim is None:
            if story is None or story.state in TERMINAL or story.told("cancel"):
                continue
            tally.checked += 1
            watched_ns = evidence.t_last - recovery.t_kill
            watched_ns -= evidence.stalled_ns(recovery.t_kill, evidence.t_last)
            if watched_ns < (bound_ms or 0) * 1_000_000:
                tally.missing(
                    f"the run ended {watched_ns / 1e6:.0f} ms after the kill of the holder of job "
                    f"{recovery.job}, and {bound_ms} ms are declared"
                )
                continue
            tally.violate(
                recovery.job,
                f"job {recovery.job} was never claimed again after the kill of its holder",
                recovery.at,
                where(story.row),
            )
            continue
        tally.checked += 1
        stalled = evidence.stalled_ns(recovery.t_kill, recovery.t_reclaim)
        passed_ms = (recovery.t_reclaim - recovery.t_kill - stalled) / 1e6
        times.append(passed_ms)
        if bound_ms is not None and passed_ms > bound_ms:
            tally.violate(
                recovery.job,
                f"job {recovery.job} was claimed again {passed_ms:.0f} ms after the kill of its "
                f"holder, and {bound_ms} ms are declared",
                recovery.at,
            )
    if times:
        times.sort()
        tally.figures.update(
            p50=round(quantile(times, 0.5), 1),
            p99=round(quantile(times, 0.99), 1),
            max=round(times[-1], 1),
        )
    return tally.finding("no holder was killed while a peer was idle")


def quantile(ordered: list[float], share: float) -> float:
    """Return the nearest-rank quantile of values in order."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def no_starvation(evidence: Evidence) -> Finding:
    """P19: no due job waits for its first start beyond what is declared."""
    tally = Tally()
    heal = evidence.heal
    if heal is None:
        tally.missing("the run has no heal phase")
        return tally.finding("")
    bound_ms = evidence.contract.parameters.get("starve_ms", STARVE_MS_DEFAULT)
    longest = 0.0
    limits, full = Limits(evidence.contract.parameters.get("limits")), full_times(evidence)
    for story in evidence.stories:
        kind = story.asked.get("kind")
        waited = _wait_after(evidence, story, heal.t, full.get(kind))
        # How long a rate keeps jobs waiting is for whoever enqueues more than it lets through.
        if waited is None or limits.has_rate(kind):
            continue
        tally.checked += 1
        longest = max(longest, waited)
        if waited > bound_ms:
            enqueue = story.enqueues[0]
            tally.violate(
                story.label,
                f"job {story.label} was due and waited {waited / 1e3:.1f} s after the heal for its "
                f"first start, and {bound_ms / 1e3:.1f} s are declared",
                at(enqueue),
                at_end(enqueue),
                heal.at,
                *(execution.at for execution in story.executions[:1]),
            )
    tally.figures["longest_wait_ms"] = round(longest, 1)
    return tally.finding("no job waited for its first start after the heal")


def _wait_after(evidence: Evidence, story: Story, heal: int, full: Full | None) -> float | None:
    """Return the wait for the first start that lies after the heal, ms; None: there was none.

    What it waited for a place below its limit does not count: `full` says when there was none.
    """
    enqueue = story.acknowledged()
    if enqueue is None or enqueue.t_end is None or story.told("cancel"):
        return None
    delay_ms = story.asked.get("delay_ms") or 0
    since = max(enqueue.t_end + delay_ms * 1_000_000, heal)
    if story.executions:
        until = story.executions[0].t
    elif story.claims or story.state in TERMINAL:
        return None
    else:
        until = evidence.t_last
    if until <= since:
        return None
    behind = 0 if full is None else full.within(since, until)
    return max(0, until - since - behind - evidence.stalled_ns(since, until)) / 1e6
