"""P6: exactly one effect where promised; elsewhere each further one has a fault to blame."""

from itertools import pairwise

from killproof_evidence.checkers.leases import (
    START_NS,
    START_OF_PROCESS_NS,
    certainly_live_until,
)
from killproof_evidence.contract import AT_MOST_ONCE
from killproof_evidence.evidence import HTTP, TABLE, Evidence, Execution, Story, at, at_end, where
from killproof_evidence.finding import Finding, Tally
from killproof_evidence.history import Operation


def single_effect(evidence: Evidence) -> Finding:
    """P6: exactly-once effect in the transaction or by key; duplicates bounded by faults."""
    level = evidence.contract.promised("P6")
    tally = Tally()
    repeated = 0
    for story in evidence.stories:
        if story.executions:
            tally.checked += 1
        sink = story.asked.get("sink")
        if sink == "table" and level == "transaction":
            _check_rows(tally, story)
        elif sink == "http" and level in {"transaction", "key"}:
            _check_posts(tally, story)
        elif level == AT_MOST_ONCE:
            _check_once(tally, story)
        repeated += max(0, sum(execution.effects for execution in story.executions) - 1)
        for execution in story.executions:
            if execution.effects > 1:
                tally.violate(
                    story.label,
                    f"one execution of job {story.label} made its effect {execution.effects} times",
                    execution.at,
                    (execution.file, execution.line_effect),
                )
        ordered = _in_order_of_claims(story.executions)
        for first, second in pairwise(ordered):
            if not _excused(evidence, story, first, second):
                _accuse(tally, story, first, second)
    tally.figures["repeated_effects"] = repeated
    return tally.finding("no handler started", level=level if isinstance(level, str) else None)


def _in_order_of_claims(executions: list[Execution]) -> list[Execution]:
    """Order executions by token: a worker stopped before its handler may start after a later one.

    Where a queue has no token, the order of the starts must do.
    """
    if len(executions) < 2 or any(execution.fence is None for execution in executions):
        return executions
    return sorted(executions, key=lambda execution: (execution.fence or 0, execution.t))


def _check_once(tally: Tally, story: Story) -> None:
    """No fault excuses a second start where at most one is promised; a person's replay does."""
    if len(story.executions) > 1 and not story.tried("replay"):
        tally.violate(
            story.label,
            f"job {story.label} was started {len(story.executions)} times, and at most once is "
            "promised",
            *(execution.at for execution in story.executions[:8]),
        )


def _check_rows(tally: Tally, story: Story) -> None:
    wanted = int(story.state == "succeeded")
    if story.state is not None and len(story.tables) != wanted:
        tally.violate(
            story.label,
            f"job {story.label} ended as {story.state}, and its transaction left "
            f"{len(story.tables)} rows where {wanted} was due",
            *((TABLE, line) for line in story.tables[:8]),
            where(story.row),
            *(execution.at for execution in story.executions[:8]),
        )


def _check_posts(tally: Tally, story: Story) -> None:
    applied = len(story.posts)
    if applied > 1 or (story.state == "succeeded" and applied == 0):
        tally.violate(
            story.label,
            f"the sink applied the key of job {story.label} {applied} times, and the job is "
            f"{story.state}",
            *((HTTP, line) for line in story.posts[:8]),
            *(execution.at for execution in story.executions[:8]),
        )


def _excused(evidence: Evidence, story: Story, first: Execution, second: Execution) -> bool:
    """Say whether a fault, or the script itself, explains that the job ran once more."""
    if first.outcome not in {"ok", "sleep", None}:
        return True
    if not first.ended and not story.claims:
        # Nothing is known of its lease: a target that records no claims.
        return True
    outcomes = [op for op in _outcomes(story, first) if op.f != "extend"]
    if any(op.f == "ack" and op.type == "ok" for op in outcomes):
        return story.tried("replay")
    if any(op.type in {"info", "ok"} for op in outcomes):
        # Nobody knows whether the ack happened, or the worker gave the job back on purpose.
        return True
    death = evidence.death_floor(first.holder)
    if death is not None and death <= second.t:
        return True
    return _had_run_out(evidence, story, first, second)


def _outcomes(story: Story, execution: Execution) -> list[Operation]:
    """Return what was said of this execution; without tokens, of the job."""
    token = execution.fence if execution.fence is not None else execution.attempt
    return story.outcomes if token is None else story.outcomes_of(token) + story.outcomes_of(None)


def _had_run_out(evidence: Evidence, story: Story, first: Execution, second: Execution) -> bool:
    """Say whether the first lease may have run out before the second execution began.

    A pause needs no clause of its own where the length of a lease is known: it explains a second
    run only if it outlasted the lease.
    """
    lease_ms = evidence.lease_ms(story)
    if lease_ms is None:
        return _was_paused(evidence, first, second)
    claim = story.claim_of(first.fence)
    if claim is None or claim.type != "ok":
        # Nobody saw this claim; where its process tells nothing, the handler may have begun late,
        # and later still where the machine stood still before it.
        since = first.t - lease_ms * 1_000_000
        passed_ns = second.t - first.t + evidence.stalled_ns(since, first.t)
        if first.worker is not None:
            passed_ns += START_OF_PROCESS_NS
        elif first.pid not in evidence.history.last.keys() | evidence.history.exited:
            passed_ns += START_NS
        if passed_ns >= lease_ms * 1_000_000:
            return True
        # Who was stopped past its lease before its handler began may come before its successor's
        # handler, or after it.
        return any(
            start <= second.t and end >= since
            for pid in (first.holder, second.holder)
            for start, end in evidence.pauses.get(pid, ())
        )
    live_until = certainly_live_until(evidence, story, claim, before=second.t)
    return live_until is None or second.t >= live_until


def _was_paused(evidence: Evidence, first: Execution, second: Execution) -> bool:
    since, until = min(first.t, second.t), max(first.t, second.t)
    paused = any(
        start <= until and end >= since for start, end in evidence.pauses.get(first.holder, ())
    )
    return paused or evidence.stalled_ns(since, until) > 0


def _accuse(tally: Tally, story: Story, first: Execution, second: Execution) -> None:
    acks = _outcomes(story, first)[:3]
    end = (first.file, first.line_end)
    tally.violate(
        story.label,
        f"job {story.label} ran to its end and ran once more, and no fault explains it",
        first.at,
        end,
        *(at(op) for op in acks),
        *(at_end(op) for op in acks),
        second.at,
    )
