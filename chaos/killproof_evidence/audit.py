"""Audit: triggers on the target's own table that write down the exact commit order.

SQLite has one writer at a time, and a trigger runs in the transaction that fires it: the audit
row commits or vanishes together with the change. So `seq` is the order of the commits, without
clocks and without search, and every check over it is a single pass.

The triggers are put in place by a plain connection before any worker starts, and dumped by
another after the last one has ended. The harness never opens the file in between.
"""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from killproof_evidence.target import AuditMapping, RunMapping

TABLE: Final = "killproof_audit"

#: The columns of the audit and the fields of a record, in order; `old` and `new` come in between.
_FIELDS: Final = ("fence", "attempts", "forgiven", "priority", "due_ms", "key", "kind")

#: Wall clock in ms. `unixepoch('subsec')` is NULL below SQLite 3.42, `julianday` is not.
_NOW_MS: Final = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


def audit_sql(mapping: AuditMapping, runs: RunMapping | None = None) -> str:
    """Return the script that makes the audit table and its triggers."""
    new = {name: expression(getattr(mapping, name)) for name in ("id", "state", *_FIELDS)}
    old = {name: text.replace("NEW.", "OLD.") for name, text in new.items()}
    # A queue that forgets the token when it ends a job still has it in the old row.
    last_fence = f"COALESCE({new['fence']}, {old['fence']})"
    both = new | {"fence": last_fence}
    changed = [f"{new[name]} IS NOT {old[name]}" for name in ("state", *_FIELDS[:5])]
    body = expression(mapping.payload)
    harness_id = f"CASE WHEN json_valid({body}) THEN json_extract({body}, '$.id') END"
    columns = ", ".join(
        ("seq INTEGER PRIMARY KEY", "t_ms", "job", "old", "new", *_FIELDS, "harness_id", "run")
    )
    name = quoted(mapping.table)
    return f"""
CREATE TABLE {TABLE} ({columns});
CREATE TRIGGER {TABLE}_insert AFTER INSERT ON {name} BEGIN
    {_insert(new, "NULL", new["state"], harness_id)}
END;
CREATE TRIGGER {TABLE}_update AFTER UPDATE ON {name} WHEN {" OR ".join(changed)} BEGIN
    {_insert(both, old["state"], new["state"], "NULL")}
END;
CREATE TRIGGER {TABLE}_delete AFTER DELETE ON {name} BEGIN
    {_insert(old, old["state"], "NULL", "NULL")}
END;
{"" if runs is None else _runs_sql(runs)}"""


def _runs_sql(runs: RunMapping) -> str:
    """Return the triggers that write a run's changes between those of its jobs."""
    new = {name: expression(getattr(runs, name)) for name in ("id", "state", "name")}
    old = {name: text.replace("NEW.", "OLD.") for name, text in new.items()}
    table = quoted(runs.table)

    def insert(row: dict[str, str], before: str, after: str) -> str:
        values = ", ".join((_NOW_MS, before, after, row["name"], row["id"]))
        columns = "t_ms, old, new, key, run"
        return f"INSERT INTO {TABLE} ({columns}) VALUES ({values});"  # noqa: S608 - the mapping

    return f"""
CREATE TRIGGER {TABLE}_run_insert AFTER INSERT ON {table} BEGIN
    {insert(new, "NULL", new["state"])}
END;
CREATE TRIGGER {TABLE}_run_update AFTER UPDATE ON {table}
WHEN {new["state"]} IS NOT {old["state"]} BEGIN
    {insert(new, old["state"], new["state"])}
END;
CREATE TRIGGER {TABLE}_run_delete AFTER DELETE ON {table} BEGIN
    {insert(old, old["state"], "NULL")}
END;
"""


def install_audit(
    database: Path | str, mapping: AuditMapping, runs: RunMapping | None = None
) -> None:
    """Put the triggers on the target's tables; call it before any worker starts.

    Raises:
        sqlite3.Error: the table or a column of the mapping does not exist; nothing was changed.
    """
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.executescript(f"BEGIN IMMEDIATE; {audit_sql(mapping, runs)}")
        for table in (mapping.table, *([] if runs is None else [runs.table])):
            _compile(connection, quoted(table))
        connection.execute("COMMIT")


def _compile(connection: sqlite3.Connection, name: str) -> None:
    """Make SQLite compile the triggers now: a wrong column is refused when one fires.

    Closing without the commit takes everything back.
    """
    columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
    if not columns:
        raise sqlite3.OperationalError(f"no such table: {name}")
    first = quoted(columns[0][1])
    for statement in (
        f"INSERT INTO {name} DEFAULT VALUES",
        f"UPDATE {name} SET {first} = {first}",  # noqa: S608 - from the mapping
        f"DELETE FROM {name}",  # noqa: S608 - from the mapping
    ):
        connection.execute(f"EXPLAIN {statement}").fetchall()


def dump_audit(
    database: Path | str,
    mapping: AuditMapping,
    path: Path | str,
    runs: RunMapping | None = None,
) -> int:
    """Write the audit as JSON lines in the contract's words; return the number of records.

    Call it when the last process of the target has ended.
    """
    count = 0
    with closing(sqlite3.connect(database)) as connection, open(path, "w") as file:
        for record in audit_records(connection, mapping, runs):
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
            count += 1
    return count


def audit_records(
    connection: sqlite3.Connection, mapping: AuditMapping, runs: RunMapping | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the audit in the contract's words, in commit order, as this connection sees it."""
    query = f"SELECT * FROM {TABLE} ORDER BY seq"  # noqa: S608 - a constant, no input
    run_words = {} if runs is None else runs.states
    for seq, t_ms, job, old, new, *rest, run in connection.execute(query):
        if run is not None:
            old, new = run_words.get(old, old), run_words.get(new, new)
            name = rest[_FIELDS.index("key")]
            yield {"seq": seq, "t_ms": t_ms, "run": run, "old": old, "new": new, "key": name}
            continue
        record = {"seq": seq, "t_ms": t_ms, "job": job, "old": old, "new": new}
        for name in ("old", "new"):
            record[name] = mapping.states.get(record[name], record[name])
        values = zip((*_FIELDS, "harness_id"), rest, strict=True)
        yield record | {name: value for name, value in values if value is not None}


def _insert(row: dict[str, str], old: str, new: str, harness_id: str) -> str:
    values = ", ".join((_NOW_MS, row["id"], old, new, *(row[f] for f in _FIELDS), harness_id))
    columns = ", ".join(("t_ms", "job", "old", "new", *_FIELDS, "harness_id"))
    return f"INSERT INTO {TABLE} ({columns}) VALUES ({values});"  # noqa: S608 - from the mapping


def expression(text: str | None) -> str:
    """Return the mapping's column or expression as SQL over NEW."""
    if text is None:
        return "NULL"
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        return f"NEW.{quoted(text)}"
    return f"({text})"


def quoted(name: str) -> str:
    """Return a name as SQL."""
    return '"' + name.replace('"', '""') + '"'
