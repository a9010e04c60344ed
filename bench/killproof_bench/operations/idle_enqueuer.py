"""The other process: `python -m killproof_bench.operations.idle_enqueuer SPEC`.

It puts one job at a time into one file after the other, with pauses at random, and says when each
call began and returned.
"""

import json
import random
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from killproof import Host, Queue
from killproof_bench.arms import Connections
from killproof_bench.seeding import KIND, PAYLOAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What it is told."""

    files: list[str]
    jobs: int  #: In all, file by file in turn.
    pause_seconds: float  #: Mean pause before a job; each is between half and one and a half of it.
    seed: int


def main(argument: str) -> dict[str, Any]:
    """Enqueue; return (file, job, begin_ns, end_ns) of each call, and the connection's facts."""
    spec = Spec(**json.loads(argument))
    draw = random.Random(spec.seed)
    connections = Connections()
    payload = {"padding": "x" * (PAYLOAD_BYTES - 15)}
    calls = []
    with ExitStack() as stack:
        host = Host(connect=connections.connect)
        queues = [stack.enter_context(Queue(file, host=host)) for file in spec.files]
        facts = connections.facts()
        for number in range(spec.jobs):
            time.sleep(spec.pause_seconds * (0.5 + draw.random()))
            place = number % len(queues)
            begin_ns = time.perf_counter_ns()
            job = queues[place].enqueue(KIND, payload)
            calls.append((place, job, begin_ns, time.perf_counter_ns()))
    return {"calls": calls, "facts": facts}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
