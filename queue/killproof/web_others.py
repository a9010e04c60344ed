"""What other parts of the queue have to show on the page: limits, workflow runs, schedules.

Each has tables of its own, made at its first use, and lists them itself; a file without the tables
has nothing of the kind, and is not given any by somebody who looks.
"""

from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from importlib import import_module
from typing import Any, Final, cast

from killproof.core.jobs import Queue

HAS_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = :table"

#: Of each part: its table, its module, and the class whose `list()` tells.
PARTS: Final = {
    "limits": ("limit_resource", "killproof.limits", "Limits"),
    "workflows": ("workflow_run", "killproof.workflow", "Workflows"),
    "schedules": ("schedule", "killproof.schedule", "Schedules"),
}


def listed(queue: Queue, part: str) -> list[dict[str, object]]:
    """Return what a part has, as plain values; nothing where it was never used.

    Raises:
        KillproofError: as for `Queue.counts`.
    """
    table, module, name = PARTS[part]
    if not queue.database.peek(HAS_TABLE, {"table": table}):
        return []
    owner = cast(Any, getattr(import_module(module), name))(queue)
    return [_plain(one) for one in cast(Iterable[object], owner.list())]


def _plain(value: object) -> dict[str, object]:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(cast(Any, value))
