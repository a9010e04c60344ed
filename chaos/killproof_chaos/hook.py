"""The sync hook of a process under test: `KILLPROOF_SYNC=killproof_chaos.hook:hook`.

It finds its slot in `$KILLPROOF_BOARD` and `$KILLPROOF_SLOT`, so that it works in any process
that inherits an environment, forked or started by a command line. Without them it does nothing.
"""

import os
from pathlib import Path

from killproof_chaos.phases import NUMBERS, Board, lane_of_this_thread

_board: Board | None = None
_slot = 0


def attach() -> None:
    """Find this process's slot in the environment; called once, before the queue is opened."""
    global _board, _slot
    path = os.environ.get("KILLPROOF_BOARD")
    _board = Board(Path(path)) if path else None
    _slot = int(os.environ.get("KILLPROOF_SLOT", "0"))


def hook(name: str) -> None:
    """Say that this process is at the named point; stand still there if the supervisor asks."""
    if _board is not None:
        # A name that the harness does not know is told as 0, "somewhere", never mistaken.
        _board.enter(_slot, lane_of_this_thread(), NUMBERS.get(name, 0))


def leave() -> None:
    """Say that the operation of this thread has returned."""
    if _board is not None:
        _board.leave(_slot, lane_of_this_thread())


def ready() -> None:
    """Say that this process has opened the queue and begins to work."""
    if _board is not None:
        _board.ready(_slot, os.getpid())


def is_held() -> bool:
    """Say whether the supervisor wants producers to hold back."""
    return _board is not None and _board.is_held()


def progress() -> int:
    """Return how many operations this producer, or the one before it, had begun."""
    return _board.progress(_slot) if _board is not None else 0


def set_progress(count: int) -> None:
    """Say how many operations of its list this producer has begun."""
    if _board is not None:
        _board.set_progress(_slot, count)


attach()
