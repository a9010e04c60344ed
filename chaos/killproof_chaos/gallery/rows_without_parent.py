"""Broken queue: it declares a foreign key, and no connection ever asks SQLite to keep it."""

from typing import Final

from killproof_chaos.gallery import Fault
from killproof_chaos.targets.minimal_adapter import MinimalTarget
from killproof_chaos.targets.minimal_queue import SCHEMA, Lease, MinimalQueue
from killproof_evidence.contract import DELETED

FAULT: Final = Fault(
    name="rows-without-parent",
    wrong="REFERENCES ... ON DELETE CASCADE is a comment until a connection says that it counts: "
    "the log of a job that retention has deleted belongs to nobody, and stays",
    promise="P16",
    kind="referential integrity declared and not enforced, as SQLite has it by default",
    right="PRAGMA foreign_keys = ON, in every connection",
    engine="sim",
    options=("--scenario", "claim"),
    articles=("F66",),
)
#: May go: what has succeeded is in the way of nobody.
EDGES: Final = {"succeeded": (DELETED,)}


class RowsWithoutParent(MinimalQueue):
    """Keep a log of each job, and the jobs of the last moment alone."""

    SCHEMA = f"""{SCHEMA}
        CREATE TABLE IF NOT EXISTS log (
            job  INTEGER NOT NULL REFERENCES job (id) ON DELETE CASCADE,
            text TEXT NOT NULL
        ) STRICT;"""

    def claim(self) -> Lease | None:
        """Delete what has succeeded, then take the next job."""
        with self.writing("prune") as db:
            db.execute("DELETE FROM job WHERE state = 'succeeded'")
        return super().claim()

    def ack(self, lease: Lease, *also: tuple[str, tuple[object, ...]]) -> None:
        """Mark the job succeeded, and write so into its log."""
        super().ack(lease, *also, ("INSERT INTO log VALUES (?, 'done')", (lease.id,)))


target: Final = MinimalTarget(FAULT.name, RowsWithoutParent, FAULT, edges=EDGES)
