"""P8, P9, P10: how often, and not before when."""

from bisect import bisect_right

from killproof_evidence.checkers.leases import DOUBT_NS
from killproof_evidence.contract import TERMINAL
from killproof_evidence.evidence import Change, Evidence, Story, at, at_end, where
from killproof_evidence.finding import Finding, Tally
from killproof_evidence.history import Operation

#: Doubt of a bound in ms: both ends are cut to whole milliseconds.
ROUNDING_MS = 2
#: The cap of the article's formula, seconds.
ARTICLE_SECONDS_MAX = 3_600.0
#: States from which a job comes back by itself.
WAITING = frozenset({"available", "scheduled", "retryable"})
#: States into which a job moves because somebody has looked at the clock.
OFFERED = frozenset({"available", "leased"})
#: Outcomes after which a start was no attempt.
GIVEN_BACK = frozenset({"release", "snooze", "hold"})


def bounded_attempts(evidence: Evidence) -> Finding:
    """P8: starts - forgiven <= max_attempts, crashed ones included; then dead, never run again."""
    tally = Tally()
    for story in evidence.stories:
        if story.executions:
            tally.checked += 1
            _check_starts(evidence, tally, story)
        _check_permanent(tally, story)
        if story.changes:
            _check_counting(evidence, tally, story)
            _check_kept_count(tally, story)
            _check_grave(tally, story)
    return tally.finding("no handler started")


def _forgiven(story: Story) -> int:
    """Return the starts that are no attempt, as the queue counts them, or as it was asked."""
    told = [story.row.forgiven] if story.row else []
    told += [c.forgiven for c in story.changes[-1:] if c.forgiven is not None]
    asked = sum(op.f in GIVEN_BACK and op.type != "fail" for op in story.outcomes)
    return max(*told, asked) if told else asked


def _check_starts(evidence: Evidence, tally: Tally, story: Story) -> None:
    starts, maximum = len(story.executions), evidence.max_attempts(story)
    if maximum is None:
        tally.missing("neither the job nor the contract declares max_attempts")
        return
    forgiven = _forgiven(story)
    if story.tried("replay") and (story.row is None or not story.row.forgiven):
        # A queue that counts from 0 again after a replay promises the bound for each life.
        maximum *= 1 + sum(op.f == "replay" and op.type != "fail" for op in story.controls)
    if starts - forgiven > maximum:
        tally.violate(
            story.label,
            f"job {story.label} was started {starts} times ({forgiven} forgiven), and it may "
            f"run {maximum} times",
            *(execution.at for execution in story.executions[:12]),
            where(story.row),
        )
    row = story.row
    if row is None or row.attempts is None:
        return
    counted = row.attempts + _counted_before(story)
    if starts > counted:
        tally.violate(
            story.label,
            f"job {story.label} was started {starts} times, and the queue counted {counted}",
            *(execution.at for execution in story.executions[:12]),
            row.at,
        )


def _counted_before(story: Story) -> int:
    """Return the attempts that replays have set back: a queue may count each life from 0."""
    return sum(
        (change.before.attempts or 0) - (change.attempts or 0)
        for change in story.changes
        if change.before is not None
        and change.old in TERMINAL
        and (change.attempts or 0) < (change.before.attempts or 0)
        and story.tried("replay")
    )


def _check_counting(evidence: Evidence, tally: Tally, story: Story) -> None:
    """Each claim counts in its own commit, and a used-up job does not come back."""
    maximum = evidence.max_attempts(story)
    forgiven = _forgiven(story)
    for change in story.changes:
        before, counted = change.before, change.attempts
        if before is not None and _was_forgiven_unasked(story, before, change):
            tally.violate(
                story.label,
                f"the attempt of job {story.label} under token {before.fence} was forgiven, and "
                f"its worker had not given it back",
                before.at,
                change.at,
            )
        if before is not None and counted is not None and before.attempts is not None:
            if change.takes and counted <= before.attempts:
                tally.violate(
                    story.label,
                    f"the claim of job {story.label} did not count the attempt: "
                    f"{before.attempts} before it, {counted} after it",
                    before.at,
                    change.at,
                )
            elif change.takes and counted > before.attempts + 1:
                tally.violate(
                    story.label,
                    f"the claim of job {story.label} counted more than one attempt: "
                    f"{before.attempts} before it, {counted} after it",
                    before.at,
                    change.at,
                )
            elif (
                change.ends
                and change.new in WAITING
                and maximum is not None
                and counted - (forgiven if change.forgiven is None else change.forgiven) >= maximum
            ):
                tally.violate(
                    story.label,
                    f"job {story.label} used up its {maximum} attempts and went back to "
                    f"{change.new}",
                    before.at,
                    change.at,
                )


def _check_kept_count(tally: Tally, story: Story) -> None:
    """The attempts at the end are those of the last commit: each commit that counts is audited."""
    row, last = story.row, story.changes[-1]
    if row is None or None in (row.attempts, last.attempts) or row.attempts == last.attempts:
        return
    tally.violate(
        story.label,
        f"job {story.label} had {last.attempts} attempts after the last commit, and the snapshot "
        f"tells {row.attempts}",
        last.at,
        row.at,
    )


def _was_forgiven_unasked(story: Story, before: Change, change: Change) -> bool:
    """Say whether a lease ended as no attempt, though its holder asked for nothing of the kind.

    A queue that forgives a crash would let a poison job run for ever, and count no attempt.
    """
    if change.forgiven is None or before.forgiven is None or change.forgiven <= before.forgiven:
        return False
    claim = story.claim_of(before.fence)
    if not change.ends or change.new not in WAITING or claim is None or claim.type != "ok":
        return False
    given_back = story.outcomes_of(before.fence)
    return not any(op.f in GIVEN_BACK and op.type != "fail" for op in given_back)


def _check_permanent(tally: Tally, story: Story) -> None:
    """Who was told ok for a failure without any further attempt has used up all of them."""
    if story.tried("replay"):
        return
    final = (op for op in story.outcomes if op.f == "nack" and op.type == "ok" and _is_final(op))
    op = next(final, None)
    if op is None or op.t_end is None:
        return
    if any(enqueue.t > op.t and enqueue.type != "fail" for enqueue in story.enqueues):
        return  # Its row has gone since, and another job has got the id.
    later = (claim for claim in story.claims if claim.type == "ok" and claim.t > (op.t_end or 0))
    claim = next(later, None)
    if claim is not None:
        tally.violate(
            story.label,
            f"{claim.process} claimed job {story.label}, which had failed for good under token "
            f"{op.fence}",
            at(op),
            at_end(op),
            at(claim),
            at_end(claim),
        )


def _is_final(op: Operation) -> bool:
    values = (op.value, op.value_end)
    return any(isinstance(value, dict) and bool(value.get("permanent")) for value in values)


def _check_grave(tally: Tally, story: Story) -> None:
    """Nothing of a dead job starts again without a replay."""
    dead: Change | None = None
    for change in story.changes:
        if change.new == "dead":
            dead = change
        elif change.old is None:
            dead = None  # Its row had gone, and another job has got the id.
        elif dead is not None and change.takes and not story.tried("replay"):
            tally.violate(
                story.label,
                f"job {story.label} was dead and was claimed again",
                dead.at,
                change.at,
                *(e.at for e in story.executions if e.fence == change.fence),
            )
            return


def backoff(evidence: Evidence) -> Finding:
    """P9: no retry before the policy's delay."""
    tally = Tally()
    slack_ms = _claim_ms_max(evidence)
    for story in evidence.stories:
        policy = story.asked.get("retry") or evidence.contract.parameters.get("retry")
        if policy is None:
            if len(story.executions) > 1:
                tally.missing("the contract declares no retry policy")
            continue
        failed = [op for op in story.outcomes if op.f in {"nack", "snooze"} and op.type == "ok"]
        if failed:
            claims = [op for op in story.claims if op.type == "ok"]
            attempts = _attempts(story)
            for op in failed:
                delay_ms = _delay_of(story, op, str(policy), attempts)
                _check_delay(evidence, tally, story, op, delay_ms, claims)
        _check_crashes(evidence, tally, story, str(policy), slack_ms)
    return tally.finding("no attempt failed and was tried again")


def delay_ms_min(policy: str, attempt: int) -> float:
    """Return the shortest delay that a policy may give after the failed attempt (from 1).

    Random parts count as 0. `doubling:SECONDS` is the exponential one without jitter.

    Raises:
        ValueError: the policy is unknown.
    """
    name, _, number = policy.partition(":")
    if name == "article":
        return min(ARTICLE_SECONDS_MAX, 2.0 ** min(attempt, 60) * 30) * 1_000
    if name == "fixed":
        return float(number) * 1_000
    if name == "doubling":
        return min(ARTICLE_SECONDS_MAX, float(number) * 2.0 ** min(attempt - 1, 60)) * 1_000
    if name in {"immediate", "exponential"}:
        return 0
    raise ValueError(f"retry policy {policy!r} is unknown")


def _attempts(story: Story) -> dict[int | None, int]:
    """Return the number of the attempt under each token, from 1, forgiven starts not counted."""
    found = {e.fence: e.attempt for e in story.executions if e.attempt is not None}
    for change in story.changes:
        if change.takes and change.attempts is not None:
            found[change.fence] = change.attempts - (change.forgiven or 0)
    return found


def _delay_of(story: Story, op: Operation, policy: str, attempts: dict[int | None, int]) -> float:
    """Return the delay that was asked for, else the policy's shortest, in ms."""
    for value in (op.value, op.value_end):
        if isinstance(value, dict) and value.get("delay_ms") is not None:
            return float(value["delay_ms"])
    attempt = attempts.get(op.fence, 1) if op.fence is not None else _attempt_before(story, op)
    return 0 if op.f == "snooze" else delay_ms_min(policy, max(1, attempt))


def _attempt_before(story: Story, op: Operation) -> int:
    """Return the attempt that an outcome without a token was told of: the last that had begun.

    Where its process has begun another after that of the process which tells it, either may be
    meant, and the first has the shorter delay.
    """
    begun = [e for e in story.executions if e.t <= op.t]
    its_own = [e for e in begun if e.pid == op.pid]
    return min((e.attempt or 1 for e in (*begun[-1:], *its_own[-1:])), default=1)


def _check_delay(
    evidence: Evidence,
    tally: Tally,
    story: Story,
    op: Operation,
    delay_ms: float,
    claims: list[Operation],
) -> None:
    """Hold an acknowledged failure against the next claim: both are on one clock."""
    index = bisect_right(claims, op.t, key=_begin_of)
    following = claims[index] if index < len(claims) else None
    if following is None or following.t_end is None:
        return
    if any(c.f == "replay" and _overlaps(c, op.t, following.t_end) for c in story.controls):
        # A person wanted it at once; who asked before the failure may be answered after it.
        return
    if evidence.wall_clock.stepped(op.t, following.t_end, forward=True):
        # Due times are wall clock: with the clock put forward, the delay was over.
        return
    tally.checked += 1
    passed_ms = (following.t_end - op.t) / 1e6
    if passed_ms < delay_ms - ROUNDING_MS:
        tally.violate(
            story.label,
            f"job {story.label} was claimed again {passed_ms:.0f} ms after its failure, and "
            f"{delay_ms:.0f} ms were due",
            at(op),
            at_end(op),
            at(following),
            at_end(following),
        )


def _begin_of(op: Operation) -> int:
    return op.t


def _overlaps(op: Operation, start: int, end: int) -> bool:
    """Say whether an operation may have taken effect in [start, end]; without an answer it may."""
    return op.t < end and (op.t_end is None or op.t_end > start)


def _check_crashes(
    evidence: Evidence, tally: Tally, story: Story, policy: str, slack_ms: float
) -> None:
    """Hold each crashed attempt against the claim that follows in the audit.

    Whoever reaped it read the clock up to one claim before the commit: that much is in doubt.
    """
    crashes = 0
    forgiven = _forgiven(story)
    parameters = evidence.contract.parameters
    first = parameters.get("crash_first", "immediate") == "immediate"
    later = parameters.get("crash_later", "policy") == "immediate"
    ended: Change | None = None
    for change in story.changes:
        if ended is not None and change.takes:
            spared = forgiven if ended.forgiven is None else ended.forgiven
            delay_ms = delay_ms_min(policy, max(1, (ended.attempts or 1) - spared))
            passed_ms = change.t_ms - ended.t_ms
            in_doubt = evidence.told_in_doubt(ended) or evidence.told_in_doubt(change)
            if not in_doubt and not (first if crashes == 1 else later):
                tally.checked += 1
                if passed_ms < 0:  # The clock was set back. Was the delay over before that?
                    told_ms = max(each.t_ms for each in _under_one_due_time(change))
                    passed_ms = told_ms - ended.t_ms
                passed_ms = max(passed_ms, _since_handler_ms(evidence, story, ended, change))
                if passed_ms < delay_ms - slack_ms - ROUNDING_MS:
                    tally.violate(
                        story.label,
                        f"job {story.label} was claimed {passed_ms} ms after crash {crashes} of "
                        f"its worker, and {delay_ms:.0f} ms were due",
                        ended.at,
                        change.at,
                    )
            ended = None
        if (
            change.ends
            and change.new in WAITING
            and not story.settled(change.fence_before)
            and not _may_be_told(evidence, story, change)
        ):
            ended, crashes = change, crashes + 1


def _since_handler_ms(evidence: Evidence, story: Story, ended: Change, change: Change) -> int:
    """Return the time from a handler's end to a claim, where no worker keeps a history; else 0.

    A failure is known when the handler has ended, and its delay may count from there; the commit
    comes as much later as the queue takes.
    """
    taken = None if ended.before is None else evidence.moment(ended.before.t_ms)
    failed, claimed = evidence.moment(ended.t_ms), evidence.moment(change.t_ms)
    if story.claims or taken is None or failed is None or claimed is None:
        return 0
    ends = (each.t_end for each in story.executions if each.ended and each.t_end is not None)
    of_this = [t for t in ends if taken - DOUBT_NS <= t <= failed + DOUBT_NS]
    return (claimed - max(of_this)) // 1_000_000 if of_this else 0


def _may_be_told(evidence: Evidence, story: Story, change: Change) -> bool:
    """Say whether an outcome without a token was under way when a lease ended."""
    told = [op for op in story.outcomes_of(None) if op.f != "extend" and op.type != "fail"]
    moment = evidence.moment(change.t_ms) if told else None
    return any(
        moment is None
        or (op.t <= moment + DOUBT_NS and (op.t_end is None or moment - DOUBT_NS <= op.t_end))
        for op in told
    )


def _claim_ms_max(evidence: Evidence) -> float:
    spans = (
        op.t_end - op.t
        for op in evidence.history.operations
        if op.f in {"claim", "reap"} and op.t_end is not None
    )
    return max(spans, default=0) / 1e6


def never_early(evidence: Evidence) -> Finding:
    """P10: a delayed job is not claimed before its time."""
    tally = Tally()
    for story in evidence.stories:
        delay_ms = story.asked.get("delay_ms") or 0
        if delay_ms > 0:
            tally.checked += 1
            _check_first(evidence, tally, story, delay_ms)
        for change in story.changes:
            before = change.before
            if before is not None and change.takes and change.old != "leased":
                due_ms = before.due_ms
                waited = due_ms is not None and due_ms > before.t_ms
                tally.checked += waited
                if due_ms is None or change.t_ms >= due_ms - ROUNDING_MS:
                    continue
                changes = _under_one_due_time(change)
                told_ms = max(each.t_ms for each in changes)
                moved = [each for each in changes if each.new in OFFERED]
                in_doubt = any(map(evidence.told_in_doubt, moved))
                if told_ms < due_ms - ROUNDING_MS and not in_doubt:
                    tally.violate(
                        story.label,
                        f"job {story.label} was claimed {due_ms - told_ms} ms before it was due",
                        before.at,
                        change.at,
                    )
    return tally.finding("no job had to wait")


def _under_one_due_time(change: Change) -> list[Change]:
    """Return a claim and all changes before it that left the job with the due time it found.

    Once due, a job stays due when the clock is set back, also through a crash of its worker.
    """
    found = [change]
    while (before := found[-1].before) is not None:
        if change.before is not None and before.due_ms != change.before.due_ms:
            break
        found.append(before)
    return found


def _check_first(evidence: Evidence, tally: Tally, story: Story, delay_ms: int) -> None:
    enqueue = story.birth
    assert enqueue is not None  # Its delay was read there.
    due = enqueue.t + (delay_ms - ROUNDING_MS) * 1_000_000
    if evidence.wall_clock.stepped(enqueue.t, due, forward=True):
        return  # It was due as soon as the clock had been put forward.
    for claim in story.claims[:1]:
        if claim.t_end is not None and claim.t_end < due:
            tally.violate(
                story.label,
                f"job {story.label} was to wait {delay_ms} ms and was claimed "
                f"{(claim.t_end - enqueue.t) / 1e6:.0f} ms after its enqueue began",
                at(enqueue),
                at_end(enqueue),
                at(claim),
                at_end(claim),
            )
    for execution in story.executions[:1]:
        if execution.t < due:
            tally.violate(
                story.label,
                f"job {story.label} was to wait {delay_ms} ms and started "
                f"{(execution.t - enqueue.t) / 1e6:.0f} ms after its enqueue began",
                at(enqueue),
                at_end(enqueue),
                execution.at,
            )
