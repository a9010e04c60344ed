"""Aging: a job that has waited long enough is urgent, whatever it was put in as.

    age(queue, "report", 3600)          # after an hour a report waits behind nothing newer

Without it a steady stream of urgent jobs keeps a less urgent one waiting for ever, as priorities
say.  It is for each kind to ask for, for there are files where that is what is wanted.

**The rule.**  A kind that ages over `seconds` may have priority 9 at most at the beginning of its
wait, 8 after a ninth of it, and so on: 0 at its end.  A job whose priority is above that is moved
down to it; one that is more urgent already stays as it is.  The wait counts from when the job was
due.  So after `seconds` each job of the kind has priority 0, and among those the one that was due
first goes first: what is put in later can only be before it by being of an ended wait as well.

**What it changes of the promised order**: nothing.  Each claim still takes the first claimable job
by (priority, due, id); it is the priority that changes, as if somebody had called `reprioritise`.
The job keeps it when it is retried, snoozed or replayed; what it was before is not kept.

**How.**  A trigger on the end of an attempt looks, at most once in a ninetieth of the time, for
jobs that are due to rise, and moves a bounded number, the longest waiting first.  It hangs on the
work itself because only work that others get can starve a job; no process has to live for it.  Not
on the claim: the order of one claim would then depend on which trigger SQLite fires first.
"""

from typing import Final, cast

from killproof.core import model
from killproof.core.database import Transaction
from killproof.core.errors import FileRefused
from killproof.core.jobs import Queue

SCHEMA_VERSION: Final = 1
#: A shorter wait is no starvation, and its steps would cost a look at every end of an attempt.
SECONDS_MIN: Final = 1.0
#: Kinds that may age: each costs a few steps of an index in a look.
KINDS_MAX: Final = 100

SET: Final = """
    INSERT INTO limit_aging (kind, full_ms, next_ms) VALUES (:kind, :full_ms, 0)
        ON CONFLICT (kind) DO UPDATE SET full_ms = excluded.full_ms, next_ms = 0"""

COUNT: Final = "SELECT count(*) FROM limit_aging WHERE kind <> :kind"

DROP: Final = "DELETE FROM limit_aging WHERE kind = :kind"


def age(queue: Queue, kind: str, seconds: float | None) -> None:
    """Let jobs of a kind rise in priority while they wait; one transaction, for all processes.

    Args:
        queue: whose file.
        kind: of job.
        seconds: of waiting after which a job has priority 0; None ends it.

    Raises:
        ValueError: an argument is wrong, or too many kinds age; the message says so; definite.
        FileRefused: the application has a table `limit_aging`; definite.
        KillproofError: as for `Queue.cancel`.
    """
    model.check_text(kind, "kind", model.KIND_CHARS_MAX)
    full_ms = 0
    if seconds is not None:
        full_ms = model.to_ms(seconds, "seconds", lowest_ms=round(SECONDS_MIN * 1_000))
    with queue.transaction() as tx:
        if seconds is None:
            if _has_table(tx):
                tx.change(DROP, {"kind": kind})
            return
        _ensure_table(tx)
        row = tx.row(COUNT, {"kind": kind})
        assert row is not None
        if cast(int, row[0]) >= KINDS_MAX:
            raise ValueError(f"{KINDS_MAX} kinds age already: end it for one of them")
        tx.change(SET, {"kind": kind, "full_ms": full_ms})


ALL: Final = "SELECT kind, full_ms FROM limit_aging ORDER BY kind"


def ages(queue: Queue) -> dict[str, float]:
    """Return the seconds of each kind that ages.

    Raises:
        KillproofError: as for `Queue.counts`.
    """
    with queue.database.read() as tx:
        found = tx.rows(ALL) if _has_table(tx) else []
    return {cast(str, kind): cast(int, full_ms) / 1_000 for kind, full_ms in found}


VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'aging'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('aging', :version)"

FIND_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE lower(name) = 'limit_aging'"

CREATE: Final = """
    CREATE TABLE limit_aging (
        kind    TEXT    NOT NULL PRIMARY KEY CHECK (length(kind) BETWEEN 1 AND 200),
        full_ms INTEGER NOT NULL CHECK (full_ms >= 1),  -- of waiting, until priority 0
        next_ms INTEGER NOT NULL                        -- nobody looks before then
    ) STRICT, WITHOUT ROWID"""

# Priority p may be had for less than (10 - p) ninths of the time.  Level 1 first: there are those
# that have waited longest.  100 in a look, as a claim promotes at most.  A look that is further
# away than it can be set was set before the wall clock was stepped back.
ON_END: Final = """
    CREATE TRIGGER limit_job_ages AFTER UPDATE OF state ON job
      WHEN OLD.state = 'leased' AND NEW.state <> 'leased'
       AND EXISTS (SELECT 1 FROM limit_aging
                    WHERE next_ms NOT BETWEEN NEW.updated_ms + 1 AND NEW.updated_ms + full_ms)
     BEGIN
        UPDATE job
           SET priority = 9 - min(9, (NEW.updated_ms - due_ms) * 9
                   / (SELECT full_ms FROM limit_aging WHERE kind = job.kind)),
               updated_ms = NEW.updated_ms
         WHERE id IN (
               SELECT waiting.id
                 FROM (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS level
                CROSS JOIN limit_aging
                CROSS JOIN job AS waiting
                   ON waiting.state = 'available'
                  AND waiting.kind = limit_aging.kind
                  AND waiting.priority = level.column1
                  AND waiting.due_ms
                      <= NEW.updated_ms - ((10 - level.column1) * full_ms + 8) / 9
                WHERE next_ms NOT BETWEEN NEW.updated_ms + 1 AND NEW.updated_ms + full_ms
                LIMIT 100);
        UPDATE limit_aging SET next_ms = NEW.updated_ms + full_ms / 90 + 1
         WHERE next_ms NOT BETWEEN NEW.updated_ms + 1 AND NEW.updated_ms + full_ms;
     END"""


def _has_table(tx: Transaction) -> bool:
    version = tx.row(VERSION)
    if version is not None and version != (SCHEMA_VERSION,):
        raise FileRefused(
            f"{tx.path}: its aging has version {version[0]!r}, this killproof knows "
            f"{SCHEMA_VERSION}: upgrade killproof"
        )
    return version is not None


def _ensure_table(tx: Transaction) -> None:
    if _has_table(tx):
        return
    if tx.row(FIND_TABLE) is not None:
        raise FileRefused(
            f"{tx.path} has a table 'limit_aging' that is not killproof's: "
            "rename it, or use another file"
        )
    tx.change(CREATE)
    tx.change(ON_END)
    tx.change(SET_VERSION, {"version": SCHEMA_VERSION})
