"""Run producers together on one file, and collect what each was told."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

from killproof_bench import lines
from killproof_bench.operations import producer
from killproof_bench.operations.bare_arms import extend_log
from killproof_bench.operations.turns import restarts

#: Between "go" and the first call: every producer reads its line before anybody begins.
START_NS: Final = 200_000_000
#: Sixteen interpreters on one slow core start well within this; a busy handler waits half of it.
ANSWER_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """What the producers of one round were told."""

    counted: int  #: Enqueues that returned in the measured time.
    ids: tuple[tuple[int, ...], ...]  #: By producer, in the order of its calls.
    facts: dict[str, str]  #: As the first one read them back, and `checkpoints`.


def produce(spec: producer.Spec, producers: int, *, seconds: float, hash_seed: int) -> Produced:
    """Let so many processes enqueue for so long, after a warm-up of a fifth of that.

    Raises:
        CrewError: One of them failed.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", producer.__name__, json.dumps(asdict(spec))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            start_new_session=True,
        )
        for _ in range(producers)
    ]
    try:
        facts = [lines.answer(process, ANSWER_SECONDS) for process in processes]
        extend_log(spec.database)
        start_ns = time.perf_counter_ns() + START_NS
        count_ns = start_ns + round(0.2 * seconds * 1e9)
        stop_ns = count_ns + round(seconds * 1e9)
        order = producer.Order(start_ns=start_ns, count_ns=count_ns, stop_ns=stop_ns)
        for process in processes:
            lines.tell(process, json.dumps(asdict(order)))
        ended = [lines.answer(process, ANSWER_SECONDS) for process in processes]
        checkpoints = restarts(spec.database)
        for process in processes:
            lines.tell(process, "")
        lines.wait_for_end(processes, ANSWER_SECONDS)
    finally:
        lines.end(processes)
    return Produced(
        counted=sum(each["counted"] for each in ended),
        ids=tuple(tuple(each["ids"]) for each in ended),
        facts={**facts[0], "checkpoints": str(checkpoints)},
    )
