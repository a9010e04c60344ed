"""One repeat: `python -m killproof_bench.operations.enqueue_loop SPEC`.

As `bare_loop`, for batches of jobs put in: every arm has a file of its own, and they take turns.
"""

import dataclasses
import gc
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from killproof_bench.operations.bare_arms import extend_log
from killproof_bench.operations.enqueue_arms import Arm, open_arm
from killproof_bench.operations.turns import mirrored, restarts


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What one repeat is told."""

    operation: str
    files: dict[str, str]  #: By arm: a database of its own.
    own_sync: bool  #: Whether the bare arms sync the log after each commit.
    batch: int  #: Jobs in a transaction.
    slices: int  #: Batches of each arm, an even number; one more before them warms up.
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What one arm says of one repeat."""

    ns: int  #: Of all slices that count.
    put: int  #: Jobs put in, warm-up included, numbered from 0.
    ids: list[int]  #: As told, in the order of the jobs' numbers; empty where nobody tells.
    facts: dict[str, str]


def main(argument: str) -> dict[str, Any]:
    """Run one repeat; return an account by arm."""
    spec = Spec(**json.loads(argument))
    arms: dict[str, Arm] = {
        name: open_arm(name, spec.operation, path, own_sync=spec.own_sync)
        for name, path in spec.files.items()
    }
    facts = {name: {**arm.facts(), "file": spec.files[name]} for name, arm in arms.items()}
    spent = dict.fromkeys(arms, 0)
    put = dict.fromkeys(arms, 0)
    ids: dict[str, list[int]] = {name: [] for name in arms}

    def batch(name: str) -> int:
        call = arms[name].prepare(put[name], spec.batch)
        begin = time.perf_counter_ns()
        told = call()
        spent_ns = time.perf_counter_ns() - begin
        put[name] += spec.batch
        ids[name] += told
        return spent_ns

    for name, path in spec.files.items():
        extend_log(path)
        batch(name)
    gc.collect()
    gc.freeze()
    gc.disable()
    for name in mirrored(list(arms), spec.slices, spec.seed):
        spent[name] += batch(name)
    for name, path in spec.files.items():
        facts[name] |= {"checkpoints": str(restarts(path))}
        arms[name].close()
    return {
        name: dataclasses.asdict(
            Ended(ns=spent[name], put=put[name], ids=ids[name], facts=facts[name])
        )
        for name in arms
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
