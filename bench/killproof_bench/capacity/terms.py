"""From recorded calls to the terms of the models: hold, hand-over, entry, what comes after, place.

Pure functions of arrays. A term that was measured with some numbers of workers is carried to others
on a straight line over the logarithm of the number: doubling the workers makes a hold, and above
all a hand-over, longer by about the same step each time, because more processes share the same
cores and caches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from killproof_bench.capacity.result import LockPoint
from killproof_bench.capacity.simulation import Service, Times
from killproof_bench.crew import Calls
from killproof_bench.recording import Call, Kind

#: A line through few points may lead anywhere; a term never leaves the measured ones by more.
CARRY_MAX: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The terms of one kind of call in one part of a run; microseconds."""

    service: Service
    latency: Times  #: Of whole calls.
    queued: float  #: Share of the calls that met a taken lock.


def observe(slices: Sequence[Calls], kind: Kind) -> Observed | None:
    """Take the terms out of the calls of slices; `None` where no such call was made.

    Who holds the lock is seen across all calls, of whatever kind: enqueues stand in the same line.

    Args:
        slices: Each the calls of all processes in one slice, rows of `recording.Call`.
        kind: Whose terms.
    """
    parts: dict[str, list[Times]] = {name: [] for name in _NAMES}
    for rows in slices:
        rows = rows[rows[:, Call.LOCK] > 0]
        rows = rows[np.argsort(rows[:, Call.LOCK], kind="stable")]
        if len(rows) < 2:
            continue
        for name, values in _terms(rows, rows[:, Call.KIND] == kind).items():
            parts[name].append(values)
    terms = {name: np.concatenate(found) if found else np.zeros(0) for name, found in parts.items()}
    if not len(terms["hold"]):
        return None
    queued = len(terms["handover"]) / len(terms["hold"])
    return Observed(
        service=Service(
            entry=_some(terms["entry"], 0.0),
            hold=terms["hold"],
            handover=_some(terms["handover"], 0.0),
            place=_some(terms["place"], 1.0),
            after=terms["after"],
        ),
        latency=terms["latency"],
        queued=queued,
    )


_NAMES: Final = ("entry", "hold", "handover", "place", "after", "latency")


def _terms(rows: Calls, wanted: "np.typing.NDArray[np.bool_]") -> dict[str, Times]:
    """Return the terms of the wanted calls; all calls are given, in the order of their locks."""
    begin, lock, end = rows[:, Call.BEGIN], rows[:, Call.LOCK], rows[:, Call.END]
    # A checkpoint runs after the commit and before the next one gets in.
    release = rows[:, Call.COMMITTED] + rows[:, Call.CHECKPOINT]
    free = np.concatenate([[0], np.maximum.accumulate(release)[:-1]])
    met = begin < free
    # Calls that had the lock after this one began and before it had it: they went first. The one
    # that held it when this one began is not among them: its lock came before.
    first = np.arange(len(rows)) - np.searchsorted(lock, begin)
    # Who had begun before this one and had no lock yet: the line that it found.
    line = np.searchsorted(np.sort(begin), begin) - np.searchsorted(lock, begin)
    stood = wanted & met & (line > 0)
    us = 1e-3
    return {
        "entry": (lock - begin)[wanted & ~met] * us,
        "hold": (release - lock)[wanted] * us,
        "handover": np.maximum(lock - free, 0)[wanted & met] * us,
        "place": first[stood] / line[stood],
        "after": (end - release)[wanted] * us,
        "latency": (end - begin)[wanted] * us,
    }


def _some(values: Times, otherwise: float) -> Times:
    return values if len(values) else np.array([otherwise])


def lock_point(workers: int, observed: Observed, cpu_us: float) -> LockPoint:
    """Return where the time of a job goes, as the report tells it."""
    service = observed.service
    hold, after = float(service.hold.mean()), float(service.after.mean())
    handover = float(service.handover.mean()) * observed.queued
    entry = float(service.entry.mean())
    wait = float(observed.latency.mean()) - hold - after - entry
    return LockPoint(
        workers=workers,
        hold_us=hold,
        handover_us=handover,
        outside_us=entry + after,
        wait_us=max(0.0, wait),
        cpu_us=cpu_us,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The terms of one kind of load, measured with some numbers of workers."""

    job_ms: float
    workers: tuple[int, ...]
    observed: tuple[Observed, ...]  #: One per number of workers.
    cpu_us: tuple[float, ...]  #: Processor time per job, likewise.
    alone: Observed | None = None  #: One worker with such jobs.
    cores: int = 0  #: While there is one for each worker, none waits for one outside the lock.

    def service(self, workers: float, job_ms: float) -> Service:
        """Return the terms for another number of workers, and another length of jobs."""
        count = self.equivalent(workers, job_ms)
        alone = float(np.mean([each.service.entry.mean() for _, each in self._having("entry")]))
        return Service(
            entry=np.array([alone]),
            hold=self._carried("hold", count),
            handover=self._carried("handover", count),
            place=np.concatenate([each.service.place for _, each in self._having("place")]),
            after=(
                self.alone.service.after
                if self.alone is not None and count <= self.cores
                else self._carried("after", count)
            ),
        )

    def cpu(self, workers: float, job_ms: float) -> float:
        """Return the processor time of a job, microseconds."""
        return self._line(np.array(self.cpu_us), self.workers, self.equivalent(workers, job_ms))

    def equivalent(self, workers: float, job_ms: float) -> float:
        """Return how many workers with the calibrated jobs are as often at the lock as these."""
        if job_ms == self.job_ms:
            return workers
        call_ms = float(np.mean([each.latency.mean() for each in self.observed])) / 1_000
        return max(1.0, workers * (self.job_ms + call_ms) / (job_ms + call_ms))

    def _carried(self, name: str, count: float) -> Times:
        """Return the samples of a term from all calibrated numbers, with the mean of another."""
        having = self._having(name)
        samples: list[Times] = [getattr(each.service, name) for _, each in having]
        means = np.array([float(each.mean()) for each in samples])
        places = [workers for workers, _ in having]
        mean = self._line(means, places, count)
        return np.concatenate(
            [each * (mean / own) if own else each for each, own in zip(samples, means, strict=True)]
        )

    def _having(self, name: str) -> list[tuple[int, Observed]]:
        """Return the observations that tell of a term, with their numbers of workers.

        Where hardly anybody waits there is hardly a hand-over, and few accidents are all one sees;
        where nearly all wait, few find the lock free.
        """
        pairs = list(zip(self.workers, self.observed, strict=True))
        if name in ("handover", "place"):
            return [pair for pair in pairs if pair[1].queued > 0.1] or pairs
        if name == "entry":
            return [pair for pair in pairs if pair[1].queued < 0.9] or pairs
        return pairs

    @staticmethod
    def _line(means: Times, places: Sequence[int], count: float) -> float:
        """Carry means along log2 of the number of workers, never far from what was measured.

        More workers make nothing shorter, so a line that falls is noise and is held level. Beyond
        the most workers measured it goes on with half its slope: once every core has somebody
        waiting for it, one more adds less; the whole slope missed by 13% at twice the workers, and
        half of it by 7%.
        """
        if len(places) == 1:
            return float(means[0])
        slope, level = np.polyfit(np.log2(places), means, 1)
        if slope <= 0:
            return float(means.mean())
        inside, most = math.log2(min(count, max(places))), math.log2(max(places))
        beyond = max(0.0, math.log2(count) - most)
        carried = float(level + slope * (inside + beyond / 2))
        return min(max(carried, float(means.min()) / CARRY_MAX), float(means.max()) * CARRY_MAX)
