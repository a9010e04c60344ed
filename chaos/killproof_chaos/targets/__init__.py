"""The queues that the harness can judge by name; any other comes as a module or a file."""

import os
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from killproof_chaos import gallery
from killproof_chaos.targets import public
from killproof_evidence.target import Target, TargetNotFound, load_target

#: How a target can learn the seed of its run; absent where nothing is drawn.
SEED: Final = "KILLPROOF_CHAOS_SEED"


def _killproof() -> Target:
    from killproof_chaos.targets.killproof_adapter import KillproofTarget

    return KillproofTarget()


def _killproof_process() -> Target:
    from killproof_chaos.targets.killproof_process import KillproofProcessTarget

    return KillproofProcessTarget()


def _minimal() -> Target:
    from killproof_chaos.targets.minimal_adapter import MinimalTarget
    from killproof_chaos.targets.minimal_queue import MinimalQueue

    return MinimalTarget("minimal", MinimalQueue)


def _canary() -> Target:
    from killproof_chaos.targets.canary import target

    return target


#: Factories by group, so that choosing one target imports no other.
GROUPS: Final[Mapping[str, Mapping[str, Callable[[], Target]]]] = {
    "own": {
        "killproof": _killproof,
        "killproof-process": _killproof_process,
        "minimal": _minimal,
        "canary": _canary,
    },
    "gallery": {name: partial(gallery.target, name) for name in gallery.names()},
    "public": {name: partial(public.target, name) for name in public.names()},
}
BUILTIN: Final[Mapping[str, Callable[[], Target]]] = {
    name: factory for group in GROUPS.values() for name, factory in group.items()
}


def load(name: str) -> Target:
    """Find a target by its built-in name, `package.module:attribute`, or `path.py`.

    Raises:
        TargetNotFound: there is none; the message says what names are possible. Or there is one
            on whose contract nothing can be judged; the message says why.
    """
    found = find(name)
    for text in found.contract.problems():
        raise TargetNotFound(
            f"target {name!r}: {text} (`killproof chaos lint-target {shlex.quote(name)}` says all)"
        )
    return found


def find(name: str) -> Target:
    """Find a target, whatever its contract says: for who looks at contracts.

    Raises:
        TargetNotFound: there is none; the message says what names are possible.
    """
    short = name.removeprefix(public.PREFIX)
    if short in GROUPS["public"]:
        return GROUPS["public"][short]()
    found = load_target(name, BUILTIN)
    if name not in BUILTIN and hasattr(found, "address"):
        # A copy of a target keeps its name, and its worker's command line must still find the copy.
        found.address = str(Path(name).resolve()) if name.endswith(".py") else name
    return found


def tell_seed(seed: int | None) -> None:
    """Tell the processes of the run that begins its seed; the engines call it first of all."""
    if seed is None:
        os.environ.pop(SEED, None)
    else:
        os.environ[SEED] = str(seed)


def told_seed() -> int | None:
    """Return the seed of the run that this process is part of; None: it has none."""
    seed = os.environ.get(SEED)
    return None if seed is None else int(seed)
