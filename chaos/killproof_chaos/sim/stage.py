"""The stage: a target's real file in memory, set up once and put back between schedules.

Opening a file, a client and its connections costs milliseconds; a schedule costs less than one. So
all of it stays open. Between two schedules the file is put back as it was (see `image.py`), and so
is what the clients keep in memory. A target says where that is (`memory(client)` returns the
objects); one that does not is opened anew for each schedule, which is slower and just as right.
"""

import asyncio
import ctypes
import gc
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from greenlet import GreenletExit

from killproof_chaos import memory
from killproof_chaos.engines.finish import EFFECT_TABLE
from killproof_chaos.sim import coroutines, plans
from killproof_chaos.sim.host import SimHost
from killproof_chaos.sim.image import Image
from killproof_chaos.sim.judging import Verdict, integrity, judge, write_store
from killproof_chaos.sim.patience import patience_of
from killproof_chaos.sim.runtime import (
    ENDED,
    Event,
    Life,
    Runtime,
    Scheduler,
    Unrepeatable,
)
from killproof_chaos.sim.scenario import Actor, Function, Scenario
from killproof_chaos.sim.schedulers import Choices, token_of
from killproof_evidence.audit import audit_records, install_audit
from killproof_evidence.contract import TERMINAL
from killproof_evidence.store import Store

#: How long before the actors begin the file is set up, ns. Of two jobs that came in the very
#: moment of a claim no judge knows which was there first: nothing would be said of their order.
SET_UP_NS: Final = 20_000_000
#: How much longer than a lease a pass of time is, s: more than any doubt of the checkers.
MARGIN_SECONDS: Final = 0.05
LEASE_SECONDS_DEFAULT: Final = 60.0
#: Jobs that the drain at the end runs at most; the pauses between idle looks double.
HEAL_ROUNDS: Final = 60
#: States in which a job waits for a person or for another job, as the checker of P17 has it.
PARKED: Final = frozenset({"held", "blocked"})
#: Names of glibc's malloc.h, and how much freed memory it may keep.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_KEPT_BYTES: Final = 64 << 20
#: What schedules leave in reference cycles is collected after so many of them.
COLLECT_RUNS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one schedule."""

    choices: Choices
    steps: int  #: choices made, the forced ones included
    switches: int  #: times that another actor went on
    stopped: str  #: `cut` by the scheduler, `hung`, `steps` (it never ends); empty: to its end
    verdict: Verdict | None  #: None: cut off, so there is nothing to judge
    evidence: int  #: equal in this process for schedules with equal evidence
    events: tuple[tuple[str, dict[str, Any]], ...]  #: (file of the store, record), in order
    trace: tuple[Event, ...]  #: empty where none was kept
    finally_rows: tuple[dict[str, Any], ...]  #: every job at the end; empty where no trace was kept

    @property
    def token(self) -> str:
        """The schedule as text."""
        return token_of(self.choices)

    @property
    def is_violation(self) -> bool:
        """Whether a promise broke."""
        return self.verdict is not None and bool(self.verdict.violations)

    @property
    def broken(self) -> frozenset[str]:
        """The promises that broke."""
        violations = () if self.verdict is None else self.verdict.violations
        return frozenset(violation.promise for violation in violations)

    def text(self) -> str:
        """Return the trace as lines; the same schedule gives the same bytes anywhere."""
        return "".join(f"{event.line()}\n" for event in self.trace)


class Stage:
    """One target and one scenario, ready to be played again and again."""

    def __init__(self, target: Any, scenario: Scenario, *, remembers: bool = True) -> None:
        """Set the file up and enqueue the scenario's jobs; close it, or use a `with` block.

        Args:
            target: at level 2, with an audit mapping.
            scenario: the race.
            remembers: whether the heal phase is played once for schedules that end alike. The file
                and the records are then those of the end, not of the heal phase.

        Raises:
            ValueError: the target can not be simulated; the message says what it lacks.
        """
        if not callable(getattr(target, "open", None)) or target.audit is None:
            raise ValueError(f"target {target.name!r} has no open(place, host), so no simulation")
        _keep_memory()
        self.target, self.scenario = target, scenario
        self.contract = replace(
            target.contract,
            promises={**target.contract.promises, **scenario.promised},
            parameters={**target.contract.parameters, **scenario.parameters},
        )
        lease_ms = self.contract.parameters.get("lease_ms")
        self.lease = LEASE_SECONDS_DEFAULT if lease_ms is None else lease_ms / 1_000
        self.patience = patience_of(self.contract, scenario, lease=self.lease)
        self._stalled = ""
        jump = self.lease + MARGIN_SECONDS if scenario.jump is None else scenario.jump
        self.runtime = Runtime(
            list(scenario.actors),
            jump_ns=round(jump * 1e9),
            faults=scenario.faults,
            shares_memory=scenario.shares_memory,
        )
        self.place = memory.folder("sim")
        self.runtime.hides = f"{self.place}/"
        self.path = self.place / getattr(target, "database", "queue.db")
        self._register: dict[int, Life] = {}
        self._parties: list[_Party] = []
        self.ids: dict[str, Any] = {}  #: harness id -> the queue's, of the scenario's jobs
        self._remembers = remembers
        #: By a hash of the moment at which the actors have ended: a hash of the evidence.
        self._ends: dict[int, int] = {}
        self._verdicts: dict[int, Verdict] = {}
        self._problems: dict[int, list[str]] = {}  #: of the file, by a hash of what was committed
        self._runs = 0
        #: What SQLite would walk through, by operation and statement: each is explained once.
        self._walks: dict[tuple[str, str], list[str]] = {}
        if scenario.plans:
            self.runtime.asked = {}
        self._database: sqlite3.Connection | None = None
        self._image: Image | None = None
        if scenario.syncs and hasattr(target, "announce"):
            target.announce(self._pass_sync_point)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything and remove the file."""
        self.close()

    def close(self) -> None:
        """Close everything and remove the file."""
        self.runtime.quiet = True
        if self.scenario.syncs and hasattr(self.target, "announce"):
            self.target.announce(None)
        self.runtime.close()
        for party in self._parties:
            party.close()
        if self._image is not None:
            self._image.close()
        if self._database is not None:
            self._database.close()
        shutil.rmtree(self.place, ignore_errors=True)

    def play(self, scheduler: Scheduler, *, keeps_trace: bool = False) -> Outcome | None:
        """Play one schedule and judge it; None: the scheduler has none left.

        Args:
            scheduler: is asked at each choice.
            keeps_trace: whether the outcome tells every step, which costs time.
        """
        runtime = self.runtime
        runtime.idle_until = 0
        if not scheduler.begin(runtime):
            return None
        with uncollected():
            return self._play(scheduler, keeps_trace)

    def _play(self, scheduler: Scheduler, keeps_trace: bool) -> Outcome:
        runtime = self.runtime
        self._put_back()
        runtime.keeps_trace = keeps_trace
        actors = self._parties[: len(runtime.roots)]
        functions = list(self.scenario.actors.values())
        if self.scenario.before is not None:
            self.scenario.before()
        runtime.run(
            [
                _body(runtime, party, function)
                for party, function in zip(actors, functions, strict=True)
            ],
            scheduler,
        )
        verdict, key = None, 0
        if runtime.stopped != "cut":
            self._ask_always()
            verdict, key = self._finish(may_skip=self._remembers and not keeps_trace)
        runtime.quiet = True
        rows = self._rows() if keeps_trace and verdict is not None else ()
        return Outcome(
            choices=tuple(runtime.choices),
            steps=runtime.step,
            switches=runtime.switches,
            stopped=runtime.stopped,
            verdict=verdict,
            evidence=key,
            events=tuple(runtime.events) if keeps_trace else (),
            trace=tuple(runtime.trace),
            finally_rows=tuple(rows),
        )

    def write_store(self, place: Store | Path | str, outcome: Outcome) -> Store:
        """Write the evidence of the schedule that was played last as a store.

        Args:
            place: a store that holds no run yet, or where to make one.
            outcome: of that schedule.

        Raises:
            StoreError: the folder holds something already; definite.
        """
        run = {
            "engine": "sim",
            "target": self.target.name,
            "scenario": self.scenario.name,
            "replay": outcome.token,
            "obligations": {},
        }
        return write_store(place, self._records(), run=run, contract=self.contract)

    def _pass_sync_point(self, _name: str) -> None:
        """Be at a sync point of a target whose hook is one for the whole process."""
        if not self.runtime.quiet:
            self.runtime.point()

    # Setting up.

    @property
    def database(self) -> sqlite3.Connection:
        """The stage's own connection, which no actor knows of."""
        assert self._database is not None
        return self._database

    def _set_up(self) -> None:
        runtime, scenario = self.runtime, self.scenario
        runtime.quiet = True
        runtime.advance(-SET_UP_NS)
        # The first open makes the file, on the virtual host: at level `power` a real one refuses.
        roots = [*runtime.roots, Life(len(runtime.roots), "heal")]
        producer = Life(len(roots), "p0")
        self._producer = _Party(self, producer)
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            install_audit(self.path, self.target.audit)
            database.execute(EFFECT_TABLE)
        actor = self._producer.begin()
        for job in scenario.jobs:
            actor.enqueue(job)
        if scenario.prepare is not None:
            scenario.prepare(actor)
        actor.finish()
        self.ids |= actor.ids
        self._producer.close()
        self._first = (tuple(runtime.events), runtime.commits)
        self._parties = [_Party(self, root) for root in roots]
        self._database = sqlite3.connect(self.path, isolation_level=None, cached_statements=512)
        self._image = Image(self._database, self.path)

    def _put_back(self) -> None:
        """Make everything as it was after the set-up."""
        runtime = self.runtime
        runtime.quiet = True
        changed_schema = runtime.changed_schema
        self._runs += 1
        if self._runs % COLLECT_RUNS == 0:
            gc.collect(1)  # Before the next run begins: what it finds may complain of its own end.
        runtime.reset()
        events, runtime.commits = self._first
        runtime.events.extend(events)
        self._register.clear()
        for party in self._parties:
            party.drop()
        assert self._image is not None
        self._image.put_back()
        if changed_schema:
            self._look()
        for party in self._parties:
            party.put_back()

    def _look(self) -> None:
        """Let every connection learn the schema anew: its number is given out a second time."""
        self.database.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        for party in self._parties:
            for held in party.life.held:
                held.look()

    # The end of a run.

    def _ask_always(self) -> None:
        """Let the scenario say whether all is as its author promises, whoever died or hangs."""
        runtime, always = self.runtime, self.scenario.always
        # Not after an error: that is the finding, and another would hide it.
        if always is None or runtime.errors:
            return
        runtime.quiet, runtime.current = True, None
        try:
            always()
        except (KeyboardInterrupt, GreenletExit):
            raise
        except BaseException as error:
            runtime.fail("always", error)
        runtime.quiet = False

    def _finish(self, *, may_skip: bool) -> tuple[Verdict, int]:
        """Heal, and judge; return the verdict and a hash of the evidence.

        Args:
            may_skip: whether what is known of an equal end may stand for this one. Nobody lives any
                more, so what comes is a function of the file, the clocks and the evidence so far,
                as long as nothing else keeps a state.
        """
        runtime = self.runtime
        end = hash((runtime.order, runtime.commits, runtime.now_ns, runtime.wall_ms))
        is_private = not runtime.shares_memory
        if may_skip and is_private and (key := self._ends.get(end)) is not None:
            return self._verdicts[key], key
        self._stalled = self._heal()
        key = hash((runtime.order, runtime.commits, self._stalled))
        if is_private and self._ends.setdefault(end, key) != key:
            raise Unrepeatable("schedules that ended alike were healed to different ends")
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = self._judge()
        return verdict, key

    def _heal(self) -> str:
        """End all faults and let one more worker drain the queue; return what it could not do."""
        runtime, healer = self.runtime, self._parties[-1]
        for life in runtime.lives:
            life.state = ENDED
        for party in self._parties[:-1]:
            party.drop()
        runtime.writer = None
        runtime.current, runtime.solo = None, True
        runtime.set_clock(0)
        runtime.record("nemesis.jsonl", {"fault": "heal"})
        if not self.scenario.heals or not self._unfinished():
            return ""
        runtime.current = healer.life
        stalled = ""
        try:
            stalled = self._drain(healer.begin())
        except (KeyboardInterrupt, GreenletExit):
            raise
        except BaseException as error:
            # The queue is broken for whoever comes after; that is a finding, not our failure.
            runtime.fail(healer.life.name, error)
        healer.drop()
        return stalled

    def _drain(self, actor: Actor) -> str:
        """Work until all is done, or nothing was for too long; return what is left then."""
        runtime, pause = self.runtime, self.lease + MARGIN_SECONDS
        end_ns = runtime.now_ns + round(self.patience * 1e9)
        left: set[str] = set()
        rounds = 0
        while rounds < HEAL_ROUNDS:
            if actor.work():
                rounds += 1
                pause = self.lease + MARGIN_SECONDS
                end_ns = runtime.now_ns + round(self.patience * 1e9)
                continue
            left = self._unfinished() - PARKED
            if not left or runtime.now_ns >= end_ns:
                break
            runtime.sleep(min(pause, (end_ns - runtime.now_ns) / 1e9))
            pause *= 2
        actor.finish()
        if rounds == HEAL_ROUNDS or not left:
            return ""
        return (
            f"a job is still {min(left)} after {self.patience:g} s without a fault or anything to "
            "do, and nothing in the contract takes so long"
        )

    def _unfinished(self) -> set[str]:
        """Return the states, in the contract's words, of jobs that have not ended."""
        mapping = self.target.audit
        if mapping.state.isidentifier():
            query = f'SELECT DISTINCT "{mapping.state}" FROM "{mapping.table}"'  # noqa: S608 - ours
            found = {mapping.states.get(row[0], row[0]) for row in self.database.execute(query)}
        else:
            found = {row["state"] for row in self._rows()}
        return found - TERMINAL

    def _judge(self) -> Verdict:
        told = {
            number: tuple(check(self.database)) for number, check in self.scenario.checks.items()
        }
        if self._stalled and self.contract.promised("P17"):
            told["P17"] = (*told.get("P17", ()), self._stalled)
        if self.scenario.plans and self.contract.promised("P20"):
            told["P20"] = self._scans()
        return judge(
            self._records(),
            contract=self.contract,
            promises=self.scenario.promises,
            problems=self._integrity(),
            errors=self.runtime.errors,
            told=told,
        )

    def _scans(self) -> tuple[str, ...]:
        """Return what SQLite would walk through for the statements of this run."""
        asked, table = self.runtime.asked or {}, self.target.audit.table
        for key in asked.keys() - self._walks.keys():
            self._walks[key] = list(plans.scans(self.database, table, {key: asked[key]}))
        return tuple(walk for key in asked for walk in self._walks[key])

    def _integrity(self) -> list[str]:
        """Return what SQLite finds wrong with the file, once for equal commits."""
        commits = self.runtime.commits
        found = self._problems.get(commits)
        if found is None:
            found = self._problems[commits] = integrity(self.database)
        return found

    def _records(self) -> dict[str, list[dict[str, Any]]]:
        """Return all records of the run, by their path in a store."""
        records: dict[str, list[dict[str, Any]]] = {}
        for file, record in self.runtime.events:
            records.setdefault(file, []).append(record)
        records["audit.jsonl"] = list(audit_records(self.database, self.target.audit))
        records["snapshot.jsonl"] = list(self._rows())
        query = "SELECT job, attempt, fence FROM chaos_effect ORDER BY seq"
        records["effects/table.jsonl"] = [
            {"job": job, "attempt": attempt, "fence": fence, "what": "applied"}
            for job, attempt, fence in self.database.execute(query)
        ]
        return records

    def _rows(self) -> Iterator[dict[str, Any]]:
        rows = getattr(self.target, "rows", None)
        found = self.target.snapshot(self.place) if rows is None else rows(self.database)
        for row in found:
            yield row.record()


class _Party:
    """One process of the stage: its life, its host and its client."""

    def __init__(self, stage: Stage, life: Life) -> None:
        """Open the target's client for a life."""
        self._stage, self.life = stage, life
        self.host = SimHost(stage.runtime, life, stage._register, syncs=stage.scenario.syncs)
        self._open()

    def begin(self) -> Actor:
        """Return what the function of the actor is given, for this run."""
        self._stage.runtime.current = self.life
        actor = Actor(self._stage.runtime, self.life, self.client)
        actor.ids |= self._stage.ids
        actor.lease = self._stage.lease
        return actor

    def put_back(self) -> None:
        """Be as just opened."""
        self.drop()
        self.life.reset()
        self.host.reset()
        if self._memory is None:
            self.close()
            self._open()
        else:
            self._memory.put_back()

    def drop(self) -> None:
        """End what the run has left open."""
        for held in self.life.held:
            held.drop()

    def close(self) -> None:
        """Close the client and its connections."""
        runtime = self._stage.runtime
        runtime.quiet, runtime.current = True, self.life
        self.life.is_dead = False
        self.client.close()
        for held in list(self.life.held):
            held.close()
        runtime.current = None

    def _open(self) -> None:
        runtime, target = self._stage.runtime, self._stage.target
        runtime.quiet, runtime.current = True, self.life
        self.client: Any = target.open(self._stage.place, self.host)
        runtime.current = None
        memory: Callable[[Any], tuple[object, ...]] | None = getattr(target, "memory", None)
        self._memory = None if memory is None else _Memory(memory(self.client))


class _Memory:
    """What some objects held in their attributes at one moment."""

    def __init__(self, objects: tuple[object, ...]) -> None:
        self._kept = [(found.__dict__, *_parted(found.__dict__)) for found in objects]

    def put_back(self) -> None:
        """Make the attributes what they were; containers begin as they were."""
        for attributes, plain, containers in self._kept:
            attributes.clear()
            attributes.update(plain)
            for name, container in containers:
                attributes[name] = type(container)(container)


def _parted(attributes: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Return attributes without what changes in place, and copies of what does."""
    containers = [(n, type(v)(v)) for n, v in attributes.items() if type(v) in (dict, list, set)]
    names = {name for name, _ in containers}
    return {n: v for n, v in attributes.items() if n not in names}, containers


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no garbage be collected meanwhile, but where a stage asks for it.

    What the collector finds may have clean-up code, which must not run in an actor's name.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _keep_memory() -> None:
    """Let the C library keep freed memory: it would give it back and ask again at every statement.

    SQLite's statements allocate at the top of the heap, and glibc trims that as soon as 128 KiB of
    it are free: 75 us of system calls in a statement of 18.
    """
    with suppress(AttributeError, OSError):  # Another C library, which has its own ways.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TOP_PAD, _KEPT_BYTES // 8)


def _body(runtime: Runtime, party: _Party, function: Function) -> Callable[[], None]:
    def body() -> None:
        actor = party.begin()
        done = function(actor)
        if asyncio.iscoroutine(done):
            coroutines.run(runtime, done)
        actor.finish()

    return body
