"""Before the first process and after the last: make the file, and turn it into evidence.

Only here does the supervisor open the database, and only while nobody else lives.
"""

import json
import shutil
import sqlite3
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos import coverage, mix
from killproof_chaos.plan import Options, Plan
from killproof_evidence.audit import dump_audit, install_audit
from killproof_evidence.backups import BackupsUnread, read_backups
from killproof_evidence.environment import environment
from killproof_evidence.evidence import OF_THE_FILE
from killproof_evidence.store import Store
from killproof_evidence.target import Target, TargetFailed, rows_of
from killproof_evidence.wall_clock import WallClock

#: Where a target puts the copies that it is asked for, below the folder of the queue.
BACKUPS: Final = "backups"
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
#: What keeps an idle worker from taking over.
STRIKES: Final = frozenset(
    {"kill", "pause", "term", "handler-exit", "handler-abort", "io", "io-end"}
)


def prepare(target: Target, place: Path, database: Path, plan: Plan) -> None:
    """Make the empty queue, the audit's triggers and the table of effects."""
    place.mkdir()
    jobs = [job for ops in plan.operations for op in ops for job in (op.job, *op.steps)]
    kinds = sorted({job.kind for job in jobs if job is not None})
    (place / "kinds.json").write_text(json.dumps(kinds), encoding="utf-8")
    mix.write(place, plan.capabilities)
    target.prepare(place)
    if target.audit is not None:
        install_audit(database, target.audit, mix.runs_of(target, plan.capabilities))
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
    shutil.copytree(place, store.db, ignore=_left_out, dirs_exist_ok=True)
    copy = store.db / database.name
    durability = None
    try:
        if target.audit is not None:
            dump_audit(copy, target.audit, store.audit, mix.runs_of(target, mix.read(store.db)))
            _dump_effects(copy, store)
            durability = _durability(copy)
        store.write_snapshot(rows_of(target, store.db))
    except (sqlite3.DatabaseError, TargetFailed) as error:
        # A file that SQLite refuses is evidence too: P16 looks at the copy. What is not in the
        # store for it must not look like jobs that are gone.
        run["problems"].append(f"the file could not be read at the end: {error}")
        run["unread"] = OF_THE_FILE
    _read_backups(target, store, place, copy, run)
    _write_recovery(store)
    shutil.rmtree(place)
    found = environment(store.path, durability=durability)
    run["environment"] = found
    run["counts"] = _counts(store)
    run["files"] = store.sizes()
    run["obligations"]["hit"] = coverage.hit(store, options, run)
    store.write_run(run)
    return run


def _left_out(_folder: str, names: list[str]) -> set[str]:
    """Leave out what may be large; of the backups the store keeps the facts."""
    return {BACKUPS} & set(names)


def _read_backups(
    target: Target, store: Store, place: Path, original: Path, run: dict[str, Any]
) -> None:
    """Write what each backup that its maker was told of is, and what it holds."""
    made = [
        record["value"]["backup"]
        for path in store.history_files()
        for _, record in store.read(path)
        if record is not None and record["f"] == "backup" and record["type"] == "ok"
    ]
    if not made:
        return
    log = store.writer(store.backups)
    further: Callable[[Path], list[str]] | None = getattr(target, "backup_problems", None)
    copies = [(name, place / name) for name in made]
    runs = mix.runs_of(target, mix.read(store.db))
    try:
        for facts in read_backups(original, target.audit, copies, runs):
            if further is not None and facts.get("opens"):
                facts["problems"] += further(place / facts["backup"])
            log.append(facts)
    except BackupsUnread as error:
        run["problems"].append(f"the backups could not be read: {error}")
    finally:
        log.close()


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
    claims = [claim for path in store.history_files() for claim in _claims(store, path)]
    ended = {lease for path in store.history_files() for lease in _ended(store, path)}
    faults = [record for _, record in store.read(store.nemesis) if record is not None]
    kills = {record["pid"]: record for record in faults if record["fault"] == "kill"}
    by_job: dict[str, list[_Claim]] = {}
    for claim in claims:
        by_job.setdefault(claim.job, []).append(claim)
    turns = _Turns(store)
    log = store.writer(store.recovery)
    for claim in claims:
        kill = kills.get(claim.pid)
        if kill is None or (claim.job, claim.fence) in ended:
            continue
        later = [c for c in by_job[claim.job] if c.fence > claim.fence and c.t > kill["t"]]
        after = min(later, key=lambda c: c.t, default=None)
        # None: nobody had to, its outcome was in the file; or nobody did, says P18.
        t_reclaim = None if after is None else after.t
        waited = after is not None and turns.waited(after)
        t_taken_back = turns.taken_back(after) if after is not None and waited else None
        if t_reclaim is not None and t_taken_back is not None:
            # It was there again, and others went first: the recovery ended when it was there.
            t_reclaim = max(kill["t"], min(t_reclaim, t_taken_back))
        log.append(
            {
                "t_kill": kill["t"],
                "pid": claim.pid,
                "job": claim.job,
                "fence": claim.fence,
                "phase": kill["phase"],
                "t_reclaim": t_reclaim,
                "peers_idle": (not waited or t_taken_back is not None)
                and _was_spared(kill, t_reclaim, faults),
            }
        )
    log.close()


class _Turns:
    """The order of the claims, as the audit has it: did a job wait for others that came first?

    Once taken back, a job of low priority waits behind the urgent ones: that is P11, not P18.  What
    P18 is about is then the moment of taking back, which the audit has by the wall clock.
    """

    def __init__(self, store: Store) -> None:
        self._claimed: list[int] = []  # In commit order.
        self._at: dict[tuple[str, int | None], tuple[int, dict[str, Any] | None]] = {}
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._clock = WallClock.of_records(r for _, r in store.read(store.nemesis) if r is not None)
        free: dict[str, dict[str, Any]] = {}
        for _, change in store.read(store.audit):
            if change is None or "job" not in change:
                continue
            job = str(change["job"])
            if change["new"] == "available":
                free[job] = change
            elif change["new"] == "leased":
                self._claimed.append(change["seq"])
                self._at[job, change.get("fence")] = change["seq"], free.pop(job, None)

    def waited(self, claim: _Claim) -> bool:
        """Say whether others were claimed between the job's being there and its claim."""
        claimed, free = self._at.get((claim.job, claim.fence), (0, None))
        if free is None:
            return False
        return bisect_left(self._claimed, claimed) > bisect_left(self._claimed, free["seq"])

    def taken_back(self, claim: _Claim) -> int | None:
        """Return when the job was there again before this claim, in ns of the kills' clock."""
        _, free = self._at.get((claim.job, claim.fence), (0, None))
        if free is None or free.get("t_ms") is None:
            return None
        return self._clock.true_ms(int(free["t_ms"])) * 1_000_000 - self._offset_ns


def _was_spared(kill: dict[str, Any], until: int | None, faults: list[dict[str, Any]]) -> bool:
    """Say whether a peer was idle at the kill and was itself left alone until the re-claim."""
    struck = {
        fault.get("process")
        for fault in faults
        if fault["fault"] in STRIKES and kill["t"] <= fault["t"] <= (until or fault["t"])
    }
    return any(peer not in struck for peer in kill["idle_peers"])


def _claims(store: Store, path: Path) -> Iterator[_Claim]:
    """Yield the claims that a process was told of."""
    for _, record in store.read(path):
        if record is None or record["f"] != "claim" or record.get("fence") is None:
            continue
        if record["type"] == "ok":
            yield _Claim(
                pid=record["pid"], job=str(record["job"]), fence=record["fence"], t=record["t"]
            )


def _ended(store: Store, path: Path) -> Iterator[tuple[str, int]]:
    """Yield the leases whose end the queue acknowledged, where it has tokens to tell them by."""
    asked: dict[int, tuple[str, int]] = {}
    for _, record in store.read(path):
        if record is None or record["f"] not in ENDING:
            continue
        if record["type"] == "invoke" and record.get("fence") is not None:
            asked[record["n"]] = (str(record["job"]), record["fence"])
        elif record["type"] == "ok" and record["n"] in asked:
            yield asked[record["n"]]
