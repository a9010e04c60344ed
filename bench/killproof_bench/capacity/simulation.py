"""A line before one lock, played through with the times that were measured: a seeded simulation.

Formulas for p99 need to know who is served next. SQLite's own waiters barge; killproof's turnstile
wakes the first in line, but who comes just then can be faster than the one that has to wake up, and
the woken one goes to the end of the line. So nothing is assumed: from a measured run is taken how
many others each waiter let go first, as a share of the line that it found (`place`): 1 is first
come first served, 0 went past everybody, 2 waited for the whole line twice. A waiter here draws its
place when it arrives, and the lock goes to the one whose place comes first. Hold, hand-over and the
rest of the call are drawn from the measured ones too, the holds in runs of neighbours, since slow
ones come together.

A line with a single server and measured service times is M/G/1 when arrivals are random, and the
machine-repairman model when a fixed crew comes back (Kleinrock, Queueing Systems, volume 1,
chapters 4 and 5); `tests/unit/test_capacity_simulation.py` compares it with both.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]

#: Holds are drawn in runs of so many neighbours: a checkpoint or a busy moment lasts that long.
RUN: Final = 32
#: Of a simulated run: the first part, in which the line fills, does not count.
WARMUP: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What one kind of call asks of the lock; microseconds, each as it was measured."""

    entry: Times  #: From the begin of a call to having a lock that nobody else wants.
    hold: Times  #: In the order in which they happened.
    handover: Times  #: From one holder's release to the next one's lock, while somebody waits.
    place: Times  #: Others that went first, per waiter found.
    after: Times  #: From the release to the end of the call: the sync, and Python.


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came out."""

    jobs_per_s: float
    calls_ms: Times  #: Of every claim call, in the order of their ends.
    waits_ms: Times  #: From the intended enqueue to the end of the claim; empty in a closed loop.
    stable: bool  #: The last third waits no more than three times as long as the first.

    def call(self, permille: int) -> float:
        """Return a quantile of the claim call, milliseconds."""
        return float(np.percentile(self.calls_ms, permille / 10))

    def waited(self, permille: int) -> float:
        """Return a quantile of the time to claim, milliseconds."""
        return float(np.percentile(self.waits_ms, permille / 10))


class _Draw:
    """Endless samples from one set of measured times."""

    def __init__(self, times: Times, coin: np.random.Generator, *, run: int = 1) -> None:
        self._draws = self._drawn(times, coin, run)

    def __call__(self) -> float:
        return next(self._draws)

    @staticmethod
    def _drawn(times: Times, coin: np.random.Generator, run: int) -> Iterator[float]:
        run = min(run, len(times))
        while True:
            starts = coin.integers(0, len(times) - run + 1, size=max(1, 4_096 // run))
            yield from times[(starts[:, None] + np.arange(run)).ravel()].tolist()


class _Kind:
    """The draws of one kind of call."""

    def __init__(self, service: Service, coin: np.random.Generator) -> None:
        self.entry = _Draw(service.entry, coin)
        self.hold = _Draw(service.hold, coin, run=RUN)
        self.handover = _Draw(service.handover, coin)
        self.place = _Draw(service.place, coin)
        self.after = _Draw(service.after, coin)


@dataclass(slots=True)
class _Call:
    """One call on its way through the lock."""

    kind: _Kind
    begin: float
    released: Callable[[float], None]
    ended: Callable[[float], None]


class _Lock:
    """The lock, its line, and the clock of the simulation."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._line: list[tuple[float, int, _Call]] = []
        self._grants = 0
        self._taken = False

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do something at a moment."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def run(self, until: Callable[[], bool]) -> None:
        """Play until that is true, or nothing is left to happen."""
        while self._events and not until():
            self.now, _, what = heapq.heappop(self._events)
            what()

    def arrive(self, call: _Call) -> None:
        """Want the lock now."""
        if not self._taken:
            self._taken = True
            self.at(self.now + call.kind.entry(), lambda: self._hold(call))
            return
        self._count += 1
        turn = self._grants + call.kind.place() * len(self._line)
        heapq.heappush(self._line, (turn, self._count, call))

    def _hold(self, call: _Call) -> None:
        self._grants += 1
        self.at(self.now + call.kind.hold(), lambda: self._release(call))

    def _release(self, call: _Call) -> None:
        call.released(self.now)
        end = self.now + call.kind.after()
        self.at(end, lambda: call.ended(end))
        if self._line:
            # The lock stays taken meanwhile, and who arrives now may still go first.
            self.at(self.now + self._line[0][2].kind.handover(), self._grant)
        else:
            self._taken = False

    def _grant(self) -> None:
        self._hold(heapq.heappop(self._line)[2])


def closed(service: Service, *, workers: int, job_ms: float, jobs: int, seed: int) -> Played:
    """Play N workers that always have a next job, and work so long on each.

    Args:
        service: Of the call that acks a job and claims the next.
        workers: At least 1.
        job_ms: Between two calls of a worker.
        jobs: How many to play.
        seed: The same seed gives the same figures.
    """
    coin, lock = np.random.default_rng(seed), _Lock()
    kind = _Kind(service, coin)
    calls: list[tuple[float, float]] = []

    def work() -> None:
        begin = lock.now

        def ended(end: float) -> None:
            calls.append((begin, end))
            lock.at(end + job_ms * 1_000, work)

        lock.arrive(_Call(kind, begin, lambda _: None, ended))

    spread = job_ms * 1_000 + float(service.hold.mean()) * workers
    for _ in range(workers):
        lock.at(float(coin.random()) * spread, work)
    lock.run(lambda: len(calls) >= jobs)
    begins, ends = np.array(calls[round(WARMUP * len(calls)) :]).T
    return _played(ends, ends - begins, np.zeros(0))


def opened(
    *,
    enqueue: Service,
    claim: Service,
    ack_and_claim: Service,
    wake: Times,
    rate_per_s: float,
    producers: int,
    workers: int,
    job_ms: float,
    jobs: int,
    seed: int,
) -> Played:
    """Play producers with random arrivals (Poisson), and workers that take what there is.

    A producer that is late makes up for it at once; the intended moment of an enqueue is what the
    wait is counted from. An idle worker hears of a job some time after its commit (`wake`).

    Args:
        enqueue: Of the producers' calls.
        claim: Of a worker that was idle.
        ack_and_claim: Of a worker that was busy.
        wake: From the commit of a job to the begin of an idle worker's claim.
        rate_per_s: Of all producers.
        producers: Processes that share the arrivals.
        workers: Processes that claim.
        job_ms: A handler's time.
        jobs: How many to play.
        seed: The same seed gives the same figures.
    """
    coin = np.random.default_rng(seed)
    played = _Open(
        kinds=(_Kind(enqueue, coin), _Kind(claim, coin), _Kind(ack_and_claim, coin)),
        wake=_Draw(wake, coin),
        job_us=job_ms * 1_000,
        idle=workers,
        jobs=jobs,
    )
    for _ in range(producers):
        gaps = coin.exponential(1e6 * producers / rate_per_s, size=jobs)
        played.produce(iter(np.cumsum(gaps).tolist()))
    played.lock.run(lambda: len(played.claims) >= jobs)
    intended, begins, ends = np.array(played.claims[round(WARMUP * len(played.claims)) :]).T
    return _played(ends, ends - begins, ends - intended)


class _Open:
    """The state of an open loop."""

    def __init__(
        self,
        *,
        kinds: tuple[_Kind, _Kind, _Kind],
        wake: _Draw,
        job_us: float,
        idle: int,
        jobs: int,
    ) -> None:
        self.lock = _Lock()
        self.claims: list[tuple[float, float, float]] = []
        self._enqueue, self._claim, self._next = kinds
        self._wake = wake
        self._job_us = job_us
        self._idle = idle
        #: Intended moments of the jobs that are there and that nobody comes for yet.
        self._ready: list[float] = []
        self._first = 0

    def produce(self, arrivals: Iterator[float]) -> None:
        """Start one producer."""

        def following() -> None:
            intended = next(arrivals, None)
            if intended is not None:
                self.lock.at(max(intended, self.lock.now), lambda: begin(intended))

        def begin(intended: float) -> None:
            self.lock.arrive(
                _Call(
                    self._enqueue,
                    self.lock.now,
                    lambda _: self._came(intended),
                    lambda _: following(),
                )
            )

        following()

    def _came(self, intended: float) -> None:
        self._ready.append(intended)
        if self._idle:
            self._idle -= 1
            self.lock.at(self.lock.now + self._wake(), lambda: self._take(self._claim))

    def _take(self, kind: _Kind) -> None:
        """Begin a call that takes the oldest job, if there still is one when it has the lock."""
        if self._first == len(self._ready) and kind is self._claim:
            self._idle += 1  # An empty look takes no lock.
            return
        begin = self.lock.now
        taken: list[float] = []

        def released(_: float) -> None:
            if self._first < len(self._ready):
                taken.append(self._ready[self._first])
                self._first += 1

        def ended(end: float) -> None:
            if not taken:
                self._idle += 1
                if self._first < len(self._ready):  # One came while the call ended.
                    self._idle -= 1
                    self._take(self._claim)
                return
            self.claims.append((taken[0], begin, end))
            self.lock.at(end + self._job_us, lambda: self._take(self._next))

        self.lock.arrive(_Call(kind, begin, released, ended))


def _played(ends: Times, latencies: Times, waits: Times) -> Played:
    thirds = [float(np.median(part)) for part in np.array_split(waits, 3) if len(part)]
    spent = float(ends.max() - ends.min()) / 1e6
    return Played(
        jobs_per_s=(len(ends) - 1) / spent if spent else 0.0,
        calls_ms=latencies / 1_000,
        waits_ms=waits / 1_000,
        # A backlog that grows evenly makes the last third wait five times as long as the first. A
        # millisecond more is no trend where the waits themselves are shorter.
        stable=not thirds or thirds[2] <= 3 * thirds[0] + 1_000,
    )
