"""One repeat: `python -m killproof_bench.operations.bare_loop SPEC`.

Opens every arm on a file of its own and lets them take turns.  The garbage collector is off while
the clock runs, in all arms; nothing is computed meanwhile.
"""

import dataclasses
import gc
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from killproof_bench.operations.bare_arms import CLAIM_ACK, Arm, extend_log, open_arm
from killproof_bench.operations.turns import mirrored, restarts


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What one repeat is told."""

    operation: str
    files: dict[str, str]  #: By arm: a database of its own, with enough jobs.
    slices: int  #: Of each arm, an even number; one more before them warms up.
    jobs: int  #: In a slice.
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What one arm says of one repeat."""

    ns: int  #: Of all slices that count.
    worker: str | None
    acked: list[int]
    facts: dict[str, str]


def main(argument: str) -> dict[str, Any]:
    """Run one repeat; return an account by arm."""
    spec = Spec(**json.loads(argument))
    arms: dict[str, Arm] = {name: open_arm(name, path) for name, path in spec.files.items()}
    facts = {name: {**arm.facts(), "file": spec.files[name]} for name, arm in arms.items()}
    for name, arm in arms.items():
        extend_log(spec.files[name])
        _slice(arm, spec)
    spent = dict.fromkeys(arms, 0)
    gc.collect()
    gc.freeze()
    gc.disable()
    for name in mirrored(list(arms), spec.slices, spec.seed):
        spent[name] += _slice(arms[name], spec)
    for name, path in spec.files.items():
        facts[name] |= {"checkpoints": str(restarts(path))}
        arms[name].close()
    return {
        name: dataclasses.asdict(
            Ended(ns=spent[name], worker=arm.worker, acked=arm.acked, facts=facts[name])
        )
        for name, arm in arms.items()
    }


def _slice(arm: Arm, spec: Spec) -> int:
    work = arm.claim_ack if spec.operation == CLAIM_ACK else arm.ack_and_claim
    begin = time.perf_counter_ns()
    work(spec.jobs)
    return time.perf_counter_ns() - begin


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
