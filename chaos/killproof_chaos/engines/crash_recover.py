"""The process that comes after a death: it opens the queue, takes back, takes new jobs, finishes.

Nothing is wrong with its disk and nobody kills it. So whatever the target raises here is a broken
promise: P16 where the file does not open, P17 where its jobs do not end.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines import crash_life, crash_state
from killproof_chaos.engines.crash_context import context_of, end, prepare_audit
from killproof_chaos.engines.crash_process import Budget, TargetFailed, asking, environment_of
from killproof_chaos.engines.crash_scenarios import DOOMED, KEYED, LATER, Context
from killproof_chaos.engines.crash_session import settle
from killproof_chaos.engines.disk_client import database_name
from killproof_evidence.contract import TERMINAL
from killproof_evidence.store import Store, write_json

RECOVERED: Final = "recovered.json"
#: How long it tries to finish all jobs, in passes of its loop.
RECOVER_SECONDS: Final = 6.0
PASS_SECONDS_MAX: Final = 0.1
IDLE_SECONDS: Final = 0.01
#: The exit status of a process that the target refused something.
REFUSED: Final = 5


def recover(
    target: Any, store: Store, *, life: bool, finish: bool, before: crash_state.State
) -> int:
    """Be that process.

    Args:
        target: the queue.
        store: of the point.
        life: the target takes no single steps.
        finish: also work on the jobs, until all have ended; else somebody else does.
        before: the state when the operation began.
    """
    os.environ.update(environment_of(store))
    told: dict[str, Any] = {}
    try:
        with asking("repair"):
            told["repaired"] = _repair(target, store.db)
        if life:
            crash_life.produce_again(target, store)
        else:
            _go_on(target, store, told, finish=finish, before=before)
    except TargetFailed as failed:
        told |= {"failed_in": failed.doing, "failure": str(failed)}
    write_json(store.path / RECOVERED, told)
    return REFUSED if "failure" in told else 0


def _go_on(
    target: Any, store: Store, told: dict[str, Any], *, finish: bool, before: crash_state.State
) -> None:
    context = context_of(target, store)
    with asking("open"):
        session = context.current = context.open("recovery")
    prepare_audit(target, store.db)
    with asking("read"):
        state = crash_state.of_session(session, target.audit)
    told["state"] = crash_state.signature(before, state)
    with asking("enqueue"):
        session.enqueue(KEYED)
        session.enqueue(KEYED)
    if session.reaps:
        with asking("reap"):
            session.reap()
    with asking("enqueue"):
        session.enqueue(LATER)
        session.enqueue(DOOMED)
    with asking("unhold"):
        session.tidy()
    if finish:
        _work(target, context, store.db)
    with asking("close"):
        end(context)


def _work(target: Any, context: Context, place: Path) -> None:
    """Claim and finish until all jobs have ended, or it has had its time."""
    session = context.session
    budget = Budget(RECOVER_SECONDS, PASS_SECONDS_MAX)
    ended = everything_ended(target, place)
    while budget.is_left():
        with asking("claim"):
            lease = session.claim()
        if lease is not None:
            failure = session.play(lease)
            with asking("ack or nack"):
                settle(session, lease, failure)
        elif ended():
            break
        else:
            time.sleep(IDLE_SECONDS)


def everything_ended(target: Any, place: Path) -> Callable[[], bool]:
    """Return the question whether all jobs have ended, asked of the target's own table."""
    mapping = target.audit
    database = place / database_name(target, place)
    words = [theirs for theirs, ours in mapping.states.items() if ours in TERMINAL]
    words = words or sorted(TERMINAL)

    def ask() -> bool:
        return not _living(database, mapping.table, mapping.state, words)

    return ask


def _living(database: Path, table: str, state: str, ended: Sequence[str]) -> int:
    """Count the jobs that have not ended."""
    marks = ", ".join("?" * len(ended))
    query = f"SELECT count(*) FROM {table} WHERE {state} NOT IN ({marks})"  # noqa: S608 - names
    with closing(sqlite3.connect(database)) as db:
        return int(db.execute(query, tuple(ended)).fetchone()[0])


def _repair(target: Any, place: Path) -> bool:
    """Do what the error of a stopped file tells its owner to do; False: there was no need."""
    stopped: Callable[[Path], bool] | None = getattr(target, "stopped", None)
    if stopped is None or not stopped(place):
        return False
    target.repair(place)
    return True
