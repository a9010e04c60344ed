"""P11, P12: which job a claim takes, and one live job for a key."""

from heapq import heappop, heappush

from killproof_evidence.checkers.limits import Limits
from killproof_evidence.checkers.schedules import check_slots
from killproof_evidence.contract import TERMINAL
from killproof_evidence.evidence import Change, Evidence, Story, at, at_end, where
from killproof_evidence.finding import Finding, Tally
from killproof_evidence.history import Operation

#: A claim reads the clock before it gets the lock; a job that fell due this shortly before the
#: commit, ms, may have been invisible to it. The length of the claim itself is added.
DOUBT_MS = 5

#: (priority, due_ms, id): the smallest goes first.
Rank = tuple[int, int, int]


class _Waiting:
    """The jobs of one kind that could be claimed, smallest rank first, in O(log n)."""

    def __init__(self) -> None:
        self._ready: list[tuple[Rank, int, Change]] = []
        self._early: list[tuple[int, int, Change]] = []
        self._current: dict[int, Change] = {}
        self._pushed = 0

    def put(self, change: Change) -> None:
        """Make a job claimable as this change left it."""
        self._pushed += 1
        self._current[id(change.story)] = change
        heappush(self._early, (change.due_ms or 0, self._pushed, change))

    def take(self, story: Story) -> None:
        """Make a job not claimable; its entry is dropped when it comes to the top."""
        self._current.pop(id(story), None)

    def first(self, due_ms: int) -> Change | None:
        """Return the first job that was due at this time."""
        while self._early and self._early[0][0] <= due_ms:
            _, number, change = heappop(self._early)
            heappush(self._ready, (_rank(change), number, change))
        skipped = []
        found = None
        while self._ready:
            top = self._ready[0]
            if self._current.get(id(top[2].story)) is not top[2]:
                heappop(self._ready)
            elif (top[2].due_ms or 0) > due_ms:
                # Ready for an earlier claim whose clock was surer than this one's.
                skipped.append(heappop(self._ready))
            else:
                found = top[2]
                break
        for entry in skipped:
            heappush(self._ready, entry)
        return found


def claim_order(evidence: Evidence) -> Finding:
    """P11: each claim takes the first claimable job by (priority, due, id)."""
    tally = Tally()
    claimable = {
        old for old, new in evidence.contract.edges.items() if "leased" in new and old != "leased"
    } or {"available"}
    limits = Limits(evidence.contract.parameters.get("limits"))
    waiting: dict[str | None, _Waiting] = {}
    for change in evidence.changes:
        if change.priority is None and change.new is not None:
            tally.missing("the audit holds no priority")
            break
        story = change.story
        queue = waiting.setdefault(change.kind, _Waiting())
        if change.takes and change.old in claimable:
            _check_claim(evidence, tally, waiting, limits, change)
        limits.take(change)
        if change.new in claimable:
            queue.put(change)
        else:
            queue.take(story)
    return tally.finding("no claim is both in the audit and in the history")


def _check_claim(
    evidence: Evidence,
    tally: Tally,
    waiting: dict[str | None, _Waiting],
    limits: Limits,
    change: Change,
) -> None:
    story = change.story
    claim = story.claim_of(change.fence)
    if claim is None or claim.t_end is None or evidence.told_in_doubt(change):
        # Its process was killed before it told what kinds it asked for and when; or the clock was
        # stepped, and what it took for due may differ from what the audit shows.
        return
    tally.checked += 1
    asked = claim.value.get("kinds") if isinstance(claim.value, dict) else None
    kinds = waiting if asked is None else [kind for kind in asked if kind in waiting]
    # Behind its limit a job is not claimable; whether a rate had a token left nobody else can tell,
    # but of the kind that was claimed it had one.
    kinds = [
        kind
        for kind in kinds
        if kind == change.kind or not (limits.is_full(kind) or limits.has_rate(kind))
    ]
    known_ms = change.t_ms - (claim.t_end - claim.t) // 1_000_000 - DOUBT_MS
    firsts = [first for kind in kinds if (first := waiting[kind].first(known_ms)) is not None]
    if not firsts:
        return
    best = min(firsts, key=_rank)
    before = change.before or change
    if best.story is not story and _rank(best) < _rank(before):
        tally.violate(
            story.label,
            f"{claim.process} claimed job {story.label} (priority {before.priority}, due "
            f"{before.due_ms}) while job {best.story.label} (priority {best.priority}, due "
            f"{best.due_ms}) was waiting",
            best.at,
            before.at,
            change.at,
            at(claim),
            at_end(claim),
        )


def _rank(change: Change) -> Rank:
    name = change.story.id or ""
    number = int(name) if name.isdecimal() else 0
    return (change.priority or 0, change.due_ms or 0, number)


def idempotent_enqueue(evidence: Evidence) -> Finding:
    """P12: one live job for a key, also under races and after an unknown outcome.

    Of a schedule: one job for each slot, over all processes that fire it.
    """
    tally = Tally()
    if evidence.changes:
        _check_live(evidence, tally)
    else:
        tally.missing("no audit: jobs that lived at once under one key cannot be told")
    check_slots(evidence, tally)
    by_key: dict[str, list[tuple[Operation, Story]]] = {}
    for story in evidence.stories:
        for op in story.enqueues:
            key = op.value.get("key") if isinstance(op.value, dict) else None
            if op.type == "ok" and key is not None:
                tally.checked += 1
                by_key.setdefault(key, []).append((op, story))
    for key, found in by_key.items():
        _check_key(tally, key, found)
    return tally.finding("no enqueue carried a key")


def _check_live(evidence: Evidence, tally: Tally) -> None:
    """Follow the live job of each key through the audit."""
    live: dict[str, Change] = {}
    for change in evidence.changes:
        if change.key is None:
            continue
        holder = live.get(change.key)
        if change.new is None or change.new in TERMINAL:
            if holder is not None and holder.story is change.story:
                del live[change.key]
            continue
        if holder is not None and holder.story is not change.story:
            tally.violate(
                change.story.label,
                f"jobs {holder.story.label} and {change.story.label} lived at once under key "
                f"{change.key!r}",
                *(at(op) for op in holder.story.enqueues[:3]),
                holder.at,
                *(at(op) for op in change.story.enqueues[:3]),
                change.at,
            )
        live[change.key] = change


def _check_key(tally: Tally, key: str, found: list[tuple[Operation, Story]]) -> None:
    """Two acknowledged ids of one key must not both be alive at the end."""
    alive = {
        story.label: (op, story)
        for op, story in found
        if story.row is not None and story.row.state not in TERMINAL
    }
    if len(alive) > 1:
        lines = [(at(op), at_end(op), where(story.row)) for op, story in alive.values()]
        tally.violate(
            found[0][1].label,
            f"jobs {', '.join(str(label) for label in alive)} are both alive under key {key!r}",
            *(line for group in lines for line in group),
        )
