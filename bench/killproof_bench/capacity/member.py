"""One process of the capacity run: `python -m killproof_bench.capacity.member SPEC`.

It makes the calls that `killproof_bench.load` makes, but in slices: it stays for the whole run and
is told before each second what to do in it, and with how many others. So all numbers of workers are
measured within seconds of each other, again and again, and a machine that becomes slower meanwhile
does so for all of them; a run of fresh processes for each number would need a minute for each look
around, which is longer than this kind of machine stays the same.

One JSON line on standard input for each slice, an empty line for the end; one JSON line on standard
output for each answer, after what was written down has been added to the files.
"""

import dataclasses
import gc
import json
import sys
import time
from typing import Any, Final

from killproof.core import sync
from killproof_bench.arms import open_arm
from killproof_bench.load import Deadline, Loop, Spec
from killproof_bench.recording import Recorder, Stopwatch

_NANOSECONDS: Final = 1_000_000_000
#: More than one process can make in the longest slice; the memory is the kernel's until it is used.
CALLS_MAX: Final = 1_000_000


def main(argument: str) -> None:
    """Run one process."""
    spec = Spec(**json.loads(argument))
    jobs_file = f"{spec.calls_file}.jobs"
    stopwatch = Stopwatch()
    deadline = Deadline()
    arm = open_arm(spec.arm, spec.database, synchronous=spec.synchronous)
    sync.hook = stopwatch
    with arm.queue as queue:
        _say(arm.connections.facts())
        gc.collect()
        gc.freeze()
        gc.disable()
        while line := sys.stdin.readline().strip():
            order = json.loads(line)
            deadline.ns = order["stop_ns"]
            asked = dataclasses.replace(spec, **order["changes"])
            recorder = Recorder(calls_max=CALLS_MAX, jobs_max=CALLS_MAX, stopwatch=stopwatch)
            time.sleep(max(0, order["start_ns"] - time.perf_counter_ns()) / _NANOSECONDS)
            loop = Loop(queue, asked, recorder, deadline, start_ns=order["start_ns"])
            ended = loop.run()
            with open(spec.calls_file, "ab") as calls, open(jobs_file, "ab") as served:
                recorder.save(calls, served)
            _say(dataclasses.asdict(ended))


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
