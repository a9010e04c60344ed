"""Broken queue: the dead letter is written after the job was taken away, in another transaction."""

import json
from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import CONTRACT, MinimalTarget
from killproof_chaos.targets.minimal_queue import Lease, LeaseLost, MinimalQueue, now_ms
from killproof_evidence.contract import DELETED, START

FAULT: Final = Fault(
    name="buries-in-two-transactions",
    wrong="the job is deleted in one transaction and its dead letter is inserted in the next",
    promise="P1",
    kind="lost on the way to the dead letter: a move that is a delete and an insert",
    right="one UPDATE of the state, or both statements in one transaction",
    engine="crash",
    options=("--operation", "dead_letter", "--no-errors", "--fail-fast"),
    seen=("Chetan0e/Verath#105",),
    also=frozenset({"P14"}),
)
#: The move itself is this queue's way, and in one transaction it would do no harm.
MOVES: Final = {
    "leased": (*CONTRACT.edges["leased"], DELETED),
    START: (*CONTRACT.edges[START], "dead"),
}


class BuriesInTwoTransactions(MinimalQueue):
    """Move a job from the living to the dead, with a moment in which it is with neither."""

    DELETE = "DELETE FROM job WHERE id = ? AND fence = ? AND state = 'leased'"
    BURY = """INSERT INTO job (id, kind, payload, state, priority, due_ms, max_attempts, attempts,
                               fence, error) VALUES (?, ?, ?, 'dead', 5, ?, 5, ?, ?, ?)"""

    def nack(self, lease: Lease, error: str, permanent: bool = False) -> None:
        """Schedule the next attempt, or bury the job; raises LeaseLost."""
        if not permanent and lease.attempt < 5:
            super().nack(lease, error)
            return
        letter = (lease.id, lease.kind, json.dumps(lease.payload, ensure_ascii=False), now_ms())
        with self.writing("nack") as db:
            if db.execute(self.DELETE, (lease.id, lease.fence)).rowcount != 1:
                raise LeaseLost(f"job {lease.id} is not leased under fence {lease.fence}")
        with self.writing("nack") as db:
            db.execute(self.BURY, (*letter, lease.attempt, lease.fence, error))


target: Final = MinimalTarget(FAULT.name, BuriesInTwoTransactions, FAULT, edges=MOVES)
