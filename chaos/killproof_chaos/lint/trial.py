"""A real small trial: prepare, enqueue, one worker until all is done, SIGTERM, snapshot.

It runs in a process of its own, for the target's code may hang, print, exit or abort. What happens
goes to a file, a line for each step at its begin and at its end: the last line that has no end says
where it stopped.

    python -m killproof_chaos.lint.trial TARGET STORE SECONDS
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from killproof_chaos import targets
from killproof_chaos.workload import OPTIONS_ALL
from killproof_evidence.audit import audit_records, dump_audit, install_audit
from killproof_evidence.contract import TERMINAL
from killproof_evidence.evidence import payload_digest
from killproof_evidence.lifetime import die_with_parent, end_all_with, has_ended
from killproof_evidence.records import read_records
from killproof_evidence.store import Store
from killproof_evidence.target import AuditMapping, Client, Definite, Target

STEPS: Final = "steps.jsonl"
PLACE: Final = "place"
WORKER_LOG: Final = "worker.log"
TRIAL_LOG: Final = "trial.log"
#: Before the first step, and after the last: nothing is left open between the others.
LOAD: Final = "load"
DONE: Final = "done"
JOBS: Final = 3
#: What each option is asked as: values that a correct queue takes, and that end the job at once.
ASKED: Final = {"priority": 3, "delay": 0.02, "key": "lint", "max_attempts": 3}
#: Quotes, an accent, four bytes of UTF-8 and a line's end: what a worker in shell gets wrong.
BODY: Final = 'it\'s "so" é 🙂\n'
#: Without an audit: so long after the last effect a worker has surely told its queue.
SETTLE_SECONDS: Final = 1.0
#: For the end after SIGTERM: the trial's handlers are over at once, so the rest is the worker's.
STOP_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.02


@dataclass(slots=True, kw_only=True)
class Trial:
    """What happened, as the lines tell it."""

    facts: dict[str, Any] = field(default_factory=dict)  #: by step
    stopped_in: str | None = None  #: the step that never ended
    failure: str | None = None  #: what it raised


def perform(name: str, folder: Path, seconds: float) -> Trial:
    """Run the trial in a process of its own; end it, if it must be, and all that it started.

    Args:
        name: of the target, as `targets.find` takes it.
        folder: for its store; it must not exist.
        seconds: that the whole trial may take.
    """
    store = Store.create(folder)
    argv = [sys.executable, "-m", "killproof_chaos.lint.trial", name, str(folder), str(seconds)]
    with open(folder / TRIAL_LOG, "wb") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        try:
            has_ended(process.pid, seconds)
        finally:
            # Whatever it has left behind as well. Not reaped yet: the number is still its own.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            end_all_with("KILLPROOF_EFFECTS", str(store.effects.resolve()))
    return _read(store.path / STEPS)


def _read(path: Path) -> Trial:
    trial = Trial(stopped_in=LOAD)
    for _, record in read_records(path) if path.exists() else ():
        if record is None:
            continue
        if "begin" in record:
            trial.stopped_in = record["begin"]
        elif "failed" in record:
            trial.failure = record["failed"]
        else:
            trial.facts[record["end"]] = record["facts"]
            trial.stopped_in = None
    if trial.stopped_in is None and DONE not in trial.facts:
        trial.stopped_in = DONE
    return trial


class _Steps:
    """Writes the lines."""

    def __init__(self, store: Store) -> None:
        self._log = store.writer(store.path / STEPS)

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Begin a step; what is put into the record stands at its end."""
        self._log.append({"begin": name})
        facts: dict[str, Any] = {}
        try:
            yield facts
        except BaseException as error:
            self._log.append({"failed": f"{type(error).__name__}: {error}"})
            raise SystemExit(1) from error
        self._log.append({"end": name, "facts": facts})


def main() -> None:
    """Be the process of the trial."""
    name, folder, seconds = sys.argv[1:]
    deadline = time.monotonic() + float(seconds)
    store = Store(folder)
    steps = _Steps(store)
    place = store.path.resolve() / PLACE
    place.mkdir()
    target = targets.find(name)
    os.environ.update(
        KILLPROOF_STORE=str(store.path.resolve()),
        KILLPROOF_EFFECTS=str(store.effects.resolve()),
        KILLPROOF_SYNC="killproof_chaos.hook:hook",
        KILLPROOF_PROCESS="w1.1",
    )
    database = place / getattr(target, "database", "queue.db")
    with steps.step("prepare"):
        target.prepare(place)
    if target.audit is not None:
        with steps.step("audit"):
            _install(database, target.audit)
    expected = _produce(steps, target, place)
    _work(steps, target, place, store, expected, deadline)
    with steps.step("snapshot") as facts:
        facts["rows"] = [_row(row) for row in target.snapshot(place)]
    if target.audit is not None:
        with steps.step("changes"):
            dump_audit(database, target.audit, store.audit)
    with steps.step(DONE):
        pass


def _install(database: Path, audit: AuditMapping) -> None:
    """Install the audit; what SQLite finds missing is told with what there is."""
    try:
        install_audit(database, audit)
    except sqlite3.Error as error:
        with closing(sqlite3.connect(database)) as db:
            there = [name for (name,) in db.execute("SELECT name FROM sqlite_schema LIMIT 20")]
        has = ", ".join(there) or "nothing: is `database` the file that prepare makes"
        raise sqlite3.OperationalError(f"{error}; {database.name} has {has}") from error


def _produce(steps: _Steps, target: Target, place: Path) -> set[str]:
    """Put the jobs in; return the harness's names of those that are to run."""
    with steps.step("client"):
        client = target.client(place)
    options = target.contract.parameters.get("options", OPTIONS_ALL)
    expected: set[str] = set()
    with steps.step("enqueue") as facts:
        for number in range(JOBS):
            facts[f"j{number}"] = _enqueue(client, f"j{number}", {})
        for option, value in ASKED.items():
            if option in options:
                facts[option] = _enqueue(client, option, {option: value})
        expected |= {name for name, told in facts.items() if "id" in told}
        told_id = next((told["id"] for told in facts.values() if "id" in told), None)
    if target.contract.promised("P15"):
        with steps.step("cancel") as facts:
            facts.update(_cancel(client, "delay" in options))
            if not facts.get("cancelled"):
                expected |= {"cancelled"} if "id" in facts else set()
    if target.contract.promised("P13") and expected:
        with steps.step("replay") as facts:
            facts.update(_replay(client, told_id))
    with steps.step("close"):
        client.close()
    return expected


def _enqueue(client: Client, name: str, options: dict[str, Any]) -> dict[str, Any]:
    payload = {"id": name, "script": ["ok"], "sink": "log", "body": BODY}
    try:
        found = client.enqueue("report", payload, **options)
    except Exception as error:
        word = "refused" if isinstance(error, Definite) else "raised"
        return {word: f"{type(error).__name__}: {error}"}
    is_id = isinstance(found, int | str) and not isinstance(found, bool)
    return {"id": found} if is_id else {"no_id": repr(found)}


def _cancel(client: Client, has_delay: bool) -> dict[str, Any]:
    told = _enqueue(client, "cancelled", {"delay": 600.0} if has_delay else {})
    if "id" in told:
        try:
            told["cancelled"] = bool(client.cancel(told["id"]))
        except Exception as error:
            told["cancel_raised"] = f"{type(error).__name__}: {error}"
    return told


def _replay(client: Client, id_: Any) -> dict[str, Any]:
    """Ask for a job that is not dead: the answer is false, and no refusal."""
    try:
        return {"replayed": bool(client.replay(id_))}
    except Exception as error:
        return {"replay_raised": f"{type(error).__name__}: {error}"}


def _work(
    steps: _Steps, target: Target, place: Path, store: Store, expected: set[str], deadline: float
) -> None:
    """Have one worker do them all, and tell it to stop."""
    # The last quarter is for the end: who waits for a job that never comes must still be stopped.
    until = deadline - (deadline - time.monotonic()) / 4
    database = place / getattr(target, "database", "queue.db")
    with steps.step("start"), open(store.path / WORKER_LOG, "wb") as log:
        argv = target.worker_argv(place)
        worker = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    with steps.step("work") as facts:
        began = time.monotonic()
        rest = _Rest(database, target)
        _wait(
            lambda: expected <= ended_in(store) or worker.poll() is not None or rest.is_final(),
            until,
        )
        facts["seconds"] = round(time.monotonic() - began, 3)
        facts["ended_early"] = worker.poll()
        if worker.poll() is None and expected <= ended_in(store):
            settled = time.monotonic() + SETTLE_SECONDS
            if target.audit is not None:
                _wait(lambda: _is_settled(database, target), min(until, settled))
            else:
                time.sleep(SETTLE_SECONDS)
    with steps.step("stop") as facts:
        began = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        try:
            left = max(1.0, deadline - time.monotonic() - 1.0)
            facts["code"] = worker.wait(min(left, STOP_SECONDS))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
            facts["code"] = None
        facts["seconds"] = round(time.monotonic() - began, 3)


def ended_in(store: Store) -> set[str]:
    """Return the harness's names of the jobs whose handler came to its end."""
    return {str(x["job"]) for x in effects_in(store) if x.get("what") == "end"}


def effects_in(store: Store) -> list[dict[str, Any]]:
    """Return all records of the handlers."""
    return [
        record
        for path in store.effect_files()
        for _, record in read_records(path)
        if record is not None
    ]


class _Rest:
    """Sees that all jobs have ended, whatever their handlers said: there is nothing to wait for."""

    def __init__(self, database: Path, target: Target) -> None:
        self._database, self._target = database, target
        self._next = time.monotonic() + SETTLE_SECONDS
        self._was_settled = False

    def is_final(self) -> bool:
        """Say whether it was so at two looks, a second apart; without an audit nobody can tell."""
        if self._target.audit is None or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + SETTLE_SECONDS
        before, self._was_settled = self._was_settled, _is_settled(self._database, self._target)
        return before and self._was_settled


def _is_settled(database: Path, target: Target) -> bool:
    """Say whether the audit has seen the end of each job."""
    assert target.audit is not None
    try:
        with closing(sqlite3.connect(database)) as db:
            last = {x["job"]: x["new"] for x in audit_records(db, target.audit) if "job" in x}
    except sqlite3.Error:
        return False
    return bool(last) and all(state is None or state in TERMINAL for state in last.values())


def _wait(done: Callable[[], bool], until: float) -> None:
    while not done() and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def _row(row: Any) -> dict[str, Any]:
    """Return what the rules look at, in a form that JSON has."""
    payload = row.payload
    told = ("id", "state", "attempts", "fence", "error")
    facts = {name: _plain(getattr(row, name)) for name in told}
    name = payload.get("id") if isinstance(payload, dict) else None
    return facts | {
        "name": name,
        "has_payload": payload is not None,
        "digest": payload_digest(payload) if isinstance(payload, dict) else None,
    }


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | str) else repr(value)


if __name__ == "__main__":
    main()
