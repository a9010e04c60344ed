"""The points of the engine `crash`, and what is made of one: pure functions and values."""

import errno
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from killproof_chaos.engines.crash_state import difference
from killproof_chaos.shim.calls import Action
from killproof_evidence.finding import PASS, UNKNOWN, VIOLATED

#: Which kinds of calls an error is tried at: those where the kernel may give it.
EIO_KINDS: Final = frozenset(
    {
        *("open", "write", "fsync", "fdatasync", "truncate", "allocate", "unlink", "rename"),
        *("lock", "getlock"),
    }
)
FULL_KINDS: Final = frozenset({"write", "truncate", "allocate"})
INTERRUPTED_KINDS: Final = frozenset({"open", "write", "fsync", "fdatasync", "truncate", "lock"})
SYNC_KINDS: Final = frozenset({"fsync", "fdatasync"})
KILLS: Final = ("before", "after")
ERRORS: Final = ("EIO", "ENOSPC", "EINTR", "short")
#: What a caller was told whose operation found nothing to do: no error, and no change.
NOTHING: Final = "nothing"
#: Operations whose return says nothing of jobs: a close gives back what it can, and where it
#: cannot, the death of its process tells the others.
COURTESIES: Final = frozenset({"close", "close_beside_a_peer"})
#: What points.jsonl keeps of a lane's answer.
KEPT: Final = (
    *(
        "told",
        "error",
        "next",
        "next_error",
        "again",
        "state",
        "repaired",
        "stopped",
        "recovered_by",
    ),
    *("status", "tries", "ms"),
)
#: How the judge begins the reason of a checker that threw: no lack of cases, and never a pass.
CHECKER_FAILED: Final = "the checker failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One file call of an operation, as the run without a fault made it."""

    kind: str
    file: str
    process: int = 0  #: which of the processes of the operation made it, from 0
    number: int = 0  #: of the call within its process, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One call of one operation, and what befalls it."""

    operation: str
    number: int  #: of the call within the operation, from 1
    call: Call
    fault: str  #: before, after, EIO, ENOSPC, EINTR, short; none

    @property
    def name(self) -> str:
        """Return the name of the point's folder."""
        return f"{self.operation}-{self.number}-{self.fault}"

    @property
    def words(self) -> str:
        """Return the point in a sentence."""
        if self.fault == "none":
            return f"without a fault in {self.operation}"
        call = f"call {self.number} of {self.operation} ({self.call.kind} {self.call.file})"
        if self.fault in KILLS:
            return f"killed {self.fault} {call}"
        return f"{self.fault} at {call}"

    def request(self) -> dict[str, Any]:
        """Return what a lane is asked."""
        action, value = RULES[self.fault]
        return {
            "mode": "kill" if self.fault in KILLS else "fault",
            "operation": self.operation,
            "process": self.call.process,
            "number": self.call.number,
            "kind": self.call.kind,
            "file": self.call.file,
            "action": int(action),
            "value": int(value),
            "fault": self.fault,
            "name": self.name,
        }


RULES: Final[Mapping[str, tuple[Action, int]]] = {
    "before": (Action.SIGNAL_BEFORE, signal.SIGKILL),
    "after": (Action.SIGNAL_AFTER, signal.SIGKILL),
    "EIO": (Action.FAIL, errno.EIO),
    "ENOSPC": (Action.FAIL, errno.ENOSPC),
    "EINTR": (Action.FAIL, errno.EINTR),
    "short": (Action.SHORT, 0),
}


def control(name: str) -> Point:
    """Return the run in which nothing befalls the operation: it must pass as well."""
    return Point(operation=name, number=0, call=Call(kind="-", file="-"), fault="none")


@dataclass(slots=True, kw_only=True)
class Counted:
    """An operation as it runs when nothing befalls it."""

    operation: str
    calls: list[Call]
    full: list[str] | None  #: the state after it; None: one that is not the same in two runs
    base: list[str] | None = None  #: and when it never happened; None: not seen yet


def points_of(counted: Counted, *, errors: bool) -> list[Point]:
    """Return every point of an operation, the kills first."""
    return [
        Point(operation=counted.operation, number=number, call=call, fault=fault)
        for faults in (KILLS, ERRORS if errors else ())
        for number, call in enumerate(counted.calls, 1)
        for fault in faults
        if _applies(fault, call.kind)
    ]


def most_telling_first(points: Sequence[Point]) -> list[Point]:
    """Return the points of an operation in an order in which a fault is soon found.

    What goes wrong does so at several calls in a row, so the first few points are spread over the
    whole operation and the gaps are filled later: a van der Corput sequence. The kills come first,
    then the error that most calls can meet.
    """
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault("kill" if point.fault in KILLS else point.fault, []).append(point)
    ordered = []
    for group in groups.values():
        bits = max(1, (len(group) - 1).bit_length())
        numbers = sorted(range(len(group)), key=lambda number: f"{number:0{bits}b}"[::-1])
        ordered += [group[number] for number in numbers]
    return ordered


def in_order(
    answers: Iterable[tuple[str, dict[str, Any]]], names: Iterable[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield answers in the order of their names: each waits for all before it."""
    early: dict[str, dict[str, Any]] = {}
    expected = iter(names)
    due = next(expected, None)
    for name, found in answers:
        early[name] = found
        while due in early:
            yield due, early.pop(due)
            due = next(expected, None)


def _applies(fault: str, kind: str) -> bool:
    kinds = {"EIO": EIO_KINDS, "ENOSPC": FULL_KINDS, "EINTR": INTERRUPTED_KINDS}
    if fault == "short":
        return kind == "write"
    return fault not in kinds or kind in kinds[fault]


# What is held against what.


def told_wrong(
    found: Mapping[str, Any], *, operation: str, base: list[str] | None, full: list[str] | None
) -> list[tuple[str, str]]:
    """Hold what the caller of a failed call was told against what the file says after a kill.

    Args:
        found: the lane's answer: `told`, `error`, `next`, `next_error`, `state`.
        operation: its name.
        base: the state when the operation never happened; None: not known.
        full: and when it did.

    Returns:
        (property, story) of each contradiction.
    """
    wrong = []
    told, state = found["told"], found.get("state")
    for what, word, text in (
        ("its caller", told, found["error"]),
        ("the caller of the next operation", found["next"], found["next_error"]),
    ):
        if word == "raw":
            wrong.append(("P16", f"{what} met the driver's own error, {text}"))
        elif "cannot rollback" in text:
            wrong.append(("P16", f"{what} was told {text}"))
    if None not in (base, full, state) and base != full:
        assert base is not None
        assert full is not None
        assert state is not None
        if told == "ok" and state != full and operation not in COURTESIES:
            what = f"{operation} was told ok, and the file {difference(state, full)}"
            wrong.append(("P1", what))
        elif told in ("definite", NOTHING) and state != base:
            what = f"{operation} was told that nothing happened, and the file"
            wrong.append(("P2", f"{what} {difference(state, base)}"))
    return wrong


def next_refused(
    found: Mapping[str, Any], *, fault: str, kind: str, stopped: bool
) -> list[tuple[str, str]]:
    """Say whether the operation after a failed one was refused without need.

    A failed sync may stop a queue, and rightly: the kernel reports the error once and forgets it.
    Then the error must name the way back. After any other error the next operation works, or is
    refused for certain, with a word on what to do, and the one after it works.

    Args:
        found: the lane's answer: `next`, `next_error`, `again`.
        fault: of the failed call.
        kind: of the failed call.
        stopped: the queue says of its file that it is stopped until somebody repairs it.
    """
    if found["next"] in ("ok", "raw"):
        return []  # `raw` is a contradiction of its own.
    text = found["next_error"]
    if found["next"] == "definite" and found.get("again") == "ok":
        return []
    is_sync = fault == "EIO" and kind in SYNC_KINDS
    if not is_sync and not stopped:
        return [("P16", f"the next operation failed: {text}")]
    if stopped and "repair" not in text:
        return [("P16", f"the queue is stopped, and its error names no way back: {text}")]
    return []


def halves(
    state: list[str] | None, *, base: list[str] | None, full: list[str] | None
) -> list[tuple[str, str]]:
    """Say whether only a part of an operation is in the file: each is one transaction."""
    if state is None or base is None or full is None or state in (base, full):
        return []
    story = (
        f"the file is neither as before the operation nor as after it: it {difference(state, base)}"
    )
    return [("P14", story)]


def undisturbed_wrong(found: Mapping[str, Any], *, tells: str, calls: int, operation: str) -> str:
    """Return why the run without a fault was not the operation that it is named for; or nothing."""
    if found["told"] != tells:
        text = f" ({found['error']})" if found["error"] else ""
        return f"{operation} did not do what it is for: its caller was told {found['told']}{text}"
    if not calls:
        return (
            f"{operation} makes no file call that the shim sees: nothing to kill at (is SQLite "
            "linked statically?)"
        )
    return ""


# What became of a point.


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was seen at a point."""

    point: Point
    verdict: str
    reason: str = ""  #: of unknown, or the first violation
    found: dict[str, Any] = field(default_factory=dict)  #: the lane's answer

    @property
    def broken(self) -> list[tuple[str, str]]:
        """Return (property, story) of what the engine itself found, beside the judge."""
        return [(number, story) for number, story in self.found.get("broken", ())]

    def record(self) -> dict[str, Any]:
        """Return the line of points.jsonl."""
        point = self.point
        return {
            "operation": point.operation,
            "call": point.number,
            "process": point.call.process,
            "kind": point.call.kind,
            "file": point.call.file,
            "fault": point.fault,
            "verdict": self.verdict,
            "reason": self.reason,
        } | {name: self.found[name] for name in KEPT if name in self.found}


def outcome_of(point: Point, found: dict[str, Any]) -> Outcome:
    """Return the outcome of a point from the lane's answer."""
    if not found["reached"]:
        return Outcome(point=point, verdict=UNKNOWN, reason=found["why"], found=found)
    broken = [
        *((number, story) for number, story in found["broken"]),
        *_violated(found["properties"]),
    ]
    if broken:
        number, story = broken[0]
        return Outcome(point=point, verdict=VIOLATED, reason=f"{number}: {story}", found=found)
    unsure = [*found["unsure"], *failed_checkers(found["properties"])]
    if unsure:
        return Outcome(point=point, verdict=UNKNOWN, reason=unsure[0], found=found)
    return Outcome(point=point, verdict=PASS, found=found)


def _violated(properties: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for number, one in properties.items():
        if one["verdict"] == VIOLATED:
            yield number, one["witnesses"][0]["story"]


def failed_checkers(properties: Mapping[str, Any]) -> list[str]:
    """Return the promises whose checker threw at this point: it might have accused."""
    return [
        f"{number}: {one['reason']}"
        for number, one in properties.items()
        if one["verdict"] == UNKNOWN and str(one.get("reason", "")).startswith(CHECKER_FAILED)
    ]
