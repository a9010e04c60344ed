"""The audit log: who did what to which job through the page or its API, when, and what came of it.

An entry is begun in a transaction of its own *before* the action, and completed after it: nothing
happens that is not on record.  A server that is killed in between leaves an entry that says
`begun`: the action may have happened or not, and the job itself tells.  (One transaction for both
would need each operation of the queue to take part in a foreign one; a person's click can afford
two more commits.)

What a role does not suffice for never happens, and is one entry, made at once.  Of these only the
latest `DENIED_MAX` are kept: a viewer could else push out what others decided, by asking in vain.

The table is made at the first action.  A backup holds it, and so does what is restored from one; an
export does not, and nothing prunes it but its own bound: the oldest entries go when there are more
than `ENTRIES_MAX`.
"""

import json
from dataclasses import dataclass
from typing import Final, Literal, cast

from killproof.core import model
from killproof.core.database import Transaction, Value
from killproof.core.errors import FileRefused
from killproof.core.jobs import Queue

SCHEMA_VERSION: Final = 1
#: Twenty to sixty megabytes; at a hundred decisions a day it is three years.
ENTRIES_MAX: Final = 100_000
DENIED_MAX: Final = 1_000
#: The bounds are looked at whenever an id is a multiple of this: counting takes milliseconds.
FORGET_EVERY: Final = 100
#: Entries of one list at most.
LISTED_MAX: Final = 200
SAID_CHARS_MAX: Final = 500

#: `refused`: nothing was changed, because of the job's state; `denied`: the role does not suffice;
#: `unknown`: the commit may or may not have happened.
Outcome = Literal["done", "refused", "denied", "failed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One decision."""

    id: int
    at_ms: int
    who: str
    role: str
    action: str
    job_id: int | None
    kind: str | None
    detail: dict[str, object]  #: what the action was given beside the job or the kind
    outcome: str  #: `begun` until it is known
    said: str | None  #: what the person was told
    ended_ms: int | None


INSERT: Final = """
    INSERT INTO killproof_audit (at_ms, who, role, action, job_id, kind, detail, outcome, said,
                                 ended_ms)
    VALUES (:now_ms, :who, :role, :action, :job_id, :kind, :detail, :outcome, :said,
            iif(:outcome = 'begun', NULL, :now_ms))"""

FORGET: Final = """
    DELETE FROM killproof_audit
     WHERE id <= (SELECT id FROM killproof_audit ORDER BY id DESC LIMIT 1 OFFSET :most)"""

FORGET_DENIED: Final = """
    DELETE FROM killproof_audit
     WHERE outcome = 'denied' AND id <= (
           SELECT id FROM killproof_audit WHERE outcome = 'denied'
            ORDER BY id DESC LIMIT 1 OFFSET :most)"""


def begin(
    queue: Queue,
    *,
    who: str,
    role: str,
    action: str,
    job_id: int | None = None,
    kind: str | None = None,
    detail: dict[str, object] | None = None,
    denied: str | None = None,
) -> int:
    """Put on record that somebody is about to do something; return the entry's id, durable.

    Args:
        queue: where it is kept.
        who: the name of the token.
        role: of the token.
        action: one of `web_access.ACTIONS`.
        job_id: the job it is about, if it is about one.
        kind: the kind it is about.
        detail: what the action was given beside them.
        denied: what the person was told, if the role does not suffice: that completes the entry.

    Raises:
        FileRefused: the application has a table `killproof_audit`; definite.
        KillproofError: as for `Queue.cancel`.
    """
    values: dict[str, Value] = {
        "now_ms": queue.host.clock.now_ms(),
        "who": who,
        "role": role,
        "action": action,
        "job_id": job_id,
        "kind": kind,
        "detail": json.dumps(detail or {}, ensure_ascii=False),
        "outcome": "begun" if denied is None else "denied",
        "said": denied,
    }
    with queue.transaction() as tx:
        _ensure_table(tx)
        entry_id = tx.insert(INSERT, values)
        assert entry_id is not None
        if entry_id % FORGET_EVERY == 0:
            tx.change(FORGET_DENIED, {"most": DENIED_MAX})
            tx.change(FORGET, {"most": ENTRIES_MAX})
    return entry_id


END: Final = """
    UPDATE killproof_audit SET outcome = :outcome, said = :said, ended_ms = :now_ms
     WHERE id = :id AND outcome = 'begun'"""


def end(queue: Queue, entry_id: int, outcome: Outcome, said: str | None) -> None:
    """Put on record what came of it; an entry is completed once.

    Raises:
        KillproofError: as for `Queue.cancel`.
    """
    values: dict[str, Value] = {
        "id": entry_id,
        "outcome": outcome,
        "said": None if said is None else model.storable(said)[:SAID_CHARS_MAX],
        "now_ms": queue.host.clock.now_ms(),
    }
    with queue.transaction() as tx:
        tx.change(END, values)


HAS_AUDIT: Final = "SELECT 1 FROM killproof_schema WHERE component = 'audit'"

ENTRIES: Final = """
    SELECT id, at_ms, who, role, action, job_id, kind, detail, outcome, said, ended_ms
      FROM killproof_audit WHERE id < :before ORDER BY id DESC LIMIT :limit"""

ENTRIES_OF_JOB: Final = """
    SELECT id, at_ms, who, role, action, job_id, kind, detail, outcome, said, ended_ms
      FROM killproof_audit WHERE job_id = :job_id AND id < :before ORDER BY id DESC LIMIT :limit"""


def entries(
    queue: Queue, *, limit: int = 50, before: int | None = None, job_id: int | None = None
) -> list[Entry]:
    """Return entries, the latest first.

    Args:
        queue: where they are.
        limit: entries at most.
        before: only entries with a smaller id than this; None is from the latest on.
        job_id: only what was done to this job.

    Raises:
        ValueError: the limit is not from 1 to `LISTED_MAX`; definite.
        KillproofError: as for `Queue.counts`.
    """
    model.check_count(limit, "limit", 1, LISTED_MAX)
    if not queue.database.peek(HAS_AUDIT):
        return []
    values = {"before": (1 << 63) - 1 if before is None else before, "limit": limit}
    if job_id is None:
        found = queue.database.peek(ENTRIES, values)
    else:
        found = queue.database.peek(ENTRIES_OF_JOB, values | {"job_id": job_id})
    return [_entry(row) for row in found]


def _entry(row: tuple[object, ...]) -> Entry:
    entry_id, at_ms, who, role, action, job_id, kind, detail, outcome, said, ended_ms = row
    return Entry(
        id=cast(int, entry_id),
        at_ms=cast(int, at_ms),
        who=str(who),
        role=str(role),
        action=str(action),
        job_id=cast(int | None, job_id),
        kind=cast(str | None, kind),
        detail=cast(dict[str, object], json.loads(str(detail))),
        outcome=str(outcome),
        said=cast(str | None, said),
        ended_ms=cast(int | None, ended_ms),
    )


VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'audit'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('audit', :version)"

FIND_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE lower(name) = 'killproof_audit'"

CREATE: Final = """
    CREATE TABLE killproof_audit (
        id       INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: a missing one was removed
        at_ms    INTEGER NOT NULL,
        who      TEXT    NOT NULL,
        role     TEXT    NOT NULL,
        action   TEXT    NOT NULL,
        job_id   INTEGER,              -- no reference: the entry outlives a job that is pruned
        kind     TEXT,
        detail   TEXT    NOT NULL CHECK (json_valid(detail)),
        outcome  TEXT    NOT NULL DEFAULT 'begun' CHECK (outcome IN ('begun', 'done', 'refused',
                             'denied', 'failed', 'unknown')),
        said     TEXT,
        ended_ms INTEGER,
        CHECK ((outcome = 'begun') = (ended_ms IS NULL))
    ) STRICT"""

CREATE_INDEX: Final = """
    CREATE INDEX killproof_audit_job ON killproof_audit (job_id) WHERE job_id IS NOT NULL"""

CREATE_DENIED: Final = """
    CREATE INDEX killproof_audit_denied ON killproof_audit (id) WHERE outcome = 'denied'"""


def _ensure_table(tx: Transaction) -> None:
    version = tx.row(VERSION)
    if version == (SCHEMA_VERSION,):
        return
    if version is not None or tx.row(FIND_TABLE) is not None:
        raise FileRefused(
            f"{tx.path} has a table 'killproof_audit' that is not this killproof's: "
            "rename it, or upgrade killproof"
        )
    tx.change(CREATE)
    tx.change(CREATE_INDEX)
    tx.change(CREATE_DENIED)
    tx.change(SET_VERSION, {"version": SCHEMA_VERSION})
