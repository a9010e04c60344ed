"""What a checker says: a verdict on one promise, and the lines that prove it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

PASS: Final = "pass"
VIOLATED: Final = "violated"
UNKNOWN: Final = "unknown"
NOT_PROMISED: Final = "not_promised"
NOT_JUDGED: Final = "not_judged"

#: Witnesses kept for one promise: a reader needs one, and a broken queue can give thousands.
WITNESSES_MAX: Final = 10
#: Lines kept for one witness.
LINES_MAX: Final = 20

#: A line of the store: the file's path in it and the line's number from 1.
Line = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """One violation: the job, what happened in one sentence, and where it is written."""

    job: str | None
    story: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one promise."""

    verdict: str
    checked: int = 0  #: how many cases were looked at; 0 is never a pass
    violations: int = 0
    witnesses: tuple[Witness, ...] = ()
    reason: str | None = None  #: why it is unknown or not judged
    by: str | None = None  #: the engine that can judge what this one cannot
    level: str | None = None  #: P1: process or power; P6: transaction or key
    figures: Mapping[str, Any] = field(default_factory=dict)  #: numbers worth showing


class Tally:
    """Collects the cases of one checker on the way to its finding."""

    def __init__(self) -> None:
        self.checked = 0
        self.figures: dict[str, Any] = {}
        self._violations = 0
        self._witnesses: list[Witness] = []
        self._missing: str | None = None

    def violate(self, job: str | None, story: str, *lines: Line | None) -> None:
        """Record a violation; None among the lines is left out."""
        self._violations += 1
        if len(self._witnesses) < WITNESSES_MAX:
            kept = dict.fromkeys(line for line in lines if line is not None)
            witness = Witness(job=job, story=story, lines=tuple(kept)[:LINES_MAX])
            self._witnesses.append(witness)

    def missing(self, reason: str) -> None:
        """Record that a part of the promise has no evidence: without violation it is unknown."""
        self._missing = self._missing or reason

    def finding(self, nothing: str, *, level: str | None = None) -> Finding:
        """Return the finding; `nothing` says what was missing if no case was checked."""
        verdict, reason = PASS, None
        if self._violations:
            verdict = VIOLATED
        elif self._missing or not self.checked:
            verdict, reason = UNKNOWN, self._missing or nothing
        return Finding(
            verdict=verdict,
            checked=self.checked,
            violations=self._violations,
            witnesses=tuple(self._witnesses),
            reason=reason,
            level=level,
            figures=self.figures,
        )
