"""A card: what is said of one queue. Values and pure functions.

A violation is printed as one where it was confirmed: in each of three tries where an engine shows
it that repeats itself (crash, disk, sim), or in at least eight of ten runs of its plan where only
real processes do. What was seen and not confirmed is printed as `unconfirmed`, and accuses nobody.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from killproof_evidence.finding import NOT_PROMISED, UNKNOWN, VIOLATED
from killproof_evidence.judge import PROPERTIES

UNCONFIRMED: Final = "unconfirmed"
#: The queue could not be judged at all.
FAILED: Final = "failed"
#: Engines that repeat a violation by themselves, and how often they have to.
REPEATING: Final = ("sim", "crash", "disk")
TRIES: Final = 3
#: Of real processes: so many of so many runs of the same plan.
RUNS: Final = 10
RUNS_MIN: Final = 8
#: A check whose runs judge nothing so often (a full disk, an engine that fails) is given up.
FAILED_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A command that shall show violations again."""

    engine: str
    command: str  #: as a reader types it
    promises: tuple[str, ...]  #: that it has shown once
    needs: str = ""  #: the faults to which it was shrunk, in words; none: it is as it was found

    @property
    def tries(self) -> int:
        """Return how often it is run at most."""
        return TRIES if self.engine in REPEATING else RUNS

    @property
    def needed(self) -> int:
        """Return in how many of these a violation must be seen again."""
        return TRIES if self.engine in REPEATING else RUNS_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of running a check."""

    check: Check
    seen: Mapping[str, int] = field(default_factory=dict)  #: promise -> tries that show it broken
    made: int = 0  #: tries that came to a verdict
    failed: int = 0  #: tries that judged nothing, which says nothing of the queue

    def confirms(self, promise: str) -> bool:
        """Say whether a promise was seen broken often enough."""
        return self.seen.get(promise, 0) >= self.check.needed

    def is_decided(self) -> bool:
        """Say whether more tries would change nothing."""
        spare = self.check.tries - self.check.needed
        if self.made >= self.check.tries or self.failed >= FAILED_MAX:
            return True
        return all(
            self.confirms(name) or self.made - self.seen.get(name, 0) > spare
            for name in self.check.promises
        )

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Tried":
        """Read it."""
        check = {**record["check"], "promises": tuple(record["check"]["promises"])}
        return cls(**{**record, "check": Check(**check), "seen": dict(record["seen"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is said of one promise of a queue."""

    promise: str
    verdict: str  #: of the judge, or `unconfirmed`
    by: tuple[str, ...] = ()  #: engines: that judged it, or that show the violation
    story: str = ""
    command: str = ""
    confirmed: str = ""  #: how often it was seen again, in words
    reason: str = ""  #: why it is unknown
    cite: str = ""  #: where the queue makes this promise


def checks_of(record: Mapping[str, Any]) -> list[Check]:
    """Return what confirms the violations of a campaign, the engines that repeat themselves first.

    Args:
        record: verdict.json of `killproof chaos prove`.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for one in record["replays"]:
        # In full: a run that ends at its first violation may end at another one.
        command = one["command"].replace(" --fail-fast", "")
        promises = found.setdefault((one["engine"], command), [])
        if one["promise"] not in promises:
            promises.append(one["promise"])
    order = (*REPEATING, "model", "proc")
    checks = [
        Check(engine=engine, command=command, promises=tuple(promises))
        for (engine, command), promises in found.items()
        if engine != "model"
    ]
    return sorted(checks, key=lambda check: order.index(check.engine))


def open_of(check: Check, before: Iterable[Tried]) -> Check | None:
    """Return a check for what the others have not settled; None: nothing is left of it.

    The first command that confirms a violation is enough. Where an engine that should repeat itself
    does not, real processes are asked as well, if they have shown the same: who is then seen broken
    in nearly every run of a plan would otherwise get off for the engine's sake.
    """
    settled = {name for tried in before for name in tried.check.promises if tried.confirms(name)}
    left = tuple(name for name in check.promises if name not in settled)
    return replace(check, promises=left) if left else None


def cells_of(
    record: Mapping[str, Any], tried: Sequence[Tried], cites: Mapping[str, str]
) -> list[Cell]:
    """Return a cell for each promise, in the order of the promises."""
    return [
        _cell(entry.number, record["properties"][entry.number], tried, cites)
        for entry in PROPERTIES
    ]


def _cell(
    number: str, found: Mapping[str, Any], tried: Sequence[Tried], cites: Mapping[str, str]
) -> Cell:
    word = str(found["verdict"])
    judged = tuple(found.get("judged_by", ()))
    cite = str(cites.get(number, "")) if word != NOT_PROMISED else ""
    if word != VIOLATED:
        reason = str(found.get("reason", ""))
        return Cell(promise=number, verdict=word, by=judged, reason=reason, cite=cite)
    mine = [one for one in tried if number in one.check.promises]
    best = next((one for one in mine if one.confirms(number)), mine[0] if mine else None)
    is_confirmed = best is not None and best.confirms(number)
    shown = [w for w in found["witnesses"] if best is None or w["engine"] == best.check.engine]
    story = str((shown or found["witnesses"] or [{"story": ""}])[0]["story"])
    return Cell(
        promise=number,
        verdict=VIOLATED if is_confirmed else UNCONFIRMED,
        by=tuple(found.get("found_by", ())),
        story=story,
        command="" if best is None else best.check.command,
        confirmed="; ".join(_told(one, number) for one in mine) or "it was not tried again",
        cite=cite,
    )


def _told(tried: Tried, number: str) -> str:
    again = tried.seen.get(number, 0)
    needs = f", shrunk to {tried.check.needs}" if tried.check.needs else ""
    failed = f"; {tried.failed} more judged nothing" if tried.failed else ""
    return f"seen again in {again} of {tried.made} runs of {tried.check.engine}{needs}{failed}"


def word_of(cells: Sequence[Cell]) -> str:
    """Return the word for a whole queue."""
    words = [cell.verdict for cell in cells]
    for word in (VIOLATED, UNCONFIRMED, UNKNOWN):
        if word in words:
            return word
    return UNKNOWN if "not_judged" in words else "pass"
