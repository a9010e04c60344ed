"""Smaller runs of real processes that may show the same violation: with fewer kinds of faults.

A schedule of the simulator is shrunk by its engine, and crash and disk name one operation. What
only real processes show is shrunk here: the first run that shows all of it, of a ladder from none
of the faults to all, is the one that has to show it again. It says what a violation needs: one that
needs no fault at all happens to everybody.
"""

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from killproof_chaos.plan import Options
from killproof_chaos.scorecard.cards import Check

#: The kinds of faults that are left, least first; the last rung is the run itself.
LADDER: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    ((), "no faults"),
    (("handler",), "handlers that fail, hang or end their worker, and no other fault"),
    (("kill", "handler"), "kills, and handlers that fail, hang or end their worker"),
)
#: With fewer faults a run needs less time; this much, so that leases run out within it.
SECONDS_SHARE: Final = 0.75
#: How a run of real processes is told again.
REPLAY: Final = ("killproof", "chaos", "replay")


def readable(check: Check) -> Check:
    """Return a check whose command has options where the engine has told a token for them."""
    words = shlex.split(check.command)
    if check.engine != "proc" or tuple(words[:3]) != REPLAY:
        return check
    return replace(check, command=shlex.join(Options.of_token(words[3]).argv()))


def ladder(check: Check) -> list[Check]:
    """Return what is smaller than a check, the smallest first.

    Args:
        check: a run of real processes; of another engine there is nothing smaller.
    """
    words = shlex.split(check.command)
    if check.engine != "proc" or tuple(words[:3]) != REPLAY:
        return []
    options = Options.of_token(words[3])
    found = []
    for nemeses, told in LADDER:
        kept = tuple(name for name in options.nemeses if name in nemeses)
        if kept == options.nemeses:
            break
        less = replace(
            options,
            nemeses=kept,
            kills=options.kills if "kill" in kept else 0,
            pauses=0,
            seconds=round(options.seconds * SECONDS_SHARE, 1),
        )
        found.append(
            Check(
                engine=check.engine, command=shlex.join(less.argv()), promises=check.promises,
                needs=told,
            )
        )  # fmt: skip
    return found


def shrunk(check: Check, broken: Callable[[Check], frozenset[str]]) -> Check | None:
    """Return the smallest check that shows all that this one has shown; None: there is none.

    Args:
        check: the run that has shown violations.
        broken: makes a check once, and returns the promises that it shows broken.
    """
    for smaller in ladder(check):
        if broken(smaller) >= set(check.promises):
            return smaller
    return None
