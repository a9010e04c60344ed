"""One producer: `python -m killproof_bench.operations.producer SPEC`.

It opens its arm's queue, says what its connection reads back, waits for a line that says when to
begin and to stop, and then enqueues one job after the other.  At the end it says how many calls
ended in the measured time, and every id it was told.
"""

import gc
import json
import sys
import time
from dataclasses import dataclass

from killproof_bench.arms import open_arm
from killproof_bench.seeding import KIND, PAYLOAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What one producer is told at its start."""

    arm: str
    database: str
    synchronous: str  #: Of the reference.


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """When to begin, to count and to stop, in ns of perf_counter, one clock for all processes."""

    start_ns: int
    count_ns: int
    stop_ns: int


def main(argument: str) -> None:
    """Run one producer."""
    spec = Spec(**json.loads(argument))
    arm = open_arm(spec.arm, spec.database, synchronous=spec.synchronous)
    with arm.queue as queue:
        print(json.dumps(arm.connections.facts()), flush=True)
        line = sys.stdin.readline()
        if not line:
            return  # The parent is gone.
        order = Order(**json.loads(line))
        payload = {"padding": "x" * (PAYLOAD_BYTES - 15)}
        clock, ids, ends = time.perf_counter_ns, [], []
        gc.collect()
        gc.freeze()
        gc.disable()
        time.sleep(max(0, order.start_ns - clock()) / 1e9)
        while clock() < order.stop_ns:
            ids.append(queue.enqueue(KIND, payload))
            ends.append(clock())
        counted = sum(order.count_ns <= end < order.stop_ns for end in ends)
        print(json.dumps({"counted": counted, "ids": ids}), flush=True)
        # Only when all have stopped does anybody close: a close moves the log.
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
