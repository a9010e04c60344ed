"""A campaign: many scenarios on one target, the smallest bounds first, and one verdict.

Every scenario is explored at bound 0, then every one at bound 1, and so on, so that a budget that
ends early has seen all scenarios a little rather than one of them wholly. The scenarios of a bound
share all the time that is left; what a small one does not need, the others get. A scenario ends at
its first violation, which is shrunk. A campaign that keeps going explores on, and shrinks for each
broken promise the schedule that shows it with the fewest deviations.

The verdict is over what was explored, and says how far that was: a pass means every schedule up to
the bound that all scenarios have exhausted, which a budget that ends early makes a smaller one. A
depth-first search that has not exhausted even bound 0 is unknown, whatever it has seen.

Tasks share nothing and may run in several processes; the target must then be known by a name.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from multiprocessing.util import Finalize
from typing import Any, Final

from killproof_chaos import targets
from killproof_chaos.engines.crew import EngineFailed
from killproof_chaos.sim.explore import (
    Budget,
    Exploration,
    explore_stage,
    keep_shortest,
    run_one,
)
from killproof_chaos.sim.runtime import Runtime, Unrepeatable
from killproof_chaos.sim.scenario import Actor, Scenario
from killproof_chaos.sim.scenarios import SCENARIOS
from killproof_chaos.sim.schedulers import Dfs, Pct, Walk, token_of
from killproof_chaos.sim.shrink import ORDER, Shrunk, shrink
from killproof_chaos.sim.stage import Outcome, Stage
from killproof_evidence.finding import PASS, UNKNOWN, VIOLATED

#: Seconds between two looks at tasks that run in other processes.
LOOK_SECONDS: Final = 0.2
#: Tasks of one scenario get seeds so far apart.
SEEDS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    target: str
    scenarios: tuple[str, ...] = ()  #: empty: all
    scheduler: str = "dfs"
    bound: int = 2  #: preemptions (dfs)
    depth: int = 3  #: ordered events (pct)
    crashes: int | None = None  #: in each schedule at most; None: as the scenario says
    seconds: float = 30.0
    seed: int = 1  #: of the random schedulers
    jobs: int = 1  #: processes
    keep_going: bool = False  #: whether a scenario is explored on after a violation

    def argv(self) -> list[str]:
        """Return the command that asks for the same."""
        words = ["killproof", "chaos", "sim", "--target", self.target]
        for name in self.scenarios:
            words += ["--scenario", name]
        words += ["--scheduler", self.scheduler]
        words += ["--bound", str(self.bound)] if self.scheduler == "dfs" else []
        words += ["--depth", str(self.depth)] if self.scheduler == "pct" else []
        words += ["--crashes", str(self.crashes)] if self.crashes is not None else []
        words += ["--seed", str(self.seed)] if self.scheduler != "dfs" else []
        words += ["--budget", f"{self.seconds:g}s"]
        words += ["--keep-going"] if self.keep_going else []
        return words + (["--jobs", str(self.jobs)] if self.jobs != 1 else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One exploration: a scenario at one bound, or with one seed."""

    target: str
    scenario: str
    scheduler: str
    bound: int
    depth: int
    crashes: int | None
    seed: int
    seconds: float
    keep_going: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a task."""

    task: Task
    found: Exploration
    schedules: frozenset[int]  #: hashes of the different schedules, of a random scheduler
    cpu_seconds: float


@dataclass(slots=True, kw_only=True)
class Row:
    """What is known of one scenario."""

    scenario: str
    is_random: bool = False  #: whether a random scheduler plays it, which exhausts nothing
    schedules: int = 0  #: of the bound that played the most; of all seeds
    pruned: int = 0
    outcomes: int = 0  #: different pieces of evidence
    hung: int = 0
    bound: int | None = None  #: the highest that was exhausted
    exhausted: bool = False  #: the bound that was asked for
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    sqlite_seconds: float = 0.0
    played: int = 0  #: in all, whatever the bound
    first: int | None = None  #: the number of the first violating schedule
    found: Exploration | None = None  #: the violations of the task that met the first
    shortest: dict[str, Outcome] = field(default_factory=dict)  #: by promise, of all tasks
    passed: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    unknown: dict[str, str] = field(default_factory=dict)
    different: set[int] = field(default_factory=set)

    @property
    def distinct(self) -> int:
        """How many different schedules; every one of a depth-first search is another."""
        return len(self.different) or self.schedules

    @property
    def verdict(self) -> str:
        """The word for what was explored."""
        if self.broken:
            return VIOLATED
        return PASS if self.passed and self.is_enough and not self.hung else UNKNOWN

    @property
    def is_enough(self) -> bool:
        """Whether what was played is enough for a pass: all of bound 0, or anything at random."""
        return self.schedules > 0 if self.is_random else self.bound is not None

    def add(self, answer: Answer) -> None:
        """Take in what came of a task."""
        found, task = answer.found, answer.task
        if self.is_random:
            self.schedules += found.schedules
            self.pruned += found.pruned
            self.hung += found.hung
        else:
            # The bounds share their schedules: their sum would count many twice, and the longest
            # search plays none twice.
            if found.schedules + found.pruned >= self.schedules + self.pruned:
                self.schedules, self.pruned = found.schedules, found.pruned
            self.hung = max(self.hung, found.hung)
            if found.exhausted and (self.bound is None or task.bound > self.bound):
                self.bound = task.bound
        self.outcomes = max(self.outcomes, found.distinct)
        self.seconds += found.seconds
        self.cpu_seconds += answer.cpu_seconds
        self.sqlite_seconds += found.sqlite_seconds
        self.played += found.schedules + found.pruned
        self.different |= answer.schedules
        self.passed |= found.passed
        self.broken |= found.broken
        self.unknown |= found.unknown
        if found.violations and self.found is None:
            self.first, self.found = found.first, found
        keep_shortest(self.shortest, found.shortest)

    def record(self) -> dict[str, Any]:
        """Return the facts as an object of verdict.json."""
        return {
            "scenario": self.scenario,
            "text": SCENARIOS[self.scenario].text,
            "verdict": self.verdict,
            "schedules": self.schedules,
            "distinct": self.distinct,
            "outcomes": self.outcomes,
            "pruned": self.pruned,
            "hung": self.hung,
            "bound": self.bound,
            "exhausted": self.exhausted,
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "schedules_per_second": round(self.played / self.seconds) if self.seconds else 0,
            "schedules_per_cpu_second": (
                round(self.played / self.cpu_seconds) if self.cpu_seconds else 0
            ),
            "sqlite_share": round(self.sqlite_seconds / self.seconds, 3) if self.seconds else 0.0,
            "first": self.first,
            "broken": sorted(self.broken),
        }


@dataclass(slots=True, kw_only=True)
class Campaign:
    """What a campaign found."""

    options: Options
    rows: dict[str, Row]
    left_out: dict[str, str]  #: scenario -> what the target lacks for it
    stories: list[Shrunk] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How far a campaign is, in tenths of a second."""

    done: int
    total: int
    what: str  #: scenario and bound
    schedules: int
    rate: float  #: schedules a second, the pruned ones included
    left: float  #: s, at most


Show = Callable[[Turn], None]


class Board:
    """What tasks and their starter tell each other: schedules played, and to stop."""

    def __init__(self) -> None:
        self.played = _context().Value("q", 0)
        self.stop = _context().Value("b", 0)
        self.watch: Callable[[], None] | None = None  #: called now and then, in the same process
        self._next = 0.0

    def goes_on(self) -> bool:
        """Count one more schedule; False: it is time to stop."""
        with self.played.get_lock():
            self.played.value += 1
        if self.watch is not None and (now := time.monotonic()) >= self._next:
            self._next = now + LOOK_SECONDS
            self.watch()
        return not self.stop.value


def run(options: Options, show: Show) -> Campaign:
    """Explore, shrink what was found, and return all of it.

    Raises:
        ValueError: a scenario or a target can not be played; the message says why.
    """
    is_random = options.scheduler != "dfs"
    # Of a search that draws nothing no record has the seed: nothing may hang on it.
    targets.tell_seed(options.seed if is_random else None)
    target = targets.load(options.target)
    names, left_out = chosen(options, target)
    campaign = Campaign(
        options=options,
        rows={name: Row(scenario=name, is_random=is_random) for name in names},
        left_out=left_out,
    )
    start, board = time.monotonic(), Board()
    with _interruptible(board):
        for answer in _answers(options, campaign.rows, board, show):
            row = campaign.rows[answer.task.scenario]
            row.add(answer)
            asked = answer.task.scheduler == "dfs" and answer.task.bound == options.bound
            row.exhausted = row.exhausted or (asked and answer.found.exhausted)
        campaign.interrupted = bool(board.stop.value)
    campaign.stories = _shrunk(campaign, target)
    campaign.seconds = time.monotonic() - start
    return campaign


def chosen(options: Options, target: Any) -> tuple[list[str], dict[str, str]]:
    """Return the scenarios to explore, and those that the target can not play, with what it lacks.

    Raises:
        ValueError: a scenario is unknown, or the target can not be simulated.
    """
    for name in options.scenarios:
        if name not in SCENARIOS:
            raise ValueError(f"--scenario {name!r} is unknown: use {', '.join(SCENARIOS)}")
    names = [name for name in SCENARIOS if not options.scenarios or name in options.scenarios]
    able = operations_of(target)
    left_out = {
        name: ", ".join(sorted(SCENARIOS[name].needs - able))
        for name in names
        if SCENARIOS[name].needs - able
    }
    return [name for name in names if name not in left_out], left_out


def operations_of(target: Any) -> frozenset[str]:
    """Return what the target's client has of all that scenarios need.

    Raises:
        ValueError: the target can not be simulated.
    """
    found: set[str] = set()

    def look(me: Actor) -> None:
        needs = {need for scenario in SCENARIOS.values() for need in scenario.needs}
        refused: frozenset[str] = getattr(me.client, "refused", frozenset())
        found.update(n for n in needs - refused if callable(getattr(me.client, n, None)))

    run_one(target, Scenario(name="look", text="somebody looks", actors={"w1": look}, heals=False))
    return frozenset(found) | getattr(target, "capabilities", frozenset())


def scenario_of(name: str, crashes: int | None) -> Scenario:
    """Return a scenario with so many crashes; None: as it is."""
    scenario = SCENARIOS[name]
    if crashes is None:
        return scenario
    return replace(scenario, faults=replace(scenario.faults, crashes=crashes))


def perform(task: Task, board: Board) -> Answer:
    """Explore what a task says, in this process.

    Raises:
        EngineFailed: the target does not do the same again when it is told the same.
    """
    scheduler = _scheduler(task, board)
    started = time.process_time()
    try:
        budget = Budget(seconds=task.seconds, violations=None if task.keep_going else 1)
        found = explore_stage(_stage_of(task), scheduler, budget=budget)
    except Unrepeatable as error:
        raise EngineFailed(
            f"{task.scenario}: {error}; does the target read a clock, draw a number or start a "
            "thread of its own?"
        ) from error
    if board.stop.value and found.exhausted:
        # It ended because it was told to, which the exploration can not know.
        found.exhausted = False
        if isinstance(scheduler, Dfs):
            found.level = scheduler.level - 1
    return Answer(
        task=task,
        found=found,
        schedules=frozenset(scheduler.seen) if not isinstance(scheduler, Dfs) else frozenset(),
        cpu_seconds=time.process_time() - started,
    )


#: The stage that was played last in this process, and what it is a stage of: the next bound of the
#: scenario has most of its endings in common with the last, and each is judged once.
_stage: tuple[tuple[str, str, int | None], Stage] | None = None


def _stage_of(task: Task) -> Stage:
    """Return a stage for a task; it stays open until one of another scenario is asked for."""
    global _stage
    name = (task.target, task.scenario, task.crashes)
    if _stage is None or _stage[0] != name:
        _close_stage()
        scenario = scenario_of(task.scenario, task.crashes)
        _stage = name, Stage(targets.load(task.target), scenario)
    return _stage[1]


def _close_stage() -> None:
    global _stage
    if _stage is not None:
        _stage[1].close()
        _stage = None


class _Dfs(Dfs):
    """A depth-first search that counts, and stops when it is told to."""

    def __init__(self, bound: int, board: Board) -> None:
        super().__init__(bound)
        self._board = board

    def begin(self, runtime: Runtime) -> bool:
        """Take the next schedule, unless it is time to stop."""
        return self._board.goes_on() and super().begin(runtime)


class _Random:
    """A random scheduler that counts, notes which schedules it had, and stops when told to."""

    def __init__(self, inner: Pct | Walk, board: Board) -> None:
        self._inner, self._board = inner, board
        self._begun = False
        self.seen: set[int] = set()
        self.choose = inner.choose

    def begin(self, runtime: Runtime) -> bool:
        """Note the choices of the run that has ended, and prepare the next."""
        if self._begun:
            word = token_of(tuple(runtime.choices)).encode()
            self.seen.add(int.from_bytes(blake2b(word, digest_size=8).digest()))
        self._begun = True
        return self._board.goes_on() and self._inner.begin(runtime)


def _scheduler(task: Task, board: Board) -> _Dfs | _Random:
    if task.scheduler == "dfs":
        return _Dfs(task.bound, board)
    if task.scheduler == "pct":
        return _Random(Pct(task.depth, seed=task.seed), board)
    return _Random(Walk(seed=task.seed), board)


# The order of tasks, and who runs them.


def _answers(
    options: Options, rows: Mapping[str, Row], board: Board, show: Show
) -> Iterator[Answer]:
    """Yield what comes of each task; one process or several."""
    plan = _Plan(options, rows, board, show)
    try:
        yield from _performed(options, plan, board)
    except BrokenProcessPool:
        raise EngineFailed("a process that explored was killed; is there enough memory?") from None
    finally:
        _close_stage()


def _performed(options: Options, plan: "_Plan", board: Board) -> Iterator[Answer]:
    if options.jobs == 1:
        board.watch = plan.tell
        while (task := plan.next()) is not None:
            answer = perform(task, board)
            yield answer
            plan.done(answer)
        return
    with ProcessPoolExecutor(
        options.jobs, mp_context=_context(), initializer=_begin, initargs=(board,)
    ) as pool:
        running: set[Future[Answer]] = set()
        while True:
            while len(running) < options.jobs and (task := plan.next()) is not None:
                running.add(pool.submit(_perform, task))
            if not running:
                return
            done, running = wait(running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            plan.tell()
            for future in done:
                answer = future.result()
                yield answer
                plan.done(answer)


class _Plan:
    """Which task comes next, and how much of the time that is left it may take."""

    def __init__(self, options: Options, rows: Mapping[str, Row], board: Board, show: Show) -> None:
        self._options, self._rows, self._board, self._show = options, rows, board, show
        self._start = time.monotonic()
        is_dfs = options.scheduler == "dfs"
        rounds = range(options.bound + 1) if is_dfs else range(options.jobs)
        self._todo = [(name, number) for number in rounds for name in rows]
        self._busy: list[str] = []  #: scenarios that are being explored
        self._what = ""

    def next(self) -> Task | None:
        """Return the next task; None: none can begin now, or there is no time left.

        A bound waits for the one below it; seeds do not wait for each other.
        """
        options = self._options
        if not options.keep_going:
            self._todo = [pair for pair in self._todo if not self._rows[pair[0]].broken]
        left = options.seconds - (time.monotonic() - self._start)
        if not self._todo or left <= 0 or self._board.stop.value:
            return None
        is_dfs = options.scheduler == "dfs"
        free = [at for at, (name, _) in enumerate(self._todo) if name not in self._busy]
        if is_dfs and not free:
            return None
        at = free[0] if is_dfs else 0
        # The time that is left belongs to the lowest bound: a pass is worth what all have reached.
        sharing = [pair for pair in self._todo if not is_dfs or pair[1] == self._todo[at][1]]
        share = left * min(options.jobs, len(sharing)) / len(sharing)
        name, number = self._todo.pop(at)
        self._busy.append(name)
        # A bound that was not exhausted in its time is tried again before a higher one.
        exhausted = self._rows[name].bound
        bound = min(number, 0 if exhausted is None else exhausted + 1)
        self._what = f"{name}, bound {bound}" if is_dfs else name
        return Task(
            target=options.target,
            scenario=name,
            scheduler=options.scheduler,
            bound=bound,
            depth=options.depth,
            crashes=options.crashes,
            seed=options.seed + SEEDS * number,
            seconds=min(share, left),
            keep_going=options.keep_going,
        )

    def done(self, answer: Answer) -> None:
        """Let the next bound of a scenario begin."""
        task = answer.task
        self._busy.remove(task.scenario)
        more = any(name == task.scenario for name, _ in self._todo)
        if answer.found.exhausted and not more and task.bound < self._options.bound:
            # It needed one of its turns to try a lower bound again.
            self._todo.append((task.scenario, task.bound + 1))

    def tell(self) -> None:
        """Show how far it is."""
        seconds = time.monotonic() - self._start
        total = self._options.seconds
        played = int(self._board.played.value)
        self._show(
            Turn(
                done=min(round(10 * seconds), round(10 * total) - 1),
                total=round(10 * total),
                what=self._what,
                schedules=played,
                rate=played / seconds if seconds else 0.0,
                left=max(0.0, total - seconds),
            )
        )


@contextmanager
def _interruptible(board: Board) -> Iterator[None]:
    """Let Ctrl-C end the exploration in order: what was explored until then is told."""

    def stop(_signal: int, _frame: object) -> None:
        board.stop.value = 1

    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:  # Only the main thread may; elsewhere nobody presses Ctrl-C.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _context() -> multiprocessing.context.SpawnContext:
    # Not a fork: the starter may hold connections, and those must not be inherited.
    return multiprocessing.get_context("spawn")


_board: Board | None = None


def _begin(board: Board) -> None:
    """Prepare a process of the pool; Ctrl-C is the starter's to hear."""
    global _board
    _board = board
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Finalize(None, _close_stage, exitpriority=1)  # A child of multiprocessing runs no `atexit`.


def _perform(task: Task) -> Answer:
    assert _board is not None, "the pool has prepared this process"
    return perform(task, _board)


def _shrunk(campaign: Campaign, target: Any) -> list[Shrunk]:
    """Shrink the first violation of each scenario, one for each promise."""
    stories: dict[str, Shrunk] = {}
    options = campaign.options
    if options.keep_going:
        return _each_shrunk(campaign, target)
    for name, row in campaign.rows.items():
        for outcome in row.found.violations if row.found is not None else ():
            shrunk = shrink(
                target, scenario_of(name, options.crashes), outcome, name=options.target
            )
            known = stories.get(shrunk.promise)
            if known is None or len(shrunk.story.steps) < len(known.story.steps):
                stories[shrunk.promise] = shrunk
    # A smaller schedule may break less than the one that was found: that too has its proof.
    for name, row in campaign.rows.items():
        for outcome in row.found.violations if row.found is not None else ():
            told = {each.promise for kept in stories.values() for each in kept.story.violations}
            for promise in sorted(outcome.broken - told, key=ORDER.__getitem__):
                scenario = scenario_of(name, options.crashes)
                stories[promise] = shrink(
                    target, scenario, outcome, name=options.target, promise=promise
                )
    return list(stories.values())


def _each_shrunk(campaign: Campaign, target: Any) -> list[Shrunk]:
    """Shrink the shortest violation of each promise; what two of them share is told once."""
    options = campaign.options
    scenarios: dict[str, str] = {}
    shortest: dict[str, Outcome] = {}
    for name, row in campaign.rows.items():
        keep_shortest(shortest, row.shortest)
        scenarios |= {n: name for n, kept in row.shortest.items() if shortest[n] is kept}
    stories: list[tuple[Outcome, Shrunk]] = []
    for promise in sorted(shortest, key=ORDER.__getitem__):
        outcome = shortest[promise]
        if any(before is outcome and promise in each.outcome.broken for before, each in stories):
            continue
        scenario = scenario_of(scenarios[promise], options.crashes)
        shrunk = shrink(target, scenario, outcome, name=options.target, promise=promise)
        if shrunk.token not in {each.token for _, each in stories}:
            stories.append((outcome, shrunk))
    return [shrunk for _, shrunk in stories]
