"""Seed a database by SQL in the terms of the schema, fast enough for millions of rows.

Jobs of every state look as the queue's own operations leave them, so that the CHECKs of the schema
hold and a claim meets what it would meet in an old file: attempts of what ended, owners of what is
leased. The connection is a plain one of its own.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

KIND: Final = "bench"
#: A webhook's reference or a report's parameters; larger payloads measure the copy, not the queue.
PAYLOAD_BYTES: Final = 100
#: Far enough that no lease and no due time of a seeded row comes while the bench runs: a day.
FAR_MS: Final = 24 * 60 * 60 * 1_000

#: Below this there is no room for the padding's own name.
PAYLOAD_BYTES_MIN: Final = 16

AVAILABLE: Final = """
INSERT INTO job (kind, state, due_ms, created_ms, updated_ms, payload)
WITH RECURSIVE line (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM line WHERE i < :rows)
SELECT :kind, 'available', :now_ms, :now_ms, :now_ms, :payload
  FROM line
"""

SUCCEEDED: Final = """
INSERT INTO job (kind, state, due_ms, fence, deliveries, claimed_ms, created_ms, updated_ms,
                 finished_ms, payload)
WITH RECURSIVE line (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM line WHERE i < :rows)
SELECT :kind, 'succeeded', :now_ms, 1, 1, :now_ms, :now_ms, :now_ms,
       :now_ms + :first + i, :payload
  FROM line
"""

DEAD: Final = """
INSERT INTO job (kind, state, due_ms, max_attempts, fence, deliveries, failures, claimed_ms,
                 created_ms, updated_ms, finished_ms, error_class, error_message, payload)
WITH RECURSIVE line (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM line WHERE i < :rows)
SELECT :kind, 'dead', :now_ms, 1, 1, 1, 1, :now_ms,
       :now_ms, :now_ms, :now_ms + :first + i, 'ValueError', 'no such report', :payload
  FROM line
"""

SCHEDULED: Final = """
INSERT INTO job (kind, state, due_ms, created_ms, updated_ms, payload)
WITH RECURSIVE line (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM line WHERE i < :rows)
SELECT :kind, 'scheduled', :now_ms + :far_ms + :first + i, :now_ms, :now_ms, :payload
  FROM line
"""

LEASED: Final = """
INSERT INTO job (kind, state, due_ms, fence, deliveries, owner, lease_deadline_ns, claimed_ms,
                 created_ms, updated_ms, payload)
WITH RECURSIVE line (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM line WHERE i < :rows)
SELECT :kind, 'leased', :now_ms, 1, 1, :owner, :deadline_ns + :first + i, :now_ms,
       :now_ms, :now_ms, :payload
  FROM line
"""

ATTEMPTS: Final = """
INSERT INTO attempt (job_id, fence, outcome, worker, started_ms, finished_ms, error_class,
                     error_message)
SELECT id, 1, iif(state = 'dead', 'failed', 'succeeded'), :owner, claimed_ms, finished_ms,
       error_class, error_message
  FROM job
 WHERE finished_ms IS NOT NULL AND id > :after_id
"""

OTHER_STATES: Final = ("succeeded", "dead", "scheduled", "leased")
_STATEMENTS: Final = (SUCCEEDED, DEAD, SCHEDULED, LEASED)
_STATEMENT_OF: Final = {
    "available": AVAILABLE,
    **dict(zip(OTHER_STATES, _STATEMENTS, strict=True)),
}
#: Rows of one transaction: seconds of work, and a log of about 100 MB.
CHUNK_ROWS: Final = 250_000


def payload_of(size: int) -> dict[str, str]:
    """Return a payload that is so many bytes of JSON as `json.dumps` writes it.

    >>> len(json.dumps(payload_of(100)))
    100
    """
    return {"padding": "x" * (size - len(json.dumps({"padding": ""})))}


def seed_available(
    path: Path, rows: int, now_ms: int, *, payload_bytes: int = PAYLOAD_BYTES
) -> None:
    """Add jobs that can be claimed at once."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(AVAILABLE, _values(rows, now_ms, payload_bytes))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def seed_finished(
    path: Path, rows: int, now_ms: int, *, payload_bytes: int = PAYLOAD_BYTES
) -> None:
    """Add jobs that have succeeded, with their attempts, to a file that holds no other finished.

    They belong to a worker that nobody has heard of since: attempts outlive their workers.
    """
    values = _values(rows, now_ms, payload_bytes) | {"owner": "0" * 32}
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # Losing this file to a power cut costs one more seeding; syncing it costs minutes.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -262144")  # 256 MiB: the indexes stay in memory.
        connection.execute(SUCCEEDED, values)
        connection.execute(ATTEMPTS, values)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def seed_other_states(path: Path, rows: int, now_ms: int, *, owner: str, monotonic_ns: int) -> None:
    """Add so many jobs in each of `OTHER_STATES`, none of which can be claimed.

    Args:
        path: The database.
        rows: Per state.
        now_ms: Wall clock.
        owner: The identity of a living worker: leases of a dead one would be reaped.
        monotonic_ns: The clock of the leases' deadlines, which lie a day ahead.
    """
    values = _values(rows, now_ms) | {
        "owner": owner,
        "far_ms": FAR_MS,
        "deadline_ns": monotonic_ns + FAR_MS * 1_000_000,
    }
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # Losing this file to a power cut costs one more seeding; syncing it costs minutes.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -262144")  # 256 MiB: the indexes stay in memory.
        for statement in (*_STATEMENTS, ATTEMPTS):
            connection.execute(statement, values)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def seed_states(
    path: Path,
    rows: Mapping[str, int],
    now_ms: int,
    *,
    owner: str,
    monotonic_ns: int,
    told: Callable[[int], None],
) -> None:
    """Add so many jobs in each state, and the attempts of those that have ended; sync the file.

    Args:
        path: The database.
        rows: By state: `available` or one of `OTHER_STATES`.
        now_ms: Wall clock.
        owner: The identity of a living worker: leases of a dead one would be reaped.
        monotonic_ns: The clock of the leases' deadlines, which lie a day ahead.
        told: Told how many rows have been added since the last time.
    """
    values = _values(0, now_ms) | {
        "owner": owner,
        "far_ms": FAR_MS,
        "deadline_ns": monotonic_ns + FAR_MS * 1_000_000,
    }
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -262144")  # 256 MiB: the indexes stay in memory.
        # Five million times the same checks: a test has integrity_check look at a small file.
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for state, count in rows.items():
            for first in range(0, count, CHUNK_ROWS):
                (last_id,) = connection.execute("SELECT coalesce(max(id), 0) FROM job").fetchone()
                chunk = min(CHUNK_ROWS, count - first)
                values |= {"rows": chunk, "first": first, "after_id": last_id}
                connection.execute(_STATEMENT_OF[state], values)
                if state in ("succeeded", "dead"):
                    connection.execute(ATTEMPTS, values)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                told(chunk)
        # Else a checkpoint of the queue's own would sync all this while a call is timed.  A
        # descriptor for fsync would, when closed, drop the locks of this process on the file.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("UPDATE killproof_setting SET value = value")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _values(rows: int, now_ms: int, payload_bytes: int = PAYLOAD_BYTES) -> dict[str, int | str]:
    payload = json.dumps(payload_of(payload_bytes))
    first: dict[str, int | str] = {"first": 0, "after_id": 0}  # Of all rows at once.
    return {"rows": rows, "now_ms": now_ms, "kind": KIND, "payload": payload, **first}
