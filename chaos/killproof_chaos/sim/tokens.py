"""Tokens: one schedule in one word, to be pasted into `killproof chaos replay` anywhere.

A token names the target and the scenario, what is left of the scenario after shrinking, and the
choices. It also carries a checksum of the story that it was made from: where the target or the
scenario has changed since, the same choices lead elsewhere, and whoever replays it is told so.
"""

import base64
import json
import zlib
from dataclasses import dataclass, replace
from typing import Any, Final

from killproof_chaos.sim.runtime import Faults
from killproof_chaos.sim.scenario import Function, Limited, Scenario
from killproof_chaos.sim.schedulers import choices_of
from killproof_chaos.sim.stage import Outcome

PREFIX: Final = "ks1-"


class TokenInvalid(ValueError):
    """The token cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is left of a scenario: its size is what shrinking reduces."""

    actors: tuple[str, ...]
    calls: tuple[int | None, ...]  #: after which each actor ends; None: when its function does
    jobs: tuple[str, ...]  #: the harness's names
    faults: Faults

    @classmethod
    def of(cls, scenario: Scenario) -> "Cut":
        """Return all that a scenario has."""
        return cls(
            actors=tuple(scenario.actors),
            calls=tuple(
                function.calls if isinstance(function, Limited) else None
                for function in scenario.actors.values()
            ),
            jobs=tuple(job.id for job in scenario.jobs),
            faults=scenario.faults,
        )

    def apply(self, scenario: Scenario) -> Scenario:
        """Return the scenario with nothing else.

        Raises:
            TokenInvalid: it has no such actor or job.
        """
        jobs = {job.id: job for job in scenario.jobs}
        absent = [name for name in self.actors if name not in scenario.actors]
        absent += [name for name in self.jobs if name not in jobs]
        if absent:
            raise TokenInvalid(
                f"scenario {scenario.name!r} has no {absent[0]!r} any more: take the version of "
                "killproof that made the token"
            )
        return replace(
            scenario,
            actors={
                name: limited(scenario.actors[name], calls)
                for name, calls in zip(self.actors, self.calls, strict=True)
            },
            jobs=tuple(jobs[name] for name in self.jobs),
            faults=self.faults,
        )


def limited(function: Function, calls: int | None) -> Function:
    """Return an actor that ends after so many calls; None: when its function does."""
    whole = function.function if isinstance(function, Limited) else function
    return whole if calls is None else Limited(function=whole, calls=calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One schedule of a scenario on a target."""

    target: str  #: as it was given to `--target`
    scenario: str
    cut: Cut
    choices: str  #: of the schedule, such as `7b,19A`
    checksum: int  #: of the trace
    seed: int | None = None  #: of the run, where the target hangs on it

    def text(self) -> str:
        """Return the token as one word."""
        faults = self.cut.faults
        record = [
            self.target,
            self.scenario,
            list(self.cut.actors),
            list(self.cut.calls),
            list(self.cut.jobs),
            [faults.crashes, faults.passes, faults.wall_steps, faults.lost],
            self.choices,
            self.checksum,
        ]
        record += [] if self.seed is None else [self.seed]
        packed = zlib.compress(json.dumps(record, separators=(",", ":")).encode(), 9)
        return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def of_text(cls, text: str) -> "Token":
        """Read a token.

        Raises:
            TokenInvalid: it is none of this version; definite.
        """
        try:
            word = text.removeprefix(PREFIX)
            packed = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
            record: Any = json.loads(zlib.decompress(packed))
            target, scenario, actors, calls, jobs, faults, choices, checksum, *more = record
            crashes, passes, wall_steps, lost = (int(count) for count in faults)
            choices_of(choices)
            ends = tuple(None if count is None else int(count) for count in calls)
            (seed,) = map(int, more) if more else (None,)
            if len(ends) != len(actors):
                raise ValueError("actors and calls differ")
        except (ValueError, TypeError, AttributeError, zlib.error):
            raise TokenInvalid(
                f"{text[:40]!r} is no whole schedule: give all of the word that begins with "
                f"{PREFIX}"
            ) from None
        return cls(
            target=str(target),
            scenario=str(scenario),
            cut=Cut(
                actors=tuple(map(str, actors)),
                calls=ends,
                jobs=tuple(map(str, jobs)),
                faults=Faults(crashes=crashes, passes=passes, wall_steps=wall_steps, lost=lost),
            ),
            choices=choices,
            checksum=int(checksum),
            seed=seed,
        )


def checksum_of(outcome: Outcome) -> int:
    """Return what changes with anything that an actor did or was told."""
    return zlib.crc32(outcome.text().encode())
