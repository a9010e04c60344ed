"""The queues that the harness can judge by name; any other comes as a module or a file."""

from collections.abc import Callable, Mapping
from typing import Final

from killproof_evidence.target import Target, load_target


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


def _gallery(name: str) -> Callable[[], Target]:
    def make() -> Target:
        from killproof_chaos.gallery import adapter

        return adapter.target(name)

    return make


#: Factories, so that choosing one target imports no other.
BUILTIN: Final[Mapping[str, Callable[[], Target]]] = {
    "killproof": _killproof,
    "killproof-process": _killproof_process,
    "minimal": _minimal,
} | {
    name: _gallery(name)
    for name in (
        "deletes-at-claim",
        "ack-without-fence",
        "attempt-not-counted",
        "effect-and-ack-apart",
        "lease-on-wall-clock",
        "commit-error-refused",
        "checks-then-claims",
        "checks-then-inserts",
        "reads-then-writes",
        "synchronous-normal",
        "acknowledges-before-fsync",
        "limit-not-counted",
        "step-starts-early",
        "copies-without-log",
    )
}


def load(name: str) -> Target:
    """Find a target by its built-in name, `package.module:attribute`, or `path.py`.

    Raises:
        TargetNotFound: there is none; the message says what names are possible.
    """
    return load_target(name, BUILTIN)
