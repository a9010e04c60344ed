"""What each operation asks of the lock when nobody else is there: one process, each call timed.

Run as `python -m killproof_bench.capacity.solo DATABASE ROUNDS`; prints one JSON document: for each
operation the microseconds that each call held SQLite's lock, and the rest of the call. Operations
take turns, so that a slow moment of the machine falls on all of them; of a batch the figures are
per job.
"""

import gc
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from killproof import Lease, Queue
from killproof.core import sync
from killproof_bench.recording import Stopwatch
from killproof_bench.seeding import KIND, PAYLOAD_BYTES, payload_of

BATCH: Final = 10
#: A large report's parameters, or an e-mail: what a payload costs that is no longer small.
LARGE_BYTES: Final = 10_000
#: The first calls compile the statements and fill the page cache.
WARMUP_ROUNDS: Final = 10

Answer = TypeVar("Answer")


class Timer:
    """Times calls, and keeps what it found by operation."""

    def __init__(self) -> None:
        self.found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self._watch = Stopwatch()
        self._extend: dict[str, int] = {}
        sync.hook = self._note

    def time(self, operation: str, jobs: int, call: Callable[[], Answer]) -> Answer:
        """Make one call and note its hold and the rest, microseconds per job."""
        begin = time.perf_counter_ns()
        answer = call()
        end = time.perf_counter_ns()
        _, locked, _, committed, _, paused, resumed = self._watch.marks
        if operation == "extend":
            locked, committed = self._extend["extend.locked"], self._extend["extend.committed"]
        # A checkpoint holds the lock a second time, before anybody else gets in.
        hold = committed - locked + (resumed - paused if resumed >= begin else 0)
        self.found[operation].append((hold / jobs / 1e3, (end - begin - hold) / jobs / 1e3))
        return answer

    def _note(self, name: str) -> None:
        self._watch(name)
        if name.startswith("extend."):
            self._extend[name] = time.perf_counter_ns()


def rounds(queue: Queue, timer: Timer, count: int) -> None:
    """Make every kind of call so many times, on an empty queue that ends empty."""
    payload, large = payload_of(PAYLOAD_BYTES), payload_of(LARGE_BYTES)

    for _ in range(count):
        for _ in range(2):
            timer.time("enqueue", 1, partial(queue.enqueue, KIND, payload))
        renewed = timer.time("extend", 1, partial(queue.extend, _claimed(queue, timer, "claim")))
        following = timer.time("ack_and_claim", 1, partial(queue.ack_and_claim, renewed))
        assert following is not None, "two were enqueued"
        timer.time("ack", 1, partial(queue.ack, following))
        timer.time("enqueue, 10 kB", 1, partial(queue.enqueue, KIND, large))
        queue.ack(_claimed(queue, timer, "claim, 10 kB"))
        batch = [(KIND, payload)] * BATCH
        timer.time("enqueue_many", BATCH, partial(queue.enqueue_many, batch))
        leases = timer.time("claim_many", BATCH, partial(queue.claim_many, BATCH))
        assert len(leases) == BATCH, "so many were enqueued"
        timer.time("ack_many", BATCH, partial(queue.ack_many, leases))


def _claimed(queue: Queue, timer: Timer, operation: str) -> Lease:
    lease = timer.time(operation, 1, queue.claim)
    assert lease is not None, "what was enqueued just now can be claimed"
    return lease


def main(database: str, count: int) -> None:
    """Time, and print what was found."""
    with Queue(database) as queue:
        rounds(queue, Timer(), WARMUP_ROUNDS)
        timer = Timer()
        gc.collect()
        gc.freeze()
        gc.disable()
        rounds(queue, timer, count)
        sync.hook = None
        counts = queue.counts()
    print(json.dumps({"found": timer.found, "counts": counts}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
