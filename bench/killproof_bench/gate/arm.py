"""One worker process of a timed arm: `python -S -P arm.py SPEC`, with one revision on PYTHONPATH.

The same file runs for both sides, from the checkout of whoever runs the gate, so that nothing but
`killproof` itself differs between them. It therefore imports the standard library and `killproof`
alone, and of that only what every revision has: `Queue`, `Host`, and the kernel's locks.

The first worker makes the file and fills it through the queue's own calls, from the seed of the
block. All workers then ack and claim until the time is over (closed loop), each call in one
transaction, the garbage collector off. One JSON line each way at each step; at the end each says
how many calls ended in the measured time, and which jobs it acked.
"""

import gc
import json
import random
import sys
import time
from array import array
from typing import Any

import killproof
from killproof import Host, Queue
from killproof.core import sync
from killproof.core.host import KernelLocks

#: Calls are counted in slices of the measured time; its length is a multiple of this.
SLICE_NS = 50_000_000
#: Jobs put in by one call; the core's own limit of a batch.
BATCH = 1_000


class Vouched(KernelLocks):
    """The kernel's locks on a RAM file system, where the level `power` is run for its code path."""

    def refusal(self, path: str, durability: str) -> str | None:
        """Refuse nothing: no power cut is promised here, and none is measured."""
        return None


class Holds:
    """Times how long SQLite's lock is held, at the named points of the protocol; only if asked."""

    def __init__(self, asked: bool) -> None:
        self._locked_ns = 0
        self._held_ns: list[int] = []
        if asked:
            sync.hook = self._at

    def median_us(self) -> float:
        """Return the median hold in microseconds, 0 where none was timed."""
        held = sorted(self._held_ns)
        return held[len(held) // 2] / 1e3 if held else 0.0

    def _at(self, point: str) -> None:
        if point == "ack.locked":
            self._locked_ns = time.perf_counter_ns()
        elif point == "ack.committed":
            self._held_ns.append(time.perf_counter_ns() - self._locked_ns)


def main(argument: str) -> None:
    """Run one worker."""
    spec = json.loads(argument)
    if spec["index"]:
        sys.stdin.readline()  # The first one has made the file.
    # The chance of a checkpoint after each commit is drawn alike in the arms of a block.
    host = Host(lock=Vouched(), random=random.Random(spec["job_seed"] + spec["index"]))
    with Queue(spec["database"], durability=spec["durability"], host=host) as queue:
        if not spec["index"]:
            seed_jobs(queue, spec["backlog"], spec["job_seed"])
        say({"killproof": killproof.__file__})
        line = sys.stdin.readline()
        if not line:
            return  # The parent is gone.
        order = json.loads(line)
        holds = Holds(spec["hold"])
        ends = array("q", bytes(8 * spec["backlog"]))
        gc.collect()
        gc.freeze()
        gc.disable()
        time.sleep(max(0, order["start_ns"] - time.perf_counter_ns()) / 1e9)
        used, acked, error = drive(queue, ends, order["stop_ns"])
        first_ns = order["measure_ns"]
        counts = [0] * round((order["stop_ns"] - first_ns) / SLICE_NS)
        for end in ends[:used]:
            if first_ns <= end < order["stop_ns"]:
                counts[min((end - first_ns) // SLICE_NS, len(counts) - 1)] += 1
        dry = error is None and len(acked) == used  # Else one more was acked than claimed after.
        say(
            {
                "worker": queue.worker_id,
                "error": error,
                "dry": dry,
                "acked": acked,
                "slices": counts,
                "hold_us": holds.median_us(),
            }
        )
        # Only when all have stopped does anybody close: a close moves the log.
        sys.stdin.readline()


def seed_jobs(queue: Queue, jobs: int, seed: int) -> None:
    """Put the jobs in; equal seeds make equal jobs."""
    draw = random.Random(seed)
    for first in range(0, jobs, BATCH):
        queue.enqueue_many(
            ("bench", {"reference": draw.randbytes(40).hex()})
            for _ in range(min(BATCH, jobs - first))
        )


def drive(queue: Queue, ends: "array[int]", stop_ns: int) -> tuple[int, list[int], str | None]:
    """Ack and claim until the time is over; return the calls recorded, the jobs acked, an error."""
    clock = time.perf_counter_ns
    index = 0
    acked: list[int] = []
    try:
        lease = queue.claim()
        while lease is not None and clock() < stop_ns:
            following = queue.ack_and_claim(lease)
            ends[index] = clock()
            index += 1
            acked.append(lease.job.id)
            lease = following
        if lease is not None:
            # The last job in hand is finished too, so that every count can be checked.
            queue.ack(lease)
            acked.append(lease.job.id)
    except Exception as caught:  # Whatever a worker meets voids the run, by name.
        return index, acked, f"{type(caught).__name__}: {caught}"
    return index, acked, None


def say(message: dict[str, Any]) -> None:
    """Tell the supervisor."""
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
