"""Killproof at durability `process`: it survives kills, and says that it survives no power cut."""

from dataclasses import replace
from pathlib import Path

from killproof import Queue
from killproof_chaos import mix
from killproof_chaos.targets.killproof_adapter import CONTRACT, KillproofTarget, set_up


class KillproofProcessTarget(KillproofTarget):
    """The same queue on a file of the other level; the level is the file's."""

    name = "killproof-process"
    contract = replace(CONTRACT, promises={**CONTRACT.promises, "P1": "process"})
    # Nobody waits for a disk, so no operation comes to the moment after it.
    sync_points = frozenset(
        point for point in KillproofTarget.sync_points if not point.endswith(".synced")
    )

    def prepare(self, place: Path) -> None:
        """Make an empty queue whose acknowledgements wait for no disk."""
        with Queue(place / self.database, durability="process") as queue:
            set_up(queue, mix.read(place))
