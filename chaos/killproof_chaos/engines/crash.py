"""The engine `crash`: every file call of every operation, killed before and after, and failed.

Random kills almost never land between two system calls of one operation; here each such gap is a
point of its own. An operation is run once under the shim to count its calls and to learn what they
are. Then each call is a point twice: the process is killed before it and after it, from a fresh
copy of the same files. A clean process reopens the file, takes back what was lost, takes a new
job, and finishes everything; the judge reads what all of them recorded. Then each call is made to
fail, and what the caller was told is held against what the file says.

A point counts only when the wait status says SIGKILL and the shim says that its rule fired at that
very call. A point that was not reached is `unknown`, never a pass; and so is an operation that
makes no call, or does not do what it is named for when nothing befalls it.

Deliberately not here: power cuts. A kill takes nothing back that the kernel has accepted, so the
files lie in memory where there is room, and the queue is told that this will do. Reads do not
fail, an error strikes once and is gone, stores to mapped memory are no calls, and no file of an
older schema is opened.
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from killproof_chaos import memory
from killproof_chaos.engines import crash_life
from killproof_chaos.engines.crash_points import (
    KILLS,
    Call,
    Counted,
    Outcome,
    Point,
    control,
    failed_checkers,
    in_order,
    most_telling_first,
    outcome_of,
    points_of,
)
from killproof_chaos.engines.crash_pool import Pool
from killproof_chaos.engines.crash_process import last_line
from killproof_chaos.engines.crash_scenarios import BY_NAME, SCENARIOS
from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.stores import run_record
from killproof_chaos.targets import load, tell_seed
from killproof_evidence.environment import environment
from killproof_evidence.finding import PASS, UNKNOWN, VIOLATED, WITNESSES_MAX
from killproof_evidence.judge import PROPERTIES, SCHEMA
from killproof_evidence.store import Store, write_json

#: One line for each point, in the store of the run.
POINTS: Final = "points.jsonl"
#: Copies and databases of all lanes at once need a few megabytes.
MEMORY_BYTES_MIN: Final = 256 << 20
#: What a worker of its own meets: nobody hears what its calls were told, so that one error of a
#: disk stands for the others, which each operation by itself is given.
WORKERS_FAULTS: Final = (*KILLS, "EIO")
#: A lane waits as often as it computes: for a worker that looks for jobs, for a lease to run out.
LANES_PER_CORE: Final = 2
#: A point that was missed once may be met: a helper thread may have made one call more.
TRIES: Final = 3
#: Why a promise that no point broke is unknown, where the later points were not made.
ENDED_EARLY: Final = "the run ended at the first point that broke a promise"
#: Stores of points that are kept whole: enough to see what is wrong, and no full disk.
KEPT_MAX: Final = 40
#: After one kill in so many, and the first of each operation, a worker that was started by its
#: command line recovers, which takes ten times as long as a process that has imported everything.
WORKER_EVERY: Final = 16
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
        kills: bool = True,
        errors: bool = True,
        fail_fast: bool = False,
        sample: int | None = None,
        seed: int = 0,
        lanes: int | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            name: of the target.
            operations: those to kill in.
            store: where the evidence goes.
            show: is told how far it is.
            kills: whether the process is killed at each call; one kill tells how the file is
                without the operation, and so is made all the same.
            errors: whether calls are also made to fail.
            fail_fast: stop at the first point that breaks a promise; a run in which nothing
                befalls the operation is no point.
            sample: so many points of each operation, drawn; None: all.
            seed: decides which are drawn.
            lanes: points made at once; None: as many as keep the cores busy.
        """
        self._name = name
        self._target: Any = load(name)
        self._operations = tuple(operations)
        self._store = store
        self._show = show
        self._kills = kills
        self._errors = errors
        self._fail_fast = fail_fast
        self._sample = sample
        self._seed = seed
        # Each lane starts two interpreters, which a run that soon ends has no use for.
        per_core = 1 if fail_fast else LANES_PER_CORE
        self._lanes = lanes or per_core * len(os.sched_getaffinity(0))
        self._is_enough = False
        self._outcomes: list[Outcome] = []
        self._counted: dict[str, Counted] = {}
        self._points: list[Point] = []
        self._because: list[str] = []
        self._files_in = store.path  #: the files of the points: in memory, if there is room
        self._began = time.monotonic()
        self._started = time.time()

    def run(self) -> dict[str, Any]:
        """Make every point; return verdict.json, written. Ctrl-C ends it early, and is told.

        Raises:
            EngineFailed: a lane died; it says nothing of the queue.
        """
        tell_seed(None if self._sample is None else self._seed)
        try:
            build()
        except ShimUnavailable as error:
            self._because.append(str(error))
            return self._conclude()
        with memory.lent("crash", bytes_min=MEMORY_BYTES_MIN, otherwise=self._store.path) as place:
            self._files_in = place.parent
            (place / "templates").mkdir()
            pool = Pool(self._name, place, self._lanes)
            try:
                self._count(pool)
                self._make_points(pool)
            except KeyboardInterrupt:
                self._because.append("the run was interrupted")
            finally:
                pool.close()
        return self._conclude()

    def _count(self, pool: Pool) -> None:
        """Run each operation once without a fault, to learn its calls."""
        requests = [{"mode": "template", "operation": name} for name in self._operations]
        made = dict(pool.answers(requests, key=lambda request: str(request["operation"])))
        ready = []
        for name in self._operations:
            if made[name]["made"]:
                ready.append(self._request(control(name), {"mode": "count", "operation": name}))
            else:
                words = last_line(made[name]["output"])
                self._because.append(f"{name} could not be prepared: {words}")
        for name, found in pool.answers(ready, key=lambda request: str(request["operation"])):
            outcome = outcome_of(control(name), found)
            self._outcomes.append(outcome)
            if outcome.verdict == UNKNOWN:
                self._because.append(f"{outcome.point.words}: {outcome.reason}")
                continue
            calls = [Call(**call) for call in found["calls"]]
            self._counted[name] = Counted(operation=name, calls=calls, full=found["full"])

    def _make_points(self, pool: Pool) -> None:
        """Make the first kill of each operation, which tells how it is without it; then the rest.

        The operations keep their order, so that the progress says where the engine is.
        """
        self._points = [
            point
            for name in self._operations
            if name in self._counted
            for point in self._chosen(name)
        ]
        first = [point for point in self._points if (point.number, point.fault) == (1, "before")]
        self._make(pool, first)
        for outcome in self._outcomes:
            if outcome.point in first and outcome.found["reached"]:
                counted = self._counted[outcome.point.operation]
                counted.base = outcome.found.get("state")
        self._check_changes()
        self._make(pool, [point for point in self._points if point not in set(first)])
        if self._is_enough:
            made = {outcome.point for outcome in self._outcomes}
            self._points = [point for point in self._points if point in made]

    def _chosen(self, name: str) -> list[Point]:
        """Return the points of an operation, or a sample of them in their order.

        The first kill is always among them: it tells how the file is without the operation.
        """
        points = [
            point
            for point in self._points_of(self._counted[name])
            if name != crash_life.WORK or point.fault in WORKERS_FAULTS
        ]
        if self._sample is None or self._sample >= len(points):
            return points
        source = random.Random(f"{name} {self._seed}")
        drawn = {0, *source.sample(range(1, len(points)), self._sample - 1)}
        return [points[at] for at in sorted(drawn)]

    def _points_of(self, counted: Counted) -> list[Point]:
        points = points_of(counted, errors=self._errors)
        if not self._kills:
            points = [*points[:1], *(point for point in points if point.fault not in KILLS)]
        return most_telling_first(points) if self._fail_fast else points

    def _check_changes(self) -> None:
        """Refuse an operation that left no trace: at its points nothing could be seen missing."""
        for name, counted in self._counted.items():
            scenario = BY_NAME.get(name)
            wanted = scenario.changes if scenario is not None else counted.full is not None
            if wanted and counted.base is not None and counted.base == counted.full:
                self._because.append(f"{name} did not do what it is for: the file is as before")

    def _make(self, pool: Pool, points: Iterable[Point]) -> None:
        waiting = {point.name: point for point in points}
        for turn in range(TRIES):
            if self._is_enough:
                return
            requests = [self._request(point, point.request()) for point in waiting.values()]
            missed = {}
            answers = pool.answers(requests, key=lambda request: str(request["name"]))
            if self._fail_fast:
                answers = in_order(answers, [*waiting])
            for name, found in answers:
                point = waiting[name]
                if not found["reached"] and turn + 1 < TRIES:
                    missed[name] = point
                    continue
                if turn:
                    found["tries"] = turn + 1
                outcome = outcome_of(point, found)
                self._outcomes.append(outcome)
                self._tell(point)
                if self._fail_fast and outcome.verdict == VIOLATED:
                    # What the other lanes are at ends with them, when the pool is closed. It is not
                    # told: which of the later points were there as well is for the machine to say.
                    self._is_enough = True
                    return
            waiting = missed

    def _request(self, point: Point, asked: dict[str, Any]) -> dict[str, Any]:
        """Return what a lane must know of a point, besides the point."""
        operation = point.operation
        request = asked | {
            "replay": f"killproof chaos crash --target {self._name} --operation {operation}",
            "keep": str(self._folder(point)),
        }
        counted = self._counted.get(operation)
        if counted is not None and counted.base is not None:
            request |= {"base": counted.base, "full": counted.full}
        is_first = (point.number, point.fault) == (1, "after")
        sampled = point.fault in KILLS and (point.number % WORKER_EVERY == 0 or is_first)
        scenario = BY_NAME.get(operation)
        return request | {"worker": sampled and (scenario is None or scenario.by_worker)}

    def _folder(self, point: Point) -> Path:
        return self._store.path.resolve() / "points" / point.name

    def _tell(self, point: Point) -> None:
        elapsed = time.monotonic() - self._began
        done = sum(one.point.fault != "none" for one in self._outcomes)
        left = elapsed / done * (len(self._points) - done)
        self._show(
            Turn(
                done=done,
                total=len(self._points),
                elapsed=elapsed,
                left=left,
                operation=point.operation,
            )
        )

    # What it all means.

    def _conclude(self) -> dict[str, Any]:
        """Merge all points into one verdict and write it with points.jsonl and run.json."""
        self._discard()
        log = self._store.writer(self._store.path / POINTS)
        for outcome in self._outcomes:
            log.append(outcome.record())
        log.close()
        properties = {one.number: self._property(one.number, one.engines) for one in PROPERTIES}
        points = [outcome for outcome in self._outcomes if outcome.point.fault != "none"]
        unsure = [outcome for outcome in points if outcome.verdict == UNKNOWN]
        because = [*self._because, *(f"{one.point.words}: {one.reason}" for one in unsure)]
        because += [
            f"{number}: {one['reason']}"
            for number, one in properties.items()
            if one["verdict"] == UNKNOWN and one["reason"] != ENDED_EARLY
        ]
        if not points and not because:
            because.append("no operation was chosen")
        words = {one["verdict"] for one in properties.values()}
        run = self._run_record()
        record = {
            "schema": SCHEMA,
            "target": self._target.name,
            "engine": "crash",
            "seed": None if self._sample is None else self._seed,
            "level": "process",
            "verdict": VIOLATED if VIOLATED in words else UNKNOWN if because else PASS,
            "unknown_because": because,
            "properties": properties,
            "faults": _tally(points),
            "coverage": self._coverage(points),
            "counts": _counts(points),
            "exhausted": self._sample is None and not (unsure or self._because or self._is_enough),
            "jobs": {},
            "recovery_ms": {},
            "files_in": str(self._files_in),
            "seconds": round(time.monotonic() - self._began, 1),
            "operations": self._table(),
            "environment": run["environment"],
            "replay": run["replay"],
        }
        self._store.write_contract(self._target.contract)
        self._store.write_run(run)
        write_json(self._store.verdict, record)
        return record

    def _coverage(self, points: list[Outcome]) -> dict[str, Any]:
        hit = {one.point.name for one in points if one.found.get("reached")}
        missed = [point.name for point in self._points if point.name not in hit]
        return {"obliged": len(self._points), "hit": len(hit), "missed": missed}

    def _run_record(self) -> dict[str, Any]:
        argv = ["killproof", "chaos", "crash", "--target", self._name]
        if len(self._operations) < len(operations_of(self._target)):
            argv += [word for name in self._operations for word in ("--operation", name)]
        options = {"--no-kills": not self._kills, "--no-errors": not self._errors}
        options["--fail-fast"] = self._fail_fast
        argv += [option for option, is_set in options.items() if is_set]
        if self._sample is not None:
            argv += ["--points", str(self._sample), "--seed", str(self._seed)]
        record = run_record(
            self._target,
            "crash",
            argv,
            seed=None if self._sample is None else self._seed,
            started=self._started,
            problems=self._because,
        )
        return record | {"environment": environment(self._store.path)}

    def _discard(self) -> None:
        """Keep the stores of the points that are no pass, and only so many."""
        kept = 0
        for outcome in self._outcomes:
            folder = self._folder(outcome.point)
            if outcome.verdict != PASS and folder.is_dir() and kept < KEPT_MAX:
                kept += 1
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _property(self, number: str, engines: tuple[str, ...]) -> dict[str, Any]:
        """Merge what all points say of one promise."""
        if not self._target.contract.promised(number):
            return {"verdict": "not_promised", "checked": 0, "witnesses": []}
        broken = [one for one in self._outcomes if any(name == number for name, _ in one.broken)]
        if "crash" not in engines and not broken:
            return {"verdict": "not_judged", "checked": 0, "by": engines[0], "witnesses": []}
        witnesses: list[dict[str, Any]] = []
        checked, violations, unsure = 0, 0, ""
        for outcome in self._outcomes:
            words = outcome.point.words
            told = [story for name, story in outcome.broken if name == number]
            violations += len(told)
            witnesses += [{"job": None, "story": f"{words}: {story}", "lines": []}
                          for story in told]  # fmt: skip
            one = outcome.found.get("properties", {}).get(number)
            if one is None:
                continue
            checked += one["checked"]
            if one["verdict"] == VIOLATED:
                violations += one["violations"]
                witnesses += [self._located(outcome, witness) for witness in one["witnesses"]]
            elif one["verdict"] == UNKNOWN and (one["checked"] or failed_checkers({number: one})):
                unsure = unsure or f"{words}: {one['reason']}"
        verdict, reason = PASS, ""
        if violations:
            verdict = VIOLATED
        elif unsure or not checked:
            verdict, reason = UNKNOWN, unsure or "no point gave a case to check"
        elif self._is_enough:
            verdict, reason = UNKNOWN, ENDED_EARLY
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
            for number, call in enumerate(counted.calls if counted else (), 1):
                rows.append({"call": number, "kind": call.kind, "file": call.file, "verdicts": {}})
            for outcome in self._outcomes:
                if outcome.point.operation == name and outcome.point.number:
                    verdicts = rows[outcome.point.number - 1]["verdicts"]
                    verdicts[outcome.point.fault] = outcome.verdict
            table.append({"operation": name, "calls": rows})
        return table


def _counts(points: list[Outcome]) -> dict[str, int]:
    """Return how many points there were, and what came of them."""
    kills = sum(one.point.fault in KILLS for one in points)
    return {
        "points": len(points),
        "kills": kills,
        "errors": len(points) - kills,
        "workers": sum(one.found.get("recovered_by") == "command" for one in points),
        "stopped": sum(bool(one.found.get("stopped")) for one in points),
        "retried": sum("tries" in one.found for one in points),
    }


def _tally(points: Iterable[Outcome]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for one in points:
        fault = "kill" if one.point.fault in KILLS else one.point.fault
        counts[fault] = counts.get(fault, 0) + bool(one.found.get("reached"))
    return counts


def operations_of(target: Any) -> tuple[str, ...]:
    """Return the operations that the engine can kill in, in their order: any target has lives."""
    if not callable(getattr(target, "steps", None)):
        return crash_life.LIVES
    offered = target.step_operations
    steps = [one.operation for one in SCENARIOS if (one.base or one.operation) in offered]
    return (*steps, crash_life.WORK)
