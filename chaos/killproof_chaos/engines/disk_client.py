"""The processes of a recorded run, forked from the warm server, which runs under the shim.

One makes the queue, so that its first open is in the recording too; players put jobs in, as fast as
the queue answers; a further program checkpoints: it copies the log back and lets it start anew,
which a queue with a large log would hardly do within a run of a second. It is never PASSIVE, and
never at synchronous=OFF. The workers are the target's own.
"""

import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from killproof import Host, LeaseLost
from killproof_chaos import hook
from killproof_chaos.engines import roles
from killproof_chaos.engines.finish import EFFECT_TABLE
from killproof_chaos.recording import Recorder, open_recorder, process_name
from killproof_chaos.shim.notes import Shim
from killproof_chaos.workload import Job, Operation, options_of
from killproof_evidence.evidence import payload_digest
from killproof_evidence.store import Store
from killproof_evidence.target import Client, Definite, Target

#: The note that stands where the queue has been made: no cut before it takes anything.
PREPARED_NOTE: Final = b'{"f": "prepared"}'
#: The note that stands where nobody was alive, and the files were copied.
COPIED: Final = "copied"
#: Beside each player's list of operations, in the store.
OPERATIONS: Final = "operations-{}.json"
CHECKPOINT_SECONDS: Final = 0.01
#: Without work the first worker would take all jobs while the others still sleep.
WORK: Final = "sleep:0.003"
#: Between two operations of a player, for the same reason.
THINK_SECONDS: Final = 0.002
#: A job is dead a few milliseconds after its last operation, or after seconds where its worker
#: first starts an interpreter. Who replays it looks ever more seldom, for so long in all.
REPLAY_SECONDS: Final = (0.02, 0.5)
REPLAY_SECONDS_MAX: Final = 12.0
#: Each round is a dozen answers: enough of them, and the log stays small.
HOLDS_MAX: Final = 12
HOLD_EVERY_SECONDS: Final = 0.02
SNOOZE_SECONDS: Final = 0.05
MODES: Final = ("RESTART", "FULL", "TRUNCATE")
#: How long a checkpoint waits for the write lock; a busy one is tried again.
LOCK_SECONDS: Final = 1.0


def operations(
    seed: int,
    players: int,
    jobs: int,
    *,
    cancels: bool,
    replays: bool,
    tables: bool,
    fit: Callable[[Job], Job] = lambda job: job,
) -> list[list[Operation]]:
    """Return what each player does, the same for the same seed.

    Every kind of acknowledgement occurs: plain jobs, jobs whose effect is a row, keys that two
    players enqueue at once, failures that retry or are final, jobs that are put off, cancelled
    ones, and dead letters that are replayed.

    Args:
        seed: decides everything.
        players: among how many the jobs are dealt.
        jobs: so many in all.
        cancels: whether the target can cancel.
        replays: whether it can replay.
        tables: whether effects can be rows of a table in the transaction of the ack.
        fit: takes from each job what the queue has not.
    """
    source = random.Random(f"disk {seed}")
    lists: list[list[Operation]] = [[] for _ in range(players)]
    for number in range(jobs):
        mine = lists[number % players]
        job = fit(_job(source, number, jobs, tables=tables))
        enqueue = Operation(f="enqueue", at_ms=0, job=job)
        if job.key is not None:
            lists[(number + 1) % players].append(enqueue)
        mine.append(enqueue)
        if cancels and number % 10 == 5:
            later = Job(id=f"c{number}", kind=job.kind, delay_ms=60_000, body_bytes=20)
            mine.append(Operation(f="enqueue", at_ms=0, job=later))
            mine.append(Operation(f="cancel", at_ms=0, of=later.id))
    if replays:
        for mine in lists:
            dead = [op.job.id for op in mine if op.job and op.job.script == ("permanent",)]
            mine += [Operation(f="replay", at_ms=0, of=name) for name in dead[:2]]
    return lists


def _job(source: random.Random, number: int, jobs: int, *, tables: bool) -> Job:
    """Return a job; what a run must see comes by number, so that a short one sees it too."""
    # Dead letters late: each image that holds one costs a snapshot of all its jobs.
    final = number % 3 == 0 and number >= jobs * 3 // 4
    script = ("permanent",) if final else ("raise", WORK) if number % 13 == 3 else (WORK,)
    return Job(
        id=f"j{number}",
        kind=source.choice(("report", "webhook")),
        priority=source.choice((2, 5, 5, 7)),
        script=script,
        sink="table" if tables and (source.random() < 0.4 or number % 5 == 0) else "log",
        snooze=number % 17 == 7,
        body_bytes=source.choice((20, 80, 400)),
        key=f"key-{number}" if number % 7 == 2 else None,
    )


def write_operations(store: Store, name: str, mine: Iterable[Operation]) -> None:
    """Write a player's list into the store, for it and each of its later lives."""
    text = json.dumps([asdict(operation) for operation in mine], ensure_ascii=False)
    (store.path / OPERATIONS.format(name)).write_text(text, encoding="utf-8")


def prepare(target: Target, place: Path, told: Path) -> None:
    """Make the queue, and the table of effects in its database; say so in the log of the disk.

    Args:
        target: whose queue it is.
        place: the folder, empty.
        told: where the database's name is written to.
    """
    target.prepare(place)
    name = database_name(target, place)
    if target.contract.promised("P6") == "transaction":
        add_effects(place / name)
    Shim().note(PREPARED_NOTE)
    roles.write_whole(told, {"database": name})


def add_effects(database: Path) -> None:
    """Make the table of effects, durably, unless it is there."""
    with closing(sqlite3.connect(database, timeout=LOCK_SECONDS)) as db:
        db.execute("PRAGMA synchronous = EXTRA")  # The journal's name as well, in delete mode.
        with db:
            db.execute(EFFECT_TABLE.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1))


def database_name(target: Target, place: Path) -> str:
    """Return the name of the database in this folder: the target's word, or the first that is.

    Only for a process that has it not open.

    Raises:
        ValueError: the target made none.
    """
    named = getattr(target, "database", None)
    if named is not None:
        return str(named)
    for path in sorted(place.rglob("*")):
        if path.is_file() and path.read_bytes().startswith(b"SQLite format 3\0"):
            return str(path.relative_to(place))
    raise ValueError(f"{target.name} made no SQLite file: this engine has nothing to cut")


def mark(number: int) -> None:
    """Put a mark into the log of the disk: nobody else is alive."""
    Shim().note(json.dumps({"f": COPIED, "number": number}).encode())


def play(target: Target, place: Path, store: Store, name: str) -> None:
    """Play this player's operations, from where its last life was killed."""
    stopped = roles.stop_on_sigterm()
    text = (store.path / OPERATIONS.format(name)).read_text(encoding="utf-8")
    mine = [_operation(found) for found in json.loads(text)]
    recorder = open_recorder(process_name())
    ids, _ = roles.known_ids(store, name)
    known = options_of(target.contract)
    with closing(target.client(place)) as client:
        hook.ready()
        while hook.is_held() and not stopped.wait(roles.HOLD_SECONDS):
            pass
        for number in range(hook.progress(), len(mine)):
            if stopped.wait(THINK_SECONDS):
                break
            hook.set_progress(number + 1)
            operation = mine[number]
            if operation.f == "replay":
                _replay(client, recorder, ids.get(str(operation.of)), stopped)
            else:
                roles.perform(client, recorder, operation, ids, known)
    recorder.close()


def _operation(found: dict[str, Any]) -> Operation:
    job = found["job"]
    if job is not None:
        job = Job(**{**job, "script": tuple(job["script"])})
    return Operation(**{**found, "job": job})


def _replay(client: Client, recorder: Recorder, known: str | None, stopped: roles.Stop) -> None:
    """Replay a job once it is dead; one that a killed life enqueued unanswered is nobody's."""
    if known is None:
        return
    pause, longest = REPLAY_SECONDS
    waited = 0.0
    while waited < REPLAY_SECONDS_MAX:
        try:
            moved = recorder.call(
                "replay",
                lambda: client.replay(int(known) if known.isdecimal() else known),
                job=known,
                told=lambda result: {"value": result},
            )
        except Definite:  # The obligation says that no job was replayed.
            return
        if moved or stopped.wait(pause):
            return
        waited += pause
        pause = min(2 * pause, longest)


def hosts_queue(target: Target) -> bool:
    """Say whether the target opens a whole `killproof.Queue` on any host."""
    return bool(getattr(target, "hosts_queue", False))


def hold(target: Any, place: Path) -> None:
    """Claim jobs and give them back, and read: the answers that a worker hardly ever gets.

    Enqueue two at once; claim, extend, release or snooze; show the lease once more and be refused;
    read a job of one's own, and the newest of somebody else, whose commit may be under way.
    """
    stopped = roles.stop_on_sigterm()
    shim = Shim()

    def tell(f: str, job: int, **facts: object) -> None:
        shim.note(json.dumps({"f": f, "job": job} | facts).encode())

    def look(queue: Any, job: int) -> None:
        found = queue.get(job)
        if found is not None:
            tell("get", job, fence=found.fence, value={"state": found.state})

    number = newest = 0
    with closing(target.open(place, Host())) as queue:
        hook.ready()
        while hook.is_held() and not stopped.wait(roles.HOLD_SECONDS):
            pass
        while number < HOLDS_MAX and not stopped.wait(HOLD_EVERY_SECONDS):
            number += 1
            for id_, asked in _two(queue, number, os.getpid()):
                newest = max(newest, id_)
                tell("enqueue", id_, asked=asked)
            look(queue, newest + 1)
            lease = queue.claim()
            if lease is not None:
                tell("claim", lease.job.id, fence=lease.fence)
                _give_back(queue, lease, number, tell)
                look(queue, lease.job.id)
            look(queue, newest + 1)
        while not stopped.wait(1.0):
            pass


def _two(queue: Any, number: int, pid: int) -> list[tuple[int, dict[str, Any]]]:
    """Enqueue two jobs in one call; return their ids, and each as it was asked for."""
    jobs = [
        Job(id=f"h{pid}-{number}{part}", kind="report", script=(WORK,), body_bytes=20)
        for part in "ab"
    ]
    ids = queue.enqueue_many([(job.kind, job.payload()) for job in jobs])
    asked = [job.summary() | {"digest": payload_digest(job.payload())} for job in jobs]
    return list(zip(ids, asked, strict=True))


def _give_back(queue: Any, lease: Any, number: int, tell: Callable[..., None]) -> None:
    facts = {"job": lease.job.id, "fence": lease.fence}
    with suppress(LeaseLost):  # Of a lease that a peer has taken back nothing is told.
        queue.extend(lease)
        tell("extend", **facts)
        if number % 2:
            queue.release(lease)
            tell("release", **facts)
        else:
            queue.snooze(lease, SNOOZE_SECONDS)
            tell("snooze", **facts)
    try:
        queue.ack(lease)
    except LeaseLost:
        tell("refused", **facts)


def checkpoint(database: Path) -> None:
    """Checkpoint again and again until SIGTERM, each time in another mode."""
    stopped = roles.stop_on_sigterm()
    number = 0
    with closing(sqlite3.connect(database, timeout=LOCK_SECONDS, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = FULL")
        hook.ready()
        while not stopped.wait(CHECKPOINT_SECONDS):
            db.execute(f"PRAGMA wal_checkpoint({MODES[number % len(MODES)]})").fetchall()
            number += 1
