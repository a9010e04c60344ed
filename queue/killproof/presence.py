"""Who is there: the workers of a file, whether each lives, and the kinds it has handlers for.

The core knows its workers by what a death looks like and asks nothing else of them.  The kinds are
for people ("no worker handles this"), so they lie in a table of their own, made at its first use.
A row of it goes with the worker's row.  Nothing is decided by it: a worker whose kinds are not
written down works all the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

from killproof.core.database import Transaction
from killproof.core.errors import FileRefused
from killproof.core.host import Liveness
from killproof.core.jobs import Queue

SCHEMA_VERSION: Final = 1
#: Workers that are looked at: far more than one host runs.
WORKERS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """One worker, as its rows and the kernel tell."""

    worker: str  #: its identity, 32 hex digits
    pid: int  #: for people; of its own namespace
    lives: bool | None  #: None: nobody can tell from here, its lease decides
    kinds: frozenset[str] | None  #: None: it has not said
    registered_ms: int
    leases: int  #: jobs that it holds


IS_REGISTERED: Final = "SELECT 1 FROM worker WHERE id = :worker"

ANNOUNCE: Final = "INSERT OR IGNORE INTO worker_kind (worker, kind) VALUES (:worker, :kind)"


def announce(queue: Queue, kinds: Iterable[str]) -> None:
    """Write down which kinds the worker behind this object has handlers for.

    To be called after its first claim, which gives it an identity; before that nothing is done.

    Raises:
        FileRefused: the application has a table `worker_kind`; definite.
        KillproofError: as for `Queue.cancel`.
    """
    worker = queue.worker_id
    if worker is None:
        return
    with queue.transaction() as tx:
        if tx.row(IS_REGISTERED, {"worker": worker}) is None:
            return
        _ensure_table(tx)
        for kind in kinds:
            tx.change(ANNOUNCE, {"worker": worker, "kind": kind})


WORKERS: Final = """
    SELECT id, file, byte, pid, registered_ms,
           (SELECT count(*) FROM job WHERE state = 'leased' AND owner = worker.id)
      FROM worker ORDER BY registered_ms, id LIMIT :limit"""

KINDS: Final = "SELECT worker, kind FROM worker_kind"

HAS_KINDS: Final = "SELECT 1 FROM killproof_schema WHERE component = 'presence'"


def workers(queue: Queue, tx: Transaction) -> list[Presence]:
    """Return the workers that are registered in the file, the oldest first.

    A worker that was killed stays registered until another one starts.
    """
    said: dict[str, set[str]] = {}
    if tx.row(HAS_KINDS) is not None:
        for worker, kind in cast(list[tuple[str, str]], tx.rows(KINDS)):
            said.setdefault(worker, set()).add(kind)
    liveness = queue.host.lock.liveness(queue.path)
    try:
        return [
            Presence(
                worker=str(worker),
                pid=cast(int, pid),
                lives=_lives(liveness, str(file), cast(int, byte)),
                kinds=frozenset(said[str(worker)]) if worker in said else None,
                registered_ms=cast(int, registered_ms),
                leases=cast(int, leases),
            )
            for worker, file, byte, pid, registered_ms, leases in tx.rows(
                WORKERS, {"limit": WORKERS_MAX}
            )
        ]
    finally:
        liveness.close()


def _lives(liveness: Liveness, file: str, byte: int) -> bool | None:
    """Say what the kernel knows: a byte of another file, or no locks at all, tell nothing."""
    if not liveness.file or file != liveness.file:
        return None
    return not liveness.is_free(byte)


VERSION: Final = "SELECT version FROM killproof_schema WHERE component = 'presence'"

SET_VERSION: Final = "INSERT INTO killproof_schema VALUES ('presence', :version)"

FIND_TABLE: Final = "SELECT 1 FROM sqlite_schema WHERE lower(name) = 'worker_kind'"

CREATE: Final = """
    CREATE TABLE worker_kind (
        worker TEXT NOT NULL REFERENCES worker (id) ON DELETE CASCADE,
        kind   TEXT NOT NULL,
        PRIMARY KEY (worker, kind)
    ) STRICT, WITHOUT ROWID"""


def _ensure_table(tx: Transaction) -> None:
    version = tx.row(VERSION)
    if version == (SCHEMA_VERSION,):
        return
    if version is not None or tx.row(FIND_TABLE) is not None:
        raise FileRefused(
            f"{tx.path} has a table 'worker_kind' that is not this killproof's: "
            "rename it, or upgrade killproof"
        )
    tx.change(CREATE)
    tx.change(SET_VERSION, {"version": SCHEMA_VERSION})
