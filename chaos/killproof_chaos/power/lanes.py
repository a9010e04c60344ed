"""The lanes as their supervisor sees them: each answers one trial at a time, and may die of it.

A broken queue may end the process that it runs in, or hang it. Such a trial has failed, which is
told, and the lane begins anew; the others go on.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from killproof_chaos.engines.crash_process import last_line
from killproof_chaos.power.lane import FAILED
from killproof_chaos.power.trials import Outcome, Trial

#: A lane begins anew after so many trials: what a broken queue leaks must not pile up.
TRIALS_MAX: Final = 40
#: How often the supervisor looks at limits while nobody answers, s.
LOOK_SECONDS: Final = 0.5
#: Gives the next trial; None: there is none for now.
Draw = Callable[[], Trial | None]


@dataclass(slots=True, kw_only=True)
class _Lane:
    """A process, and what it is at."""

    number: int
    process: "subprocess.Popen[bytes]"
    trial: Trial | None = None
    began: float = 0.0  #: of the trial, monotonic s
    done: int = 0  #: trials since the process began


class Lanes:
    """Performs trials side by side."""

    def __init__(self, count: int, memory: Path, store: Path) -> None:
        """Start the lanes.

        Args:
            count: how many.
            memory: a folder, best in memory, for what is under way.
            store: a folder on a disk, for recordings, and for the evidence of what nobody expected.
        """
        self._memory = memory
        self._store = store.resolve()
        self._lanes: list[_Lane] = []
        try:
            for number in range(count):
                self._lanes.append(_Lane(number=number, process=self._start(number)))
        except BaseException:
            self.close()
            raise

    def outcomes(self, draw: Draw) -> Iterator[Outcome]:
        """Yield what comes of each trial, in the order in which they end.

        Args:
            draw: is asked when a lane is free, so that it may end early, or give one again.
        """
        for lane in self._lanes:
            self._next(lane, draw)
        while busy := [lane for lane in self._lanes if lane.trial is not None]:
            yield from self._turn(busy, draw)

    def _turn(self, busy: list[_Lane], draw: Draw) -> Iterator[Outcome]:
        with selectors.DefaultSelector() as selector:
            for lane in busy:
                assert lane.process.stdout is not None
                selector.register(lane.process.stdout, selectors.EVENT_READ, lane)
            ready = [key.data for key, _ in selector.select(LOOK_SECONDS)]
        for lane in busy:
            assert lane.trial is not None
            took = time.monotonic() - lane.began
            if lane in ready:
                assert lane.process.stdout is not None
                line = lane.process.stdout.readline()
                outcome = Outcome.of_record(json.loads(line)) if line else self._died(lane, took)
            elif took > lane.trial.limit:
                outcome = self._died(lane, took, f"it did not end within {lane.trial.limit:.0f} s")
            else:
                continue
            yield outcome
            self._next(lane, draw)

    def _next(self, lane: _Lane, draw: Draw) -> None:
        lane.trial = draw()
        if lane.trial is None:
            return
        if lane.done >= TRIALS_MAX:
            self._end(lane)
            lane.process, lane.done = self._start(lane.number), 0
        lane.began = time.monotonic()
        lane.done += 1
        name = "-".join((lane.trial.part, lane.trial.target, lane.trial.engine))
        request = {"trial": lane.trial.record(), "name": f"{name}-{lane.trial.seed}"}
        assert lane.process.stdin is not None
        # A lane that has died meanwhile is seen when it does not answer.
        with suppress(BrokenPipeError):
            lane.process.stdin.write(json.dumps(request).encode() + b"\n")
            lane.process.stdin.flush()

    def _died(self, lane: _Lane, seconds: float, why: str = "") -> Outcome:
        """Begin a lane anew; return that its trial has failed."""
        assert lane.trial is not None
        self._end(lane)
        text = self._log(lane.number).read_text(encoding="utf-8", errors="replace")
        said = last_line(text) or "it said nothing"
        ended = f"the process that ran it ended with {lane.process.returncode}: {said}"
        trial = lane.trial
        lane.process, lane.done = self._start(lane.number), 0
        return Outcome(trial=trial, verdict=FAILED, seconds=round(seconds, 3), why=why or ended)

    def _log(self, number: int) -> Path:
        return self._memory / f"lane{number}.log"

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        words = (str(self._memory), str(self._store), str(number), str(os.getpid()))
        with self._log(number).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "killproof_chaos.power.lane", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,  # Ctrl-C is for the supervisor, which tells what was done.
            )

    def _end(self, lane: _Lane) -> None:
        # With all that it has started: a process left behind would go on writing.
        with suppress(ProcessLookupError):
            os.killpg(lane.process.pid, signal.SIGKILL)
        lane.process.communicate()

    def close(self) -> None:
        """End all lanes at once, whatever they are at."""
        for lane in self._lanes:
            self._end(lane)
