"""When an open loop's calls are due: a schedule made of a seed, and the pacer that keeps it.

In a closed loop a slow call delays the next one, so the load gives way just when it should press,
and the waiting that users would have had is never recorded (coordinated omission). Here every call
has an *intended* time that no slow call moves; latency is taken from it (the method of wrk2). The
pacer's credit comes from the clock alone: after a slow call everything that has become due
meanwhile is due at once. A pacer that counts its own turns would quietly offer less.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Final, Literal

Arrivals = Literal["poisson", "constant", "burst"]

#: So many calls are due at once in `burst`; the bursts themselves are evenly spaced. More than one
#: worker can take at a time, fewer than a second's worth at any rate that is worth measuring.
BURST: Final = 20
#: A call that begins later than this after its intended time is counted as late. A sleeping process
#: wakes within a tenth of it; what is later waited for a call before it, or for a processor.
LATE_NS: Final = 1_000_000
#: How long the pacer sleeps at most before it looks whether it was told to stop.
_SLICE_NS: Final = 50_000_000
_SECOND_NS: Final = 1_000_000_000


def schedule(arrivals: Arrivals, rate_per_s: float, *, seed: int) -> Iterator[int]:
    """Yield the intended times of all calls, ns after the start; endless.

    Poisson is the default of every open loop here: independent users arrive like that, and their
    clusters find the knee earlier than an even spacing does.

    Args:
        arrivals: `poisson`: exponential gaps; `constant`: equal gaps, the first at a random phase,
            so that several processes do not beat in step; `burst`: `BURST` calls at once.
        rate_per_s: Mean calls per second.
        seed: The same seed gives the same schedule.

    Raises:
        ValueError: The rate is not above 0.
    """
    if not rate_per_s > 0:
        raise ValueError(f"rate {rate_per_s:g}/s: give a number above 0")
    coin = random.Random(seed)
    gap = _SECOND_NS / rate_per_s
    if arrivals == "poisson":
        at = 0.0
        while True:
            at += coin.expovariate(1.0) * gap
            yield round(at)
    size = BURST if arrivals == "burst" else 1
    phase = coin.random() * gap * size
    for turn in itertools.count():
        yield from [round(phase + turn * gap * size)] * size


class Pacer:
    """Hands out one intended time after the other, each when it is due."""

    def __init__(
        self,
        offsets: Iterator[int],
        *,
        start_ns: int,
        until_ns: Callable[[], int],
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare.

        Args:
            offsets: The schedule.
            start_ns: What its times count from.
            until_ns: When it is over, asked anew each time: a signal may bring it forward.
            clock: perf_counter_ns; a test passes its own.
            sleep: Waits so many seconds.
        """
        self._offsets = offsets
        self._start_ns = start_ns
        self._until_ns = until_ns
        self._clock = clock
        self._sleep = sleep
        #: Calls that were due before the end, and that there was no time left to make.
        self.skipped = 0

    def wait(self) -> int | None:
        """Wait until the next call is due; return its intended time, or `None` at the end."""
        due = self._start_ns + next(self._offsets)
        while True:
            now, until = self._clock(), self._until_ns()
            if due >= until:
                return None
            if now >= until:
                self._skip(due, until)
                return None
            if now >= due:
                return due
            self._sleep(min(due - now, _SLICE_NS) / _SECOND_NS)

    def _skip(self, due: int, until: int) -> None:
        while due < until:
            self.skipped += 1
            due = self._start_ns + next(self._offsets)
