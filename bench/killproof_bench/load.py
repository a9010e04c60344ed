"""One worker process of the bench: `python -m killproof_bench.load SPEC`.

It opens its arm's queue, says it is ready, waits for the moment to start, and then takes one job at
a time until it is told to stop: one transaction acks a job and claims the next (closed loop). Each
call goes into a preallocated array: when it began, when it ended, which job it acked. Nothing is
computed while the clock runs, and the garbage collector is off: it would put its pauses into the
tail.

The protocol on standard input and output is one JSON line each way, then one more line at the end;
the array goes to a file. The process imports neither numpy nor the command line.
"""

import dataclasses
import gc
import json
import signal
import sys
import time
from array import array
from dataclasses import dataclass
from typing import Any

from killproof import Queue
from killproof_bench.arms import open_arm

#: begin_ns, end_ns, job id: the columns of the array.
COLUMNS = 3
#: A worker whose start line never comes ends: its parent is gone.
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What one worker is told at its start."""

    arm: str
    database: str
    synchronous: str  #: Of the reference.
    calls_file: str
    calls_max: int  #: Room in the array; no run has more jobs than its backlog.
    stoppable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What one worker says at its end."""

    worker: str | None
    error: str | None
    ran_dry: bool  #: No job was left before the time was over: the figures are of an empty queue.


class Deadline:
    """When to stop; SIGTERM brings it forward to now."""

    def __init__(self) -> None:
        self.ns = 0
        signal.signal(signal.SIGTERM, self.expire)

    def expire(self, _signal: int = 0, _frame: object = None) -> None:
        """Stop after the call in flight."""
        self.ns = 0


def main(argument: str) -> None:
    """Run one worker."""
    spec = Spec(**json.loads(argument))
    calls = array("q", bytes(8 * COLUMNS * spec.calls_max))
    deadline = Deadline()
    arm = open_arm(spec.arm, spec.database, synchronous=spec.synchronous, stoppable=spec.stoppable)
    with arm.queue as queue:
        _say(arm.connections.facts())
        line = sys.stdin.readline()
        if not line:
            return  # The parent is gone.
        order = json.loads(line)
        gc.collect()
        gc.freeze()
        gc.disable()
        deadline.ns = order["stop_ns"]
        time.sleep(max(0, order["start_ns"] - time.perf_counter_ns()) / _NANOSECONDS)
        used, ended = drive(queue, calls, deadline)
        # Only when all have stopped does anybody close: a close moves the log, which would
        # stand in the way of a call that is still being measured.
        _say(dataclasses.asdict(ended))
        sys.stdin.readline()
    with open(spec.calls_file, "wb") as file:
        calls[: used * COLUMNS].tofile(file)


def drive(queue: Queue, calls: "array[int]", deadline: Deadline) -> tuple[int, Ended]:
    """Ack and claim until the deadline; return how many calls are recorded, and how it ended."""
    clock = time.perf_counter_ns
    index = 0
    error: str | None = None
    ran_dry = False
    try:
        lease = queue.claim()
        while lease is not None:
            begin = clock()
            if begin < deadline.ns:
                following = queue.ack_and_claim(lease)
                ran_dry = following is None
            else:
                # The last job in hand is finished too, so that every count can be checked.
                queue.ack(lease)
                following = None
            calls[index] = begin
            calls[index + 1] = clock()
            calls[index + 2] = lease.job.id
            index += COLUMNS
            lease = following
    except Exception as caught:  # Whatever a worker meets voids the run, by name.
        error = f"{type(caught).__name__}: {caught}"
    ended = Ended(worker=queue.worker_id, error=error, ran_dry=ran_dry)
    return index // COLUMNS, ended


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
