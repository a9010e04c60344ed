"""What a run asks of a queue besides jobs: the capabilities that its target announces.

A target says with `capabilities` what its queue has; a queue that has none is never asked, and owes
nothing for it.  `--mix plain` leaves all of them out.  What was asked stands in the plan, and in
`mix.json` beside the queue, where the target's own code finds it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from killproof_chaos.plan import Options
from killproof_chaos.workload import CAPABILITIES
from killproof_evidence.contract import Contract
from killproof_evidence.target import RunMapping, Target

#: What a run does with each capability.
WORDS: Final = {
    "backup": "a maintenance process copies the file every few seconds",
    "dispatcher": "one worker process of four has several slots, and handlers that are coroutines",
    "limits": "some kinds of job are limited, as the target's `mix_parameters` say",
    "schedule": "a schedule of the target's `mix_parameters` fires while workers are killed",
    "spill": "some payloads are in files of their own, and what nobody needs is collected",
    "workflow": "runs of a few steps, and jobs whose handler remembers what it has done",
}
#: Promises about a capability: a run that does not ask for it has no evidence on them.
PROMISES: Final = {"P22": "limits", "P23": "workflow", "P24": "backup"}
FILE: Final = "mix.json"


def of(target: Target, options: Options) -> tuple[str, ...]:
    """Return what a run with these options asks of the target, in a fixed order.

    The limits are on kinds of the harness's own jobs: the user's would never reach them.
    """
    offered: frozenset[str] = getattr(target, "capabilities", frozenset())
    wanted = set(CAPABILITIES) if options.mix == "full" else set()
    if options.jobs is not None:
        wanted.discard("limits")
    return tuple(name for name in CAPABILITIES if name in offered and name in wanted)


def contract_of(target: Target, capabilities: Iterable[str]) -> Contract:
    """Return the contract of a run: with what it sets up, without what it does not ask for."""
    asked = set(capabilities)
    left_out = {promise for promise, needed in PROMISES.items() if needed not in asked}
    contract = target.contract
    promises = {name: level for name, level in contract.promises.items() if name not in left_out}
    added: Mapping[str, Mapping[str, Any]] = getattr(target, "mix_parameters", {})
    parameters = dict(contract.parameters)
    for name in sorted(asked & added.keys()):
        parameters |= added[name]
    return replace(contract, promises=promises, parameters=parameters)


def not_asked(target: Target, contract: Contract) -> list[str]:
    """Return the promises of the target that the contract of a run has left out."""
    promised = target.contract.promised
    return [name for name in PROMISES if promised(name) and not contract.promised(name)]


def runs_of(target: Target, capabilities: Iterable[str]) -> RunMapping | None:
    """Return where the runs of workflows are found, if the run asks for any."""
    runs: RunMapping | None = getattr(target, "runs", None)
    return runs if "workflow" in capabilities else None


def write(place: Path, capabilities: Iterable[str]) -> None:
    """Write down beside the queue what is asked of it."""
    (place / FILE).write_text(json.dumps(list(capabilities)), encoding="utf-8")


def read(place: Path) -> frozenset[str]:
    """Return what is asked of the queue in this folder; nothing where nobody has said."""
    path = place / FILE
    return frozenset(json.loads(path.read_text(encoding="utf-8")) if path.exists() else ())
