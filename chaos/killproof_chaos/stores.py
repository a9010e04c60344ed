"""What run.json says whatever the engine: who was judged, by which command, when, and where."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from killproof_evidence.target import Target


def run_record(
    target: Target,
    engine: str,
    argv: Sequence[str],
    *,
    seed: int | None,
    started: float,
    problems: Iterable[str],
    replay: str = "",
) -> dict[str, Any]:
    """Return the fields of run.json that all engines have; each adds its own.

    Args:
        target: the queue.
        engine: proc, crash or disk.
        argv: the command that makes such a run.
        seed: what decided the plan; None where nothing is drawn.
        started: when it began, s since 1970.
        problems: what makes the evidence less than whole.
        replay: the command that repeats it; empty: `argv` does.
    """
    return {
        "target": target.name,
        "engine": engine,
        "seed": seed,
        "argv": list(argv),
        "started": started,
        "ended": time.time(),
        "contract": "contract.toml",
        "problems": list(problems),
        "replay": replay or " ".join(argv),
        "broken": target.broken,
    }
