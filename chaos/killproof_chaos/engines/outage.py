"""What an operator does when a disk error has stopped the queue: end everybody, repair, go on.

A queue may refuse all work after a failed sync, because nobody can say any more what is on the
disk. It then waits for a person. In a run this is that person: it leaves everybody alone for a
moment, in which nothing may be acknowledged, kills what is left, does the repair that the target
documents, and gives life back. It does the same once at the heal, whatever has happened: a commit
that failed may come back when the next process recovers the file, and only a kill shows it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crew import Crew
from killproof_chaos.nemesis import Nemesis
from killproof_evidence.records import RecordWriter
from killproof_evidence.target import Target

#: So long everybody may try in vain, before they are ended.
REFUSING_NS: Final = 300_000_000
#: A killed process that is not reaped by then stands still in the kernel.
ENDING_SECONDS_MAX: Final = 10.0


class Outage:
    """Watches for the queue's stop, and ends it."""

    def __init__(
        self, target: Target, place: Path, crew: Crew, nemesis: Nemesis, log: RecordWriter
    ) -> None:
        """Watch the queue of this target."""
        self._target: Any = target
        self._place = place
        self._crew = crew
        self._nemesis = nemesis
        self._log = log
        self._since_ns = 0

    @property
    def is_on(self) -> bool:
        """Say whether the queue has stopped: nobody is started until it is repaired."""
        return self._since_ns > 0

    def look(self) -> bool:
        """Notice a stop; return whether it is time to repair."""
        stopped = getattr(self._target, "stopped", None)
        now = time.monotonic_ns()
        if not self.is_on and stopped is not None and stopped(self._place):
            self._since_ns = now
            self._nemesis.is_stopped = True
        return self.is_on and now - self._since_ns > REFUSING_NS

    def end(self, turn: Callable[[], None]) -> str:
        """Kill everybody, repair, and say so in the log; return why it failed, or "".

        Args:
            turn: one turn of the supervisor's loop, which notices who has ended.
        """
        began = self._since_ns = self._since_ns or time.monotonic_ns()
        self._nemesis.kill_all()
        deadline = time.monotonic() + ENDING_SECONDS_MAX
        while self._crew.of_role("worker", "producer", "lock") or not self._crew.all_born:
            if time.monotonic() > deadline:
                return f"somebody lived on {ENDING_SECONDS_MAX:g} s after SIGKILL"
            turn()
            self._nemesis.kill_the_newborn()
        problem = ""
        if (repair := getattr(self._target, "repair", None)) is not None:
            try:
                repair(self._place)
            except Exception as error:
                # The target's own code: what it cannot repair is told, and the file is judged.
                problem = f"the repair failed: {type(error).__name__}: {error}"
        now = time.monotonic_ns()
        self._log.append({"t": began, "t_end": now, "fault": "repair", "hit": not problem})
        # No bound counts while nobody could work.
        self._log.append({"t": began, "t_end": now, "fault": "stall", "cause": "repair"})
        self._since_ns = 0
        self._nemesis.is_stopped = False
        return problem
