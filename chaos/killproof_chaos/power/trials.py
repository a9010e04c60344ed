"""What is run: broken queues, healthy ones and the canary, each as a command with a seed.

A trial is a command line of `killproof chaos`, so that a reader can repeat any of them alone. The
options come from the gallery (intended), or are the same for all (cross, healthy).
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, cycle
from typing import Any, Final

from killproof_chaos import gallery, targets
from killproof_chaos.gallery import SHORT, Fault
from killproof_chaos.plan import NEMESES_DEFAULT
from killproof_chaos.targets.canary import sings
from killproof_evidence.judge import PROPERTIES

ENGINES: Final = ("sim", "crash", "disk", "proc")
COMMANDS: Final = {"proc": "run"}
#: A trial that takes longer than so many budgets, and than so many seconds, is ended by force.
LIMIT_BUDGETS: Final = 12
LIMIT_SECONDS_MIN: Final = 600.0

#: What each engine is given where it is not the one that must find the fault. The same for all
#: queues, and short: a cell of the map says what an engine finds in seconds, not in hours.
CROSS: Final = {
    "sim": ("--scheduler", "pct", "--budget", "3s"),
    "crash": ("--points", "4", "--no-errors"),
    "disk": ("--points", "40"),
    "proc": SHORT,
}
#: The queues that must never be accused, and how often each engine tries, all of them together.
HEALTHY: Final = ("killproof", "minimal")
HEALTHY_RUNS: Final = {"sim": 100, "crash": 100, "disk": 70, "proc": 30}
#: In the slice for CI: each engine accuses the control of nothing.
SLICE_RUNS: Final = {"sim": 2, "crash": 2, "disk": 1, "proc": 1}
#: Faults of which a short run of `proc` can take one set: those that the gallery is run under.
HEALTHY_NEMESES: Final = (",".join(NEMESES_DEFAULT), "kill,handler,io", "kill,handler,clock")
#: Seeds 79 and 168 of the first two hundred violate.
CANARY_RUNS: Final = 200
CANARY_SLICE: Final = (78, 79)
#: A search ends when it has found or exhausted what it looks for; this is for slow machines.
PATIENCE: Final = ("--budget", "400s")
#: Queues of the engine `proc` in the slice: they take ten times as long as the others.
SLICE_PROC_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of one queue."""

    part: str  #: intended, cross, healthy or canary
    target: str
    engine: str
    options: tuple[str, ...]  #: of the command, without target and seed
    seed: int
    budget: float  #: s on two idle cores, within which an intended one must find

    @property
    def key(self) -> str:
        """Return what tells this trial from every other, as a word."""
        return " ".join((self.part, str(self.seed), *self.argv()))

    @property
    def limit(self) -> float:
        """Return after how many seconds it is ended by force."""
        return max(LIMIT_SECONDS_MIN, LIMIT_BUDGETS * self.budget)

    @property
    def draws(self) -> bool:
        """Say whether its seed decides anything: else each seed is the same run once more."""
        if self.engine == "sim":
            return "--scheduler" in self.options and "dfs" not in self.options
        # Of this engine all points are taken unless it is told how many.
        return self.engine != "crash" or "--points" in self.options

    def argv(self) -> list[str]:
        """Return the command, without its first two words."""
        words = [COMMANDS.get(self.engine, self.engine), "--target", self.target, *self.options]
        if self.engine != "crash" or self.draws:  # The one command that refuses a seed then.
            words += ["--seed", str(self.seed)]
        return words

    def record(self) -> dict[str, Any]:
        """Return the trial as JSON has it."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Trial":
        """Read a trial."""
        return cls(**{**record, "options": tuple(record["options"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a trial."""

    trial: Trial
    verdict: str  #: pass, violated, unknown; failed: it could not be run
    broken: tuple[str, ...] = ()  #: properties that were found violated
    unproven: tuple[str, ...] = ()  #: those of them that no witness shows
    seconds: float = 0.0  #: wall clock, from the command to its verdict
    cpu_seconds: float = 0.0  #: of the run with all its processes
    why: str = ""  #: the first reason why it is not whole, or failed
    tries: int = 1  #: how often it was made, because the machine had no time for it

    def record(self) -> dict[str, Any]:
        """Return the outcome as JSON has it."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Outcome":
        """Read an outcome."""
        trial = Trial.of_record(record["trial"])
        words = {name: tuple(record[name]) for name in ("broken", "unproven")}
        return cls(**{**record, **words, "trial": trial})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for."""

    seeds: int = 20
    only: tuple[str, ...] = ()  #: broken queues; empty: all
    engines: tuple[str, ...] = ENGINES
    cross: int = 1  #: seeds of each engine that is not the intended one
    healthy: bool = True  #: the controls and the canary too
    is_slice: bool = False

    def argv(self) -> list[str]:
        """Return the command that asks for the same."""
        words = ["killproof", "chaos", "power"]
        words += ["--slice"] if self.is_slice else ["--seeds", str(self.seeds)]
        words += [word for name in self.only for word in ("--only", name)]
        if self.engines != ENGINES:
            words += [word for name in self.engines for word in ("--engine", name)]
        if not self.is_slice:
            words += ["--cross", str(self.cross)]
        return words if self.healthy else [*words, "--no-healthy"]


def faults(asked: Asked) -> list[Fault]:
    """Return the broken queues that were asked for.

    Raises:
        ValueError: one is unknown.
    """
    known = gallery.names()
    for name in asked.only:
        if name not in known:
            raise ValueError(
                f"--only {name!r} is no broken queue: `killproof chaos gallery` lists them"
            )
    found = [gallery.fault(name) for name in known if not asked.only or name in asked.only]
    if not any(fault.engine in asked.engines for fault in found):
        # Nothing to catch would be a pass.
        needed = sorted({fault.engine for fault in found})
        raise ValueError(
            f"--engine {' '.join(asked.engines)!r} catches none of these broken queues: add "
            f"--engine {' or '.join(needed)}"
        )
    found = [fault for fault in found if fault.engine in asked.engines]
    return in_slice(found) if asked.is_slice and not asked.only else found


def in_slice(found: Sequence[Fault]) -> list[Fault]:
    """Return the queues of a slice: all of the quick engines, and a few that take real processes.

    One for each property comes first, and of these the one that no quick engine has to find in
    another queue. Not those that break a bound of time, which with real processes a busy
    machine cannot judge.
    """
    quick = {fault.promise for fault in found if fault.engine != "proc"}
    timed = {entry.number for entry in PROPERTIES if entry.time_bound}
    slow = [fault for fault in found if fault.engine == "proc" and fault.promise not in timed]
    before: Counter[str] = Counter()
    ranked = []
    for fault in sorted(slow, key=lambda fault: (fault.seconds, fault.name)):
        ranked.append((before[fault.promise], fault.promise in quick, fault.name))
        before[fault.promise] += 1
    few = {name for _, _, name in sorted(ranked)[:SLICE_PROC_MAX]}
    return [fault for fault in found if fault.engine != "proc" or fault.name in few]


def trials(asked: Asked) -> list[Trial]:
    """Return all trials in the order in which they are made: what matters most comes first.

    Within a seed they are mixed, so that those that wait run beside those that compute.
    """
    chosen = faults(asked)
    found: list[Trial] = []
    for seed in range(1, (1 if asked.is_slice else asked.seeds) + 1):
        found += _mixed((intended(fault, seed, is_slice=asked.is_slice) for fault in chosen), seed)
    if asked.healthy:
        controls = [*healthy(asked), *canary(asked)]
        found += _mixed(controls, 0)
    for seed in range(1, (0 if asked.is_slice else asked.cross) + 1):
        others = _mixed(cross(chosen, seed, asked.engines), seed)
        # The longest come last: a budget that ends early leaves a whole map of the rest.
        found += sorted(others, key=lambda trial: trial.engine == "proc")
    return found


def intended(fault: Fault, seed: int, *, is_slice: bool = False) -> Trial:
    """Return the trial in which a broken queue must be caught.

    Args:
        fault: of the queue.
        seed: of the run.
        is_slice: with time for the search on a machine that does much else.
    """
    patient = is_slice and fault.engine == "sim" and "--budget" not in fault.options
    return Trial(
        part="intended",
        target=fault.name,
        engine=fault.engine,
        options=(*fault.options, *_lane_options(fault.engine), *(PATIENCE if patient else ())),
        seed=seed,
        budget=fault.seconds,
    )


def healthy(asked: Asked) -> Iterator[Trial]:
    """Yield short runs of healthy queues.

    First come the commands that catch the broken queues, each on the queue that it was made from:
    what is found there is not the fault. The rest spreads over all scenarios and operations.
    """
    runs = SLICE_RUNS if asked.is_slice else HEALTHY_RUNS
    names = HEALTHY[1:] if asked.is_slice else HEALTHY
    for engine in asked.engines:
        parts = {name: chain(_same(name, engine), cycle(_parts(name, engine))) for name in names}
        for number in range(runs[engine]):
            name = names[number % len(names)]
            yield Trial(
                part="healthy",
                target=name,
                engine=engine,
                options=(*next(parts[name]), *_lane_options(engine)),
                seed=number + 1,
                budget=10.0,
            )


def canary(asked: Asked) -> Iterator[Trial]:
    """Yield the seeds of the canary, most of which are healthy."""
    fault: Any = getattr(targets.load("canary"), "fault", None)
    if fault.engine not in asked.engines:
        return
    for seed in CANARY_SLICE if asked.is_slice else range(1, CANARY_RUNS + 1):
        # Whoever must find has time for it on a machine that does much else.
        patient = asked.is_slice and sings(seed)
        yield Trial(
            part="canary",
            target=fault.name,
            engine=fault.engine,
            options=(*fault.options, *(PATIENCE if patient else ())),
            seed=seed,
            budget=fault.seconds,
        )


def cross(chosen: Iterable[Fault], seed: int, engines: Sequence[str]) -> Iterator[Trial]:
    """Yield each broken queue under each engine that is not the intended one."""
    for fault in chosen:
        for engine in engines:
            if engine != fault.engine and can_run(fault.name, engine):
                yield Trial(
                    part="cross",
                    target=fault.name,
                    engine=engine,
                    options=(*CROSS[engine], *_lane_options(engine)),
                    seed=seed,
                    budget=10.0,
                )


def can_run(name: str, engine: str) -> bool:
    """Say whether an engine can play a queue at all: the simulator needs one that can be hosted."""
    return engine != "sim" or callable(getattr(targets.load(name), "open", None))


def _same(name: str, engine: str) -> list[tuple[str, ...]]:
    """Return the options under which broken queues are caught that were made from this one."""
    known = [gallery.fault(each) for each in gallery.names()]
    mine = [fault.options for fault in known if (fault.control, fault.engine) == (name, engine)]
    return list(dict.fromkeys(mine))


def _parts(name: str, engine: str) -> list[tuple[str, ...]]:
    """Return the options of short runs, one scenario or one operation in each, in a fixed order."""
    if engine == "disk":
        return [("--points", "40")]
    if engine == "proc":
        return [(*SHORT, "--nemesis", nemeses) for nemeses in HEALTHY_NEMESES]
    # Here, so that the others need not wait for the engines to be imported.
    if engine == "sim":
        from killproof_chaos.sim import campaign

        named, _ = campaign.chosen(campaign.Options(target=name), targets.load(name))
        random_search = ("--scheduler", "pct", "--budget", "0.5s")
        found: list[tuple[str, ...]] = [("--scenario", each, *random_search) for each in named]
    else:
        from killproof_chaos.engines.crash import operations_of

        operations = operations_of(targets.load(name))
        found = [("--operation", each, "--points", "24") for each in operations]
    random.Random(f"{name} {engine}").shuffle(found)
    return found


def _lane_options(engine: str) -> tuple[str, ...]:
    # The lanes of `power` keep the cores busy; a second layer would only start more processes.
    return ("--lanes", "1") if engine == "crash" else ()


def _mixed(found: Iterable[Trial], seed: int) -> list[Trial]:
    ordered = list(found)
    random.Random(seed).shuffle(ordered)
    return ordered
