"""my-queue behind a command line: four roles, to be said again in the language of your queue.

    PROGRAM prepare|client|worker|snapshot FOLDER

It needs the standard library alone, and knows nothing of the harness but the command
`killproof-effect`, which plays the handler. `my_queue_target.toml` names the roles.
"""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: Longer than any handler of a run, which takes 1.6 s at most: nobody extends this lease.
LEASE_MS = 3_000
MAX_ATTEMPTS = 5
IDLE_SECONDS = 0.05


def connect(folder: Path) -> sqlite3.Connection:
    """Open the queue; make it if there is none. FULL: what is acknowledged is on the disk."""
    db = sqlite3.connect(folder / "queue.db", timeout=10, isolation_level=None)
    db.execute("PRAGMA journal_mode = wal")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(
        """CREATE TABLE IF NOT EXISTS job (
               id INTEGER PRIMARY KEY, kind TEXT, payload TEXT, state TEXT DEFAULT 'available',
               attempts INTEGER DEFAULT 0, fence INTEGER DEFAULT 0, until_ms INTEGER, error TEXT)"""
    )
    return db


def client(db: sqlite3.Connection) -> None:
    """Answer each line of standard input with one on standard output; end with the input.

    ok: it happened. fail: it certainly did not. info: nobody knows.
    """
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        if asked["f"] != "enqueue":
            answer = {"fail": f"this queue has no {asked['f']}"}
        else:
            try:
                answer = {"ok": put(db, asked["kind"], asked["payload"])}
            except sqlite3.Error as error:
                answer = {"info": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def put(db: sqlite3.Connection, kind: str, payload: Any) -> int:
    """Insert a job; return its id."""
    insert = "INSERT INTO job (kind, payload) VALUES (?, ?) RETURNING id"
    [(id_,)] = db.execute(insert, (kind, json.dumps(payload))).fetchall()
    return int(id_)


def worker(db: sqlite3.Connection) -> None:
    """Take jobs until SIGTERM; finish the one in hand."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    while not told:
        found = take(db)
        if not found:
            time.sleep(IDLE_SECONDS)
            continue
        id_, payload, attempts, fence = found[0]
        # The payload goes in as it was enqueued; exit 0 is a success, anything else a failure.
        played = subprocess.run(
            ["killproof-effect"], input=payload, text=True, stdout=subprocess.DEVNULL
        )
        spent = "available" if attempts < MAX_ATTEMPTS else "dead"
        # The token says which lease is meant: one that has run out changes nothing any more.
        db.execute(
            "UPDATE job SET state = ?, error = ? WHERE id = ? AND fence = ? AND state = 'leased'",
            ("succeeded" if played.returncode == 0 else spent,
             None if played.returncode == 0 else "the handler failed", id_, fence),
        )  # fmt: skip


def take(db: sqlite3.Connection) -> list[tuple[int, str, int, int]]:
    """Lease the first job that is free, under the write lock; the claim counts the attempt."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        now = time.time_ns() // 1_000_000  # After the wait for the lock, which is no time at work.
        db.execute(
            """UPDATE job SET state = 'dead', error = 'its last worker was lost'
                WHERE state = 'leased' AND until_ms < ? AND attempts >= ?""",
            (now, MAX_ATTEMPTS),
        )
        return db.execute(
            """UPDATE job SET state = 'leased', attempts = attempts + 1, fence = fence + 1,
                              until_ms = ?
                WHERE id = (SELECT min(id) FROM job WHERE state = 'available'
                                OR (state = 'leased' AND until_ms < ?))
               RETURNING id, payload, attempts, fence""",
            (now + LEASE_MS, now),
        ).fetchall()


def snapshot(db: sqlite3.Connection) -> None:
    """Print every job, an object a line, in the contract's words."""
    for id_, kind, payload, state, attempts, fence, error in db.execute(
        "SELECT id, kind, payload, state, attempts, fence, error FROM job ORDER BY id"
    ):
        row = {"id": id_, "kind": kind, "payload": json.loads(payload), "state": state}
        counted = {"attempts": attempts, "fence": fence, "error": error}
        print(json.dumps(row | counted | {"max_attempts": MAX_ATTEMPTS}))


if __name__ == "__main__":
    role, place = sys.argv[1:]
    queue = connect(Path(place))
    if role != "prepare":
        {"client": client, "worker": worker, "snapshot": snapshot}[role](queue)
