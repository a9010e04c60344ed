"""Run producers together on one file, and collect what each was told."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from killproof_bench.operations import producer
from killproof_bench.operations.bare_arms import extend_log
from killproof_bench.operations.turns import ChildError, restarts

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
        ChildError: One of them failed.
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
        facts = [_answer(process) for process in processes]
        extend_log(spec.database)
        start_ns = time.perf_counter_ns() + START_NS
        count_ns = start_ns + round(0.2 * seconds * 1e9)
        stop_ns = count_ns + round(seconds * 1e9)
        order = producer.Order(start_ns=start_ns, count_ns=count_ns, stop_ns=stop_ns)
        for process in processes:
            _tell(process, json.dumps(asdict(order)))
        ended = [_answer(process) for process in processes]
        checkpoints = restarts(spec.database)
        for process in processes:
            _tell(process, "")
        for process in processes:
            if process.wait(ANSWER_SECONDS):
                raise ChildError(f"a producer ended with status {process.returncode}")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
    return Produced(
        counted=sum(each["counted"] for each in ended),
        ids=tuple(tuple(each["ids"]) for each in ended),
        facts={**facts[0], "checkpoints": str(checkpoints)},
    )


def _tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError as error:
        raise ChildError(f"a producer ended with status {process.wait()}") from error


def _answer(process: "subprocess.Popen[str]") -> Mapping[str, Any]:
    """Return the next line; each producer writes one and then waits, so none is left behind."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0]:
        raise ChildError(f"a producer said nothing for {ANSWER_SECONDS:g} s")
    line = process.stdout.readline()
    if not line:
        raise ChildError(f"a producer ended with status {process.wait()}")
    message: Mapping[str, Any] = json.loads(line)
    return message
