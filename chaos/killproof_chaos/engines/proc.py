"""The engine `proc`: real producers and workers on a real file, really killed, then judged.

Two phases. Chaos: the plan's faults are made until all have hit, for at least the seconds asked
for and at most three times that, or as long as new places are still being hit. Then heal: no more
faults, everybody goes on, the producers stop, and the queue must come to rest by itself before a
deadline. Only then do the workers get SIGTERM, and when the last process has ended the database is
copied and read.

The supervisor is one loop in one thread. It never opens the database while anybody works on it:
it sees sizes and locks through the kernel, and counts through a process of its own.
"""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from killproof_chaos import coverage, mix, targets
from killproof_chaos.engines.crash_process import last_line, last_words
from killproof_chaos.engines.crew import Crew, EngineFailed, Process
from killproof_chaos.engines.finish import finish, prepare
from killproof_chaos.engines.kernel import open_counts, wal_bytes
from killproof_chaos.engines.outage import Outage
from killproof_chaos.engines.roles import read_whole
from killproof_chaos.engines.starvation import StarvationWatch
from killproof_chaos.nemesis import Nemesis
from killproof_chaos.phases import Board
from killproof_chaos.plan import STRETCH, STRETCH_MAX, Options, Plan
from killproof_chaos.shim.build import ShimUnavailable, build
from killproof_chaos.shim.control import Control
from killproof_chaos.shim.environment import preload_environment
from killproof_chaos.stores import run_record
from killproof_evidence.contract import DELETED, TERMINAL
from killproof_evidence.finding import VIOLATED
from killproof_evidence.judge import PROPERTIES, judge
from killproof_evidence.lifetime import end_all_with
from killproof_evidence.store import Store
from killproof_evidence.target import Target

#: How long the loop waits for news; an armed process stands still for half of it on average.
TURN_SECONDS: Final = 0.001
SAMPLE_SECONDS: Final = 0.25
SHOW_SECONDS: Final = 0.1
SINK_SECONDS_MAX: Final = 10.0
#: The queue must come to rest within the time of the run again, but not less than this.
DRAIN_SECONDS_MIN: Final = 6.0
#: Of the contract's time: stalls of the machine are taken off what the queue had (P17), and with
#: nothing over, one of a moment would make `unknown` of every queue that stands still.
DRAIN_SHARE: Final = 1.05
#: Who has ended a job, or hit one more place, has so much longer for the next.
PROGRESS_SECONDS: Final = 2.0
#: Counts must be the same in so many looks of the observer, a tenth of a second apart.
STABLE_LOOKS: Final = 3
STOP_SECONDS_MAX: Final = 15.0
#: The nemeses that act through the shim.
THROUGH_SHIM: Final = frozenset({"clock", "io"})
#: A worker that cannot even start will not start the next time either.
DEATHS_MAX: Final = 40

Phase = Literal["starting", "chaos", "drain", "stop", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the display is told ten times a second."""

    phase: Phase
    elapsed: float  #: seconds since the start of the chaos
    kills: int
    pauses: int
    terms: int
    locks: int
    cells: int  #: of the obliged nemesis@phase, those that were hit
    enqueued: int
    workers: int  #: alive
    counts: dict[str, int]  #: jobs by state, while draining


Show = Callable[[Progress], None]


class _TooManyDeaths(EngineFailed):
    """Processes end unasked: they cannot even start, or the queue has broken what they need."""


class Engine:
    """One run, from an empty store to the evidence in it."""

    def __init__(self, options: Options, plan: Plan, store: Store, show: Show) -> None:
        """Prepare the run; nothing is started yet."""
        self._options = options
        self._plan = plan
        self._store = store
        self._show = show
        self._target: Target = targets.load(options.target)
        # Absolute: a worker in another language may begin by changing its folder.
        self._place = store.path.resolve() / "place"
        self._wire = store.path.resolve() / "wire"  # Small files between the processes and us.
        self._database = self._place / getattr(self._target, "database", "queue.db")
        self._finishing = False
        self._problems: list[str] = []
        self._deaths = 0
        self._next_sample = 0.0
        self._next_show = 0.0
        self._start_ns = 0
        self._phase: Phase = "starting"
        self._counts: dict[str, int] = {}
        self._enqueued = 0

    def run(self) -> dict[str, Any]:
        """Run to the end and write the evidence; return run.json.

        Raises:
            EngineFailed: the harness itself could not do its work.
        """
        started = time.time()
        targets.tell_seed(self._options.seed)
        obliged = coverage.obliged(self._target, self._options)
        self._owed = frozenset(obliged)
        prepare(self._target, self._place, self._database, self._plan)
        self._wire.mkdir()
        contract = mix.contract_of(self._target, self._plan.capabilities)
        self._store.write_contract(contract)
        self._plan.write(self._store.plan)
        self._nemesis_log = self._store.writer(self._store.nemesis)
        self._samples = self._store.writer(self._store.samples)
        board = Board(self._store.path / "phases.bin")
        self._shim = self._make_shim()
        beneath = preload_environment(self._shim) if self._shim is not None else None
        self._crew = Crew(self._store, self._place, self._options.target, board, beneath=beneath)
        self._crew.are_workers_silent = not coverage.phases_of(self._target)
        drained, reason = False, ""
        early: BaseException | None = None  # Why the run ended before its time.
        try:
            self._start()
            watch = StarvationWatch(self._nemesis_log)
            try:
                self._chaos()
                drained, reason = self._drain()
            except (KeyboardInterrupt, _TooManyDeaths) as end:
                early = end
                if isinstance(end, _TooManyDeaths):
                    self._problems.append(f"the run was cut short: {end}")
                self._nemesis.heal()
            interrupted = isinstance(early, KeyboardInterrupt)
            self._stop(STOP_SECONDS_MAX if not interrupted else STOP_SECONDS_MAX / 5)
            starved = watch.stop()
        finally:
            self._close(board)
        self._tell("judge", force=True)
        found = finish(
            self._target,
            self._store,
            self._place,
            self._database,
            self._options,
            run_record(
                self._target,
                "proc",
                self._options.argv(),
                seed=self._options.seed,
                started=started,
                problems=self._problems,
                replay=f"killproof chaos replay {self._options.token()}",
            )
            | {
                "chosen_nemeses": list(self._options.nemeses),
                "obligations": {"obliged": obliged},
                "drained": drained,
                "not_drained_because": reason,
                "interrupted": interrupted,
                "hits": dict(self._nemesis.hits),
                "not_asked": mix.not_asked(self._target, contract),
            }
            | starved,
        )
        if isinstance(early, _TooManyDeaths) and not _is_judged(self._store):
            raise early
        return found

    def _close(self, board: Board) -> None:
        """Give back what the run has had open, and end what its workers have left running."""
        self._crew.close()
        end_all_with("KILLPROOF_EFFECTS", str(self._store.effects.resolve()))
        board.close()
        if self._shim is not None:
            self._shim.close()
        shutil.rmtree(self._wire)

    def _make_shim(self) -> Control | None:
        """Make the memory that the shim shares, where a chosen nemesis needs it.

        Without a compiler the run goes on without those faults, and can only be `unknown`.
        """
        if not THROUGH_SHIM & set(self._options.nemeses):
            return None
        try:
            build()
        except ShimUnavailable as error:
            self._problems.append(str(error))
            return None
        return Control.create(self._wire / "shim", watch=self._place)

    # --- The phases of a run.

    def _start(self) -> None:
        self._crew.wait_until_warm()
        self._crew.spawn("sink", "sink", told=str(self._wire / "sink.json"))
        deadline = time.monotonic() + SINK_SECONDS_MAX
        while (told := read_whole(self._wire / "sink.json")) is None:
            self._turn(0.01)
            if time.monotonic() > deadline:
                raise EngineFailed("the HTTP sink did not start")
        self._crew.environment["KILLPROOF_SINK"] = told["url"]
        lease_ms = self._target.contract.parameters.get("lease_ms", 500)
        self._nemesis = Nemesis(
            self._crew,
            self._nemesis_log,
            [f for f in self._plan.faults if self._shim is not None or f.fault not in THROUGH_SHIM],
            database=self._database,
            wire=self._wire,
            lease_ms=lease_ms,
            blind=not coverage.phases_of(self._target),
            shim=self._shim,
        )
        self._outage = Outage(
            self._target, self._place, self._crew, self._nemesis, self._nemesis_log
        )
        self._start_ns = time.monotonic_ns()
        for name in self._plan.workers:
            self._crew.spawn(name, "worker")
        for name in self._plan.producers:
            self._spawn_producer(name)

    def _chaos(self) -> None:
        self._phase = "chaos"
        options = self._options
        source = random.Random(f"more {options.seed}")
        asked = {"kill": options.kills, "pause": options.pauses}
        reached, limit = 0, options.seconds * STRETCH
        while (elapsed := self._elapsed()) < limit:
            missing = [
                fault
                for fault, count in asked.items()
                if fault in options.nemeses and self._nemesis.hits[fault] < count
            ]
            if self._nemesis.exhausted:
                if not missing and elapsed >= options.seconds:
                    return
                for fault in missing:
                    self._nemesis.add_random(fault, int(elapsed * 1_000), source.random())
            self._turn()
            self._nemesis.step(int(elapsed * 1_000))
            if self._fails_calls and self._outage.look():
                self._repair()
            places = len(self._nemesis.cells) + self._nemesis.hits["io"]
            if places > reached:  # A slow machine gets on with it as well.
                reached = places
                longest = options.seconds * STRETCH_MAX
                limit = max(limit, min(elapsed + PROGRESS_SECONDS, longest))

    @property
    def _fails_calls(self) -> bool:
        """Whether calls of the queue are made to fail in this run."""
        return self._shim is not None and "io" in self._options.nemeses

    def _repair(self, *, with_producers: bool = True) -> None:
        """End everybody, do the target's repair, and start everybody anew."""
        if problem := self._outage.end(self._turn):
            self._problems.append(problem)
        for name in self._plan.workers:
            self._crew.spawn(name, "worker")
        for name in self._plan.producers if with_producers else ():
            self._spawn_producer(name)

    def _drain(self) -> tuple[bool, str]:
        """Let the queue come to rest; return whether it did, and why not."""
        self._phase = "drain"
        if self._fails_calls:
            self._nemesis.end_failures()
            self._repair(with_producers=False)
        self._nemesis.heal()
        mapping = self._target.audit
        if mapping is None:
            return self._drain_blindly()
        self._crew.spawn(
            "observer", "observer", database=str(self._database), table=mapping.table,
            state=mapping.state, told=str(self._wire / "counts.json"),
        )  # fmt: skip
        patience = self._patience()
        deadline = time.monotonic() + patience
        latest = deadline + patience * (STRETCH - 1)
        told = {str(k): word for k, word in mapping.states.items()}  # JSON knows no other keys.
        may_go = any(DELETED in new for new in self._target.contract.edges.values())
        seen, stable, fewest, reason = 0, 0, 1 << 62, "nothing was counted"
        counts: dict[str, int] = {}
        while time.monotonic() < deadline:
            self._drain_turn()
            look = read_whole(self._wire / "counts.json")
            if look is None or look["number"] == seen:
                continue
            seen = look["number"]
            words = in_words(look["counts"], told)
            stable = stable + 1 if words == counts else 0
            self._counts = counts = words
            live = sum(n for state, n in counts.items() if state not in TERMINAL)
            if live < fewest:  # It gets on with it: a long backlog is no fault.
                fewest = live
                deadline = min(latest, max(deadline, time.monotonic() + PROGRESS_SECONDS))
            total = sum(counts.values())
            reason = f"{live} jobs were still alive" if live else ""
            if total != look["inserted"] and not may_go:
                reason = f"{look['inserted']} jobs were enqueued and {total} are there"
            if not live and stable >= STABLE_LOOKS and not self._crew.of_role("producer"):
                return not reason, reason
        return False, reason or "the counts did not come to rest"

    def _patience(self) -> float:
        """Return for how many seconds the queue may stand still before it counts as stuck."""
        drain_ms: int = self._target.contract.parameters.get("drain_ms", 0)
        return max(DRAIN_SECONDS_MIN, self._options.seconds, drain_ms / 1_000 * DRAIN_SHARE)

    def _drain_turn(self) -> None:
        """Do one turn without faults; stop producers as soon as they can be stopped.

        One that was being born at the heal would otherwise enqueue until the deadline.
        """
        for process in self._crew.of_role("producer"):
            self._send_stop(process)
        self._turn()
        self._nemesis.step(0)

    def _drain_blindly(self) -> tuple[bool, str]:
        """Wait for a target that tells nothing: until the effect log has been silent for long."""
        patience = self._patience()
        deadline = time.monotonic() + patience
        latest = deadline + patience * (STRETCH - 1)
        # What a dead worker had in hand makes no noise until its lease has run out.
        lease_ms: int = self._target.contract.parameters.get("lease_ms") or 0
        silence = DRAIN_SECONDS_MIN / 4 + lease_ms / 1_000
        size, since = -1, time.monotonic()
        while time.monotonic() < deadline:
            self._drain_turn()
            now = sum(path.stat().st_size for path in self._store.effects.glob("*.jsonl"))
            if now != size:  # It gets on with it, or goes round in circles: nobody can tell.
                size, since = now, time.monotonic()
                deadline = min(latest, max(deadline, since + PROGRESS_SECONDS))
            if time.monotonic() - since > silence:
                return True, ""
        return False, "handlers were still being called"

    def _stop(self, seconds: float) -> None:
        """Ask everybody to end in order; kill what does not, and say so."""
        self._phase = "stop"
        self._finishing = True
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._turn()
            self._nemesis.step(0)
            working = self._crew.of_role("worker", "producer", "lock")
            rest = self._crew.of_role("observer", "sink")
            for process in working or rest:
                if process.state == "running" or process.role not in ("worker", "producer"):
                    self._send_stop(process)
            if not working and not rest and self._crew.all_born:
                return
        for process in self._crew.of_role("worker", "producer"):
            self._problems.append(f"{process.name} did not end within {seconds:g} s of SIGTERM")
            if process.state in ("running", "stopped"):
                self._nemesis.kill(process, "")
        deadline = time.monotonic() + 2
        while self._crew.of_role("worker", "producer") and time.monotonic() < deadline:
            self._turn()

    # --- One turn of the loop.

    def _turn(self, seconds: float = TURN_SECONDS) -> None:
        for process in self._crew.poll(seconds):
            self._on_end(process)
        now = time.monotonic()
        if now >= self._next_sample and self._start_ns:
            self._next_sample = now + SAMPLE_SECONDS
            self._sample()
        if now >= self._next_show:
            self._next_show = now + SHOW_SECONDS
            self._tell(self._phase)

    def _on_end(self, process: Process) -> None:
        if process.role not in ("worker", "producer"):
            return
        if not self._nemesis.on_end(process):
            self._deaths += 1
            self._problems.append(f"{process.name} ended with status {process.status}, unasked")
            if self._deaths > DEATHS_MAX and not self._finishing:
                log = self._store.path / "logs" / f"{process.base}.log"
                words = last_line(last_words(log.parent, log.name))
                raise _TooManyDeaths(
                    f"processes end by themselves again and again, {process.name} with "
                    f"{words!r}; see {log}"
                )
        if self._finishing or self._outage.is_on:
            return  # After an outage everybody is started anew.
        if process.role == "worker":
            self._crew.spawn(process.base, "worker")
        elif not self._nemesis.healed:
            if not process.told_stop_ns and process.status == 0:
                return  # It has done all of its list.
            self._spawn_producer(process.base)

    def _spawn_producer(self, name: str) -> None:
        self._crew.spawn(name, "producer", name=name, start_ns=self._start_ns)

    def _send_stop(self, process: Process) -> None:
        if not process.told_stop_ns and process.pid:
            if process.role in ("worker", "producer"):
                if process.state == "running":
                    self._nemesis.term(process, self._crew.board.phase(process.slot))
            else:
                process.told_stop_ns = time.monotonic_ns()
                process.send(signal.SIGTERM)

    def _elapsed(self) -> float:
        return (time.monotonic_ns() - self._start_ns) / 1e9

    def _sample(self) -> None:
        """Write the size of the log, and what each worker has open, as the kernel shows it."""
        now = time.monotonic_ns()
        self._samples.append({"t": now, "wal_bytes": wal_bytes(self._database)})
        for process in self._crew.of_role("worker"):
            if (counts := open_counts(process.pid)) is not None:
                facts = {"t": now, "pid": process.pid, "process": process.name}
                self._samples.append(facts | counts)

    def _tell(self, phase: Phase, *, force: bool = False) -> None:
        if not self._start_ns and not force:
            return
        crew, hits = self._crew, self._nemesis.hits
        if phase == "chaos":
            slots = [process.slot for process in crew.of_role("producer")]
            self._enqueued = max(self._enqueued, sum(map(crew.board.progress, slots)))
        self._show(
            Progress(
                phase=phase,
                elapsed=self._elapsed(),
                kills=hits["kill"],
                pauses=hits["pause"],
                terms=hits["term"],
                locks=hits["lock"],
                cells=len(self._nemesis.cells & self._owed),
                enqueued=self._enqueued,
                workers=len(crew.of_role("worker")),
                counts=self._counts,
            )
        )


def _is_judged(store: Store) -> bool:
    """Say whether the queue broke a promise before its processes could not go on.

    Promises of time do not count: a worker that cannot even start keeps none of those either.
    """
    found = judge(store, write=False).record["properties"]
    return any(found[one.number]["verdict"] == VIOLATED for one in PROPERTIES if not one.time_bound)


def in_words(counts: Mapping[str, int], told: Mapping[str, str]) -> Counter[str]:
    """Return counts by the contract's words; two words of a table may be one of the contract's."""
    words: Counter[str] = Counter()
    for word, count in counts.items():
        words[told.get(word, word)] += count
    return words
