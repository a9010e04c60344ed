"""Deliberately broken queues: each is a healthy one without one of its rules, and must be caught.

Most are made from `minimal`; what only `killproof` has is broken in that.
"""

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
    control: str = "minimal"  #: the healthy queue that it is made from
    nemesis: str = ""  #: the faults that it takes, where those of a default run do not do
    unreached: frozenset[str] = frozenset()  #: sync points of `minimal` that it never passes
