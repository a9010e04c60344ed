"""P1, P2, P3, P14, P16: what went in is there, nothing else is, and the sums are right."""

import re

from killproof_evidence.checkers.leases import lease_was_live
from killproof_evidence.checkers.schedules import is_scheduled
from killproof_evidence.contract import AT_MOST_ONCE, DELETED, TERMINAL
from killproof_evidence.evidence import Change, Evidence, Execution, Story, at, at_end, where
from killproof_evidence.finding import Finding, Line, Tally
from killproof_evidence.history import Operation

#: Texts under which SQLite's locks reach a client, whatever the queue wraps them in.
LOCK_ERROR = re.compile(r"database (table )?is locked|SQLITE_BUSY|SQLITE_LOCKED|DatabaseBusy")
#: Words of a script at which a handler fails; its outcome must not be told as a success.
FAILED = frozenset({"raise", "permanent"})
#: And those of a file that is broken, or was while somebody looked.
CORRUPT_ERROR = re.compile(r"disk image is malformed|not a database|SQLITE_(CORRUPT|NOTADB)")
#: How long a call may wait for the lock before its error is the declared one, ms.
BUSY_MS_DEFAULT = 30_000


def durable_acknowledgement(evidence: Evidence) -> Finding:
    """P1: an acknowledged enqueue is present or terminal at the end, and its payload whole."""
    tally = Tally()
    vanished: list[Story] = []
    for story in evidence.stories:
        _check_given(evidence, tally, story)  # Also of a job of which nobody was told: it is there.
        enqueue = story.acknowledged()
        if enqueue is None:
            continue
        tally.checked += 1
        _check_own(evidence, tally, story)
        if story.row is None and _was_taken_for_good(evidence, story):
            if not story.executions:
                vanished.append(story)
        elif story.row is None and not _may_be_gone(evidence, story):
            seen = story.changes[-1].at if story.changes else None
            starts = (execution.at for execution in story.executions[-3:])
            tally.violate(
                story.label,
                f"job {story.label} was acknowledged, never ended, and is gone",
                at(enqueue),
                at_end(enqueue),
                seen,
                *starts,
            )
    _check_vanished(evidence, tally, vanished)
    return tally.finding("no enqueue was acknowledged", level="process")


def _was_taken_for_good(evidence: Evidence, story: Story) -> bool:
    """Say whether the queue promises at most once, and its contract lets this row go at the claim.

    What such a queue has handed to a worker is the worker's, and dies with it.
    """
    if evidence.contract.promised("P6") != AT_MOST_ONCE:
        return False
    if not story.changes:
        return any(DELETED in new for new in evidence.contract.edges.values())
    last = story.changes[-1]
    return last.new is None and evidence.contract.allows(last.old, None)


def _check_vanished(evidence: Evidence, tally: Tally, vanished: list[Story]) -> None:
    """Of the jobs that are gone and never started, each needs a worker that died with it."""
    # Who puts jobs in takes none out.
    producers = {op.pid for op in evidence.history.operations if op.f == "enqueue"}
    deaths = len((evidence.killed.keys() | evidence.self_ended.keys()) - producers)
    for story in vanished[deaths:]:
        enqueue = story.acknowledged()
        assert enqueue is not None
        tally.violate(
            story.label,
            f"{len(vanished)} acknowledged jobs are gone that never started, {story.label} among "
            f"them, and {deaths} processes died that may have had one in hand",
            at(enqueue),
            at_end(enqueue),
            story.changes[-1].at if story.changes else None,
        )


def _check_given(evidence: Evidence, tally: Tally, story: Story) -> None:
    """What a handler was given is what was enqueued, also where it was in a file of its own."""
    digest, spilled = story.asked.get("digest"), story.asked.get("spill")
    for execution in story.executions:
        if spilled and execution.given is None:
            tally.missing(f"the handler of job {story.label} does not tell what it was given")
        if execution.given is not None and digest is not None and execution.given != digest:
            tally.violate(
                story.label,
                f"the handler of job {story.label} was given another payload than was enqueued",
                None if story.birth is None else at(story.birth),
                execution.at,
            )
    started = {execution.fence for execution in story.executions}
    bound = evidence.max_attempts(story)
    if not spilled or bound is None:
        return
    for change in story.changes:
        attempts = (change.attempts or 0) - (change.forgiven or 0)
        # A payload that is lost is found before the handler begins, and for good; the last of the
        # attempts may also have ended with its worker.
        if change.new == "dead" and change.fence_before not in started and attempts < bound:
            tally.violate(
                story.label,
                f"job {story.label} was given up, and its handler had not even begun",
                None if story.birth is None else at(story.birth),
                where(change.before),
                change.at,
            )


def _check_own(evidence: Evidence, tally: Tally, story: Story) -> None:
    """Each acknowledged enqueue has a job of its own, and that bears the name that it was given.

    A key is there to make two enqueues one job, and a run has one name: the job may bear that of an
    enqueue under its key which nobody has heard of. The dead are P13's.
    """
    tried = [op for op in story.enqueues if op.type != "fail" and isinstance(op.value, dict)]
    enqueues = [op for op in tried if op.type == "ok" and op.job is not None]
    asked = [op.value for op in enqueues]
    alone = [value for value in asked if value.get("key") is None and "run" not in value]
    births = sum(change.old is None for change in story.changes)
    # Without an audit nothing tells how often a row has gone, and another got its id.
    is_untold = not story.changes and any(DELETED in to for to in evidence.contract.edges.values())
    if len(alone) > max(births, 1) and not is_untold:
        tally.violate(
            story.label,
            f"{len(alone)} enqueues without a key were acknowledged as job {story.label}, and "
            f"it is {max(births, 1)}",
            *(line for op in enqueues[:8] for line in (at(op), at_end(op))),
            *(change.at for change in story.changes[:1]),
        )
    row, names = story.row, {str(op.value.get("id")) for op in tried} if asked else set()
    if row is None or row.name is None or row.state == "dead" or not names:
        return
    if is_untold or births > max(len(enqueues), 1):
        return  # The last who got this id may be one who never heard of it.
    if str(row.name) not in names:
        tally.violate(
            story.label,
            f"job {story.label} has the payload of {row.name} at the end, which is not what was "
            "enqueued",
            at(enqueues[0]),
            row.at,
        )


def _may_be_gone(evidence: Evidence, story: Story) -> bool:
    """Say whether the contract lets the row of this job go, and the job ended before it went."""
    ended = bool(story.told("cancel")) or any(
        execution.ended and execution.effects for execution in story.executions
    )
    if story.changes:
        last = story.changes[-1]
        return (
            last.new is None
            and evidence.contract.allows(last.old, None)
            and (ended or last.old in TERMINAL)
        )
    return ended and any(DELETED in new for new in evidence.contract.edges.values())


def no_phantom(evidence: Evidence) -> Finding:
    """P2: every job that exists or ran was enqueued, and none that was refused exists."""
    tally = Tally()
    anonymous: list[Story] = []
    unanswered = 0
    for story in evidence.stories:
        traces = _traces(story)
        if not traces:
            unanswered += any(op.type == "info" for op in story.enqueues)
            continue
        tally.checked += 1
        if not story.enqueues:
            if is_scheduled(evidence, story):
                continue  # Whether its slot was to have one, says P12.
            if story.name is None:
                anonymous.append(story)
            else:
                tally.violate(
                    story.label, f"job {story.label} exists, but nobody enqueued it", *traces
                )
        elif all(op.type == "fail" for op in story.enqueues):
            tally.violate(
                story.label,
                f"the enqueue of job {story.label} was refused, yet the job exists",
                at(story.enqueues[0]),
                at_end(story.enqueues[0]),
                *traces,
            )
    # A target that keeps no payload hides which unanswered enqueue a nameless job came from.
    for story in anonymous[unanswered:]:
        tally.violate(
            story.label,
            f"job {story.label} exists, and no unanswered enqueue is left that could be its own",
            *_traces(story),
        )
    return tally.finding("no job exists")


def _traces(story: Story) -> list[Line]:
    found: list[Line] = [change.at for change in story.changes[:1]]
    found += [row.at for row in story.rows[:1]]
    found += [execution.at for execution in story.executions[:1]]
    found += [("effects/table.jsonl", line) for line in story.tables[:1]]
    found += [("effects/http.jsonl", line) for line in story.posts[:1]]
    return found


def nothing_done_unseen(evidence: Evidence) -> Finding:
    """P3: succeeded implies a start and an effect; no lease ends without a cause."""
    tally = Tally()
    acks_recorded = any(story.outcomes for story in evidence.stories)
    for story in evidence.stories:
        _check_unstarted(tally, story)
        succeeded = [change for change in story.changes if change.new == "succeeded"]
        if succeeded or story.state == "succeeded":
            tally.checked += 1
            _check_effect(tally, story)
        _check_acked(evidence, tally, story)
        if acks_recorded:
            for change in story.changes:
                if change.ends and change.new != "leased":
                    tally.checked += 1
                    _check_cause(evidence, tally, story, change)
            _check_asked_to_cancel(evidence, tally, story)
    if evidence.clock_stepped:
        tally.missing("the wall clock was stepped, so no lease's end can be placed in time")
    return tally.finding("no job succeeded")


def _check_effect(tally: Tally, story: Story) -> None:
    made = any(execution.effects for execution in story.executions)
    end = story.row.at if story.row else story.changes[-1].at
    if not story.executions:
        never = f"job {story.label} succeeded, but its handler never started"
        tally.violate(story.label, never, end, *story.unstarted[:8])
    elif not (made or story.tables or story.posts):
        starts = (execution.at for execution in story.executions[:5])
        tally.violate(story.label, f"job {story.label} succeeded without an effect", end, *starts)


def _check_unstarted(tally: Tally, story: Story) -> None:
    """What a handler did, it did after it had said that it begins."""
    if story.unstarted:
        tally.checked += 1
        tally.violate(
            story.label,
            f"the handler of job {story.label} left traces, and had not said that it begins",
            *story.unstarted[:8],
        )


def _check_acked(evidence: Evidence, tally: Tally, story: Story) -> None:
    """Nobody acks what his own handler has failed at, or has not come to the end of."""
    acked = {op.fence: op for op in story.outcomes if op.f == "ack" and op.type == "ok"}
    for execution in story.executions if acked else ():
        ack = acked.get(execution.fence)
        if ack is None or ack.fence is None or ack.pid != execution.pid:
            continue
        how = _undone(evidence, story, execution)
        if how is not None:
            tally.violate(
                story.label,
                f"{ack.process} was told ok for its ack of job {story.label}, whose handler {how}",
                execution.at,
                (execution.file, execution.line_end) if execution.ended else None,
                at(ack),
                at_end(ack),
            )


def _check_asked_to_cancel(evidence: Evidence, tally: Tally, story: Story) -> None:
    """Nothing is cancelled unasked, but a step whose run goes on without it."""
    # Whoever records a step by itself, and not its run as a whole, tells what it needs.
    is_step = "run" in story.asked or story.asked.get("needs") is not None
    if is_step or story.tried("cancel") or is_scheduled(evidence, story):
        return
    operations = evidence.history.operations
    if any(op.f == "cancel" and op.job is None and op.type != "fail" for op in operations):
        return  # Somebody has cancelled jobs without naming them: this may be one of those.
    for change in story.changes:
        if change.new == "cancelled" and change.old != "cancelled":
            tally.violate(
                story.label,
                f"job {story.label} was cancelled, and nobody had asked for that",
                where(change.before),
                change.at,
            )


def _undone(evidence: Evidence, story: Story, execution: Execution) -> str | None:
    """Say what is missing from an execution that was acked; None: nothing."""
    if not execution.ended:
        # Who ends in order has come to the end of his handlers, and each says so.
        return "never came to its end" if execution.pid in evidence.history.exited else None
    if execution.outcome in FAILED:
        return f"failed ({execution.outcome})"
    # The row of a table is written by the queue; of each other effect the handler says so.
    if not execution.effects and story.asked.get("sink", "table") != "table":
        return "ended without its effect"
    return None


def _check_cause(evidence: Evidence, tally: Tally, story: Story, change: Change) -> None:
    """Look for what ended this lease: an outcome, a cancel, a death or the deadline."""
    fence = change.fence_before
    if story.settled(fence):
        return
    if change.new == "cancelled" and story.tried("cancel"):
        return
    if change.new == "succeeded":
        claim = story.claim_of(fence)
        tally.violate(
            story.label,
            f"job {story.label} became succeeded under token {fence}, and nobody had acked that",
            None if claim is None else at(claim),
            change.at,
            *(at(op) for op in story.outcomes[:8]),
        )
    elif (holder := lease_was_live(evidence, story, fence, change)) is not None:
        tally.violate(
            story.label,
            f"the lease of job {story.label} (token {fence}) ended as {change.new} without an "
            f"outcome, while its holder {holder.process} lived and its deadline was to come",
            at(holder),
            at_end(holder),
            change.at,
        )


def conservation(evidence: Evidence) -> Finding:
    """P14: the counts by state add up at every commit, and at the end."""
    tally = Tally()
    if not evidence.changes:
        return tally.finding("no change of a job is in the audit")
    for story in evidence.stories:
        before: Change | None = None
        for change in story.changes:
            tally.checked += 1
            expected = before.new if before is not None else None
            if change.old != expected:
                tally.violate(
                    story.label,
                    f"job {story.label} was {expected or 'absent'} after one commit and "
                    f"{change.old or 'absent'} before the next",
                    where(before),
                    change.at,
                )
            before = change
        final = before.new if before is not None else None
        states = [row.state for row in story.rows]
        if (story.changes or story.rows) and states != [final] * (final is not None):
            tally.violate(
                story.label,
                f"job {story.label} was {final or 'absent'} after the last commit, and the "
                f"snapshot tells it as {', '.join(states) or 'absent'}",
                where(before),
                *(row.at for row in story.rows),
            )
    return tally.finding("no change of a job is in the audit")


def integrity(evidence: Evidence) -> Finding:
    """P16: integrity_check and foreign keys hold; no client met a lock error or a broken file."""
    tally = Tally()
    for name, problems in evidence.integrity().items():
        tally.checked += 1
        if problems:
            tally.violate(None, f"{name}: {'; '.join(problems[:5])}")
    busy_ms = evidence.contract.parameters.get("busy_ms", BUSY_MS_DEFAULT)
    for op in evidence.history.operations:
        if op.type == "ok" or op.value_end is None:
            continue
        end = op.value_end if isinstance(op.value_end, dict) else {"error": op.value_end}
        if CORRUPT_ERROR.search(str(end.get("error", ""))):
            story = f"{op.f} of process {op.process} was told that the file is broken"
            tally.violate(op.job, story, at(op), at_end(op))
        # A caller may ask for less patience, as a worker does that was told to stop.
        limit_ms = min(busy_ms, end.get("limit_ms", busy_ms))
        if LOCK_ERROR.search(str(end.get("error", ""))) and _waited_ms(op) < limit_ms:
            tally.violate(
                op.job,
                f"{op.f} of process {op.process} met a lock error after "
                f"{_waited_ms(op):.0f} ms, within the {limit_ms} ms it may wait",
                at(op),
                at_end(op),
            )
    return tally.finding("no copy of the database in db/")


def _waited_ms(op: Operation) -> float:
    return ((op.t if op.t_end is None else op.t_end) - op.t) / 1e6
