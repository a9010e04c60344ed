"""Which rule keeps a job from running, and what to do about it.

A rule is a function of one `Look` at the file that yields what it has to say: `RULES` holds them in
the order in which a claim would meet them.  What stands above the core and can keep a job back (a
limit, a pause) adds one function to the rules that are handed in, and changes nothing here.

All rules see one snapshot.  What they say of workers rests on the kernel's locks: a worker is alive
while its byte is held, and nobody can tell where those locks do not reach.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from killproof import limits_reading, listing, pausing, presence, workflow_view
from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.errors import JobNotFound
from killproof.core.jobs import Queue
from killproof.core.model import Job
from killproof.limits_reading import Gate, Limit
from killproof.presence import Presence
from killproof.wording import count_of, moment, span
from killproof.workflow_view import Place

#: Jobs before this one that are counted; beyond it "more than" says enough.
COUNTED_MAX: Final = 10_000
#: Kinds whose jobs are counted.
KINDS_MAX: Final = 1_000
#: Jobs that are named as those who hold a limit's slots.
HOLDERS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """What one rule says of a job."""

    rule: str  #: the function's name, or that of a rule of what stands above
    keeps: bool  #: True if it keeps the job from starting now
    text: str
    remedy: str | None = None  #: what a person can do, if anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that was found, the rules that keep the job back first in `keeping`."""

    job: Job  #: without payload, result and attempts
    reasons: tuple[Reason, ...]

    @property
    def keeping(self) -> tuple[Reason, ...]:
        """The reasons for which it does not start now; empty if the next claim can take it."""
        return tuple(reason for reason in self.reasons if reason.keeps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the file: what every rule is given."""

    tx: Transaction  #: to read more; it ends with the explanation
    job: Job
    workers: tuple[Presence, ...]
    now_ms: int
    now_ns: int  #: of the clock that `clock` names
    clock: str
    limits: tuple[Limit, ...] = ()  #: those that its kind uses
    place: Place | None = None  #: in its run; None outside of any


Rule = Callable[[Look], Iterator[Reason]]


def explain(queue: Queue, job_id: int, rules: Sequence[Rule] | None = None) -> Explanation:
    """Say why a job does not run now.

    Args:
        queue: where it is.
        job_id: which.
        rules: None is `RULES`; what stands above the core hands in `(*RULES, its_own)`.

    Raises:
        JobNotFound: definite.
        KillproofError: as for `Queue.counts`.
    """
    model.check_count(job_id, "id", 1, (1 << 63) - 1)
    clock = queue.host.clock
    with queue.database.read() as tx:
        found = listing.read(tx, [job_id])
        if not found:
            raise JobNotFound(f"there is no job {job_id} in {queue.path}: see killproof jobs")
        look = Look(
            tx=tx,
            job=found[0],
            workers=tuple(presence.workers(queue, tx)),
            now_ms=clock.now_ms(),
            now_ns=clock.monotonic_ns(),
            clock=clock.ident(),
            place=workflow_view.place_of(tx, job_id),
            limits=tuple(
                limit for limit in limits_reading.read(queue, tx) if found[0].kind in limit.kinds
            ),
        )
        reasons = [reason for rule in rules or RULES for reason in rule(look)]
    return Explanation(job=found[0], reasons=tuple(reasons))


def ended(look: Look) -> Iterator[Reason]:
    """It has ended: nothing but a replay makes it run again."""
    job = look.job
    if job.state not in model.TERMINAL:
        return
    when = f"at {moment(job.finished_ms or 0)}"
    if job.state == "succeeded":
        yield Reason(rule="ended", keeps=True, text=f"it succeeded {when}, and runs no more")
        return
    words = {"dead": "it is a dead letter since", "cancelled": "it was cancelled at"}
    text = f"{words.get(job.state, 'its deadline passed at')} {moment(job.finished_ms or 0)}"
    if job.state == "dead":
        text += f", after {count_of(job.attempt, 'attempt')}: {_error(job)}"
    may_go = look.place is None or look.place.may_be_replayed
    remedy = f"killproof replay {job.id}" if may_go else None
    yield Reason(rule="ended", keeps=True, text=text, remedy=remedy)


def held(look: Look) -> Iterator[Reason]:
    """A person, or its handler, has put it aside."""
    if look.job.state == "held":
        why = f": {_error(look.job)}" if look.job.error_class else ""
        remedy = f"killproof unhold {look.job.id}, or killproof cancel {look.job.id}"
        if look.place is not None and look.place.unmet:
            remedy = f"killproof cancel {look.job.id}; it can be let go after what it waits for"
        text = f"it is held until a person decides{why}"
        yield Reason(rule="held", keeps=True, text=text, remedy=remedy)


def blocked(look: Look) -> Iterator[Reason]:
    """It is a step of a run, and other steps have to succeed before it."""
    job, place = look.job, look.place
    if place is None:
        if job.state == "blocked":
            yield Reason(rule="blocked", keeps=True, text="it waits for other jobs to succeed")
        return
    text = f"it is step {place.step!r} of run {place.run_id} of {place.workflow!r}"
    text += f", which is {place.run_state}"
    if not place.unmet:
        yield Reason(rule="step", keeps=False, text=text)
        return
    names = [f"{name!r} (job {need}, {state})" for name, need, state in place.waits_for]
    more = f" and {place.unmet - len(names)} more" if place.unmet > len(names) else ""
    text += f", and waits for {', '.join(names)}{more}"
    remedy = f"killproof workflow show {place.run_id}"
    if job.state == "cancelled" and place.run_state in ("running", "failed", "cancelled"):
        remedy = f"killproof workflow replay {place.run_id}"
    yield Reason(rule="blocked", keeps=True, text=text, remedy=remedy)


def due(look: Look) -> Iterator[Reason]:
    """Its time has not come, or has come and no claim has seen it yet."""
    job = look.job
    if job.state not in ("scheduled", "retryable"):
        return
    after = f", after failure {job.attempt} of {job.max_attempts} ({_error(job)})"
    why = after if job.state == "retryable" else ""
    wait_ms = job.due_ms - look.now_ms
    if wait_ms > 0:
        text = f"it is due in {span(wait_ms)}, at {moment(job.due_ms)}{why}"
        yield Reason(rule="due", keeps=True, text=text)
    else:
        text = f"it is due since {moment(job.due_ms)}{why}: the next claim makes it available"
        yield Reason(rule="due", keeps=False, text=text)


def deadline(look: Look) -> Iterator[Reason]:
    """From its deadline on it does not start any more."""
    job = look.job
    if job.expires_ms is None or job.state in ("leased", *model.TERMINAL):
        return
    left_ms = job.expires_ms - look.now_ms
    if left_ms <= 0:
        text = f"its deadline passed at {moment(job.expires_ms)}: the next claim lets it expire"
        yield Reason(rule="deadline", keeps=True, text=text)
    else:
        text = f"it must start within {span(left_ms)}, by {moment(job.expires_ms)}"
        yield Reason(rule="deadline", keeps=False, text=text)


THROTTLED: Final = "SELECT reason, until_ms FROM throttle WHERE kind = :kind ORDER BY reason"


def throttled(look: Look) -> Iterator[Reason]:
    """Its kind is closed for now, by something that this killproof has no rule for."""
    job = look.job
    if job.state not in ("scheduled", "retryable", "available"):
        return
    found = look.tx.rows(THROTTLED, {"kind": job.kind})
    for reason, until_ms in cast(list[tuple[str, int]], found):
        if reason.startswith(limits_reading.REASON):
            continue  # `limited` tells it better.
        text = f"kind {job.kind!r} is closed: {reason}, until {moment(until_ms)} at the latest"
        remedy = None
        if reason == pausing.PAUSED:
            when = "somebody resumes it" if until_ms >= pausing.FOR_EVER_MS else moment(until_ms)
            text = f"kind {job.kind!r} is paused until {when}"
            remedy = f"killproof resume {job.kind}"
        yield Reason(rule="throttled", keeps=True, text=text, remedy=remedy)


def limited(look: Look) -> Iterator[Reason]:
    """A limit of its kind lets nothing start now: which, who holds it, and until when."""
    if look.job.state not in ("scheduled", "retryable", "available"):
        return
    for limit in look.limits:
        for gate in limit.gates:
            text = f"limit {limit.name!r} {_gate(look, limit, gate)}"
            remedy = None
            if gate.rule in ("closed", "breaker"):
                remedy = f"killproof limits open {limit.name!r}, if you know better"
            yield Reason(rule="limited", keeps=True, text=text, remedy=remedy)


def _gate(look: Look, limit: Limit, gate: Gate) -> str:
    """Say what one shut rule of a limit means."""
    left = "until somebody opens it"
    if gate.until_ms is not None:
        left = f"for {span(gate.until_ms - look.now_ms)} more, until {moment(gate.until_ms)}"
    breaker = limit.breaker
    match gate.rule:
        case "running":
            holders = limits_reading.holders(look.tx, limit.name, HOLDERS_MAX)
            names = ", ".join(
                f"job {job_id}" + (f" (process {pid})" if pid is not None else "")
                for job_id, pid in holders
            )
            more = (
                f" and {limit.running - len(holders)} more" if limit.running > len(holders) else ""
            )
            return f"lets {limit.running_max} run at a time: its slots have {names}{more}"
        case "rate":
            return f"lets {limit.rate:g} start per second, {limit.burst} at once: no token is left"
        case "closed":
            return f"was closed by {gate.closed_by}, {left}: {gate.why}"
        case "breaker":
            assert breaker is not None
            if breaker.probe is not None:
                return f"lets job {breaker.probe} alone try whether it works again"
            many = f"{count_of(breaker.failures, 'failure')} within {breaker.window:g} s"
            return f"had {many} and rests {left}; then one job tries"


LEASE_DEADLINE: Final = "SELECT lease_deadline_ns FROM job WHERE id = :id"

OWNER_CLOCK: Final = "SELECT clock FROM worker WHERE id = :owner"


def lease(look: Look) -> Iterator[Reason]:
    """A worker has it: which, whether it lives, and when others may take the job."""
    job = look.job
    if job.state != "leased":
        return
    holder = next((one for one in look.workers if one.worker == job.owner), None)
    name = f"worker {(job.owner or '')[:8]}"
    if holder is not None:
        name = f"process {holder.pid} ({name})"
    since = span(look.now_ms - (job.claimed_ms or look.now_ms))
    text = f"{name} has held it for {since}, attempt {job.attempt} of {job.max_attempts}"
    if holder is not None and holder.lives is False:
        yield Reason(
            rule="lease",
            keeps=True,
            text=f"{text}, and is dead: any worker that looks takes the job back",
            remedy="start a worker if none runs: killproof work MODULE",
        )
        return
    lives = "and lives" if holder is not None and holder.lives else "and may live"
    yield Reason(rule="lease", keeps=True, text=f"{text}, {lives}; {_lease_end(look)}")


def _lease_end(look: Look) -> str:
    """Say until when the lease runs, where this process can read the owner's clock."""
    values = {"id": look.job.id, "owner": look.job.owner}
    row, clock = look.tx.row(LEASE_DEADLINE, values), look.tx.row(OWNER_CLOCK, values)
    length = span(look.job.lease_ms)
    if row is None or clock != (look.clock,):
        return f"its clock is another one: a lease unchanged for {length} and half of it is over"
    left_ms = (cast(int, row[0]) - look.now_ns) // 1_000_000
    if left_ms <= 0:
        return "its lease has run out: any worker that looks takes the job back"
    return f"its lease runs for {span(left_ms)} more unless it is renewed"


def worker(look: Look) -> Iterator[Reason]:
    """Somebody must be there who has a handler for its kind."""
    job = look.job
    if job.state not in ("scheduled", "retryable", "available"):
        return
    living = [one for one in look.workers if one.lives is not False]
    able = [one for one in living if one.kinds is None or job.kind in one.kinds]
    if not living:
        text = "no worker runs"
    elif not able:
        run = "1 worker runs" if len(living) == 1 else f"{len(living):,} workers run"
        text = f"{run}, and none has a handler for {job.kind!r}"
    else:
        pids = ", ".join(str(one.pid) for one in able[:3])
        more = f" and {len(able) - 3} more" if len(able) > 3 else ""
        busy = all(one.leases for one in able)
        text = f"it can be run by process {pids}{more}{', at work on other jobs' if busy else ''}"
        yield Reason(rule="worker", keeps=False, text=text)
        return
    remedy = f"start one that has a handler for {job.kind!r}: killproof work MODULE"
    yield Reason(rule="worker", keeps=True, text=text, remedy=remedy)


BEFORE: Final = """
    WITH RECURSIVE waiting (kind) AS (
        SELECT min(kind) FROM job WHERE state = 'available'
         UNION ALL
        SELECT (SELECT min(kind) FROM job WHERE state = 'available' AND kind > waiting.kind)
          FROM waiting WHERE waiting.kind IS NOT NULL LIMIT :kinds_max)
    SELECT waiting.kind = :kind,
           (SELECT count(*)
              FROM (SELECT 1 FROM job
                     WHERE state = 'available' AND kind = waiting.kind
                       AND (priority, due_ms, id) < (:priority, :due_ms, :id)
                     LIMIT :counted_max))
      FROM waiting
     WHERE waiting.kind IS NOT NULL AND waiting.kind NOT IN (SELECT kind FROM throttle)"""


def order(look: Look) -> Iterator[Reason]:
    """Others are before it: more urgent, due earlier, or put in earlier."""
    job = look.job
    if job.state != "available":
        return
    values: dict[str, Value] = {
        "kind": job.kind,
        "priority": job.priority,
        "due_ms": job.due_ms,
        "id": job.id,
        "kinds_max": KINDS_MAX,
        "counted_max": COUNTED_MAX,
    }
    counts = cast(list[tuple[int, int]], look.tx.rows(BEFORE, values))
    total, same = sum(count for _, count in counts), sum(count for own, count in counts if own)
    if not total:
        yield Reason(rule="order", keeps=False, text="no available job is before it")
        return
    more = "more than " if any(count == COUNTED_MAX for _, count in counts) else ""
    text = f"{more}{count_of(total, 'available job')} before it, {same:,} of its kind"
    urgent = f"killproof reprioritise {job.id} 0 puts it first" if job.priority else None
    yield Reason(rule="order", keeps=True, text=text, remedy=urgent)


def _error(job: Job) -> str:
    first = (job.error_message or "").strip().splitlines()[:1]
    return ": ".join([job.error_class or "Error", *first])[:200]


#: In the order in which a claim meets them.
RULES: Final[tuple[Rule, ...]] = (
    *(ended, held, blocked, deadline, due, throttled, limited, lease, worker, order),
)
