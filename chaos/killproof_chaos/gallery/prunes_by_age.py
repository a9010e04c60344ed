"""Broken killproof: what is old is deleted, whether it has run or not."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from killproof_chaos.engines.crash_killproof import KillproofSession
from killproof_chaos.gallery import Fault
from killproof_chaos.recording import Recorder
from killproof_chaos.targets.killproof_adapter import KillproofTarget

if TYPE_CHECKING:
    from killproof_chaos.engines.crash_session import Session

FAULT: Final = Fault(
    name="prunes-by-age",
    wrong="the clean-up deletes all jobs that were put in long ago, and some of them still wait",
    promise="P1",
    kind="retention that counts from the creation of a job and not from its end",
    right="DELETE ... WHERE state IN ('succeeded', ...) AND finished_ms <= ?",
    engine="crash",
    options=("--operation", "prune", "--no-errors", "--fail-fast"),
    seen=("pragmaplatform/oxana#150", "Abhash-Chakraborty/Find#299"),
    control="killproof",
    also=frozenset({"P7"}),
)


class ByAge(KillproofSession):
    """Killproof, and a clean-up of one statement."""

    @property
    def more(self) -> Mapping[str, Callable[[Any], object]]:
        """Return the calls, with another way to prune."""
        return {**super().more, "prune": self._prune}

    def _prune(self, _: object) -> None:
        # The operation keeps what has ended for no time at all; this keeps nothing for longer.
        now_ms = time.time_ns() // 1_000_000
        with self.queue.transaction() as tx:
            tx.execute("DELETE FROM job WHERE created_ms <= :now_ms", {"now_ms": now_ms})


class PrunesByAge(KillproofTarget):
    """Killproof, pruned by hand."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def steps(self, place: Path, recorder: Recorder) -> "Session":
        """Open the queue for somebody who tidies up."""
        return ByAge(place / self.database, recorder)


target: Final = PrunesByAge()
