"""A lane of the engine `crash`: makes one point after another, each from a fresh copy.

A lane is two processes. The one under the shim (`crash_victim`) forks those that are killed. This
one has no shim: it copies the template, sets the rule, has the process struck, starts the process
that recovers, and judges. It reads one JSON object a line and answers with one.

    python -m killproof_chaos.engines.crash_lane TARGET TEMPLATES PLACE SUPERVISOR_PID
"""

import json
import os
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines import crash_life, crash_state
from killproof_chaos.engines.crash_context import context_of, end, keep_memo, prepare_audit
from killproof_chaos.engines.crash_peer import Peer
from killproof_chaos.engines.crash_points import (
    Call,
    Point,
    halves,
    next_refused,
    outcome_of,
    told_wrong,
    undisturbed_wrong,
)
from killproof_chaos.engines.crash_process import last_words, start, stop, wait, wait_while
from killproof_chaos.engines.crash_recover import RECOVERED, recover
from killproof_chaos.engines.crash_scenarios import BY_NAME, Scenario
from killproof_chaos.engines.crash_strike import Strike, Striker
from killproof_chaos.engines.crash_trial import failed_by_itself, why_not_started
from killproof_chaos.engines.crash_victim import AFTER, BEFORE, TOLD
from killproof_chaos.engines.disk_client import database_name
from killproof_chaos.engines.warm import FAILED
from killproof_chaos.targets import load
from killproof_evidence.audit import dump_audit
from killproof_evidence.contract import TERMINAL
from killproof_evidence.environment import environment
from killproof_evidence.evidence import OF_THE_FILE
from killproof_evidence.finding import PASS
from killproof_evidence.judge import judge
from killproof_evidence.lifetime import die_with_parent
from killproof_evidence.store import Store
from killproof_evidence.target import rows_of

#: P17 within a run of these: shorter than what the recovering process tries.
DRAIN_MS: Final = 5_000
#: A worker of killproof refuses such a place, where a power cut takes everything; here none comes.
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
LOGS: Final = ("child.log", "recover.log", "worker.log", "peer.log")


class Lane:
    """The clean process of a lane."""

    def __init__(self, name: str, templates: Path, place: Path) -> None:
        """Work for the target of this name, in a folder of its own."""
        self._target: Any = load(name)
        self._templates = templates
        self._path = place / "point"
        (self._path / "db").mkdir(parents=True)
        self._environment = environment(place)
        if str(self._environment["fs"]) in IN_MEMORY:
            os.environ["KILLPROOF_CHAOS_MEMORY"] = "1"
        self._striker = Striker(self._target, name, place)
        self._sound = place / "sound"
        self._trial: str | None = None  # Nobody has asked yet.

    def close(self) -> None:
        """End the process under the shim."""
        self._striker.close()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make a template or a point."""
        if request["mode"] == "template":
            return self._make_template(request["operation"])
        began = time.monotonic()
        store = self._copy(request["operation"])
        scenario = BY_NAME.get(request["operation"])
        peer = Peer(self._target, store) if scenario is not None and scenario.peer else None
        try:
            strike = self._striker.strike(store, request)
            if peer is not None:
                peer.go_on()
            why = strike.missed(request)
            if why:
                words = last_words(store.path, *LOGS)[-200:]
                self._copy_out(store, request)
                return {"reached": False, "why": f"{why} {words}".strip()}
            found = self._after(store, request, strike)
        finally:
            peer_ended = peer.close() if peer is not None else None
        if peer is not None and peer_ended is not None and peer_ended.status:
            story = peer.failure or f"the process {peer_ended.words}"
            # Where a failed sync has stopped the file, nobody may acknowledge: it was told so.
            if not (found["stopped"] and "repair" in story):
                found["broken"].append(["P16", f"a peer that lived on met {story}"])
        self._judge(store, request, found)
        found["ms"] = round((time.monotonic() - began) * 1_000)
        self._keep(store, request, found)
        return found

    def _copy(self, operation: str) -> Store:
        """Put a fresh copy of the template where the shim watches."""
        shutil.rmtree(self._path)
        shutil.copytree(self._templates / operation, self._path)
        return Store(self._path)

    # The template.

    def _make_template(self, operation: str) -> dict[str, Any]:
        """Run what stands before the operation once, in a process that ends in order."""
        store = Store.create(self._templates / operation)
        if operation in crash_life.LIVES:
            pid = start(
                lambda: crash_life.prepare(self._target, store, operation),
                store.path / "child.log",
            )
        elif BY_NAME[operation].prepare is None:
            return {"made": True}
        else:
            pid = start(lambda: self._prepare(store, BY_NAME[operation]), store.path / "child.log")
        return {"made": wait(pid).status == 0, "output": last_words(store.path, *LOGS)}

    def _prepare(self, store: Store, scenario: Scenario) -> int:
        context = context_of(self._target, store)
        context.current = context.open("setup")
        prepare_audit(self._target, store.db)
        assert scenario.prepare is not None
        scenario.prepare(context)
        context.memo["ids"] = context.current.ids
        state = crash_state.of_session(context.current, self._target.audit)
        crash_state.save(store.path / BEFORE, state)
        end(context)
        keep_memo(context)
        return 0

    # What comes after the blow.

    def _after(self, store: Store, request: dict[str, Any], strike: Strike) -> dict[str, Any]:
        """Recover, and hold what the caller was told against what the file says."""
        found: dict[str, Any] = {
            "reached": True,
            "broken": [],
            "unsure": list(strike.problems),
            "status": strike.ended.status,
            "calls": [asdict(call) for call in strike.calls],
        }
        told = store.path / TOLD
        if request["mode"] != "kill" and told.exists():
            found |= json.loads(told.read_text(encoding="utf-8"))
        self._record_deaths(store, request, strike)
        life = request["operation"] in crash_life.LIVES
        if life:
            rows = crash_life.look(self._target, store.db)
            found["state"] = crash_state.signature({}, crash_state.of_snapshot(rows))
        stopped = getattr(self._target, "stopped", None)
        found["stopped"] = bool(stopped and stopped(store.db))
        self._recover(store, request, found, life=life)
        self._compare(store, request, found, strike)
        return found

    def _record_deaths(self, store: Store, request: dict[str, Any], strike: Strike) -> None:
        with closing(store.writer(store.nemesis)) as log:
            if request["mode"] != "count":
                for pid in {strike.ended.pid, *strike.dead}:
                    death = {"t": time.monotonic_ns(), "fault": "kill", "pid": pid}
                    log.append(death | {"process": "child", "phase": "call", "hit": True})
            log.append({"t": time.monotonic_ns(), "fault": "heal"})

    def _recover(
        self, store: Store, request: dict[str, Any], found: dict[str, Any], *, life: bool
    ) -> None:
        """Have a clean process open the file and finish all jobs, or a worker finish them."""
        by_worker = life or request.get("worker", False)
        before = crash_state.load(store.path / BEFORE)
        pid = start(
            lambda: recover(self._target, store, life=life, finish=not by_worker, before=before),
            store.path / "recover.log",
        )
        ended = wait(pid)
        path = store.path / RECOVERED
        if path.exists():
            found |= json.loads(path.read_text(encoding="utf-8"))
        if "failure" in found:
            number = "P16" if found["failed_in"] in ("open", "repair", "read") else "P17"
            found["broken"].append([number, f"the process that came after: {found['failure']}"])
        elif ended.hung:
            found["broken"].append(["P17", f"the process that came after {ended.words}"])
        elif ended.status:
            words = last_words(store.path, "recover.log")[-300:]
            found["unsure"].append(f"the recovering process {ended.words} {words}")
        elif by_worker:
            self._work(store, request, found)

    def _work(self, store: Store, request: dict[str, Any], found: dict[str, Any]) -> None:
        """Have a worker of the target's own finish all jobs, as its users do after a crash."""
        argv = request.get("worker", False) or not callable(getattr(self._target, "work", None))
        found["recovered_by"] = "command" if argv else "worker"
        has_work = crash_life.has_work(self._target, store)
        budget = crash_life.budget(self._target)
        pid = crash_life.start_worker(self._target, store, "worker", argv=argv)
        ended = wait_while(
            pid, lambda: has_work() and budget.is_left(), pause=crash_life.LOOK_SECONDS
        )
        words = "was asked to stop" if ended is None else ended.words
        if ended is None:
            stop(pid)
        if argv:
            crash_life.kill_group(pid)
        left = [
            f"{row.id} is {row.state}"
            for row in crash_life.look(self._target, store.db)
            if row.state not in TERMINAL
        ]
        if left and argv and failed_by_itself(ended) and (why := self._why_no_worker_starts()):
            found["unsure"].append(why)
        elif left:
            story = f"the worker that came after {words}, and job {', job '.join(left)}"
            found["broken"].append(["P17", story])

    def _why_no_worker_starts(self) -> str:
        """Return why the command of a worker does not even start on a sound file; empty: it does.

        It is tried once, and only when one has failed: it costs the start of an interpreter.
        """
        if self._trial is None:
            self._trial = why_not_started(self._target, Store.create(self._sound))
        return self._trial

    def _compare(
        self, store: Store, request: dict[str, Any], found: dict[str, Any], strike: Strike
    ) -> None:
        """Say what the engine itself sees: what was told, what is in the file, who is refused."""
        mode, operation, broken = request["mode"], request["operation"], found["broken"]
        if mode == "count":
            self._compare_undisturbed(store, request, found)
            return
        base, full = request.get("base"), request.get("full")
        broken += halves(found.get("state"), base=base, full=full)
        if mode == "kill":
            return
        if operation != crash_life.WORK and not (strike.ended.killed and "next" in found):
            if strike.ended.status == FAILED << 8:
                words = last_words(store.path, "child.log")[-300:]
                found["unsure"].append(f"the harness failed in the process: {words}")
            else:
                number = "P17" if strike.ended.hung else "P16"
                broken.append([number, f"its caller's process {strike.ended.words}"])
        if "next" in found:
            broken += told_wrong(found, operation=operation, base=base, full=full)
            broken += next_refused(
                found, fault=request["fault"], kind=request["kind"], stopped=found["stopped"]
            )

    def _compare_undisturbed(
        self, store: Store, request: dict[str, Any], found: dict[str, Any]
    ) -> None:
        operation = request["operation"]
        scenario = BY_NAME.get(operation)
        if (store.path / AFTER).exists():
            before = crash_state.load(store.path / BEFORE)
            after = crash_state.load(store.path / AFTER)
            found["full"] = crash_state.signature(before, after)
        else:
            found["full"] = found.get("state")
        if operation == crash_life.WORK:
            found["full"] = None
            left = [line for line in found["state"] if not any(w in line for w in TERMINAL)]
            if left:
                found["unsure"].append(f"the worker did not do its work: {'; '.join(left)}")
            return
        why = undisturbed_wrong(
            found,
            tells="ok" if scenario is None else scenario.tells,
            calls=len(found["calls"]),
            operation=operation,
        )
        found["unsure"] += [why] if why else []

    # The judge.

    def _judge(self, store: Store, request: dict[str, Any], found: dict[str, Any]) -> None:
        """Judge what was recorded; keep the engine's own accusations that the contract has."""
        contract = self._target.contract
        parameters = dict(contract.parameters) | {"drain_ms": DRAIN_MS}
        store.write_contract(replace(contract, parameters=parameters))
        unread = self._dump(store)
        store.write_run(
            {
                "target": self._target.name,
                "engine": "crash",
                # Whether the point was reached the engine says, for all of them together.
                "obligations": {"obliged": [], "hit": []},
                "environment": self._environment,
                "problems": [*found["unsure"], *unread],
                "unread": OF_THE_FILE if unread else (),
                "replay": request["replay"],
            }
        )
        verdict = judge(store).record
        found["properties"] = {
            name: one
            for name, one in verdict["properties"].items()
            if one["verdict"] not in ("not_judged", "not_promised")
        }
        found["unsure"] = [
            reason for reason in verdict["unknown_because"] if not _is_of_a_promise(reason)
        ]
        for number, story in found["broken"]:
            if not contract.promised(number):
                found["unsure"].append(f"{number} is not promised, and yet: {story}")
        found["broken"] = [one for one in found["broken"] if contract.promised(one[0])]

    def _dump(self, store: Store) -> list[str]:
        """Write what the checkers read of the file; return why it is not all of it."""
        problems = []
        try:
            if self._target.audit is not None:
                database = store.db / database_name(self._target, store.db)
                dump_audit(database, self._target.audit, store.audit)
                _dump_effects(database, store)
            store.write_snapshot(rows_of(self._target, store.db))
        except Exception as error:
            # The target's own reader, or a file that SQLite refuses: nothing is known, then.
            problems.append(f"the file could not be read at the end: {error}")
        return problems

    def _keep(self, store: Store, request: dict[str, Any], found: dict[str, Any]) -> None:
        """Keep the store of a point that somebody may want to look at: of all but a pass."""
        point = Point(
            operation=request["operation"], number=0, call=Call(kind="", file=""), fault="none"
        )
        if outcome_of(point, found).verdict != PASS:
            self._copy_out(store, request)

    def _copy_out(self, store: Store, request: dict[str, Any]) -> None:
        with suppress(FileExistsError):
            shutil.copytree(store.path, request["keep"])


def _dump_effects(database: Path, store: Store) -> None:
    with closing(sqlite3.connect(database)) as db:
        found = db.execute("SELECT job, attempt, fence FROM chaos_effect ORDER BY seq")
        lines = [
            {"job": name, "attempt": attempt, "fence": fence, "what": "applied"}
            for name, attempt, fence in found
        ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (store.effects / "table.jsonl").write_text(text, encoding="utf-8")


def _is_of_a_promise(reason: str) -> bool:
    """Say whether the judge's reason for `unknown` is about a promise: the engine asks for those.

    At one point a promise may well have no case to check; that is no reason against the run.
    """
    word = reason.partition(":")[0]
    return word[:1] == "P" and word[1:].isdecimal()


def main() -> None:
    """Be a lane."""
    name, templates, place, parent = sys.argv[1:]
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # What a target prints must not stand between the answers.
    with closing(Lane(name, Path(templates), Path(place))) as lane:
        for line in iter(sys.stdin.buffer.readline, b""):
            answers.write(json.dumps(lane.answer(json.loads(line))).encode() + b"\n")


if __name__ == "__main__":
    main()
