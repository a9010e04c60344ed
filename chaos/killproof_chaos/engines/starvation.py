"""A heartbeat of the supervisor's own: did it get the CPU that its time measurements need?

A harness that stands still sees every queue stand still. The thread sleeps for a moment again and
again, and what it oversleeps is a stall: written to the nemesis log, so that no time bound counts
it, and summed up, so that a run with too much of it is `unknown` rather than a verdict on time.
"""

import threading
import time
from typing import Any, Final

from killproof_evidence.records import RecordWriter

BEAT_SECONDS: Final = 0.02
#: Shorter ones are ordinary scheduling on two busy cores; every bound is far longer.
STALL_NS_MIN: Final = 100_000_000
#: One stall as long as two default leases, or stalls for a tenth of the run: times say nothing.
STALL_NS_MAX: Final = 1_000_000_000
STALL_SHARE_MAX: Final = 0.1


class StarvationWatch:
    """The thread, its stalls, and what they mean for the run."""

    def __init__(self, log: RecordWriter) -> None:
        """Watch from now on, and write each stall to the nemesis log."""
        self._log = log
        self._stopped = threading.Event()
        self._began = time.monotonic_ns()
        self._total_ns = 0
        self._longest_ns = 0
        self._thread = threading.Thread(target=self._watch, name="starvation", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, Any]:
        """Stop watching; return the facts for run.json."""
        self._stopped.set()
        self._thread.join()
        share = self._total_ns / max(1, time.monotonic_ns() - self._began)
        return {
            "starved": self._longest_ns > STALL_NS_MAX or share > STALL_SHARE_MAX,
            "starved_ms": self._total_ns // 1_000_000,
            "starved_ms_max": self._longest_ns // 1_000_000,
        }

    def _watch(self) -> None:
        before = time.monotonic_ns()
        while not self._stopped.wait(BEAT_SECONDS):
            now = time.monotonic_ns()
            late_ns = now - before - int(BEAT_SECONDS * 1e9)
            if late_ns > STALL_NS_MIN:
                self._total_ns += late_ns
                self._longest_ns = max(self._longest_ns, late_ns)
                record = {"t": before, "fault": "stall", "t_end": now, "cause": "supervisor"}
                self._log.append(record)
            before = now
