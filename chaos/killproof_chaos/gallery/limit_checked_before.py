"""Broken killproof: whether there is room is asked first, and the job is claimed afterwards."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from killproof import Host
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.hosted import HostedQueue
from killproof_chaos.targets.killproof_adapter import LEASE_SECONDS, RETRY, KillproofTarget

FAULT: Final = Fault(
    name="limit-checked-before",
    wrong="two workers count what runs, both find room for one more, and both take it",
    promise="P22",
    kind="check-then-act on a limit: the count is true until somebody else acts on it too",
    right="count and claim in one transaction that holds the write lock from its beginning",
    engine="sim",
    options=("--scenario", "mutex"),
    seen=("janbjorge/pgqueuer#761",),
    control="killproof",
)
ROOM: Final = """
    SELECT count(*) < (SELECT min(running_max) FROM limit_resource)
      FROM job WHERE state = 'leased'"""


class AsksFirst(HostedQueue):
    """A process that looks before it leaps."""

    def claim(self, kinds: Iterable[str] | None = None) -> Any:
        """Count the jobs that run; take one if there is room."""
        ((room,),) = self.database.peek(ROOM)
        return super().claim(kinds) if room else None


class LimitCheckedBefore(KillproofTarget):
    """Killproof with a question before its claim, in place of the count inside."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> AsksFirst:
        """Open the queue, and take its own counting away where there is any."""
        with closing(sqlite3.connect(place / self.database)) as db:
            db.execute("DROP TRIGGER IF EXISTS limit_lease_begins")
        return AsksFirst(place / self.database, host, lease=LEASE_SECONDS, retry=RETRY)


target: Final = LimitCheckedBefore()
