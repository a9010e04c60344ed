"""The engine `crash`: every file call of every operation, killed before and after, and failed.

Random kills almost never land between two system calls of one operation; here each such gap is a
point of its own. An operation is run once under the shim to count its calls and to learn what they
are. Then each call is a point twice: the process is killed before it and after it, from a fresh
copy of the same files. A clean process reopens the file, takes back what was lost, takes a new
job, and finishes everything; the judge reads what all of them recorded. Then each call is made to
fail, and what the caller was told is held against what the file says.

A point counts only when the wait status says SIGKILL and the shim says that its rule fired at that
very call. A point that was not reached is `unknown`, never a pass.

Deliberately not here: power cuts. A kill takes nothing back that the kernel has accepted, so the
files lie in memory where there is room, and the queue is told that this will do.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos.engines.crash_points import (
    Counted,
    Outcome,
    Point,
    control,
    halves,
    points_of,
    told_wrong,
)
from killproof_chaos.engines.crash_pool import Pool
from killproof_chaos.engines.crash_scenarios import SCENARIOS
from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.stores import run_record
from killproof_chaos.targets import load
from killproof_evidence.environment import environment
from killproof_evidence.finding import PASS, UNKNOWN, VIOLATED, WITNESSES_MAX
from killproof_evidence.judge import PROPERTIES, SCHEMA
from killproof_evidence.store import Store, write_json

#: One line for each point, in the store of the run.
POINTS: Final = "points.jsonl"
MEMORY: Final = Path("/dev/shm")
#: Copies and databases of all lanes at once need a few megabytes.
MEMORY_BYTES_MIN: Final = 256 << 20
#: A point that was missed once may be met: a helper thread may have made one call more.
TRIES: Final = 3
#: Stores of points that are kept whole: enough to see what is wrong, and no full disk.
KEPT_MAX: Final = 40
Show = Callable[["Turn"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How far the engine is."""

    done: int
    total: int
    elapsed: float  #: seconds
    left: float  #: seconds, from the pace so far
    operation: str


class Engine:
    """One run of the engine: counts, makes every point, writes verdict.json."""

    def __init__(
        self,
        name: str,
        operations: Iterable[str],
        store: Store,
        show: Show,
        *,
        errors: bool = True,
        lanes: int | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            name: of the target.
            operations: those to kill in.
            store: where the evidence goes.
            show: is told how far it is.
            errors: whether calls are also made to fail.
            lanes: points made at once; None: one for each core.
        """
        self._name = name
        self._target: Any = load(name)
        self._operations = tuple(operations)
        self._store = store
        self._show = show
        self._errors = errors
        self._lanes = lanes or os.cpu_count() or 1
        self._outcomes: list[Outcome] = []
        self._counted: dict[str, Counted] = {}
        self._because: list[str] = []
        self._kept = 0
        self._began = time.monotonic()
        self._started = time.time()

    def run(self) -> dict[str, Any]:
        """Make every point; return verdict.json, written.

        Raises:
            EngineFailed: a lane died; it says nothing of the queue.
        """
        try:
            build()
        except ShimUnavailable as error:
            self._because.append(str(error))
            return self._conclude()
        with tempfile.TemporaryDirectory(prefix="killproof-crash-", dir=self._room()) as folder:
            place = Path(folder)
            (place / "templates").mkdir()
            pool = Pool(self._name, place, self._lanes)
            try:
                self._count(pool)
                self._make_points(pool)
            finally:
                pool.close()
        return self._conclude()

    def _room(self) -> Path:
        """Return where the files of the points lie: in memory, if there is room."""
        usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
        if usable and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
            return MEMORY
        return self._store.path

    def _count(self, pool: "Pool") -> None:
        """Run each operation once without a fault, to learn its calls."""
        requests = [{"mode": "template", "operation": name} for name in self._operations]
        made = dict(pool.answers(requests, key=lambda request: str(request["operation"])))
        ready = []
        for name in self._operations:
            if made[name]["made"]:
                ready.append(
                    {"mode": "count", "operation": name, "replay": self._replay(name)}
                    | {"keep": self._keep(control(name))}
                )
            else:
                self._because.append(f"{name} could not be prepared: {made[name]['output']}")
        for name, found in pool.answers(ready, key=lambda request: str(request["operation"])):
            if not found["reached"] or not found["recovered"] or None in found["calls"]:
                self._because.append(f"{name} did not run to its end: {found['output']}")
                continue
            calls = [tuple(call) for call in found["calls"]]
            self._counted[name] = Counted(
                operation=name, calls=calls, changes_full=found.get("full", found["changes"])
            )
            self._judge(control(name), found)

    def _make_points(self, pool: "Pool") -> None:
        points = [
            point
            for name in self._operations
            if name in self._counted
            for point in points_of(self._counted[name], errors=self._errors)
        ]
        waiting = {point.name: point for point in points}
        done, of = 0, len(points)
        for turn in range(TRIES):
            requests = [
                point.request()
                | {"replay": self._replay(point.operation), "keep": self._keep(point)}
                | {"name": point.name}
                for point in waiting.values()
            ]
            missed = {}
            for name, found in pool.answers(requests, key=lambda request: str(request["name"])):
                point = waiting[name]
                if not found["reached"] and turn + 1 < TRIES:
                    missed[name] = point
                    continue
                done += 1
                self._take(point, found)
                self._tell(point, done, of)
            waiting = missed

    def _tell(self, point: Point, done: int, of: int) -> None:
        elapsed = time.monotonic() - self._began
        left = elapsed / done * (of - done)
        turn = Turn(done=done, total=of, elapsed=elapsed, left=left, operation=point.operation)
        self._show(turn)

    def _replay(self, operation: str) -> str:
        return f"killproof chaos crash --target {self._name} --operation {operation}"

    def _keep(self, point: Point) -> str:
        return str(self._store.path / "points" / point.name)

    def _take(self, point: Point, found: dict[str, Any]) -> None:
        if not found["reached"]:
            reason = (
                f"not reached: the process ended with {found['status']} after {found['count']} "
                f"calls {found['output'][-200:]}".strip()
            )
            self._outcomes.append(Outcome(point=point, verdict=UNKNOWN, reason=reason, found=found))
            return
        self._judge(point, found)

    def _judge(self, point: Point, found: dict[str, Any]) -> None:
        """Turn a lane's answer into an outcome."""
        counted = self._counted[point.operation]
        if point.fault == "before" and point.number == 1:
            counted.changes_base = found.get("changes")
        self._outcomes.append(Outcome(point=point, verdict=PASS, found=found))

    def _settle(self) -> None:
        """Give each point its verdict, now that every operation's before and after are known."""
        for outcome in self._outcomes:
            point, found = outcome.point, outcome.found
            if outcome.verdict == UNKNOWN:
                continue
            counted = self._counted[point.operation]
            base, full = counted.changes_base, counted.changes_full
            if point.fault != "none":
                outcome.told += halves(found.get("changes"), base=base, full=full)
            if point.fault not in ("before", "after", "none"):
                outcome.told += told_wrong(found, operation=point.operation, base=base, full=full)
                if found["next"] == "indefinite":
                    outcome.told.append(
                        ("P16", f"the next operation failed: {found['next_error']}")
                    )
            broken = [
                (name, one["witnesses"][0]["story"])
                for name, one in found["properties"].items()
                if one["verdict"] == VIOLATED
            ]
            unsure = [*found["malformed"], *found["problems"]]
            if broken or outcome.told:
                name, story = (*outcome.told, *broken)[0]
                outcome.verdict, outcome.reason = VIOLATED, f"{name}: {story}"
            elif unsure or not found["recovered"]:
                reason = unsure[0] if unsure else "the recovering process failed"
                outcome.verdict, outcome.reason = UNKNOWN, f"{reason} {found['output'][-300:]}"

    def _conclude(self) -> dict[str, Any]:
        """Merge all points into one verdict and write it with points.jsonl and run.json."""
        self._settle()
        self._discard()
        log = self._store.writer(self._store.path / POINTS)
        for outcome in self._outcomes:
            log.append(outcome.record())
        log.close()
        properties = {one.number: self._property(one.number) for one in PROPERTIES}
        words = {one["verdict"] for one in properties.values()}
        points = [outcome for outcome in self._outcomes if outcome.point.fault != "none"]
        missed = [outcome for outcome in self._outcomes if outcome.verdict == UNKNOWN]
        because = [*self._because, *(f"{one.point.words}: {one.reason}" for one in missed)]
        because += [
            f"{number}: {one['reason']}"
            for number, one in properties.items()
            if one["verdict"] == UNKNOWN
        ]
        if not points and not because:
            because.append("no operation was chosen")
        verdict = VIOLATED if VIOLATED in words else UNKNOWN if because else PASS
        kills = sum(one.point.fault in ("before", "after") for one in points)
        run = self._run_record()
        record = {
            "schema": SCHEMA,
            "target": self._target.name,
            "engine": "crash",
            "seed": None,
            "level": "process",
            "verdict": verdict,
            "unknown_because": because,
            "properties": properties,
            "faults": _tally(points),
            "coverage": {
                "obliged": len(points),
                "hit": len(points) - len(missed),
                "missed": [one.point.name for one in missed],
            },
            "counts": {"points": len(points), "kills": kills, "errors": len(points) - kills},
            "exhausted": not missed and not self._because,
            "jobs": {},
            "recovery_ms": {},
            "files_in": str(self._room()),
            "seconds": round(time.monotonic() - self._began, 1),
            "operations": self._table(),
            "environment": run["environment"],
            "replay": run["replay"],
        }
        self._store.write_contract(self._target.contract)
        self._store.write_run(run)
        write_json(self._store.verdict, record)
        return record

    def _run_record(self) -> dict[str, Any]:
        argv = ["killproof", "chaos", "crash", "--target", self._name]
        if len(self._operations) < len(operations_of(self._target)):
            argv += [word for name in self._operations for word in ("--operation", name)]
        if not self._errors:
            argv.append("--no-errors")
        record = run_record(
            self._target,
            "crash",
            argv,
            seed=None,
            started=self._started,
            problems=self._because,
        )
        return record | {"environment": environment(self._store.path)}

    def _discard(self) -> None:
        """Keep the stores of the points that are no pass, and only so many."""
        for outcome in self._outcomes:
            folder = Path(self._keep(outcome.point))
            if outcome.verdict != PASS and folder.is_dir() and self._kept < KEPT_MAX:
                self._kept += 1
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _property(self, number: str) -> dict[str, Any]:
        """Merge what all points say of one promise."""
        if not self._target.contract.promised(number):
            return {"verdict": "not_promised", "checked": 0, "witnesses": []}
        engines = next(one.engines for one in PROPERTIES if one.number == number)
        if "crash" not in engines:
            return {
                "verdict": "not_judged",
                "checked": 0,
                "by": engines[0],
                "witnesses": [],
            }
        witnesses: list[dict[str, Any]] = []
        checked, violations, unsure = 0, 0, ""
        for outcome in self._outcomes:
            one = outcome.found.get("properties", {}).get(number)
            told = [story for name, story in outcome.told if name == number]
            violations += len(told)
            witnesses += [
                {"job": None, "story": f"{outcome.point.words}: {story}", "lines": []}
                for story in told
            ]
            if one is None:
                continue
            checked += one["checked"]
            if one["verdict"] == VIOLATED:
                violations += one["violations"]
                witnesses += [self._located(outcome, witness) for witness in one["witnesses"]]
            elif one["verdict"] == UNKNOWN and one["checked"]:
                unsure = unsure or f"{outcome.point.words}: {one['reason']}"
        verdict, reason = PASS, ""
        if violations:
            verdict = VIOLATED
        elif unsure or not checked:
            verdict, reason = UNKNOWN, unsure or "no point gave a case to check"
        record: dict[str, Any] = {"verdict": verdict, "checked": checked}
        record |= {"reason": reason} if reason else {}
        record |= {"violations": violations} if violations else {}
        return record | {"witnesses": witnesses[:WITNESSES_MAX]}

    def _located(self, outcome: Outcome, witness: dict[str, Any]) -> dict[str, Any]:
        """Return the witness with the point in its story and in the names of its files."""
        point = outcome.point
        lines = [
            line | {"file": f"points/{point.name}/{line['file']}"} for line in witness["lines"]
        ]
        return witness | {"story": f"{point.words}: {witness['story']}", "lines": lines}

    def _table(self) -> list[dict[str, Any]]:
        """Return the map: each operation, each of its calls, the verdict of each fault."""
        table = []
        for name in self._operations:
            counted = self._counted.get(name)
            rows: list[dict[str, Any]] = []
            for number, (kind, file) in enumerate(counted.calls if counted else (), 1):
                rows.append({"call": number, "kind": kind, "file": file, "verdicts": {}})
            for outcome in self._outcomes:
                if outcome.point.operation == name and outcome.point.number:
                    verdicts = rows[outcome.point.number - 1]["verdicts"]
                    verdicts[outcome.point.fault] = outcome.verdict
            table.append({"operation": name, "calls": rows})
        return table


def _tally(points: Iterable[Outcome]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in points:
        fault = "kill" if one.point.fault in ("before", "after") else one.point.fault
        counts[fault] = counts.get(fault, 0) + (one.verdict != UNKNOWN)
    return counts


def operations_of(target: Any) -> tuple[str, ...]:
    """Return the operations that the engine can kill in, in their order.

    Raises:
        ValueError: the target does not take single steps; definite.
    """
    if not callable(getattr(target, "steps", None)):
        raise ValueError(
            f"target {target.name!r} cannot be judged by crash: give it steps(place, recorder), "
            "see killproof_chaos.engines.crash_session.Session"
        )
    offered = target.step_operations
    return tuple(one.operation for one in SCENARIOS if one.operation in offered)
