"""A target at level 0: a queue in shell, with SQLite's own program for every statement.

Nothing of it is Python but this adapter, and each statement is a process of its own. The broken one
takes the row out at the claim and writes it back when the job has ended.
"""

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from killproof_evidence.contract import Contract
from killproof_evidence.target import Definite, Indefinite, JobRow

LEASE_MS = 300
NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
SCHEMA = """PRAGMA journal_mode = wal; CREATE TABLE job (id INTEGER PRIMARY KEY, payload TEXT,
            state TEXT DEFAULT 'available', attempts INTEGER DEFAULT 0, until_ms INTEGER)"""
#: The statements are put together from constants, here and in the shell.
FIRST = f"""SELECT id FROM job WHERE state = 'available'
             OR (state = 'leased' AND until_ms < {NOW_MS}) ORDER BY id LIMIT 1"""  # noqa: S608
TOLD = "RETURNING id, attempts, json_extract(payload, '$.id'), payload"
LEASE = f"state = 'leased', attempts = attempts + 1, until_ms = {NOW_MS} + {LEASE_MS}"
CLAIM = f"UPDATE job SET {LEASE} WHERE id = ({FIRST}) {TOLD}"  # noqa: S608
ACK = "UPDATE job SET state = 'succeeded' WHERE id = $id AND attempts = $attempt"
POP = f"DELETE FROM job WHERE id = ({FIRST}) {TOLD}"  # noqa: S608
PUT_BACK = "INSERT INTO job VALUES ($id, '$payload', 'succeeded', $attempt, NULL)"
WORKER = """
trap 'stop=1' TERM
sql() { sqlite3 -batch -cmd '.timeout 5000' "$DB" "$1"; }
log() {
    read -r up _ < /proc/uptime
    n=$((n + 1))
    printf '{"t":%s,"pid":%s,"n":%s,"job":"%s","attempt":%s,"queue_id":%s,"what":"%s"%s}\\n' \
        "${up%.*}${up#*.}0000000" $$ $n "$name" "$attempt" "$id" "$1" "$2" \
        >> "$KILLPROOF_EFFECTS/$$.jsonl"
}
while [ -z "$stop" ]; do
    row=$(sql "$CLAIM")
    if [ -z "$row" ]; then sleep 0.02; continue; fi
    IFS='|' read -r id attempt name payload <<END
$row
END
    log start
    log effect
    log end ',"outcome":"ok"'
    sql "$(eval "printf '%s' \\"$ACK\\"")"
done
"""


class ShellQueue:
    """The adapter."""

    name = "shell-queue"
    audit = None

    def __init__(self, *, broken: bool) -> None:
        self.broken = broken
        self.contract = Contract(
            promises={
                "P1": "process",
                "P2": True,
                "P3": True,
                "P8": True,
                "P16": True,
                "P17": True,
            },
            parameters={"lease_ms": LEASE_MS, "max_attempts": 5},
        )

    def prepare(self, place: Path) -> None:
        """Make an empty queue."""
        with closing(sqlite3.connect(place / "jobs.db")) as db:
            db.executescript(SCHEMA)

    def client(self, place: Path) -> "ShellClient":
        """Open nothing: each statement opens the file."""
        return ShellClient(place / "jobs.db")

    def worker_argv(self, place: Path) -> list[str]:
        """Return the worker's command line."""
        claim, ack = (POP, PUT_BACK) if self.broken else (CLAIM, ACK)
        words = [f"DB={place / 'jobs.db'}", f"CLAIM={claim}", f"ACK={ack}"]
        return ["env", *words, "sh", "-c", WORKER]

    def snapshot(self, place: Path) -> Iterable[JobRow]:
        """Read every job."""
        with closing(sqlite3.connect(place / "jobs.db")) as db:
            rows = db.execute("SELECT id, state, attempts, json(payload) FROM job").fetchall()
        for number, state, attempts, payload in rows:
            values: dict[str, Any] = {"id": number, "state": state, "attempts": attempts}
            yield JobRow(kind="report", payload=_decoded(payload), **values)


class ShellClient:
    """A producer that calls SQLite's program."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def enqueue(self, kind: str, payload: dict[str, Any], **options: Any) -> int:
        """Put a job in.

        Raises:
            Indefinite: the program failed, perhaps at the commit.
        """
        if options:
            raise Definite(f"{kind} with {options}: this queue has no options")
        text = _encoded(payload).replace("'", "''")
        statement = f"INSERT INTO job (payload) VALUES ('{text}') RETURNING id"  # noqa: S608
        done = subprocess.run(
            ["sqlite3", "-batch", "-cmd", ".timeout 5000", str(self._database), statement],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Indefinite(done.stderr.strip())
        return int(done.stdout)

    def cancel(self, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Refuse: this queue cannot."""
        raise Definite(f"job {id}: there is no cancel")

    def replay(self, id: int | str) -> bool:  # noqa: A002 - the seam's name
        """Refuse: this queue cannot."""
        raise Definite(f"job {id}: there is no replay")

    def close(self) -> None:
        """Close nothing."""


def _encoded(payload: dict[str, Any]) -> str:

    return json.dumps({name: payload[name] for name in ("id", "script", "sink")})


def _decoded(payload: str) -> dict[str, Any]:

    found: dict[str, Any] = json.loads(payload)
    return found


target = ShellQueue(broken="BROKEN" in os.environ)
