"""Deliberately broken queues: each is a healthy one without one of its rules, and must be caught.

One file each: what is wrong (`FAULT`) and the broken queue as a `target`, in the same form as
anybody's queue, so a copy of the file is what a reader of a lesson repairs and has graded. Most are
made from `minimal`; what only `killproof` has is broken in that, or is brought along in a few
lines. A queue is found by the name of its file: to add one is to add a file.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from killproof_evidence.target import Target

#: A run of the engine `proc` that is short enough for one seed among twenty.
SHORT: Final = ("--seconds", "2.5", "--kills", "10", "--pauses", "5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with a gallery queue, and who must find it."""

    name: str  #: its file's name with hyphens
    wrong: str  #: in one sentence
    promise: str  #: the property that the intended checker finds violated
    kind: str  #: the class of real-world fault that it stands for, in the field's terms
    right: str  #: the line of the healthy queue that it lacks
    engine: str  #: the engine that must find it: proc, crash, disk or sim
    options: tuple[str, ...] = ()  #: of `killproof chaos ENGINE`: with them it must be found
    seconds: float = 2.0  #: the budget of one seed on two idle cores
    seen: tuple[str, ...] = ()  #: where such faults were seen in public: project#issue
    articles: tuple[str, ...] = ()  #: the faults of the source articles that it stands for: F8
    control: str = "minimal"  #: the healthy queue that it is made from
    also: frozenset[str] = frozenset()  #: properties that a run may show broken too
    unreached: frozenset[str] = frozenset()  #: sync points of the control that it never passes


@cache  # The folder is read once: a list of all of them asks for each by its name.
def names() -> tuple[str, ...]:
    """Return the names of all broken queues, in alphabetical order."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in found))


def fault(name: str) -> Fault:
    """Return what is wrong with the broken queue of this name.

    Raises:
        KeyError: there is none of this name.
    """
    found: Fault = _module(name).FAULT
    return found


def target(name: str) -> "Target":
    """Return the broken queue of this name; it promises what its control promises.

    Raises:
        KeyError: there is none of this name.
    """
    found: Target = _module(name).target
    return found


def _module(name: str) -> Any:
    if name not in names():
        raise KeyError(f"{name}: no such broken queue; there are {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
