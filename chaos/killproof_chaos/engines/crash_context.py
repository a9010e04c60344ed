"""What a process of a point has in hand: sessions that record, the audit in the file, an end."""

import os
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crash_process import environment_of
from killproof_chaos.engines.crash_scenarios import Context
from killproof_chaos.engines.crash_session import Session, is_definite
from killproof_chaos.engines.disk_client import database_name
from killproof_chaos.engines.finish import EFFECT_TABLE
from killproof_chaos.recording import open_recorder
from killproof_evidence.audit import TABLE, install_audit
from killproof_evidence.store import Store

MEMO: Final = "memo"


def context_of(target: Any, store: Store) -> Context:
    """Return what a process of a scenario works with, and point its records at the store."""
    os.environ.update(environment_of(store))
    recorders: dict[str, Any] = {}

    def open_session(name: str) -> Session:
        if name not in recorders:
            recorders[name] = open_recorder(name, is_definite)
        session: Session = target.steps(store.db, recorders[name])
        if memo := context.memo.get("ids"):
            session.ids = dict(memo)
        return session

    context = Context(open=open_session, store=store)
    path = store.path / MEMO
    if path.exists():
        context.memo = pickle.loads(path.read_bytes())
    context.memo["recorders"] = recorders
    return context


def keep_memo(context: Context) -> None:
    """Hand on what `prepare` has left, to the processes of the points."""
    memo = {name: value for name, value in context.memo.items() if name != "recorders"}
    (context.store.path / MEMO).write_bytes(pickle.dumps(memo))


def end(context: Context) -> None:
    """Close what is open, and say that this process ends in order."""
    for session in (context.memo.pop("other", None), context.current):
        if session is not None:
            session.close()
    for recorder in context.memo["recorders"].values():
        recorder.close()


def prepare_audit(target: Any, place: Path) -> None:
    """Put the audit and the table of effects into the file, if they are not there."""
    if target.audit is None:
        return
    database = place / database_name(target, place)
    with closing(sqlite3.connect(database)) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        if "chaos_effect" not in names:
            db.execute(EFFECT_TABLE)
            db.commit()
    if TABLE not in names:
        install_audit(database, target.audit)
