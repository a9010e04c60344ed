"""Limits that a cron job or a health check can ask about: over one of them is an alert.

An alert is a number of the queue and the most it may be: `dead` (more than none), `dead=5`,
`age=10min` (the oldest job that is due and still waits), `available=1000`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from killproof.core import model
from killproof.wording import span

#: The age of the oldest due job, in seconds; every other name is a state.
AGE: Final = "age"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most that a number may be."""

    name: str  #: a state, or `age`
    most: float  #: jobs, or seconds for `age`


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A number over its limit."""

    name: str
    most: float
    found: float
    text: str  #: with what to do


#: Where to look first.
_LOOK: Final = {
    "dead": "killproof dead",
    "held": "killproof jobs --state held",
    "age": "killproof explain ID of a waiting job, killproof doctor",
}


def limit(name: str, most: float) -> Limit:
    """Return a limit.

    Raises:
        ValueError: there is no such number; the message names it.
    """
    if name != AGE and name not in model.STATES:
        names = ", ".join((*model.STATES, AGE))
        raise ValueError(f"alert {name!r} is unknown: use one of {names}")
    if not most >= 0:
        raise ValueError(f"alert {name}={most} must be at least 0")
    return Limit(name=name, most=most)


def alerts(limits: list[Limit], counts: Mapping[str, int], age_ms: int) -> list[Alert]:
    """Return the limits that are exceeded.

    >>> [alert.text for alert in alerts([limit("dead", 0)], {"dead": 2}, 0)]
    ['dead: 2 jobs, over 0; look: killproof dead']
    """
    found = []
    for one in limits:
        value = age_ms / 1_000 if one.name == AGE else counts[one.name]
        if value > one.most:
            shown = f"{value:g} {'job' if value == 1 else 'jobs'}, over {one.most:g}"
            if one.name == AGE:
                shown = f"the oldest waits for {span(age_ms)}, over {span(round(one.most * 1e3))}"
            look = _LOOK.get(one.name, f"killproof jobs --state {one.name}")
            text = f"{one.name}: {shown}; look: {look}"
            found.append(Alert(name=one.name, most=one.most, found=value, text=text))
    return found
