"""What is run within a budget: pure, so that the jobs of a CI matrix agree without a word.

Each engine first gets the least with which its silence means something. These runs are *owed*:
one that was not made leaves the verdict unknown. What is left of the budget is dealt by weight as
further runs with further seeds; they make the evidence larger, and are made while there is time.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Final

from killproof_evidence.target import Target, level

#: In the order in which they run, and are kept where the budget is too small for all: on a machine
#: that is slower than the estimates, what judges most must not be what there was no time for.
ENGINES: Final = ("proc", "crash", "disk", "sim", "model")
COMMANDS: Final = {"proc": "run"}
#: Share of the time that is left after the least, by what more of an engine still finds.
WEIGHTS: Final[Mapping[str, float]] = {"proc": 0.35, "crash": 0.3, "sim": 0.2, "disk": 0.15}
#: Of the budget: the rest is for a slower machine, and for a run that has to be made again.
PLANNED: Final = 0.8
#: The simulator runs the code of a target at this level.
HOSTED: Final = 2
#: The one queue whose protocol the model has.
MODELLED: Final = frozenset({"killproof", "killproof-process"})
#: A target with more phases than its handler's is started from a warm server, a kill costs little.
PHASES_WARM: Final = 4
#: One with so many has workflows, limits and more besides: each with something rare to meet.
PHASES_MANY: Final = 40
#: All points of an operation are fewer than this.
POINTS_ALL: Final = 250
#: Each worker that is killed costs the start of an interpreter, with the queue's own imports.
WORKERS_COLD: Final = 4
#: Kills and pauses that are owed. Who starts an interpreter for each worker is back after a second
#: or two: more than this were not hit within three times the run, and the run was unknown.
PER_SECOND_WARM: Final = (10.0, 2.0)
PER_SECOND_COLD: Final = (1.5, 0.5)
PER_SECOND_ALONE: Final = (1.0, 0.4)
PROC_SECONDS: Final = (8.0, 60.0)
SIM_SECONDS: Final = (10.0, 300.0)
DISK_POINTS: Final = (60, 600)
#: Where a process has to be started for each image, in an environment of its own.
DISK_POINTS_COLD: Final = (12, 120)
JOBS_DISK: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What of a target decides how long an engine takes."""

    name: str
    level: int
    phases: int  #: named places of the code where it can be killed
    operations: int  #: that the engine crash knows of
    has_steps: bool  #: whether operations can be made one by one, or only whole lives
    workers: int = 4  #: processes that work at once, where each is started on its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user asked for; all shards of a campaign ask for the same."""

    target: str
    budget: float  #: s, of each shard
    seed: int
    engines: tuple[str, ...] = ENGINES
    shards: int = 1

    def argv(self) -> list[str]:
        """Return the command that asks for the same, without a shard."""
        words = ["killproof", "chaos", "prove", self.target, "--budget", f"{self.budget:g}s"]
        for name in self.engines if self.engines != ENGINES else ():
            words += ["--engine", name]
        return [*words, "--seed", str(self.seed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one engine: a command of `killproof chaos`."""

    name: str  #: of its folder
    engine: str
    words: tuple[str, ...]  #: of the command, without the target
    seconds: float  #: that it takes on two idle cores, about
    owed: bool  #: whether the verdict waits for it
    shard: int = 1  #: the job that makes it

    def argv(self, target: str) -> list[str]:
        """Return the command, without `killproof chaos`."""
        return [COMMANDS.get(self.engine, self.engine), "--target", target, *self.words]

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self) | {"words": list(self.words)}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Run":
        """Read a run."""
        return cls(**{**record, "words": tuple(record["words"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All runs of a campaign, over all shards."""

    asked: Asked
    runs: tuple[Run, ...]
    left_out: Mapping[str, str]  #: engine -> why it judges nothing

    @property
    def key(self) -> str:
        """Return a word that two plans share only if they are the same."""
        text = json.dumps(self.record(), sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "asked": asdict(self.asked),
            "runs": [run.record() for run in self.runs],
            "left_out": dict(self.left_out),
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Plan":
        """Read a plan."""
        asked = {**record["asked"], "engines": tuple(record["asked"]["engines"])}
        return cls(
            asked=Asked(**asked),
            runs=tuple(map(Run.of_record, record["runs"])),
            left_out=dict(record["left_out"]),
        )

    def of_shard(self, number: int) -> list[Run]:
        """Return the runs of one shard, in the order in which they are made."""
        mine = [run for run in self.runs if run.shard == number]
        return sorted(mine, key=lambda run: (not run.owed, ENGINES.index(run.engine)))


def facts_of(target: Target) -> Facts:
    """Look at a target; nothing of it runs."""
    from killproof_chaos import coverage
    from killproof_chaos.engines.crash import operations_of
    from killproof_chaos.plan import Options

    return Facts(
        name=target.name,
        level=level(target),
        phases=len(coverage.aims(target, Options())),
        operations=len(operations_of(target)),
        has_steps=callable(getattr(target, "steps", None)),
        workers=min(WORKERS_COLD, target.contract.parameters.get("workers_max", WORKERS_COLD)),
    )


def able(facts: Facts) -> tuple[str, ...]:
    """Return the engines that can judge such a target at all."""
    return tuple(
        name
        for name in ENGINES
        if (name != "sim" or facts.level >= HOSTED) and (name != "model" or facts.name in MODELLED)
    )


def plan(asked: Asked, facts: Facts) -> Plan:
    """Deal the budget.

    Raises:
        ValueError: no engine that was asked for can judge this target, or none fits; the message
            says what would.
    """
    offered = able(facts)
    wanted = [name for name in offered if name in asked.engines]
    if not wanted:
        raise ValueError(
            f"--engine {' '.join(asked.engines)!r} cannot judge {facts.name}: use "
            f"{', '.join(offered)}"
        )
    least = {name: _LEAST[name](facts) for name in wanted}
    total = asked.budget * asked.shards
    left_out: dict[str, str] = {}
    spent = 0.0
    for name in wanted:
        seconds = least[name][1]
        # A run cannot be cut in two: what one shard has no time for, several have not either.
        if spent + seconds > total or seconds > asked.budget:
            left = min(total - spent, asked.budget)
            left_out[name] = f"it needs {seconds:.0f} s, and of the budget {left:.0f} s are left"
        else:
            spent += seconds
    kept = [name for name in wanted if name not in left_out]
    if not kept:
        need = min(seconds for _, seconds in least.values())
        raise ValueError(
            f"--budget {asked.budget:g}s is too small for any engine: give {need:.0f}s or more"
        )
    runs = [_run(name, *_seeded(least[name], name, asked.seed), owed=True) for name in kept]
    runs += _more(kept, total * PLANNED - spent, {n: least[n][1] for n in kept}, asked, facts)
    named = [_named(run, number) for number, run in enumerate(runs, 1)]
    return Plan(asked=asked, runs=_dealt(named, asked.shards), left_out=left_out)


def needed(facts: Facts) -> float:
    """Return the budget in seconds that leaves no engine out, and some time for a slow machine."""
    return sum(_LEAST[name](facts)[1] for name in able(facts)) / PLANNED


def again(run: Run, number: int) -> Run:
    """Return an owed run once more, with a seed that no other run has."""
    at = run.words.index("--seed")
    seed = int(run.words[at + 1]) + 10_000 * number
    words = (*run.words[:at], "--seed", str(seed), *run.words[at + 2 :])
    return Run(
        name=f"{run.name}-again{number}", engine=run.engine, words=words, seconds=run.seconds,
        owed=False, shard=run.shard,
    )  # fmt: skip


#: The words of a command, and the seconds that it takes.
_Sized = tuple[tuple[str, ...], float]


def _seeded(sized: _Sized, engine: str, seed: int) -> _Sized:
    words, seconds = sized
    return ((*words, "--seed", str(seed)) if engine != "model" else words), seconds


def _run(engine: str, words: tuple[str, ...], seconds: float, *, owed: bool) -> Run:
    return Run(name="", engine=engine, words=words, seconds=round(seconds, 1), owed=owed)


def _named(run: Run, number: int) -> Run:
    return Run(**{**asdict(run), "name": f"{number:02}-{run.engine}"})


def _more(
    kept: Sequence[str], seconds: float, least: Mapping[str, float], asked: Asked, facts: Facts
) -> Iterable[Run]:
    """Deal what is left: to each engine its share, if that is worth a run."""
    names = [name for name in kept if name in WEIGHTS]
    while names:
        whole = sum(WEIGHTS[name] for name in names)
        shares = {name: seconds * WEIGHTS[name] / whole for name in names}
        small = [name for name in names if shares[name] < least[name]]
        if not small:
            break
        names.remove(min(small, key=WEIGHTS.__getitem__))
    for name in names:
        count = max(1, min(asked.shards, int(shares[name] // least[name])))
        for number in range(1, count + 1):
            sized = _sized(name, shares[name] / count, facts)
            yield _run(name, *_seeded(sized, name, asked.seed + number), owed=False)


def _dealt(runs: Iterable[Run], shards: int) -> tuple[Run, ...]:
    """Give each run to the shard with the least to do: what is owed first, the longest first."""
    load = dict.fromkeys(range(1, shards + 1), 0.0)
    found = []
    for run in sorted(runs, key=lambda run: (not run.owed, -run.seconds, run.name)):
        shard = min(load, key=lambda number: (load[number], number))
        load[shard] += run.seconds
        found.append(Run(**{**asdict(run), "shard": shard}))
    return tuple(sorted(found, key=lambda run: run.name))


# How much of an engine a time is worth. Measured on two idle cores: docs/prove.md.


def _proc(facts: Facts, seconds: float) -> _Sized:
    is_warm = _is_warm(facts)
    per_second = PER_SECOND_WARM if is_warm else PER_SECOND_COLD
    if facts.workers == 1 and not is_warm:
        per_second = PER_SECOND_ALONE
    kills, pauses = (round(seconds * each) for each in per_second)
    words = ("--seconds", f"{seconds:g}", "--kills", str(kills), "--pauses", str(pauses))
    # Beside the chaos: the start, the rest of the jobs, the judge; and on the way, each phase.
    if is_warm:
        return words, seconds * 1.3 + 8
    return ("--workers", str(facts.workers), *words), seconds * 1.5 + 16


def _disk(facts: Facts, points: int) -> _Sized:
    words = ("--points", str(points), "--jobs", str(JOBS_DISK))
    return words, (4 + points * 0.12) if _is_warm(facts) else (5 + points * 1.0)


def _sim(_facts: Facts, seconds: float) -> _Sized:
    # At random: a search of everything is unknown until the largest scenario has ended, hours.
    words = ("--scheduler", "pct", "--budget", f"{seconds:.0f}s", "--jobs", "2")
    return words, seconds + 4


def _crash(facts: Facts, points: int) -> _Sized:
    """Size a run by its points of each operation."""
    pace, before = (0.06, 0.35) if facts.has_steps else (0.8, 2.0)
    seconds = 3 + facts.operations * (before + points * pace)
    if points >= POINTS_ALL and facts.has_steps:
        return (), seconds
    words = ("--points", str(points))
    # What a queue does after an error of the disk, only one that says how is asked.
    return words if facts.has_steps else (*words, "--no-errors"), seconds


def _least_seconds(facts: Facts) -> float:
    """Return how long real processes need, so that nearly every run meets all that it owes."""
    if facts.phases > PHASES_MANY:
        return 20.0
    return 10.0 if _is_warm(facts) else PROC_SECONDS[0]


def _disk_points(facts: Facts) -> tuple[int, int]:
    return DISK_POINTS if _is_warm(facts) else DISK_POINTS_COLD


def _is_warm(facts: Facts) -> bool:
    """Whether its processes are forked from one that has imported everything."""
    return facts.phases > PHASES_WARM


_LEAST: Final[Mapping[str, Callable[[Facts], _Sized]]] = {
    "model": lambda _: ((), 15.0),
    "disk": lambda facts: _disk(facts, _disk_points(facts)[0]),
    "sim": lambda facts: _sim(facts, SIM_SECONDS[0]),
    "crash": lambda facts: _crash(facts, 4 if facts.has_steps else 12),
    "proc": lambda facts: _proc(facts, _least_seconds(facts)),
}


def _sized(engine: str, seconds: float, facts: Facts) -> _Sized:
    """Return the largest run of an engine that fits into a time."""
    sizes: Iterable[Any]
    if engine == "proc":
        sizes = range(int(PROC_SECONDS[0]), int(PROC_SECONDS[1]) + 1)
    elif engine == "sim":
        sizes = range(int(SIM_SECONDS[0]), int(SIM_SECONDS[1]) + 1)
    elif engine == "disk":
        sizes = range(*_disk_points(facts), 4)
    else:
        sizes = range(4, POINTS_ALL + 1)
    make = {"proc": _proc, "sim": _sim, "disk": _disk, "crash": _crash}[engine]
    fitting = [sized for size in sizes if (sized := make(facts, size))[1] <= seconds]
    return fitting[-1] if fitting else _LEAST[engine](facts)
