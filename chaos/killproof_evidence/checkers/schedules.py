"""Jobs that a schedule puts in: nobody enqueues them, and each slot has exactly one.

The contract names the schedules under `schedules`: `every_ms` between two slots, and the `prefix`
of the keys of their jobs, which the slot follows as an ISO 8601 moment.  A queue that promises to
make up for every slot has one job for each, from the first that it fired to the last; and while
workers ask for jobs, the last is never long ago.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from killproof_evidence.evidence import Change, Evidence, Story, at, where
from killproof_evidence.finding import Tally

#: So long, without stalls, workers may ask for jobs while a slot that has come has none, ms.
SILENCE_MS: Final = 5_000
#: Both moments are cut to whole milliseconds.
ROUNDING_MS: Final = 2


def is_scheduled(evidence: Evidence, story: Story) -> bool:
    """Say whether a schedule of the contract may have put this job in."""
    keys = [row.key for row in story.rows[:1]] + [change.key for change in story.changes[:1]]
    prefixes = [rules["prefix"] for _, rules in _declared(evidence)]
    return any(key is not None and key.startswith(p) for key in keys for p in prefixes)


def _declared(evidence: Evidence) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from (evidence.contract.parameters.get("schedules") or {}).items()


def check_slots(evidence: Evidence, tally: Tally) -> None:
    """Hold the jobs of each schedule against its slots."""
    for name, rules in _declared(evidence):
        slots: dict[int, Change] = {}
        for change in evidence.changes:
            if change.old is not None or not (change.key or "").startswith(rules["prefix"]):
                continue
            tally.checked += 1
            slot = _moment_ms(str(change.key).removeprefix(rules["prefix"]))
            if slot is None:
                key = f"{change.key!r} of job {change.story.label}"
                tally.violate(change.story.label, f"the key {key} names no slot", change.at)
            else:
                _check_birth(evidence, tally, name, slot, change, slots.setdefault(slot, change))
        if not slots:
            tally.missing(f"schedule {name} put no job in")
        else:
            _check_silence(evidence, tally, name, rules["every_ms"], slots[max(slots)])
        _check_gaps(tally, name, rules["every_ms"], slots)


def _moment_ms(text: str) -> int | None:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000)
    except ValueError:
        return None


def _check_birth(
    evidence: Evidence, tally: Tally, name: str, slot: int, change: Change, first: Change
) -> None:
    label = change.story.label
    if first is not change:
        tally.violate(
            label,
            f"jobs {first.story.label} and {label} were put in for one slot of schedule {name}",
            first.at,
            change.at,
        )
    elif change.t_ms < slot - ROUNDING_MS and not evidence.told_in_doubt(change):
        tally.violate(
            label,
            f"job {label} was put in {slot - change.t_ms} ms before its slot of schedule {name}",
            change.at,
        )


def _check_silence(
    evidence: Evidence, tally: Tally, name: str, every_ms: int, last: Change
) -> None:
    """Nobody knows of the slots after the last that was fired but by the time that passed."""
    told = evidence.moment(last.t_ms)
    asked = [op for op in evidence.history.operations if op.f == "claim" and op.type == "ok"]
    if told is None or not asked or evidence.wall_clock.steps:
        return
    claim = max(asked, key=lambda op: op.t)
    silent_ns = claim.t - told - evidence.stalled_ns(told, claim.t)
    if silent_ns <= (every_ms + SILENCE_MS) * 1_000_000:
        return
    if evidence.starved:
        tally.missing(f"schedule {name} was silent, and the supervisor was starved of CPU")
        return
    tally.violate(
        last.story.label,
        f"schedule {name} put no job in for {silent_ns / 1e9:.1f} s, it has a slot each {every_ms} "
        f"ms, and {claim.process} still asked for jobs",
        last.at,
        at(claim),
    )


def _check_gaps(tally: Tally, name: str, every_ms: int, slots: dict[int, Change]) -> None:
    before: int | None = None
    for slot in sorted(slots):
        if before is not None and slot - before != every_ms:
            label = slots[slot].story.label
            tally.violate(
                label,
                f"schedule {name} has a slot each {every_ms} ms, and jobs for two that are "
                f"{slot - before} ms apart and none in between",
                where(slots[before]),
                where(slots[slot]),
            )
        before = slot
