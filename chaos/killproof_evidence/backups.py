"""Facts of the backups that a run made: each copy is opened, checked and listed.

A backup is as good as what a stranger finds in it, so it is read by a process of its own, with
plain sqlite3 and the audit's column mapping, after the run.  The store keeps these facts and not
the copies: `backups.jsonl` has one line for each backup and one for each job in it.

The copy holds the audit as well, up to the commit at which its snapshot was taken.  Held against
the audit of the original, that commit is known by its number, and so is every state that the copy
has to show.  What the backup itself changed in the copy (it ends the leases there) stands behind.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from killproof_evidence.audit import TABLE, expression, quoted
from killproof_evidence.target import AuditMapping, RunMapping


class BackupsUnread(RuntimeError):
    """The process that reads the backups failed; the message is its last word."""


def read_backups(
    original: Path,
    mapping: AuditMapping | None,
    copies: Sequence[tuple[str, Path]],
    runs: RunMapping | None = None,
) -> Iterator[dict[str, Any]]:
    """Read copies of a database in a process of their own; yield the lines of backups.jsonl.

    Args:
        original: the database at the end of the run; nobody has it open.
        mapping: how a job is found in it; None: the copies are only checked as files.
        copies: the name of each in the history, and where it lies now.
        runs: how a run of a workflow is found in it; None: it has none.

    Raises:
        BackupsUnread: the process ended with an error; definite.
    """
    asked = {
        "original": str(original),
        "mapping": None if mapping is None else asdict(mapping),
        "runs": None if runs is None else asdict(runs),
        "copies": [(name, str(path)) for name, path in copies],
    }
    done = subprocess.run(
        [sys.executable, "-m", "killproof_evidence.backups"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BackupsUnread((done.stderr.strip().splitlines() or ["no word"])[-1])
    yield from map(json.loads, done.stdout.splitlines())


def facts_of(
    name: str,
    path: Path,
    original: Path,
    mapping: AuditMapping | None,
    runs: RunMapping | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the facts of one copy: what it is as a file, then each job in it."""
    head: dict[str, Any] = {"backup": name, "opens": False, "problems": []}
    try:
        # A missing copy must not be made by looking for it.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as copy:
            problems = [str(row[0]) for row in copy.execute("PRAGMA integrity_check")]
            head["problems"] = [problem for problem in problems if problem != "ok"]
            for table, rowid, parent, _ in copy.execute("PRAGMA foreign_key_check"):
                head["problems"].append(f"row {rowid} of {table} refers to no row of {parent}")
            jobs = [] if mapping is None else list(_jobs(copy, mapping))
            if runs is not None:
                head["runs"] = dict(_runs(copy, runs))
            head["seq"] = None if mapping is None else _snapshot(copy, original)
            head |= {"opens": True, "bytes": path.stat().st_size, "jobs": len(jobs)}
    except sqlite3.Error as error:
        yield head | {"error": str(error)}
        return
    yield head
    for job, state in jobs:
        yield {"backup": name, "job": str(job), "state": state}


def _jobs(copy: sqlite3.Connection, mapping: AuditMapping) -> Iterable[tuple[Any, str]]:
    columns = f"{expression(mapping.id)}, {expression(mapping.state)}"
    table = quoted(mapping.table)
    query = f"SELECT {columns} FROM {table} AS NEW"  # noqa: S608 - from the mapping
    return ((job, mapping.states.get(state, state)) for job, state in copy.execute(query))


def _runs(copy: sqlite3.Connection, runs: RunMapping) -> Iterable[tuple[str, str]]:
    columns = f"{expression(runs.name)}, {expression(runs.state)}"
    query = f"SELECT {columns} FROM {quoted(runs.table)} AS NEW"  # noqa: S608 - from the mapping
    return ((str(name), runs.states.get(state, state)) for name, state in copy.execute(query))


def _snapshot(copy: sqlite3.Connection, original: Path) -> int:
    """Return the number of the last change that both have; what follows is the backup's own."""
    same = " AND ".join(f"b.{name} IS a.{name}" for name in ("t_ms", "job", "old", "new", "fence"))
    copy.execute("ATTACH ? AS original", (f"{original.resolve().as_uri()}?mode=rw",))
    (first,) = copy.execute(  # The first change of the copy's audit that the original does not have
        f"SELECT min(b.seq) FROM main.{TABLE} AS b"  # noqa: S608 - constants, no input
        f" LEFT JOIN original.{TABLE} AS a ON a.seq = b.seq AND {same} WHERE a.seq IS NULL"
    ).fetchone()
    if first is not None:
        return int(first) - 1
    (last,) = copy.execute(f"SELECT max(seq) FROM main.{TABLE}").fetchone()  # noqa: S608
    return int(last or 0)


def main() -> None:
    """Read what stdin names, and print the facts as JSON lines."""
    asked = json.load(sys.stdin)
    mapping = None if asked["mapping"] is None else AuditMapping(**asked["mapping"])
    runs = None if asked["runs"] is None else RunMapping(**asked["runs"])
    for name, path in asked["copies"]:
        for record in facts_of(name, Path(path), Path(asked["original"]), mapping, runs):
            print(json.dumps(record, separators=(",", ":")))


if __name__ == "__main__":
    main()
