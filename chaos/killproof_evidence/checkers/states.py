"""P7, P13, P15: the state machine, the dead letters, and cancellation."""

from killproof_evidence.contract import START, TERMINAL
from killproof_evidence.evidence import Change, Evidence, Row, Story, at, at_end
from killproof_evidence.finding import Finding, Tally


def allowed_edges(evidence: Evidence) -> Finding:
    """P7: only edges of the contract, and a terminal state is left by a replay alone."""
    tally = Tally()
    contract = evidence.contract
    if not contract.edges:
        tally.missing("the contract declares no edges")
        return tally.finding("")
    starts_declared = START in contract.edges
    # What a failed step has cancelled comes back when that is replayed: the run is what goes on.
    replayed = {
        id(step)
        for run in evidence.runs.values()
        if any(step.tried("replay") for step in run.steps)
        for step in run.steps
    }
    for change in evidence.changes:
        tally.checked += 1
        story = change.story
        if change.old is None and not starts_declared:
            continue
        if not contract.allows(change.old, change.new):
            tally.violate(
                story.label,
                f"job {story.label} went from {change.old or 'nothing'} to "
                f"{change.new or 'nothing'}, which the contract does not allow",
                *(other.at for other in _around(change)),
            )
        elif (
            change.old in TERMINAL
            and change.new not in {None, change.old}
            and not story.tried("replay")
            and id(story) not in replayed
        ):
            tally.violate(
                story.label,
                f"job {story.label} left {change.old} for {change.new}, and nobody replayed it",
                *(other.at for other in _around(change)),
            )
    return tally.finding("no change of a job is in the audit")


def _around(change: Change) -> list[Change]:
    """Return the change and up to four before it, oldest first."""
    found = [change]
    while found[-1].before is not None and len(found) < 5:
        found.append(found[-1].before)
    return found[::-1]


def dead_letters(evidence: Evidence) -> Finding:
    """P13: a dead job keeps payload, error and attempts; a replay moves it exactly once."""
    tally = Tally()
    for story in evidence.stories:
        if len(story.rows) > 1:
            tally.violate(
                story.label,
                f"job {story.label} stands {len(story.rows)} times in the snapshot",
                *(row.at for row in story.rows),
            )
        if story.row is not None and story.row.state == "dead":
            tally.checked += 1
            _check_letter(evidence, tally, story, story.row)
        if any(op.f == "replay" for op in story.controls):
            tally.checked += 1
            _check_replays(tally, story)
    return tally.finding("no job died and none was replayed")


def _check_letter(evidence: Evidence, tally: Tally, story: Story, row: Row) -> None:
    asked = story.asked
    birth = None if story.birth is None else at(story.birth)
    digest = asked.get("digest")
    if row.digest is not None and asked and row.name != asked.get("id"):
        tally.violate(
            story.label,
            f"dead job {story.label} lost its payload: the id in it is not the one that was "
            f"enqueued",
            birth,
            row.at,
        )
    elif row.digest is not None and digest is not None and row.digest != digest:
        tally.violate(
            story.label,
            f"the payload of dead job {story.label} is not the one that was enqueued",
            birth,
            row.at,
        )
    if not row.error:
        tally.violate(story.label, f"dead job {story.label} does not say what failed", row.at)
    if row.history is not None and row.attempts is not None:
        kept = len(row.history)
        if kept != row.attempts:
            tally.violate(
                story.label,
                f"dead job {story.label} counts {row.attempts} attempts and keeps {kept} of them",
                row.at,
                *(execution.at for execution in story.executions[:8]),
            )
    claims = [change for change in story.changes if change.takes]
    if row.attempts is not None and story.changes and row.attempts > len(claims):
        # Whoever counts an attempt twice, at its begin and at its end, takes away half of them.
        tally.violate(
            story.label,
            f"dead job {story.label} counts {row.attempts} attempts, and was claimed "
            f"{len(claims)} times",
            row.at,
            *(claim.at for claim in claims[:8]),
        )
    maximum = evidence.max_attempts(story)
    if row.attempts is None or maximum is None or row.attempts - row.forgiven >= maximum:
        return
    if not _was_permanent(story):
        tally.violate(
            story.label,
            f"job {story.label} is dead after {row.attempts - row.forgiven} of {maximum} "
            f"attempts, and nothing said that it can never succeed",
            row.at,
            *(op_line for op in story.outcomes[-3:] for op_line in (at(op), at_end(op))),
        )


def _was_permanent(story: Story) -> bool:
    """Say whether the last failure was meant to be final.

    A result that JSON cannot hold counts: a queue may see that no retry will change it.
    """
    if story.executions and story.executions[-1].outcome in {"permanent", "unjsonable"}:
        return True
    for op in story.outcomes:
        for value in (op.value, op.value_end):
            if op.f == "nack" and isinstance(value, dict) and value.get("permanent"):
                return True
    return False


def _check_replays(tally: Tally, story: Story) -> None:
    if not story.changes:
        tally.missing("no audit: a replay cannot be seen to move a job once")
        return
    told = story.told("replay")
    tried = [op for op in story.controls if op.f == "replay" and op.type != "fail"]
    moved = [c for c in story.changes if c.old in TERMINAL and c.new not in {None, c.old}]
    if not len(told) <= len(moved) <= len(tried):
        tally.violate(
            story.label,
            f"job {story.label} was replayed {len(told)} times as the queue told it, and moved "
            f"{len(moved)} times",
            *(line for op in tried[:4] for line in (at(op), at_end(op))),
            *(change.at for change in moved[:8]),
        )


def cancellation(evidence: Evidence) -> Finding:
    """P15: after an acknowledged cancel the job is not claimed, and nothing new starts."""
    tally = Tally()
    for story in evidence.stories:
        cancels = story.told("cancel")
        if not cancels:
            continue
        tally.checked += 1
        if story.changes:
            _check_audit(tally, story)
        if story.tried("replay"):
            # A replay is asked for: from then on the job may run again.
            continue
        done = min(op.t_end for op in cancels if op.t_end is not None)
        cancel = next(op for op in cancels if op.t_end == done)
        for claim in story.claims:
            if claim.type == "ok" and claim.t > done:
                tally.violate(
                    story.label,
                    f"{claim.process} claimed job {story.label} after its cancel was acknowledged",
                    at(cancel),
                    at_end(cancel),
                    at(claim),
                    at_end(claim),
                )
        if not story.claims:
            for execution in story.executions:
                if execution.t > done:
                    tally.violate(
                        story.label,
                        f"job {story.label} started after its cancel was acknowledged",
                        at(cancel),
                        at_end(cancel),
                        execution.at,
                    )
    return tally.finding("no cancel was acknowledged")


def _check_audit(tally: Tally, story: Story) -> None:
    cancelled: Change | None = None
    for change in story.changes:
        if change.new == "cancelled" or (change.new is None and cancelled is None):
            cancelled = change
        elif change.old in TERMINAL and change.new not in TERMINAL and story.tried("replay"):
            break
        elif cancelled is not None and change.takes:
            fence = change.fence
            starts = (e.at for e in story.executions if fence is None or e.fence == fence)
            tally.violate(
                story.label,
                f"job {story.label} was claimed (token {fence}) after the commit of its cancel",
                cancelled.at,
                change.at,
                *starts,
            )
            break
    if cancelled is None:
        cancel = story.told("cancel")[0]
        tally.violate(
            story.label,
            f"the cancel of job {story.label} was acknowledged, but no commit cancelled it",
            at(cancel),
            at_end(cancel),
            story.changes[-1].at,
        )
