"""Before the first process and after the last: make the file, and turn it into evidence.

Only here does the supervisor open the database, and only while nobody else lives.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos import coverage
from killproof_chaos.plan import Options, Plan
from killproof_evidence.audit import dump_audit, install_audit
from killproof_evidence.environment import environment
from killproof_evidence.store import Store
from killproof_evidence.target import Target

#: The sink that is a table: a row counts when the transaction of the ack has committed.
EFFECT_TABLE: Final = """
    CREATE TABLE chaos_effect (
        seq     INTEGER PRIMARY KEY,
        job     TEXT NOT NULL,
        attempt INTEGER,
        fence   INTEGER
    ) STRICT"""
#: After one of these the lease is no longer the process's.
ENDING: Final = frozenset({"ack", "nack", "release", "snooze"})


def prepare(target: Target, place: Path, database: Path, plan: Plan) -> None:
    """Make the empty queue, the audit's triggers and the table of effects."""
    place.mkdir()
    kinds = sorted({op.job.kind for ops in plan.operations for op in ops if op.job is not None})
    (place / "kinds.json").write_text(json.dumps(kinds), encoding="utf-8")
    target.prepare(place)
    if target.audit is not None:
        install_audit(database, target.audit)
        with closing(sqlite3.connect(database)) as db:
            db.execute(EFFECT_TABLE)
            db.commit()


def finish(
    target: Target,
    store: Store,
    place: Path,
    database: Path,
    options: Options,
    run: dict[str, Any],
) -> dict[str, Any]:
    """Write everything that the checkers read; return run.json as written."""
    for path in sorted(place.iterdir()):
        if path.name.startswith(database.name):
            shutil.copy(path, store.db)
    copy = store.db / database.name
    durability = None
    if target.audit is not None:
        dump_audit(copy, target.audit, store.audit)
        _dump_effects(copy, store)
        durability = _durability(copy)
    store.write_snapshot(target.snapshot(store.db))
    _write_recovery(store)
    shutil.rmtree(place)
    found = environment(store.path, durability=durability)
    run["environment"] = found
    run["counts"] = _counts(store)
    run["contract"] = "contract.toml"
    run["obligations"]["hit"] = coverage.hit(store, options, run)
    store.write_run(run)
    return run


def _dump_effects(database: Path, store: Store) -> None:
    with (
        closing(sqlite3.connect(database)) as db,
        open(store.effects / "table.jsonl", "w", encoding="utf-8") as file,
    ):
        for job, attempt, fence in db.execute(
            "SELECT job, attempt, fence FROM chaos_effect ORDER BY seq"
        ):
            record = {"job": job, "attempt": attempt, "fence": fence, "what": "applied"}
            file.write(json.dumps(record) + "\n")


def _durability(database: Path) -> str | None:
    """Return what the file says of itself, where it is one of killproof's."""
    with closing(sqlite3.connect(database)) as db:
        try:
            row = db.execute(
                "SELECT value FROM killproof_setting WHERE name = 'durability'"
            ).fetchone()
        except sqlite3.OperationalError:
            return None
    return row and str(row[0])


def _counts(store: Store) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, row in store.read(store.snapshot):
        if row is not None:
            counts[row["state"]] = counts.get(row["state"], 0) + 1
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """A claim as the history tells it."""

    pid: int
    job: str
    fence: int
    t: int  #: ns, when it returned


def _write_recovery(store: Store) -> None:
    """Write, for each kill of a process that held a lease, when another process had the job."""
    claims: list[_Claim] = []
    ended: set[tuple[str, int]] = set()
    for path in store.history_files():
        for _, record in store.read(path):
            if record is None or record["type"] != "ok" or record.get("fence") is None:
                continue
            if record["f"] == "claim":
                claims.append(
                    _Claim(
                        pid=record["pid"],
                        job=str(record["job"]),
                        fence=record["fence"],
                        t=record["t"],
                    )
                )
    for path in store.history_files():
        ended |= set(_ended(store, path))
    kills = {
        record["pid"]: record
        for _, record in store.read(store.nemesis)
        if record is not None and record["fault"] == "kill"
    }
    held = [
        claim for claim in claims if claim.pid in kills and (claim.job, claim.fence) not in ended
    ]
    by_job: dict[str, list[_Claim]] = {}
    for claim in claims:
        by_job.setdefault(claim.job, []).append(claim)
    log = store.writer(store.recovery)
    for claim in held:
        kill = kills[claim.pid]
        later = [c.t for c in by_job[claim.job] if c.fence > claim.fence and c.t > kill["t"]]
        log.append(
            {
                "t_kill": kill["t"],
                "pid": claim.pid,
                "job": claim.job,
                "fence": claim.fence,
                "phase": kill["phase"],
                # None: nobody had to, its outcome was in the file; or nobody did, says P18.
                "t_reclaim": min(later, default=None),
                "peers_idle": kill["idle_peers"] > 0,
            }
        )
    log.close()


def _ended(store: Store, path: Path) -> Iterator[tuple[str, int]]:
    """Yield the leases whose end the queue acknowledged."""
    asked: dict[int, tuple[str, int]] = {}
    for _, record in store.read(path):
        if record is None or record["f"] not in ENDING:
            continue
        if record["type"] == "invoke":
            asked[record["n"]] = (str(record["job"]), record["fence"])
        elif record["type"] == "ok" and record["n"] in asked:
            yield asked[record["n"]]
