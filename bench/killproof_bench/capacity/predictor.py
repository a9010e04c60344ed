"""The calibrated model: from the terms of a few numbers of workers to any number, and its errors.

Throughput comes from mean value analysis (`models`), p99 from playing the line with the measured
times (`simulation`). Two networks are tried, the lock alone and the lock with the processors as a
second station; the one that is nearer at the calibrated points is taken. What decides about them
both are points that neither has seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from killproof_bench.capacity import models, simulation
from killproof_bench.capacity.closed import Cell
from killproof_bench.capacity.models import Station
from killproof_bench.capacity.terms import Calibration

Kind = Literal["lock", "lock and processor"]

#: The forecast is good when both hold on every point that it has not seen.
THROUGHPUT_GOAL: Final = 0.15
P99_GOAL: Final = 2.0
#: Enough for a p99 with a hundred calls beyond it.
PLAYED_JOBS: Final = 10_000
#: The hand-over happens to who had to wait, and that share follows from the solution itself.
_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The demands of one closed-loop call with so many workers; seconds."""

    lock: float  #: Hold, and hand-over for the share of the calls that wait.
    variation: float  #: Of that, squared coefficient.
    processor: float  #: Processor time outside the lock.
    delay: float  #: The job, and what the call does outside the lock.


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """Predicts closed loops from calibrations."""

    alone: Calibration | None  #: One worker: its page cache stays valid, and nobody hands over.
    idle: Calibration  #: Jobs without work.
    working: Calibration  #: Jobs with some.
    cores: int
    kind: Kind
    seed: int

    def calibration(self, workers: int, job_ms: float) -> Calibration:
        """Return the calibration that tells about such a load."""
        if job_ms:
            return self.working
        return self.alone if workers == 1 and self.alone is not None else self.idle

    def network(self, workers: int, job_ms: float) -> Network:
        """Return the demands with so many workers."""
        calibration = self.calibration(workers, job_ms)
        service = calibration.service(workers, job_ms)
        hold, handover, entry, after = (
            float(times.mean()) / 1e6
            for times in (service.hold, service.handover, service.entry, service.after)
        )
        delay = job_ms / 1e3 + entry + after
        spread = float(service.hold.var()) / 1e12
        lock, variation = hold, spread / hold**2
        for _ in range(_ROUNDS if workers > 1 else 0):
            # An arriving call sees the network with one worker less (Reiser and Lavenberg's
            # arrival theorem): it waits, and is handed the lock, as often as that one is busy.
            others = models.mva(
                [Station(demand=lock, variation=min(1.0, variation))], delay, workers - 1
            )
            lock = hold + handover * others.utilisation[0]
            variation = spread / lock**2
        cpu = calibration.cpu(workers, job_ms) / 1e6
        return Network(
            lock=lock,
            # A few very long holds would make the formula wait longer than for everybody.
            variation=min(1.0, variation),
            processor=max(0.0, cpu - hold),
            delay=delay,
        )

    def throughput(self, workers: int, job_ms: float) -> float:
        """Return the predicted jobs/s of a closed loop."""
        network = self.network(workers, job_ms)
        stations = [Station(demand=network.lock, variation=network.variation)]
        delay = network.delay
        if self.kind == "lock and processor":
            # Whoever holds the lock has a core to himself; the others share what is left.
            outside = min(network.processor, delay)
            stations.append(Station(demand=outside, servers=max(1, self.cores - 1)))
            delay -= outside
        return models.mva(stations, delay, workers).throughput

    def p99_ms(self, workers: int, job_ms: float) -> float:
        """Return the predicted p99 of the claim call in a closed loop, milliseconds."""
        service = self.calibration(workers, job_ms).service(workers, job_ms)
        played = simulation.closed(
            service, workers=workers, job_ms=job_ms, jobs=PLAYED_JOBS, seed=self.seed
        )
        return played.call(990)


def chosen(
    *,
    alone: Calibration | None,
    idle: Calibration,
    working: Calibration,
    cores: int,
    seed: int,
    measured: Mapping[Cell, float],
) -> tuple[Predictor, str]:
    """Return the predictor whose network is nearer at the calibrated points, and why.

    Args:
        alone: Of one worker.
        idle: Of jobs without work.
        working: Of jobs with work.
        cores: Processors of the machine.
        seed: Of the simulation.
        measured: Jobs/s at the calibrated points.
    """
    errors: dict[Kind, float] = {}
    kinds: tuple[Kind, Kind] = ("lock", "lock and processor")
    made = {
        kind: Predictor(alone=alone, idle=idle, working=working, cores=cores, kind=kind, seed=seed)
        for kind in kinds
    }
    for kind, predictor in made.items():
        errors[kind] = max(
            abs(predictor.throughput(cell.workers, cell.job_ms) / rate - 1)
            for cell, rate in measured.items()
        )
    simple, other = kinds
    # The second station has to earn its place.
    kind = other if errors[other] < errors[simple] * 0.8 else simple
    told = " and ".join(f"{error:.0%} with {name}" for name, error in errors.items())
    return made[kind], f"largest error at the calibrated points: {told}"
