"""Makes the trials that are not made yet, side by side, and keeps a line of each in the store."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from killproof_chaos import memory
from killproof_chaos.power.lane import FAILED, is_expected
from killproof_chaos.power.lanes import Lanes
from killproof_chaos.power.trials import Outcome, Trial
from killproof_evidence.finding import UNKNOWN
from killproof_evidence.store import Store

#: A line for each trial that was made: a run that is asked for again goes on where this one ended.
OUTCOMES: Final = "outcomes.jsonl"
#: What the lanes of two cores need for databases, logs and copies of disks.
MEMORY_BYTES_MIN: Final = 256 << 20
#: A run whose supervisor got no CPU is made again, so often in all.
TRIES_MAX: Final = 3
#: How the judge says so.
STARVED: Final = "starved of CPU"
#: Seconds that a trial takes, until there is a measurement.
USUAL_SECONDS: Final = {"sim": 1.0, "crash": 2.5, "disk": 2.5, "proc": 7.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How far it is."""

    done: int
    total: int
    missed: int  #: outcomes that nobody expected
    left: float  #: s, by the pace of each engine so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What came of the trials."""

    outcomes: Sequence[Outcome]
    interrupted: bool
    earlier: int  #: of them, how many the store held already
    files_in: str  #: where the files of the runs were


Show = Callable[[Turn], None]


def make(planned: Sequence[Trial], folder: Path, *, seconds: float, lanes: int, show: Show) -> Made:
    """Make all trials that the store does not hold yet; Ctrl-C ends it early.

    Args:
        planned: in the order in which they are made.
        folder: the store.
        seconds: nothing new begins after them.
        lanes: trials at once.
        show: is told how far it is.
    """
    began = time.monotonic()
    keys = {trial.key for trial in planned}
    outcomes = [outcome for outcome in read(folder) if outcome.trial.key in keys]
    known = {outcome.trial.key for outcome in outcomes}
    left = deque(trial for trial in planned if trial.key not in known)
    tries: Counter[str] = Counter()
    progress = _Progress(left, len(planned), lanes)
    interrupted = False

    def draw() -> Trial | None:
        return left.popleft() if left and time.monotonic() - began < seconds else None

    log = Store(folder).writer(folder / OUTCOMES)
    with memory.lent("power", bytes_min=MEMORY_BYTES_MIN, otherwise=folder) as place:
        pool = Lanes(lanes, place, folder)
        try:
            for outcome in pool.outcomes(draw):
                tries[outcome.trial.key] += 1
                made = tries[outcome.trial.key]
                if is_starved(outcome) and made < TRIES_MAX:
                    left.append(outcome.trial)
                    continue
                outcome = settled(outcome, made)
                outcomes.append(outcome)
                log.append(outcome.record())
                show(progress.turn(outcome, seconds - (time.monotonic() - began)))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            pool.close()
            log.close()
        where = str(place.parent)
    memory.sweep()
    return Made(outcomes=outcomes, interrupted=interrupted, earlier=len(known), files_in=where)


def is_starved(outcome: Outcome) -> bool:
    """Say whether the machine had no time for a run, which then says nothing of bounds of time."""
    must_find = outcome.trial.part == "intended"
    return must_find and outcome.verdict == UNKNOWN and STARVED in outcome.why


def settled(outcome: Outcome, tries: int) -> Outcome:
    """Return what counts of the last of several tries: one without time has missed nothing."""
    if not is_starved(outcome):
        return replace(outcome, tries=tries)
    return replace(outcome, tries=tries, verdict=FAILED, why=f"{outcome.why}, {tries} times")


def read(folder: Path) -> list[Outcome]:
    """Return the outcomes that a store holds; those that failed are made again."""
    found = (record for _, record in Store(folder).read(folder / OUTCOMES))
    outcomes = [Outcome.of_record(record) for record in found if record is not None]
    return [outcome for outcome in outcomes if outcome.verdict != FAILED]


class _Progress:
    """How far it is, and how long it still takes."""

    def __init__(self, left: Sequence[Trial], total: int, lanes: int) -> None:
        self._lanes = lanes
        self._total = total
        self._left = dict.fromkeys(USUAL_SECONDS, 0)
        self._took: dict[str, list[float]] = {engine: [] for engine in USUAL_SECONDS}
        self._missed = 0
        for trial in left:
            self._left[trial.engine] += 1

    def turn(self, outcome: Outcome, budget_left: float) -> Turn:
        """Take in an outcome; return what to show."""
        engine = outcome.trial.engine
        self._left[engine] -= 1
        self._took[engine].append(outcome.seconds)
        self._missed += not is_expected(outcome)
        remaining = sum(count * self._pace(name) for name, count in self._left.items())
        return Turn(
            done=self._total - sum(self._left.values()),
            total=self._total,
            missed=self._missed,
            left=min(remaining / self._lanes, max(budget_left, 0.0)),
        )

    def _pace(self, engine: str) -> float:
        took = self._took[engine]
        return sum(took) / len(took) if took else USUAL_SECONDS[engine]
