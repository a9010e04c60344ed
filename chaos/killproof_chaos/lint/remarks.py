"""One line of what `lint-target` says."""

from dataclasses import dataclass
from typing import Literal

Weight = Literal["problem", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something wrong with a target, or something that its author should know."""

    where: str  #: contract, members, surroundings, trial, worker, snapshot or audit
    text: str  #: what is wrong, and the remedy, in one line
    weight: Weight = "problem"  #: a note alone leaves the exit code at 0


def problem(where: str, text: str) -> Remark:
    """Return what must be mended before a verdict means anything."""
    return Remark(where=where, text=text)


def note(where: str, text: str) -> Remark:
    """Return what is allowed, and may still surprise."""
    return Remark(where=where, text=text, weight="note")
