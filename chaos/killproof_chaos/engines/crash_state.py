"""What an operation leaves in the file, so far as it is the same in every run.

Two runs of one operation differ in times and nothing else. So a state is each job's words and
counts as they are, and of the columns that hold nanoseconds only whether they have moved since the
operation began: an extended lease shows in nothing else.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crash_session import Session
from killproof_evidence.target import AuditMapping, JobRow

#: Jobs that others put in at this moment are no part of the operation.
APART: Final = frozenset({"next", "of-peer"})
#: Deadlines on the monotonic clock have such names, in whatever queue.
NANOSECONDS: Final = "_ns"
State = dict[str, dict[str, Any]]


def of_session(session: Session, mapping: AuditMapping) -> State:
    """Read the state through the connection that the queue itself has open."""
    table = mapping.table
    query = f"SELECT name FROM pragma_table_info('{table}')"  # noqa: S608 - names
    columns = [str(name) for (name,) in session.rows(query)]
    facts = (mapping.state, mapping.fence, mapping.attempts, mapping.forgiven, mapping.priority,
             mapping.key)  # fmt: skip
    kept = {name for name in facts if name in columns}
    kept |= {name for name in columns if name.endswith(NANOSECONDS)}
    state: State = {}
    # The mapping's expressions are over NEW; here every row of the table is one.
    payload = mapping.payload or "NULL"
    query = f"SELECT *, {payload} FROM {table} AS NEW ORDER BY {mapping.id}"  # noqa: S608 - names
    for *row, body in session.rows(query):
        values = dict(zip(columns, row, strict=True))
        name = _name_of(body, values[mapping.id])
        state[name] = {column: values[column] for column in columns if column in kept}
    if extras := session.extras():
        state["extras"] = {"rows": extras}
    return state


def of_snapshot(rows: Iterable[JobRow]) -> State:
    """Return the state that the target itself tells, of a queue that nobody has opened."""
    state: State = {}
    for row in rows:
        facts = {"state": row.state, "fence": row.fence, "attempts": row.attempts, "key": row.key}
        name = row.payload.get("id") if isinstance(row.payload, dict) else None
        state[str(row.id if name is None else name)] = facts
    return state


def signature(before: State, after: State) -> list[str]:
    """Return the state in words, a line for each job, so that two runs can be compared."""
    lines = []
    for name, facts in sorted(after.items()):
        if name in APART:
            continue
        words = []
        for column, value in facts.items():
            if column.endswith(NANOSECONDS):
                if value != before.get(name, {}).get(column):
                    words.append(f"{column} moved")
            elif value is not None:
                words.append(f"{column} {value}")
        lines.append(f"{name}: {', '.join(words)}")
    return lines


def difference(seen: Iterable[str], expected: Iterable[str]) -> str:
    """Return what is in one state and not in the other, in a sentence's part."""
    here, there = set(seen), set(expected)
    parts = [f"has {line}" for line in sorted(here - there)]
    parts += [f"lacks {line}" for line in sorted(there - here)]
    return "; ".join(parts) or "is the same"


def save(path: Path, state: State) -> None:
    """Write a state for another process."""
    path.write_text(json.dumps(state), encoding="utf-8")


def load(path: Path) -> State:
    """Read a state; a missing one is empty."""
    if not path.exists():
        return {}
    found: State = json.loads(path.read_text(encoding="utf-8"))
    return found


def _name_of(payload: object, number: object) -> str:
    """Return the harness's name of a job, or the queue's where the payload does not tell."""
    try:
        decoded = json.loads(payload) if isinstance(payload, str | bytes) else None
    except ValueError:
        decoded = None
    name = decoded.get("id") if isinstance(decoded, Mapping) else None
    return str(number if name is None else name)
