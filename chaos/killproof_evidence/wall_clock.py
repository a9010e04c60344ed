"""The wall clock of a run whose nemesis stepped it: which time it told, and which it really was.

Due times are wall clock, so a queue is held to the time that its processes were told: the audit's
`t_ms`, as written. Everything else (leases, deaths, bounds) is on the monotonic clock, and a commit
is placed there by its *true* time: what was told, less the offset that was in force.

Each step is in the nemesis log with both clocks. A step is much larger than a run is long, so the
time told gives the offset away: with any other, the commit would lie an hour outside of the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: The name of a step in the nemesis log.
CLOCK: Final = "clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: the clock told the old time until `t`, and the new time from `t_end` on."""

    t: int  #: CLOCK_MONOTONIC ns, just before
    t_end: int  #: just after
    wall_ms: int  #: the true time at `t`, ms since 1970
    offset_ms: int  #: added to the true time from here on
    before_ms: int  #: added until here

    @property
    def is_forward(self) -> bool:
        """Say whether time jumped ahead: what was not due may have become due at once."""
        return self.offset_ms > self.before_ms


class WallClock:
    """The steps of a run, in order; without any, the time told is the true one."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        """Take the steps in the order of their times."""
        self.steps = tuple(steps)
        self._offsets = sorted({s.before_ms for s in steps} | {s.offset_ms for s in steps})
        self._middle_ms = sum(s.wall_ms for s in steps) // len(steps) if steps else 0

    @classmethod
    def of_records(cls, records: Iterable[Mapping[str, Any]]) -> "WallClock":
        """Read the steps among the records of a nemesis log.

        Raises:
            KeyError: a step lacks a field.
        """
        return cls(
            [
                Step(**{name: record[name] for name in Step.__dataclass_fields__})
                for record in records
                if record.get("fault") == CLOCK
            ]
        )

    def true_ms(self, told_ms: int) -> int:
        """Return the true time, ms since 1970, at which a process was told this one."""
        if not self.steps:
            return told_ms
        times = [told_ms - offset for offset in self._offsets]
        return min(times, key=lambda t: abs(t - self._middle_ms))

    def stepped(self, start: int, end: int, *, forward: bool = False) -> bool:
        """Say whether a step (or a step forward) may lie in [start, end], monotonic ns."""
        return any(
            step.t <= end and start <= step.t_end and (step.is_forward or not forward)
            for step in self.steps
        )
