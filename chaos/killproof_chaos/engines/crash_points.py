"""The points of the engine `crash`, and what is made of one: pure functions and values."""

import errno
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from killproof_chaos.shim.calls import Action

#: Which kinds of calls an error is tried at: those where the kernel may give it.
EIO_KINDS: Final = frozenset(
    {
        *("open", "write", "fsync", "fdatasync", "truncate", "allocate", "unlink", "rename"),
        *("lock", "getlock"),
    }
)
FULL_KINDS: Final = frozenset({"write", "truncate", "allocate"})
INTERRUPTED_KINDS: Final = frozenset({"open", "write", "fsync", "fdatasync", "truncate", "lock"})
#: What a caller was told whose operation found nothing to do: no error, and no change.
NOTHING: Final = "nothing"
#: Operations whose return says nothing of jobs: a close gives back what it can, and where it
#: cannot, the death of its process tells the others.
COURTESIES: Final = frozenset({"close"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One call of one operation, and what befalls it."""

    operation: str
    number: int  #: of the call, from 1
    kind: str
    file: str
    fault: str  #: before, after, EIO, ENOSPC, EINTR, short

    @property
    def name(self) -> str:
        """Return the name of the point's folder."""
        return f"{self.operation}-{self.number}-{self.fault}"

    @property
    def words(self) -> str:
        """Return the point in a sentence."""
        if self.fault == "none":
            return f"without a fault in {self.operation}"
        call = f"call {self.number} of {self.operation} ({self.kind} {self.file})"
        if self.fault in ("before", "after"):
            return f"killed {self.fault} {call}"
        return f"{self.fault} at {call}"

    def request(self) -> dict[str, Any]:
        """Return what a lane is asked."""
        kill = self.fault in ("before", "after")
        action, value = RULES[self.fault]
        return {
            "mode": "kill" if kill else "fault",
            "operation": self.operation,
            "number": self.number,
            "action": int(action),
            "value": int(value),
        }


RULES: Final[Mapping[str, tuple[Action, int]]] = {
    "before": (Action.SIGNAL_BEFORE, signal.SIGKILL),
    "after": (Action.SIGNAL_AFTER, signal.SIGKILL),
    "EIO": (Action.FAIL, errno.EIO),
    "ENOSPC": (Action.FAIL, errno.ENOSPC),
    "EINTR": (Action.FAIL, errno.EINTR),
    "short": (Action.SHORT, 0),
}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was seen at a point."""

    point: Point
    verdict: str
    reason: str = ""  #: of unknown, or the first violation
    found: dict[str, Any] = field(default_factory=dict)  #: the lane's answer
    told: list[tuple[str, str]] = field(default_factory=list)  #: (property, story) of violations

    def record(self) -> dict[str, Any]:
        """Return the line of points.jsonl."""
        point = self.point
        kept = ("told", "error", "next", "next_error", "changes", "repaired", "ms", "status")
        return {
            "operation": point.operation,
            "call": point.number,
            "kind": point.kind,
            "file": point.file,
            "fault": point.fault,
            "verdict": self.verdict,
            "reason": self.reason,
        } | {name: self.found[name] for name in kept if name in self.found}


@dataclass(slots=True, kw_only=True)
class Counted:
    """An operation as it runs when nothing befalls it."""

    operation: str
    calls: list[tuple[str, str]]  #: (kind, file) of each
    changes_full: int  #: changes of jobs in the file after it
    changes_base: int | None = None  #: and without it; None: not seen yet


def points_of(counted: Counted, *, errors: bool) -> list[Point]:
    """Return every point of an operation, the kills first."""
    found = []
    for faults in (("before", "after"), ("EIO", "ENOSPC", "EINTR", "short")):
        if faults[0] == "EIO" and not errors:
            continue
        for number, (kind, file) in enumerate(counted.calls, 1):
            found += [
                Point(operation=counted.operation, number=number, kind=kind, file=file, fault=fault)
                for fault in faults
                if _applies(fault, kind)
            ]
    return found


def _applies(fault: str, kind: str) -> bool:
    kinds = {"EIO": EIO_KINDS, "ENOSPC": FULL_KINDS, "EINTR": INTERRUPTED_KINDS}
    if fault == "short":
        return kind == "write"
    return fault not in kinds or kind in kinds[fault]


def told_wrong(
    found: Mapping[str, Any], *, operation: str, base: int | None, full: int
) -> list[tuple[str, str]]:
    """Hold what the caller of a failed call was told against what the file says after a kill.

    Args:
        found: the lane's answer: `told`, `error`, `next`, `next_error`, `changes`.
        operation: its name.
        base: changes of jobs in the file when the operation never happened; None: not known.
        full: and when it did.

    Returns:
        (property, story) of each contradiction.
    """
    wrong = []
    told, changes = found["told"], found.get("changes")
    for what, word, text in (
        ("its caller", told, found["error"]),
        ("the caller of the next operation", found["next"], found["next_error"]),
    ):
        if word == "raw":
            wrong.append(("P16", f"{what} met the driver's own error, {text}"))
        elif "cannot rollback" in text:
            wrong.append(("P16", f"{what} was told {text}"))
    if base is not None and changes is not None and base != full:
        if told == "ok" and changes != full and operation not in COURTESIES:
            wrong.append(("P1", f"{operation} was told ok, and the file does not have it"))
        elif told in ("definite", NOTHING) and changes != base:
            wrong.append(("P2", f"{operation} was told that nothing happened, and the file has it"))
    return wrong


def halves(changes: int | None, *, base: int | None, full: int) -> list[tuple[str, str]]:
    """Say whether only a part of an operation is in the file: each is one transaction."""
    if base is None or changes is None or changes in (base, full):
        return []
    story = f"the file has {changes - base} of the {full - base} changes of one transaction"
    return [("P14", story)]


def control(operation: str) -> Point:
    """Return the run in which nothing befalls the operation: it must pass as well."""
    return Point(operation=operation, number=0, kind="-", file="-", fault="none")
