"""A lane of the engine `crash`: makes one point after another, each from a fresh copy.

A lane is two processes. The *shimmed* one has imported everything, runs under the shim, holds no
connection, and forks the process that is killed. The *clean* one has no shim: it copies the
template, sets the rule, forks the process that recovers, and judges. Both read one JSON object a
line from stdin and answer with one.

    python -m killproof_chaos.engines.crash_lane lane TARGET TEMPLATES PLACE SUPERVISOR_PID
"""

import json
import os
import pickle
import resource
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crash_points import NOTHING
from killproof_chaos.engines.crash_scenarios import BY_NAME, DOOMED, KEYED, LATER, NEXT, Context
from killproof_chaos.engines.crash_session import (
    Session,
    is_definite,
    is_expected,
    living,
    settle,
)
from killproof_chaos.engines.finish import EFFECT_TABLE
from killproof_chaos.engines.warm import FAILED, die_with_parent
from killproof_chaos.recording import open_recorder
from killproof_chaos.shim.calls import ALL_KINDS, Action
from killproof_chaos.shim.control import Control, Rule
from killproof_chaos.shim.environment import preload_environment
from killproof_chaos.shim.log import Begin, Signal, read_log
from killproof_chaos.shim.notes import Shim
from killproof_chaos.targets import load
from killproof_evidence.audit import TABLE, dump_audit, install_audit
from killproof_evidence.contract import TERMINAL
from killproof_evidence.environment import environment
from killproof_evidence.judge import judge
from killproof_evidence.store import Store, write_json

#: A process that has not ended by then hangs: it is killed, and the point is unknown.
PROCESS_SECONDS: Final = 30.0
#: How long the recovering worker tries to finish all jobs.
RECOVER_SECONDS: Final = 6.0
#: P17 within a run of these: shorter than what the recovering worker tries.
DRAIN_MS: Final = 5_000
IDLE_SECONDS: Final = 0.01
NOT_STRUCK: Final = 9  #: exit status of a process that was to be killed and was not
HUNG: Final = "hung"
TOLD: Final = "told.json"  #: what the caller of a failed call was told
MEMO: Final = "memo"


def fork(body: Callable[[], int], log: Path) -> tuple[int, int | str]:
    """Run the body in a child; return its pid and its wait status, or `HUNG`."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = FAILED
        try:
            die_with_parent(parent)
            output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = body()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    descriptor = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([descriptor], [], [], PROCESS_SECONDS)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        _, status_word = os.waitpid(pid, 0)
        return pid, status_word if ready else HUNG
    finally:
        os.close(descriptor)


def context_of(target: Any, store: Store) -> Context:
    """Return what a process of a scenario works with, and point its records at the store."""
    os.environ["KILLPROOF_STORE"] = str(store.path)
    os.environ["KILLPROOF_EFFECTS"] = str(store.effects)
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


def end(context: Context) -> None:
    """Close what is open, and say that this process ends in order."""
    for session in (context.memo.pop("other", None), context.current):
        if session is not None:
            session.close()
    for recorder in context.memo["recorders"].values():
        recorder.close()


class Shimmed:
    """The process under the shim: forks those that are to be killed."""

    def __init__(self, target: Any) -> None:
        """Serve for this target."""
        self._target = target
        self._shim = Shim()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fork one process and tell how it ended."""
        store = Store(request["store"])
        mode, operation = request["mode"], request["operation"]
        pid, status = fork(lambda: self._live(store, operation, mode), store.path / "child.log")
        return {"pid": pid, "status": status}

    def _live(self, store: Store, operation: str, mode: str) -> int:
        """Be the process: what stands before, the operation, and what comes after if it lives."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        scenario = BY_NAME[operation]
        context = context_of(self._target, store)
        if not scenario.opens:
            context.current = context.open("child")
        if scenario.before is not None:
            scenario.before(context)
        error: Exception | None = None
        answer: object = None
        self._shim.arm()
        try:
            answer = scenario.act(context)
        except Exception as raised:
            error = raised
        finally:
            self._shim.disarm()
        told: dict[str, Any] = {"told": word_of(error), "error": text_of(error)}
        if answer is False:
            told["told"] = NOTHING
        if mode == "count" and context.current is not None and scenario.prepare is not None:
            # Now: the end of this process gives back what it holds, which is a change of its own.
            told["full"] = _changes(context.current)
        if mode == "fault":
            told |= self._next(context)
        write_json(store.path / TOLD, told)
        if mode == "fault":
            os.kill(os.getpid(), signal.SIGKILL)
        elif mode == "count":
            end(context)
            return 0
        return NOT_STRUCK

    def _next(self, context: Context) -> dict[str, str]:
        """Do the next operation of a process that has met an error."""
        try:
            if context.current is None:
                context.current = context.open("child")
            # A file that this process has just made has no audit yet, and a job is to go in.
            _prepare_audit(self._target, context.store.db / self._target.database)
            context.current.enqueue(NEXT)
        except Exception as error:
            return {"next": word_of(error), "next_error": text_of(error)}
        return {"next": "ok", "next_error": ""}


def word_of(error: BaseException | None) -> str:
    """Return what a caller was told, in a word; `raw` is an error that no caller should meet."""
    if error is None:
        return "ok"
    if not is_expected(error):
        return "raw"
    return "definite" if is_definite(error) else "indefinite"


def text_of(error: BaseException | None) -> str:
    """Return the error as its caller sees it."""
    return "" if error is None else f"{type(error).__name__}: {error}"


class Lane:
    """The clean process of a lane."""

    def __init__(self, name: str, templates: Path, place: Path) -> None:
        """Work for the target of this name, in a folder of its own."""
        self._target: Any = load(name)
        self._templates = templates
        self._path = place / "point"
        self._log = place / "calls.log"
        self._place = place
        (self._path / "db").mkdir(parents=True)
        self._control = Control.create(
            place / "control", watch=self._path / "db", log=self._log, record=ALL_KINDS, armed=False
        )
        self._shimmed = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "shimmed", name, str(os.getpid())],
            env=os.environ | preload_environment(self._control),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._environment = environment(place)

    @property
    def _database(self) -> Path:
        return self._path / "db" / str(self._target.database)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make a template or a point."""
        operation, mode = request["operation"], request["mode"]
        if mode == "template":
            return self._make_template(operation)
        store = self._copy(operation)
        self._control.clear_rules()
        os.truncate(self._log, 0)
        if mode != "count":
            self._control.set_rule(
                Rule(
                    action=Action(request["action"]),
                    value=request["value"],
                    first=request["number"],
                )
            )
        began = time.monotonic()
        found = self._ask({"store": str(store.path), "operation": operation, "mode": mode})
        found |= self._seen(found["pid"], mode)
        if not self._is_reached(request, found):
            return found | {"reached": False, "output": self._output(store)}
        found["reached"] = True
        self._record_death(store, found, mode)
        found |= self._recover_and_judge(store, request, mode)
        found["ms"] = round((time.monotonic() - began) * 1_000)
        return found

    def _copy(self, operation: str) -> Store:
        """Put a fresh copy of the template where the shim watches."""
        shutil.rmtree(self._path)
        shutil.copytree(self._templates / operation, self._path)
        return Store(self._path)

    def _make_template(self, operation: str) -> dict[str, Any]:
        """Run what stands before the operation once, in a process that ends in order."""
        template = self._templates / operation
        store = Store.create(template)
        scenario = BY_NAME[operation]

        def body() -> int:
            context = context_of(self._target, store)
            context.current = context.open("setup")
            _prepare_audit(self._target, store.db / self._target.database)
            assert scenario.prepare is not None
            scenario.prepare(context)
            context.memo["ids"] = context.current.ids
            memo = {name: value for name, value in context.memo.items() if name != "recorders"}
            end(context)
            (store.path / MEMO).write_bytes(pickle.dumps(memo))
            return 0

        if scenario.prepare is None:
            return {"made": True}
        _, status = fork(body, store.path / "child.log")
        return {"made": status == 0, "output": self._output(store)}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the process under the shim fork one that lives by the request."""
        assert self._shimmed.stdin is not None
        assert self._shimmed.stdout is not None
        self._shimmed.stdin.write(json.dumps(request).encode() + b"\n")
        self._shimmed.stdin.flush()
        answer: dict[str, Any] = json.loads(self._shimmed.stdout.readline())
        return answer

    def _seen(self, pid: int, mode: str) -> dict[str, Any]:
        """Return what the shared control and the log say of the process."""
        process = self._control.process(pid)
        seen: dict[str, Any] = {
            "hits": self._control.hits(),
            "count": process.calls if process is not None else 0,
            "problems": self._control.problems(),
        }
        if mode == "count":
            calls = {
                record.number: (record.kind.name.lower(), record.file.name.lower())
                for record in read_log(self._log)
                if isinstance(record, Begin) and record.pid == pid and record.number
            }
            seen["calls"] = [calls.get(number + 1) for number in range(seen["count"])]
        elif mode == "kill":
            seen["signal"] = [
                (record.number, record.kind.name.lower(), record.file.name.lower(), record.after)
                for record in read_log(self._log)
                if isinstance(record, Signal) and record.pid == pid
            ]
        return seen

    def _is_reached(self, request: dict[str, Any], found: dict[str, Any]) -> bool:
        """Say whether the process met what it was to meet, by its wait status and the control."""
        mode, status = request["mode"], found["status"]
        if mode == "count":
            return bool(status == 0)
        killed = status != HUNG and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if mode == "fault":
            # It ends itself, once it has told what it was told.
            return killed and found["hits"] == 1 and (self._path / TOLD).exists()
        after = request["action"] == Action.SIGNAL_AFTER
        struck = [(number, after_) for number, _, _, after_ in found["signal"]]
        return killed and found["hits"] == 1 and struck == [(request["number"], after)]

    def _record_death(self, store: Store, found: dict[str, Any], mode: str) -> None:
        log = store.writer(store.nemesis)
        if mode != "count":
            death = {"t": time.monotonic_ns(), "fault": "kill", "pid": found["pid"]}
            log.append(death | {"process": "child", "phase": "call", "hit": True})
        log.append({"t": time.monotonic_ns(), "fault": "heal"})
        log.close()

    def _recover_and_judge(
        self, store: Store, request: dict[str, Any], mode: str
    ) -> dict[str, Any]:
        """Reopen in a clean process, finish all jobs, and judge what was recorded."""
        _, status = fork(lambda: self._recover(store), store.path / "recover.log")
        found: dict[str, Any] = {"recovered": status == 0}
        for name in (TOLD, "recovered.json"):
            path = store.path / name
            if path.exists() and (name != TOLD or mode != "kill"):
                found |= json.loads(path.read_text(encoding="utf-8"))
        found["output"] = "" if status == 0 else self._output(store)
        contract = self._target.contract
        parameters = dict(contract.parameters) | {"drain_ms": DRAIN_MS}
        store.write_contract(replace(contract, parameters=parameters))
        problems = [] if status == 0 else [f"the recovering process ended with {status}"]
        store.write_run(
            {
                "target": self._target.name,
                "engine": "crash",
                # Whether the point was reached the engine says, for all of them together.
                "obligations": {"obliged": [], "hit": []},
                "environment": self._environment,
                "problems": problems,
                "replay": request["replay"],
            }
        )
        _dump(self._target, store, self._database)
        verdict = judge(store).record
        found["verdict"] = verdict["verdict"]
        found["properties"] = {
            name: one
            for name, one in verdict["properties"].items()
            if one["verdict"] not in ("not_judged", "not_promised")
        }
        found["malformed"] = [
            reason for reason in verdict["unknown_because"] if not _is_of_a_promise(reason)
        ]
        if (keep := request.get("keep")) and _is_worth_keeping(found):
            with suppress(FileExistsError):
                shutil.copytree(store.path, keep)
        return found

    def _recover(self, store: Store) -> int:
        """Be the process that comes after: reopen, take back, take a new job, finish everything."""
        context = context_of(self._target, store)
        told: dict[str, Any] = {"repaired": _repair(self._target, store.db)}
        session = context.current = context.open("recovery")
        _prepare_audit(self._target, self._database)
        told["changes"] = _changes(session)
        write_json(store.path / "recovered.json", told)
        for _ in range(2):
            session.enqueue(KEYED)
        if session.reaps:
            session.reap()
        session.enqueue(LATER)
        session.enqueue(DOOMED)
        session.tidy()
        deadline = time.monotonic() + RECOVER_SECONDS
        mapping = self._target.audit
        while time.monotonic() < deadline:
            lease = session.claim()
            if lease is not None:
                settle(session, lease, session.play(lease))
            elif not living(self._database, mapping.table, mapping.state, sorted(TERMINAL)):
                break
            else:
                time.sleep(IDLE_SECONDS)
        end(context)
        return 0

    def _output(self, store: Store) -> str:
        """Return the last words of the processes of this point."""
        texts = []
        for name in ("child.log", "recover.log"):
            path = store.path / name
            if path.exists():
                texts.append(path.read_text(encoding="utf-8", errors="replace")[-600:])
        return "".join(texts)


def _repair(target: Any, place: Path) -> bool:
    """Do what the error of a stopped file tells its owner to do; False: there was no need."""
    stopped: Callable[[Path], bool] | None = getattr(target, "stopped", None)
    if stopped is None or not stopped(place):
        return False
    target.repair(place)
    return True


def _prepare_audit(target: Any, database: Path) -> None:
    """Put the audit and the table of effects into the file, if they are not there."""
    with closing(sqlite3.connect(database)) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        if "chaos_effect" not in names:
            db.execute(EFFECT_TABLE)
            db.commit()
    if TABLE not in names:
        install_audit(database, target.audit)


def _changes(session: Session) -> int:
    """Count the changes of jobs in the file, without those of the operation after an error."""
    query = f"""SELECT count(*) FROM {TABLE} WHERE job NOT IN
                (SELECT job FROM {TABLE} WHERE harness_id = '{NEXT.id}')"""  # noqa: S608 - names
    return int(session.rows(query)[0][0]) + session.extras()


def _is_worth_keeping(found: dict[str, Any]) -> bool:
    """Say whether somebody may want to look at this point's store: it looks like no pass."""
    told = {found.get("told"), found.get("next")}
    return bool(
        found["verdict"] == "violated"
        or found["malformed"]
        or not found["recovered"]
        or told & {"raw"}
        or found.get("next") == "indefinite"
    )


def _is_of_a_promise(reason: str) -> bool:
    """Say whether the judge's reason for `unknown` is a promise without evidence at this point."""
    word = reason.partition(":")[0]
    return word[:1] == "P" and word[1:].isdecimal()


def _dump(target: Any, store: Store, database: Path) -> None:
    """Write what the checkers read of the file."""
    with suppress(sqlite3.Error):
        dump_audit(database, target.audit, store.audit)
        with closing(sqlite3.connect(database)) as db:
            found = db.execute("SELECT job, attempt, fence FROM chaos_effect ORDER BY seq")
            lines = [
                {"job": name, "attempt": attempt, "fence": fence, "what": "applied"}
                for name, attempt, fence in found
            ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (store.effects / "table.jsonl").write_text(text, encoding="utf-8")
        store.write_snapshot(target.snapshot(store.db))


def main() -> None:
    """Be a lane, or the process under the shim in one."""
    role, name, *rest = sys.argv[1:]
    die_with_parent(int(rest[-1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    if role == "shimmed":
        answer = Shimmed(load(name)).answer
    else:
        answer = Lane(name, Path(rest[0]), Path(rest[1])).answer
    for line in iter(sys.stdin.buffer.readline, b""):
        answers.write(json.dumps(answer(json.loads(line))).encode() + b"\n")


if __name__ == "__main__":
    main()
