"""Deliberately broken queues: each is `minimal` without one of its rules, and must be caught."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with a gallery queue, and who must find it."""

    name: str
    wrong: str  #: in one sentence
    promise: str  #: the property that the intended checker finds violated
    kind: str  #: the class of real-world fault that it stands for
    right: str  #: the line of `minimal` that it lacks
    engine: str = "proc"  #: the engine that must find it within its test's budget
    nemesis: str = ""  #: the faults that it takes, where those of a default run do not do
    unreached: frozenset[str] = frozenset()  #: sync points of `minimal` that it never passes
