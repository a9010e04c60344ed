"""Broken killproof: a job that is lost with its worker keeps its place below the limit."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from killproof import Host, Queue
from killproof_chaos.gallery import Fault
from killproof_chaos.targets.killproof_adapter import KillproofTarget

FAULT: Final = Fault(
    name="limit-never-given-back",
    wrong="the place below the limit is given back by an ack and by nothing else: each crash takes "
    "one for ever, until none is left",
    promise="P22",
    kind="a leaked semaphore: released on the way out that the author thought of",
    right="the trigger limit_lease_ends: whatever ends a lease gives its place back",
    engine="sim",
    options=("--scenario", "mutex-lost"),
    seen=("rails/solid_queue#546", "janbjorge/pgqueuer#474"),
    control="killproof",
    also=frozenset({"P17"}),
)
#: As killproof's own trigger has it, but for one state that a lease may end in.
ENDS: Final = """
    SELECT replace(sql, 'NEW.state <> ''leased''', 'NEW.state = ''succeeded''')
      FROM sqlite_schema WHERE name = 'limit_lease_ends'"""


class LimitNeverGivenBack(KillproofTarget):
    """Killproof with a trigger that looks for successes."""

    name = FAULT.name
    broken = True
    fault = FAULT

    def open(self, place: Path, host: Host) -> Queue:
        """Open the queue, and let its trigger forget all ends but one."""
        with closing(sqlite3.connect(place / self.database)) as db:
            for (trigger,) in db.execute(ENDS).fetchall():
                db.execute("DROP TRIGGER limit_lease_ends")
                db.execute(trigger)
        return super().open(place, host)


target: Final = LimitNeverGivenBack()
