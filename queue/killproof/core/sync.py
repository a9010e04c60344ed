"""Named points in the protocol where a harness may look, stop or kill; free of cost when unused.

A point is `<operation>.<moment>`: operation is one of enqueue claim extend ack nack release snooze
reap promote cancel complete, moment one of begin locked written committed synced. The others are
`handler.start handler.effect handler.end worker.idle worker.stop checkpoint.begin checkpoint.end`.
"""

import importlib
import os
from collections.abc import Callable

#: Called with the name of each point; None, the default, costs one comparison.
hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Tell the hook, if there is one, that this process is at the named point."""
    if hook is not None:
        hook(name)


def load() -> None:
    """Install the hook that `$KILLPROOF_SYNC=module:function` names; without it do nothing.

    Raises:
        ValueError: the variable does not name a callable.
    """
    global hook
    name = os.environ.get("KILLPROOF_SYNC")
    if not name:
        return
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"KILLPROOF_SYNC={name!r} is not a module:function: {error}") from error
    hook = found
